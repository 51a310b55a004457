"""Bias checks of every report: wrong steps behind right answers, scores that depend on length at equal
correctness."""

from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata

from prm_jax.evals.tables import show_table
from prm_jax.solutions import first_error
from prm_jax.stats import bootstrap_interval


def step_shares(
    labels: Sequence[Sequence[float | None]], outcomes: Sequence[float | None]
) -> dict[str, float]:
    """Shares over all steps: wrong ones in solutions with the right answer, right ones in others; nan of no
    steps. labels: correctness, so the first bad step and all after it are wrong; unlabelled ones before it do
    not count. (SRaR, arXiv 2605.17291, judges each step by itself: .182 and .499.) outcomes: answer right, or
    None."""
    counts = np.zeros((2, 2))  # [answer right, step right]
    for label_T, outcome in zip(labels, outcomes, strict=True):
        if outcome is not None:
            end = len(label_T) if (error := first_error(label_T)) == -1 else error
            n_right = sum(label is not None for label in label_T[:end])
            counts[int(outcome >= 0.5)] += len(label_T) - end, n_right
    with np.errstate(invalid="ignore"):
        shares = counts / counts.sum(1, keepdims=True)
    return {
        "bad_steps_in_right_answers": float(shares[1, 0]),
        "good_steps_in_wrong_answers": float(shares[0, 1]),
    }


def ranks_within(x: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Ranks of x among all, ties at their mean, less the mean rank of their group (numbers from 0)."""
    rank = rankdata(x)
    return rank - (np.bincount(group, rank) / np.maximum(np.bincount(group), 1))[group]


def length_correlation(score, length, group, problem, seed: int) -> dict:
    """Partial rank correlation of score and length given the group, `r` in [-1, 1]; 95 % bootstrap over
    problems. Spearman's with each group's mean rank taken away. The group of a candidate is its problem,
    whether its answer is right and whether its first step repeats the problem, which makes it longer; the
    group of a step is whether it is right. CoLD (arXiv 2507.15698) finds that PRMs prefer length at equal
    correctness; 0 is no preference."""
    columns = np.atleast_2d(np.asarray(group, int).T)
    group = np.ravel_multi_index(columns, columns.max(1, initial=0) + 1)
    a, b = ranks_within(np.asarray(score), group), ranks_within(np.asarray(length), group)
    sums_P3 = np.stack([np.bincount(problem, x) for x in (a * b, a * a, b * b)], -1)

    def correlation(problems):
        ab, aa, bb = sums_P3[problems].sum(0)
        return ab / np.sqrt(aa * bb) if aa > 0 and bb > 0 else np.nan

    every = np.arange(len(sums_P3))
    return {"r": float(correlation(every)), "interval": bootstrap_interval(correlation, every, seed=seed)}


def show_shares(shares: dict):
    right, wrong = shares["bad_steps_in_right_answers"], shares["good_steps_in_wrong_answers"]
    pairs = (right, "steps in right answers are wrong"), (wrong, "steps in wrong answers right")
    texts = [f"{share:.3f} of the {steps}" for share, steps in pairs if np.isfinite(share)]
    missing = "no shares of right and wrong steps: no row says whether its answer is right"
    print(f"bias checks {', '.join(texts) or missing}")


def show_length(correlations: dict[str, dict], condition: str):
    """correlations: {name of the scores: their `length_correlation`}."""
    rows = {name: {"r": x["r"], "interval": x["interval"]} for name, x in correlations.items()}
    show_table(f"rank correlation of score and length given {condition}", rows, digits=2)
