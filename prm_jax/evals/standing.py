"""Numbers that stand in every report, so that a verifier's easy ways to look good are seen: what right answers hide, what length buys."""

from collections.abc import Sequence

import numpy as np

from prm_jax.data.solutions import first_error
from prm_jax.stats import bootstrap_interval


def step_shares(labels: Sequence[Sequence[float | None]], outcomes: Sequence[float | None]) -> dict[str, float]:
    """Share of wrong steps in solutions with the right answer, and of right steps in those with a wrong one, over all steps of
    such solutions; nan where there are none.

    labels: correctness, so the first bad step and all after it are wrong, whatever label these have; unlabelled ones before it
    do not count. (SRaR, arXiv 2605.17291, judges each step by itself and finds .182 and .499.) outcomes: answer right, or None.
    """
    counts = np.zeros((2, 2))  # [answer right, step right]
    for label_T, outcome in zip(labels, outcomes, strict=True):
        if outcome is not None:
            end = len(label_T) if (error := first_error(label_T)) == -1 else error
            n_right = sum(label is not None for label in label_T[:end])
            counts[int(outcome >= 0.5)] += len(label_T) - end, n_right
    share = lambda answer, step: float(counts[answer, step] / n) if (n := counts[answer].sum()) else np.nan
    return {"bad_steps_in_right_answers": share(1, 0), "good_steps_in_wrong_answers": share(0, 1)}


def ranks_within(x: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Ranks of x among all, ties at their mean, less the mean rank of their group (numbers from 0)."""
    _, of, count = np.unique(x, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[of]
    return rank - (np.bincount(group, rank) / np.maximum(np.bincount(group), 1))[group]


def length_correlation(score, length, group, problem, seed: int) -> dict:
    """Partial rank correlation of score and length given the group, `r` in [-1, 1], with a 95 % bootstrap interval over problems.

    Spearman's with each group's mean rank taken away: of candidates the group is the problem, whether the answer is right and
    whether the first step repeats the problem, of steps whether the step is right. CoLD (arXiv 2507.15698) finds that PRMs prefer length at equal correctness; 0 is none.
    """
    _, group = np.unique(np.asarray(group), axis=0, return_inverse=True)
    a, b = ranks_within(np.asarray(score), group.ravel()), ranks_within(np.asarray(length), group.ravel())
    sums_P3 = np.stack([np.bincount(problem, x) for x in (a * b, a * a, b * b)], -1)

    def correlation(drawn):
        ab, aa, bb = sums_P3[drawn].sum(0)
        return ab / np.sqrt(aa * bb) if aa > 0 and bb > 0 else np.nan

    every = np.arange(len(sums_P3))
    return {"r": float(correlation(every)), "interval": bootstrap_interval(correlation, every, seed=seed)}


def show_shares(x: dict):
    shares = [
        f"{x[name]:.3f} of the {steps}"
        for name, steps in (
            ("bad_steps_in_right_answers", "steps in right answers are wrong"),
            ("good_steps_in_wrong_answers", "steps in wrong answers right"),
        )
        if np.isfinite(x[name])
    ]
    print(
        f"standing    {', '.join(shares) or 'no shares of right and wrong steps: no row says whether its answer is right'}"
    )


def show_length(found: dict[str, dict], given: str):
    """found: {whose scores: its `length_correlation`, and `ece` of its steps}."""
    told = lambda x: "{:+.2f} [{:+.2f}, {:+.2f}]".format(x["r"], *x["interval"])
    one = lambda x: told(x) if np.isfinite(x["r"]) else "undefined"
    listed = ", ".join(f"{name} {one(x)} ({x['ece']:.3f})" for name, x in found.items())
    print(f"standing    rank correlation of score and length given {given} (ECE of steps): {listed}")
