"""The default task: chains of arithmetic modulo a prime, by a solver with wrong beliefs.

A problem is a start value and operations to do from left to right, `4 +5 *3 max2 -2 mod7?`. A solution has a
line for each operation, `4+5=2`, or for two, `2*3max2=6`, which hides the value in between.

The solver's errors are systematic. Some facts, such as 4 * 5, are hard: there the solver is seldom right and
often writes the same wrong result, its belief. So majorities can be wrong, a model of such solutions takes
beliefs for right, and max and min, which are not injective, lead from wrong lines to right answers.
"""

import bisect
import dataclasses
import functools
import itertools
import operator
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from prm_jax import InputError
from prm_jax.launch.config import Count, Seed, Share, expect
from prm_jax.tasks.embedded import EmbeddedTask

APPLY = {"+": operator.add, "-": operator.sub, "*": operator.mul, "max": max, "min": min}
# Relative frequencies in problems. max and min are not injective, so wrong steps can lead to right answers.
FREQUENCIES = {"+": 0.3, "-": 0.2, "*": 0.25, "max": 0.125, "min": 0.125}
BOUNDS = list(itertools.accumulate(FREQUENCIES.values()))
# An operation and the one it is mistaken for; max and min have no hard facts.
CONFUSED = {"+": "-", "-": "+", "*": "+"}
P_RIGHT = 0.3  # of the right result on a hard fact
P_BELIEF = 0.45  # of the fact's wrong result; the rest is any value
NUMBER = r"\d{1,9}"  # Python refuses to read numbers of some thousand digits
OPERATION = rf"(?:[-+*]|max|min){NUMBER}"
PROBLEM = re.compile(rf"({NUMBER})((?: {OPERATION})+) mod({NUMBER})\?")
LINE = re.compile(rf"({NUMBER})((?:{OPERATION})*)=({NUMBER})")

Operations = tuple[tuple[str, int], ...]  # (operation, operand) of each


@dataclasses.dataclass(frozen=True)
class Config:
    """The task and the solver; conf/data/chain.yaml gives the defaults and their reasons."""

    modulus: Count
    min_operations: Count
    max_operations: Count
    hard: dict[str, Share]  # +, -, * -> share of its facts that are hard
    slip: Share  # P(off by one) on a fact that is not hard
    merge: Share  # P(a line does two operations), where two are left
    restate: Share  # P(a line is followed by one without effect, `9=9`)
    seed: Seed  # of the hard facts and the beliefs

    def __post_init__(self):
        low, high, prime = self.min_operations, self.max_operations, self.modulus
        expect(low <= high, "data.task.min_operations", low, f"at most max_operations ({high})")
        is_odd_prime = 2 < prime < 1000 and all(prime % n for n in range(2, prime))
        expect(is_odd_prime, "data.task.modulus", prime, "an odd prime below 1000")
        is_complete = self.hard.keys() == CONFUSED.keys()
        expect(is_complete, "data.task.hard", self.hard, f"a share for each of {', '.join(CONFUSED)}")

    def __hash__(self):  # the caches below take a Config, and its table has no hash
        return hash((self.modulus, self.slip, self.seed))


def lowest(name: str) -> int:
    """The least operand that problems use: smaller ones would have no effect."""
    return 2 if name == "*" else 1


def read_operations(text: str) -> Operations:
    """The operations of ` +5 *3 max2` or `+5*3max2`."""
    return tuple((name, int(operand)) for name, operand in re.findall(r"([-+*]|max|min)(\d+)", text))


@functools.lru_cache(1 << 12)
def parse_problem(text: str) -> tuple[int, Operations, int]:
    """(start value, operations, modulus); InputError if the text is not a problem of this task."""
    match = PROBLEM.fullmatch(text)
    numbers = [int(x) for x in re.findall(r"\d+", text)]
    if not match or max(numbers[:-1]) >= numbers[-1]:
        raise InputError(f"not a chain of arithmetic: {text[:80]!r}, expected such as '4 +5 *3 max2 mod7?'")
    return numbers[0], read_operations(match[2]), numbers[-1]


@functools.lru_cache(1 << 16)
def parse_line(text: str) -> tuple[int, Operations, int] | None:
    """(first value, operations, result) of a line such as `4+5=2`, `4+5*3=6` or `9=9`, else None."""
    match = LINE.fullmatch(text.replace(" ", "").strip())
    return match and (int(match[1]), read_operations(match[2]), int(match[3]))


def compute(value: int, operations: Operations, modulus: int) -> int:
    for name, operand in operations:
        value = APPLY[name](value, operand) % modulus
    return value


class State(NamedTuple):
    """How far a solution is after a step."""

    value: int | None  # written last; None after a step that is not a line
    done: int  # operations


def follow(problem: str, steps: Sequence[str]) -> Iterator[tuple[int, State]]:
    """Yields (rating, the state after it) of each step. A right one does the next operations on the value
    written before, with the right result; one without effect repeats that value."""
    value, operations, modulus = parse_problem(problem)
    state = State(value, 0)
    for step in steps:
        first, line, result = parse_line(step) or (None, (), None)
        goes_on = first is not None and first == state.value
        goes_on = goes_on and line == operations[state.done : state.done + len(line)]
        rating = -1
        if goes_on and result == compute(first, line, modulus):
            rating = 1 if line else 0
        if rating != 0:
            state = State(result, state.done + len(line))
        yield rating, state


@functools.cache
def fact_distributions(cfg: Config) -> dict[tuple[str, int], np.ndarray]:
    """P(result | value) of the noisy solver, [p, p], for each (operation, operand)."""
    rng = np.random.default_rng(cfg.seed)
    p = cfg.modulus
    distributions = {}
    for name, apply in APPLY.items():
        facts = list(itertools.product(range(lowest(name), p), range(p)))
        n_hard = round(cfg.hard.get(name, 0) * len(facts))  # the same number for every seed
        hard_facts = {facts[i] for i in rng.permutation(len(facts))[:n_hard]}
        for operand in range(p):
            distributions[name, operand] = np.zeros((p, p))
            for value, p_w in enumerate(distributions[name, operand]):
                right = apply(value, operand) % p
                if (operand, value) not in hard_facts:
                    p_w[right] += 1 - cfg.slip
                    p_w[[(right + 1) % p, (right - 1) % p]] += cfg.slip / 2
                    continue
                # The belief is off by one, the result of the confused operation, or any wrong value.
                any_wrong = int(right + rng.integers(1, p)) % p
                confused = APPLY[CONFUSED[name]](value, operand) % p
                other = confused if confused != right else any_wrong
                wrong = (right + 1) % p, (right - 1) % p, other, any_wrong
                p_w += (1 - P_RIGHT - P_BELIEF) / p
                p_w[right] += P_RIGHT
                p_w[wrong[rng.integers(4)]] += P_BELIEF
    return distributions


@functools.cache
def cumulative_distributions(cfg: Config) -> dict[tuple[str, int], list[list[float]]]:
    """Cumulative distributions without their last bound, so that rounding gives no result beyond it."""
    return {fact: np.cumsum(p_vw, 1)[:, :-1].tolist() for fact, p_vw in fact_distributions(cfg).items()}


def values_to_go(cfg: Config, operations: Operations, gold: int) -> list[np.ndarray]:
    """P(right answer | value v is written and k operations are left), [k][v], as products of matrices."""
    distributions = fact_distributions(cfg)
    p_kv = [np.eye(cfg.modulus)[gold]]
    for k in range(1, len(operations) + 1):
        left = operations[len(operations) - k :]
        one = distributions[left[0]]
        merged = one @ distributions[left[1]] if k > 1 else one
        p_kv.append((1 - cfg.merge) * (one @ p_kv[k - 1]) + cfg.merge * (merged @ p_kv[max(k - 2, 0)]))
    return p_kv


class Chain(EmbeddedTask):
    name = "chain"
    Config = Config

    def make_problem(self, cfg: Config, rng) -> str:
        n = rng.integers(cfg.min_operations, cfg.max_operations + 1)
        # As rng.choice with probabilities, ten times faster for single draws.
        drawn = [bisect.bisect_right(BOUNDS, rng.random() * BOUNDS[-1]) for _ in range(n)]
        names = [list(FREQUENCIES)[i] for i in drawn]
        operations = "".join(f" {name}{rng.integers(lowest(name), cfg.modulus)}" for name in names)
        return f"{rng.integers(cfg.modulus)}{operations} mod{cfg.modulus}?"

    def solve(self, cfg: Config, problem: str, rng) -> tuple[str, ...]:
        """A merged line makes the errors of both of its operations."""
        value, operations, _ = parse_problem(problem)
        cumulative = cumulative_distributions(cfg)
        done, steps = 0, []
        while done < len(operations):
            n = 2 if done + 1 < len(operations) and rng.random() < cfg.merge else 1
            line, first = operations[done : done + n], value
            for operation in line:
                value = bisect.bisect_right(cumulative[operation][value], rng.random())
            steps.append(f"{first}{''.join(f'{name}{operand}' for name, operand in line)}={value}")
            if cfg.restate and rng.random() < cfg.restate:
                steps.append(f"{value}={value}")
            done += n
        return tuple(steps)

    def ratings(self, problem: str, steps: Sequence[str]) -> list[int]:
        return [rating for rating, _ in follow(problem, steps)]

    def gold_answer(self, problem: str) -> str:
        return str(compute(*parse_problem(problem)))

    def stated_answer(self, steps: Sequence[str]) -> str | None:
        """The result of the last line."""
        line = parse_line(steps[-1])
        return line and str(line[2])

    def values(self, cfg: Config, problem: str, steps: Sequence[str]) -> list[float]:
        """Exact, since what follows depends only on the value written and the operations left."""
        _, operations, modulus = parse_problem(problem)
        expect(modulus == cfg.modulus, "data.task.modulus", cfg.modulus, f"{modulus}, as in {problem!r}")
        p_kv = values_to_go(cfg, operations, int(self.gold_answer(problem)))
        value_T = []
        is_lost = False
        for _, now in follow(problem, steps):
            left = len(operations) - now.done
            is_lost = is_lost or now.value is None
            is_hopeless = is_lost or left < 0 or now.value >= modulus
            value_T.append(0.0 if is_hopeless else float(p_kv[left][now.value]))
        return value_T


CHAIN = Chain()
