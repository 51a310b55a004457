"""Problems to be solved, read from files, and what their sampled solutions become: candidates, graded, lines of a pool."""

import collections
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

from prm_jax import InputError
from prm_jax.data.answers import extract, right_answer
from prm_jax.data.formats import Format
from prm_jax.data.grading import Checker
from prm_jax.data.pools import Candidate, Problem
from prm_jax.data.rows import field_error, read_rows, row_place
from prm_jax.data.steps import steps_of


@dataclasses.dataclass(frozen=True)
class Question:
    """A problem to be solved, its right answer where known."""

    id: str
    problem: str
    answer: str | None = None


def read_questions(path: str | Path) -> Iterator[Question]:
    """Rows with problem, prompt or question; their id (else their number) and answer or gold where they have one. A pool too."""
    place_of = {}
    for number, row in read_rows(path):
        place, get = row_place(path, number), lambda *names, row=row: next((row[n] for n in names if n in row), None)
        problem, name, answer = get("problem", "prompt", "question"), get("id", "problem_id"), get("gold", "answer")
        if not isinstance(problem, str) or not problem:
            found = problem if {"problem", "prompt", "question"} & row.keys() else ", ".join(map(str, row))
            raise InputError(f"{place}: {field_error('problem', found, 'a text under problem, prompt or question')}")
        if answer is not None and (isinstance(answer, bool) or not isinstance(answer, str | int | float)):
            raise InputError(f"{place}: {field_error('answer', answer, 'a text, a number or null')}")
        name, answer = str(number if name is None else name), right_answer(answer if answer is None else str(answer))
        if name in place_of:
            raise InputError(f"{place}: {field_error('id', name, f'an id not seen before, {place_of[name]} has it')}")
        place_of[name] = place
        yield Question(name, problem, answer)


def as_candidate(fmt: Format, text: str, is_whole: bool) -> Candidate:
    """A sampled solution with the answer it states; one without any step is kept as one empty step, unfinished."""
    steps = steps_of(fmt, text)
    return Candidate(steps or ("",), answer=extract("\n".join(steps)), finished=is_whole and bool(steps))


def grader(checker: Checker) -> Callable[[Problem], Problem]:
    """Grades a problem's candidates against its answer; null where it has none."""

    def grade(problem: Problem) -> Problem:
        if problem.answer is None:
            return problem
        right = lambda c: dataclasses.replace(c, correct=checker.verdict(problem.answer, c.answer) == "same")
        return dataclasses.replace(problem, candidates=tuple(map(right, problem.candidates)))

    return grade


COUNTS = ["problems", "resumed", "candidates", "policy_tokens", "finished", "cut", "empty"]
COUNTS += ["unanswered", "right", "wrong", "ungraded"]


def counts_of(line: dict) -> collections.Counter:
    """What the line of a pool adds to the counts. What was cut off is neither right nor wrong, whatever it says last."""
    candidates = line["candidates"]
    counts = collections.Counter(problems=1, candidates=len(candidates), policy_tokens=line["policy_tokens"])
    for c in candidates:
        counts["empty" if c["steps"] == [""] else "finished" if c["finished"] else "cut"] += 1
        counts["unanswered"] += c["answer"] is None
        if c["finished"] or c["correct"] is None:
            counts[{True: "right", False: "wrong", None: "ungraded"}[c["correct"]]] += 1
    return counts
