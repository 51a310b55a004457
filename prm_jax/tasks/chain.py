"""The embedded task: chains of arithmetic modulo 7, a solver with known error rates, and exact step labels.

A problem is a start digit and a few operations. Some of them (max, min) are not injective, so a wrong step can still
end in the right answer: without such lucky solutions an outcome model and a process model would learn the same
thing (Lightman et al. 2023, section 4). A solution is one line per operation, `4+5=2`; a wrong line writes the right
formula with a wrong result and the next line goes on from it, so nothing but the arithmetic gives it away.
"""

import bisect
import dataclasses
import functools
import itertools
import operator
import re
import zlib
from collections.abc import Sequence

import numpy as np

from prm_jax import InputError
from prm_jax.data.solutions import Solution
from prm_jax.launch.config import Count, NotNegative, Share, expect

# A prime: modulo 10 a verifier learns parity first and stays there, blind to every result that is off by an even number.
MODULUS = 7
WORDS = {"+": "add", "-": "minus", "*": "times", "max": "max", "min": "min"}  # operation -> its word in the problem
OPERANDS = {"+": (1, 3), "-": (1, 3), "*": (2, 3), "max": (2, 5), "min": (2, 4)}  # inclusive; none is a no-op
CONFUSED = {"+": "-", "-": "+", "*": "+", "max": "min", "min": "max"}  # what a misread operation turns into
ERRORS = ("near", "operation", "operand", "random")
SPLITS = {"test": (0, 10), "validation": (10, 15), "train": (15, 60), "base": (60, 100)}  # hundredths of all problems


@dataclasses.dataclass(frozen=True)
class Config:
    """The task and the solver; conf/data/arithmetic.yaml gives the defaults and their reasons."""

    min_operations: Count
    max_operations: Count
    error_rate: Share  # probability that the solver gets a step wrong
    perfect_share: Share  # share of solutions by a solver that makes no errors
    operations: dict[str, NotNegative]  # +, -, *, max, min -> relative frequency in problems
    errors: dict[str, NotNegative]  # where a wrong result comes from: kind -> relative frequency
    solutions_per_problem: Count

    def __post_init__(self):
        low, high = self.min_operations, self.max_operations
        expect(low <= high, "data.task.min_operations", low, f"at most max_operations ({high})")
        for name, given, kinds in (("operations", self.operations, WORDS), ("errors", self.errors, ERRORS)):
            is_right = set(given) == set(kinds) and sum(given.values()) > 0
            expect(is_right, f"data.task.{name}", given, f"frequencies of {', '.join(kinds)}, not all 0")


@dataclasses.dataclass(frozen=True)
class Chain:
    """One problem: a start digit and the operations that follow."""

    start: int
    operations: tuple[tuple[str, int], ...]

    def __str__(self):
        asked = "".join(f", {WORDS[operation]} {operand}" for operation, operand in self.operations)
        return f"Modulo {MODULUS}: start with {self.start}{asked}."

    def values(self):
        """The right value after each operation."""
        step = lambda value, operation: apply(operation[0], value, operation[1])
        return list(itertools.accumulate(self.operations, step, initial=self.start))[1:]


APPLY = {"+": operator.add, "-": operator.sub, "*": operator.mul, "max": max, "min": min}


def apply(operation: str, value: int, operand: int) -> int:
    return APPLY[operation](value, operand) % MODULUS


def parse_problem(text: str) -> Chain:
    """Inverse of `str(chain)`; InputError on any other text."""
    head = re.fullmatch(rf"Modulo {MODULUS}: start with ([0-6])((?:, (?:add|minus|times|max|min) \d)+)\.", text)
    if head is None:
        raise InputError(f"not an arithmetic problem: {text[:80]!r}, expected 'Modulo 7: start with 4, add 5, max 3.'")
    symbol = {word: operation for operation, word in WORDS.items()}
    pairs = (part.split() for part in head[2].removeprefix(", ").split(", "))
    return Chain(int(head[1]), tuple((symbol[word], int(operand)) for word, operand in pairs))


def write_step(value: int, operation: str, operand: int, result: int) -> str:
    if operation in ("max", "min"):
        return f"{operation}({value},{operand})={result}"
    return f"{value}{operation}{operand}={result}"


@functools.cache  # there are a few hundred different steps
def parse_step(text: str) -> tuple[int, str, int, int] | None:
    """(value, operation, operand, result) of a line such as `4+5=2` or `max(2,3)=3`; None if it is no such line."""
    text = text.replace(" ", "").strip()
    if found := re.fullmatch(r"(\d)([-+*])(\d)=(\d)", text):
        return int(found[1]), found[2], int(found[3]), int(found[4])
    if found := re.fullmatch(r"(max|min)\((\d),(\d)\)=(\d)", text):
        return int(found[2]), found[1], int(found[3]), int(found[4])
    return None


def step_is_right(chain: Chain, steps: list[str], t: int) -> bool:
    """Step t does what the problem asks, from the value that the step before it wrote, with the right result."""
    step = parse_step(steps[t])
    before = chain.start if t == 0 else (parse_step(steps[t - 1]) or (None,))[-1]
    if step is None or before is None or t >= len(chain.operations):
        return False
    value, operation, operand, result = step
    return (value, (operation, operand)) == (before, chain.operations[t]) and result == apply(operation, value, operand)


def correctness_labels(chain: Chain, steps: list[str]) -> list[float]:
    """1 while this step and all before it are right, 0 from the first wrong step on."""
    right = [step_is_right(chain, steps, t) for t in range(len(steps))]
    return [float(ok) for ok in np.cumprod(right)]


def step_labels(problem: str, steps: Sequence[str]) -> list[float]:
    """`correctness_labels` from texts alone."""
    return correctness_labels(parse_problem(problem), steps)


def answer(problem: str) -> str:
    """The right final answer of a problem's text."""
    return str(parse_problem(problem).values()[-1])


def value_labels(chain: Chain, steps: list[str], cfg: Config) -> list[float]:
    """P(final answer right | prefix) when the noisy solver of `cfg` goes on from the value that the step wrote.

    Exact: the solver's next value depends on the last written one alone, so the chance is a product of 7 x 7 matrices.
    """
    gold = chain.values()[-1]
    after = [np.eye(MODULUS)[gold]]  # after[t][v]: P(right | value v written at step t), here of the last step
    for t in reversed(range(1, len(chain.operations))):
        after.insert(0, transition(chain, t, cfg) @ after[0])
    parsed = itertools.zip_longest(map(parse_step, steps), after[: len(steps)])
    return [float(p[step[3]]) if step and p is not None and step[3] < MODULUS else 0.0 for step, p in parsed]


def draw(frequencies: dict[str, float], rng) -> str:
    """One name, each with its share: `rng.choice` with probabilities, ten times faster for single draws."""
    bounds = list(itertools.accumulate(frequencies.values()))
    return list(frequencies)[bisect.bisect_right(bounds, rng.random() * bounds[-1])]


def wrong_results(kind: str, operation: str, value: int, operand: int) -> list[int]:
    """The results, equally likely, that an error of this kind writes: never the right one."""
    right = apply(operation, value, operand)
    match kind:
        case "near":  # off by one
            results = [(right + 1) % MODULUS, (right - 1) % MODULUS]
        case "operation":  # the confusable operation, done well
            results = [apply(CONFUSED[operation], value, operand)]
        case "operand":  # the neighbouring operand, done well
            results = [apply(operation, value, operand + 1), apply(operation, value, operand - 1)]
        case "random":
            results = list(range(MODULUS))
    # A misreading can happen to give the right result, which would be no error: any other digit then.
    return [r for r in results if r != right] or [r for r in range(MODULUS) if r != right]


def noisy_step(chain: Chain, t: int, value: int, cfg: Config, rng) -> tuple[str, int]:
    """The solver's line for operation t from `value`, and the result it wrote."""
    operation, operand = chain.operations[t]
    result = apply(operation, value, operand)
    if rng.random() < cfg.error_rate:
        results = wrong_results(draw(cfg.errors, rng), operation, value, operand)
        result = results[rng.integers(len(results))]
    return write_step(value, operation, operand, result), result


def transition(chain: Chain, t: int, cfg: Config) -> np.ndarray:
    """P(written result | value) of the noisy solver at operation t, [7, 7]: `noisy_step`, enumerated."""
    operation, operand = chain.operations[t]
    p = np.zeros((MODULUS, MODULUS))
    for value in range(MODULUS):
        p[value, apply(operation, value, operand)] = 1 - cfg.error_rate
        for kind, frequency in cfg.errors.items():
            results = wrong_results(kind, operation, value, operand)
            for result in results:
                p[value, result] += cfg.error_rate * (frequency / sum(cfg.errors.values())) / len(results)
    return p


def noisy_solution(chain: Chain, cfg: Config, rng, label_kind: str) -> Solution:
    value, steps, noisy = chain.start, [], cfg
    if rng.random() < cfg.perfect_share:
        cfg = dataclasses.replace(cfg, error_rate=0.0)
    for t in range(len(chain.operations)):
        step, value = noisy_step(chain, t, value, cfg, rng)
        steps.append(step)
    labels = correctness_labels(chain, steps) if label_kind == "correctness" else value_labels(chain, steps, noisy)
    outcome = float(value == chain.values()[-1])
    return Solution(problem=str(chain), steps=tuple(steps), labels=tuple(labels), outcome=outcome, answer=str(value))


def sample_chain(cfg: Config, rng) -> Chain:
    size = int(rng.integers(cfg.min_operations, cfg.max_operations + 1))
    names = [draw(cfg.operations, rng) for _ in range(size)]
    operations = tuple((name, int(rng.integers(OPERANDS[name][0], OPERANDS[name][1] + 1))) for name in names)
    return Chain(int(rng.integers(0, MODULUS)), operations)


def sample_problems(cfg: Config, n: int, split: str, seed: int) -> list[Chain]:
    """n distinct problems of one split. A problem's split is a hash of its text, so no two splits ever share one."""
    rng = np.random.default_rng([seed, *split.encode()])
    low, high = SPLITS[split]
    chains = {}
    for _ in range(1000 * n):
        if len(chains) == n:
            return list(chains.values())
        chain = sample_chain(cfg, rng)
        if low <= zlib.crc32(str(chain).encode()) % 100 < high:
            chains[str(chain)] = chain
    found = f"only {len(chains)} distinct problems of {n} found"
    raise InputError(f"data: {found}; raise data.task.max_operations or ask for fewer")


def make_solutions(cfg: Config, n: int, split: str, seed: int, label_kind="correctness") -> list[Solution]:
    """n solutions by the noisy solver, `solutions_per_problem` to a problem, of one split's problems."""
    chains = sample_problems(cfg, -(-n // cfg.solutions_per_problem), split, seed)
    rng = np.random.default_rng([seed, 1, *split.encode()])
    rows = [noisy_solution(c, cfg, rng, label_kind) for c in chains for _ in range(cfg.solutions_per_problem)][:n]
    return [dataclasses.replace(row, id=f"arithmetic/{split}/{seed}/{i}") for i, row in enumerate(rows)]


def lucky_share(solutions: list[Solution]) -> float:
    """Share of the right-answer solutions that hold a wrong step."""
    right = [s for s in solutions if s.outcome == 1]
    lucky = [s for s in right if 0 in step_labels(s.problem, s.steps)]
    return len(lucky) / max(len(right), 1)
