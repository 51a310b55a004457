"""Files of rows that commands write, as a stream, and continue after a stop."""

import collections
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from prm_jax import InputError
from prm_jax.data.rows import field, open_file, placed, read_rows
from prm_jax.data.units import UNITS
from prm_jax.launch import hosts
from prm_jax.launch.config import expect
from prm_jax.launch.files import append_lines, read_json, read_lines, replaced, write_json
from prm_jax.launch.progress import progress
from prm_jax.launch.run_folder import versions
from prm_jax.solutions import Solution

CHUNK = 2048  # solutions in memory at a time: enough for tight packing and whole problems, a few megabytes


def write_rows(path, rows: Iterable[dict]):
    """Writes .jsonl or .jsonl.gz; the file appears only when it is complete."""
    path = Path(path)
    expect(path.name.endswith((".jsonl", ".jsonl.gz")), "output", str(path), "a file .jsonl or .jsonl.gz")
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as temporary, open_file(temporary, "wb") as file:
        file.writelines(json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows)


def native_row(s: Solution, labels: Sequence[float | None] | None = None) -> dict:
    """The native row, which `sources.load` reads back as equal; new `labels` replace ratings too."""
    row = {"id": s.id, "prompt": s.problem, "completions": list(s.steps)}
    row |= {"outcome": s.outcome, "answer": s.answer}
    row |= {"labels": s.labels, "ratings": s.ratings} if labels is None else {"labels": list(labels)}
    return row if s.task is None else row | {"task": s.task}


def require_same(row: dict, **wanted):
    """Raises InputError where a kept row has other values than those of its item."""
    for name, value in wanted.items():
        expect(row.get(name) == value, name, row.get(name), f"{value!r}: it was made from other input")


def append_rows(path, items: Iterable, size: int | None, check: Callable, make: Callable) -> Iterator[tuple]:
    """Completes a JSON Lines file with one row per item; yields (the rows of `size` items, how many of them
    it had). make(items, number of the first, how many have a row) gives the other rows; where it makes them
    in fixed chunks, the file becomes byte for byte that of an undisturbed call. size=None: `items` are the
    chunks, lists. InputError if a line is broken or check(row, item) raises."""
    items = iter(items)
    number = 0
    path = Path(path)
    hint = "delete the file to make it again"
    chunks = items if size is None else iter(lambda: list(itertools.islice(items, size)), [])
    path.touch()
    kept = read_lines(path, cuts=True)
    for chunk in chunks:
        rows = list(itertools.islice(kept, len(chunk)))
        for i, (row, item) in enumerate(zip(rows, chunk, strict=False), number + 1):
            try:
                check(row, item)
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise InputError(f"{path} line {i}: {error}; {hint}") from None
        old = len(rows)
        if old < len(chunk):  # so the file has been read to its end
            new = make(chunk, number, old)
            append_lines(path, new)
            rows += new
        number += len(chunk)
        yield rows, old
    if next(kept, None) is not None:
        raise InputError(f"{path} line {number + 1}: it was made from other input; {hint}")


def keep_rows(path: Path, about: dict, appended: Iterable, count: Callable, counts: dict, bar) -> dict:
    """Runs `append_rows` (`appended`) with about.json beside the file: `about`, at the end versions and what
    is returned: `counts` and sums of count(row). A file that a stopped call left must have the same
    `about`."""
    start = time.perf_counter()
    kept = collections.Counter(counts)
    beside = path.with_name("about.json")
    hosts.share_file(path)
    hosts.share_file(beside)
    if path.exists() and path.stat().st_size:
        stored = read_json(beside)
        changed = [name for name, x in json.loads(json.dumps(about)).items() if stored.get(name) != x]
        expect(not changed, str(path), changed, "what it was begun with; write into another folder")
    write_json(beside, about | {"finished": False})
    for rows, old in appended:
        kept["resumed"] += old
        for row in rows:
            kept.update(count(row))
        bar.update(len(rows))
    end = {"finished": True, "counts": dict(kept), "seconds": time.perf_counter() - start}
    write_json(beside, about | end | {"versions": versions()})
    return kept


def score_into(path: Path, scorer, solutions: Iterable[Solution], total: int) -> Iterator[np.ndarray]:
    """Appends the step scores of solutions to a file, one JSON {id, unit, scores} a line, and returns its
    `stored_scores`. It reads CHUNK solutions at a time, or a slow scorer's own `chunk`. Those that have a
    line are not scored again; InputError where it is damaged or of another solution or unit. Each of several
    processes writes its own file, and all continue that of process 0."""
    hosts.share_file(path)
    has_stats = hasattr(scorer, "stats")
    if has_stats:
        scorer.stats = type(scorer.stats)()

    def check(line: dict, s: Solution):
        require_same(line, id=s.id, unit=scorer.unit)
        scores = field(line, "scores", list)
        is_right = len(scores) == len(s.steps) and all(type(x) in (int, float) for x in scores)
        expect(is_right, "scores", scores, f"a number for each of {len(s.steps)} steps")

    def make(chunk: list[Solution], _, done: int) -> list[dict]:
        new = chunk[done:]
        scores = scorer.score([(s.problem, s.steps) for s in new])
        lines = zip(new, scores, strict=True)
        return [{"id": s.id, "unit": scorer.unit, "scores": score_T.tolist()} for s, score_T in lines]

    before = 0
    with progress("scoring", total, "solution", leave=not has_stats) as bar:
        for lines, old in append_rows(path, solutions, getattr(scorer, "chunk", CHUNK), check, make):
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
