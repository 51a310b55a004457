"""An embedded task: endless problems, a solver that errs in known ways, an exact check of every step."""

import abc
import dataclasses
from collections.abc import Sequence

import numpy as np

from prm_jax.data.pools import Problem


class EmbeddedTask(abc.ABC):
    """A task; data.name=FILE.py:CLASS names one of your own (examples/countdown.py, conf/data/embedded.yaml).

    All but make_problem, solve and values read only text, so they check anybody's solutions; they raise
    InputError if a text is not a problem of the task. A problem's source names its task; it is never guessed
    from the text."""

    name: str  # in rows and results
    Config: type  # frozen dataclass of the keys of the section data.task

    @abc.abstractmethod
    def make_problem(self, cfg, rng: np.random.Generator) -> str:
        """The text of one random problem."""

    @abc.abstractmethod
    def solve(self, cfg, problem: str, rng: np.random.Generator) -> tuple[str, ...]:
        """The steps of one solution by the noisy solver."""

    @abc.abstractmethod
    def ratings(self, problem: str, steps: Sequence[str]) -> list[int]:
        """Of each step by itself, as in PRM800K: 1 right, 0 without effect, -1 wrong."""

    @abc.abstractmethod
    def values(self, cfg, problem: str, steps: Sequence[str]) -> list[float]:
        """After each step, the exact probability that the answer will be right."""

    @abc.abstractmethod
    def gold_answer(self, problem: str) -> str:
        """The right final answer."""

    @abc.abstractmethod
    def stated_answer(self, steps: Sequence[str]) -> str | None:
        """The final answer that a solution gives."""

    def solved(self, problem: str, steps: Sequence[str]) -> bool:
        """Whether that answer counts as right."""
        return self.stated_answer(steps) == self.gold_answer(problem)

    def step_labels(self, problem: str, steps: Sequence[str]) -> list[float]:
        """Correctness labels: 1 while this step and all before it are right, else 0."""
        return correctness(self.ratings(problem, steps))

    def are_right(self, problem: str, steps: Sequence[str]) -> list[float]:
        """1 for each step that by itself is not an error, else 0."""
        return [float(rating >= 0) for rating in self.ratings(problem, steps)]

    def grade(self, problem: Problem) -> Problem:
        """A pool's problem with its task, gold answer, each candidate's answer and whether it is right."""
        candidates = []
        for c in problem.candidates:
            correct = self.solved(problem.problem, c.steps)
            candidates.append(dataclasses.replace(c, answer=self.stated_answer(c.steps), correct=correct))
        gold = self.gold_answer(problem.problem)
        return dataclasses.replace(problem, answer=gold, candidates=tuple(candidates), task=self.name)


def correctness(ratings: Sequence[int]) -> list[float]:
    """1 while this step and all before it are right, 0 from the first wrong one on."""
    return np.cumprod([float(rating >= 0) for rating in ratings]).tolist()
