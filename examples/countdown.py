"""Countdown, a task of your own: reach a target with all of a few numbers. It is how any task plugs in.

    python train.py data=embedded data.name=examples/countdown.py:Countdown data.label_kind=value
    python -m prm_jax.sampling input=FILE checkpoint=POLICY checker=examples/countdown.py:solved

Keys of the task: +data.task.numbers=5 and the other fields of Config. A policy of it is a run of objective=lm
on data.train_split=base data.task.error=0.1, then data.samples=policy data.policy=RUN.

A problem is sorted numbers and a target, `3,5,7,9=24?`. A line replaces two numbers by their result,
`9*3=27`; the last result must be the target. Values are 1 to 99, divisions exact. Most legal moves put the
target out of reach, so a step can be right and worthless: correctness and value differ."""

import collections
import dataclasses
import functools
import re
from collections.abc import Iterator, Sequence

from prm_jax import InputError
from prm_jax.launch.config import Count, Share, expect
from prm_jax.tasks.embedded import EmbeddedTask

LARGEST = 99  # of all values
PROBLEM = re.compile(r"([1-9][0-9]?(?:,[1-9][0-9]?){1,5})=([1-9][0-9]?)\?")
LINE = re.compile(r"([0-9]{1,4}) *([-+*/]) *([0-9]{1,4}) *= *([0-9]{1,4})")

Hand = tuple[int, ...]  # the numbers at hand, sorted


@dataclasses.dataclass(frozen=True)
class Config:
    """The task and the solver."""

    numbers: Count = 4  # how many; 5 need data.max_tokens=90 batch.tokens=96
    max_number: Count = 10
    min_target: Count = 10
    max_target: Count = 40
    error: Share = 0.3  # share of moves drawn from all legal ones, also those that lose the target
    slip: Share = 0.02  # share of lines whose result is off by one

    def __post_init__(self):
        expect(2 <= self.numbers <= 6, "data.task.numbers", self.numbers, "2 to 6")


def results(first: int, second: int) -> dict[str, int]:
    """{operation: its result} of the legal ones."""
    found = {"+": first + second, "-": first - second, "*": first * second}
    if second and first % second == 0:
        found["/"] = first // second
    return {operation: x for operation, x in found.items() if 1 <= x <= LARGEST}


@functools.lru_cache(1 << 16)
def moves(hand: Hand) -> dict[str, Hand]:
    """{line: the numbers at hand after it} of all legal moves, `9*3=27`, the larger number first."""
    found = {}
    for i, first in enumerate(hand):
        for j, second in enumerate(hand[:i]):
            others = hand[:j] + hand[j + 1 : i] + hand[i + 1 :]
            for operation, result in results(first, second).items():
                found[f"{first}{operation}{second}={result}"] = tuple(sorted((*others, result)))
    return found


@functools.lru_cache(1 << 18)
def reaches(hand: Hand, target: int) -> bool:
    """Whether exact play can end with the target."""
    if len(hand) == 1:
        return hand[0] == target
    return any(reaches(left, target) for left in set(moves(hand).values()))


@functools.lru_cache(1 << 12)
def parse_problem(text: str) -> tuple[Hand, int]:
    """(numbers, target); InputError if the text is not a problem of this task."""
    match = PROBLEM.fullmatch(text)
    hand = tuple(map(int, match[1].split(","))) if match else ()
    is_sorted = match and list(hand) == sorted(hand)
    expect(is_sorted, "problem", text, "sorted numbers and a target such as '3,5,7,9=24?'")
    return hand, int(match[2])


def follow(problem: str, steps: Sequence[str]) -> Iterator[tuple[bool, Hand]]:
    """Yields (whether it is right, the numbers at hand after it) of each line, given what the lines before
    wrote. Numbers that a line uses without having them are ignored, and so is a text that is no line."""
    hand, _ = parse_problem(problem)
    for step in steps:
        is_right = False
        if line := LINE.fullmatch(step.strip()):
            first, second, result = int(line[1]), int(line[3]), int(line[4])
            left = collections.Counter(hand) - collections.Counter([first, second])
            has_both = left.total() == len(hand) - 2
            is_right = has_both and results(first, second).get(line[2]) == result
            hand = tuple(sorted((*left.elements(), result)))
        yield is_right, hand


class Countdown(EmbeddedTask):
    Config = Config

    def make_problem(self, cfg: Config, rng) -> str:
        """Draws numbers and a target until the target is in reach and not among the numbers."""
        for _ in range(10_000):
            hand = tuple(sorted(rng.integers(1, cfg.max_number + 1, cfg.numbers).tolist()))
            target = int(rng.integers(cfg.min_target, cfg.max_target + 1))
            if target not in hand and reaches(hand, target):
                return f"{','.join(map(str, hand))}={target}?"
        raise InputError("data.task: none of 10000 problems drawn can be solved")

    def solve(self, cfg: Config, problem: str, rng) -> tuple[str, ...]:
        """The lines of one solution by the noisy solver, which continues from what it wrote, wrong or not."""
        hand, target = parse_problem(problem)
        steps = []
        while len(hand) > 1:
            good = [line for line, left in moves(hand).items() if reaches(left, target)]
            choices = good if good and rng.random() >= cfg.error else list(moves(hand))
            line = choices[rng.integers(len(choices))]
            if rng.random() < cfg.slip:
                text, result = line.split("=")
                off_by_one = [x for x in (int(result) - 1, int(result) + 1) if 1 <= x <= LARGEST]
                line = f"{text}={off_by_one[rng.integers(len(off_by_one))]}"
            steps.append(line)
            *_, (_, hand) = follow(problem, steps)
        return tuple(steps)

    def ratings(self, problem: str, steps: Sequence[str]) -> list[int]:
        return [1 if is_right else -1 for is_right, _ in follow(problem, steps)]

    def values(self, cfg: Config, problem: str, steps: Sequence[str]) -> list[float]:
        """V* after each line: 1 while no line is wrong and exact play still reaches the target, else 0."""
        _, target = parse_problem(problem)
        value_T, sound = [], True
        for is_right, hand in follow(problem, steps):
            sound = sound and is_right
            value_T.append(float(sound and reaches(hand, target)))
        return value_T

    def gold_answer(self, problem: str) -> str:
        return str(parse_problem(problem)[1])

    def stated_answer(self, steps: Sequence[str]) -> str | None:
        """The result of the last line."""
        line = LINE.fullmatch(steps[-1].strip())
        return line and str(int(line[4]))

    def solved(self, problem: str, steps: Sequence[str]) -> bool:
        """Whether right lines alone use up all numbers and end with the target."""
        _, target = parse_problem(problem)
        judged = list(follow(problem, steps))
        return bool(judged) and all(is_right for is_right, _ in judged) and judged[-1][1] == (target,)


def solved(problem: str, steps: Sequence[str], answer) -> bool:
    return Countdown().solved(problem, steps)
