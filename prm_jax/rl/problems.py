"""What a policy learns from and is evaluated on: problems of an embedded task, or of files with their answers."""

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Literal, NamedTuple

from prm_jax import InputError, tasks
from prm_jax.data.answers import extract
from prm_jax.data.grading import Checker
from prm_jax.data.questions import read_questions
from prm_jax.data.splits import TaskData
from prm_jax.launch.config import expect
from prm_jax.rl.rollouts import Rollout

DISTINCT = 4096  # of an embedded task's to learn from; then in another order again


@dataclasses.dataclass(frozen=True)
class QuestionsConfig:
    """conf/rl.yaml says what each key means."""

    file: str | None
    held_out: str | None
    checker: Literal["task", "string", "number", "math"] | None

    @property
    def how(self) -> str:
        """How answers are compared where the task's own checker does not."""
        return "number" if self.checker in (None, "task") else self.checker

    def __post_init__(self):
        both = (self.file is None) == (self.held_out is None)
        expect(both, "questions.held_out", self.held_out, "a file beside questions.file, and only beside it")


class Problems(NamedTuple):
    train: list[str]
    held_out: list[str]
    is_right: Callable[[Rollout], bool]
    task: ModuleType | None  # whose exact checker knows their steps


def of_task(data: TaskData, n_held_out: int, seed: int) -> Problems:
    task = tasks.TASKS[data.name]
    made = lambda n, split: tasks.make_problems(task, data.task, n, split, seed)
    return Problems(made(DISTINCT, "train"), made(n_held_out, "validation"), by_task(task), task)


def of_files(cfg: QuestionsConfig, checker: Checker, n_held_out: int) -> Problems:
    """All problems of one file, and the first of the other. InputError for one without an answer, in both, or with two answers."""
    answers, splits = {}, []
    for path in (cfg.file, cfg.held_out):
        splits.append(own := {})
        for q in read_questions(path):
            expect(cfg.checker == "task" or q.answer is not None, f"{path}: answer of {q.id}", None, "the right answer")
            expect(
                q.problem not in answers or q.problem in own, f"{path}: {q.id}", q.problem[:60], "one not learned from"
            )
            if answers.setdefault(q.problem, q.answer) != q.answer:
                raise InputError(f"{path}: {q.id}: has the answer {q.answer}, but before it was {answers[q.problem]}")
            own[q.problem] = None
        expect(bool(own), path, "no problem", "at least one")
    train, held_out = map(list, splits)
    if cfg.checker == "task":
        task = tasks.task_of(train[0])
        return Problems(train, held_out[:n_held_out], by_task(task), task)
    is_right = lambda r: checker.verdict(answers[r.problem], extract("\n".join(r.steps))) == "same"
    return Problems(train, held_out[:n_held_out], is_right, None)


def by_task(task: ModuleType) -> Callable[[Rollout], bool]:
    return lambda r: task.solved(r.problem, r.steps)
