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
problem of the task. The rest of the code calls the functions below, which are the same for every task.
"""

import dataclasses
import zlib
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType

import numpy as np

from prm_jax import InputError
from prm_jax.data.pools import Candidate, Problem
from prm_jax.data.solutions import Solution
from prm_jax.tasks import chain, countdown

TASKS = {"chain": chain, "countdown": countdown}
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
        yield grade(Problem(str(i), problem, None, candidates))


def labelled(
    task: ModuleType, cfg, problem: str, steps: Sequence[str], label_kind: str, id: str, finished: bool = True
) -> Solution:
    """The solution with what the exact checker says of it: labels of a kind, ratings, outcome, answer.

    correctness: 1 while this step and all before it are right, 0 from the first wrong one on; value: `values`. One that was
    cut off, not `finished`, has no outcome.
    """
    outcome = float(task.solved(problem, steps)) if finished else None
    about = {"outcome": outcome, "answer": task.stated(steps), "id": id}
    if label_kind == "value":
        return Solution(problem, tuple(steps), tuple(task.values(cfg, problem, steps)), **about)
    verdict_T = task.verdicts(problem, steps)
    labels, ratings = correctness(verdict_T), tuple(RATINGS.get(verdict, -1) for verdict in verdict_T)
    return Solution(problem, tuple(steps), tuple(labels), ratings, **about)


def correctness(verdicts: Sequence[str]) -> list[float]:
    """1 while a step and all before it are no error, 0 from the first error on."""
    return np.cumprod([float(verdict in RATINGS) for verdict in verdicts]).tolist()


def task_of(problem: str) -> ModuleType:
    """The task that a problem's text belongs to; InputError if none."""
    for task in TASKS.values():
        try:
            task.answer(problem)
            return task
        except InputError:
            pass
    raise InputError(f"not a problem of an embedded task ({', '.join(TASKS)}): {problem[:80]!r}")


def step_labels(problem: str, steps: Sequence[str]) -> list[float]:
    """Correctness labels of anybody's solution of a problem of any task."""
    return correctness(task_of(problem).verdicts(problem, steps))


def are_right(problem: str, steps: Sequence[str]) -> list[float]:
    """1 for each step that is no error by itself, 0 for the others."""
    return [float(verdict in RATINGS) for verdict in task_of(problem).verdicts(problem, steps)]


def grade(problem: Problem) -> Problem:
    """The problem of a pool, of any task, with its right answer, and each candidate's answer and whether it is right."""
    task, text = task_of(problem.problem), problem.problem
    mark = lambda c: dataclasses.replace(c, answer=task.stated(c.steps), correct=task.solved(text, c.steps))
    return dataclasses.replace(problem, answer=task.answer(text), candidates=tuple(map(mark, problem.candidates)))


def lucky_share(solutions: Iterable[Solution]) -> float:
    """Share of the right answers that rest on a wrong step."""
    lucky = [0 in step_labels(s.problem, s.steps) for s in solutions if s.outcome == 1]
    return sum(lucky) / max(len(lucky), 1)
