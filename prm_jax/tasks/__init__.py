"""The embedded tasks by name, and the problems, pools and labelled solutions that are drawn from one."""

import collections
import dataclasses
import functools
import itertools
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
from prm_jax.tasks.embedded import RATINGS, EmbeddedTask, correctness

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
    place = ": ".join([*map(str, paths), "task"])
    is_one = len(named) == 1 and named <= TASKS.keys() | {name}
    expect(is_one, place, sorted(named), f"one of {', '.join(TASKS)} in all rows, or checker=NAME")
    return find_task(named.pop())


def make_problems(task: EmbeddedTask, cfg, n: int, split: str, seed: int) -> list[str]:
    """n distinct problems of one split."""
    rng, problems = np.random.default_rng([seed, *split.encode()]), {}
    low, high = SPLITS[split]
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


def sample_solutions(cfg, n: int, split: str, seed: int, draw) -> list[Solution]:
    """n labelled solutions of one split, solutions_per_problem of each problem, as of `sample_pool`."""
    task, each = find_task(cfg.name), cfg.solutions_per_problem
    pool = sample_pool(cfg, -(-n // each), each, split, seed, draw)
    drawn = itertools.islice(((p.problem, c) for p in pool for c in p.candidates), n)
    solutions = []
    for i, (problem, c) in enumerate(drawn):
        solution_id = f"{cfg.name}/{split}/{seed}/{i}"
        solutions.append(labelled(task, cfg.task, problem, c.steps, cfg.label_kind, solution_id, c.finished))
    return solutions


def load_splits(cfg, seed: int, draw) -> tuple[dict[str, list[Solution]], dict[str, float]]:
    """({split: solutions}, counts). Training problems depend on the seed, the others do not, so that runs
    compare. policy_tokens: what the training samples cost, 0 where the solver wrote them."""
    task, splits, tokens = find_task(cfg.name), {}, collections.Counter()

    def draw_counted(*args):
        for problem in draw(*args):
            tokens[side] += problem.policy_tokens or 0
            yield problem

    for side in ("train", "validation", "test"):
        sample = (cfg.solutions, cfg.train_split, seed) if side == "train" else (cfg.test_solutions, side, 0)
        solutions = sample_solutions(cfg, *sample, draw_counted)
        lucky = lucky_share(task, solutions)  # the test split's is kept
        if cfg.outcome == "steps":  # 1 only if all steps are right; a solution that was cut off has none
            strict = [min(task.step_labels(s.problem, s.steps)) for s in solutions]
            pairs = zip(solutions, strict, strict=True)
            solutions = [s if s.outcome is None else dataclasses.replace(s, outcome=y) for s, y in pairs]
        splits[side] = [relabel_after_error(s, cfg.after_first_error) for s in solutions]
    counts = {"solutions": cfg.solutions, "policy_tokens": tokens["train"]}
    return splits, counts | {"lucky_share_of_right_answers": lucky}


def labelled(task: EmbeddedTask, cfg, problem: str, steps, label_kind: str, solution_id: str, finished=True):
    """The Solution with the exact checker's labels of one kind (correctness, or value), ratings, outcome and
    answer. One that was cut off (not `finished`) has no outcome."""
    if label_kind == "value":
        labels, ratings = task.values(cfg, problem, steps), None
    else:
        verdicts = task.verdicts(problem, steps)
        labels, ratings = correctness(verdicts), tuple(RATINGS.get(verdict, -1) for verdict in verdicts)
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


def lucky_share(task: EmbeddedTask, solutions: Iterable[Solution]) -> float:
    """Share of the right answers that rest on a wrong step."""
    lucky = [task.step_labels(s.problem, s.steps)[-1] == 0 for s in solutions if s.outcome == 1]
    return sum(lucky) / max(len(lucky), 1)
