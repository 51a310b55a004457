"""What a pool of candidates says about its verifiers: selection and vote curves, intervals, reward against KL, calibration.

Arrays in, one JSON-ready dict out (`measure`); the mathematics is in rerank.py, votes.py and stats.py. One protocol for
every number: means over problems of expectations over the n-subsets of a problem's own candidates (all of them where n is
larger); who cannot win fills a place.

Dimension key
  P problems, N candidates, T steps, n subset sizes, b betas
"""

import dataclasses
import functools
import itertools
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax import InputError, metrics, rerank, stats, votes
from prm_jax.data.answers import is_blank
from prm_jax.data.pools import Problem, as_arrays, scores_in_unit, scores_unit
from prm_jax.data.units import UNITS, as_probability
from prm_jax.evals import standing, traces
from prm_jax.launch.config import Count, one_of

# From the arg max to the reference: solution scores are a few nats apart, seldom below a thousandth.
BETA_b = np.concatenate([[0.0], np.geomspace(1e-3, 1e3, 64), [np.inf]])


@dataclasses.dataclass(frozen=True)
class Rules:
    """How candidates are compared; conf/task/best_of_n.yaml says what each key means."""

    scores_unit: Annotated[str, one_of(UNITS)]
    aggregator: Annotated[str, one_of(rerank.AGGREGATORS)]
    ties: Literal["share", "first"]
    vote_draws: Count
    vote_counts: Annotated[str, one_of(votes.COUNTS)] | None = None

    @property
    def counts(self) -> str:
        """What a winning group of votes counts, a name of votes.COUNTS."""
        return self.vote_counts or ("first" if self.ties == "first" else "mean")


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
    right_PN, (present_PN, eligible_PN) = np.zeros((P, N), np.float32), np.zeros((2, P, N), bool)
    answer_PN, dropped = np.full((P, N), -1, np.int32), {"missing": P * N, "unfinished": 0, "without_answer": 0}
    has_answers = any(not is_blank(c.answer) for problem in problems for c in problem.candidates)
    for p, problem in enumerate(problems):
        number = {text: i for i, text in enumerate(dict.fromkeys(c.answer for c in problem.candidates))}
        for n, c in enumerate(problem.candidates):
            if c.correct is None:
                place = f"pool: problem {problem.id}: candidates[{n}].correct"
                raise InputError(f"{place}: nobody graded it; checker=math grades the answers against the problem's")
            is_silent = has_answers and is_blank(c.answer)
            right_PN[p, n], present_PN[p, n], eligible_PN[p, n] = c.correct, True, c.finished and not is_silent
            if eligible_PN[p, n] and has_answers:
                answer_PN[p, n] = answer_groups[p][n] if answer_groups else number[c.answer]
            dropped["missing"] -= 1
            dropped["unfinished"] += not c.finished
            dropped["without_answer"] += is_silent
    return Pool(right_PN, present_PN, eligible_PN, answer_PN if has_answers else None, dropped)


def log_scores(problems: list[Problem], name: str, default_unit: str) -> tuple[np.ndarray, np.ndarray, str]:
    """(step_PNT, mask_PNT, unit) as `rerank.aggregate` takes them, of the stored scores `name`: log-odds as they are, of
    other units the log-probability."""
    score_PNT, mask_PNT = as_arrays(problems, name)
    unit = scores_in_unit(problems, name, default_unit)[1]
    with np.errstate(over="ignore", divide="ignore"):  # log-odds beyond float32 are as certain as infinite ones
        if np.isinf(UNITS[unit].low):
            return score_PNT.astype(np.float32), mask_PNT, "logit"
        logp_PNT = np.log(as_probability(score_PNT, unit), where=mask_PNT, out=np.zeros_like(score_PNT))
        return logp_PNT.astype(np.float32), mask_PNT, "logp"


def measure(
    problems: list[Problem],
    pool: Pool,
    scorers: list[str],
    rules: Rules,
    seed: int,
    step_labels=None,
    value_scorers=(),
    outcome_scorers=(),
) -> dict:
    """Every number of a pool under the step scores named in `scorers`: the results.json of task=best_of_n.

    step_labels: {(problem text, steps): correctness labels} where they are known. With them `trace` counts winners without
    a wrong step, `chosen` is what traces.py says of them, and step scores are calibrated against them; otherwise, and those of
    `value_scorers`, which estimate chances of success, against the outcome of a step's solution. `outcome_scorers` have
    learned the outcome at the last step, so their headline aggregator is `last`.
    """
    headline = {scorer: "last" if scorer in outcome_scorers else rules.aggregator for scorer in scorers}
    P, N = pool.right_PN.shape
    golds = {"best_of_n": pool.right_PN} | ({"trace": right_traces(problems, pool, step_labels)} if step_labels else {})
    mask_PN = None if pool.present_PN.all() else pool.present_PN  # None is computed faster
    sizes, k_vote = sorted({2**k for k in range(N.bit_length())} | {N}), jax.random.key(seed)
    value, curve = (
        {},
        {},
    )  # a number's path in the results -> {n: its value_P}, its mean (and interval) for every n = 1..N

    def exact(name, x_Pn, is_headline=True):
        x_Pn = np.asarray(x_Pn, float)
        value[name] = {n: x_Pn[:, n - 1] for n in sizes}
        curve[name] = {"curve": x_Pn.mean(0).tolist()}
        if is_headline:
            curve[name]["curve_interval"] = stats.mean_interval(x_Pn, seed).tolist()

    def drawn(name, log_weight_PN=None):  # the votes without a closed form
        args = pool.answer_PN, pool.right_PN, log_weight_PN, mask_PN, np.array(sizes)
        x_Pn = votes.vote_curve(k_vote, *args, draws=rules.vote_draws, ties=rules.ties, counts=rules.counts)
        value[name] = dict(zip(sizes, np.asarray(x_Pn, float).T, strict=True))

    exact(("oracle",), rerank.pass_at_n(pool.right_PN, pool.eligible_PN, mask_PN))
    result = {
        "n_problems": P,
        "n_candidates": N,
        "mean": float((pool.right_PN.sum(-1) / pool.present_PN.sum(-1)).mean()),
        **{field.name: getattr(rules, field.name) for field in dataclasses.fields(Rules)},
        "vote_counts": rules.counts,
        "headline": headline,
        "dropped": pool.dropped,
        "scores_units": {},
        "zero_scores": {},
        "reward_kl": {},
        "calibration": {},
        "length_correlation": {},
    }
    if step_labels:
        graded = [(step_labels[p.problem, c.steps], c.correct) for p in problems for c in p.candidates]
        result["step_shares"] = standing.step_shares(*zip(*graded))
    there_n2, by_headline = np.argwhere(pool.present_PN), {}
    length_n = [sum(map(len, problems[p].candidates[n].steps)) for p, n in there_n2]
    # A first step that repeats the problem makes a candidate longer, and its scores other ones: length is compared apart.
    repeats_n = [problems[p].problem.strip() in problems[p].candidates[n].steps[0] for p, n in there_n2]
    result["repeat_the_problem"] = sum(repeats_n)
    if pool.answer_PN is None:
        result["majority_rule"] = "none: no candidate has an answer"
    elif rules.ties == "share" and N <= votes.EXACT_VOTE_SIZE:
        result["majority_rule"] = "exact over all subsets"
        exact(("majority",), votes.majority_curve(pool.answer_PN, pool.right_PN, mask_PN, counts=rules.counts))
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
            for rule, gold_PN in golds.items():
                best_Pn = rerank.best_of_n(x_PN, gold_PN, pool.eligible_PN, mask_PN, ties=rules.ties)
                exact((*name, rule), best_Pn, how == headline[scorer])
            if pool.answer_PN is not None and how == headline[scorer]:
                drawn((*name, "weighted_vote"), x_PN)
            elif pool.answer_PN is not None:
                law_PN = votes.vote(pool.answer_PN, x_PN, ties=rules.ties, counts=rules.counts)
                value[*name, "weighted_vote"] = {N: np.asarray(rerank.expectation(law_PN, pool.right_PN), float)}
        by_headline[scorer] = score_PN[headline[scorer]]
        given = by_headline[scorer], pool.right_PN, pool.present_PN, pool.eligible_PN, mask_PN
        laws = reward_against_kl(*given, np.array(sizes), rules.ties)
        by_beta, by_n = jax.tree.map(lambda x: np.asarray(x).tolist(), laws)
        by_beta |= {"beta": BETA_b.tolist()}
        result["reward_kl"][scorer] = {"reweighted": by_beta, "best_of_n": by_n | {"n": sizes}}
        score_n, right_n = (np.asarray(x_PN)[pool.present_PN] for x_PN in (by_headline[scorer], pool.right_PN))
        group_n3 = np.stack([there_n2[:, 0], right_n, repeats_n], -1)
        about_length = standing.length_correlation(score_n, length_n, group_n3, there_n2[:, 0], seed)
        result["length_correlation"][scorer] = about_length
        labels = None if scorer in value_scorers else step_labels
        result["calibration"][scorer] = calibration(problems, scorer, rules, score_PN, pool, labels)
    if step_labels:
        result["chosen"] = traces.measure(problems, pool, by_headline, golds["trace"], step_labels, rules, seed)

    # The same resampled problems for every number, so that all differences are paired.
    value_PX = np.stack([x_P for by_size in value.values() for x_P in by_size.values()], -1)
    columns = value_PX.mean(0), *stats.mean_interval(value_PX, seed), rerank.subset_band(value_PX)
    rows = iter(np.stack(columns, -1).tolist())
    for name, by_size in value.items():
        *path, rule = name
        place = functools.reduce(lambda table, part: table.setdefault(part, {}), path, result)
        # Beside best_of_n its siblings are `band`, `interval`, `curve`, of headlines `curve_interval` [lows, highs]; beside other
        # rules `RULE_band` and so on.
        before = "" if rule == "best_of_n" else f"{rule}_"
        mean, low, high, band = zip(*[next(rows) for _ in by_size])
        for key, numbers in ((rule, mean), (f"{before}interval", zip(low, high)), (f"{before}band", band)):
            place[key] = dict(zip(map(str, by_size), numbers, strict=True))
        for key, numbers in curve.get(name, {}).items():
            place[f"{before}{key}"] = numbers
    written = lambda name: ".".join(part for part in name if part != "scorers")
    pairs = [(a, b, n) for a, b, at_all in comparisons(list(value), headline) for n in (sizes if at_all else [N])]
    a_PX, b_PX = (
        (np.stack([value[pair[side]][pair[2]] for pair in pairs], -1) for side in (0, 1)) if pairs else ((), ())
    )
    tests = zip(pairs, stats.paired_differences(a_PX, b_PX, seed) if pairs else (), strict=True)
    result["differences"] = [{"a": written(a), "b": written(b), "n": n} | test for (a, b, n), test in tests]
    return result


def right_traces(problems: list[Problem], pool: Pool, step_labels) -> np.ndarray:
    """trace_PN: 1 for a right candidate without a wrong step (Uesato et al. 2022's trace, here with the answer)."""
    trace_PN = pool.right_PN.copy()
    for p, problem in enumerate(problems):
        for n, candidate in enumerate(problem.candidates):
            trace_PN[p, n] *= metrics.labelled_steps(step_labels[problem.problem, candidate.steps])[1] == -1
    return trace_PN


def comparisons(names, headline: dict[str, str]):
    """(a, b, whether at every size): at the pool's size every rule with the majority vote, every aggregator with its scorer's
    headline one, and the headline's weighted vote with its selection; at every size the headline selections with the majority
    vote and in pairs."""
    selections = [("scorers", scorer, how, "best_of_n") for scorer, how in headline.items()]
    for name in names:
        if name[0] != "scorers":
            continue
        own = (*name[:2], headline[name[1]], "best_of_n")
        if ("majority",) in names and name[3] != "trace":
            yield name, ("majority",), name == own
        if name != own and (name[3] == "best_of_n" or name[2:] == (own[2], "weighted_vote")):
            yield name, own, False
    yield from ((a, b, True) for a, b in itertools.combinations(selections, 2))


@functools.partial(jax.jit, static_argnames="ties")
def reward_against_kl(score_PN, right_PN, present_PN, eligible_PN, mask_PN, size_n, ties: str) -> tuple[dict, dict]:
    """Expected accuracy and mean score against KL from the uniform law: (of KL-reweighting by BETA_b, of best-of-n by size_n).

    Gao et al. 2023, figures 1 and 2, with a gold label for the gold reward. KL in nats, means over problems; the reference
    of both is uniform over a problem's candidates, eligible or not. `score` is the aggregated score that the laws climb, in
    nats: the mean over what can win and has a finite score, of the problems where something does.
    """

    def means(law_PN, kl_P):
        accuracy_P = rerank.expectation(law_PN, right_PN * eligible_PN)
        score_P = rerank.mean_score(law_PN, score_PN, eligible_PN)
        return {"kl": kl_P.mean(), "accuracy": accuracy_P.mean(), "score": jnp.nanmean(score_P)}

    def best_of(n):
        law_PN = rerank.best_of_n_law(score_PN, n, eligible_PN, mask_PN, ties=ties)
        kl_P = rerank.kl_divergence(law_PN, present_PN / present_PN.sum(-1, keepdims=True))
        return means(law_PN, kl_P)

    def tilted(beta):
        law = rerank.reweight(score_PN, beta, None, eligible_PN, mask_PN)
        return means(law.weight_PN, law.kl_P)

    return jax.lax.map(tilted, jnp.asarray(BETA_b, jnp.float32)), jax.lax.map(best_of, size_n)


def calibration(problems, scorer: str, rules: Rules, score_PN, pool: Pool, step_labels) -> dict:
    """Reliability, ECE and Brier score of step scores as P(good), and of exp(solution score) against `correct`, by
    aggregator (of those whose score is the log of a probability)."""
    right = pool.right_PN[pool.present_PN].astype(float)
    solutions = {
        how: calibration_numbers(np.exp(np.asarray(score_PN[how], float)[pool.present_PN]), right)
        for how, aggregator in rerank.AGGREGATORS.items()
        if aggregator.is_log_probability
    }
    score, y = [], []
    for problem in problems:
        for c in problem.candidates:
            label_T = step_labels[problem.problem, c.steps] if step_labels else [float(c.correct)] * len(c.steps)
            steps = metrics.labelled_steps(label_T, "correctness" if step_labels else "value")[0]
            score += [c.step_scores[scorer][t] for t in steps]
            y += [label_T[t] for t in steps]
    steps = calibration_numbers(as_probability(score, scores_unit(problems, scorer, rules.scores_unit)), np.array(y))
    return {"solutions": solutions, "steps": steps, "step_label": "exact" if step_labels else "outcome"}


def calibration_numbers(p, y) -> dict:
    p = np.clip(p, 0.0, 1.0)  # exp(log(...)) may pass 1 by a rounding
    numbers = {"ece": metrics.ece(p, y), "brier": metrics.brier(p, y), "auroc": metrics.auroc(p, y >= 0.5)}
    return numbers | {"reliability": reliability_table(p, y)}


def reliability_table(p, y) -> dict:
    """The curve behind a figure of calibration."""
    return {name: x.tolist() for name, x in zip(("mean_score", "mean_label", "n"), metrics.reliability(p, y))}
