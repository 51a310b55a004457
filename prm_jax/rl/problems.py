"""What a policy learns from and is evaluated on: problems of an embedded task, of files with their answers, or steps to judge."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Annotated, NamedTuple

import numpy as np

from prm_jax import InputError, tasks
from prm_jax.data.critiques import prompt_text, verdict_at
from prm_jax.data.formats import read_format
from prm_jax.data.grading import RULES, Checker, extract
from prm_jax.data.questions import read_questions
from prm_jax.data.solutions import Solution
from prm_jax.data.splits import TaskData, load_splits
from prm_jax.generate.samples import policy_pool
from prm_jax.launch.config import expect, one_of
from prm_jax.rl.rollouts import Rollout

DISTINCT = 4096  # of an embedded task's to learn from; then in another order again


@dataclasses.dataclass(frozen=True)
class QuestionsConfig:
    """conf/rl.yaml says what each key means."""

    file: str | None
    held_out: str | None
    checker: Annotated[str, one_of(tasks.CHECKERS)] | None
    critic: str | None = None

    @property
    def how(self) -> str:
        """How answers are compared where the task's own checker does not."""
        return self.checker if self.checker in RULES else "number"

    def __post_init__(self):
        both = (self.file is None) == (self.held_out is None)
        expect(both, "questions.held_out", self.held_out, "a file beside questions.file, and only beside it")
        expect(not self.critic or not self.file, "questions.file", self.file, "null: a critic learns from data")


class Problems(NamedTuple):
    train: list[str]
    held_out: list[str]
    is_right: Callable[[Rollout], bool]
    task: ModuleType | None  # whose exact checker knows their steps
    verdict: Callable[[Rollout], bool | None] | None = None  # a critic's: does it say good; None: it says nothing

    def watch(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Of a critic the shares that say good (right: half) and that come to no verdict."""
        said = [self.verdict(r) for r in rollouts] if self.verdict else []
        return {"says_good": said.count(True) / len(said), "no_verdict": said.count(None) / len(said)} if said else {}


def of_task(data: TaskData, n_held_out: int, seed: int) -> Problems:
    task = tasks.TASKS[data.name]
    made = lambda n, split: tasks.make_problems(task, data.task, n, split, seed)
    return Problems(made(DISTINCT, "train"), made(n_held_out, "validation"), by_task(task), task)


def of_files(cfg: QuestionsConfig, checker: Checker, n_held_out: int) -> Problems:
    """All problems of one file, and the first of the other. InputError for one without an answer, in both, or with two answers."""
    answers, splits, by_exact = {}, [], cfg.checker in ("task", *tasks.TASKS)
    for path in (cfg.file, cfg.held_out):
        splits.append(own := {})
        for q in read_questions(path):
            expect(by_exact or q.answer is not None, f"{path}: answer of {q.id}", None, "the right answer")
            expect(
                q.problem not in answers or q.problem in own, f"{path}: {q.id}", q.problem[:60], "one not learned from"
            )
            if answers.setdefault(q.problem, q.answer) != q.answer:
                raise InputError(f"{path}: {q.id}: has the answer {q.answer}, but before it was {answers[q.problem]}")
            own[q.problem] = None
        expect(bool(own), path, "no problem", "at least one")
    train, held_out = map(list, splits)
    if by_exact:
        task = tasks.of_files((cfg.file, cfg.held_out), cfg.checker)
        return Problems(train, held_out[:n_held_out], by_task(task), task)
    is_right = lambda r: checker.verdict(answers[r.problem], extract("\n".join(r.steps))) == "same"
    return Problems(train, held_out[:n_held_out], is_right, None)


def of_critic(data: TaskData, name: str, n_held_out: int, seed: int) -> Problems:
    """What a critic of format `name` is asked of each labelled step of the task's solutions; right: its verdict is the label.

    As StepWiser (arXiv 2508.19229, section 3.3): right and wrong steps are equally many, what is too many is left out by chance.
    """
    fmt, splits, labels = read_format(name), load_splits(data, seed, policy_pool).splits, {}
    writes = fmt.critic and fmt.critic.ask is None and fmt.critic.next is None
    expect(writes, "questions.critic", name, "a critic that writes its verdict and is asked each step anew: lab_critic")

    def balanced(solutions: Iterable[Solution], rng) -> list[str]:
        steps = [(s, t, y >= 0.5) for s in solutions for t, y in enumerate(s.labels) if y is not None]
        own = {prompt_text(fmt, None, s.problem, s.steps[: t + 1]): good for s, t, good in steps}
        labels.update(own)
        good, bad = ([text for text in own if own[text] is side] for side in (True, False))
        n = min(len(good), len(bad))
        print(f"steps       {len(good):,} right and {len(bad):,} wrong ones to judge, {n:,} of each kept")
        expect(n, "data.solutions", f"{len(good)} right, {len(bad)} wrong steps", "some of each")
        pick = lambda texts: [texts[i] for i in rng.permutation(len(texts))[:n]]
        return [text for pair in zip(pick(good), pick(bad), strict=True) for text in pair]

    def verdict(r: Rollout) -> bool | None:
        at = verdict_at(fmt, text := "\n".join(r.steps))
        return None if at is None else text.startswith(fmt.good, at)

    train, held_out = (balanced(splits[side], np.random.default_rng(seed)) for side in ("train", "validation"))
    is_right = lambda r: verdict(r) is labels[r.problem]
    return Problems(train, held_out[:n_held_out], is_right, None, verdict)


def by_task(task: ModuleType) -> Callable[[Rollout], bool]:
    return lambda r: task.solved(r.problem, r.steps)
