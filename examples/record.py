"""A script that measures five verifiers within a fixed budget: the problems that their best of 64 solves.

    python train.py -m seed=0,1,2,3,4 cpu_devices=1 BASELINE hydra.sweep.dir=runs/mine
    python -m examples.record --budget seconds runs/mine/[0-4]

The pool is the default task's: 300 problems x 64 samples of the embedded policy. BASELINE of each budget:

    solutions  data.solutions=900 eval.solutions=100   1,000 labelled solutions, 240 CPU seconds
    seconds    steps=200 eval.every=200                60 CPU seconds a run
    outcomes   objective=orm                           no step labels, 1e6 policy tokens, 240 CPU seconds

CPU seconds are of all threads, from the first update to the last checkpoint; a run that took too long is
refused. Runs differ in their seed alone (0 to 4), start from the embedded language model or from random
weights, and learn from samples of the embedded policy, whose problems are never the pool's. No step labels:
objective=orm or implicit with data.outcome=answer. Tune on other seeds and pools (--seed).
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from prm_jax import InputError
from prm_jax.checkpoints.folders import training_tokens
from prm_jax.evals.tables import spread
from prm_jax.launch.config import expect
from prm_jax.launch.files import read_json
from prm_jax.launch.run_folder import group_by_settings, run_config, settings, short_commit


class Budget(NamedTuple):
    cpu_seconds: float
    labelled: float = float("inf")  # solutions, of training and validation
    policy_tokens: float = float("inf")  # of the samples
    step_labels: bool = True


BUDGETS = {
    "solutions": Budget(cpu_seconds=240, labelled=1_000),
    "seconds": Budget(cpu_seconds=60),
    "outcomes": Budget(cpu_seconds=240, policy_tokens=1_000_000, step_labels=False),
}


def costs_of(runs: list[str], budget: Budget) -> list[dict]:
    """What each run has cost; InputError where one breaks a rule, or where that cannot be told."""
    costs = [cost_of(run, budget) for run in runs]
    seeds = sorted(cost["seed"] for cost in costs)
    expect(seeds == [0, 1, 2, 3, 4], "seeds", seeds, "0 to 4, each once")
    groups = group_by_settings([settings(run) for run in runs])
    expect(len(groups) == 1, "runs", [differing for differing, _ in groups], "one setting")
    for run, cost in zip(runs, costs, strict=True):
        for key in ("cpu_seconds", "labelled", "policy_tokens"):
            most = getattr(budget, key)
            expect(cost[key] <= most, f"{run}: {key}", cost[key], f"at most {most:,}, the budget")
    return costs


def cost_of(run: str, budget: Budget) -> dict:
    kinds = {"seed": int, "objective": str, "cpu_seconds": float, "examples": dict, "machine": dict}
    summary, cfg = read_json(Path(run) / "summary.json", **kinds), run_config(Path(run))
    objective, device, data = summary["objective"], summary["machine"].get("device"), cfg.data
    origin = data.name, data.get("samples"), data.get("policy")
    by_answers = objective != "prm" and data.get("outcome") == "answer"
    expect(device == "cpu", f"{run}: device", device, "cpu")
    expect(cfg.init in ("embedded", "random"), f"{run}: init", cfg.init, "embedded or random")
    expect(
        origin == ("chain", "policy", "embedded"), f"{run}: data", origin, "samples of the embedded policy"
    )
    expect(objective != "lm", f"{run}: objective", objective, "a verifier's")
    expect(budget.step_labels or by_answers, f"{run}: labels", "those of steps", "answers")
    cost = {"labelled": sum(summary["examples"].values()), "policy_tokens": training_tokens(run)}
    return cost | {key: summary[key] for key in ("seed", "cpu_seconds")}


def main(words: list[str] | None = None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs=5, metavar="RUN", help="a run of train.py")
    parser.add_argument("--budget", choices=BUDGETS, required=True)
    parser.add_argument("--aggregator", default="prod", help="of step scores; an outcome model has last")
    parser.add_argument("--seed", type=int, default=0, help="of the pool")
    parser.add_argument("--output", default="runs/record", help="folder of the evaluation")
    args = parser.parse_args(words)
    try:
        costs = costs_of(args.runs, BUDGETS[args.budget])
    except InputError as error:
        sys.exit(f"error: {error}")
    command = ["evaluate.py", "task=best_of_n", "fresh.outcome_model=null", f"seed={args.seed}"]
    command += [f"checkpoint=[{','.join(args.runs)}]", f"aggregator={args.aggregator}"]
    code = subprocess.call([sys.executable, *command, f"hydra.run.dir={args.output}"])
    if code:
        sys.exit(code)
    print(statement(json.loads((Path(args.output) / "results.json").read_text()), costs, args.budget))


def statement(results: dict, costs: list[dict], budget: str) -> str:
    """The line of a record: mean and range of the five, the rule, the most that one has cost."""
    n, rules = results["n_candidates"], {name: results["headline"][name] for name in results["verifiers"]}
    solved = spread([results["scorers"][name][how]["best_of_n"][str(n)] for name, how in rules.items()])
    rule = f"best of {n} ({'/'.join(dict.fromkeys(rules.values()))}) of {results['n_problems']} problems"
    most = {key: max(cost[key] for cost in costs) for key in costs[0]}
    cost = "{cpu_seconds:.0f} CPU seconds, {labelled:,} solutions, {policy_tokens:,} policy tokens".format(
        **most
    )
    number = f"{solved['mean']:.4f} [{solved['lowest']:.4f}, {solved['highest']:.4f}]"
    commit = short_commit(results["versions"]["commit"])
    return f"record      {budget}: {number}, {rule}, pool {results['seed']}; at most {cost}; commit {commit}"


if __name__ == "__main__":
    main()
