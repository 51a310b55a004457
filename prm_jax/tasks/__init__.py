"""The embedded tasks by name, and the problems, pools and labelled solutions that are drawn from one."""

import dataclasses
import functools
import zlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from prm_jax import InputError
from prm_jax.data.pools import Candidate, Problem
from prm_jax.data.rows import read_rows
from prm_jax.launch.config import expect
from prm_jax.launch.own import load_object
from prm_jax.solutions import Solution, relabel_after_error
from prm_jax.tasks.chain import CHAIN
from prm_jax.tasks.embedded import EmbeddedTask, correctness

TASKS = {"chain": CHAIN}
# Percentiles of a hash of the problem's text, so no two splits share a problem.
SPLITS = {"test": (0, 10), "validation": (10, 15), "train": (15, 60), "base": (60, 100)}


@functools.cache
def find_task(name: str) -> EmbeddedTask:
    """The task of a name in TASKS, or an EmbeddedTask of your own, FILE.py:CLASS."""
    if name in TASKS:
        return TASKS[name]
    found = load_object("data.name", name)
    is_task = isinstance(found, type) and issubclass(found, EmbeddedTask)
    expect(is_task, "data.name", name, f"{', '.join(TASKS)} or FILE.py:CLASS that is an EmbeddedTask")
    task = found()
    task.name = name
    return task


def read_task(paths: Sequence[str], name: str | None = None) -> EmbeddedTask:
    """The task that all rows of the files name, or that of `name` if no row names another."""
    named = {str(row.get("task") or "none") for path in paths for _, row in read_rows(path)}
    if name in TASKS or ".py:" in (name or ""):
        named = named - {"none"} | {name}
    is_one = len(named) == 1 and named <= TASKS.keys() | {name}
    expected = (
        f"one of {', '.join(TASKS)} in all rows, or checker=NAME, FILE.py:FUNCTION (a verifier: data=NAME)"
    )
    expect(is_one, ": ".join([*map(str, paths), "task"]), sorted(named), expected)
    return find_task(named.pop())


def make_problems(task: EmbeddedTask, cfg, n: int, split: str, seed: int) -> list[str]:
    """n distinct problems of one split."""
    rng = np.random.default_rng([seed, *split.encode()])
    low, high = SPLITS[split]
    problems = {}
    for _ in range(1000 * n):
        if len(problems) == n:
            return list(problems)
        problem = task.make_problem(cfg, rng)
        if low <= zlib.crc32(problem.encode()) % 100 < high:
            problems[problem] = None
    found = f"has only {len(problems)} distinct {split} problems of {n}"
    raise InputError(f"data.task: {found}; ask for fewer, or for longer ones")


def solver_pool(task: EmbeddedTask, cfg, problems: Iterable[str], n: int, seed: int) -> Iterator[Problem]:
    """n graded solutions of each problem by the noisy solver."""
    rng = np.random.default_rng([seed, 1])
    for i, problem in enumerate(problems):
        candidates = tuple(Candidate(task.solve(cfg, problem, rng)) for _ in range(n))
        yield task.grade(Problem(str(i), problem, None, candidates))


def sample_pool(cfg, n: int, each: int, split: str, seed: int, draw) -> Iterable[Problem]:
    """n problems of one split with `each` graded solutions by solver or `draw`, as cfg (TaskData) says."""
    task = find_task(cfg.name)
    problems = make_problems(task, cfg.task, n, split, seed)
    if cfg.samples == "solver":
        return solver_pool(task, cfg.task, problems, each, seed)
    return draw(cfg, problems, each, seed)


def sample_solutions(cfg, n: int, split: str, seed: int, draw, counts=None) -> list[Solution]:
    """n solutions of one split, solutions_per_problem of each problem, with labels and outcomes as cfg says.
    `counts` gets policy_tokens: what they cost, 0 where the solver wrote them."""
    task = find_task(cfg.name)
    each = cfg.solutions_per_problem
    solutions, tokens = [], 0
    for p in sample_pool(cfg, -(-n // each), each, split, seed, draw):
        tokens += p.policy_tokens or 0
        for c in p.candidates[: n - len(solutions)]:
            name = f"{cfg.name}/{split}/{seed}/{len(solutions)}"
            s = labelled(task, cfg.task, p.problem, c.steps, cfg.label_kind, name, c.finished)
            if cfg.outcome == "steps" and c.finished:
                s = dataclasses.replace(s, outcome=min(task.step_labels(p.problem, c.steps)))
            solutions.append(relabel_after_error(s, cfg.after_first_error))
    if counts is not None:
        counts["policy_tokens"] = tokens
    return solutions


def labelled(task: EmbeddedTask, cfg, problem: str, steps, label_kind: str, solution_id: str, finished=True):
    """The Solution with exact labels of one kind (correctness, or value); one that was cut has no outcome."""
    if label_kind == "value":
        labels = task.values(cfg, problem, steps)
        ratings = None
    else:
        ratings = tuple(task.ratings(problem, steps))
        labels = correctness(ratings)
    return Solution(
        problem,
        tuple(steps),
        labels=tuple(labels),
        ratings=ratings,
        outcome=float(task.solved(problem, steps)) if finished else None,
        answer=task.stated_answer(steps),
        id=solution_id,
        task=task.name,
    )
