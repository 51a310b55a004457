"""Chains of arithmetic modulo a prime by a solver with wrong convictions: the default task.

A problem is a start value and operations to do from left to right, `4 +5 *3 max2 -2 mod7?`. A solution has a line for each
operation, `4+5=2`, or one for two of them, `2*3max2=6`, whose value in between is not written: hidden work. A line goes
on from the value that the line before wrote.

The solver's errors are systematic. A fact, such as 4 * 5, is hard with a probability; on a hard one the solver is seldom right
and often writes one wrong result of its own, its belief, every time. So majorities can be wrong, a model of such
solutions takes beliefs for right, and max and min, which are not injective, bring right answers by wrong lines.
"""

import bisect
import dataclasses
import functools
import itertools
import operator
import re
from collections.abc import Sequence

import numpy as np

from prm_jax import InputError
from prm_jax.launch.config import Count, NotNegative, Seed, Share, expect

APPLY = {"+": operator.add, "-": operator.sub, "*": operator.mul, "max": max, "min": min}
CONFUSED = {"+": "-", "-": "+", "*": "+"}  # what a hard operation is mistaken for; max and min have no hard facts
OPERATION = r"(?:[-+*]|max|min)\d+"
PROBLEM = re.compile(rf"(\d+)((?: {OPERATION})+) mod(\d+)\?")
LINE = re.compile(rf"(\d+)((?:{OPERATION})*)=(\d+)")

Operations = tuple[tuple[str, int], ...]  # (operation, operand) of each


@dataclasses.dataclass(frozen=True)
class Config:
    """The task and the solver; conf/data/chain.yaml gives the defaults and their reasons."""

    modulus: Count
    min_operations: Count
    max_operations: Count
    operations: dict[str, NotNegative]  # +, -, *, max, min -> relative frequency in problems
    hard: dict[str, Share]  # +, -, * -> share of its facts that are hard
    hard_right: Share  # probability of the right result on a hard fact
    belief: Share  # probability of the fact's own wrong result; else any value, all equally likely
    slip: Share  # probability that the solver is off by one on a fact that is not hard
    merge: Share  # probability that a line does two operations, where two are left
    restate: Share  # probability that a line `9=9`, which does nothing, follows a line
    seed: Seed  # of the facts that are hard, and of the beliefs

    def __post_init__(self):
        low, high, prime = self.min_operations, self.max_operations, self.modulus
        expect(low <= high, "data.task.min_operations", low, f"at most max_operations ({high})")
        is_prime = prime > 2 and all(prime % n for n in range(2, prime))
        expect(is_prime, "data.task.modulus", prime, "an odd prime: else a verifier learns the factors and stops there")
        expect(self.hard_right + self.belief <= 1, "data.task.belief", self.belief, "at most 1 - hard_right")
        for name, given, kinds in (("operations", self.operations, APPLY), ("hard", self.hard, CONFUSED)):
            expect(set(given) == set(kinds), f"data.task.{name}", given, f"a number for each of {', '.join(kinds)}")
        expect(sum(self.operations.values()) > 0, "data.task.operations", self.operations, "not all 0")


def operands(name: str, modulus: int) -> range:
    """Those in problems; the one no-op among them is min with modulus - 1."""
    return range(2 if name == "*" else 1, modulus)


def make_problem(cfg: Config, rng) -> str:
    names = [draw(cfg.operations, rng) for _ in range(rng.integers(cfg.min_operations, cfg.max_operations + 1))]
    asked = "".join(f" {name}{rng.choice(operands(name, cfg.modulus))}" for name in names)
    return f"{rng.integers(cfg.modulus)}{asked} mod{cfg.modulus}?"


def draw(frequencies: dict[str, float], rng) -> str:
    """One name, each with its share: `rng.choice` with probabilities, ten times faster for single draws."""
    bounds = list(itertools.accumulate(frequencies.values()))
    return list(frequencies)[bisect.bisect_right(bounds, rng.random() * bounds[-1])]


def pairs(text: str) -> Operations:
    """The operations of ` +5 *3 max2` or `+5*3max2`."""
    return tuple((name, int(operand)) for name, operand in re.findall(r"([-+*]|max|min)(\d+)", text))


@functools.lru_cache(1 << 12)
def parse_problem(text: str) -> tuple[int, Operations, int]:
    """(start value, operations, modulus); InputError on a text that is no problem of this task."""
    found = PROBLEM.fullmatch(text)
    numbers = [int(x) for x in re.findall(r"\d+", text)] if found else [0]
    if max(numbers[:-1], default=0) >= numbers[-1]:
        raise InputError(f"not a chain of arithmetic: {text[:80]!r}, expected such as '4 +5 *3 max2 -2 mod7?'")
    return numbers[0], pairs(found[2]), numbers[-1]


@functools.lru_cache(1 << 16)
def parse_line(text: str) -> tuple[int, Operations, int] | None:
    """(first value, operations, result) of a line such as `4+5=2`, `4+5*3=6` or `9=9`; None if it is no such line."""
    found = LINE.fullmatch(text.replace(" ", "").strip())
    return found and (int(found[1]), pairs(found[2]), int(found[3]))


def compute(value: int, operations: Operations, modulus: int) -> int:
    for name, operand in operations:
        value = APPLY[name](value, operand) % modulus
    return value


def verdicts(problem: str, steps: Sequence[str]) -> list[str]:
    """Of each line by itself: "right" if it goes on from the value written before, does the problem's next operations and has
    their result; "neutral" if it repeats that value; else its error: "form" if something else than the result is wrong,
    "merged" for a wrong result of several operations, or the operation whose result is wrong."""
    value, operations, modulus = parse_problem(problem)
    done, found = 0, []
    for step in steps:
        first, own, result = parse_line(step) or (None, (), None)
        if first is None or first != value or own != operations[done : done + len(own)]:
            found.append("form")
        elif result == compute(first, own, modulus):
            found.append("right" if own else "neutral")
        else:
            found.append("form" if not own else "merged" if len(own) > 1 else own[0][0])
        value, done = result, done + len(own)
    return found


def written_out(problem: str, steps: Sequence[str]) -> list[list[str]]:
    """Of each line the right lines for its operations, one an operation: of a merged line what it hides. A line that is none is
    taken for the problem's next operation."""
    value, operations, modulus = parse_problem(problem)
    done, found = 0, []
    for step in steps:
        _, own, result = parse_line(step) or (None, operations[done : done + 1], value)
        lines, at = [], value
        for operation in operations[done : done + len(own)]:
            after = compute(at, (operation,), modulus)
            lines.append(f"{at}{operation[0]}{operation[1]}={after}")
            at = after
        found.append(lines)
        value, done = result, done + len(own)
    return found


def answer(problem: str) -> str:
    return str(compute(*parse_problem(problem)))


def stated(steps: Sequence[str]) -> str | None:
    """The result of the last line."""
    line = parse_line(steps[-1])
    return line and str(line[2])


def solved(problem: str, steps: Sequence[str]) -> bool:
    return stated(steps) == answer(problem)


def fact_laws(cfg: Config) -> dict[tuple[str, int], np.ndarray]:
    """P(result | value) of the noisy solver, [p, p], for each (operation, operand)."""
    return _fact_laws(*law_keys(cfg))


def law_keys(cfg: Config) -> tuple:
    """What the solver's laws depend on."""
    return cfg.modulus, tuple(cfg.hard.items()), cfg.hard_right, cfg.belief, cfg.slip, cfg.seed


@functools.cache
def _fact_laws(p: int, hard: tuple, hard_right: float, belief: float, slip: float, seed: int):
    rng, laws, hard = np.random.default_rng(seed), {}, dict(hard)
    for name, apply in APPLY.items():
        drawn = list(itertools.product(operands(name, p), range(p)))
        chosen = rng.permutation(len(drawn))[: round(hard.get(name, 0) * len(drawn))]  # so many for every seed
        hard_facts = {drawn[i] for i in chosen}
        for operand in range(p):
            law_vw = laws[name, operand] = np.zeros((p, p))
            for value, law_w in enumerate(law_vw):
                right = apply(value, operand) % p
                if (operand, value) not in hard_facts:
                    law_w[right] += 1 - slip
                    law_w[[(right + 1) % p, (right - 1) % p]] += slip / 2
                    continue
                # The belief is off by one either way, or the other operation done well, or anything; never right.
                any_wrong = int(right + rng.integers(1, p)) % p
                other = APPLY[CONFUSED[name]](value, operand) % p
                wrong = (right + 1) % p, (right - 1) % p, other if other != right else any_wrong, any_wrong
                law_w += (1 - hard_right - belief) / p
                law_w[right] += hard_right
                law_w[wrong[rng.integers(4)]] += belief
    return laws


def solve(cfg: Config, problem: str, rng) -> tuple[str, ...]:
    """The lines of one solution by the noisy solver. A merged line makes the errors of both of its operations."""
    value, operations, _ = parse_problem(problem)
    laws, done, steps = _bounds(*law_keys(cfg)), 0, []
    while done < len(operations):
        own = operations[done : done + 1 + (done + 1 < len(operations) and rng.random() < cfg.merge)]
        first, done = value, done + len(own)
        for operation in own:
            value = bisect.bisect_right(laws[operation][value], rng.random())
        steps.append(f"{first}{''.join(f'{name}{operand}' for name, operand in own)}={value}")
        if cfg.restate and rng.random() < cfg.restate:
            steps.append(f"{value}={value}")
    return tuple(steps)


@functools.cache
def _bounds(*keys) -> dict[tuple[str, int], list[list[float]]]:
    """Cumulated laws, the last bound left out, so that rounding cannot give a result beyond it."""
    return {fact: np.cumsum(law_vw, 1)[:, :-1].tolist() for fact, law_vw in _fact_laws(*keys).items()}


def values(cfg: Config, problem: str, steps: Sequence[str]) -> list[float]:
    """P(final answer right) after each step when the noisy solver of `cfg` goes on; 0 after a line that is none.

    Exact: what follows depends on the value written and the operations left, so the chance is a sum of products of matrices.
    """
    _, operations, modulus = parse_problem(problem)
    expect(modulus == cfg.modulus, "data.task.modulus", cfg.modulus, f"{modulus}, as in {problem!r}")
    laws = fact_laws(cfg)
    chance = [np.eye(modulus)[int(answer(problem))]]  # chance[k][v]: value v is written and k operations are left
    for k in range(1, len(operations) + 1):
        first, *second = operations[len(operations) - k :][:2]
        one = laws[first] @ chance[k - 1]
        two = laws[first] @ laws[second[0]] @ chance[k - 2] if second else one
        chance.append((1 - cfg.merge) * one + cfg.merge * two)
    found, left = [], len(operations)
    for line in map(parse_line, steps):
        left = left - len(line[1]) if line else -1  # after such a line nothing goes on
        found.append(float(chance[left][line[2]]) if left >= 0 and line[2] < modulus else 0.0)
    return found
