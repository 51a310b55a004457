"""What the benchmarks share: reading their rows, and the step scores of a verifier, computed now or stored.

A score is P(step good) in [0, 1], into which other units are converted (data/units.py). A step scored below the
threshold is predicted bad, one at it good, except in PRMBench, as its authors have it. Shares and F1 lie in [0, 1].
"""

import collections
import dataclasses
import math
from pathlib import Path
from typing import Annotated

import numpy as np
from omegaconf import OmegaConf

from prm_jax import InputError
from prm_jax.data.rows import field, optional, read_rows, require, row_place
from prm_jax.data.sources import load_placed
from prm_jax.data.splits import Files
from prm_jax.data.units import UNITS, as_probability, probability
from prm_jax.evals.setup import Setup
from prm_jax.evals.verifiers import describe, one_scorer
from prm_jax.launch.config import Share, expect, one_of, parse
from prm_jax.launch.progress import print_counts
from prm_jax.scoring import score_into
from prm_jax.solutions import Solution

GROUPS = {
    "mr_gsm8k": "question_type",
    "prmbench": "classification",
}  # {benchmark: the field that groups its rows}


@dataclasses.dataclass(frozen=True)
class Config:
    """The keys that all benchmarks have; conf/task/processbench.yaml, prmbench.yaml and mistakes.yaml explain them."""

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
    group: str  # split of ProcessBench, the field of GROUPS; else the file
    problem: str  # the unit of intervals: rows of one problem are not independent
    repeats: bool = False  # PRMBench: whether an earlier row has its class and idx


def rows_and_scores(setup: Setup, cfg: Config, kind: str) -> tuple[list[Row], list[np.ndarray], dict]:
    """(rows of the benchmark, P(good) of their steps, the verifier and the data), scored now or stored."""
    if cfg.scores_file and setup.checkpoints:
        raise InputError("scores_file: stored scores need no verifier, expected no checkpoint beside it")
    name = setup.data.name
    expect(name in ("of_run", kind), "data", name, f"data={kind} or only data.path=FILE")
    source = {
        key: x for key, x in OmegaConf.to_container(setup.data).items() if key in ("path", "hub", "hub_split")
    }
    rows, counts = read(kind, parse(source, Source, "data"))
    print_counts(counts)
    split, groups = getattr(cfg, "threshold_split", None), dict.fromkeys(row.group for row in rows)
    expect(
        split is None or split in groups, "threshold_split", split, ", ".join(groups)
    )  # before hours of scoring
    if cfg.scores_file:
        n_steps = {row.solution.id: len(row.solution.steps) for row in rows}
        scores = stored_scores(cfg.scores_file, n_steps, cfg.scores_unit)
        verifier = {"verifier": cfg.scores_file, "label_kind": None, "objective": None}
    else:
        scorer = one_scorer(setup)
        texts = ((row.solution.id, row.solution.problem, row.solution.steps) for row in rows)
        logits = score_into(setup.folder / "scores.jsonl", scorer, texts, len(rows))
        scores, verifier = list(map(probability, logits)), describe(scorer)
    return rows, scores, {**verifier, "data": source, "counts": counts}


def show_verifier(results: dict):
    print(f"verifier    {results['verifier']} ({results['label_kind'] or 'unknown'} labels)")
    print(f"threshold   {results['threshold']:.4g} ({results['threshold_origin']})")


def read(kind: str, source: Source) -> tuple[list[Row], dict[str, int]]:
    """Every row of a benchmark (`kind`: processbench, prmbench or a set of mistakes.py), and counts of its oddities. A
    split of ProcessBench is a file, under the file's name (gsm8k.json: gsm8k), or a split of the hub data set
    (hub_split=gsm8k+math: two). Rows are kept as published, exact repeats too; where PRMBench repeats a row's
    `classification` and `idx` the second is marked. Raises InputError naming file, line and field."""
    if (source.path is None) == (source.hub is None):
        expected = "a file or a list of files (data.path=FILE), or a hub data set (data.hub=OWNER/NAME)"
        raise InputError(f"data.path: expected {expected}, and not both")
    if source.hub:
        places = [(source.hub, split, split) for split in source.hub_split.split("+")]
    else:
        paths = source.path if isinstance(source.path, list) else [source.path]
        places = [(path, None, Path(str(path).removesuffix(".gz")).stem) for path in paths]
    if repeated := [name for name, n in collections.Counter(name for *_, name in places).items() if n > 1]:
        raise InputError(f"data.path: two files or splits have the name {repeated[0]!r}, expected each once")
    rows, counts, place_of, seen = [], collections.Counter(), {}, set()
    for place, split, name in places:
        for line, raw, solution in load_placed(place, kind, counts, split=split):
            problem, repeats = solution.problem, False
            try:
                group = field(raw, GROUPS[kind], str) if kind in GROUPS else name
                if kind == "prmbench":  # modified_question differs between classes of one problem
                    problem = optional(raw, "question", str) or problem
                    key = group, str(raw.get("idx"))
                    repeats = "idx" in raw and key in seen
                    counts["rows_with_repeated_idx"] += repeats
                    seen.add(key)
                if solution.id in place_of:
                    raise InputError(f"id: {solution.id!r} is the id of {place_of[solution.id]} too")
            except InputError as error:
                raise InputError(f"{line}: {error}") from None
            place_of[solution.id] = line
            rows.append(Row(solution, group, problem, repeats))
    return rows, dict(counts)


def stored_scores(path, n_steps: dict[str, int], default_unit: str) -> list[np.ndarray]:
    """Step scores of the solutions {id: number of steps} from a file, in that order, as P(good): float64 arrays. The
    file has one row {id, scores, unit} a solution, in any order; `unit` is optional. InputError names line and id."""
    scores, line_of = {}, {}
    for number, row in read_rows(path):
        where = row_place(path, number)
        try:
            i = field(row, "id", str)
            where += f": id {i!r}"
            if i in line_of:
                raise InputError(f"is the id of {row_place(path, line_of[i])} too")
            if i not in n_steps:
                raise InputError(
                    f"no solution has it, expected one of {len(n_steps)} such as {next(iter(n_steps))!r}"
                )
            unit = optional(row, "unit", str) or default_unit
            require(unit in UNITS, "unit", unit, ", ".join(UNITS))
            score_T, low, high = field(row, "scores", list), UNITS[unit].low, UNITS[unit].high
            require(len(score_T) == n_steps[i], "scores", len(score_T), f"{n_steps[i]}, one a step")
            in_range = f"a {unit} in [{low:g}, {high:g}]; scores_unit=logit takes unbounded scores"
            for t, score in enumerate(score_T):
                is_number = isinstance(score, int | float) and not isinstance(score, bool)
                require(is_number and math.isfinite(score), f"scores[{t}]", score, "a finite number")
                require(low <= score <= high, f"scores[{t}]", score, in_range)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        scores[i], line_of[i] = as_probability(np.array(score_T, np.float64), unit), number
    if missing := [i for i in n_steps if i not in scores]:
        which = f"{missing[0]!r}" + f" and {len(missing) - 1} more ids" * (len(missing) > 1)
        raise InputError(
            f"{path}: no row has the id {which}, expected one for each of {len(n_steps)} solutions"
        )
    return [scores[i] for i in n_steps]
