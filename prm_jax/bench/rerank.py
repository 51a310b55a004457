"""Times aggregation, exact best-of-n curves and reweighting of a synthetic pool, beside the published shuffles.

Dimension key: P problems, N candidates, T steps, S trials, n subset sizes.
"""

import functools
import math
import random
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax import rerank
from prm_jax.bench.common import BenchConfig, Rerank, Row, median_seconds

# Subset sizes and shuffles of the published evaluation of PRM800K's verifiers (Lightman et al. 2023, eval/eval.py).
PUBLISHED_SIZES = (10, 25, 50, 75, 100, 200, 300, 400, 500, 750, 1000, 1250, 1500, 1860)
PUBLISHED_TRIALS = 400


def synthetic_pool(cfg: Rerank, rng):
    """(logit_PNT, mask_PNT, right_PN, answered_PN) of problems of all difficulties; right solutions score higher."""
    P, N, T = cfg.problems, cfg.candidates, cfg.steps
    quality_PN = rng.standard_normal((P, 1), np.float32) + rng.standard_normal((P, N), np.float32)
    logit_PNT = 4 + 2 * quality_PN[..., None] + 5 * rng.standard_normal((P, N, T), np.float32)
    mask_PNT = np.arange(T) < rng.integers(-(-T // 3), T + 1, (P, N, 1))
    return logit_PNT, mask_PNT, rng.random((P, N)) < 1 / (1 + np.exp(-quality_PN)), rng.random((P, N)) < 0.95


def bench_rerank(cfg: BenchConfig) -> list[Row]:
    c, rng = cfg.rerank, np.random.default_rng(cfg.seed)
    logit_PNT, mask_PNT, right_PN, answered_PN = map(jnp.asarray, synthetic_pool(c, rng))

    @jax.jit  # one program for all, in which the rank weights are computed once
    def curves(score):
        return {name: rerank.best_of_n(score_PN, right_PN, answered_PN) for name, score_PN in score.items()}

    @jax.jit
    def reweight(score_PN):  # a vmap over betas is 8 times slower on CPU
        def means(beta):
            new = rerank.reweight(score_PN, beta, None, answered_PN)
            return rerank.expectation(new.weight_PN, right_PN).mean(), new.kl_P.mean(), new.reward_P.mean()

        return jax.lax.map(means, jnp.geomspace(1e-2, 1e2, c.betas))

    def one_curve():
        score_PN = rerank.aggregate(logit_PNT, mask_PNT, "prod", unit="logit")
        return rerank.best_of_n(score_PN, right_PN, answered_PN)

    seconds = functools.partial(median_seconds, warmup=cfg.warmup, repeats=cfg.repeats)
    aggregate_all = functools.partial(rerank.aggregate_all, logit_PNT, mask_PNT, unit="logit")
    score, ours = aggregate_all(), seconds(one_curve)
    # The shuffles get the product rounded as ours compares it, so that they see the same ties.
    pool = rerank.round_score(score["prod"]), right_PN, answered_PN
    samples = [list(zip(*row, strict=True)) for row in zip(*(x_PN.tolist() for x_PN in pool), strict=True)]
    sizes, shuffle = (
        [n for n in PUBLISHED_SIZES if n < c.candidates] + [c.candidates],
        random.Random(cfg.seed).shuffle,
    )
    start = time.perf_counter()
    rate_Sn = np.array([python_trial(samples, sizes, shuffle) for _ in range(c.python_trials)])
    each = (time.perf_counter() - start) / c.python_trials
    error = largest_error(rate_Sn, np.asarray(one_curve())[:, np.array(sizes) - 1])
    shape = f"{c.problems} x {c.candidates:,} candidates of up to {c.steps} steps"
    return [
        Row("aggregate_seconds", seconds(aggregate_all), f"{len(score)} aggregators; {shape}"),
        Row(
            "curves_seconds",
            seconds(lambda: curves(score)),
            f"{len(score)} exact best-of-n curves at every n",
        ),
        Row("aggregate_and_curves_seconds", seconds(lambda: curves(aggregate_all())), "both, in one go"),
        Row(
            "reweight_seconds",
            seconds(lambda: reweight(score["prod"])),
            f"{c.betas} betas: accuracy, KL, score",
        ),
        Row("one_curve_seconds", ours, "the product of the step scores and its exact curve at every n"),
        Row(
            "python_trial_seconds",
            each,
            f"mean of {c.python_trials} of the published protocol at {len(sizes)} n",
        ),
        Row("python_shuffles_times_slower", PUBLISHED_TRIALS * each / ours, "all trials than one_curve"),
        Row(
            "python_shuffles_largest_error", error, "over n: their mean against one_curve, in standard errors"
        ),
    ]


def python_trial(samples: list[list[tuple]], sizes: list[int], shuffle: Callable) -> list[float]:
    """Pass rate at each n of one trial of the published protocol: shuffle a problem's candidates (score, is right, has
    an answer); the best of the first n with an answer wins, the first of equals. n without an answer count as wrong."""
    rates = []
    for n in sizes:
        solved = 0
        for candidates in map(list, samples):
            shuffle(candidates)
            drawn = [x for x in candidates[:n] if x[2]]
            solved += bool(drawn) and max(drawn, key=lambda x: x[0])[1]
        rates.append(solved / len(samples))
    return rates


def largest_error(rate_Sn, curve_Pn) -> float:
    """Largest |mean of the trials - exact| over n, in standard errors of that mean, which are at least 1e-6."""
    error_n = np.abs(rate_Sn.mean(0) - curve_Pn.mean(0))
    standard_n = np.asarray(rerank.subset_band(curve_Pn)) / math.sqrt(len(rate_Sn))
    return float((error_n / np.maximum(standard_n, 1e-6)).max())
