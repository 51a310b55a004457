"""A script that asks whether trained verifiers choose better among samples than rules that nobody trained.

    python -m examples.real.choose VALIDATION TEST --csv real.csv

VALIDATION and TEST are folders of `evaluate.py task=best_of_n checkpoint=[...]` on the two pools. A verifier's
run is named ARM_SEED.

Design, written before any number of the test problems was seen.
Question: does a verifier that learns from samples of a 135M policy choose better among 16 of them than what
  knows nothing: a vote, the likelihood, the number of steps, an exact check of the equations?
Arms: labels of equations (exact), of completions, outcomes (objective=orm), outcomes by the log-ratio
  (objective=implicit). Each begins as the policy, with the same optimiser, number of updates and tokens an
  update, three seeds.
Primary: on 300 test problems, half of two operations and half of one, the verifier minus the best rule. Arm,
  aggregator, w of score + w log p, and whether only samples with true equations compete are chosen on 160
  validation problems, by the mean over seeds; so is the rule, with the same check. A problem's value is the
  mean over seeds; the interval is a bootstrap over problems.
Power: where 25 % of the problems differ, the standard error is .029: .08 is found with power .8.
Gate, on validation problems, before any verifier: pass@1 at least .3, oracle at most .9.
Expectation, from a pilot with 268 training problems, on problems of two operations alone: alone, no arm is
  above the likelihood (.26 to .43 against .55), and equations are the worst, since short and irrelevant ones
  are never wrong. With log p, outcomes and completions gain .04 to .07 on the likelihood without the check,
  and -.01 to .07 with it. So the primary is +.03, and its interval is as likely as not to hold 0.
"""

import argparse
import dataclasses
import itertools
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from examples.equations import holds
from prm_jax import rerank, stats, votes
from prm_jax.data.pools import Problem, read_pool
from prm_jax.evals.pool_arrays import POLICY, Pool, log_scores, pool_arrays
from prm_jax.evals.tables import show_table
from prm_jax.launch.cli import USER_ERRORS, one_line
from prm_jax.launch.config import expect
from prm_jax.launch.run_folder import read_json

AGGREGATORS = "min", "prod", "last", "sum_logit"
WEIGHTS = 0.0, 0.25, 0.5, 1.0  # of the policy's log p
TWO_OPERATIONS = "multiarith"  # how the ids of problems of two operations begin


@dataclasses.dataclass(frozen=True)
class Side:
    """The samples of one split, and what is known of them."""

    problems: list[Problem]
    pool: Pool
    checked_PN: np.ndarray  # may win where only samples with true equations compete
    score_PN: dict[tuple, list[np.ndarray]]  # {(arm, aggregator): of each seed}

    def eligible(self, checked: bool) -> np.ndarray:
        return self.checked_PN if checked else self.pool.eligible_PN

    def best(self, score_PN, checked: bool) -> np.ndarray:
        """How often the best-scored of all samples is right, value_P: tied ones share."""
        eligible_PN = self.eligible(checked)
        curve_PN = rerank.best_of_n(score_PN, self.pool.right_PN, eligible_PN, self.pool.present_PN)
        return np.asarray(curve_PN, float)[:, -1]

    def vote(self, log_weight_PN, checked: bool) -> np.ndarray:
        answer_PN = np.where(self.eligible(checked), self.pool.answer_PN, -1)
        p_PN = votes.vote(answer_PN, log_weight_PN, self.pool.present_PN)
        return np.asarray(rerank.expectation(p_PN, self.pool.right_PN), float)


def read_side(folder: Path) -> Side:
    """The pool that an evaluation scored."""
    verifiers = read_json(folder / "results.json", verifiers=dict)["verifiers"]
    problems = read_pool(folder / "pool.jsonl.gz")
    pool = pool_arrays(problems)
    holds_PN = np.zeros(pool.present_PN.shape, bool)
    holds_PN[pool.present_PN] = [holds(p.problem, c.steps, None) for p in problems for c in p.candidates]
    checked_PN = pool.eligible_PN & holds_PN
    has_any_P1 = checked_PN.any(1, keepdims=True)  # without one, the others compete
    score_PN = {}
    for name, verifier in verifiers.items():
        arm = arm_of(verifier["verifier"])
        step_PNT, mask_PNT, unit = log_scores(pool, name, pool.unit(name, "logit"))
        for aggregator in AGGREGATORS:
            scores = np.asarray(rerank.aggregate(step_PNT, mask_PNT, aggregator, unit=unit))
            score_PN.setdefault((arm, aggregator), []).append(scores)
    return Side(problems, pool, np.where(has_any_P1, checked_PN, pool.eligible_PN), score_PN)


def arm_of(run: str) -> str:
    """ARM of a verifier's name, FOLDER/ARM_SEED and perhaps its step."""
    return Path(run.split()[0].rstrip(",")).name.rpartition("_")[0]


def rules(side: Side) -> dict[tuple, np.ndarray]:
    """{(rule, checked): value_P} of what nobody trained to verify."""
    steps_PN = np.zeros(side.pool.present_PN.shape)
    steps_PN[side.pool.present_PN] = side.pool.steps_n
    logp_PN = side.pool.logp_PN
    values = {}
    for checked in (False, True):
        values["a sample", checked] = side.best(np.zeros_like(steps_PN), checked)
        values["vote", checked] = side.vote(None, checked)
        values["vote by likelihood", checked] = side.vote(logp_PN, checked)
        values["likelihood", checked] = side.best(logp_PN, checked)
        values["fewest steps", checked] = side.best(-steps_PN, checked)
        values["most steps", checked] = side.best(steps_PN, checked)
        values["most steps, then likelihood", checked] = side.best(1000 * steps_PN + logp_PN, checked)
    return values


def choices(side: Side) -> dict[tuple, np.ndarray]:
    """{(arm, aggregator, w, checked): value_P}, the mean over seeds."""
    values = {}
    for (arm, aggregator), w, checked in itertools.product(side.score_PN, WEIGHTS, (False, True)):
        scores = side.score_PN[arm, aggregator]
        if w:
            scores = [rerank.with_reference(score_PN, side.pool.logp_PN, w) for score_PN in scores]
        values[arm, aggregator, w, checked] = np.mean([side.best(x, checked) for x in scores], 0)
    return values


def best_of(values: dict[tuple, np.ndarray], keep=lambda key: True) -> tuple:
    """The key with the highest mean, the first of equals."""
    return max(filter(keep, values), key=lambda key: round(values[key].mean(), 6))
