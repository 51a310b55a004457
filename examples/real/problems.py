"""A script that writes word problems whose solutions follow from equations: what a small policy can learn.

    python -m examples.real.problems runs/real/data --folder FOLDER    # svamp.jsonl, multiarith.jsonl, ...
    python -m examples.real.problems runs/real/data                    # the same sets by their hub names

SVAMP brings its equations. Another problem is kept where expressions of one or two operations over its
numbers give the answer, and all of them mean the same. A step is an operation, `97 - 17 = 80.`, the last one
is `The answer is 80.` Half of the test and validation problems need two operations (MultiArith), half one
(SVAMP, SingleEq). Problems that begin with the same eight words, numbers masked, are never on two sides.
"""

import argparse
import collections
import itertools
import operator
import random
import re
import sys
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from prm_jax.data.rows import read_rows, write_rows
from prm_jax.launch.cli import USER_ERRORS, one_line

HUB = {"svamp": "ChilleD/SVAMP", "multiarith": "ChilleD/MultiArith", "singleeq": "MU-NLPC/Calc-mawps"}
FILES = "svamp", "multiarith", "singleeq", "singleop", "addsub"
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?|\.\d+")
PRIMES = [Fraction(p) for p in (10007, 2003, 503, 97, 31)]  # two expressions with one value of these are one
ANSWERS = "target", "final_ans", "Answer", "result"
# Problems of (source, operations) that test and validation draw, by kind, and how many of each kind.
SIDES_OF = {("multiarith", 2): "multiarith", ("svamp", 1): "svamp", ("singleeq", 1): "singleeq"}
SIZES = {
    "test": {"multiarith": 150, "svamp": 75, "singleeq": 75},
    "validation": {"multiarith": 80, "svamp": 40, "singleeq": 40},
}


class Solved(NamedTuple):
    """A problem with the operations that solve it."""

    source: str
    problem: str
    answer: str
    steps: tuple[str, ...]

    @property
    def operations(self) -> int:
        return len(self.steps) - 1


class Operation(NamedTuple):
    """`left sign right`; a place of -1 is the result of the operation before."""

    left: int
    sign: str
    right: int


def programs(n: int, length: int) -> Iterator[list[Operation]]:
    """All programs of one or two operations over n numbers, each used at most once."""
    for left, right in itertools.permutations(range(n), 2):
        for sign in OPERATIONS:
            if sign in "+*" and left > right:
                continue
            first = Operation(left, sign, right)
            if length == 1:
                yield [first]
                continue
            for third, second_sign in itertools.product(range(n), OPERATIONS):
                if third in (left, right):
                    continue
                yield [first, Operation(-1, second_sign, third)]
                if second_sign in "-/":
                    yield [first, Operation(third, second_sign, -1)]


def run(program: list[Operation], numbers: list[Fraction]) -> list[tuple[Fraction, str, Fraction, Fraction]]:
    """(left, sign, right, result) of each operation; ZeroDivisionError as in arithmetic."""
    lines, result = [], None
    for left, sign, right in program:
        a = result if left == -1 else numbers[left]
        b = result if right == -1 else numbers[right]
        result = OPERATIONS[sign](a, b)
        lines.append((a, sign, b, result))
    return lines


def find_program(numbers: list[Fraction], answer: Fraction, length: int) -> list[Operation] | None:
    """The first program that gives the answer through positive numbers; None if two differ in meaning."""
    found = {}
    for program in programs(len(numbers), length):
        try:
            results = [line[-1] for line in run(program, numbers)]
            meaning = run(program, PRIMES)[-1][-1]
        except ZeroDivisionError:
            continue
        if results[-1] == answer and min(results) > 0 and all(map(is_short, results)):
            found.setdefault(meaning, program)
    return next(iter(found.values())) if len(found) == 1 else None


def is_short(value: Fraction) -> bool:
    """Whether two decimals write the value."""
    return (value * 100).denominator == 1


def write_number(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value):g}"


def solve_svamp(equation: str) -> list | None:
    """The operations of an infix equation in full parentheses, `( ( 3.0 + 6.0 ) - 4.0 )`."""
    lines, values, signs = [], [], []
    for token in equation.split():
        if token in OPERATIONS:
            signs.append(token)
        elif token == ")" and signs:
            b, a, sign = values.pop(), values.pop(), signs.pop()
            if sign == "/" and b == 0:
                return None
            values.append(OPERATIONS[sign](a, b))
            lines.append((a, sign, b, values[-1]))
        elif token not in "()":
            values.append(Fraction(token))
    return lines or None


def solve(source: str, row: dict, problem: str, answer: Fraction) -> list | None:
    """The operations that solve a row's problem, None if they are not known."""
    if source == "svamp":
        return solve_svamp(row["Equation"])
    numbers = [Fraction(text.replace(",", "")) for text in NUMBER.findall(problem)]
    if not 2 <= len(numbers) <= len(PRIMES):
        return None
    # A problem of three numbers mostly needs all of them; MultiArith's always do.
    lengths = {"multiarith": [2], "singleop": [1]}.get(source, [2, 1] if len(numbers) > 2 else [1])
    for length in lengths:
        program = find_program(numbers, answer, length)
        if program:
            return run(program, numbers)
    return None


def words(problem: str) -> list[str]:
    """The words of a text in lower case, numbers as #."""
    return re.findall(r"[a-z]+|#", NUMBER.sub("#", problem.lower()))


def read_problems(rows: Iterable[tuple[str, dict]]) -> list[Solved]:
    """The problems of (source, row) whose operations are known, each text once; prints what is left out."""
    solved, counts = {}, collections.Counter()
    for source, row in rows:
        text = row.get("input") or row.get("question") or f"{row['Body'].strip()} {row['Question']}"
        problem = " ".join(text.split())
        given = next(row[name] for name in ANSWERS if name in row)
        answer = Fraction(str(given).replace(",", ""))
        lines = solve(source, row, problem, answer)
        if not lines or lines[-1][-1] != answer or not all(is_short(line[-1]) for line in lines):
            counts[f"{source} without one expression"] += 1
            continue
        texts = [[x if isinstance(x, str) else write_number(x) for x in line] for line in lines]
        steps = [f"{a} {sign} {b} = {c}." for a, sign, b, c in texts]
        key = re.sub(r"\W", "", problem.lower())
        counts[f"{source} seen before"] += key in solved
        item = Solved(source, problem, write_number(answer), (*steps, f"The answer is {texts[-1][-1]}."))
        solved.setdefault(key, item)
    print(f"{len(solved)} problems; left out: {', '.join(f'{n} of {name}' for name, n in counts.items() if n)}")
    return list(solved.values())


def split(solved: list[Solved], seed: int) -> dict[str, list[Solved]]:
    """{test, validation, train}: problems of one family, which begin alike, stay on one side."""
    families = collections.defaultdict(list)
    for item in solved:
        families[tuple(words(item.problem)[:8])].append(item)
    order = list(families.values())
    random.Random(seed).shuffle(order)
    sides, counts = {"test": [], "validation": [], "train": []}, collections.Counter()
    for family in order:
        item = family[0]
        kind = SIDES_OF.get((item.source, item.operations))
        open_sides = [side for side, size in SIZES.items() if kind and counts[side, kind] < size[kind]]
        side = open_sides[0] if open_sides else "train"
        sides[side] += family if side == "train" else [item]
        counts[side, kind] += 1
        counts["left out"] += 0 if side == "train" else len(family) - 1
    print(f"{counts['left out']} problems begin like one of test or validation, and are left out")
    return sides


def solution(item: Solved) -> dict:
    """A row to train on, TRL's columns."""
    return {"prompt": item.problem, "completions": list(item.steps), "answer": item.answer}


def question(index: int, item: Solved) -> dict:
    """A row to sample from."""
    name = f"{item.source}-{index}"
    return {"id": name, "problem": item.problem, "answer": item.answer, "operations": item.operations}


def read_sets(folder: Path | None) -> Iterator[tuple[str, dict]]:
    """(source, row) of the files of a folder, or of the hub's data sets."""
    if folder is None:
        for source, name in HUB.items():
            for part in ("train", "test"):
                yield from ((source, row) for _, row in read_rows(name, split=part))
        return
    for source in FILES:
        yield from ((source, row) for _, row in read_rows(folder / f"{source}.jsonl"))


def main():
    parser = argparse.ArgumentParser(description="Write word problems with solutions from equations.")
    parser.add_argument("output", type=Path)
    parser.add_argument("--folder", type=Path, help="of the five files; else the hub's data sets")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    sides = split(read_problems(read_sets(args.folder)), args.seed)
    for side, items in sides.items():
        write_rows(args.output / f"{side}.jsonl", (question(i, item) for i, item in enumerate(items)))
        two = sum(item.operations == 2 for item in items)
        print(f"{side}.jsonl: {len(items)} problems, {two} of two operations")
    for side in ("train", "validation"):
        write_rows(args.output / f"{side}_solutions.jsonl", map(solution, sides[side]))


if __name__ == "__main__":
    try:
        main()
    except USER_ERRORS as error:
        sys.exit(one_line(error))
