"""A bias check of every report: do scores depend on length at equal correctness?"""

import numpy as np
from scipy.stats import rankdata

from prm_jax.evals.tables import show_table
from prm_jax.stats import bootstrap_interval


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


def show_length(correlations: dict[str, dict], condition: str):
    """correlations: {name of the scores: their `length_correlation`}."""
    show_table(f"rank correlation of score and length given {condition}", correlations, digits=2)
