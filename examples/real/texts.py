"""A script that writes what examples/real/README.md's second part trains on.

    python -m examples.real.texts FOLDER --pools POOL ... --gsm8k train.jsonl --without processbench.json

process.jsonl and outcome.jsonl have the same solutions of the pools, each cut behind the first step that the
named verifier flags: with its step scores as labels, and with the answer's verdict at every step. A problem has at
most as many sound solutions as flagged ones. changed.jsonl has GSM8K's own solutions, and each once more with
one number changed, cut there. Problems of --without are left out."""

import argparse
import random
import re
from collections.abc import Iterator
from pathlib import Path

from prm_jax.data.rows import field, read_rows
from prm_jax.data.splits import normal_text
from prm_jax.data.writing import write_rows

RESULT = re.compile(r"<<[^>]*>>\s*(\d+)(?![\d.,]*\d)")  # the whole number that GSM8K states after an equation
LONGEST = 1200  # characters of problem and steps; about 384 tokens
OTHERS = -10, -2, -1, 1, 2, 10  # what a changed number is off by


def labelled_solutions(row: dict, scorer: str) -> Iterator[tuple[str, list[str], list[float], float]]:
    """(problem, steps up to the first flagged one, their scores, 1 if the answer is right) of a pool's row."""
    problem, flagged, sound = field(row, "question", str), [], []
    for candidate in field(row, "candidates", list):
        if candidate.get("first_step_has_prompt"):  # its first score is of another text
            continue
        scores = candidate["prm_step_scores"][scorer]
        end = next((t + 1 for t, score in enumerate(scores) if score < 0.5), len(scores))
        steps = candidate["steps"][:end]
        if len(problem) + sum(map(len, steps)) <= LONGEST:
            solutions = flagged if scores[end - 1] < 0.5 else sound
            solutions.append((problem, steps, scores[:end], float(candidate["correct"])))
    yield from flagged
    yield from sound[: len(flagged)]


def changed_solutions(row: dict, rng: random.Random) -> Iterator[dict]:
    """GSM8K's solution, and the same up to a step whose result is another number."""
    problem, (text, _, answer) = field(row, "question", str), field(row, "answer", str).partition("####")
    lines = [line for line in text.splitlines() if line.strip()]
    places = [t for t, line in enumerate(lines) if RESULT.search(line)]
    if not places:
        return
    steps = [re.sub("<<[^>]*>>", "", line) for line in lines] + [f"The answer is {answer.strip()}."]
    yield {"prompt": problem, "completions": steps, "labels": [1] * len(steps)}
    t = rng.choice(places)
    found = RESULT.search(lines[t])
    number = int(found[1])
    other = number + rng.choice([d for d in OTHERS if number + d > 0])
    line = lines[t][: found.start(1)] + str(other) + lines[t][found.end(1) :]
    wrong = re.sub("<<[^>]*>>", "", line)
    yield {"prompt": problem, "completions": [*steps[:t], wrong], "labels": [1] * t + [0]}


def main(args):
    known = {normal_text(field(row, "problem", str)) for _, row in read_rows(args.without)}
    process, outcome, changed = [], [], []
    for pool in args.pools:
        for _, row in read_rows(pool):
            if normal_text(row["question"]) in known:
                continue
            for problem, steps, scores, right in labelled_solutions(row, args.scorer):
                solution = {"prompt": problem, "completions": steps}
                process.append(solution | {"labels": scores})
                outcome.append(solution | {"labels": [right] * len(steps)})
    rng = random.Random(0)
    for _, row in read_rows(args.gsm8k):
        if normal_text(row["question"]) not in known:
            changed += changed_solutions(row, rng)
    for name, rows in {"process": process, "outcome": outcome, "changed": changed}.items():
        write_rows(args.output / f"{name}.jsonl", rows)
        print(f"{name:12}{len(rows):,} solutions of {len({row['prompt'] for row in rows}):,} problems")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output", type=Path, help="folder")
    parser.add_argument("--pools", nargs="+", required=True, help="of StrictPRMBench, a problem a row")
    parser.add_argument("--scorer", default="qwen_prm", help="whose step scores are labels")
    parser.add_argument("--gsm8k", required=True, help="train.jsonl")
    parser.add_argument("--without", required=True, help="ProcessBench's gsm8k.json")
    main(parser.parse_args())
