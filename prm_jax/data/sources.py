"""Reads labelled rows into `Solution`s and counts what it drops.

A reader is a function (row, its id, counts) -> solutions whose keyword-only arguments are fields of
`Reading`. That of a published set loads when its name is asked for. One of your own:
data=files data.name=FILE.py:FUNCTION.
"""

import collections
import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from prm_jax import InputError
from prm_jax.data import rows
from prm_jax.launch.config import expect
from prm_jax.launch.own import guard, load_object
from prm_jax.solutions import Pickled, Solution, pickled_solutions, relabel_after_error

READERS = {  # name -> the module of prm_jax/data with a function of this name
    "native": "sources",
    "text": "texts",
    "math_shepherd": "texts",
    "conversations": "texts",
    "prm800k": "prm800k",
    "processbench": "mistakes",
    "prmbench": "mistakes",
    "mr_gsm8k": "mistakes",
    "hard2verify": "mistakes",
}
COLUMNS = {  # the names that Reading.columns may have, of readers that take other people's columns
    "native": (*rows.POOL, "labels", "ratings", "outcome", "label_kind"),
    "text": (*rows.PROBLEM, *rows.TEXT, "text", "answer", "outcome", "id"),
}
AfterError = Literal["keep", "mask", "bad"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """How rows become solutions; the defaults leave them as they are (conf/data/files.yaml)."""

    name: str  # of READERS, or FILE.py:FUNCTION
    neutral: Literal["good", "bad"] = "good"
    after_first_error: AfterError = "keep"
    duplicates: Literal["keep", "drop"] = "keep"
    split_by: str = "line"
    columns: dict[str, str] | None = None


def load(
    path, name: str, split: str | None = None, labels_required=False, **options
) -> tuple[Pickled, dict[str, int]]:
    """(solutions, counts of events) of `load_placed`; `options` are those of `Reading`."""
    counts = collections.Counter()
    loaded = load_placed(path, Reading(name=name, **options), counts, split, labels_required)
    return pickled_solutions(solution for *_, solution in loaded), dict(counts)


def load_placed(
    path, reading: Reading, counts, split: str | None = None, labels_required=False
) -> Iterator[tuple[rows.Place, dict, Solution]]:
    """Yields (the row's place in an error, row, solution) of a file, several files or (with `split`) a
    Hugging Face data set, and adds events to `counts`. Duplicates repeat problem, steps, labels, ratings and
    outcome. InputError names file, line and field."""
    if name := READERS.get(reading.name):
        read = reader = getattr(importlib.import_module(f"prm_jax.data.{name}"), reading.name)
    else:
        reader = load_object("data.name", reading.name)
        read = functools.partial(read_own, f"data.name: {reading.name}", reader)
    takes = inspect.getfullargspec(reader).kwonlyargs
    options = {name: getattr(reading, name) for name in takes if hasattr(reading, name)}
    for name in ("neutral", "split_by"):
        value, default = getattr(reading, name), getattr(Reading, name)
        is_read = name in takes or value == default
        expect(is_read, f"data.{name}", value, f"{default}, since data.name={reading.name} asks none")
    seen = set()  # 64 bits stand for a solution: two of ten million have the same with chance 3e-6
    counts.update(rows=0, solutions=0, steps=0, labels=0, duplicates_dropped=0)

    for source in [path] if isinstance(path, str | Path) else path:
        for place, row in rows.read_rows(source, reading.columns, split, COLUMNS.get(reading.name, ())):
            counts["rows"] += 1
            with rows.placed(place):
                row_id = rows.short_text(row, "id") or f"{Path(source).name}:{place.number}"
                solutions = list(read(row, row_id, counts, **options))
                if labels_required and any(s.labels is None for s in solutions):
                    rows.field(row, "labels", list)
            for s in solutions:
                if "after_first_error" not in takes:  # else the reader did it
                    s = relabel(s, reading.after_first_error, counts)
                key = hash((s.problem, s.steps, s.labels, s.ratings, s.outcome))
                if key in seen and reading.duplicates == "drop":
                    counts["duplicates_dropped"] += 1
                    continue
                seen.add(key)
                labels = sum(label is not None for label in s.labels or ())
                counts.update(solutions=1, steps=len(s.steps), labels=labels)
                yield place, row, s
    if not seen:
        raise InputError(f"{path}: no solution left, expected at least one; counts: {dict(+counts)}")


def read_own(where: str, read: Callable, *row, **options) -> list[Solution]:
    """What a reader of your own makes of a row; what goes wrong in it is named."""
    made = guard(where, lambda: list(read(*row, **options)))
    for s in made:
        is_whole = isinstance(s, Solution) and type(s.steps) is tuple
        is_whole = is_whole and {type(s.labels), type(s.ratings)} <= {tuple, type(None)}
        expect(is_whole, where, s, "a Solution whose steps, and labels if there are some, are tuples")
    return made


def relabel(solution: Solution, after_first_error: str, counts, start: int = 0) -> Solution:
    """`relabel_after_error`; counts the labels from `start` on that it changes."""
    new = relabel_after_error(solution, after_first_error)
    if new is not solution:
        changed = sum(a != b for a, b in zip(solution.labels[start:], new.labels[start:], strict=True))
        counts[f"labels_after_first_error_{after_first_error}"] += changed
    return new


def native(row: dict, row_id: str, counts) -> list[Solution]:
    """TRL's prompt, completions, labels (null masks); other names are problem and question, steps. Optional
    ratings, outcome, answer, id, task. A pool's row is the solutions of its candidates."""
    if rows.is_pool(row):
        from prm_jax.data.pools import parse_problem, pool_solutions  # not above: with it comes JAX

        return list(pool_solutions([parse_problem(row)]))
    if row.get(rows.first_name(row, ("completions", "steps"))) == []:
        counts["rows_without_steps_dropped"] += 1
        return []
    labels, ratings = rows.optional(row, "labels", list), rows.optional(row, "ratings", list)
    solution = Solution(
        rows.field(row, ("prompt", *rows.PROBLEM), str),
        rows.texts(row, ("completions", "steps")),
        labels=labels and tuple(map(rows.as_label, labels)),
        ratings=ratings and tuple(ratings),
        outcome=rows.as_label(row.get("outcome")),
        answer=rows.short_text(row, "answer"),
        id=row_id,
        task=rows.optional(row, "task", str),
    )
    return [solution]
