"""Measures verifiers on a pool of candidates: selection and vote curves, intervals, reward against KL,
calibration.

Arrays in, one JSON-ready dict out (`pool_results`); the mathematics is in rerank.py, votes.py and stats.py.
One protocol for every number: means over problems of expectations over the n-subsets of a problem's
candidates (all of them where n is larger); a candidate that cannot win fills a place.

Dimension key
  P problems, N candidates, T steps, n subset sizes, b betas

"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax import metrics, rerank, stats, votes
from prm_jax.data.units import UNITS
from prm_jax.evals import biases, trace_error
from prm_jax.evals.aggregators import shown_aggregators
from prm_jax.evals.calibration import pool_calibration
from prm_jax.evals.pool_arrays import POLICY, Pool, log_scores
from prm_jax.launch.config import Count, NotNegative, one_of

PLACES = 1 << 21  # steps laid out at a time, each solution padded to the longest of the pool
# From the arg max to the reference: solution scores are a few nats apart, seldom less than a thousandth.
BETA_b = np.concatenate([[0.0], np.geomspace(1e-3, 1e3, 64), [np.inf]])


@dataclasses.dataclass(frozen=True)
class Rules:
    """How candidates are compared; conf/task/best_of_n.yaml says what each key means."""

    scores_unit: Annotated[str, one_of(UNITS)]
    aggregator: Annotated[str, one_of(rerank.AGGREGATORS)]
    ties: Literal["share", "first"]
    vote_draws: Count
    vote_counts: Annotated[str, one_of(votes.COUNTS)] | None = None
    aggregators: str | list | None = None
    policy_weight: NotNegative = 0.5

    def __post_init__(self):
        shown_aggregators(self.aggregators)

    @property
    def counts(self) -> str:
        """What a winning group of votes counts, a name of votes.COUNTS."""
        return self.vote_counts or ("first" if self.ties == "first" else "mean")


@dataclasses.dataclass(frozen=True)
class Choice:
    """One way to choose among n candidates, measured: the expected correctness of each problem's choice."""

    value: dict[int, np.ndarray]  # {n: value_P}
    curve_Pn: np.ndarray | None = None  # for every n = 1..N, where there is a closed form

    def table(self, name: str, seed: int) -> dict:
        """{name: {n: mean}} with intervals and, where it is known, the curve; those of best_of_n lack the
        prefix."""
        prefix = "" if name == "best_of_n" else f"{name}_"
        # All numbers resample the same problems, so that all differences are paired.
        intervals = {
            n: np.transpose(stats.mean_interval(value_P, seed)).tolist() for n, value_P in self.value.items()
        }
        table = {
            name: {str(n): float(value_P.mean()) for n, value_P in self.value.items()},
            f"{prefix}interval": {str(n): interval for n, interval in intervals.items()},
        }
        if self.curve_Pn is not None:
            table[f"{prefix}curve"] = self.curve_Pn.mean(0).tolist()
            table[f"{prefix}curve_interval"] = stats.mean_interval(self.curve_Pn, seed).tolist()
        return table


@dataclasses.dataclass(frozen=True)
class ScorerResult:
    """What is measured of one scorer's step scores."""

    unit: str
    headline: str  # the aggregator of what is reported first
    choices: dict[str, dict[str, Choice]]  # {aggregator: {name of a choice: it}}
    score_PN: np.ndarray  # solution scores by the headline aggregator
    reward_kl: dict
    outcome_auroc_within: float
    length_correlation: dict
    calibration: dict


class Measurement:
    """A pool, the rules by which its candidates are compared, and what follows from both."""

    def __init__(self, pool: Pool, rules: Rules, seed: int):
        self.pool = pool
        self.rules = rules
        self.seed = seed
        self.N = pool.right_PN.shape[1]
        self.mask_PN = None if pool.present_PN.all() else pool.present_PN  # None is computed faster
        self.sizes = sorted({2**k for k in range(self.N.bit_length())} | {self.N})
        self.trace_PN = trace_error.right_traces(pool) if pool.labels else None

    def closed_form(self, curve_Pn) -> Choice:
        curve_Pn = np.asarray(curve_Pn, float)
        value = {n: curve_Pn[:, n - 1].copy() for n in self.sizes}  # a view would keep all of the curve
        return Choice(value, curve_Pn)

    def best_of_n(self, score_PN, gold_PN) -> Choice:
        pool, ties = self.pool, self.rules.ties
        return self.closed_form(
            rerank.best_of_n(score_PN, gold_PN, pool.eligible_PN, self.mask_PN, ties=ties)
        )

    def drawn_vote(self, log_weight_PN=None) -> Choice:
        """A vote without a closed form: the mean over random subsets."""
        pool, rules = self.pool, self.rules
        value_Pn = votes.vote_curve(
            jax.random.key(self.seed),
            pool.answer_PN,
            pool.right_PN,
            log_weight_PN,
            self.mask_PN,
            np.array(self.sizes),
            draws=rules.vote_draws,
            ties=rules.ties,
            counts=rules.counts,
        )
        return Choice(dict(zip(self.sizes, np.asarray(value_Pn, float).T, strict=True)))

    def majority(self) -> tuple[Choice | None, str]:
        """(the majority vote, how it is computed); None where no candidate has an answer."""
        pool, rules = self.pool, self.rules
        if pool.answer_PN is None:
            return None, "none: no candidate has an answer"
        if rules.ties == "share" and self.N <= votes.EXACT_VOTE_SIZE:
            curve_Pn = votes.majority_curve(pool.answer_PN, pool.right_PN, self.mask_PN, counts=rules.counts)
            return self.closed_form(curve_Pn), "exact over all subsets"
        return self.drawn_vote(), f"mean of {rules.vote_draws} random subsets"

    def headline_choices(self, scorer: str, score_PN) -> dict[str, Choice]:
        """{name: Choice} by the headline aggregator: best of n, best of n by score + w log p of the policy,
        the weighted vote; `trace`: how often the best of n has no wrong step."""
        pool = self.pool
        choices = {"best_of_n": self.best_of_n(score_PN, pool.right_PN)}
        if pool.labels:
            choices["trace"] = self.best_of_n(score_PN, self.trace_PN)
        if pool.logp_PN is not None and scorer != POLICY:
            combined_PN = rerank.with_reference(score_PN, pool.logp_PN, self.rules.policy_weight)
            choices["with_policy"] = self.best_of_n(combined_PN, pool.right_PN)
        if pool.answer_PN is not None:
            choices["weighted_vote"] = self.drawn_vote(score_PN)
        return choices

    def other_choices(self, score_PN) -> dict[str, Choice]:
        """{name: Choice} by another aggregator: best of n and, of all candidates, the weighted vote."""
        pool, rules = self.pool, self.rules
        choices = {"best_of_n": Choice(self.best_of_n(score_PN, pool.right_PN).value)}
        if pool.answer_PN is not None:
            weight_PN = votes.vote(pool.answer_PN, score_PN, ties=rules.ties, counts=rules.counts)
            value_P = np.asarray(rerank.expectation(weight_PN, pool.right_PN), float)
            choices["weighted_vote"] = Choice({self.N: value_P})
        return choices

    def scorer(self, name: str, headline: str, learned_values: bool) -> ScorerResult:
        """Every number of one scorer. learned_values: its step scores estimate chances of success."""
        pool, seed = self.pool, self.seed
        unit = pool.unit(name, self.rules.scores_unit)
        score_PN = solution_scores(pool, name, unit)
        ended_n = pool.finished_n
        problem_n, right_n = np.argwhere(pool.present_PN)[ended_n, 0], pool.right_PN[pool.present_PN][ended_n]
        score_n, length_n = score_PN[headline][pool.present_PN][ended_n], pool.length_n[ended_n]
        alike_n3 = np.stack([problem_n, right_n, pool.repeats_n[ended_n]], -1)
        choices = {aggregator: self.other_choices(x_PN) for aggregator, x_PN in score_PN.items()}
        choices[headline] = self.headline_choices(name, score_PN[headline])
        return ScorerResult(
            unit=unit,
            headline=headline,
            choices=choices,
            score_PN=score_PN[headline],
            reward_kl=reward_against_kl(pool, score_PN[headline], self.mask_PN, self.sizes, self.rules.ties),
            outcome_auroc_within=metrics.within_problem_auroc(score_n, right_n, problem_n)[0],
            length_correlation=biases.length_correlation(score_n, length_n, alike_n3, problem_n, seed),
            calibration=pool_calibration(pool, name, unit, score_PN, by_labels=not learned_values),
        )


def solution_scores(pool: Pool, name: str, unit: str) -> dict[str, np.ndarray]:
    """{aggregator: score_PN}, for a few problems at a time."""
    parts, size = [], max(1, PLACES // (pool.present_PN.shape[1] * pool.steps_n.max()))
    for start in range(0, len(pool.ids), size):
        step_PNT, mask_PNT, kind = log_scores(pool, name, unit, slice(start, start + size))
        parts.append(rerank.aggregate_all(step_PNT, mask_PNT, tuple(rerank.AGGREGATORS), unit=kind))
    return {name: np.concatenate([part[name] for part in parts]) for name in rerank.AGGREGATORS}


def pool_results(pool: Pool, scorers, rules: Rules, seed: int, verifiers: dict | None = None) -> dict:
    """Every number of a pool under the step scores named in `scorers`: the results.json of task=best_of_n.
    verifiers: {scorer: its objective and label_kind} where they are known. An outcome model has learned the
    outcome at the last step, so its headline aggregator is `last`; log p of a text is a sum over its steps,
    so the policy's is `prod`.

    Where the pool has correctness labels `trace` counts winners without a wrong step, `chosen` is
    trace_error.py's part, and step scores are calibrated against them. Without labels, and for models of
    values or outcomes, they are calibrated against the outcome of a step's solution."""
    verifiers, results = verifiers or {}, {}
    measurement = Measurement(pool, rules, seed)
    for name in scorers:
        about = verifiers.get(name, {})
        is_outcome = about.get("objective") == "orm"
        headline = "last" if is_outcome else "prod" if name == POLICY else rules.aggregator
        learned_values = is_outcome or about.get("label_kind") in ("value", "advantage")
        results[name] = measurement.scorer(name, headline, learned_values)
    oracle = measurement.closed_form(rerank.pass_at_n(pool.right_PN, pool.eligible_PN, measurement.mask_PN))
    majority, majority_rule = measurement.majority()
    table = {
        "n_problems": len(pool.ids),
        "n_candidates": measurement.N,
        "mean": float((pool.right_PN.sum(-1) / pool.present_PN.sum(-1)).mean()),
        "aggregators": shown_aggregators(rules.aggregators, [x.headline for x in results.values()]),
        "ties": rules.ties,
        "policy_weight": rules.policy_weight,
        "vote_counts": rules.counts,
        "majority_rule": majority_rule,
        "graded_both_ways": graded_both_ways(pool),
        "dropped": pool.dropped,
        "repeat_the_problem": int(pool.repeats_n.sum()),
        "headline": {name: x.headline for name, x in results.items()},
        "scores_units": {name: x.unit for name, x in results.items()},
        **oracle.table("oracle", seed),
        **(majority.table("majority", seed) if majority else {}),
        "scorers": {name: choice_tables(x, seed) for name, x in results.items()},
        "differences": differences(results, majority, measurement.sizes, seed),
    }
    for part in ("reward_kl", "outcome_auroc_within", "length_correlation", "calibration"):
        table[part] = {name: vars(x)[part] for name, x in results.items()}
    if pool.labels:
        outcomes = np.where(pool.finished_n, pool.right_PN[pool.present_PN], None)
        table["step_shares"] = biases.step_shares(pool.labels, outcomes)
        score_PN = {name: x.score_PN for name, x in results.items()}
        table["chosen"] = trace_error.chosen_numbers(pool, score_PN, measurement.trace_PN, rules, seed)
    return table


def choice_tables(result: ScorerResult, seed: int) -> dict[str, dict]:
    """{aggregator: the tables of its choices}."""
    tables = {}
    for aggregator, choices in result.choices.items():
        tables[aggregator] = {}
        for name, choice in choices.items():
            tables[aggregator] |= choice.table(name, seed)
    return tables


def graded_both_ways(pool: Pool) -> int:
    """How many answers have candidates graded right and candidates graded wrong, so that their texts are not
    what was graded; votes take them as equal."""
    if pool.answer_PN is None:
        return 0
    place_PN = pool.answer_PN + pool.right_PN.shape[1] * np.arange(len(pool.answer_PN))[:, None]
    right_PN = pool.right_PN > 0
    return len(np.intersect1d(place_PN[right_PN], place_PN[(pool.answer_PN >= 0) & ~right_PN]))


def differences(
    results: dict[str, ScorerResult], majority: Choice | None, sizes: list[int], seed: int
) -> list[dict]:
    """The paired test of every pair of `comparisons`."""
    rows = []
    for (a_name, a), (b_name, b), n in comparisons(results, majority, sizes):
        (test,) = stats.paired_differences(a.value[n][:, None], b.value[n][:, None], seed)
        rows.append({"a": a_name, "b": b_name, "n": n, **test})
    return rows


def comparisons(
    results: dict[str, ScorerResult], majority: Choice | None, sizes: list[int]
) -> Iterator[tuple]:
    """Yields ((name, choice), (name, choice), n). At every size headline selections with the majority vote
    and in pairs; at the pool's size the headline's other choices with the majority vote and with the
    selection."""
    selections = []
    for scorer, result in results.items():
        named = {
            f"{scorer}.{result.headline}.{rule}": x for rule, x in result.choices[result.headline].items()
        }
        selection, *others = [pair for pair in named.items() if not pair[0].endswith(".trace")]
        selections.append(selection)
        for n in sizes if majority else ():
            yield selection, ("majority", majority), n
        for other in others:
            if majority:
                yield other, ("majority", majority), sizes[-1]
            yield other, selection, sizes[-1]
    for a, b in itertools.combinations(selections, 2):
        for n in sizes:
            yield a, b, n


def reward_against_kl(pool: Pool, score_PN, mask_PN, sizes: list[int], ties: str) -> dict:
    """Expected accuracy and mean score against KL from the uniform distribution over a problem's candidates,
    eligible or not: `reweighted` by BETA_b, `best_of_n` by n; Gao et al. 2023, figures 1 and 2, with gold
    labels. `with_policy` is reweighted from the policy's law over the distinct texts, and its KL is from
    that. KL and `score`, the aggregated score that both climb, in nats; means over problems, of the score
    over those with a finite one that can win."""
    arrays = score_PN, pool.right_PN, pool.present_PN, pool.eligible_PN, mask_PN, pool.reference_PN
    curves = jax.tree.map(lambda x: np.asarray(x).tolist(), _kl_curves(*arrays, np.array(sizes), ties))
    betas = {name: curve | {"beta": BETA_b.tolist()} for name, curve in curves.items() if name != "best_of_n"}
    return betas | {"best_of_n": curves["best_of_n"] | {"n": sizes}}


@functools.partial(jax.jit, static_argnames="ties")
def _kl_curves(score_PN, right_PN, present_PN, eligible_PN, mask_PN, reference_PN, size_n, ties: str) -> dict:
    def means(weight_PN, kl_P):
        accuracy_P = rerank.expectation(weight_PN, right_PN * eligible_PN)
        score_P = rerank.mean_score(weight_PN, score_PN, eligible_PN)
        return {"kl": kl_P.mean(), "accuracy": accuracy_P.mean(), "score": jnp.nanmean(score_P)}

    def best_of(n):
        weight_PN = rerank.winner_probs(score_PN, n, eligible_PN, mask_PN, ties=ties)
        uniform_PN = present_PN / present_PN.sum(-1, keepdims=True)
        return means(weight_PN, rerank.kl_divergence(weight_PN, uniform_PN))

    def tilted(ref_PN):
        def one(beta):
            reweighted = rerank.reweight(score_PN, beta, ref_PN, eligible_PN, mask_PN)
            return means(reweighted.weight_PN, reweighted.kl_P)

        return jax.lax.map(one, jnp.asarray(BETA_b, jnp.float32))

    curves = {"reweighted": tilted(None), "best_of_n": jax.lax.map(best_of, size_n)}
    return curves if reference_PN is None else curves | {"with_policy": tilted(reference_PN)}
