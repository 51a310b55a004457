"""Edits of a solution's steps that an attacker tries on a verifier: what they change is for a checker to say.

Each entry of EDITS: f(steps) -> the edited solutions, one for each place where the edit applies. Those of
"Reward Under Attack" (arXiv 2603.06621) that need no language model. `data.augment` trains on them;
examples/attack.py attacks by them.
"""

from collections.abc import Iterator
from functools import partial

Steps = tuple[str, ...]


def repeat(steps: Steps) -> Iterator[Steps]:
    """A line is written twice."""
    return (steps[: t + 1] + steps[t:] for t in range(len(steps)))


def drop(steps: Steps) -> Iterator[Steps]:
    """A line is left out."""
    return (steps[:t] + steps[t + 1 :] for t in range(len(steps)) if len(steps) > 1)


def swap(steps: Steps) -> Iterator[Steps]:
    """A line changes places with the next one."""
    return (steps[:t] + (steps[t + 1], steps[t]) + steps[t + 2 :] for t in range(len(steps) - 1))


def after_a_result(steps: Steps, line: str) -> Iterator[Steps]:
    """A line with a result v, what stands after its last equals sign, is followed by `line`, in which {v}
    stands for it."""
    results = [(t, step.rpartition("=")[2].strip()) for t, step in enumerate(steps) if "=" in step]
    return (steps[: t + 1] + (line.format(v=v),) + steps[t + 1 :] for t, v in results if v)


def blank(steps: Steps) -> Iterator[Steps]:
    """All signs of the lines stand between blanks."""
    yield tuple("".join(f" {c} " if c in "+-*=" else c for c in step) for step in steps)


EDITS = {
    "repeat": repeat,
    "drop": drop,
    "swap": swap,
    "restate": partial(after_a_result, line="{v}={v}"),
    "idle": partial(after_a_result, line="{v}+0={v}"),
    "blank": blank,
}
