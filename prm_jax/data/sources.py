"""Reads every published kind of row into `Solution`s and counts what it drops.

A reader is a function (row, its id, counts) -> solutions whose keyword-only arguments are fields of
`Reading`. Sets of first errors have no label after one; where every step is judged, all labels are kept. One
of your own: data=files data.name=FILE.py:FUNCTION.
"""

import base64
import collections
import dataclasses
import hashlib
import inspect
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from prm_jax import InputError
from prm_jax.data.rows import (
    PROBLEM,
    Place,
    as_label,
    field,
    first_name,
    is_pool,
    optional,
    placed,
    read_rows,
    short_text,
    texts,
)
from prm_jax.data.steps import SPLITS, split_steps
from prm_jax.launch.config import expect, one_of, shown
from prm_jax.launch.own import load_object
from prm_jax.solutions import Packed, Solution, packed_solutions, relabel_after_error, up_to_error

AfterError = Literal["keep", "mask", "bad"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """How rows become solutions; the defaults leave them as they are (conf/data/files.yaml)."""

    name: str  # of READERS, or FILE.py:FUNCTION
    neutral: Literal["good", "bad"] = "good"
    after_first_error: AfterError = "keep"
    duplicates: Literal["keep", "drop"] = "keep"
    split_by: Annotated[str, one_of(SPLITS)] = "line"
    columns: dict[str, str] | None = None


def load(
    path, name: str, split: str | None = None, labels_required=False, **options
) -> tuple[Packed, dict[str, int]]:
    """(solutions, counts of events) of `load_placed`; `options` are those of `Reading`."""
    counts = collections.Counter()
    loaded = load_placed(path, Reading(name=name, **options), counts, split, labels_required)
    return packed_solutions(solution for *_, solution in loaded), dict(counts)


def load_placed(
    path, reading: Reading, counts, split: str | None = None, labels_required=False
) -> Iterator[tuple[Place, dict, Solution]]:
    """Yields (the row's place in an error, row, solution) of a file, several files or (with `split`) a
    Hugging Face data set, and adds events to `counts`. Duplicates repeat problem, steps, labels, ratings and
    outcome. InputError names file, line and field."""
    read = READERS.get(reading.name) or load_object("data.name", reading.name)
    takes = inspect.getfullargspec(read).kwonlyargs
    options = {name: getattr(reading, name) for name in takes}
    seen = set()  # 64 bits stand for a solution: two of ten million have the same with chance 3e-6
    counts.update(rows=0, solutions=0, steps=0, labels=0, duplicates_dropped=0)

    for source in [path] if isinstance(path, str | Path) else path:
        for place, row in read_rows(source, reading.columns, split):
            counts["rows"] += 1
            with placed(place):
                row_id = short_text(row, "id") or f"{Path(source).name}:{place.number}"
                solutions = read(row, row_id, counts, **options)
                if labels_required and any(s.labels is None for s in solutions):
                    field(row, "labels", list)
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
    if is_pool(row):
        from prm_jax.data.pools import parse_problem, pool_solutions  # not above: with it comes the grading

        return pool_solutions(parse_problem(row))
    if row.get(first_name(row, ("completions", "steps"))) == []:
        counts["rows_without_steps_dropped"] += 1
        return []
    labels, ratings = optional(row, "labels", list), optional(row, "ratings", list)
    solution = Solution(
        field(row, ("prompt", *PROBLEM), str),
        texts(row, ("completions", "steps")),
        labels=labels and tuple(map(as_label, labels)),
        ratings=ratings and tuple(ratings),
        outcome=as_label(row.get("outcome")),
        answer=short_text(row, "answer"),
        id=row_id,
        task=optional(row, "task", str),
    )
    return [solution]


def prm800k(row: dict, row_id: str, counts, *, neutral, after_first_error) -> list[Solution]:
    """Raw PRM800K rows of both phases without those of screening, or flat rows problem, steps, ratings. Steps
    keep their tail "# Answer", whose content also becomes `answer`. Each alternative step ends a solution of
    its own; the steps before it have labels in the row's main solution and none in its own."""
    if "ratings" in row:
        problem = field(row, "problem", str)
        branches = [(row_id, texts(row, "steps"), field(row, "ratings", list))]
    elif unusable := unusable_kind(row):
        counts[f"{unusable}_rows_dropped"] += 1
        return []
    else:
        problem = field(field(row, "question", dict), "problem", str, "question.")
        branches = read_branches(row, row_id, counts)
    label_of, solutions = {1: 1.0, 0: float(neutral == "good"), -1: 0.0, None: None}, []
    for rank, (branch_id, steps, ratings) in enumerate(branches):
        tail = re.search(r"(?:^|\n\n)# Answer\n\n(.*)\Z", steps[-1], re.DOTALL)
        rated = Solution(
            problem, steps, ratings=tuple(ratings), answer=tail and tail[1].strip(), id=branch_id
        )
        whole = dataclasses.replace(rated, labels=tuple(label_of[rating] for rating in ratings))
        start = len(steps) - 1 if rank else 0  # the first step that this solution supervises
        new = relabel(whole, after_first_error, counts, start)
        labels, ratings = ((None,) * start + values[start:] for values in (new.labels, new.ratings))
        if any(label is not None for label in labels):
            solutions.append(dataclasses.replace(new, labels=labels, ratings=ratings))
        else:
            counts["solutions_without_label_dropped"] += 1
    return solutions


def unusable_kind(row: dict) -> str | None:
    if field(row, "is_quality_control_question", bool):
        return "quality_control"
    if field(row, "is_initial_screening_question", bool):
        return "screening"
    reason = field(field(row, "label", dict), "finish_reason", str, "label.")
    return reason if reason in ("give_up", "bad_problem") else None


def read_branches(row: dict, row_id: str, counts) -> list[tuple]:
    """(id, steps, ratings) of a raw row's trajectory, then of each alternative to one of its steps."""
    path, others = (), []  # path and each of others: (text, rating) of every step
    for t, turn in enumerate(field(field(row, "label", dict), "steps", list, "label.")):
        inside = f"label.steps[{t}]."
        completions = field(turn, "completions", list, inside, null=True) or []
        chosen = field(turn, "chosen_completion", int, inside, null=True)
        human = optional(turn, "human_completion", dict, inside)
        read = [read_completion(value, f"{inside}completions[{c}].") for c, value in enumerate(completions)]
        is_index = chosen is None or 0 <= chosen < len(read)
        expect(is_index, f"{inside}chosen_completion", chosen, f"an index into {len(read)} completions")
        # Without a choice phase 1 continues with the labeller's own step. Without that too the row ends here,
        # and the step under review comes first (in phase 2 it equals question.pre_generated_steps[t]).
        is_over = chosen is None and human is None
        if chosen is None and human is not None:
            chosen = len(read)
            read.append(read_completion(human, f"{inside}human_completion."))
            counts["human_steps_without_rating"] += read[-1][1] is None
        others += [(f"{row_id}/{t}.{c}", (*path, step)) for c, step in enumerate(read) if c != (chosen or 0)]
        path = (*path, read[chosen or 0]) if read else path
        if is_over:
            break
    if not path:
        counts["rows_without_steps_dropped"] += 1
        return []
    return [(branch_id, *zip(*branch)) for branch_id, branch in [(row_id, path), *others]]


def read_completion(completion, inside: str) -> tuple[str, int | None]:
    """(text, rating) of a completion."""
    text, rating = field(completion, "text", str, inside), optional(completion, "rating", int, inside)
    expect(rating in (-1, 0, 1, None), f"{inside}rating", rating, "-1, 0, 1 or null")
    return text, rating


def processbench(row: dict, row_id: str, counts) -> list[Solution]:
    """ProcessBench's problem, steps, label (first wrong step from 0, -1 none), final_answer_correct."""
    steps, error = texts(row, "steps"), field(row, "label", int)
    n = len(steps)
    expect(-1 <= error < n, "label", error, f"-1 to {n - 1} for {n} steps")
    labels = up_to_error(n, None if error == -1 else error)
    outcome = float(field(row, "final_answer_correct", bool))
    return [Solution(field(row, "problem", str), steps, labels, outcome=outcome, id=row_id)]


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


def math_shepherd(row: dict, row_id: str, counts) -> list[Solution]:
    """Texts with a mark, ки, after each step. Math-Shepherd's input and label: the same text, in which each
    ки of the input is + or -. OpenRLHF's input and value (or label): a list of a label for each ки.
    MATH-APS's question, process and label, whose steps may end with five line ends or be lines: labels of all
    steps, or of the last alone. The problem of an input is as of `divide`."""
    if "process" in row:
        return [math_aps(row, row_id)]
    *steps, tail = field(row, "input", str).split("ки")
    expect(steps, "input", row["input"], "ки after each step")
    label_name, position = first_name(row, ("label", "value")), -1
    labels = row.get(label_name)
    if not isinstance(labels, list):  # a text with the sign of each step where its ки is
        signs, labels = field(row, label_name, str), []
        for step in steps:
            position += len(step) + 1
            labels.append(signs[position : position + 1])
            expect(labels[-1] in ("+", "-"), f"label[{position}]", labels[-1], "the + or - of a ки of input")
    expect(len(labels) == len(steps), label_name, labels, f"one for each of {len(steps)} ки of input")
    counts["texts_after_last_mark_dropped"] += bool(tail.strip())
    return [divide(steps, labels, row_id, counts)]


def math_aps(row: dict, row_id: str) -> Solution:
    process, labels = field(row, "process", str), field(row, ("label", "value"), list)
    mark = next((mark for mark in ("ки", "\n\n\n\n\n") if mark in process), "\n")
    steps = tuple(step.strip() for step in process.split(mark) if step.strip())
    missing, expected = len(steps) - len(labels), f"one for each of {len(steps)} steps, or for the last"
    expect(missing == 0 or len(labels) == 1, "label", labels, expected)
    labels = (None,) * missing + tuple(map(as_label, labels))
    return Solution(field(row, "question", str), steps, labels, id=row_id)


def conversations(row: dict, row_id: str, counts) -> list[Solution]:
    """RLHFlow's turns, or ShareGPT's: each step is a user's turn, its label (+ or -) the assistant's after
    it. The problem begins the first turn, as of `divide`. Where nothing tells its end, it is the first
    sentence, so that all solutions of a problem have the same, and the rest of it begins the first step."""
    steps, labels = [], []
    for index, turn in enumerate(field(row, "conversations", list)):
        inside = f"conversations[{index}]."
        role = field(turn, ("role", "from"), str, inside)
        text = field(turn, ("content", "value"), str, inside)
        if role == "system":
            counts["system_turns_dropped"] += 1
            continue
        is_step = len(steps) == len(labels)
        roles = ("user", "human") if is_step else ("assistant", "gpt")
        expect(role in roles, f"{inside}role", role, f"{roles[0]}: a step and its label in turn")
        (steps if is_step else labels).append(text)
    counts["texts_after_last_mark_dropped"] += len(steps) - len(labels)
    steps = steps[: len(labels)]
    expect(steps, "conversations", row["conversations"], "a step of the user and a label of the assistant")
    if not re.search(r"[Ss]tep 1:|\?|\n\n", steps[0]):
        steps[0] = "\n\n".join(re.split(r"(?<=[.!?])\s", steps[0].lstrip(), maxsplit=1))
    return [divide(steps, labels, row_id, counts)]


def stated(text: str) -> str | None:
    """The answer that a text states."""
    from prm_jax.data.answers import extract  # not above: labelled rows need no grading

    return extract(text)


def divide(steps: list[str], labels: list, solution_id: str, counts) -> Solution:
    """The solution of steps and labels the first of which begin with the problem. It is the text before "Step
    1:"; without it the problem ends at the first step's last blank line or question mark, or at its end (as
    in TRL's script)."""
    starts = [re.search("[Ss]tep 1:", step) for step in steps]
    first = next((index for index, start in enumerate(starts) if start), 0)
    head = steps[first]
    ends = head.rfind("\n\n") + 1, head.rfind("?") + 1
    cut = starts[first].start() if starts[first] else max(ends) or len(head)
    problem = "".join(steps[:first]) + head[:cut]
    steps = [head[cut:], *steps[first + 1 :]]
    if not steps[0].strip():
        steps, first = steps[1:], first + 1
    counts["rows_without_step_1"] += not any(starts)
    counts["marks_inside_problem_dropped"] += first
    steps = tuple(step.strip() for step in steps)
    labels = tuple(map(as_label, labels[first:]))
    return Solution(problem.strip(), steps, labels, answer=stated("\n".join(steps)), id=solution_id)


def text(row: dict, row_id: str, counts, *, split_by) -> list[Solution]:
    """problem (or question, prompt) and solution (or completion, response, answer, text), of each the first
    that is there, split by steps.py, without labels; outcome and id are optional."""
    problem = field(row, PROBLEM, str)
    solution = field(row, ("solution", "completion", "response", "answer", "text"), str)
    steps = tuple(split_steps(solution, split_by))
    if not steps:
        counts["rows_without_steps_dropped"] += 1
        return []
    outcome, answer = as_label(row.get("outcome")), stated(solution)
    return [Solution(problem, steps, outcome=outcome, answer=answer, id=row_id)]


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


READERS = {
    "native": native,
    "prm800k": prm800k,
    "processbench": processbench,
    "prmbench": prmbench,
    "math_shepherd": math_shepherd,
    "conversations": conversations,
    "text": text,
    "mr_gsm8k": mr_gsm8k,
    "hard2verify": hard2verify,
}
