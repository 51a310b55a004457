"""The embedded tasks: endless problems, a solver that errs in known ways, and an exact check of every step.

A task is a module of this folder; TASKS names it for data.name=NAME and conf/data/NAME.yaml holds its keys. It offers

    Config                            frozen dataclass of the keys of its section `task`
    make_problem(cfg, rng)            the text of one random problem
    solve(cfg, problem, rng)          the steps of one solution by the noisy solver
    verdicts(problem, steps)          of each step by itself: "right", "neutral" (without effect) or its kind of error
    values(cfg, problem, steps)       after each step, the exact probability that the answer will be right
    gold_answer(problem)              the right final answer, a text
    stated_answer(steps)              the final answer that a solution gives, or None
    solved(problem, steps)            whether that answer counts as right
    standing(problem, steps)          after each step, whether all steps that stand are right: where steps are taken back

All but make_problem, solve and values read only text, so they check anybody's solutions; they raise InputError if a
text is not a problem of the task. The rest of the code calls the functions below, which take any task. A problem's
source names its task (data.name, or `task` in a file's rows); it is never guessed from the text.
"""

import collections
import dataclasses
import itertools
import zlib
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType

import numpy as np

from prm_jax import InputError
from prm_jax.data.edits import EDITS
from prm_jax.data.pools import Candidate, Problem
from prm_jax.data.rows import read_rows, require
from prm_jax.solutions import Solution, relabel_after_error
from prm_jax.tasks import chain, countdown

TASKS = {"chain": chain, "countdown": countdown}
# Percentiles of a hash of the problem's text, so no two splits share a problem.
SPLITS = {"test": (0, 10), "validation": (10, 15), "train": (15, 60), "base": (60, 100)}
RATINGS = {"right": 1, "neutral": 0}  # PRM800K's; any other verdict is an error, -1


def make_problems(task: ModuleType, cfg, n: int, split: str, seed: int) -> list[str]:
    """n distinct problems of one split."""
    rng, problems = np.random.default_rng([seed, *split.encode()]), {}
    low, high = SPLITS[split]
    for _ in range(1000 * n):
        if len(problems) == n:
            return list(problems)
        problem = task.make_problem(cfg, rng)
        if low <= zlib.crc32(problem.encode()) % 100 < high:
            problems[problem] = None
    hint = "ask for fewer, or for longer ones"
    raise InputError(f"data.task: has only {len(problems)} distinct {split} problems of {n}; {hint}")


def solver_pool(task: ModuleType, cfg, problems: Iterable[str], n: int, seed: int) -> Iterator[Problem]:
    """n graded solutions of each problem by the noisy solver."""
    rng = np.random.default_rng([seed, 1])
    for i, problem in enumerate(problems):
        candidates = tuple(Candidate(task.solve(cfg, problem, rng)) for _ in range(n))
        yield grade(task, Problem(str(i), problem, None, candidates))


def sample_pool(cfg, n: int, each: int, split: str, seed: int, draw) -> Iterable[Problem]:
    """n problems of one split with `each` graded solutions by solver or draw (cfg: TaskData, draw: Draw of splits)."""
    task = TASKS[cfg.name]
    problems = make_problems(task, cfg.task, n, split, seed)
    by_solver = cfg.samples == "solver"
    return solver_pool(task, cfg.task, problems, each, seed) if by_solver else draw(cfg, problems, each, seed)


def sample_solutions(cfg, n: int, split: str, seed: int, draw) -> list[Solution]:
    """n labelled solutions of one split, solutions_per_problem of each problem; arguments as of `sample_pool`."""
    task, each, solutions = TASKS[cfg.name], cfg.solutions_per_problem, []
    pool = sample_pool(cfg, -(-n // each), each, split, seed, draw)
    for i, (text, c) in enumerate(itertools.islice(((p.problem, c) for p in pool for c in p.candidates), n)):
        name = f"{cfg.name}/{split}/{seed}/{i}"
        solutions.append(labelled(task, cfg.task, text, c.steps, cfg.label_kind, name, c.finished))
    return solutions


def load_splits(cfg, seed: int, draw) -> tuple[dict[str, list[Solution]], dict[str, float]]:
    """({split: solutions}, counts). Training problems depend on the seed, the others do not, so that runs compare.
    policy_tokens: what the training samples cost, 0 where the solver wrote them."""
    splits, task, tokens = {}, TASKS[cfg.name], collections.Counter()

    def draw_counted(*args):
        for problem in draw(*args):
            tokens[side] += problem.policy_tokens or 0
            yield problem

    for side in ("train", "validation", "test"):
        sample = (cfg.solutions, cfg.train_split, seed) if side == "train" else (cfg.test_solutions, side, 0)
        solutions = sample_solutions(cfg, *sample, draw_counted)
        lucky = lucky_share(task, solutions)  # the test split's is kept
        if side == "train" and cfg.augment:
            solutions += [*edited_solutions(task, cfg, solutions, seed)]
        if cfg.outcome == "steps":
            for i, s in enumerate(solutions):
                if s.outcome is not None:
                    solutions[i] = dataclasses.replace(
                        s, outcome=float(0 not in step_labels(task, s.problem, s.steps))
                    )
        splits[side] = [relabel(task, s, cfg.after_first_error) for s in solutions]
    counts = {
        "solutions": cfg.solutions,
        "policy_tokens": tokens["train"],
        "lucky_share_of_right_answers": lucky,
    }
    return splits, counts


def relabel(task: ModuleType, s: Solution, after_first_error: str) -> Solution:
    """`relabel_after_error`, or labels of what stands after each step (`stands`), with a rating of -1 where it is wrong."""
    if after_first_error != "stands":
        return relabel_after_error(s, after_first_error)
    labels = standing_labels(task, s.problem, s.steps)
    ratings = s.ratings and tuple(r if y else -1 for r, y in zip(s.ratings, labels, strict=True))
    return dataclasses.replace(s, labels=tuple(labels), ratings=ratings)


def edited_solutions(task: ModuleType, cfg, solutions: Sequence[Solution], seed: int) -> Iterator[Solution]:
    """Yields for the share cfg.augment of the solutions a version with one edit (data/edits.py), each kind of edit as
    often, at a random place, with the checker's labels of the edited text."""
    rng, names = np.random.default_rng([seed, 2]), list(EDITS)
    for s in solutions:
        if rng.random() < cfg.augment and s.outcome is not None:
            versions = [*EDITS[names[rng.integers(len(names))]](s.steps)]
            if versions:
                steps = versions[rng.integers(len(versions))]
                yield labelled(task, cfg.task, s.problem, steps, cfg.label_kind, f"{s.id}/edited")


def labelled(
    task: ModuleType, cfg, problem: str, steps: Sequence[str], label_kind, id, finished=True
) -> Solution:
    """The solution with the exact checker's labels of one kind (correctness, or value: `values`), ratings, outcome and
    answer. One that was cut off (not `finished`) has no outcome."""
    if label_kind == "value":
        labels, ratings = task.values(cfg, problem, steps), None
    else:
        verdict_T = task.verdicts(problem, steps)
        labels, ratings = correctness(verdict_T), tuple(RATINGS.get(verdict, -1) for verdict in verdict_T)
    outcome, answer = float(task.solved(problem, steps)) if finished else None, task.stated_answer(steps)
    return Solution(problem, tuple(steps), tuple(labels), ratings, outcome, answer, id, name_of(task))


def correctness(verdicts: Sequence[str]) -> list[float]:
    """1 while this step and all before it are right, 0 from the first wrong one on."""
    return np.cumprod([float(verdict in RATINGS) for verdict in verdicts]).tolist()


def name_of(task: ModuleType) -> str:
    """The name of a task in TASKS."""
    return next(name for name, module in TASKS.items() if module is task)


def of_files(paths: Sequence[str], checker: str | None = None) -> ModuleType:
    """The task that all rows of the files name, or `checker` if that names a task and no row names another."""
    named = {str(row.get("task") or "none") for path in paths for _, row in read_rows(path)}
    if checker in TASKS:
        named = named - {"none"} | {checker}
    place, names = f"{', '.join(map(str, paths))}: " * bool(paths), ", ".join(sorted(named)) or "none"
    expected = f"one of {', '.join(TASKS)} in all rows, or checker=NAME (evaluate.py: data)"
    require(len(named) == 1 and named <= TASKS.keys(), f"{place}task", names, expected)
    return TASKS[named.pop()]


def step_labels(task: ModuleType, problem: str, steps: Sequence[str]) -> list[float]:
    """Correctness labels of anybody's solution."""
    return correctness(task.verdicts(problem, steps))


def standing_labels(task: ModuleType, problem: str, steps: Sequence[str]) -> list[float]:
    """1 after each step while all steps that then stand are right; the labels of `step_labels` where none is taken back."""
    return task.standing(problem, steps) if hasattr(task, "standing") else step_labels(task, problem, steps)


def first_wrong(task: ModuleType, problem: str, steps: Sequence[str]) -> tuple[int, str] | None:
    """(index, kind of error) of the first wrong step; None if there is none."""
    verdicts = enumerate(task.verdicts(problem, steps))
    return next(((t, verdict) for t, verdict in verdicts if verdict not in RATINGS), None)


def are_right(task: ModuleType, problem: str, steps: Sequence[str]) -> list[float]:
    """1 for each step that by itself is not an error, else 0."""
    return [float(verdict in RATINGS) for verdict in task.verdicts(problem, steps)]


def grade(task: ModuleType, problem: Problem) -> Problem:
    """A pool's problem with its task, gold answer, and each candidate's answer and whether it is right."""
    text, candidates = problem.problem, []
    for c in problem.candidates:
        answer, correct = task.stated_answer(c.steps), task.solved(text, c.steps)
        candidates.append(dataclasses.replace(c, answer=answer, correct=correct))
    gold = task.gold_answer(text)
    return dataclasses.replace(problem, answer=gold, candidates=tuple(candidates), task=name_of(task))


def lucky_share(task: ModuleType, solutions: Iterable[Solution]) -> float:
    """Share of the right answers that rest on a wrong step."""
    lucky = [standing_labels(task, s.problem, s.steps)[-1] == 0 for s in solutions if s.outcome == 1]
    return sum(lucky) / max(len(lucky), 1)
