"""A script that writes what examples/real/texts.md trains on.

    python -m examples.real.texts FOLDER --pools POOL ... --gsm8k train.jsonl --without processbench.json

process.jsonl and outcome.jsonl have the same solutions of the pools, each cut behind the first step that
VERIFIER flags: with its step scores as labels, and with the answer's verdict at every step. changed.jsonl has
GSM8K's own solutions, each once more with one number changed, cut there. Problems of --without are left out."""

import argparse
import random
import re
from collections.abc import Iterator
from pathlib import Path

from prm_jax.data.pools import parse_problem
from prm_jax.data.rows import field, read_rows
from prm_jax.data.splits import normal_text
from prm_jax.data.writing import write_rows

MARK = re.compile("<<[^>]*>>")  # GSM8K's calculator
RESULT = re.compile(rf"{MARK.pattern}\s*(\d+)(?![\d.,]*\d)")  # the whole number that follows it
VERIFIER = "qwen_prm"  # whose step scores are labels
LONGEST = 1200  # characters of problem and steps; about 384 tokens
OTHERS = -10, -2, -1, 1, 2, 10  # what a changed number is off by


def flagged_solutions(row: dict, by_answer: bool = False) -> list[dict]:
    """A pool row's flagged solutions and as many sound ones, each up to its first flagged step; labels are
    the verifier's, or 1 at every step where the answer is right."""
    flagged, sound = [], []
    problem = parse_problem(row).problem  # refuses what is no pool
    for candidate in row["candidates"]:
        if candidate.get("first_step_has_prompt"):  # its first score is of another text
            continue
        scores = field(field(candidate, "prm_step_scores", dict), VERIFIER, list)
        end = next((t + 1 for t, score in enumerate(scores) if score < 0.5), len(scores))
        steps, labels = candidate["steps"][:end], scores[:end]
        solutions = flagged if labels[-1] < 0.5 else sound
        if by_answer:
            labels = [int(field(candidate, "correct", bool))] * end
        if len(problem) + sum(map(len, steps)) <= LONGEST:
            solutions.append({"prompt": problem, "completions": steps, "labels": labels})
    return flagged + sound[: len(flagged)]


def changed_solutions(row: dict, rng: random.Random) -> Iterator[dict]:
    """GSM8K's solution, and the same up to a step whose result is another number."""
    text, _, answer = field(row, "answer", str).partition("####")
    lines = [line for line in text.splitlines() if line.strip()]
    places = [t for t, line in enumerate(lines) if RESULT.search(line)]
    if not places:
        return
    steps = [MARK.sub("", line) for line in lines] + [f"The answer is {answer.strip()}."]
    solution = {"prompt": row["question"]}
    yield solution | {"completions": steps, "labels": [1] * len(steps)}
    t = rng.choice(places)
    found = RESULT.search(lines[t])
    other = int(found[1]) + rng.choice([d for d in OTHERS if int(found[1]) + d > 0])
    wrong = MARK.sub("", lines[t][: found.start(1)] + str(other) + lines[t][found.end(1) :])
    yield solution | {"completions": [*steps[:t], wrong], "labels": [1] * t + [0]}


def main(words: list[str] | None = None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output", type=Path, help="folder")
    parser.add_argument("--pools", nargs="+", required=True, help="of StrictPRMBench, a problem a row")
    parser.add_argument("--gsm8k", required=True, help="train.jsonl")
    parser.add_argument("--without", required=True, help="rows whose problems are left out")
    args = parser.parse_args(words)
    known = {normal_text(field(row, "problem", str)) for _, row in read_rows(args.without)}

    def unknown_rows(path) -> Iterator[dict]:
        rows = (row for _, row in read_rows(path))
        return (row for row in rows if normal_text(field(row, "question", str)) not in known)

    rng = random.Random(0)
    pools = [row for path in args.pools for row in unknown_rows(path)]
    rows = {
        "process": [s for row in pools for s in flagged_solutions(row)],
        "outcome": [s for row in pools for s in flagged_solutions(row, by_answer=True)],
        "changed": [s for row in unknown_rows(args.gsm8k) for s in changed_solutions(row, rng)],
    }
    for name, solutions in rows.items():
        write_rows(args.output / f"{name}.jsonl", solutions)
        print(f"{name:12}{len(solutions):,} solutions of {len({s['prompt'] for s in solutions}):,} problems")


if __name__ == "__main__":
    main()
