"""What the benchmarks share: reading their rows, and the step scores of a verifier.

A score is P(step good) in [0, 1]. A step scored below the threshold is predicted bad, one at it good, except
in PRMBench, as its authors have it. Shares and F1 lie in [0, 1].
"""

import collections
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

from prm_jax import InputError
from prm_jax.data.rows import field, optional
from prm_jax.data.score_files import score_into
from prm_jax.data.sources import Reading, load_placed
from prm_jax.data.splits import Files
from prm_jax.data.units import probability
from prm_jax.evals.baselines import rule_scores, step_auroc
from prm_jax.evals.setup import Setup
from prm_jax.evals.task import Task
from prm_jax.evals.verifiers import describe, note_known, one_scorer
from prm_jax.launch.config import Share, expect, parse
from prm_jax.launch.progress import print_counts
from prm_jax.solutions import Solution

GROUP_FIELDS = {"mr_gsm8k": "question_type", "prmbench": "classification"}  # other rows are grouped by file


@dataclasses.dataclass(frozen=True)
class Config:
    threshold: Share  # conf/task/processbench.yaml


@dataclasses.dataclass(frozen=True)
class Source:
    path: Files
    hub: str | None
    hub_split: str


@dataclasses.dataclass(frozen=True)
class Row:
    """One solution of a benchmark."""

    solution: Solution
    group: str  # split of ProcessBench, the field of GROUP_FIELDS; else the file
    problem: str  # the unit of intervals: rows of one problem are not independent


class Benchmark(Task):
    """A task on published rows."""

    Config = Config

    def show(self, results: dict):
        print(f"verifier    {results['verifier']} ({results['label_kind']} labels)")
        print(f"threshold   {results['threshold']:.4g}")
        listed = ", ".join(f"{name} {x:.4f}" for name, x in results["step_aurocs"].items())
        print(f"step AUROC  {listed} (a later or a longer step is called worse)")


def rows_and_scores(setup: Setup, kind: str) -> tuple[list[Row], list[np.ndarray], dict]:
    """(rows of the benchmark, P(good) of their steps, the verifier and the data)."""
    name, keys = setup.data.name, [field.name for field in dataclasses.fields(Source)]
    expect(name in ("of_run", kind), "data", name, f"data={kind} or only data.path=FILE")
    source = OmegaConf.to_container(OmegaConf.masked_copy(setup.data, keys))
    rows, counts = read(kind, parse(source, Source, "data"))
    print_counts(counts)
    solutions = [row.solution for row in rows]
    scorer = one_scorer(setup)
    texts = ((s.id, s.problem, s.steps) for s in solutions)
    scores = list(map(probability, score_into(setup.folder / "scores.jsonl", scorer, texts, len(rows))))
    counts["problems_the_run_was_trained_on"] = note_known(setup.checkpoints[0], solutions)
    judges = {"verifier": scores} | rule_scores(solutions)
    aurocs = {name: step_auroc(score, solutions) for name, score in judges.items()}
    about = {"data": source, "counts": counts, "n_rows": len(rows), "step_aurocs": aurocs}
    return rows, scores, describe(scorer) | about


def places(source: Source) -> Iterator[tuple[str, str | None, str]]:
    """Yields (file or hub data set, its split, the name of its group); hub_split=gsm8k+math is two."""
    if (source.path is None) == (source.hub is None):
        raise InputError("data.path: expected files (data.path=FILE) or a data set (data.hub=OWNER/NAME)")
    for split in source.hub_split.split("+") if source.hub else ():
        yield source.hub, split, split
    for path in [source.path] if isinstance(source.path, str) else source.path or ():
        yield path, None, Path(path.removesuffix(".gz")).stem


def read(kind: str, source: Source) -> tuple[list[Row], dict[str, int]]:
    """The rows of a benchmark as published, exact repeats too, and counts of its oddities. Where PRMBench
    repeats a row's class and idx the second is passed over, as by its authors."""
    rows, counts, ids, seen = [], collections.Counter(), set(), set()
    for place, split, group in places(source):
        for line, raw, solution in load_placed(place, Reading(name=kind), counts, split):
            try:
                expect(solution.id not in ids, "id", solution.id, "each id once")
                group = field(raw, GROUP_FIELDS[kind], str) if kind in GROUP_FIELDS else group
                problem = optional(raw, "question", str) if kind == "prmbench" else None
            except InputError as error:
                raise InputError(f"{line}: {error}") from None
            ids.add(solution.id)
            key = group, str(raw.get("idx", solution.id))
            if kind == "prmbench" and key in seen:
                counts["rows_with_repeated_idx"] += 1
                continue
            seen.add(key)
            # PRMBench's modified question, solution.problem, differs between classes of one problem.
            rows.append(Row(solution, group, problem or solution.problem))
    return rows, dict(counts)
