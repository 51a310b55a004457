"""task=report: step metrics, then best-of-N on a pool: the named one, or a fresh one of an embedded task."""

import dataclasses
from pathlib import Path

from prm_jax.evals import best_of_n, steps
from prm_jax.evals.common import Setup
from prm_jax.tasks import TASKS


@dataclasses.dataclass(frozen=True)
class Config(best_of_n.Config, steps.Config):
    needs_checkpoint = True


def run(setup: Setup, cfg: Config) -> dict:
    results = steps.run(setup, cfg)
    if cfg.input is None and any(run["data"]["name"] not in TASKS for run in results["runs"]):
        print("pool        none: one can be drawn only for an embedded task; input=FILE names one")
        return results
    return results | best_of_n.run(setup, cfg)


def show(results: dict):
    steps.show(results)
    if "scorers" in results:
        best_of_n.show(results)


def detail(results: dict):
    steps.detail(results)
    if "scorers" in results:
        best_of_n.detail(results)


def figures(results: dict, folder: Path) -> list[Path]:
    return steps.figures(results, folder) + best_of_n.figures(results, folder)
