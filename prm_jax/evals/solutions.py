"""task=solutions: the labelled solutions of one split of a data set, written as native rows for other commands to label anew."""

import dataclasses
from typing import Literal

from prm_jax import InputError
from prm_jax.data.rows import write_rows
from prm_jax.data.solutions import native_row
from prm_jax.data.splits import Mixture, data_config, load_splits
from prm_jax.evals import standing
from prm_jax.evals.common import Setup
from prm_jax.lab import policy_pool
from prm_jax.launch import cli


@dataclasses.dataclass(frozen=True)
class Config:
    """conf/task/solutions.yaml says what each key means."""

    split: Literal["train", "validation", "test"]


def needs_checkpoint(cfg: Config) -> bool:
    return False


def run(setup: Setup, cfg: Config) -> dict:
    """Writes solutions.jsonl, each row with its label_kind, as far as the data has labels."""
    if setup.data.name == "of_run":
        raise InputError("data: name the data set whose solutions are wanted, such as data=chain")
    data_cfg = data_config(setup.data)
    if isinstance(data_cfg, Mixture):
        raise InputError("data: got mixture, expected one data set: its sources are written one by one")
    data = load_splits(data_cfg, setup.cfg.seed, policy_pool)
    cli.print_counts(data.counts)
    rows, path = data.splits[cfg.split], setup.folder / "solutions.jsonl"
    kind = {"label_kind": data_cfg.label_kind}
    write_rows(path, (native_row(s, s.labels or [None] * len(s.steps)) | kind for s in rows))
    labels = [label for s in rows for label in s.labels or ()]
    found = {"solutions": len(rows), "problems": len({s.problem for s in rows}), "counts": data.counts}
    found |= {"steps": sum(len(s.steps) for s in rows), "labelled": sum(label is not None for label in labels)}
    if data_cfg.label_kind == "correctness":
        found |= standing.step_shares([s.labels or () for s in rows], [s.outcome for s in rows])
    return {"path": str(path), "split": cfg.split, **kind} | found


def show(results: dict):
    number = ", ".join(f"{results[name]:,} {name}" for name in ("solutions", "problems", "steps", "labelled"))
    print(f"{results['split']:<12}{number}; {results['label_kind']} labels")
    print(f"solutions   {results['path']}")
