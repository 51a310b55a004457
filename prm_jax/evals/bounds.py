"""Bounds of a step's value: how often they hold it, the shift that makes them hold, and N of best-of-N by the lower one.

A quantile head gives a lower and an upper bound of a step's value, the .05 and .95 quantile of its labels, as log-odds
(calibrated PRMs and instance-adaptive scaling, arXiv 2506.09338).

Dimension key: n steps, P problems, N candidates, R random orders, G targets, S sizes of N
"""

import numpy as np

from prm_jax.data.units import CERTAIN, UNITS, as_probability
from prm_jax.evals.pool_arrays import Pool
from prm_jax.losses import QUANTILES
from prm_jax.rerank import rank_scores
from prm_jax.stats import conformal_quantile, ratio_interval

EDGE = 0.01  # a bound this near to 0 or 1 holds 0 or 1, which no log-odds reach
PILOTS = 2  # samples whose first steps choose N; they are the first of the N
TARGETS = np.geomspace(1e-4, 1e3, 400)  # -log(1 - C), C the chance that one of N samples is right


def shifts(lower_n, upper_n, label_n) -> dict[str, float]:
    """{"eval_shift_lower", "eval_shift_upper"}: by how many log-odds the bounds must move out (in, if below 0) so that each
    holds a new label as often as it should: the `conformal_quantile` of what it misses these labels by (conformalised
    quantile regression, arXiv 1905.03222, a side at a time). Labels and bounds are log-odds, labels probabilities. The
    guarantee is for one step a problem; steps of one solution depend on each other."""
    log_odds, known_n = UNITS["probability"].log_odds, ~np.isnan(label_n)
    y_n, edge = log_odds(np.asarray(label_n, np.float64)[known_n]), log_odds(1 - EDGE)
    above_n, below_n = (
        lower_n[known_n] - np.clip(y_n, -edge, CERTAIN),
        np.clip(y_n, -CERTAIN, edge) - upper_n[known_n],
    )
    sides = {"lower": (above_n, 1 - QUANTILES[0]), "upper": (below_n, QUANTILES[-1])}
    return {f"eval_shift_{side}": conformal_quantile(*x) for side, x in sides.items()}


def coverage(lower_n, median_n, upper_n, value_n, problem_n, depth_n, seed: int) -> dict:
    """How often bounds hold the value, all in [0, 1]. `all` and each depth have n, coverage with its 95 % bootstrap
    interval over problems, the shares of values below and above the bounds, and the mean width; `seen` has the shares
    of values up to the lower bound, the median and the upper bound, which QUANTILES says."""
    below_n, above_n = lower_n > np.maximum(value_n, EDGE), upper_n < np.minimum(value_n, 1 - EDGE)
    columns = {
        "coverage": ~below_n & ~above_n,
        "below": below_n,
        "above": above_n,
        "width": upper_n - lower_n,
    }

    def numbers(kept_n):
        sums = [
            np.bincount(problem_n[kept_n], x_n[kept_n]) for x_n in (columns["coverage"], np.ones(len(kept_n)))
        ]
        means = {name: float(x_n[kept_n].mean()) for name, x_n in columns.items()}
        return {"n": int(kept_n.sum()), **means, "interval": ratio_interval(*sums, seed).tolist()}

    depths = {str(d): numbers(depth_n == d) for d in np.unique(depth_n)}
    seen = [float(x_n.mean()) for x_n in (below_n, value_n <= median_n, ~above_n)]
    return {"all": numbers(depth_n > -1), "depths": depths, "seen": seen}


def first_bounds(pool: Pool, name: str, unit: str) -> np.ndarray:
    """lower_PN: the lower bound of each candidate's first step, 0 where there is no candidate."""
    first_n = np.cumsum(pool.steps_n) - pool.steps_n
    lower_PN = np.zeros(pool.present_PN.shape)
    lower_PN[pool.present_PN] = as_probability(pool.scores[name][first_n], unit)
    return lower_PN


def samples_needed(lower, target):
    """The smallest n with 1 - (1 - lower)^n >= C: where each sample is right with chance `lower`, one of n is with chance
    C (arXiv 2506.09338). target: -log(1 - C)."""
    with np.errstate(divide="ignore"):
        return np.maximum(np.ceil(target / -np.log1p(-lower) - 1e-9), 1)


def adaptive_best_of_n(pool: Pool, score_PN, lower_PN, sizes, draws: int, seed: int) -> tuple[dict, dict]:
    """({n: solved_P}, {n: C}): best of N with N a problem, where N in the mean costs the policy tokens of n for all; mean
    over `draws` random orders of a problem's candidates. The mean of the first PILOTS candidates' lower bounds chooses
    N by `samples_needed`, from PILOTS up to all candidates; the best-scored of the first N wins, the first of equals. C
    is the target that spends as much; between two targets of the grid a draw has one or the other. Candidates of
    unknown cost cost alike."""
    rng, count_P = np.random.default_rng(seed), pool.present_PN.sum(1)
    rank_PN = np.unique(rank_scores(score_PN, pool.eligible_PN, pool.present_PN), return_inverse=True)[1]
    rank_PN = rank_PN.reshape(pool.present_PN.shape)
    solved_PG, n_PG = np.empty((2, len(count_P), len(TARGETS)))
    for p, n in enumerate(count_P):
        kept, place_N = np.flatnonzero(pool.present_PN[p]), np.arange(n)
        order_RN = rng.permuted(np.tile(kept, (draws, 1)), axis=1)
        # The largest rank so far, and the first place of it.
        best_RN = np.maximum.accumulate(rank_PN[p, order_RN] * n + place_N[::-1], axis=1)
        solved_RN = pool.right_PN[p, np.take_along_axis(order_RN, (n - 1 - best_RN % n).astype(int), 1)]
        lower_R1 = lower_PN[p, order_RN[:, :PILOTS]].mean(1, keepdims=True)
        n_RG = np.clip(samples_needed(lower_R1, TARGETS), min(PILOTS, n), n).astype(int)
        solved_PG[p], n_PG[p] = np.take_along_axis(solved_RN, n_RG - 1, 1).mean(0), n_RG.mean(0)
    tokens_G = (n_PG * pool.cost_P[:, None]).mean(0)
    values, targets = {}, {}
    for size in [size for size in sizes if PILOTS < size < count_P.max()]:
        tokens = (np.minimum(size, count_P) * pool.cost_P).mean()
        g, share = divmod(np.interp(tokens, tokens_G, np.arange(len(TARGETS))), 1)
        values[size] = (1 - share) * solved_PG[:, int(g)] + share * solved_PG[
            :, min(int(g) + 1, len(TARGETS) - 1)
        ]
        targets[size] = float(-np.expm1(-TARGETS[int(g)]))
    return values, targets
