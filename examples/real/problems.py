"""A script that writes word problems whose solutions follow from equations: what a small policy can learn.

    python -m examples.real.problems FOLDER --source DATA    # svamp.jsonl, multiarith.jsonl, ... of a folder
    python -m examples.real.problems FOLDER                  # the same sets by their hub names

A problem is kept where expressions of one or two operations over its numbers (of SVAMP, those of its
equation) give the answer, and all of them mean the same. A step is an operation, `97 - 17 = 80.`, the last
one is `The answer is 80.` Half of the test and validation problems need two operations, half one. Problems
that begin with the same eight words, numbers masked, are never on two sides."""

import argparse
import collections
import itertools
import operator
import random
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from prm_jax.data.rows import read_rows
from prm_jax.data.splits import normal_text
from prm_jax.data.writing import write_rows

FILES = "svamp", "multiarith", "singleeq", "singleop", "addsub"
HUB = {"svamp": "ChilleD/SVAMP", "multiarith": "ChilleD/MultiArith", "singleeq": "MU-NLPC/Calc-mawps"}
ANSWERS = "target", "final_ans", "Answer", "result"  # the sets' names of their answers
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?|\.\d+")
PRIMES = 10007, 2003, 503, 97, 31
# Problems of test and validation: {side: {(source, operations): number}}.
SIDES = {
    "test": {("multiarith", 2): 150, ("svamp", 1): 75, ("singleeq", 1): 75},
    "validation": {("multiarith", 2): 80, ("svamp", 1): 40, ("singleeq", 1): 40},
}


class Value(NamedTuple):
    """A number and how it came about."""

    number: Fraction
    meaning: Fraction  # what the same expression is of PRIMES in place of the problem's numbers
    lines: tuple[str, ...] = ()  # its operations, `97 - 17 = 80.`

    def __str__(self):
        return str(self.number) if self.number.denominator == 1 else f"{float(self.number):.12g}"


def operate(a: Value, sign: str, b: Value) -> Value | None:
    """The result of one operation; None where that is not positive, or needs more than two decimals."""
    if sign == "/" and not b.number:
        return None
    f = OPERATIONS[sign]
    result = Value(f(a.number, b.number), f(a.meaning, b.meaning))
    if result.number <= 0 or (100 * result.number).denominator != 1:
        return None
    return result._replace(lines=(*a.lines, *b.lines, f"{a} {sign} {b} = {result}."))


def results(values: Sequence[Value], operations: int) -> Iterator[Value]:
    """What one or two operations make of the values, the second one of the first one's result."""
    for i, j in itertools.permutations(range(len(values)), 2):
        for sign in OPERATIONS:
            first = operate(values[i], sign, values[j])
            if first and operations == 1:
                yield first
            elif first:
                for other in (x for k, x in enumerate(values) if k not in (i, j)):
                    yield from results((first, other), 1)


def solve(source: str, text: str, answer: Fraction) -> Value | None:
    """The answer by operations on the numbers of a text, where all that give it mean the same."""
    numbers = [Fraction(number.replace(",", "")) for number in NUMBER.findall(text)]
    if not 2 <= len(numbers) <= len(PRIMES):
        return None
    values = [Value(number, Fraction(prime)) for number, prime in zip(numbers, PRIMES, strict=False)]
    lengths = [2, 1] if len(numbers) > 2 else [1]  # three numbers are mostly all needed
    lengths = {"svamp": [len(numbers) - 1], "multiarith": [2]}.get(source, lengths)
    for operations in lengths:
        right = [x for x in results(values, operations) if x.number == answer]
        if len({x.meaning for x in right}) == 1:
            return right[0]
    return None


def read_problems(folder: Path | None) -> list[dict]:
    """A row of each problem with a solution, each text once; prints how many are left out."""
    if folder:
        files = [(source, folder / f"{source}.jsonl", None) for source in FILES]
    else:
        files = [(source, HUB[source], part) for source in HUB for part in ("train", "test")]
    problems, counts = {}, collections.Counter()
    for source, path, part in files:
        for _, row in read_rows(path, split=part):
            text = row.get("input") or row.get("question") or f"{row['Body'].strip()} {row['Question']}"
            given = next(row[name] for name in ANSWERS if name in row)
            answer = solve(source, row.get("Equation", text), Fraction(str(given).replace(",", "")))
            counts["without one expression"] += answer is None
            counts["repeated"] += answer is not None and normal_text(text) in problems
            if answer is not None and normal_text(text) not in problems:
                row = {"id": f"{source}-{len(problems)}", "problem": " ".join(text.split())}
                row |= {"steps": [*answer.lines, f"The answer is {answer}."], "answer": str(answer)}
                problems[normal_text(text)] = row | {"kind": (source, len(answer.lines))}
    print(f"{len(problems)} problems; left out: {dict(counts)}")
    return list(problems.values())


def split(problems: Sequence[dict], scale: float) -> dict[str, list[dict]]:
    """{side: rows}: problems that begin alike are on one side, in test and validation the first alone."""
    families = collections.defaultdict(list)
    for row in problems:
        words = re.findall(r"[a-z]+|#", NUMBER.sub("#", row["problem"].lower()))
        families[tuple(words[:8])].append(row)
    order = list(families.values())
    random.Random(0).shuffle(order)
    sides, counts = {side: [] for side in (*SIDES, "train")}, collections.Counter()
    for family in order:
        kind = family[0]["kind"]
        side = next((x for x in SIDES if counts[x, kind] < scale * SIDES[x].get(kind, 0)), "train")
        sides[side] += family if side == "train" else family[:1]
        counts[side, kind] += 1
    print(f"{len(problems) - sum(map(len, sides.values()))} begin like one of test or validation: left out")
    return sides


def main():
    parser = argparse.ArgumentParser(description="Write word problems with solutions from equations.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source", type=Path, help="the folder of the five files; else the hub's data sets")
    parser.add_argument("--scale", type=float, default=1.0, help="of the sizes of test and validation")
    args = parser.parse_args()
    for side, rows in split(read_problems(args.source), args.scale).items():
        n_two = sum(row.pop("kind")[1] == 2 for row in rows)
        write_rows(args.folder / f"{side}.jsonl", rows)
        print(f"{side}.jsonl: {len(rows)} problems, {n_two} of two operations")


if __name__ == "__main__":
    main()
