"""What a pool of candidates says about its verifiers: selection and vote curves, intervals, reward against KL, calibration.

Arrays in, one JSON-ready dict out (`measure`); the mathematics is in rerank.py, votes.py and stats.py. One protocol for
every number: means over problems of expectations over the n-subsets of a problem's own candidates (all of them where n is
larger); who cannot win fills a place.

Dimension key
  P problems, N candidates, T steps, n subset sizes, b betas
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax import InputError, metrics, rerank, stats, votes
from prm_jax.data.answers import is_blank
from prm_jax.data.pools import Problem, as_arrays, scores_unit
from prm_jax.data.units import UNITS, as_probability

# From the arg max to the reference: solution scores are a few nats apart, seldom below a thousandth.
BETA_b = np.concatenate([[0.0], np.geomspace(1e-3, 1e3, 64), [np.inf]])


@dataclasses.dataclass(frozen=True)
class Rules:
    """How candidates are compared; conf/evaluate.yaml says what each key means."""

    scores_unit: str
    aggregator: str
    ties: str
    vote_draws: int
    vote_counts: str | None = None  # what a winning group of votes counts; None: "mean", under ties=first "first"

    def __post_init__(self):
        if self.vote_counts is None:
            object.__setattr__(self, "vote_counts", "first" if self.ties == "first" else "mean")
        expected = {"scores_unit": UNITS, "aggregator": rerank.AGGREGATORS, "ties": ("share", "first")}
        for key, names in (expected | {"vote_counts": votes.COUNTS}).items():
            if getattr(self, key) not in names:
                raise InputError(f"{key}: got {getattr(self, key)!r}, expected {', '.join(names)}")
        if self.vote_draws < 1:
            raise InputError(f"vote_draws: got {self.vote_draws}, expected at least 1")


@dataclasses.dataclass(frozen=True)
class Pool:
    """The arrays of a pool: which candidates exist, which may win, whether they are right, and what they answer.

    eligible_PN is False for the unfinished and those without an answer: they fill a place of the n and never win (OpenAI's
    protocol). answer_PN numbers the answers of a problem, -1 for who is not eligible; None if no candidate has one.
    """

    right_PN: np.ndarray
    present_PN: np.ndarray
    eligible_PN: np.ndarray
    answer_PN: np.ndarray | None
    dropped: dict[str, int]


def pool_arrays(problems: list[Problem], answer_groups: list[list[int]] | None = None) -> Pool:
    """Arrays of a graded pool; answers are grouped as texts unless `answer_groups` (of a checker) is given.

    Raises InputError naming problem and candidate where `correct` is missing.
    """
    P, N = len(problems), max(len(problem.candidates) for problem in problems)
    right_PN, present_PN, eligible_PN = (np.zeros((P, N), np.float32), np.zeros((P, N), bool), np.zeros((P, N), bool))
    answer_PN = np.full((P, N), -1, np.int32)
    answer_of = lambda candidate: None if is_blank(candidate.answer) else candidate.answer
    has_answers = any(answer_of(c) is not None for problem in problems for c in problem.candidates)
    for p, problem in enumerate(problems):
        texts = [answer_of(c) for c in problem.candidates]
        number = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        groups = answer_groups[p] if answer_groups else [-1 if a is None else number[a] for a in texts]
        for n, candidate in enumerate(problem.candidates):
            if candidate.correct is None:
                raise InputError(
                    f"pool: problem {problem.id}: candidates[{n}].correct: nobody graded it; checker=math grades the"
                    " answers against the problem's"
                )
            right_PN[p, n], present_PN[p, n] = candidate.correct, True
            eligible_PN[p, n] = candidate.finished and (texts[n] is not None or not has_answers)
            answer_PN[p, n] = groups[n] if eligible_PN[p, n] else -1
    cut = [not c.finished for problem in problems for c in problem.candidates]
    silent = [answer_of(c) is None for problem in problems for c in problem.candidates] if has_answers else []
    dropped = {"missing": P * N - len(cut), "unfinished": sum(cut), "without_answer": sum(silent)}
    return Pool(right_PN, present_PN, eligible_PN, answer_PN if has_answers else None, dropped)


def log_scores(problems: list[Problem], name: str, default_unit: str) -> tuple[np.ndarray, np.ndarray, str]:
    """(step_PNT, mask_PNT, unit) as `rerank.aggregate` takes them, of the stored scores `name`: log-odds as they are, of
    other units the log-probability."""
    score_PNT, mask_PNT = as_arrays(problems, name)
    unit = scores_unit(problems, name, default_unit)
    low, high = UNITS[unit].low, UNITS[unit].high
    outside = mask_PNT & ((score_PNT < low) | (score_PNT > high))
    if outside.any():
        p, n, t = np.argwhere(outside)[0]
        raise InputError(
            f"pool: problem {problems[p].id}: candidates[{n}].step_scores.{name}[{t}]: got {score_PNT[p, n, t]:g}, expected a"
            f" {unit} in [{low:g}, {high:g}]; scores_unit=logit takes unbounded scores"
        )
    with np.errstate(over="ignore", divide="ignore"):  # log-odds beyond float32 are as certain as infinite ones
        if np.isinf(low):
            return score_PNT.astype(np.float32), mask_PNT, "logit"
        logp_PNT = np.log(as_probability(score_PNT, unit), where=mask_PNT, out=np.zeros_like(score_PNT))
        return logp_PNT.astype(np.float32), mask_PNT, "logp"


def sizes_of(N: int) -> list[int]:
    """Powers of two up to N, and N."""
    return sorted({2**k for k in range(N.bit_length()) if 2**k <= N} | {N})


def measure(
    problems: list[Problem], pool: Pool, scorers: list[str], rules: Rules, seed: int, step_labels=None, value_scorers=()
) -> dict:
    """Every number of a pool under the step scores named in `scorers`: the results.json of task=best_of_n.

    step_labels: {(problem text, steps): correctness labels} where they are known. With them `trace` counts winners without
    a wrong step, and step scores are calibrated against them; otherwise, and those of `value_scorers`, which estimate
    chances of success, against the outcome of a step's solution.
    """
    P, N = pool.right_PN.shape
    trace_PN = right_traces(problems, pool, step_labels) if step_labels else None
    mask_PN = None if pool.present_PN.all() else pool.present_PN
    sizes, k_vote = sizes_of(N), jax.random.key(seed)
    value, curve = {}, {}  # a number's path in the results -> {n: its value_P}, its mean for every n = 1..N

    def exact(name, x_Pn):
        x_Pn = np.asarray(x_Pn, float)
        value[name] = {n: x_Pn[:, n - 1] for n in sizes}
        curve[name] = x_Pn.mean(0).tolist()

    def drawn(name, log_weight_PN=None):  # the votes without a closed form
        given = pool.answer_PN, pool.right_PN, log_weight_PN, mask_PN, np.array(sizes)
        x_Pn = votes.vote_curve(k_vote, *given, draws=rules.vote_draws, ties=rules.ties, counts=rules.vote_counts)
        value[name] = dict(zip(sizes, np.asarray(x_Pn, float).T, strict=True))

    def best(score_PN, gold_PN):
        return rerank.best_of_n(score_PN, gold_PN, pool.eligible_PN, mask_PN, ties=rules.ties)

    exact(("oracle",), rerank.pass_at_n(pool.right_PN, pool.eligible_PN, mask_PN))
    result = {
        "n_problems": P,
        "n_candidates": N,
        "mean": float((pool.right_PN.sum(-1) / pool.present_PN.sum(-1)).mean()),
        **dataclasses.asdict(rules),
        "dropped": pool.dropped,
        "scores_units": {},
        "zero_scores": {},
        "reward_kl": {},
        "calibration": {},
    }
    if pool.answer_PN is None:
        result["majority_rule"] = "none: no candidate has an answer"
    elif rules.ties == "share" and N <= votes.EXACT_VOTE_SIZE:
        result["majority_rule"] = "exact over all subsets"
        given = pool.answer_PN, pool.right_PN, mask_PN
        exact(("majority",), votes.majority_curve(*given, counts=rules.vote_counts))
    else:
        result["majority_rule"] = f"mean of {rules.vote_draws} random subsets"
        drawn(("majority",))
    for scorer in scorers:
        step_PNT, mask_PNT, unit = log_scores(problems, scorer, rules.scores_unit)
        result["scores_units"][scorer] = scores_unit(problems, scorer, rules.scores_unit)
        is_zero_PN = (step_PNT == -np.inf).any(-1) & pool.eligible_PN
        result["zero_scores"][scorer] = int(is_zero_PN.any(-1).sum())
        score_PN = rerank.aggregate_all(step_PNT, mask_PNT, tuple(rerank.AGGREGATORS), unit=unit)
        for how in rerank.AGGREGATORS:  # the jitted dict comes back in alphabetical order
            x_PN, name = score_PN[how], ("scorers", scorer, how)
            exact((*name, "best_of_n"), best(x_PN, pool.right_PN))
            if trace_PN is not None:
                exact((*name, "trace"), best(x_PN, trace_PN))
            if pool.answer_PN is not None and how == rules.aggregator:
                drawn((*name, "weighted_vote"), x_PN)
            elif pool.answer_PN is not None:
                law_PN = votes.vote(pool.answer_PN, x_PN, ties=rules.ties, counts=rules.vote_counts)
                value[*name, "weighted_vote"] = {N: np.asarray(rerank.expectation(law_PN, pool.right_PN), float)}
        result["reward_kl"][scorer] = reward_against_kl(score_PN[rules.aggregator], pool, sizes, rules.ties)
        labels = None if scorer in value_scorers else step_labels
        result["calibration"][scorer] = calibration(problems, scorer, rules, score_PN, pool, labels)

    # The same resampled problems for every number, so that all differences are paired.
    mean_P = np.stack([x_P for by_size in value.values() for x_P in by_size.values()], -1)
    bounds = zip(*stats.mean_interval(mean_P, seed), strict=True)
    for name, by_size in value.items():
        *path, rule = name
        place = result
        for part in path:
            place = place.setdefault(part, {})
        # Beside best_of_n its siblings are `band`, `interval`, `curve`; beside other rules `RULE_band` and so on.
        before = "" if rule == "best_of_n" else f"{rule}_"
        place[rule] = {str(n): float(x_P.mean()) for n, x_P in by_size.items()}
        place[f"{before}interval"] = {str(n): [float(x) for x in next(bounds)] for n in by_size}
        place[f"{before}band"] = {str(n): float(rerank.subset_band(x_P[:, None])[0]) for n, x_P in by_size.items()}
        if name in curve:
            place[f"{before}curve"] = curve[name]
    written = lambda name: ".".join(part for part in name if part != "scorers")
    pairs = list(comparisons(list(value), rules))
    a_PX, b_PX = ([value[pair[side]][N] for pair in pairs] for side in (0, 1))
    tests = stats.paired_differences(np.stack(a_PX, -1), np.stack(b_PX, -1), seed) if pairs else []
    result["differences"] = [
        {"a": written(a), "b": written(b), "n": N} | test for (a, b), test in zip(pairs, tests, strict=True)
    ]
    return result


def right_traces(problems: list[Problem], pool: Pool, step_labels) -> np.ndarray:
    """trace_PN: 1 for a right candidate without a wrong step (Uesato et al. 2022's trace, here with the answer)."""
    trace_PN = pool.right_PN.copy()
    for p, problem in enumerate(problems):
        for n, candidate in enumerate(problem.candidates):
            trace_PN[p, n] *= metrics.labelled_steps(step_labels[problem.problem, candidate.steps])[1] == -1
    return trace_PN


def comparisons(names, rules: Rules):
    """What is compared at the pool's size: every rule with the majority vote, every aggregator with its scorer's
    headline one, the headline's weighted vote with its selection, and the scorers' headline selections in pairs."""
    headline = [name for name in names if name[2:] == (rules.aggregator, "best_of_n")]
    for name in names:
        if name[0] != "scorers":
            continue
        own = (*name[:2], rules.aggregator, "best_of_n")
        if ("majority",) in names and name[3] != "trace":
            yield name, ("majority",)
        if name != own and (name[3] == "best_of_n" or name[2:] == (rules.aggregator, "weighted_vote")):
            yield name, own
    yield from itertools.combinations(headline, 2)


def reward_against_kl(score_PN, pool: Pool, sizes: list[int], ties: str) -> dict:
    """Expected accuracy and mean score against KL from the uniform law, of KL-reweighting and of best-of-n.

    Gao et al. 2023, figures 1 and 2, with a gold label for the gold reward. KL in nats, means over problems; the reference
    of both is uniform over a problem's candidates, eligible or not. `score` is the aggregated score that the laws climb, in
    nats: the mean over what can win and has a finite score, of the problems where something does.
    """
    mask_PN = None if pool.present_PN.all() else pool.present_PN
    x = jax.tree.map(jnp.asarray, (score_PN, pool.right_PN, pool.present_PN, pool.eligible_PN, mask_PN))

    def best_of(n, score_PN, right_PN, present_PN, eligible_PN, mask_PN):
        law_PN = rerank.best_of_n_law(score_PN, n, eligible_PN, mask_PN, ties=ties)
        kl_P = rerank.kl_divergence(law_PN, present_PN / present_PN.sum(-1, keepdims=True))
        return means(law_PN, kl_P, score_PN, right_PN, eligible_PN)

    def tilted(beta, score_PN, right_PN, _, eligible_PN, mask_PN):
        law = rerank.reweight(score_PN, beta, None, eligible_PN, mask_PN)
        return means(law.weight_PN, law.kl_P, score_PN, right_PN, eligible_PN)

    def means(law_PN, kl_P, score_PN, right_PN, eligible_PN):
        accuracy_P = rerank.expectation(law_PN, right_PN * eligible_PN)
        return kl_P.mean(), accuracy_P.mean(), jnp.nanmean(rerank.mean_score(law_PN, score_PN, eligible_PN))

    tables = {}
    for name, f, column in (("reweighted", tilted, {"beta": BETA_b}), ("best_of_n", best_of, {"n": np.array(sizes)})):
        (grid,) = column.values()
        over = jax.jit(lambda grid, *x, f=f: jax.lax.map(lambda value: f(value, *x), grid))
        found = over(jnp.asarray(grid, jnp.float32 if name == "reweighted" else jnp.int32), *x)
        column |= dict(zip(("kl", "accuracy", "score"), found, strict=True))
        tables[name] = {key: np.asarray(values).tolist() for key, values in column.items()}
    return tables


def calibration(problems, scorer: str, rules: Rules, score_PN, pool: Pool, step_labels) -> dict:
    """Reliability, ECE and Brier score of step scores as P(good), and of exp(solution score) against `correct`, by
    aggregator (of those whose score is the log of a probability)."""
    present_PN = pool.present_PN
    right = pool.right_PN[present_PN].astype(float)
    solutions = {
        how: calibration_numbers(np.exp(np.asarray(score_PN[how], float)[present_PN]), right)
        for how, aggregator in rerank.AGGREGATORS.items()
        if aggregator.is_log_probability
    }
    score, y = [], []
    for problem in problems:
        for candidate in problem.candidates:
            score_T = candidate.step_scores[scorer]
            label_T = step_labels[problem.problem, candidate.steps] if step_labels else None
            steps = metrics.labelled_steps(label_T)[0] if step_labels else range(len(score_T))
            score.extend(score_T[t] for t in steps)
            y.extend(label_T[t] if step_labels else float(candidate.correct) for t in steps)
    p = as_probability(np.array(score, np.float64), scores_unit(problems, scorer, rules.scores_unit))
    steps = calibration_numbers(p, np.array(y))
    return {"solutions": solutions, "steps": steps, "step_label": "exact" if step_labels else "outcome"}


def calibration_numbers(p, y) -> dict:
    p = np.clip(p, 0.0, 1.0)  # exp(log(...)) may pass 1 by a rounding
    mean_p, mean_y, count = metrics.reliability(p, y)
    return {
        "ece": metrics.ece(p, y),
        "brier": metrics.brier(p, y),
        "auroc": metrics.auroc(p, y >= 0.5),
        "reliability": {"mean_score": mean_p.tolist(), "mean_label": mean_y.tolist(), "n": count.tolist()},
    }
