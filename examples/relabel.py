"""A script that labels steps without completions: by a verifier, a checker or outcomes.

    python -m examples.relabel scorer POOL --checkpoint VERIFIER       its P(step good), to distil it
    python -m examples.relabel td POOL --checkpoint embedded_orm       outcomes, by a value model
    python -m examples.relabel checker POOL --checker chain            an exact one, or FILE.py:FUNCTION

    python train.py data=jsonl data.path=labels.jsonl data.label_kind=value

Each source is a function; all write `labels.jsonl` (--output). Dimension key: T steps."""

import argparse
import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

import prm_jax
from prm_jax import tasks
from prm_jax.data.writing import native_row, write_rows
from prm_jax.generate.labeling import read_input
from prm_jax.launch import cli
from prm_jax.launch.config import expect
from prm_jax.solutions import Solution
from prm_jax.tasks.checkers import is_own, own_function


class Labelled(NamedTuple):
    solutions: list[Solution]
    labels: list  # of each solution y_T, null is None or NaN
    kind: str | None  # correctness, value or advantage; None where the source does not say


def by_scorer(args) -> Labelled:
    """P(step good) by a verifier."""
    solutions, _ = read_input(args.input, "task")
    verifier = prm_jax.load(args.checkpoint, files=(args.input,))
    p_T = verifier.score([s.problem for s in solutions], [s.steps for s in solutions])
    kind = "value" if verifier.scorer.objective == "orm" else verifier.scorer.label_kind
    return Labelled(solutions, p_T, None if kind == "unknown" else kind)


def td_targets(value_T: np.ndarray, outcome: float, lambda_: float = 0.8) -> np.ndarray:
    """TD(lambda) targets of the values after each step, without roll-outs (AgentPRM, 2511.08325).

    The outcome is the last step's reward. A target is the value before a step plus its generalised advantage
    (Schulman et al. 2016): the outcome with lambda = 1, the value after the step with 0."""
    target_T = np.full(len(value_T), outcome, np.float64)
    for t in reversed(range(len(value_T) - 1)):
        target_T[t] = (1 - lambda_) * value_T[t] + lambda_ * target_T[t + 1]
    return target_T


def by_td(args) -> Labelled:
    """`td_targets` by a value model; null where a solution has no outcome, such as a cut one."""
    solutions, values, _ = by_scorer(args)
    outcomes = [np.nan if s.outcome is None else s.outcome for s in solutions]
    return Labelled(solutions, list(map(td_targets, values, outcomes)), "value")


def own_labels(where: str, labels, problem: str, steps, answer: str | None) -> list:
    """The labels of a solution's steps, each from 0 to 1 or None."""
    is_right = np.shape(labels) == (len(steps),) and all(y is None or 0 <= y <= 1 for y in labels)
    expect(is_right, where, labels, f"a list of {len(steps)}: a label from 0 to 1, or None, of each step")
    return list(labels)


def by_checker(args) -> Labelled:
    """Labels by the exact checker of an embedded task, or by a function f(problem, steps, answer)."""
    solutions, answers = read_input(args.input, args.checker)
    if is_own(args.checker):
        ask = own_function(args.checker, own_labels)
        labels = [ask(s.problem, s.steps, answers[s.problem]) for s in solutions]
    else:
        task = tasks.read_task([args.input], args.checker)
        solutions = [dataclasses.replace(s, task=task.name) for s in solutions]
        labels = [task.step_labels(s.problem, s.steps) for s in solutions]
    return Labelled(solutions, labels, "correctness")


SOURCES = {"scorer": by_scorer, "td": by_td, "checker": by_checker}


def rows(found: Labelled, args) -> Iterator[dict]:
    """A native row of each solution."""
    for s, y_T in zip(found.solutions, found.labels, strict=True):
        labels = [None if np.isnan(y) else y for y in np.array(y_T, np.float64).tolist()]
        yield native_row(s, labels) | {"label_kind": found.kind, "by": args.by}


def main():
    parser = argparse.ArgumentParser(description="Label steps by what is there.")
    parser.add_argument("by", choices=SOURCES)
    parser.add_argument("input")
    parser.add_argument("--output", default="labels.jsonl")
    parser.add_argument("--checkpoint", help="of scorer and td, as in evaluate.py")
    parser.add_argument("--checker", help="of checker: a task, by default that of the rows; FILE.py:FUNCTION")
    args = parser.parse_args()
    found = SOURCES[args.by](args)
    write_rows(args.output, rows(found, args))
    print(f"{args.output}: {len(found.solutions)} solutions")


if __name__ == "__main__":
    cli.script(main)
