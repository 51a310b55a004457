"""task=report: step metrics, then best-of-N on a pool: the named one, or a fresh one of an embedded task."""

import dataclasses
from pathlib import Path

from prm_jax.evals import best_of_n, steps
from prm_jax.evals.best_of_n import BestOfN
from prm_jax.evals.setup import Setup
from prm_jax.evals.steps import Steps
from prm_jax.evals.task import Task


@dataclasses.dataclass(frozen=True)
class Config(best_of_n.Config, steps.Config):
    pass


class Report(Task):
    Config = Config

    def run(self, setup: Setup) -> dict:
        results = Steps(self.cfg).run(setup)
        if self.cfg.input is None and any("task" not in run["data"] for run in results["runs"]):
            print("pool        none: one can be drawn only for an embedded task; input=FILE names one")
            return results
        return results | BestOfN(self.cfg).run(setup)

    def parts(self, results: dict) -> list[Task]:
        """The tasks whose results are there: there may be no pool."""
        return [Steps(), BestOfN()] if "scorers" in results else [Steps()]

    def show(self, results: dict):
        for part in self.parts(results):
            part.show(results)

    def detail(self, results: dict):
        for part in self.parts(results):
            part.detail(results)

    def figures(self, results: dict, folder: Path) -> list[Path]:
        return [path for part in self.parts(results) for path in part.figures(results, folder)]

    def metric(self, results: dict) -> float | None:
        """The metric of best_of_n where there is a pool, else of steps."""
        return self.parts(results)[-1].metric(results)
