"""An evaluation is one class: a file evals/NAME.py has its numbers, conf/task/NAME.yaml its keys.

This file imports nothing of ours, so that a task loads what it uses and no more.
"""

import importlib
from pathlib import Path


class Task:
    """Measures something by its keys, and shows the results; `figures` draws those of a results.json, too."""

    Config: type  # the dataclass of the task's keys
    needs_checkpoint = True  # whether checkpoint=null means the newest finished run
    drawing: str | None = None  # the file of prm_jax/figures with a function `draw` of the results

    def __init__(self, cfg=None):
        self.cfg = cfg

    def run(self, setup) -> dict:
        """Returns every number, JSON-ready. setup: evals/setup.py."""
        raise NotImplementedError

    def show(self, results: dict):
        """Prints the tables of the screen, which are in report.txt too."""

    def detail(self, results: dict):
        """Prints the tables of report.txt alone."""

    def figures(self, results: dict, folder: Path) -> list[Path]:
        """Draws figures into a folder; returns their files. Matplotlib loads here."""
        if self.drawing is None:
            return []
        return importlib.import_module(f"prm_jax.figures.{self.drawing}").draw(results, folder)

    def metric(self, results: dict) -> float | None:
        """The headline number, higher is better: the objective of a Hydra sweeper such as Optuna's."""
        return None
