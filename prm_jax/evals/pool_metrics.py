"""What a pool of candidates says about its verifiers: selection and vote curves, intervals, reward against KL, calibration.

Arrays in, one JSON-ready dict out (`measure`); the mathematics is in rerank.py and votes.py.

Dimension key
  P problems, N candidates, T steps, n subset sizes, b betas
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax import InputError, metrics, rerank, votes
from prm_jax.data.answers import is_blank
from prm_jax.data.pools import Problem, as_arrays

UNITS = ("probability", "difference", "logit")  # difference: P(good) - P(bad) in [-1, 1], as PURE scores
# From the arg max to the reference: solution scores are a few nats apart, seldom below a thousandth.
BETA_b = np.concatenate([[0.0], np.geomspace(1e-3, 1e3, 64), [np.inf]])


@dataclasses.dataclass(frozen=True)
class Rules:
    """How candidates are compared; conf/evaluate.yaml says what each key means."""

    scores_unit: str
    aggregator: str
    ties: str
    vote_draws: int

    def __post_init__(self):
        for key, expected in {
            "scores_unit": UNITS,
            "aggregator": rerank.AGGREGATORS,
            "ties": ("share", "first"),
        }.items():
            if getattr(self, key) not in expected:
                raise InputError(f"{key}: got {getattr(self, key)!r}, expected {', '.join(expected)}")
        if self.vote_draws < 1:
            raise InputError(f"vote_draws: got {self.vote_draws}, expected at least 1")


@dataclasses.dataclass(frozen=True)
class Pool:
    """The arrays of a pool: what a candidate is worth, whether it may win, and what it answers.

    right_PN is 0 where candidates are missing. eligible_PN is False for the missing, the unfinished and those without an
    answer (OpenAI's protocol: they fill a place of the n and count as wrong). answer_PN is None if no candidate has one.
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
            answer_PN[p, n] = groups[n]
    cut = [not c.finished for problem in problems for c in problem.candidates]
    silent = [answer_of(c) is None for problem in problems for c in problem.candidates] if has_answers else []
    dropped = {"missing": P * N - len(cut), "unfinished": sum(cut), "without_answer": sum(silent)}
    return Pool(right_PN, present_PN, eligible_PN, answer_PN if has_answers else None, dropped)


def log_scores(problems: list[Problem], name: str, unit: str) -> tuple[np.ndarray, np.ndarray, str]:
    """(step_PNT, mask_PNT, unit) as `rerank.aggregate` takes them, of the stored scores `name`."""
    score_PNT, mask_PNT = as_arrays(problems, name)
    if unit == "logit":
        return score_PNT.astype(np.float32), mask_PNT, "logit"
    if unit == "difference":
        score_PNT = (score_PNT + 1) / 2
    outside = (score_PNT < 0) | (score_PNT > 1)
    if outside.any():
        p, n, t = np.argwhere(outside)[0]
        raise InputError(
            f"pool: problem {problems[p].id}: candidates[{n}].step_scores.{name}[{t}]: got"
            f" {problems[p].candidates[n].step_scores[name][t]:g}, expected a {unit}; scores_unit=logit takes unbounded scores"
        )
    with np.errstate(divide="ignore"):
        return (np.log(score_PNT, where=mask_PNT, out=np.zeros_like(score_PNT)).astype(np.float32), mask_PNT, "logp")


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
    sizes, (k_vote, k_interval) = sizes_of(N), jax.random.split(jax.random.key(seed))
    value, curve = {}, {}  # a number's path in the results -> {n: its value_P}, its mean for every n = 1..N

    def exact(name, x_Pn):
        value[name] = {n: x_Pn[:, n - 1] for n in sizes}
        curve[name] = np.asarray(x_Pn.mean(0), float).tolist()

    def drawn(name, log_weight_PN=None):  # the votes without a closed form
        given = pool.answer_PN, pool.right_PN, log_weight_PN, pool.eligible_PN, np.array(sizes)
        x_Pn = votes.vote_curve(k_vote, *given, draws=rules.vote_draws, ties=rules.ties)
        value[name] = dict(zip(sizes, x_Pn.T, strict=True))

    exact(("oracle",), rerank.pass_at_n(pool.right_PN, pool.eligible_PN))
    result = {
        "n_problems": P,
        "n_candidates": N,
        "mean": float(pool.right_PN.sum() / pool.present_PN.sum()),
        **dataclasses.asdict(rules),
        "dropped": pool.dropped,
        "reward_kl": {},
        "calibration": {},
    }
    if pool.answer_PN is None:
        result["majority_rule"] = "none: no candidate has an answer"
    elif rules.ties == "share" and N <= votes.EXACT_VOTE_SIZE:
        result["majority_rule"] = "exact over all subsets"
        exact(("majority",), votes.majority_curve(pool.answer_PN, pool.right_PN, pool.eligible_PN))
    else:
        result["majority_rule"] = f"mean of {rules.vote_draws} random subsets"
        drawn(("majority",))
    for scorer in scorers:
        step_PNT, mask_PNT, unit = log_scores(problems, scorer, rules.scores_unit)
        score_PN = rerank.aggregate_all(step_PNT, mask_PNT, unit=unit)
        for how in rerank.AGGREGATORS:  # the jitted dict comes back in alphabetical order
            x_PN, name = score_PN[how], ("scorers", scorer, how)
            exact((*name, "best_of_n"), rerank.best_of_n(x_PN, pool.right_PN, pool.eligible_PN, ties=rules.ties))
            if trace_PN is not None:
                exact((*name, "trace"), rerank.best_of_n(x_PN, trace_PN, pool.eligible_PN, ties=rules.ties))
            if pool.answer_PN is not None and how == rules.aggregator:
                drawn((*name, "weighted_vote"), x_PN)
            elif pool.answer_PN is not None:
                law_PN = votes.vote(pool.answer_PN, x_PN, pool.eligible_PN, ties=rules.ties)
                value[*name, "weighted_vote"] = {N: rerank.expectation(law_PN, pool.right_PN)}
        result["reward_kl"][scorer] = reward_against_kl(score_PN[rules.aggregator], pool, sizes)
        labels = None if scorer in value_scorers else step_labels
        result["calibration"][scorer] = calibration(problems, scorer, rules, score_PN, pool, labels)

    # One bootstrap for every number: the same resampled problems everywhere, so that differences are paired.
    difference = {(a, b): paired_difference(value[a][N], value[b][N]) for a, b in comparisons(list(value), rules)}
    columns = [x_P for by_size in value.values() for x_P in by_size.values()] + list(difference.values())
    interval = rerank.bootstrap(k_interval, jnp.stack(columns, -1))
    rows = iter(zip(*(np.asarray(x, float).tolist() for x in interval), strict=True))
    for name, by_size in value.items():
        *path, rule = name
        place = result
        for part in path:
            place = place.setdefault(part, {})
        # Beside best_of_n its siblings are `band`, `interval`, `curve`; beside other rules `RULE_band` and so on.
        before = "" if rule == "best_of_n" else f"{rule}_"
        place[rule], place[f"{before}interval"] = {}, {}
        for n, (mean, low, high, _) in zip(by_size, rows, strict=False):
            place[rule][str(n)], place[f"{before}interval"][str(n)] = mean, [low, high]
        place[f"{before}band"] = {str(n): float(rerank.subset_band(x_P[:, None])[0]) for n, x_P in by_size.items()}
        if name in curve:
            place[f"{before}curve"] = curve[name]
    written = lambda name: ".".join(part for part in name if part != "scorers")
    result["differences"] = [
        {"a": written(a), "b": written(b), "n": N, "difference": mean, "interval": [low, high], "p": p}
        for (a, b), (mean, low, high, p) in zip(difference, rows, strict=True)
    ]
    return result


def paired_difference(a_P, b_P):
    """a - b of expectations in float32; 0 where it is no more than their rounding, or a tie everywhere would have p = .001."""
    difference_P = a_P - b_P
    return jnp.where(jnp.abs(difference_P) < 1e-5, 0.0, difference_P)


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


def reward_against_kl(score_PN, pool: Pool, sizes: list[int]) -> dict:
    """Expected accuracy and mean score against KL from the uniform law, of KL-reweighting and of best-of-n.

    Gao et al. 2023, figures 1 and 2, with a gold label for the gold reward. KL in nats, means over problems; `score` is
    the aggregated score that the laws climb, in nats.
    """
    ref_PN = pool.eligible_PN / np.maximum(pool.eligible_PN.sum(-1, keepdims=True), 1)

    @jax.jit
    def means(law_PN, kl_P):
        return (
            kl_P.mean(),
            rerank.expectation(law_PN, pool.right_PN).mean(),
            rerank.expectation(law_PN, score_PN).mean(),
        )

    def tilted(beta):
        law = rerank.reweight(score_PN, beta, None, pool.eligible_PN)
        return means(law.weight_PN, law.kl_P)

    def best_of(n):
        law_PN = rerank.best_of_n_law(score_PN, n, None, pool.eligible_PN)
        return means(law_PN, rerank.kl_divergence(law_PN, ref_PN))

    columns = {}
    for name, grid, f in (("reweighted", BETA_b, tilted), ("best_of_n", np.array(sizes, np.float32), best_of)):
        kl, accuracy, score = jax.jit(lambda x, f=f: jax.lax.map(f, x))(jnp.asarray(grid, jnp.float32))
        x = {"beta": grid} if name == "reweighted" else {"n": np.array(sizes)}
        columns[name] = x | {"kl": kl, "accuracy": accuracy, "score": score}
    columns["best_of_n"]["kl_bound"] = rerank.best_of_n_kl_bound(np.array(sizes, float))
    return {name: {k: np.asarray(x).tolist() for k, x in table.items()} for name, table in columns.items()}


def calibration(problems, scorer: str, rules: Rules, score_PN, pool: Pool, step_labels) -> dict:
    """Reliability, ECE and Brier score of step scores, and of exp(solution score) against `correct`, by aggregator.

    What is no probability (sum_logit; unbounded step scores) is left out.
    """
    present_PN = pool.present_PN
    right = pool.right_PN[present_PN].astype(float)
    out = {
        "solutions": {
            how: calibration_numbers(np.exp(np.asarray(score_PN[how], float)[present_PN]), right)
            for how in rerank.AGGREGATORS
            if how != "sum_logit"
        }
    }
    if rules.scores_unit != "probability":
        return out
    p, y = [], []
    for problem in problems:
        for candidate in problem.candidates:
            score_T = candidate.step_scores[scorer]
            label_T = (
                step_labels[problem.problem, candidate.steps]
                if step_labels
                else [float(candidate.correct)] * len(score_T)
            )
            steps = metrics.labelled_steps(label_T)[0] if step_labels else range(len(score_T))
            p.extend(score_T[t] for t in steps)
            y.extend(label_T[t] for t in steps)
    return out | {
        "steps": calibration_numbers(np.array(p), np.array(y)),
        "step_label": "exact" if step_labels else "outcome",
    }


def calibration_numbers(p, y) -> dict:
    p = np.clip(p, 0.0, 1.0)  # exp(log(...)) may pass 1 by a rounding
    mean_p, mean_y, count = metrics.reliability(p, y)
    return {
        "ece": metrics.ece(p, y),
        "brier": metrics.brier(p, y),
        "auroc": metrics.auroc(p, y >= 0.5),
        "reliability": {"mean_score": mean_p.tolist(), "mean_label": mean_y.tolist(), "n": count.tolist()},
    }
