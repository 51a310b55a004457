"""How sure is a number? The one bootstrap, and the exact paired sign-flip test. The problem is the unit of
both (Miller 2411.00640). scipy's draw other random numbers, and take several times as long.

Dimension key: P problems, S resamples, X any trailing axes, m differences that are not 0"""

import functools
import math
from collections.abc import Iterator

import numpy as np

from prm_jax.metrics import problem_numbers

RESAMPLES = 2000
LEVEL = 0.95  # of all intervals
ENUMERATED = 20  # up to this many differences, all 2^m sign patterns are tried
SIGN_FLIPS = 20_000  # sign patterns that are drawn where there are more
PLACES = 1 << 22  # numbers of resamples that are summed at a time: 32 MB
FLIPS = 1 << 18  # signs drawn at a time: they stay in cache
ROUNDING = 1e-5  # differences of float32 expectations that are this close are equal


def _drawn_problems(P: int, seed: int) -> Iterator[np.ndarray]:
    """Yields drawn_P, P problems drawn with replacement, RESAMPLES times."""
    rng = np.random.default_rng(seed)
    return (rng.integers(P, size=P) for _ in range(RESAMPLES))


@functools.lru_cache(maxsize=2)  # the hundreds of intervals of an evaluation are over the same problems
def _problem_counts(P: int, seed: int) -> np.ndarray:
    """count_SP: how often each problem is in each resample."""
    count_SP = np.empty((RESAMPLES, P), np.uint16)
    for count_P, drawn_P in zip(count_SP, _drawn_problems(P, seed), strict=True):
        count_P[:] = np.bincount(drawn_P, minlength=P)
    return count_SP


def _percentiles(value_SX) -> np.ndarray:
    """The bounds of the resamples that are not nan."""
    return np.nanquantile(value_SX, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)


def mean_interval(value_PX, seed: int = 0):
    """(low_X, high_X): percentile interval of the mean of value_PX over problems; nan with fewer than two
    problems. All X share the resamples, so their differences are paired."""
    value_PX = np.asarray(value_PX, np.float64)
    if len(value_PX) < 2:
        return np.full((2, *value_PX.shape[1:]), np.nan)
    count_SP = _problem_counts(len(value_PX), seed)
    parts = np.array_split(count_SP, -(-count_SP.size // PLACES))
    sum_SX = np.concatenate([np.tensordot(part_sP.astype(float), value_PX, 1) for part_sP in parts])
    return _percentiles(sum_SX / len(value_PX))


def bootstrap_interval(statistic, problems, *arrays, seed: int = 0):
    """(low, high): percentile interval of statistic(*arrays), where entry i of each is of problems[i].

    The rows of a problem are drawn together. A statistic that itself groups by problem must take one row a
    problem. Resamples where it is nan are left out; fewer than two problems give (nan, nan)."""
    problem = problem_numbers(problems)
    count = np.bincount(problem)
    if len(count) < 2:
        return math.nan, math.nan
    order = np.argsort(problem, kind="stable")
    end = np.cumsum(count)
    values = []
    for drawn in _drawn_problems(len(count), seed):
        n = count[drawn]  # `order[start : end]` of every drawn problem, laid end to end without a loop
        rows = order[np.repeat(end[drawn] - np.cumsum(n), n) + np.arange(n.sum())]
        values.append(statistic(*(x[rows] for x in arrays)))
    is_defined = not np.isnan(values).all()
    return tuple(_percentiles(values).tolist()) if is_defined else (math.nan, math.nan)


def sign_flip_test(difference_P, seed: int = 0) -> float:
    """p, two-sided, of the hypothesis that paired differences are symmetric around 0: the share of sign
    patterns of the m nonzero differences whose sum is at least as far from 0 as the observed one, of all (of
    equal magnitudes by the binomial test), or of SIGN_FLIPS random ones."""
    from scipy.stats import binomtest  # not above: it takes a second

    difference_m = np.asarray(difference_P, np.float64)
    difference_m = difference_m[np.abs(difference_m) > ROUNDING]
    if not (m := len(difference_m)):
        return 1.0
    size_m, far = np.abs(difference_m), abs(difference_m.sum()) - ROUNDING
    if np.ptp(size_m) <= ROUNDING:
        return float(binomtest(int((difference_m > 0).sum()), m).pvalue)
    if m <= ENUMERATED:
        sums = size_m[:1]  # the first sign may stay: the other half are these, negated
        for size in size_m[1:]:
            sums = np.concatenate([sums + size, sums - size])
        return float(np.mean(np.abs(sums) >= far))
    rng = np.random.default_rng(seed)
    n_far = 0
    rows = max(1, FLIPS // m)
    for start in range(0, SIGN_FLIPS, rows):
        bits = rng.integers(1 << 32, size=(min(rows, SIGN_FLIPS - start), m), dtype=np.uint32)
        n_far += int((np.abs(2 * ((bits >> 31).astype(float) @ size_m) - size_m.sum()) >= far).sum())
    return (n_far + 1) / (SIGN_FLIPS + 1)


def paired_difference(a_P, b_P, seed: int = 0) -> dict:
    """The mean of a - b over problems: difference, interval, p, and n_differ, how many differ; with fewer
    than 6 no p can be small."""
    difference_P = np.asarray(a_P, np.float64) - np.asarray(b_P, np.float64)
    difference_P = np.where(np.abs(difference_P) <= ROUNDING, 0.0, difference_P)
    return {
        "difference": float(difference_P.mean()),
        "interval": [float(end) for end in mean_interval(difference_P, seed)],
        "p": sign_flip_test(difference_P, seed),
        "n_differ": int(np.count_nonzero(difference_P)),
    }
