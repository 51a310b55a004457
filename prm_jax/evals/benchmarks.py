"""What the benchmarks share: reading their rows, and the step scores of a verifier, computed now or stored.

A score is P(step good) in [0, 1]. A step scored below the threshold is predicted bad, one at it good, except
in PRMBench, as its authors have it. Shares and F1 lie in [0, 1].
"""

import collections
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
from omegaconf import OmegaConf

from prm_jax import InputError
from prm_jax.data.rows import field, optional
from prm_jax.data.score_files import read_scores, score_into
from prm_jax.data.sources import load_placed
from prm_jax.data.splits import Files
from prm_jax.data.units import UNITS, as_probability, probability
from prm_jax.evals.baselines import rule_scores, step_auroc
from prm_jax.evals.setup import Setup
from prm_jax.evals.task import Task
from prm_jax.evals.verifiers import describe, note_known, one_scorer
from prm_jax.launch.config import Share, expect, one_of, parse
from prm_jax.launch.progress import print_counts
from prm_jax.solutions import Solution

GROUP_FIELDS = {"mr_gsm8k": "question_type", "prmbench": "classification"}  # other rows are grouped by file


@dataclasses.dataclass(frozen=True)
class Config:
    """The keys that all benchmarks have; conf/task/processbench.yaml says what each means."""

    threshold: Share
    scores_file: str | None
    scores_unit: Annotated[str, one_of(UNITS)]


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a benchmark's rows are: the keys of the data config that a benchmark reads."""

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
    """A task on published rows, from a verifier or from stored scores."""

    Config = Config

    @property
    def needs_checkpoint(self) -> bool:
        return self.cfg.scores_file is None

    def show(self, results: dict):
        print(f"verifier    {results['verifier']} ({results['label_kind'] or 'unknown'} labels)")
        print(f"threshold   {results['threshold']:.4g}")
        listed = ", ".join(f"{name} {x:.4f}" for name, x in results["step_aurocs"].items())
        print(f"step AUROC  {listed} (a later or a longer step is called worse)")


def rows_and_scores(setup: Setup, cfg: Config, kind: str) -> tuple[list[Row], list[np.ndarray], dict]:
    """(rows of the benchmark, P(good) of their steps, the verifier and the data), scored now or stored."""
    if cfg.scores_file and setup.checkpoints:
        raise InputError("scores_file: stored scores need no verifier, expected no checkpoint beside it")
    name, keys = setup.data.name, [field.name for field in dataclasses.fields(Source)]
    expect(name in ("of_run", kind), "data", name, f"data={kind} or only data.path=FILE")
    source = OmegaConf.to_container(OmegaConf.masked_copy(setup.data, keys))
    rows, counts = read(kind, parse(source, Source, "data"))
    print_counts(counts)
    solutions = [row.solution for row in rows]
    if cfg.scores_file:
        scores = scores_of(cfg.scores_file, rows, cfg.scores_unit)
        verifier = {"verifier": cfg.scores_file, "label_kind": None, "objective": None}
    else:
        scorer = one_scorer(setup)
        texts = ((s.id, s.problem, s.steps) for s in solutions)
        logits = score_into(setup.folder / "scores.jsonl", scorer, texts, len(rows))
        scores, verifier = list(map(probability, logits)), describe(scorer)
        counts["problems_the_run_was_trained_on"] = note_known(setup.checkpoints[0], solutions)
    judges = {"verifier": scores} | rule_scores(solutions)
    aurocs = {name: step_auroc(score, solutions) for name, score in judges.items()}
    about = {"data": source, "counts": counts, "n_rows": len(rows), "step_aurocs": aurocs}
    return rows, scores, verifier | about


def places(source: Source) -> Iterator[tuple[str, str | None, str]]:
    """Yields (file or hub data set, its split, the name of its group): gsm8k.json is gsm8k,
    hub_split=gsm8k+math is two."""
    if (source.path is None) == (source.hub is None):
        raise InputError("data.path: expected files (data.path=FILE) or a data set (data.hub=OWNER/NAME)")
    for split in source.hub_split.split("+") if source.hub else ():
        yield source.hub, split, split
    for path in [source.path] if isinstance(source.path, str) else source.path or ():
        yield path, None, Path(path.removesuffix(".gz")).stem


def read(kind: str, source: Source) -> tuple[list[Row], dict[str, int]]:
    """The rows of a benchmark (`kind`: processbench, prmbench or a set of mistakes.py), and counts of its
    oddities. Rows are kept as published, exact repeats too, but where PRMBench repeats a row's class and idx
    the second is passed over, as by its authors. InputError names file, line and field."""
    rows, counts, ids, seen = [], collections.Counter(), set(), set()
    for place, split, group in places(source):
        for line, raw, solution in load_placed(place, kind, counts, split=split):
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


def scores_of(path, rows: list[Row], default_unit: str) -> list[np.ndarray]:
    """P(good) of the steps of the rows from a file of step scores, which may have more, in any order."""
    scores = {i: as_probability(score_T, unit) for i, score_T, unit in read_scores(path, default_unit)}
    found = []
    for solution in [row.solution for row in rows]:
        score_T, n = scores.get(solution.id), len(solution.steps)
        number = None if score_T is None else len(score_T)
        expect(number == n, f"{path}: scores of {solution.id!r}", number, f"one of each of its {n} steps")
        found.append(score_T)
    return found
