"""Readers of evaluation sets, as in sources.py: a row becomes one `Solution`, id FILE:LINE.

Sets of first errors have no label after one; where every step is judged, all labels are kept.
"""

import base64
import hashlib
import itertools
import json

from prm_jax import InputError
from prm_jax.data.rows import field, optional, texts
from prm_jax.launch.config import expect, shown
from prm_jax.solutions import Solution, up_to_error


def big_bench_mistake(row: dict, row_id: str, counts) -> list[Solution]:
    """BIG-Bench Mistake (Tyen et al. 2024, arXiv 2311.08516; WHGTyen/BIG-Bench-Mistake at 270683a): input,
    steps, target, answer, mistake_index (from 0, or null). The outcome: are answer and target equal."""
    steps, error = texts(row, "steps"), field(row, "mistake_index", int, null=True)
    expected = f"0 to {len(steps) - 1} for {len(steps)} steps, or null"
    expect(error is None or 0 <= error < len(steps), "mistake_index", error, expected)
    answer = optional(row, "answer", str)
    outcome = float(answer is not None and answer.strip() == field(row, "target", str).strip())
    labels = up_to_error(len(steps), error)
    return [Solution(field(row, "input", str), steps, labels, outcome=outcome, answer=answer, id=row_id)]


def mr_gsm8k(row: dict, row_id: str, counts) -> list[Solution]:
    """MR-GSM8K (Zeng et al. 2023, arXiv 2312.17080; dvlab-research/MR-GSM8K at 3f666d6): question,
    model_output_steps, model_output_solution_correctness (correct, wrong),
    model_output_solution_first_error_step (from 1, or N/A; wrong solutions without it are dropped)."""
    steps, name, is_right = texts(row, "model_output_steps"), "model_output_solution_first_error_step", {}
    for part in ("solution", "answer"):
        key = f"model_output_{part}_correctness"
        verdict = field(row, key, str).lower()
        expect(verdict in ("correct", "wrong"), key, verdict, "correct or wrong")
        is_right[part] = verdict == "correct"
    error = row.get(name)
    if is_right["solution"]:
        error = None
    elif str(error).strip().isdecimal():
        error = int(error) - 1
        expect(0 <= error < len(steps), name, row[name], f"1 to {len(steps)} for {len(steps)} steps")
    else:
        expect(error in (None, "", "N/A"), name, error, "a step number from 1, or N/A")
        counts["wrong_solutions_without_a_place_dropped"] += 1
        return []
    labels, outcome = up_to_error(len(steps), error), float(is_right["answer"])
    return [Solution(field(row, "question", str), steps, labels, outcome=outcome, id=row_id)]


def hard2verify(row: dict, row_id: str, counts) -> list[Solution]:
    """Hard2Verify (Pandit et al. 2025, arXiv 2510.13744; hub Salesforce/Hard2Verify): question,
    model_response_by_step, human_labels (1 or 0 for every step; a step that rests on an error is 0). In rows
    with a `canary` they are hidden: base64 of the text or JSON, XOR the repeated SHA-256 of the canary. The
    layout is that of public copies of its evaluation scripts; no original row was available."""
    if canary := optional(row, "canary", str):
        row = row | {name: reveal(name, row[name], canary) for name in HIDDEN if name in row}
    steps, values = texts(row, "model_response_by_step"), field(row, "human_labels", list)
    for index, value in enumerate(values):
        expect(value in (0, 1), f"human_labels[{index}]", value, "0 or 1")
    return [Solution(field(row, "question", str), steps, tuple(map(float, values)), id=row_id)]


HIDDEN = ("question", "model_response_by_step", "human_labels")


def reveal(name: str, value: str, canary: str):
    key = itertools.cycle(hashlib.sha256(canary.encode()).digest())
    try:
        text = bytes(a ^ b for a, b in zip(base64.b64decode(value, validate=True), key)).decode()
        return text if name == "question" else json.loads(text)
    except ValueError:
        raise InputError(f"{name}: got {shown(value)}, expected base64 that the canary reveals") from None
