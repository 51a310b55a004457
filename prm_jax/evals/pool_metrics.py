"""Measures verifiers on a pool of candidates: selection and vote curves, intervals, paired tests.

Arrays in, one JSON-ready dict out (`pool_results`); the mathematics is in rerank.py, votes.py and stats.py.
One protocol for every number: means over problems of expectations over the n-subsets of a problem's
candidates (all of them where n is larger); a candidate that cannot win fills a place.
Dimension key: P problems, N candidates, T steps, K subset sizes (n of rerank.py); n all candidates one after
another.
"""

import collections
import dataclasses
import itertools
import re
from typing import Annotated, Literal

import jax
import numpy as np

from prm_jax import metrics, rerank, stats, votes
from prm_jax.data.units import UNITS
from prm_jax.evals.pool_arrays import POLICY, Pool, log_scores
from prm_jax.launch.config import Count, NotNegative, one_of


@dataclasses.dataclass(frozen=True)
class Rules:
    """How candidates are compared; conf/task/best_of_n.yaml says what each key means."""

    scores_unit: Annotated[str, one_of(UNITS)]
    aggregator: Annotated[str, one_of(rerank.AGGREGATORS)]
    ties: Literal["share", "first"]
    vote_draws: Count
    policy_weight: NotNegative


class Measurement:
    """A pool, and the rules by which its candidates are compared. A way to choose, measured, is value_PK: the
    expected correctness of each problem's choice among `size_K` candidates."""

    def __init__(self, pool: Pool, rules: Rules, seed: int):
        self.pool = pool
        self.rules = rules
        self.seed = seed
        self.N = pool.right_PN.shape[1]
        self.mask_PN = None if pool.present_PN.all() else pool.present_PN  # None is computed faster
        self.size_K = np.array(sorted({2**k for k in range(self.N.bit_length())} | {self.N}))

    def selection(self, score_PN, gold_PN) -> np.ndarray:
        """The candidate of the best score."""
        given = score_PN, gold_PN, self.pool.eligible_PN, self.mask_PN, self.size_K
        return np.asarray(rerank.best_of_n(*given, ties=self.rules.ties), float)

    def vote(self, log_weight_PN=None) -> np.ndarray:
        """The majority vote by its closed form where it has one; others as means over random subsets."""
        rules = self.rules
        given = self.pool.answer_PN, self.pool.right_PN
        if log_weight_PN is None and rules.ties == "share" and self.N <= votes.EXACT_VOTE_SIZE:
            return np.asarray(votes.majority_curve(*given, self.mask_PN, self.size_K), float)
        given = jax.random.key(self.seed), *given, log_weight_PN, self.mask_PN, self.size_K
        return np.asarray(votes.vote_curve(*given, draws=rules.vote_draws, ties=rules.ties), float)

    def by_size(self, x_K) -> dict:
        return dict(zip(map(str, self.size_K), np.asarray(x_K).tolist(), strict=True))

    def table(self, choices: dict[str, np.ndarray]) -> dict:
        """{rule: {n: mean}} with intervals; those of best_of_n lack the prefix. All numbers resample the same
        problems, so that their differences are paired."""
        table = {}
        for name, value_PK in choices.items():
            prefix = "" if name == "best_of_n" else f"{name}_"
            table[name] = self.by_size(value_PK.mean(0))
            table[f"{prefix}interval"] = self.by_size(stats.mean_interval(value_PK, self.seed).T)
        return table

    def scorer(self, name: str, headline: str) -> tuple[dict, dict]:
        """(choices, parts of results.json) of one scorer by its headline aggregator. The choices: best of n,
        the same by score + w log p of the policy, the weighted vote. `trace` of the table: how often the best
        of n is right without a wrong step."""
        pool = self.pool
        right_PN = pool.right_PN
        step_PNT, mask_PNT, unit = log_scores(pool, name, pool.unit(name, self.rules.scores_unit))
        scores = rerank.aggregate_all(step_PNT, mask_PNT, tuple(rerank.AGGREGATORS), unit=unit)
        best = {aggregator: self.selection(scores[aggregator], right_PN) for aggregator in rerank.AGGREGATORS}
        score_PN = np.asarray(scores[headline])
        choices = {"best_of_n": best[headline]}
        traces = {} if pool.trace_PN is None else {"trace": self.selection(score_PN, pool.trace_PN)}
        if pool.logp_PN is not None and name != POLICY:
            combined_PN = rerank.with_reference(score_PN, pool.logp_PN, self.rules.policy_weight)
            choices["with_policy"] = self.selection(combined_PN, right_PN)
        if pool.answer_PN is not None:
            choices["weighted_vote"] = self.vote(score_PN)
        tables = {how: {"best_of_n": self.by_size(value_PK.mean(0))} for how, value_PK in best.items()}
        tables[headline] = self.table(choices | traces)
        ended = np.nonzero(pool.finished_PN)  # problem and place of each candidate that has an outcome
        within = metrics.within_problem_auroc(score_PN[ended], right_PN[ended], ended[0])
        return choices, {"headline": headline, "scorers": tables, "outcome_auroc_within": within}


def kind_of(name: str) -> str:
    """What scores are by their name, as evals.verifiers.new_name gives it: orm of orm_1 and of orm_1.last."""
    return re.sub(r"(_\d+)?(\..*)?$", "", name)


def pool_results(pool: Pool, scorers, rules: Rules, seed: int, verifiers: dict | None = None) -> dict:
    """Every number of a pool under the step scores named in `scorers`: the results.json of task=best_of_n.
    verifiers: {scorer: {objective, known_problems (which were trained on), ...}} where they are known. An
    outcome model has learned the outcome at the last step, so its headline aggregator is `last`; log p of a
    text is a sum over its steps, so the policy's is `prod`. Where the pool has correctness labels `trace`
    counts right winners without a wrong step."""
    measurement = Measurement(pool, rules, seed)
    blind = {}
    for rule, size_PN in {"fewest_steps": pool.steps_PN, "shortest": pool.length_PN}.items():
        blind[rule] = measurement.selection(-size_PN.astype(np.float32), pool.right_PN)
    vote = {} if pool.answer_PN is None else {"majority": measurement.vote()}
    chosen, parts = {}, collections.defaultdict(dict)
    for name in scorers:
        about = (verifiers or {}).get(name, {})
        headline = "prod" if kind_of(name) == POLICY else rules.aggregator
        if about.get("objective", kind_of(name)) == "orm":
            headline = "last"  # as rerank.default_aggregator has it
        choices, own = measurement.scorer(name, headline)
        chosen |= {f"{name}.{headline}.{rule}": value_PK for rule, value_PK in choices.items()}
        for part, numbers in own.items():
            parts[part][name] = numbers
        known_P = np.array(about.get("known_problems", []), bool)
        if known_P.any() and not known_P.all():
            apart = choices["best_of_n"][~known_P, -1].mean()
            parts["unseen"][name] = {"n_problems": int((~known_P).sum()), "solved": float(apart)}
    selections = {name: value_PK for name, value_PK in chosen.items() if name.endswith(".best_of_n")}
    oracle = measurement.selection(pool.right_PN, pool.right_PN)  # pass@n
    return {
        "n_problems": len(pool.right_PN),
        "n_candidates": measurement.N,
        "mean": float((pool.right_PN.sum(-1) / pool.present_PN.sum(-1)).mean()),
        "policy_weight": rules.policy_weight,
        "votes_apart": pool.votes_apart,
        "dropped": pool.dropped,
        **measurement.table({"oracle": oracle} | blind | vote),
        **parts,
        "differences": differences(chosen, selections, vote, seed),
        "lead": lead(selections, blind | vote, seed),
    }


def differences(chosen: dict, selections: dict, vote: dict, seed: int) -> list[dict]:
    """Paired tests among all candidates: of all that is chosen with the vote, of selections in pairs."""
    pairs = itertools.product(chosen.items(), vote.items())
    tests = []
    for (a, a_PK), (b, b_PK) in itertools.chain(pairs, itertools.combinations(selections.items(), 2)):
        tests.append({"a": a, "b": b} | stats.paired_difference(a_PK[:, -1], b_PK[:, -1], seed))
    return tests


def lead(selections: dict[str, np.ndarray], untaught: dict, seed: int) -> dict | None:
    """The best verifier's selection against the best of what was never taught to verify, among which is a
    language model's likelihood. None without a verifier."""
    taught = {name: x for name, x in selections.items() if kind_of(name) != POLICY}
    if not taught:
        return None
    untaught = {name: x for name, x in selections.items() if name not in taught} | untaught

    def best(curves) -> str:  # the first of equals, whose means may differ in their last bits
        return max(curves, key=lambda name: round(float(curves[name][:, -1].mean()), 6))

    verifier, rule = best(taught), best(untaught)
    test = stats.paired_difference(taught[verifier][:, -1], untaught[rule][:, -1], seed)
    return {"verifier": verifier, "rule": rule} | test
