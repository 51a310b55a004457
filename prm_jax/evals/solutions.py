"""task=solutions: writes the labelled solutions of one split as native rows, for other commands to label
anew."""

import dataclasses
from typing import Literal

from prm_jax import tasks
from prm_jax.data.splits import TaskData, data_config, load_splits
from prm_jax.data.writing import native_row, write_rows
from prm_jax.evals.setup import Setup
from prm_jax.evals.task import Task
from prm_jax.generate.samples import policy_pool
from prm_jax.launch.config import expect
from prm_jax.launch.progress import print_counts


@dataclasses.dataclass(frozen=True)
class Config:
    split: Literal["train", "validation", "test"]


class Solutions(Task):
    Config = Config
    needs_checkpoint = False

    def run(self, setup: Setup) -> dict:
        """Writes solutions.jsonl, and of an embedded task problems.jsonl, with the answers."""
        name = setup.data.name
        expect(name not in ("of_run", "mixture"), "data", name, "one data set, such as data=chain")
        data_cfg = data_config(setup.data)
        data = load_splits(data_cfg, setup.cfg.seed, policy_pool)
        print_counts(data.counts)
        rows = data.splits[self.cfg.split]
        path = setup.folder / "solutions.jsonl"
        kind = data_cfg.label_kind
        write_rows(path, (native_row(s) | {"label_kind": kind} for s in rows))
        if isinstance(data_cfg, TaskData):
            task = tasks.find_task(data_cfg.name)
            texts = dict.fromkeys(s.problem for s in rows)
            problems = [{"problem": p, "answer": task.gold_answer(p), "task": task.name} for p in texts]
            write_rows(setup.folder / "problems.jsonl", problems)
        return {
            "path": str(path),
            "split": self.cfg.split,
            "label_kind": kind,
            "solutions": len(rows),
            "problems": len({s.problem for s in rows}),
            "steps": sum(len(s.steps) for s in rows),
            "labelled": sum(label is not None for s in rows for label in s.labels or ()),
            "counts": data.counts,
        }

    def show(self, results: dict):
        names = "solutions", "problems", "steps", "labelled"
        numbers = ", ".join(f"{results[name]:,} {name}" for name in names)
        print(f"{results['split']:<12}{numbers}; {results['label_kind']} labels")
        print(f"solutions   {results['path']}")
