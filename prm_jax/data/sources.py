"""Reads every published kind of row into `Solution`s and counts what it drops.

A reader is a function (row, its id, counts) -> solutions whose keyword-only arguments are the options that
it takes. text_rows.py reads texts, test_sets.py evaluation sets. One of your own: data=files
data.name=FILE.py:FUNCTION.
"""

import collections
import dataclasses
import importlib
import inspect
import re
from pathlib import Path

from prm_jax import InputError
from prm_jax.data.rows import (
    PROBLEM,
    as_label,
    field,
    first_name,
    is_pool,
    optional,
    own_id,
    placed,
    read_rows,
    row_place,
    short_text,
    texts,
)
from prm_jax.launch.config import expect
from prm_jax.launch.own import load_object
from prm_jax.solutions import Solution, packed_solutions, relabel_after_error, up_to_error

NEUTRAL = {"good": 1.0, "bad": 0.0, "mask": None}  # labels of PRM800K's rating 0
# The values of each option of `load_placed`; the first leaves a file as it is.
OPTIONS = {
    "neutral": tuple(NEUTRAL),
    "after_first_error": ("keep", "mask", "bad"),
    "alternatives": ("chosen", "expand"),
    "duplicates": ("keep", "drop"),
    "quality_control": ("keep", "drop"),
}


def native(row: dict, row_id: str, counts) -> list[Solution]:
    """TRL's prompt, completions, labels (null masks); other names are problem and question, steps. Optional
    ratings, outcome, answer, id, task. A pool's row is the solutions of its candidates."""
    if is_pool(row):
        from prm_jax.data.pools import parse_problem, pool_solutions  # not above: with it comes the grading

        return pool_solutions(parse_problem(row))
    completions = first_name(row, "completions", "steps")
    if row.get(completions) == []:
        counts["rows_without_steps_dropped"] += 1
        return []
    labels, ratings = optional(row, "labels", list), optional(row, "ratings", list)
    return [
        Solution(
            field(row, first_name(row, "prompt", *PROBLEM), str),
            texts(row, completions),
            labels=labels and tuple(map(as_label, labels)),
            ratings=ratings and tuple(ratings),
            outcome=as_label(row.get("outcome")),
            answer=short_text(row, "answer"),
            id=own_id(row, row_id),
            task=optional(row, "task", str),
        )
    ]


def prm800k(
    row, row_id, counts, *, neutral, after_first_error, alternatives, quality_control
) -> list[Solution]:
    """Raw PRM800K rows of both phases, or flat rows problem, steps, ratings. Steps keep their tail "#
    Answer", whose content also becomes `answer`. Each alternative step ends a solution of its own; the steps
    before it have labels in the row's main solution and none in its own."""
    if "ratings" in row:
        problem, ratings = field(row, "problem", str), field(row, "ratings", list)
        for index, rating in enumerate(ratings):
            expect(rating in (-1, 0, 1, None), f"ratings[{index}]", rating, "-1, 0, 1 or null")
        branches = [(own_id(row, row_id), texts(row, "steps"), ratings)]
    else:
        if (unusable := unusable_kind(row)) and quality_control == "drop":
            counts[f"{unusable}_rows_dropped"] += 1
            return []
        problem = field(field(row, "question", dict), "problem", str, "question.")
        branches = read_branches(row, row_id, counts, alternatives)
    label_of, solutions = {1: 1.0, 0: NEUTRAL[neutral], -1: 0.0}, []
    for rank, (branch_id, steps, ratings) in enumerate(branches):
        start = len(steps) - 1 if rank else 0  # the first step that this solution supervises
        labels = tuple(map(label_of.get, ratings))
        if neutral == "mask":
            counts["neutral_masked"] += ratings[start:].count(0)
            ratings = [rating or None for rating in ratings]
        tail = re.search(r"(?:^|\n\n)# Answer\n\n(.*)\Z", steps[-1], re.DOTALL)
        answer = tail and tail[1].strip()
        solution = Solution(problem, steps, labels, tuple(ratings), answer=answer, id=branch_id)
        solution = relabel(solution, after_first_error, counts, start)
        labels, ratings = ((None,) * start + values[start:] for values in (solution.labels, solution.ratings))
        if any(label is not None for label in labels):
            solutions.append(dataclasses.replace(solution, labels=labels, ratings=ratings))
        else:
            counts["solutions_without_label_dropped"] += 1
    return solutions


def relabel(solution: Solution, after_first_error: str, counts, start: int = 0) -> Solution:
    """`relabel_after_error`; counts the labels from `start` on that it changes."""
    new = relabel_after_error(solution, after_first_error)
    if new is not solution:
        changed = sum(a != b for a, b in zip(solution.labels[start:], new.labels[start:], strict=True))
        counts[f"labels_after_first_error_{after_first_error}"] += changed
    return new


def unusable_kind(row: dict) -> str | None:
    if field(row, "is_quality_control_question", bool):
        return "quality_control"
    if field(row, "is_initial_screening_question", bool):
        return "screening"
    reason = field(field(row, "label", dict), "finish_reason", str, "label.")
    return reason if reason in ("give_up", "bad_problem") else None


def read_branches(row: dict, row_id: str, counts, alternatives: str) -> list[tuple]:
    """(id, steps, ratings) of a raw row's trajectory, then of each alternative to one of its steps."""
    path, others = (), []  # path and each of others: (text, rating) of every step
    for t, shown in enumerate(field(field(row, "label", dict), "steps", list, "label.")):
        inside = f"label.steps[{t}]."
        completions = field(shown, "completions", list, inside, null=True) or []
        chosen = field(shown, "chosen_completion", int, inside, null=True)
        human = optional(shown, "human_completion", dict, inside)
        read = [read_completion(value, f"{inside}completions[{c}]") for c, value in enumerate(completions)]
        is_index = chosen is None or 0 <= chosen < len(read)
        expect(is_index, f"{inside}chosen_completion", chosen, f"an index into {len(read)} completions")
        # Without a choice phase 1 continues with the labeller's own step. Without that too the row ends here,
        # and the step under review comes first (in phase 2 it equals question.pre_generated_steps[t]).
        is_over = chosen is None and human is None
        if chosen is None and human is not None:
            chosen = len(read)
            read.append(read_completion(human, f"{inside}human_completion"))
            counts["human_steps_without_rating"] += read[-1][1] is None
        others += [(f"{row_id}/{t}.{c}", (*path, step)) for c, step in enumerate(read) if c != (chosen or 0)]
        path = (*path, read[chosen or 0]) if read else path
        if is_over:
            break
    if not path:
        counts["rows_without_steps_dropped"] += 1
        return []
    kept = others if alternatives == "expand" else []
    counts["alternatives_dropped"] += len(others) - len(kept)
    return [(branch_id, *zip(*branch)) for branch_id, branch in [(row_id, path), *kept]]


def read_completion(completion, name: str) -> tuple[str, int | None]:
    """(text, rating) of a completion."""
    text, rating = field(completion, "text", str, f"{name}."), optional(completion, "rating", int, f"{name}.")
    expect(rating in (-1, 0, 1, None), f"{name}.rating", rating, "-1, 0, 1 or null")
    return text, rating


def processbench(row: dict, row_id: str, counts) -> list[Solution]:
    """ProcessBench's problem, steps, label (first wrong step from 0, -1 none), final_answer_correct."""
    steps, error = texts(row, "steps"), field(row, "label", int)
    n = len(steps)
    expect(-1 <= error < n, "label", error, f"-1 to {n - 1} for {n} steps")
    labels = up_to_error(n, None if error == -1 else error)
    outcome = float(field(row, "final_answer_correct", bool))
    return [Solution(field(row, "problem", str), steps, labels, outcome=outcome, id=own_id(row, row_id))]


def prmbench(row: dict, row_id: str, counts) -> list[Solution]:
    """PRMBench's modified_question and modified_process; error_steps (from 1) are bad, all other steps good.
    Some rows name steps beyond the last: they are counted and ignored, as by the benchmark's own evaluator.
    The id is FILE:LINE because `idx` repeats. PRMScore needs after_first_error=keep."""
    steps, errors = texts(row, "modified_process"), field(row, "error_steps", list)
    for index, error in enumerate(errors):
        expect(type(error) is int and error >= 1, f"error_steps[{index}]", error, "a step number from 1")
    beyond = sum(error > len(steps) for error in errors)
    counts["error_steps_out_of_range"] += beyond
    counts["rows_with_error_steps_out_of_range"] += beyond > 0
    labels = tuple(float(number not in errors) for number in range(1, len(steps) + 1))
    return [Solution(field(row, "modified_question", str), steps, labels, id=row_id)]


# The file of each reader. Those of texts and of test sets are imported when a data set names them.
READERS = {
    "native": "sources",
    "prm800k": "sources",
    "processbench": "sources",
    "prmbench": "sources",
    "math_shepherd": "text_rows",
    "conversations": "text_rows",
    "text": "text_rows",
    "big_bench_mistake": "test_sets",
    "mr_gsm8k": "test_sets",
    "hard2verify": "test_sets",
}


def find_reader(kind: str):
    """The reader of a name in READERS, or FILE.py:FUNCTION of one's own."""
    if kind in READERS:
        return getattr(importlib.import_module(f"prm_jax.data.{READERS[kind]}"), kind)
    return load_object("data.name", kind)


def load(path, kind: str, **options):
    """(solutions, counts of events) of `load_placed`."""
    counts = collections.Counter()
    placed_solutions = load_placed(path, kind, counts, **options)
    return packed_solutions(solution for *_, solution in placed_solutions), dict(counts)


def load_placed(path, kind: str, counts, *, split=None, columns=None, labels_required=False, **options):
    """Yields (the row's place in an error, row, solution) of a file, several files or (with `split`) a
    Hugging Face data set, and adds events to `counts`. Without options the rows are taken as they are;
    conf/data/files.yaml explains the options. Duplicates repeat problem, steps, labels, ratings and outcome.
    InputError names file, line and field."""
    options = {name: values[0] for name, values in OPTIONS.items()} | {"split_by": "line"} | options
    read = find_reader(kind)
    takes = inspect.getfullargspec(read).kwonlyargs
    # 64 bits stand for a solution: two of ten million different ones have the same with chance 3e-6.
    keywords, seen = {name: options[name] for name in takes}, set()
    counts.update(rows=0, solutions=0, steps=0, labels=0, duplicates_dropped=0)
    for source in [path] if isinstance(path, str | Path) else path:
        for number, row in read_rows(source, columns, split):
            counts["rows"] += 1
            place = row_place(source, number)
            with placed(place):
                row_solutions = read(row, f"{Path(source).name}:{number}", counts, **keywords)
                if labels_required and any(s.labels is None for s in row_solutions):
                    field(row, "labels", list)
            for s in row_solutions:
                if "after_first_error" not in takes:  # else the reader did it
                    s = relabel(s, options["after_first_error"], counts)
                key = hash((s.problem, s.steps, s.labels, s.ratings, s.outcome))
                if key in seen and options["duplicates"] == "drop":
                    counts["duplicates_dropped"] += 1
                    continue
                seen.add(key)
                labels = sum(label is not None for label in s.labels or ())
                counts.update(solutions=1, steps=len(s.steps), labels=labels)
                yield place, row, s
    if not seen:
        raise InputError(f"{path}: no solution left, expected at least one; counts: {dict(+counts)}")
