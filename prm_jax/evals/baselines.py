"""Rules that never read a step stand beside a verifier, which is worth its cost above them alone: a step's
position, its length, a constant chance of an error, and the likelihood under the model it was trained from.

Dimension key: R solutions, G groups (group_RG: the one of each), C cuts of a rule, S random halves of the
problems, P problems, n labelled steps."""

from typing import NamedTuple

import numpy as np

from prm_jax.evals.tables import lead_text, show_table, with_interval
from prm_jax.metrics import auroc, harmonic_mean, labelled_steps, mean, problem_numbers
from prm_jax.solutions import Solution, first_error
from prm_jax.stats import bootstrap_interval

HALVES = 200  # random halves of the problems: a cut is fitted on one, and judges the other
CUTS = 200


class Row(NamedTuple):
    """A labelled solution."""

    solution: Solution
    group: str  # F1 is the plain mean over the groups, such as ProcessBench's splits
    problem: str  # the unit of intervals: solutions of one problem are not independent


def rule_scores(solutions: list[Solution]) -> dict[str, list[np.ndarray]]:
    """{rule: score_T of each solution}: a later step, or one of more characters, is worse."""
    return {
        "position": [-np.arange(len(s.steps), dtype=float) for s in solutions],
        "length": [-np.array([len(step) for step in s.steps], float) for s in solutions],
    }


def compare_with_rules(
    rows: list[Row], scores, likelihood, threshold: float, seed: int, kind: str = "correctness"
) -> dict:
    """`judges`: of the verifier and of each rule the AUROC of its step scores, and of correctness labels
    ProcessBench's F1 of first errors, with the cut that is best for other problems (`cross_fitted`); the
    verifier's also at the threshold. `lead`: its cross-fitted F1 over that of the best rule, with a paired
    95 % bootstrap interval over problems. likelihood: step scores, or None. kind: of the labels."""
    solutions = [row.solution for row in rows]
    scores_of = {"verifier": scores} | rule_scores(solutions)
    if likelihood is not None:
        scores_of["likelihood"] = likelihood
    judges = {name: {"step_auroc": step_auroc(score, solutions, kind)} for name, score in scores_of.items()}
    if kind != "correctness":  # no step is the first wrong one
        return {"judges": judges}
    error_R = np.array([first_error(s.labels) for s in solutions])
    problem_R = problem_numbers(row.problem for row in rows)
    group_R = problem_numbers(row.group for row in rows)
    group_RG = group_R[:, None] == np.unique(group_R)
    chances = {}
    for name, score in scores_of.items():
        cut_C = np.unique(np.quantile(np.concatenate(score), np.linspace(0, 1, CUTS), method="lower"))
        chances[name] = cut_chances(score, error_R, cut_C)
    chances["hazard"] = hazard_chances(np.array([len(s.steps) for s in solutions]), error_R)
    hits = {}  # {judge: the chance of each solution's first error to be found}
    for name, chance_CR in chances.items():
        hits[name] = cross_fitted(chance_CR, error_R, problem_R, group_RG, seed)
        judges.setdefault(name, {})["cross_fitted"] = mean_f1(hits[name], error_R, group_RG)
    predicted_R = np.array([first_error(score_T, threshold) for score_T in scores])
    at_threshold = predicted_R == error_R, error_R, group_RG
    judges["verifier"]["f1"] = mean_f1(*at_threshold)
    judges["verifier"]["f1_interval"] = bootstrap_interval(mean_f1, problem_R, *at_threshold, seed=seed)
    rules = [name for name in judges if name != "verifier"]
    rule = max(rules, key=lambda name: np.nan_to_num(judges[name]["cross_fitted"]))  # the first of equals

    def lead(hit_R, rule_hit_R, *others):
        return mean_f1(hit_R, *others) - mean_f1(rule_hit_R, *others)

    arrays = hits["verifier"], hits[rule], error_R, group_RG
    interval = bootstrap_interval(lead, problem_R, *arrays, seed=seed)
    difference = {"difference": lead(*arrays), "interval": interval}
    return {"judges": judges, "best_rule": rule, "lead": difference}


def compare_apart(rows: list[Row], scores, likelihood, known_R, *settings) -> dict:
    """`compare_with_rules` of the rows with a label, and as `unseen` the same of those that are not known,
    where some are. settings: the threshold, the seed and the kind of labels."""

    def compare(members: list[int]) -> dict:
        part = [x and [x[i] for i in members] for x in (rows, scores, likelihood)]
        return {"n": len(members)} | compare_with_rules(*part, *settings)

    labelled = [i for i, row in enumerate(rows) if any(y is not None for y in row.solution.labels)]
    unseen = [i for i in labelled if not known_R[i]]
    found = compare(labelled)
    return found | {"unseen": compare(unseen)} if 0 < len(unseen) < len(labelled) else found


def show_comparison(results: dict, title: str = "beside rules"):
    """Prints what `compare_apart` found."""
    table = {}
    for name, judge in results["judges"].items():
        row = {"AUROC": judge["step_auroc"]} if "step_auroc" in judge else {}
        if "f1" in judge:
            row["F1"] = with_interval(judge, "f1")
        if "cross_fitted" in judge:
            row["F1, cross-fitted"] = judge["cross_fitted"]
        table[name] = row
    show_table(title, table)
    if "lead" in results:
        print(f"verdict     {lead_text('cross-fitted, the verifier', results['best_rule'], results['lead'])}")
    if unseen := results.get("unseen"):
        show_comparison(unseen, f"unseen: {unseen['n']} rows")


def of_labelled_steps(x, solutions: list[Solution], kind: str = "correctness") -> np.ndarray:
    """x_n of the labelled steps, one solution after another. x: a number for each step of each solution."""
    parts = [np.zeros(0)]
    for x_T, s in zip(x, solutions, strict=True):
        parts.append(np.array(x_T, float)[labelled_steps(s.labels, kind)])
    return np.concatenate(parts)


def step_auroc(score, solutions: list[Solution], kind: str = "correctness") -> float:
    """AUROC of step scores; positive = good."""
    label_n = of_labelled_steps([s.labels or () for s in solutions], solutions, kind)
    return auroc(of_labelled_steps(score, solutions, kind), label_n >= 0.5)


def cut_chances(score: list[np.ndarray], error_R, cut_C) -> np.ndarray:
    """chance_CR: 1 where the first step that scores below a cut is the first error, or where neither is."""
    chance_CR = np.empty((len(cut_C), len(score)), np.float32)
    for i, (score_T, error) in enumerate(zip(score, error_R, strict=True)):
        before = score_T if error == -1 else score_T[:error]
        chance_CR[:, i] = cut_C <= np.min(before, initial=np.inf)
        if error != -1:
            chance_CR[:, i] *= score_T[error] < cut_C
    return chance_CR


def hazard_chances(length_R, error_R) -> np.ndarray:
    """chance_CR of rates h: each step is called wrong with chance h, until one is."""
    rate_C1 = np.linspace(0, 1, CUTS)[:, None]
    is_wrong_R = error_R != -1
    passed_CR = (1 - rate_C1) ** np.where(is_wrong_R, error_R, length_R)
    return passed_CR * np.where(is_wrong_R, rate_C1, 1.0)


def cross_fitted(chance_CR, error_R, problem_R, group_RG, seed: int) -> np.ndarray:
    """The chance of each solution to be judged right at the cut of the best F1 on the other half of its
    group's problems, the mean over HALVES."""
    fitted_R = np.zeros(len(error_R))
    for own in group_RG.T:
        _, problem_r = np.unique(problem_R[own], return_inverse=True)
        chance_Cr = chance_CR[:, own]
        is_wrong_r = error_R[own] != -1
        half_SP = np.tile(np.arange(problem_r.max() + 1) % 2, (HALVES, 1))
        half_Sr = np.random.default_rng(seed).permuted(half_SP, axis=1)[:, problem_r]
        for side in (0, 1):
            fitted_on_Sr = half_Sr != side
            share_SC = []
            for kind_r in (is_wrong_r, ~is_wrong_r):
                taken_Sr = (fitted_on_Sr & kind_r).astype(np.float32)
                share_SC.append(taken_Sr @ chance_Cr.T / np.maximum(taken_Sr.sum(1), 1)[:, None])
            f1_SC = share_SC[0] * share_SC[1] / np.maximum(share_SC[0] + share_SC[1], 1e-9)
            fitted_R[own] += (~fitted_on_Sr * chance_Cr[f1_SC.argmax(1)]).sum(0, dtype=float)
    return fitted_R / HALVES


def mean_f1(hit_R, error_R, group_RG) -> float:
    """ProcessBench's F1, the harmonic mean of the accuracies on erroneous and on sound solutions, the plain
    mean over the groups; nan where a group lacks a kind."""
    is_wrong_R = error_R != -1
    f1s = [harmonic_mean(mean(hit_R[own & is_wrong_R]), mean(hit_R[own & ~is_wrong_R])) for own in group_RG.T]
    return mean(f1s)
