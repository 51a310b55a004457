"""The embedded tasks: problems without end, a solver that errs in known ways, and an exact check of every step.

A task is a module of this folder; TASKS names it for data.name=NAME and conf/data/NAME.yaml holds its keys. It offers

    Config                            frozen dataclass of the keys of its section `task`
    make_problem(cfg, rng)            the text of one random problem
    solve(cfg, problem, rng)          the steps of one solution by the noisy solver
    verdicts(problem, steps)          of each step by itself: "right", "neutral" (right, and does nothing) or its kind of error
    values(cfg, problem, steps)       after each step, the exact chance that the answer will be right
    answer(problem)                   the right final answer, a text
    stated(steps)                     the final answer that a solution gives, or None
    solved(problem, steps)            whether that answer counts as right

All but make_problem, solve and values read texts alone, so they check anybody's solutions; InputError where a text is no
problem of the task. The rest of the code calls the functions below, which are the same for every task. Which task a problem is
of is said by its source, data.name or the key `task` of a file's rows, never guessed: problems of two tasks may look alike.
"""

import dataclasses
import zlib
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType

import numpy as np

from prm_jax import InputError
from prm_jax.data.grading import RULES
from prm_jax.data.pools import Candidate, Problem
from prm_jax.data.rows import field_error, read_rows
from prm_jax.data.solutions import Solution
from prm_jax.tasks import chain, countdown

TASKS = {"chain": chain, "countdown": countdown}
# What the key `checker` may be: the exact checker of the task that a file's rows name, or of this one, or a rule for answers.
CHECKERS = ("task", *TASKS, *RULES)
# Hundredths of all problems. A problem's split is a hash of its text, so no two splits share one.
SPLITS = {"test": (0, 10), "validation": (10, 15), "train": (15, 60), "base": (60, 100)}
RATINGS = {"right": 1, "neutral": 0}  # PRM800K's, of the verdicts that are no error; an error has -1


def make_problems(task: ModuleType, cfg, n: int, split: str, seed: int) -> list[str]:
    """n distinct problems of one split."""
    rng, found = np.random.default_rng([seed, *split.encode()]), {}
    low, high = SPLITS[split]
    for _ in range(1000 * n):
        if len(found) == n:
            return list(found)
        problem = task.make_problem(cfg, rng)
        if low <= zlib.crc32(problem.encode()) % 100 < high:
            found[problem] = None
    hint = "ask for fewer, or for longer ones"
    raise InputError(f"data.task: has only {len(found)} distinct {split} problems of {n}; {hint}")


def solver_pool(task: ModuleType, cfg, problems: Iterable[str], n: int, seed: int) -> Iterator[Problem]:
    """n graded solutions of each problem by the noisy solver."""
    rng = np.random.default_rng([seed, 1])
    for i, problem in enumerate(problems):
        candidates = tuple(Candidate(task.solve(cfg, problem, rng)) for _ in range(n))
        yield grade(task, Problem(str(i), problem, None, candidates))


def labelled(
    task: ModuleType, cfg, problem: str, steps: Sequence[str], label_kind: str, id: str, finished: bool = True
) -> Solution:
    """The solution with what the exact checker says of it: labels of a kind, ratings, outcome, answer.

    correctness: 1 while this step and all before it are right, 0 from the first wrong one on; value: `values`. One that was
    cut off, not `finished`, has no outcome.
    """
    outcome = float(task.solved(problem, steps)) if finished else None
    about = {"outcome": outcome, "answer": task.stated(steps), "id": id, "task": name_of(task)}
    if label_kind == "value":
        return Solution(problem, tuple(steps), tuple(task.values(cfg, problem, steps)), **about)
    verdict_T = task.verdicts(problem, steps)
    labels, ratings = correctness(verdict_T), tuple(RATINGS.get(verdict, -1) for verdict in verdict_T)
    return Solution(problem, tuple(steps), tuple(labels), ratings, **about)


def correctness(verdicts: Sequence[str]) -> list[float]:
    """1 while a step and all before it are no error, 0 from the first error on."""
    return np.cumprod([float(verdict in RATINGS) for verdict in verdicts]).tolist()


def name_of(task: ModuleType) -> str:
    """The name of a task in TASKS."""
    return next(name for name, module in TASKS.items() if module is task)


def of_files(paths: Sequence[str], checker: str | None = None) -> ModuleType:
    """The task of the problems of files: the one that all rows name, or `checker` where that is a task's name and they name
    none or the same."""
    named = {str(row.get("task") or "none") for path in paths for _, row in read_rows(path)}
    if checker in TASKS:
        named = named - {"none"} | {checker}
    if len(named) != 1 or not named <= TASKS.keys():
        where, found = f"{', '.join(map(str, paths))}: " * bool(paths), ", ".join(sorted(named)) or "none"
        expected = (
            f"one of {', '.join(TASKS)} in all rows, or checker=NAME (of rl questions.checker, of evaluate.py data)"
        )
        raise InputError(f"{where}{field_error('task', found, expected)}")
    return TASKS[named.pop()]


def step_labels(task: ModuleType, problem: str, steps: Sequence[str]) -> list[float]:
    """Correctness labels of anybody's solution."""
    return correctness(task.verdicts(problem, steps))


def are_right(task: ModuleType, problem: str, steps: Sequence[str]) -> list[float]:
    """1 for each step that is no error by itself, 0 for the others."""
    return [float(verdict in RATINGS) for verdict in task.verdicts(problem, steps)]


def grade(task: ModuleType, problem: Problem) -> Problem:
    """The problem of a pool with its task and right answer, and each candidate's answer and whether it is right."""
    text = problem.problem
    mark = lambda c: dataclasses.replace(c, answer=task.stated(c.steps), correct=task.solved(text, c.steps))
    graded = {"answer": task.answer(text), "candidates": tuple(map(mark, problem.candidates)), "task": name_of(task)}
    return dataclasses.replace(problem, **graded)


def lucky_share(task: ModuleType, solutions: Iterable[Solution]) -> float:
    """Share of the right answers that rest on a wrong step."""
    lucky = [0 in step_labels(task, s.problem, s.steps) for s in solutions if s.outcome == 1]
    return sum(lucky) / max(len(lucky), 1)
