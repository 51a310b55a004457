"""What the key `checker` names: a task's exact checker, a rule that compares answers, or your own function.

checker=FILE.py:FUNCTION calls f(problem, steps, answer), texts, for each solution. `answer` is what the
problem's row has under answer as it is written there (a right answer, unit tests, a query), or None. It
returns whether the solution is right. Equal solutions are asked once. Examples: docs/recipes.md.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np

from prm_jax import tasks
from prm_jax.data.grading import RULES, VERDICTS, Checker, is_blank
from prm_jax.data.pools import Problem
from prm_jax.data.rows import read_rows
from prm_jax.launch.config import Rule, expect
from prm_jax.launch.own import read_function
from prm_jax.launch.progress import progress

CHECKERS = ("task", *tasks.TASKS, *RULES)  # task: the embedded task that a file's rows name
ASKED = 1 << 14  # solutions whose verdicts are remembered


def checker_rule(names: Collection[str]) -> Rule:
    """The rule that a value is one of these names or FILE.py:FUNCTION."""
    return Rule(lambda x: x in names or is_own(x), f"{', '.join(names)}, or FILE.py:FUNCTION")


def is_own(checker: str | None) -> bool:
    return checker is not None and re.fullmatch(r".+\.py:\w+", checker) is not None


def own_function(place: str, accept: Callable) -> Callable:
    """The function that checker=FILE.py:FUNCTION names; `accept` checks its results, as `own_verdict`."""
    return functools.lru_cache(ASKED)(read_function("checker", place, accept))


def own_verdict(where: str, right, problem: str, steps: Sequence[str], answer: str | None) -> bool:
    is_verdict = isinstance(right, bool | np.bool_)
    expect(is_verdict, where, right, "True or False: whether the solution is right")
    return bool(right)


class Grader(NamedTuple):
    """A checker at work."""

    checker: str  # the value of the key, or the embedded task's name
    name: str  # in results and messages
    right: Callable[[str, Sequence[str], str | None], bool]  # of a problem, a solution's steps and the answer
    grade: Callable[[Problem], Problem]  # with its candidates' answers, and whether they are right
    task: tasks.EmbeddedTask | None = None  # whose exact checker it is


def open_grader(checker: str | None, files: Sequence[str] = ()) -> Grader:
    """The Grader of a value of the key `checker`; `files`: those whose rows name the embedded task. null is
    task where rows name one, else number."""
    if checker is None:
        rows = (row for file in files for _, row in read_rows(file))
        names = (str(row.get("task")) for row in rows)
        checker = "task" if any(name in tasks.TASKS or is_own(name) for name in names) else "number"
    if is_own(checker):
        right = own_function(checker, own_verdict)
        return Grader(checker, checker, right, functools.partial(grade_by, right))
    if checker not in RULES:
        return task_grader(tasks.read_task(files, checker))
    rule = Checker(checker)
    is_same = lambda _, steps, answer: rule.verdict(answer, rule.read(steps)) == "same"
    return Grader(checker, rule.name, is_same, rule.grade)


def task_grader(task: tasks.EmbeddedTask) -> Grader:
    is_solved = lambda problem, steps, _: task.solved(problem, steps)
    return Grader(task.name, "the task's checker", is_solved, task.grade, task)


def grade_by(right: Callable, problem: Problem) -> Problem:
    """The problem with `correct` by right(problem, steps, answer). A candidate's answer is the one that it
    has, else its text, since one without an answer would neither win nor vote."""
    candidates = []
    for c in problem.candidates:
        answer = "\n".join(c.steps) if is_blank(c.answer) else c.answer
        correct = right(problem.problem, c.steps, problem.answer)
        candidates.append(dataclasses.replace(c, answer=answer, correct=correct))
    return dataclasses.replace(problem, candidates=tuple(candidates))


def grade_pool(problems: Sequence[Problem], checker: str) -> tuple[list[Problem], dict]:
    """(the problems with every candidate's `correct` graded anew by a rule or a function of your own,
    {"checker": name, "candidates": number, each verdict: number}); prints the counts."""
    for problem in problems if checker in RULES else ():
        expected = "the right answer; task=score ranks without"
        expect(not is_blank(problem.answer), f"problem {problem.id}: answer", problem.answer, expected)
    grader = open_grader(checker)
    graded = [grader.grade(p) for p in progress("grading", len(problems), "problem", iterable=problems)]
    rows = [(p.answer, c) for p in graded for c in p.candidates]
    if checker in RULES:  # what these say of answers is kept
        rule = Checker(checker)
        names, verdicts = VERDICTS, [rule.verdict(gold, c.answer) for gold, c in rows]
    else:
        names, verdicts = ("right", "wrong"), ["right" if c.correct else "wrong" for _, c in rows]
    counts = {"candidates": len(rows)} | {name: verdicts.count(name) for name in names}
    print(f"graded      {grader.name}: " + ", ".join(f"{n} {name}" for name, n in counts.items()))
    return graded, {"checker": grader.name} | counts
