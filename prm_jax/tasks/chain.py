"""The default task: chains of arithmetic modulo a prime, by a solver with wrong beliefs.

A problem is a start value and operations to do from left to right, `4 +5 *3 max2 -2 mod7?`. A solution has a
line for each operation, `4+5=2`, or for two, `2*3max2=6`, which hides the value in between. It starts from
the value before.

The solver's errors are systematic. Some facts, such as 4 * 5, are hard: there the solver is seldom right and
often writes the same wrong result, its belief. So majorities can be wrong, a model of such solutions takes
beliefs for right, and max and min, which are not injective, lead from wrong lines to right answers.

A line `back 4` takes back the last line that stands (with the lines without effect after it) and restates the
value before it; the next line does the operations from there again. What was taken back stands no more. A
second `back` takes back the line before. One with another value, or where no line stands, is an error that
stands itself.
"""

import bisect
import dataclasses
import functools
import itertools
import operator
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from prm_jax import InputError
from prm_jax.launch.config import Count, NotNegative, Seed, Share, expect
from prm_jax.tasks.embedded import EmbeddedTask

APPLY = {"+": operator.add, "-": operator.sub, "*": operator.mul, "max": max, "min": min}
# An operation and the one it is mistaken for; max and min have no hard facts.
CONFUSED = {"+": "-", "-": "+", "*": "+"}
NUMBER = r"\d{1,9}"  # Python refuses to read numbers of some thousand digits
OPERATION = rf"(?:[-+*]|max|min){NUMBER}"
PROBLEM = re.compile(rf"({NUMBER})((?: {OPERATION})+) mod({NUMBER})\?")
LINE = re.compile(rf"({NUMBER})((?:{OPERATION})*)=({NUMBER})")
BACK = re.compile(rf"\s*back ({NUMBER})\s*")

Operations = tuple[tuple[str, int], ...]  # (operation, operand) of each


@dataclasses.dataclass(frozen=True)
class Config:
    """The task and the solver; conf/data/chain.yaml gives the defaults and their reasons."""

    modulus: Count
    min_operations: Count
    max_operations: Count
    operations: dict[str, NotNegative]  # +, -, *, max, min -> relative frequency in problems
    hard: dict[str, Share]  # +, -, * -> share of its facts that are hard
    hard_right: Share  # P(right result) on a hard fact
    belief: Share  # P(the fact's belief); the rest is uniform over all values
    slip: Share  # P(off by one) on a fact that is not hard
    merge: Share  # P(a line does two operations), where two are left
    restate: Share  # P(a line is followed by one without effect, `9=9`)
    seed: Seed  # of the hard facts and the beliefs
    # Configs of older runs lack the keys below. A line that follows one that was taken back stays.
    retract: Share = 0.0  # P(a wrong line is taken back)
    doubt: Share = 0.0  # P(a right line is taken back)

    def __post_init__(self):
        low, high, prime = self.min_operations, self.max_operations, self.modulus
        expect(low <= high, "data.task.min_operations", low, f"at most max_operations ({high})")
        is_prime = 2 < prime < 1000 and all(prime % n for n in range(2, prime))
        expect(
            is_prime,
            "data.task.modulus",
            prime,
            "an odd prime below 1000: else a verifier learns its factors",
        )
        expect(self.hard_right + self.belief <= 1, "data.task.belief", self.belief, "at most 1 - hard_right")
        for name, table, kinds in (("operations", self.operations, APPLY), ("hard", self.hard, CONFUSED)):
            is_complete = set(table) == set(kinds)
            expect(is_complete, f"data.task.{name}", table, f"a number for each of {', '.join(kinds)}")

    def __hash__(self):  # the caches below take a Config, and its tables have no hash
        return hash((self.modulus, self.hard_right, self.belief, self.slip, self.seed))


def lowest(name: str) -> int:
    """The least operand that problems use, of those below the modulus; only min with modulus - 1 has no
    effect."""
    return 2 if name == "*" else 1


def read_operations(text: str) -> Operations:
    """The operations of ` +5 *3 max2` or `+5*3max2`."""
    return tuple((name, int(operand)) for name, operand in re.findall(r"([-+*]|max|min)(\d+)", text))


@functools.lru_cache(1 << 12)
def parse_problem(text: str) -> tuple[int, Operations, int]:
    """(start value, operations, modulus); InputError if the text is not a problem of this task."""
    match = PROBLEM.fullmatch(text)
    numbers = [int(x) for x in re.findall(r"\d+", text)] if match else [0]
    if max(numbers[:-1], default=0) >= numbers[-1]:
        raise InputError(
            f"not a chain of arithmetic: {text[:80]!r}, expected such as '4 +5 *3 max2 -2 mod7?'"
        )
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
    """What stands after a line."""

    value: int | None  # written last; None after a step that is not a line
    done: int  # operations
    right: bool  # whether all lines that stand are
    lost: bool = False  # whether a step that is not a line stands


def follow(problem: str, steps: Sequence[str]) -> list[tuple[str, State]]:
    """(verdict as of `Chain.verdicts`, what stands after it) of each line."""
    value, operations, modulus = parse_problem(problem)
    stack = [State(value, 0, True)]  # one before each line that stands, and the last
    followed = []
    for step in steps:
        value, done, right, lost = stack[-1]
        if back := BACK.fullmatch(step):
            before = stack[-2] if len(stack) > 1 else None
            if before and before.value == int(back[1]):
                verdict = "neutral"
                stack.pop()
            else:
                verdict = "form"
                stack.append((before or stack[-1])._replace(value=int(back[1]), right=False))
        else:
            first, line, result = parse_line(step) or (None, (), None)
            verdict = judge_line(first, line, result, value, operations[done:], modulus)
            if verdict != "neutral":
                is_right = right and verdict == "right"
                stack.append(State(result, done + len(line), is_right, lost or result is None))
        followed.append((verdict, stack[-1]))
    return followed


def judge_line(first, line: Operations, result, value, left: Operations, modulus: int) -> str:
    """The verdict on a line `first line=result` after `value`, with the operations `left` to do."""
    if first is None or first != value or line != left[: len(line)]:
        return "form"
    if result == compute(first, line, modulus):
        return "right" if line else "neutral"
    if len(line) > 1:
        return "merged"
    return line[0][0] if line else "form"


@functools.cache
def fact_distributions(cfg: Config) -> dict[tuple[str, int], np.ndarray]:
    """P(result | value) of the noisy solver, [p, p], for each (operation, operand)."""
    rng, distributions, p = np.random.default_rng(cfg.seed), {}, cfg.modulus
    for name, apply in APPLY.items():
        facts = list(itertools.product(range(lowest(name), p), range(p)))
        n_hard = round(cfg.hard.get(name, 0) * len(facts))  # the same number for every seed
        hard_facts = {facts[i] for i in rng.permutation(len(facts))[:n_hard]}
        for operand in range(p):
            p_vw = distributions[name, operand] = np.zeros((p, p))
            for value, p_w in enumerate(p_vw):
                right = apply(value, operand) % p
                if (operand, value) not in hard_facts:
                    p_w[right] += 1 - cfg.slip
                    p_w[[(right + 1) % p, (right - 1) % p]] += cfg.slip / 2
                    continue
                # The belief is off by one either way, the result of the confused operation, or any wrong
                # value.
                any_wrong = int(right + rng.integers(1, p)) % p
                confused = APPLY[CONFUSED[name]](value, operand) % p
                other = confused if confused != right else any_wrong
                wrong = (right + 1) % p, (right - 1) % p, other, any_wrong
                p_w += (1 - cfg.hard_right - cfg.belief) / p
                p_w[right] += cfg.hard_right
                p_w[wrong[rng.integers(4)]] += cfg.belief
    return distributions


@functools.cache
def cumulative_distributions(cfg: Config) -> dict[tuple[str, int], list[list[float]]]:
    """Cumulative distributions without their last bound, so that rounding gives no result beyond it."""
    return {fact: np.cumsum(p_vw, 1)[:, :-1].tolist() for fact, p_vw in fact_distributions(cfg).items()}


def values_to_go(cfg: Config, operations: Operations, gold: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """P(right answer | value v is written and k operations are left), [k][v], as products of matrices: where
    the next line may be taken back, and where it stays."""
    distributions, modulus = fact_distributions(cfg), cfg.modulus
    free_kv = [np.eye(modulus)[gold]]
    stays_kv = [free_kv[0]]
    for k in range(1, len(operations) + 1):
        left = operations[len(operations) - k :]
        one = distributions[left[0]]
        two = one @ distributions[left[1]] if k > 1 else one
        lines = (1 - cfg.merge, one, 1), (cfg.merge, two, min(k, 2))
        stays_v = sum(p * (p_vw @ free_kv[k - n]) for p, p_vw, n in lines)
        free_v = stays_v
        for p, p_vw, n in lines if cfg.retract or cfg.doubt else ():
            right_v = [compute(v, left[:n], modulus) for v in range(modulus)]
            back_vw = p_vw * np.where(np.eye(modulus)[right_v], cfg.doubt, cfg.retract)
            free_v = free_v + p * (back_vw.sum(1) * stays_v - back_vw @ free_kv[k - n])
        free_kv.append(free_v)
        stays_kv.append(stays_v)
    return free_kv, stays_kv


class Chain(EmbeddedTask):
    name, Config = "chain", Config

    def make_problem(self, cfg: Config, rng) -> str:
        # As rng.choice with probabilities, ten times faster for single draws.
        bounds = list(itertools.accumulate(cfg.operations.values()))
        n = rng.integers(cfg.min_operations, cfg.max_operations + 1)
        drawn = [bisect.bisect_right(bounds, rng.random() * bounds[-1]) for _ in range(n)]
        names = [list(cfg.operations)[i] for i in drawn]
        operations = "".join(f" {name}{rng.integers(lowest(name), cfg.modulus)}" for name in names)
        return f"{rng.integers(cfg.modulus)}{operations} mod{cfg.modulus}?"

    def solve(self, cfg: Config, problem: str, rng) -> tuple[str, ...]:
        """A merged line makes the errors of both of its operations. A line may be taken back at once; the one
        after that stays, so that a solution ends."""
        value, operations, modulus = parse_problem(problem)
        cumulative, done, steps, stays = cumulative_distributions(cfg), 0, [], False
        while done < len(operations):
            n = 2 if done + 1 < len(operations) and rng.random() < cfg.merge else 1
            line, first = operations[done : done + n], value
            for operation in line:
                value = bisect.bisect_right(cumulative[operation][value], rng.random())
            steps.append(f"{first}{''.join(f'{name}{operand}' for name, operand in line)}={value}")
            taken_back = cfg.doubt if value == compute(first, line, modulus) else cfg.retract
            if taken_back and not stays and rng.random() < taken_back:
                steps.append(f"back {first}")
                value, stays = first, True
                continue
            done, stays = done + n, False
            if cfg.restate and rng.random() < cfg.restate:
                steps.append(f"{value}={value}")
        return tuple(steps)

    def verdicts(self, problem: str, steps: Sequence[str]) -> list[str]:
        """Right: it does the next operations on the value written before, with the right result; neutral:
        it repeats that value, or takes a line back. Errors: "merged", a wrong result of several operations;
        the operation with a wrong result; "form", the rest."""
        return [verdict for verdict, _ in follow(problem, steps)]

    def standing(self, problem: str, steps: Sequence[str]) -> list[float]:
        return [float(state.right) for _, state in follow(problem, steps)]

    def written_out(self, problem: str, steps: Sequence[str]) -> list[list[str]]:
        """For each line the right lines of its operations, which show what a merged line hides. A step that
        is not a line counts as the problem's next operation; a line taken back, and one after no line, has
        none."""
        value, operations, modulus = parse_problem(problem)
        before, written = State(value, 0, True), []
        for step, (_, now) in zip(steps, follow(problem, steps), strict=True):
            _, line, _ = parse_line(step) or (0, operations[:1], 0)
            value, lines = before.value, []
            if value is not None and not BACK.fullmatch(step):
                for name, operand in operations[before.done : before.done + len(line)]:
                    result = compute(value, ((name, operand),), modulus)
                    lines.append(f"{value}{name}{operand}={result}")
                    value = result
            written.append(lines)
            before = now
        return written

    def gold_answer(self, problem: str) -> str:
        return str(compute(*parse_problem(problem)))

    def stated_answer(self, steps: Sequence[str]) -> str | None:
        """The result of the last line."""
        line = parse_line(steps[-1])
        return line and str(line[2])

    def values(self, cfg: Config, problem: str, steps: Sequence[str]) -> list[float]:
        """Exact, since what follows depends only on the value written, the operations left, whether the last
        line may be taken back and what that restores. 0 after a step that is not a line."""
        start, operations, modulus = parse_problem(problem)
        expect(modulus == cfg.modulus, "data.task.modulus", cfg.modulus, f"{modulus}, as in {problem!r}")
        free_kv, stays_kv = values_to_go(cfg, operations, int(self.gold_answer(problem)))

        def p_right(p_kv, state: State) -> float:
            k = len(operations) - state.done
            if k < 0 or state.lost or state.value >= modulus:
                return 0.0
            return float(p_kv[k][state.value])

        value_T, before, stays = [], State(start, 0, True), False
        for step, (verdict, now) in zip(steps, follow(problem, steps), strict=True):
            is_back = BACK.fullmatch(step) is not None
            value = p_right(stays_kv if is_back else free_kv, now)
            if not (is_back or stays or now.lost or verdict == "neutral"):  # a line that may be taken back
                p = cfg.doubt if verdict == "right" else cfg.retract
                value = (1 - p) * value + p * p_right(stays_kv, before)
            value_T.append(value)
            before, stays = now, is_back
        return value_T


CHAIN = Chain()
