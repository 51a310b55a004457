"""Readers of solutions that are one text, or the turns of a conversation, and are cut into steps here."""

import re

from prm_jax.data.answers import extract
from prm_jax.data.rows import PROBLEM, TEXT, as_label, field, first_name
from prm_jax.data.steps import split_steps
from prm_jax.launch.config import expect
from prm_jax.solutions import Solution


def text(row: dict, row_id: str, counts, *, split_by) -> list[Solution]:
    """problem (or question, prompt) and completion (or response, solution, as in pools, text; answer where no
    column has one of these names), of each the first that is there, split by steps.py, without labels;
    outcome and id are optional."""
    problem = field(row, PROBLEM, str)
    names = *TEXT, "text"
    has_text = row.keys() & {*names} or "answer" not in row
    solution = field(row, names if has_text else "answer", str)
    steps = tuple(split_steps(solution, split_by))
    if not steps:
        counts["rows_without_steps_dropped"] += 1
        return []
    outcome = as_label(row.get("outcome"))
    answer = extract(solution)
    return [Solution(problem, steps, outcome=outcome, answer=answer, id=row_id)]


def math_shepherd(row: dict, row_id: str, counts) -> list[Solution]:
    """Texts with a mark, ки, after each step. Math-Shepherd's input and label: the same text, in which each
    ки of the input is + or -. OpenRLHF's input and value (or label): a list of a label for each ки.
    MATH-APS's question, process and label, whose steps may end with five line ends or be lines: labels of all
    steps, or of the last alone. The problem of an input is as of `divide`."""
    if "process" in row:
        return [math_aps(row, row_id)]
    *steps, tail = field(row, "input", str).split("ки")
    expect(steps, "input", row["input"], "ки after each step")
    label_name = first_name(row, ("label", "value"))
    position = -1
    labels = row.get(label_name)
    if not isinstance(labels, list):  # a text with the sign of each step where its ки is
        signs = field(row, label_name, str)
        labels = []
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
    missing = len(steps) - len(labels)
    expected = f"one for each of {len(steps)} steps, or for the last"
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
