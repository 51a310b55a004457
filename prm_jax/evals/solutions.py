"""task=solutions: writes the labelled solutions of one split as native rows, for other commands to label anew."""

import dataclasses
from collections.abc import Iterator
from typing import Literal

from prm_jax import InputError, tasks
from prm_jax.data.critiques import prompt_text
from prm_jax.data.rows import write_rows
from prm_jax.data.splits import Mixture, TaskData, data_config, load_splits
from prm_jax.evals import biases
from prm_jax.evals.setup import Setup
from prm_jax.evals.task import Task
from prm_jax.formats import read_format
from prm_jax.generate.samples import policy_pool
from prm_jax.launch.config import expect
from prm_jax.launch.progress import print_counts
from prm_jax.solutions import Solution, native_row


@dataclasses.dataclass(frozen=True)
class Config:
    split: Literal["train", "validation", "test"]
    critiques: Literal["hops", "verdict"] | None = None


def run(setup: Setup, cfg: Config) -> dict:
    """Writes solutions.jsonl, each row with its label_kind, where the data has labels; problems.jsonl of an embedded task,
    each problem once with its answer."""
    if setup.data.name == "of_run":
        raise InputError("data: name the data set whose solutions are wanted, such as data=chain")
    data_cfg = data_config(setup.data)
    if isinstance(data_cfg, Mixture):
        raise InputError("data: got mixture, expected one data set: its sources are written one by one")
    data = load_splits(data_cfg, setup.cfg.seed, policy_pool)
    print_counts(data.counts)
    rows, path, kind = data.splits[cfg.split], setup.folder / "solutions.jsonl", data_cfg.label_kind
    write_rows(path, (native_row(s) | {"label_kind": kind} for s in rows))
    if isinstance(data_cfg, TaskData):
        task = tasks.find_task(data_cfg.name)
        known = dict.fromkeys(s.problem for s in rows)
        problems = [{"problem": p, "answer": task.gold_answer(p), "task": task.name} for p in known]
        write_rows(setup.folder / "problems.jsonl", problems)
    if cfg.critiques:
        write_rows(
            setup.folder / "critiques.jsonl", (row for s in rows for row in critiques(s, cfg.critiques))
        )
    labels = [label for s in rows for label in s.labels or ()]
    shares = biases.step_shares([s.labels or () for s in rows], [s.outcome for s in rows])
    return {
        "path": str(path), "split": cfg.split, "label_kind": kind, "solutions": len(rows),
        "problems": len({s.problem for s in rows}), "steps": sum(len(s.steps) for s in rows),
        "labelled": sum(label is not None for label in labels), "counts": data.counts,
        **(shares if kind == "correctness" else {}),
    }  # fmt: skip


def critiques(s: Solution, kind: str) -> Iterator[dict]:
    """Native rows for train.py objective=lm data=jsonl, one a labelled step: the prompt of format=lab_critic and the
    right critique. `hops`: the step's operations done one by one, then the verdict, `verdict`: that alone."""
    fmt, written = read_format("lab_critic"), None
    if s.task is not None:
        written = tasks.find_task(s.task).written_out(s.problem, s.steps)
    expect(written is not None, "critiques", kind, "null: only the steps of data=chain can be written out")
    labels = s.labels or (None,) * len(s.steps)
    for t, (label, hops) in enumerate(zip(labels, written, strict=True)):
        if label is not None:
            critique = [*(hops if kind == "hops" else []), "Yes" if label >= 0.5 else "No"]
            prompt = prompt_text(fmt, None, s.problem, s.steps[: t + 1])
            yield {"id": f"{s.id}/{t}", "prompt": prompt, "completions": critique}


def show(results: dict):
    numbers = ", ".join(
        f"{results[name]:,} {name}" for name in ("solutions", "problems", "steps", "labelled")
    )
    print(f"{results['split']:<12}{numbers}; {results['label_kind']} labels")
    print(f"solutions   {results['path']}")


class Solutions(Task):
    Config = Config
    needs_checkpoint = False

    def run(self, setup: Setup) -> dict:
        return run(setup, self.cfg)

    def show(self, results: dict):
        show(results)
