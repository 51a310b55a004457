"""Reads every published kind of row into `Solution`s and counts what it drops.

A reader is a function (row, its id, counts) -> solutions whose keyword-only arguments are the options that
it takes. test_sets.py reads evaluation sets. One of your own: data=files data.name=FILE.py:FUNCTION.
"""

import collections
import dataclasses
import inspect
import re
from pathlib import Path

from prm_jax import InputError
from prm_jax.data import test_sets
from prm_jax.data.answers import extract
from prm_jax.data.rows import (
    PROBLEM,
    as_label,
    field,
    first_name,
    is_pool,
    optional,
    placed,
    read_rows,
    row_place,
    short_text,
    texts,
)
from prm_jax.data.steps import split_steps
from prm_jax.launch.config import expect
from prm_jax.launch.own import load_object
from prm_jax.solutions import Solution, is_probability, packed_solutions, relabel_after_error, up_to_error

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


def own_id(row: dict, row_id: str) -> str:
    return short_text(row, "id") or row_id


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


def math_shepherd(row: dict, row_id: str, counts) -> list[Solution]:
    """Texts with a mark, ки, after each step. Math-Shepherd's input and label: the same text, in which each
    ки of the input is + or -. OpenRLHF's input and value (or label): a list of a label for each ки.
    MATH-APS's question, process and label, whose steps may end with five line ends or be lines: labels of all
    steps, or of the last alone. The problem of an input is as of `divide`."""
    label_name = first_name(row, "label", "value")
    if "process" in row:
        return [math_aps(row, row_id, field(row, label_name, list))]
    *steps, tail = field(row, "input", str).split("ки")
    expect(steps, "input", row["input"], "ки after each step")
    labels, position = row.get(label_name), -1
    if not isinstance(labels, list):  # a text with the sign of each step where its ки is
        signs, labels = field(row, label_name, str), []
        for step in steps:
            position += len(step) + 1
            labels.append(signs[position : position + 1])
            expect(labels[-1] in ("+", "-"), f"label[{position}]", labels[-1], "the + or - of a ки of input")
    expect(len(labels) == len(steps), label_name, labels, f"one for each of {len(steps)} ки of input")
    counts["texts_after_last_mark_dropped"] += bool(tail.strip())
    return [divide(steps, labels, own_id(row, row_id), counts)]


def math_aps(row: dict, row_id: str, labels: list) -> Solution:
    process = field(row, "process", str)
    mark = next((mark for mark in ("ки", "\n\n\n\n\n") if mark in process), "\n")
    steps = tuple(step.strip() for step in process.split(mark) if step.strip())
    missing, expected = len(steps) - len(labels), f"one for each of {len(steps)} steps, or for the last"
    expect(missing == 0 or len(labels) == 1, "label", labels, expected)
    labels = (None,) * missing + tuple(map(as_label, labels))
    return Solution(field(row, "question", str), steps, labels, id=own_id(row, row_id))


def conversations(row: dict, row_id: str, counts) -> list[Solution]:
    """RLHFlow's turns, or ShareGPT's: each step is a user's turn, its label (+ or -) the assistant's after
    it. The problem begins the first turn, as of `divide`. Where nothing tells its end, it is the first
    sentence, so that all solutions of a problem have the same, and the rest of it begins the first step."""
    steps, labels = [], []
    for index, turn in enumerate(field(row, "conversations", list)):
        inside = f"conversations[{index}]."
        expect(isinstance(turn, dict), f"conversations[{index}]", turn, "an object with role and content")
        role = field(turn, first_name(turn, "role", "from"), str, inside)
        text = field(turn, first_name(turn, "content", "value"), str, inside)
        if role == "system":
            counts["system_turns_dropped"] += 1
            continue
        is_step = len(steps) == len(labels)
        roles = ("user", "human") if is_step else ("assistant", "gpt")
        expect(role in roles, f"{inside}role", role, f"{roles[0]}: a step and its label in turn")
        if is_step:
            steps.append(text)
        else:
            is_label = is_probability(as_label(text))
            expect(is_label, f"{inside}content", text, "+ or -, the label of the step before")
            labels.append(text)
    counts["texts_after_last_mark_dropped"] += len(steps) - len(labels)
    steps = steps[: len(labels)]
    expect(steps, "conversations", row["conversations"], "a step of the user and a label of the assistant")
    if not re.search(r"[Ss]tep 1:|\?|\n\n", steps[0]):
        sentence = (split_steps(steps[0], "sentence") or [""])[0]
        steps[0] = f"{sentence}\n\n{steps[0].lstrip()[len(sentence) :]}"
    return [divide(steps, labels, own_id(row, row_id), counts)]


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
    return Solution(problem.strip(), steps, labels, answer=extract("\n".join(steps)), id=solution_id)


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


def text(row: dict, row_id: str, counts, *, split_by) -> list[Solution]:
    """problem (or question, prompt) and solution (or completion, response, answer, text), of each the first
    that is there, split by steps.py, without labels; outcome and id are optional."""

    problem = field(row, first_name(row, *PROBLEM), str)
    solution = field(row, first_name(row, "solution", "completion", "response", "answer", "text"), str)
    steps = tuple(split_steps(solution, split_by))
    if not steps:
        counts["rows_without_steps_dropped"] += 1
        return []
    outcome, answer = as_label(row.get("outcome")), extract(solution)
    return [Solution(problem, steps, outcome=outcome, answer=answer, id=own_id(row, row_id))]


READERS = {
    reader.__name__: reader
    for reader in (
        *(native, prm800k, math_shepherd, conversations, processbench, prmbench, text),
        *(test_sets.big_bench_mistake, test_sets.mr_gsm8k, test_sets.hard2verify),
    )
}


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
    read = READERS[kind] if kind in READERS else load_object("data.name", kind)
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
