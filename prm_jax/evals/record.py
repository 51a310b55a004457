"""task=record: problems that the best of 64 samples solves, for verifiers trained within a fixed budget (docs/records.md).

The pool is that of the default task, whatever the runs were trained on, and the rule is best_of_n's; what may be chosen is
the aggregator. A run that has not kept the budget, or of which that cannot be told, is refused.
"""

import dataclasses
import itertools
from pathlib import Path
from typing import Annotated

from omegaconf import OmegaConf

from prm_jax import rerank, tasks
from prm_jax.checkpoints.folders import training_tokens
from prm_jax.checkpoints.verifiers import members_of
from prm_jax.data.splits import TaskData, data_config, problem_hash
from prm_jax.evals import best_of_n, tables, verifiers
from prm_jax.evals.best_of_n import detail  # noqa: F401
from prm_jax.evals.setup import Setup
from prm_jax.evals.verifiers import record_of
from prm_jax.launch import run_folder
from prm_jax.launch.config import CONF, expect, one_of, parse

VERIFIERS = 5
# What is read of a run's summary.json; versions before task=record lack the last two.
KINDS = {"seed": int, "objective": str, "label_kind": str, "machine": dict, "versions": dict}
KINDS |= {"cpu_seconds": float | int | None, "examples": dict | None}


@dataclasses.dataclass(frozen=True)
class Budget:
    """What a verifier may cost, all members of an ensemble together; None: any number."""

    cpu_seconds: int  # of the training loop, its evaluations and its compiling
    labelled: int | None = None  # solutions, of training and validation
    policy_tokens: int | None = None  # of samples and of completions
    step_labels: bool = True  # whether a checker may label steps; else outcomes, and labels by completions


BUDGETS = {
    "solutions": Budget(cpu_seconds=240, labelled=1_000),
    "seconds": Budget(cpu_seconds=60),
    "outcomes": Budget(cpu_seconds=240, policy_tokens=1_000_000, step_labels=False),
}


@dataclasses.dataclass(frozen=True)
class Config:
    budget: Annotated[str, one_of(BUDGETS)]
    aggregator: Annotated[str, one_of(rerank.AGGREGATORS)]


def run(setup: Setup, cfg: Config) -> dict:
    """The numbers of task=best_of_n, and `record`: the mean of VERIFIERS verifiers, its range, what each has cost."""
    node, rules = OmegaConf.load(CONF / "data/chain.yaml"), OmegaConf.load(CONF / "task/best_of_n.yaml")
    rules.merge_with({"aggregator": cfg.aggregator, "fresh": {"outcome_model": None}})
    rules, data = parse(rules, best_of_n.Config, elsewhere=("task",)), data_config(node)
    pool = tasks.make_problems(
        tasks.find_task(data.name), data.task, rules.fresh.problems, "test", setup.cfg.seed + 1
    )
    verifiers = [members_of(name) for name in setup.checkpoints]
    costs = costs_of(verifiers, BUDGETS[cfg.budget], set(map(problem_hash, pool)))
    results = best_of_n.run(dataclasses.replace(setup, data=node), rules)
    headline, N = (
        {name: results["headline"][name] for name in results["verifiers"]},
        str(rules.fresh.candidates),
    )
    solved = [results["scorers"][name][aggregator]["best_of_n"][N] for name, aggregator in headline.items()]
    summaries = (record_of(run, "summary.json", **KINDS) for run in itertools.chain(*verifiers))
    commits = {str(summary["versions"].get("commit")) for summary in summaries}
    record = tables.spread(solved) | {"solved": solved, "costs": costs, "commits": sorted(commits)}
    record |= {
        "budget": cfg.budget,
        "aggregator": "/".join(dict.fromkeys(headline.values())),
        "pool": setup.cfg.seed,
    }
    return results | {"record": record}


def costs_of(verifiers: list[list[str]], budget: Budget, pool: set[str]) -> list[dict]:
    """What each verifier, a list of its members' runs, has cost; InputError where one breaks a rule of the record.
    pool: hashes of its problems."""
    n, size = len(verifiers), len(verifiers[0])
    is_even = n == VERIFIERS and {*map(len, verifiers)} == {size}
    expect(is_even, "checkpoint", n, f"{VERIFIERS} verifiers, all of one run or of equally many")
    members = [[cost_of(run, budget, pool) for run in runs] for runs in verifiers]
    seeds = sorted(member.pop("seed") for member in itertools.chain(*members))
    expect(seeds == [*range(n * size)], "checkpoint: seeds", seeds, f"0 to {n * size - 1}, each once")
    for runs in zip(*verifiers, strict=True):
        settings = run_folder.group_by_settings([run_folder.settings(run) for run in runs])
        expect(
            len(settings) == 1, "checkpoint", [x for x, _ in settings], "runs that differ in their seed alone"
        )
    costs = [{key: sum(member[key] for member in group) for key in group[0]} for group in members]
    for runs, cost in zip(verifiers, costs, strict=True):
        for key, x in cost.items():
            most = getattr(budget, key)
            expect(most is None or x <= most, f"{', '.join(runs)}: {key}", x, f"at most {most}, the budget")
    return costs


def cost_of(run: str, budget: Budget, pool: set[str]) -> dict:
    """The seed and the cost of one run; InputError where the cost, or what its labels come from, is not known."""
    expect(verifiers.is_run(run), "checkpoint", run, "a run of train.py, whose cost is known")
    summary = record_of(run, "summary.json", **KINDS)
    hashes = record_of(run, "data.json", files=dict, problems=list, validation=list)
    is_new = None not in (summary.get("cpu_seconds"), summary.get("examples"))
    expect(
        is_new, f"{run}/summary.json", sorted(summary), "cpu_seconds and examples: train it with this version"
    )
    labelled = list(summary["examples"].values())
    expect(
        all(type(n) is int for n in labelled),
        f"{run}/summary.json: examples",
        labelled,
        "numbers of solutions",
    )
    cfg, kind = run_folder.run_config(Path(run)), summary["label_kind"]
    data, objective = data_config(cfg.data), summary["objective"]
    place, origin = (summary["machine"].get("device"), cfg.distributed), cfg.data.name
    if isinstance(data, TaskData):
        origin = origin, data.samples, data.policy
        tokens, knows_steps = training_tokens(run), objective == "prm" or data.outcome == "steps"
    else:  # prm_jax.labeling leaves beside its file what the completions have cost
        abouts = [record_of(str(Path(file).parent), "about.json") for file in hashes["files"]]
        tokens = sum(about.get("counts", {}).get("policy_tokens", 0) for about in abouts)
        knows_steps = any(about.get("completer") != "embedded" for about in abouts)
    known = len(pool & {*hashes["problems"], *hashes["validation"]})
    by_steps, of_steps = (
        budget.step_labels,
        "answers, or completions of the embedded policy (prm_jax.labeling)",
    )
    for key, x, is_kept, expected in (
        ("device, distributed", place, place == ("cpu", None), "cpu and null: CPU seconds are one process's"),
        (
            "init",
            cfg.init,
            cfg.init in ("embedded", "random"),
            "embedded or random: what others cost is not known",
        ),
        (
            "data",
            origin,
            origin in (("chain", "policy", "embedded"), "native"),
            "samples of embedded, or data=jsonl",
        ),
        ("data", f"{known} problems of the pool", not known, "none of them"),
        ("objective", objective, objective != "lm", "a verifier's"),
        ("data.label_kind", kind, not by_steps or kind == "correctness", "correctness"),
        ("labels", "a checker's of steps", by_steps or not knows_steps, of_steps),
        ("counts.policy_tokens", tokens, isinstance(tokens, int), "a number: train it with this version"),
    ):
        expect(is_kept, f"{run}: {key}", x, expected)
    cost = {"seed": summary["seed"], "cpu_seconds": summary["cpu_seconds"], "policy_tokens": tokens}
    return cost | {"labelled": sum(labelled)}


def show(results: dict):
    best_of_n.show(results)
    x = results["record"]
    most = {key: max(cost[key] for cost in x["costs"]) for key in x["costs"][0]}
    number = f"{x['mean']:.4f} [{x['lowest']:.4f}, {x['highest']:.4f}]"
    problems = f"{results['n_problems']} problems, pool {x['pool']}"
    rule = f"best of {results['n_candidates']} ({x['aggregator']}) of {problems}"
    cost = f"{most['cpu_seconds']:.0f} CPU seconds, {most['labelled']:,} labelled solutions"
    cost += f", {most['policy_tokens']:,} policy tokens"
    commits = ", ".join(map(run_folder.short_commit, x["commits"]))
    result = f"{number}, mean and range of {VERIFIERS}; {rule}"
    print(f"record      {x['budget']}: {result}; at most {cost}; commit {commits}")
