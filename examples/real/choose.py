"""A script that asks whether trained verifiers choose better among samples than rules that nobody trained.

    python -m examples.real.choose VALIDATION TEST --csv real.csv

VALIDATION and TEST are folders of `evaluate.py task=best_of_n` on the two pools, by runs named ARM_SEED.

Design, written before any number of the test problems was seen.
Question: does a verifier that learns from samples of a 135M policy choose better among 16 than a vote, the
  likelihood, the number of steps and an exact check of the equations?
Arms: labels of equations (exact) and of completions, outcomes, and outcomes by the log-ratio (implicit). Each
  begins as the policy; optimiser, updates and tokens of an update are the same; three seeds.
Primary: on 300 test problems the verifier minus the best rule. Arm, aggregator, w of score + w log p, and
  whether only samples with true equations compete, have the highest mean over seeds on 160 validation
  problems; so has the rule. Intervals are bootstraps over problems, whose values are means over seeds.
Power: where 25 % of the problems differ the standard error is .029, and .08 is found with power .8.
Gate, on validation problems, before the verifiers: pass@1 at least .3, oracle at most .9.
Expectation, from a pilot with 268 training problems: alone no arm is above the likelihood, and equations are
  the worst, since short, irrelevant ones are never wrong. With log p, outcomes and completions gain .04 to .07
  on the likelihood, and -.01 to .07 among samples with true equations. So the primary is +.03, and its
  interval is as likely as not to hold 0.
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from examples.equations import holds
from prm_jax import rerank, stats, votes
from prm_jax.data.pools import read_pool
from prm_jax.evals.pool_arrays import POLICY, log_scores, pool_arrays
from prm_jax.launch.cli import USER_ERRORS, one_line
from prm_jax.launch.run_folder import read_json

AGGREGATORS = "min", "prod", "last", "sum_logit"
WEIGHTS = 0.0, 0.25, 0.5, 1.0  # w, of the policy's log p


class Choice(NamedTuple):
    """One way to choose; a rule has neither an aggregator nor a weight."""

    by: str
    aggregator: str
    weight: float
    checked: bool  # only samples with true equations compete, where there is one


def measure(folder: Path) -> tuple[dict[Choice, np.ndarray], dict[Choice, np.ndarray], np.ndarray]:
    """({choice by a verifier: value_P}, {by a rule: value_P}, whether a problem needs two operations): how
    often the chosen one of all samples is right."""
    problems, arms, rules = read_pool(folder / "pool.jsonl.gz"), {}, {}
    pool = pool_arrays(problems)
    holds_PN, steps_PN = (np.zeros(pool.present_PN.shape) for _ in range(2))
    holds_PN[pool.present_PN] = [holds(p.problem, c.steps, None) for p in problems for c in p.candidates]
    steps_PN[pool.present_PN] = pool.steps_n
    checked_PN = pool.eligible_PN & (holds_PN > 0)
    checked_PN = np.where(checked_PN.any(1, keepdims=True), checked_PN, pool.eligible_PN)
    scores = {"a sample": 0 * steps_PN, "likelihood": pool.logp_PN}
    scores |= {"fewest steps": -steps_PN, "most steps": steps_PN}
    scores["most steps, then likelihood"] = 1000 * steps_PN + pool.logp_PN
    verifiers = read_json(folder / "results.json", verifiers=dict)["verifiers"]

    for checked, eligible_PN in ((False, pool.eligible_PN), (True, checked_PN)):

        def best(score_PN) -> np.ndarray:
            curve_PN = rerank.best_of_n(score_PN, pool.right_PN, eligible_PN, pool.present_PN)
            return np.asarray(curve_PN, float)[:, -1]

        for rule, score_PN in scores.items():
            rules[Choice(rule, "", 0.0, checked)] = best(score_PN)
        for rule, log_weight_PN in {"vote": None, "vote by likelihood": pool.logp_PN}.items():
            answer_PN = np.where(eligible_PN, pool.answer_PN, -1)
            p_PN = votes.vote(answer_PN, log_weight_PN, pool.present_PN)
            rules[Choice(rule, "", 0.0, checked)] = np.asarray(rerank.expectation(p_PN, pool.right_PN), float)
        for name, verifier in verifiers.items():
            step_PNT, mask_PNT, unit = log_scores(pool, name, pool.unit(name, "logit"))
            for aggregator in AGGREGATORS:
                score_PN = rerank.aggregate(step_PNT, mask_PNT, aggregator, unit=unit)
                for w in WEIGHTS:
                    combined_PN = rerank.with_reference(score_PN, pool.logp_PN, w) if w else score_PN
                    choice = Choice(arm_of(verifier["verifier"]), aggregator, w, checked)
                    arms.setdefault(choice, []).append(best(combined_PN))
    arms = {choice: np.mean(values, 0) for choice, values in arms.items()}
    return arms, rules, np.array([p.id.startswith("multiarith") for p in problems])
