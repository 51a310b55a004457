"""Reads test sets of labelled mistakes. Those of first errors have no label after one; where every step is
judged, all labels are kept."""

import base64
import hashlib
import itertools
import json

from prm_jax import InputError
from prm_jax.data.rows import field, optional, short_text, texts
from prm_jax.launch.config import expect, shown
from prm_jax.solutions import Solution


def up_to_error(n: int, error: int | None) -> tuple[float | None, ...]:
    """Labels of n steps with the first error at this index (None: all good), unlabelled after it."""
    return (1.0,) * n if error is None else (1.0,) * error + (0.0,) + (None,) * (n - error - 1)


def processbench(row: dict, row_id: str, counts) -> list[Solution]:
    """ProcessBench's problem, steps, label (first wrong step from 0, -1 none), final_answer_correct."""
    steps = texts(row, "steps")
    error = field(row, "label", int)
    n = len(steps)
    expect(-1 <= error < n, "label", error, f"-1 to {n - 1} for {n} steps")
    labels = up_to_error(n, None if error == -1 else error)
    outcome = float(field(row, "final_answer_correct", bool))
    return [Solution(field(row, "problem", str), steps, labels, outcome=outcome, id=row_id)]


def prmbench(row: dict, row_id: str, counts) -> list[Solution]:
    """PRMBench's modified_question and modified_process; error_steps (from 1) are bad, all other steps good.
    Some rows name steps beyond the last: they are counted and ignored, as by the benchmark's own evaluator.
    The id is FILE:LINE because `idx` repeats. PRMScore needs after_first_error=keep."""
    steps = texts(row, "modified_process")
    errors = field(row, "error_steps", list)
    for index, error in enumerate(errors):
        expect(type(error) is int and error >= 1, f"error_steps[{index}]", error, "a step number from 1")
    beyond = sum(error > len(steps) for error in errors)
    counts["error_steps_out_of_range"] += beyond
    counts["rows_with_error_steps_out_of_range"] += beyond > 0
    labels = tuple(float(number not in errors) for number in range(1, len(steps) + 1))
    return [Solution(field(row, "modified_question", str), steps, labels, id=row_id)]


def mr_gsm8k(row: dict, row_id: str, counts) -> list[Solution]:
    """MR-GSM8K (Zeng et al. 2023, arXiv 2312.17080; dvlab-research/MR-GSM8K at 3f666d6): question,
    model_output_steps, model_output_solution_correctness (correct, wrong),
    model_output_solution_first_error_step (from 1, or N/A; wrong solutions without it are dropped)."""
    steps = texts(row, "model_output_steps")
    name = "model_output_solution_first_error_step"
    is_right = {}
    for part in ("solution", "answer"):
        key = f"model_output_{part}_correctness"
        verdict = field(row, key, str).lower()
        expect(verdict in ("correct", "wrong"), key, verdict, "correct or wrong")
        is_right[part] = verdict == "correct"
    error = None
    if not is_right["solution"]:
        number = (short_text(row, name) or "N/A").strip()  # 2.0 of a Parquet file is 2
        if number == "N/A":
            counts["wrong_solutions_without_a_place_dropped"] += 1
            return []
        expect(number.isdecimal(), name, number, "a step number from 1, or N/A")
        error = int(number) - 1
        expect(0 <= error < len(steps), name, number, f"1 to {len(steps)} for {len(steps)} steps")
    labels = up_to_error(len(steps), error)
    outcome = float(is_right["answer"])
    return [Solution(field(row, "question", str), steps, labels, outcome=outcome, id=row_id)]


def hard2verify(row: dict, row_id: str, counts) -> list[Solution]:
    """Hard2Verify (Pandit et al. 2025, arXiv 2510.13744; hub Salesforce/Hard2Verify): question,
    model_response_by_step, human_labels (1 or 0 for every step; a step that rests on an error is 0). In rows
    with a `canary` they are hidden: base64 of the text or JSON, XOR the repeated SHA-256 of the canary. The
    layout is that of public copies of its evaluation scripts; no original row was available."""
    if canary := optional(row, "canary", str):
        row = row | {name: reveal(name, row[name], canary) for name in HIDDEN if name in row}
    steps = texts(row, "model_response_by_step")
    values = field(row, "human_labels", list)
    for index, value in enumerate(values):
        expect(value in (0, 1), f"human_labels[{index}]", value, "0 or 1")
    return [Solution(field(row, "question", str), steps, tuple(map(float, values)), id=row_id)]


HIDDEN = ("question", "model_response_by_step", "human_labels")


def reveal(name: str, value: str, canary: str):
    key = itertools.cycle(hashlib.sha256(canary.encode()).digest())
    try:
        text = bytes(a ^ b for a, b in zip(base64.b64decode(value, validate=True), key)).decode()
        return text if name == "question" else json.loads(text)
    except (TypeError, ValueError):  # such as the list of a row that is not hidden
        raise InputError(f"{name}: got {shown(value)}, expected base64 that the canary reveals") from None
