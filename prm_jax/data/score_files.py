"""Files of step scores: one JSON line a solution, written as a stream and continued after a stop."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from prm_jax.data.rows import append_rows, field, placed, read_rows, require_same
from prm_jax.data.units import UNITS
from prm_jax.launch.config import expect
from prm_jax.launch.hosts import share_file
from prm_jax.launch.progress import progress

CHUNK = 2048  # solutions in memory at a time: enough for tight packing and whole problems, a few megabytes


def score_into(path: Path, scorer, rows: Iterable, total: int) -> Iterator[np.ndarray]:
    """Appends the step scores of (id, problem, steps) rows to a file, one JSON {id, unit, scores} a line, and
    returns its `stored_scores`. It reads CHUNK rows at a time, or a slow scorer's own `chunk`. Rows that have
    a line are not scored again; InputError where it is damaged or of another row or unit. Each of several
    processes writes its own file, and all continue that of process 0."""
    share_file(path)
    has_stats = hasattr(scorer, "stats")
    if has_stats:
        scorer.stats = type(scorer.stats)()

    def check(line: dict, row):
        require_same(line, id=row[0], unit=scorer.unit)
        scores = field(line, "scores", list)
        is_right = len(scores) == len(row[2]) and all(type(x) in (int, float) for x in scores)
        expect(is_right, "scores", scores, f"a number for each of {len(row[2])} steps")

    def make(chunk: list, _, done: int) -> list[dict]:
        scores = scorer.score([(problem, tuple(steps)) for _, problem, steps in chunk[done:]])
        named = zip(chunk[done:], scores, strict=True)
        return [{"id": i, "unit": scorer.unit, "scores": score_T.tolist()} for (i, *_), score_T in named]

    before = 0
    with progress("scoring", total, "solution", leave=not has_stats) as bar:
        for lines, old in append_rows(path, rows, getattr(scorer, "chunk", CHUNK), check, make):
            before += old
            bar.update(len(lines))
    if before:
        print(f"scored      {before} of {total} solutions before, in {path}")
    if has_stats and scorer.stats.solutions:
        print(f"{scorer.stats.summary()}; by {scorer.name}")
    return stored_scores(path)


def stored_scores(path: Path) -> Iterator[np.ndarray]:
    """Yields the step scores of each row {id, unit, scores} as float32 log-odds; InputError names the row."""
    for place, row in read_rows(path):
        with placed(place):
            unit, scores = field(row, "unit", str), field(row, "scores", list)
            expect(unit in UNITS, "unit", unit, ", ".join(UNITS))
            low, high = UNITS[unit].low, UNITS[unit].high
            is_right = scores and all(type(x) in (int, float) and low <= x <= high for x in scores)
            expect(is_right, "scores", scores, f"numbers of a {unit} in [{low:g}, {high:g}]")
        yield UNITS[unit].log_odds(np.array(scores, np.float64)).astype(np.float32)
