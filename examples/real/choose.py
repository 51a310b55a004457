"""A script that asks whether trained verifiers choose better among samples than rules that nobody trained.

    python -m examples.real.choose VALIDATION TEST --csv real.csv

VALIDATION and TEST are folders of `evaluate.py task=best_of_n` on the two pools, by runs named ARM_SEED. What
is chosen on VALIDATION is measured on TEST; README.md has the design."""

import argparse
import collections
import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from examples.equations import holds
from prm_jax import rerank, stats, votes
from prm_jax.data.pools import read_pool
from prm_jax.evals.pool_arrays import Pool, log_scores, pool_arrays
from prm_jax.launch.files import read_json

AGGREGATORS = "min", "prod", "last", "sum_logit"
WEIGHTS = 0.0, 0.25, 0.5, 1.0  # w, of the policy's log p


class Choice(NamedTuple):
    """One way to choose; a rule that nobody trained has no aggregator."""

    by: str
    aggregator: str | None
    weight: float
    checked: bool  # only samples with true equations compete, where there is one


def rule_scores(pool: Pool, eligible_PN) -> dict[str, np.ndarray]:
    """{rule: score_PN}; a vote's score is the winner's probability."""
    steps_PN = pool.steps_PN.astype(float)
    answer_PN = np.where(eligible_PN, pool.answer_PN, -1)
    return {
        "a sample": 0 * steps_PN,
        "vote": votes.vote(answer_PN, None, pool.present_PN),
        "vote by likelihood": votes.vote(answer_PN, pool.logp_PN, pool.present_PN),
        "likelihood": pool.logp_PN,
        "fewest steps": -steps_PN,
        "most steps": steps_PN,
        "most steps, then likelihood": 100 * steps_PN + np.maximum(pool.logp_PN, -90),
    }


def verifier_scores(pool: Pool, verifiers: dict) -> dict[tuple, list]:
    """{(arm, aggregator, w): score_PN of each seed}; verifiers: those of results.json."""
    scores = collections.defaultdict(list)
    for name, verifier in verifiers.items():
        arm = Path(verifier["verifier"].partition(" step ")[0]).name.rpartition("_")[0]
        step_PNT, mask_PNT, unit = log_scores(pool, name, pool.unit(name, "logit"))
        for aggregator, w in itertools.product(AGGREGATORS, WEIGHTS):
            score_PN = rerank.aggregate(step_PNT, mask_PNT, aggregator, unit=unit)
            combined_PN = rerank.with_reference(score_PN, pool.logp_PN, w) if w else score_PN
            scores[arm, aggregator, w].append(combined_PN)
    return scores


def measure(folder: Path) -> tuple[dict[Choice, np.ndarray], np.ndarray]:
    """({choice: value_P, how often the chosen one of all samples is right, the mean over seeds}, whether a
    problem needs two operations)."""
    problems = read_pool(folder / "pool.jsonl.gz")
    pool, values = pool_arrays(problems), {}
    holds_PN = np.zeros(pool.present_PN.shape, bool)
    holds_PN[pool.present_PN] = [holds(p.problem, c.steps, None) for p in problems for c in p.candidates]
    checked_PN = pool.eligible_PN & holds_PN
    checked_PN = np.where(checked_PN.any(1, keepdims=True), checked_PN, pool.eligible_PN)
    trained = verifier_scores(pool, read_json(folder / "results.json", verifiers=dict)["verifiers"])
    for checked, eligible_PN in ((False, pool.eligible_PN), (True, checked_PN)):
        rules = {(rule, None, 0.0): [x_PN] for rule, x_PN in rule_scores(pool, eligible_PN).items()}
        for how, scores in (rules | trained).items():
            curves = [rerank.best_of_n(x_PN, pool.right_PN, eligible_PN, pool.present_PN) for x_PN in scores]
            values[Choice(*how, checked)] = np.mean(curves, 0, dtype=float)[:, -1]
    return values, np.array([p.id.startswith("multiarith") for p in problems])


def main():
    parser = argparse.ArgumentParser(description="Choose on validation problems, measure on test problems.")
    parser.add_argument("validation", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--csv", default="real.csv")
    args = parser.parse_args()
    (known, _), (new, is_two_P) = measure(args.validation), measure(args.test)

    def best(choices) -> Choice:
        return max(choices, key=lambda choice: round(known[choice].mean(), 6))  # the first of equals

    groups = collections.defaultdict(list)
    for choice in known:
        groups[choice.by, choice.checked, choice.weight > 0].append(choice)
    rows = []
    for choice in map(best, groups.values()):
        row = choice._asdict() | {"validation": known[choice].mean(), "test": new[choice].mean()}
        row["low"], row["high"] = stats.mean_interval(new[choice])
        row |= {"two operations": new[choice][is_two_P].mean(), "one": new[choice][~is_two_P].mean()}
        rows.append(row)
    for name, choices in {"primary": known, "unchecked": [x for x in known if not x.checked]}.items():
        verifier = best(x for x in choices if x.aggregator)
        rule = best(x for x in choices if not x.aggregator)
        x = stats.paired_difference(new[verifier], new[rule])
        low, high = x["interval"]
        rows.append({"by": f"{name}: {verifier.by} - {rule.by}", "test": x["difference"]})
        rows[-1] |= {"low": low, "high": high, "p": x["p"]}
    table = pd.DataFrame(rows).round(4)
    table.to_csv(args.csv, index=False)
    print(table.to_string(index=False))


if __name__ == "__main__":
    main()
