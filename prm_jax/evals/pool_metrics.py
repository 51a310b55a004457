"""Measures verifiers on a pool of candidates: selection and vote curves, intervals, reward against KL, calibration.

Arrays in, one JSON-ready dict out (`pool_results`); the mathematics is in rerank.py, votes.py and stats.py. One
protocol for every number: means over problems of expectations over the n-subsets of a problem's candidates (all of them
where n is larger); a candidate that cannot win fills a place.

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


def solution_scores(pool: Pool, name: str, unit: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """({aggregator: score_PN}, whether candidates have a step of probability 0), for a few problems at a time."""
    score, is_zero_PN = {aggregator: [] for aggregator in rerank.AGGREGATORS}, []
    n_problems = max(1, PLACES // (pool.present_PN.shape[1] * pool.steps_n.max()))
    for start in range(0, len(pool.ids), n_problems):
        step_PNT, mask_PNT, kind = log_scores(pool, name, unit, slice(start, start + n_problems))
        is_zero_PN.append((step_PNT == -np.inf).any(-1))
        for aggregator, x_PN in rerank.aggregate_all(
            step_PNT, mask_PNT, tuple(rerank.AGGREGATORS), unit=kind
        ).items():
            score[aggregator].append(np.asarray(x_PN))
    return {aggregator: np.concatenate(x) for aggregator, x in score.items()}, np.concatenate(is_zero_PN)


class Values:
    """Values of rules for each problem, by path in the results, ("scorers", "prm", "prod", "best_of_n"), and size n."""

    def __init__(self, pool: Pool, rules: Rules, seed: int):
        self.pool, self.rules, self.seed = pool, rules, seed
        self.n_problems, self.N = pool.right_PN.shape
        self.mask_PN = None if pool.present_PN.all() else pool.present_PN  # None is computed faster
        self.sizes = sorted({2**k for k in range(self.N.bit_length())} | {self.N})
        self.value, self.curve = (
            {},
            {},
        )  # {path: {n: value_P}}, {path: its means over problems for every n = 1..N}

    def add_curve(self, path: tuple, x_Pn, is_headline=True):
        """Adds a rule with a closed form, and for headlines the interval of its curve."""
        x_Pn = np.asarray(x_Pn, float)
        self.value[path] = {n: x_Pn[:, n - 1].copy() for n in self.sizes}  # a view would keep all of x_Pn
        self.curve[path] = {"curve": x_Pn.mean(0).tolist()}
        if is_headline:
            self.curve[path]["curve_interval"] = stats.mean_interval(x_Pn, self.seed).tolist()

    def add_drawn_votes(self, path: tuple, log_weight_PN=None):
        """Adds a vote without a closed form: means over random subsets."""
        pool, rules = self.pool, self.rules
        args = pool.answer_PN, pool.right_PN, log_weight_PN, self.mask_PN, np.array(self.sizes)
        options = {"draws": rules.vote_draws, "ties": rules.ties, "counts": rules.counts}
        x_Pn = np.asarray(votes.vote_curve(jax.random.key(self.seed), *args, **options), float)
        self.value[path] = dict(zip(self.sizes, x_Pn.T, strict=True))

    def add_majority(self) -> str:
        """Adds the majority vote where candidates have answers; says how it is computed."""
        pool, rules = self.pool, self.rules
        if pool.answer_PN is None:
            return "none: no candidate has an answer"
        if rules.ties == "share" and self.N <= votes.EXACT_VOTE_SIZE:
            curve_Pn = votes.majority_curve(pool.answer_PN, pool.right_PN, self.mask_PN, counts=rules.counts)
            self.add_curve(("majority",), curve_Pn)
            return "exact over all subsets"
        self.add_drawn_votes(("majority",))
        return f"mean of {rules.vote_draws} random subsets"

    def add_scorer(
        self, scorer: str, score_PN: dict[str, np.ndarray], golds: dict[str, np.ndarray], headline: str
    ):
        """Adds best-of-n and weighted vote by every aggregator; the vote at every n for the headline one alone."""
        pool, rules = self.pool, self.rules
        for aggregator, x_PN in score_PN.items():
            path = "scorers", scorer, aggregator
            for rule, gold_PN in golds.items():
                best_Pn = rerank.best_of_n(x_PN, gold_PN, pool.eligible_PN, self.mask_PN, ties=rules.ties)
                self.add_curve((*path, rule), best_Pn, aggregator == headline)
            if aggregator == headline and scorer != POLICY:
                self.add_with_policy((*path, "with_policy"), x_PN)
            if pool.answer_PN is not None and aggregator == headline:
                self.add_drawn_votes((*path, "weighted_vote"), x_PN)
            elif pool.answer_PN is not None:
                weight_PN = votes.vote(pool.answer_PN, x_PN, ties=rules.ties, counts=rules.counts)
                value_P = np.asarray(rerank.expectation(weight_PN, pool.right_PN), float)
                self.value[*path, "weighted_vote"] = {self.N: value_P}

    def add_with_policy(self, path: tuple, score_PN):
        """Adds best of n by score + w log p (`rerank.with_reference`); where votes stand in for the policy, which are
        those of the whole pool, at its size alone."""
        log_ref_PN, source = self.pool.log_reference()
        if log_ref_PN is None:
            return
        x_PN = rerank.with_reference(score_PN, log_ref_PN, self.rules.policy_weight)
        sizes = None if source == "policy" else np.array([self.N])
        arguments = x_PN, self.pool.right_PN, self.pool.eligible_PN, self.mask_PN, sizes
        best_Pn = np.asarray(rerank.best_of_n(*arguments, ties=self.rules.ties), float)
        if source == "policy":
            self.add_curve(path, best_Pn)
        else:
            self.value[path] = {self.N: best_Pn[:, 0]}

    def tables(self) -> dict:
        """{"oracle": {n: mean}, "scorers": {scorer: {aggregator: ...}}}: beside RULE its RULE_interval, RULE_band,
        RULE_curve and, of headlines, RULE_curve_interval; beside best_of_n these names without RULE_."""
        # All numbers share the resampled problems, so that all differences are paired.
        value_PX = np.stack([x_P for by_size in self.value.values() for x_P in by_size.values()], -1)
        columns = value_PX.mean(0), *stats.mean_interval(value_PX, self.seed), rerank.subset_band(value_PX)
        rows, tables = iter(np.stack(columns, -1).tolist()), {}
        for (*path, rule), by_size in self.value.items():
            table = functools.reduce(lambda parent, part: parent.setdefault(part, {}), path, tables)
            mean, low, high, band = zip(*[next(rows) for _ in by_size])
            prefix = "" if rule == "best_of_n" else f"{rule}_"
            for key, numbers in (
                (rule, mean),
                (f"{prefix}interval", zip(low, high)),
                (f"{prefix}band", band),
            ):
                table[key] = dict(zip(map(str, by_size), numbers, strict=True))
            table |= {f"{prefix}{key}": x for key, x in self.curve.get((*path, rule), {}).items()}
        return tables

    def differences(self, headline: dict[str, str]) -> list[dict]:
        """The paired test of every pair of `comparisons`."""
        pairs = [
            (a, b, n) for a, b, sizes in comparisons(list(self.value), headline, self.sizes) for n in sizes
        ]
        if not pairs:
            return []
        a_PX, b_PX = (np.stack([self.value[pair[side]][pair[2]] for pair in pairs], -1) for side in (0, 1))
        tests = zip(pairs, stats.paired_differences(a_PX, b_PX, self.seed), strict=True)
        name = {path: ".".join(path).removeprefix("scorers.") for path in self.value}
        return [{"a": name[a], "b": name[b], "n": n, **test} for (a, b, n), test in tests]


def pool_results(pool: Pool, scorers, rules: Rules, seed: int, value_scorers=(), outcome_scorers=()) -> dict:
    """Every number of a pool under the step scores named in `scorers`: the results.json of task=best_of_n. Where the
    pool has correctness labels, `trace` counts winners without a wrong step, `chosen` is trace_error.py's part, and
    step scores are calibrated against them. Without labels, and for `value_scorers`, which estimate chances of success,
    they are calibrated against the outcome of a step's solution. `outcome_scorers` have learned the outcome at the last
    step, so their headline aggregator is `last`."""
    by_objective = dict.fromkeys(outcome_scorers, "last") | {
        POLICY: "prod"
    }  # log p of a text is a sum over its steps
    headline = {scorer: by_objective.get(scorer, rules.aggregator) for scorer in scorers}
    golds = {"best_of_n": pool.right_PN} | ({"trace": trace_error.right_traces(pool)} if pool.labels else {})
    values = Values(pool, rules, seed)
    values.add_curve(("oracle",), rerank.pass_at_n(pool.right_PN, pool.eligible_PN, values.mask_PN))
    majority_rule = values.add_majority()
    ended_n = pool.finished_n
    problem_n, right_n = np.argwhere(pool.present_PN)[ended_n, 0], pool.right_PN[pool.present_PN][ended_n]
    group_n3 = np.stack([problem_n, right_n, pool.repeats_n[ended_n]], -1)
    units, zero_scores, best_PN, reward_kl, calibrations, correlations, within = ({} for _ in range(7))
    for scorer, aggregator in headline.items():
        units[scorer] = pool.unit(scorer, rules.scores_unit)
        score_PN, is_zero_PN = solution_scores(pool, scorer, units[scorer])
        values.add_scorer(scorer, score_PN, golds, aggregator)
        best_PN[scorer] = score_PN[aggregator]
        zero_scores[scorer] = int((is_zero_PN & pool.eligible_PN).any(-1).sum())
        reward_kl[scorer] = reward_against_kl(pool, best_PN[scorer], values.mask_PN, values.sizes, rules.ties)
        score_n = best_PN[scorer][pool.present_PN][ended_n]
        within[scorer] = metrics.within_problem_auroc(score_n, right_n, problem_n)[0]
        correlations[scorer] = biases.length_correlation(
            score_n, pool.length_n[ended_n], group_n3, problem_n, seed
        )
        calibrations[scorer] = pool_calibration(
            pool, scorer, units[scorer], score_PN, scorer not in value_scorers
        )
    results = {
        "n_problems": values.n_problems, "n_candidates": values.N,
        "mean": float((pool.right_PN.sum(-1) / pool.present_PN.sum(-1)).mean()),
        "scores_unit": rules.scores_unit, "aggregator": rules.aggregator,
        "aggregators": shown_aggregators(rules.aggregators, headline.values()), "ties": rules.ties,
        "policy_weight": rules.policy_weight, "policy_source": pool.log_reference()[1],
        "vote_draws": rules.vote_draws, "vote_counts": rules.counts, "majority_rule": majority_rule, "graded_both_ways": graded_both_ways(pool),
        "headline": headline, "dropped": pool.dropped, "repeat_the_problem": int(pool.repeats_n.sum()),
        "scores_units": units, "zero_scores": zero_scores, **values.tables(), "reward_kl": reward_kl,
        "outcome_auroc_within": within, "length_correlation": correlations, "calibration": calibrations,
        "differences": values.differences(headline),
    }  # fmt: skip
    if pool.labels:
        outcomes = np.where(pool.finished_n, pool.right_PN[pool.present_PN], None)
        results["step_shares"] = biases.step_shares(pool.labels, outcomes)
        results["chosen"] = trace_error.chosen_numbers(pool, best_PN, golds["trace"], rules, seed)
    return results


def graded_both_ways(pool: Pool) -> int:
    """How many answers have candidates graded right and candidates graded wrong, so that their texts are not what was
    graded; votes take them as equal."""
    if pool.answer_PN is None:
        return 0
    place_PN = pool.answer_PN + pool.right_PN.shape[1] * np.arange(len(pool.answer_PN))[:, None]
    right_PN = pool.right_PN > 0
    return len(np.intersect1d(place_PN[right_PN], place_PN[(pool.answer_PN >= 0) & ~right_PN]))


def comparisons(paths, headline: dict[str, str], sizes: list[int]):
    """(a, b, sizes). At the pool's size: every rule with the majority vote, every aggregator and the headline's vote
    with the headline selection; at every size: headline selections
    with the majority vote and in pairs."""
    selections = [("scorers", scorer, aggregator, "best_of_n") for scorer, aggregator in headline.items()]
    for path in [path for path in paths if path[0] == "scorers"]:
        selection = (*path[:2], headline[path[1]], "best_of_n")
        if ("majority",) in paths and path[3] != "trace":
            yield path, ("majority",), sizes if path == selection else sizes[-1:]
        of_headline = path[2] == selection[2] and path[3] in ("weighted_vote", "with_policy")
        if path != selection and (path[3] == "best_of_n" or of_headline):
            yield path, selection, sizes[-1:]
    yield from ((a, b, sizes) for a, b in itertools.combinations(selections, 2))


def reward_against_kl(pool: Pool, score_PN, mask_PN, sizes: list[int], ties: str) -> dict:
    """Expected accuracy and mean score against KL from the uniform distribution over a problem's candidates, eligible
    or not: `reweighted` by BETA_b, `best_of_n` by n; Gao et al. 2023, figures 1 and 2, with gold labels. `with_policy`
    is reweighted from the policy's law over the distinct texts, and its KL is from that. KL and `score`, the aggregated
    score that both climb, in nats; means over problems, of the score over those with a finite one that can win."""
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
        return means(
            weight_PN, rerank.kl_divergence(weight_PN, present_PN / present_PN.sum(-1, keepdims=True))
        )

    def tilted(ref_PN):
        def one(beta):
            reweighted = rerank.reweight(score_PN, beta, ref_PN, eligible_PN, mask_PN)
            return means(reweighted.weight_PN, reweighted.kl_P)

        return jax.lax.map(one, jnp.asarray(BETA_b, jnp.float32))

    curves = {"reweighted": tilted(None), "best_of_n": jax.lax.map(best_of, size_n)}
    return curves if reference_PN is None else curves | {"with_policy": tilted(reference_PN)}
