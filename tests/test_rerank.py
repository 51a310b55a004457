"""rerank.py against brute force, closed forms, literal arrays and real pools."""

import functools
import itertools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import real_gold

from prm_jax import rerank
from prm_jax.rerank import aggregate, best_of_n, bootstrap, expectation, reweight

INF = np.inf


def subsets(N, n):
    return itertools.combinations(range(N), n)


def brute_best_of_n(score_N, gold_N, n):
    """Mean over all n-subsets of the mean gold of the subset's best; nothing to choose counts 0."""
    total = 0.0
    for drawn in subsets(len(score_N), n):
        top = max(score_N[i] for i in drawn)
        if top > -INF:
            total += np.mean([gold_N[i] for i in drawn if score_N[i] == top])
    return total / math.comb(len(score_N), n)


def some_pool(rng, P=6, N=7, dtype=np.float64):
    """Integer scores with ties and -inf, gold of any value, a mask."""
    score_PN = rng.integers(0, 4, (P, N)).astype(dtype)
    score_PN[rng.random((P, N)) < 0.2] = -INF
    return score_PN, rng.random((P, N)).astype(dtype), rng.random((P, N)) < 0.8


# Aggregators

STEP_P = np.array([0.95, 0.90, 0.30, 0.85])
EXPECTED = {  # worked by hand from STEP_P
    "min": math.log(0.30),
    "prod": math.log(0.95 * 0.90 * 0.30 * 0.85),
    "mean": math.log(0.75),
    "gmean": math.log(0.95 * 0.90 * 0.30 * 0.85) / 4,
    "last": math.log(0.85),
    "max": math.log(0.95),
    "sum_logit": math.log(19) + math.log(9) + math.log(3 / 7) + math.log(17 / 3),
    "weighted": math.log((0.95 + 0.9 * 0.90 + 0.81 * 0.30 + 0.729 * 0.85) / 3.439),
    # r = 2 p - 1 = .9, .8, -.4, .7 and T = .1: weights exp(-(r + .4) / .1) = e^-13, e^-12, 1, e^-11 over their sum
    "softmin": math.log(
        (0.95 * math.exp(-13) + 0.9 * math.exp(-12) + 0.3 + 0.85 * math.exp(-11))
        / (math.exp(-13) + math.exp(-12) + 1 + math.exp(-11))
    ),
}


@pytest.mark.parametrize("unit", ["logit", "logp"])
@pytest.mark.parametrize("how", rerank.AGGREGATORS)
def test_aggregators_match_hand_worked_numbers(how, unit, precision):
    dtype, tol = precision
    step_p = STEP_P.astype(dtype)
    step_T = np.log(step_p) - (np.log1p(-step_p) if unit == "logit" else 0)
    got = aggregate(step_T[None, None], np.ones((1, 1, 4), bool), how, unit=unit)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, [[EXPECTED[how]]], rtol=tol, atol=tol)


def test_e10_order_of_aggregators_and_long_solutions(precision):
    _, tol = precision
    rng = np.random.default_rng(0)
    logit_PNT = rng.normal(1, 3, (5, 40, 9))
    mask_PNT = np.arange(9) < rng.integers(1, 10, (5, 40, 1))
    score = rerank.aggregate_all(logit_PNT, mask_PNT, unit="logit")
    for lower, higher in itertools.pairwise(["prod", "min", "gmean", "mean", "max"]):
        assert (score[lower] <= score[higher] + tol).all(), (lower, higher)
    assert (score["min"] <= score["softmin"] + tol).all() and (score["softmin"] <= score["mean"] + tol).all()
    # A step with p = 1 at the end leaves prod and min alone, moves mean and last.
    logp_PNT = np.where(mask_PNT, np.asarray(jax.nn.log_sigmoid(logit_PNT)), 0.0)
    longer_PNT = np.concatenate([mask_PNT[..., :1], mask_PNT], -1)
    hows = ("min", "prod", "mean", "last")
    before = rerank.aggregate_all(logp_PNT, mask_PNT, hows, unit="logp")
    longer = rerank.aggregate_all(np.pad(logp_PNT, ((0, 0), (0, 0), (0, 1))), longer_PNT, hows, unit="logp")
    for how in ("min", "prod"):
        np.testing.assert_allclose(longer[how], before[how], rtol=tol)
    for how in ("mean", "last"):
        assert (longer[how] > before[how]).all(), how
    long_T = np.full((1, 1, 200), 0.99)
    got = aggregate(np.log(long_T), long_T > 0, "prod", unit="logp")
    np.testing.assert_allclose(got, [[200 * math.log(0.99)]], rtol=tol * 10)


def test_e14_softmin_is_pures():
    r_T = np.array([0.9, 0.2, 0.8])
    weight_T = np.exp(-r_T / 0.1) / np.exp(-r_T / 0.1).sum()
    np.testing.assert_allclose(weight_T, [0.00091, 0.99662, 0.00247], atol=1e-5)
    score = aggregate(np.log((1 + r_T) / 2)[None, None], np.ones((1, 1, 3), bool), "softmin", unit="logp")
    np.testing.assert_allclose(2 * np.exp(score) - 1, [[0.2021]], atol=1e-4)


def test_extreme_steps_stay_finite_ordered_and_precise():
    """Columns: all steps certain, one doubtful in 1e-6, hopeless, hopeless and worse."""
    logit_1NT = np.array([[[40.0, 40.0], [40.0, 14.0], [-500.0, -600.0], [-500.0, -700.0]]], np.float32)
    for how in set(rerank.AGGREGATORS) - {"last", "sum_logit"}:
        score_N = aggregate(logit_1NT, np.ones(logit_1NT.shape, bool), how, unit="logit")[0]
        assert np.isfinite(score_N).all(), how
        assert score_N[0] >= score_N[1] > score_N[2] >= score_N[3], how
    mean_N = aggregate(logit_1NT, np.ones(logit_1NT.shape, bool), "mean", unit="logit")[0]
    # 1 - p = 8.3e-7 in one of two steps; a mean taken over p itself would be off by a tenth in float32
    np.testing.assert_allclose(mean_N[1], -0.5 / (1 + math.exp(14)), rtol=1e-5)
    np.testing.assert_allclose(mean_N[2], -500 - math.log(2), rtol=1e-6)
    np.testing.assert_array_equal(
        aggregate(logit_1NT, np.ones(logit_1NT.shape, bool), "sum_logit", unit="logit", clip=0.0)[0],
        [80, 54, -1100, -1200],
    )


def test_stored_scores_of_zero_and_one_are_not_clipped_but_by_sum_logit():
    logp_NT = np.log(np.array([[1.0, 1.0], [1.0, 0.5], [1.0, 1e-12]], np.float32))
    logp_NT = np.concatenate([logp_NT, [[0.0, -INF]]]).astype(np.float32)
    mask_NT = np.ones((4, 2), bool)
    half, tiny = math.log(0.5), math.log(1e-12)
    expected = {
        "min": [0, half, tiny, -INF],
        "prod": [0, half, tiny, -INF],
        "gmean": [0, half / 2, tiny / 2, -INF],
        "mean": [0, math.log(0.75), half, half],
        "max": [0, 0, 0, 0],
        "last": [0, half, tiny, -INF],
        "weighted": [0, math.log(1.45 / 1.9), math.log(1 / 1.9), math.log(1 / 1.9)],
    }
    for how, score_N in expected.items():
        np.testing.assert_allclose(
            aggregate(logp_NT, mask_NT, how, unit="logp"), score_N, rtol=1e-6, err_msg=how
        )
    for clip, top in ((1e-6, 13.815510), (1e-3, 6.906755)):
        got = aggregate(logp_NT, mask_NT, "sum_logit", unit="logp", clip=clip)
        np.testing.assert_allclose(got, [2 * top, top, 0, 0], rtol=1e-6, atol=1e-6)


def test_padding_changes_no_bit_and_empty_is_minus_inf():
    rng = np.random.default_rng(1)
    logit_PNT = rng.normal(0, 3, (3, 5, 6)).astype(np.float32)
    mask_PNT = rng.random((3, 5, 6)) < 0.6  # gaps too
    mask_PNT[1, 2] = False
    run = lambda x_PNT, mask_PNT: rerank.aggregate_all(x_PNT, mask_PNT, unit="logit")
    clean = run(np.where(mask_PNT, logit_PNT, 0), mask_PNT)
    for junk in (7.0, -1e30, INF, -INF, np.nan):
        for how, score_PN in run(np.where(mask_PNT, logit_PNT, np.float32(junk)), mask_PNT).items():
            np.testing.assert_array_equal(score_PN, clean[how], err_msg=f"{how} {junk}")
    steps_T = logit_PNT[0, 0][mask_PNT[0, 0]]
    for how, score_PN in run(steps_T[None, None], np.ones((1, 1, len(steps_T)), bool)).items():
        assert clean[how][1, 2] == -INF and np.isfinite(clean[how]).sum() == 14, how
        if how != "weighted":  # whose weights belong to places in the array, gaps included
            np.testing.assert_allclose(score_PN[0, 0], clean[how][0, 0], rtol=1e-6, err_msg=how)
    none = run(np.zeros((2, 3, 0)), np.zeros((2, 3, 0), bool))
    assert all((score_PN == -INF).all() for score_PN in none.values())

    def total(x_PNT):
        return sum(
            jnp.where(mask_PNT.any(-1), score_PN, 0).sum() for score_PN in run(x_PNT, mask_PNT).values()
        )

    gradient_PNT = jax.jit(jax.grad(total))(np.where(mask_PNT, logit_PNT, np.nan).astype(np.float32))
    assert np.isfinite(gradient_PNT).all() and (gradient_PNT[~mask_PNT] == 0).all()
    assert (gradient_PNT[mask_PNT] != 0).all()


def test_aggregate_all_is_each_of_them():
    rng = np.random.default_rng(2)
    logit_PNT, mask_PNT = rng.normal(0, 3, (11, 4, 5)).astype(np.float32), rng.random((11, 4, 5)) < 0.7
    got = rerank.aggregate_all(logit_PNT, mask_PNT, unit="logit", decay=0.5)
    assert set(got) == set(rerank.AGGREGATORS)
    for how, score_PN in got.items():
        one = aggregate(logit_PNT, mask_PNT, how, unit="logit", decay=0.5)
        np.testing.assert_allclose(score_PN, one, rtol=2e-6, err_msg=how)


def test_unknown_names_raise_with_what_was_expected():
    step = np.zeros((1, 1, 1))
    with pytest.raises(ValueError, match="'median', expected one of min, prod"):
        aggregate(step, step == 0, "median", unit="logit")
    with pytest.raises(ValueError, match='expected "logit" or "logp"'):
        aggregate(step, step == 0, "min", unit="p")
    with pytest.raises(ValueError, match='expected "share" or "first"'):
        best_of_n(step[0], step[0], ties="last")


# Reweighting


def test_reweight_matches_the_definition(precision):
    dtype, tol = precision
    rng = np.random.default_rng(3)
    score_PN, ref_PN = rng.normal(0, 2, (6, 9)).astype(dtype), rng.random((6, 9)).astype(dtype)
    mask_PN = rng.random((6, 9)) < 0.7
    got = reweight(score_PN, 0.7, ref_PN, mask_PN)
    law_PN = np.where(mask_PN, ref_PN.astype(float), 0)
    law_PN /= law_PN.sum(-1, keepdims=True)
    tilted_PN = law_PN * np.exp(score_PN.astype(float) / 0.7)
    z_P1 = tilted_PN.sum(-1, keepdims=True)
    weight_PN = tilted_PN / z_P1
    with np.errstate(all="ignore"):
        kl_P = np.nansum(weight_PN * np.log(weight_PN / law_PN), -1)
    np.testing.assert_allclose(got.weight_PN, weight_PN, atol=tol)
    np.testing.assert_allclose(got.kl_P, kl_P, atol=10 * tol)
    np.testing.assert_allclose(got.log_z_P, np.log(z_P1[:, 0]), rtol=10 * tol, atol=10 * tol)
    np.testing.assert_allclose(got.reward_P, (weight_PN * score_PN).sum(-1), rtol=10 * tol, atol=10 * tol)
    np.testing.assert_allclose(rerank.kl_divergence(got.weight_PN, law_PN), kl_P, atol=10 * tol)


def test_e9_identities_by_finite_differences():
    with jax.enable_x64(True):
        rng = np.random.default_rng(4)
        score_PN, ref_PN = rng.normal(0, 2, (5, 8)), rng.random((5, 8))
        at = lambda inverse: reweight(score_PN, 1 / inverse, ref_PN)
        inverse, step = 1 / 0.7, 1e-5
        here, up, down = at(inverse), at(inverse + step), at(inverse - step)
        mean_P = here.reward_P
        variance_P = expectation(here.weight_PN, score_PN**2) - mean_P**2
        np.testing.assert_allclose(here.kl_P, mean_P * inverse - here.log_z_P, rtol=1e-12)
        np.testing.assert_allclose((up.log_z_P - down.log_z_P) / (2 * step), mean_P, rtol=1e-6)
        np.testing.assert_allclose((up.reward_P - down.reward_P) / (2 * step), variance_P, rtol=1e-6)
        np.testing.assert_allclose((up.kl_P - down.kl_P) / (2 * step), variance_P * inverse, rtol=1e-6)


def test_reweight_at_the_ends_of_beta():
    score_PN = np.array([[-1.0, -3.0, -1.0, -INF, -2.0]], np.float32)
    ref_PN = np.array([[1.0, 2.0, 3.0, 2.0, 2.0]], np.float32)
    cold, hot = reweight(score_PN, 0.0, ref_PN), reweight(score_PN, INF, ref_PN)
    # beta 0: the two maxima in proportion 1 : 3 of ref, KL = log(total ref / theirs), log Z -> -1 / 0
    np.testing.assert_allclose(cold.weight_PN, [[0.25, 0, 0.75, 0, 0]], rtol=1e-6)
    np.testing.assert_allclose(
        [cold.kl_P[0], cold.log_z_P[0], cold.reward_P[0]], [math.log(10 / 4), -INF, -1], rtol=1e-6
    )
    # beta inf: ref, but for the candidate of probability 0, which has weight 0 at every finite beta
    np.testing.assert_allclose(hot.weight_PN, [[1 / 8, 2 / 8, 3 / 8, 0, 2 / 8]], rtol=1e-6)
    np.testing.assert_allclose([hot.kl_P[0], hot.log_z_P[0]], [math.log(10 / 8), math.log(8 / 10)], rtol=1e-6)
    assert reweight(score_PN, 1e-6, ref_PN).weight_PN[0, 2] == pytest.approx(0.75)
    best_is_zero = reweight(score_PN + 1, 0.0, ref_PN)
    np.testing.assert_allclose(best_is_zero.log_z_P, [math.log(4 / 10)], rtol=1e-6)
    # equal up to float32's rounding: a tie at 0
    near_PN = np.array([[-0.3, np.nextafter(np.float32(-0.3), np.float32(0))]], np.float32)
    np.testing.assert_array_equal(reweight(near_PN, 0.0).weight_PN, [[0.5, 0.5]])
    near = reweight(near_PN[:, :1], 0.0)  # compared after rounding, reported before
    np.testing.assert_array_equal(near.reward_P, near_PN[:, 0])


def test_reweight_where_nothing_can_win():
    """Rows: all masked, all -inf, ref 0 on the only real candidate, one candidate left."""
    score_PN = np.array([[1.0, 2.0], [-INF, -INF], [3.0, -INF], [-5000.0, np.nan]], np.float32)
    mask_PN = np.array([[False, False], [True, True], [True, True], [True, False]])
    ref_PN = np.array([[1.0, 1.0], [1.0, 1.0], [0.0, 1.0], [1.0, 1.0]], np.float32)
    for beta in (0.0, 0.3, INF):
        law = reweight(score_PN, beta, ref_PN, mask_PN)
        np.testing.assert_array_equal(law.weight_PN, [[0, 0], [0, 0], [0, 0], [1, 0]])
        np.testing.assert_array_equal(law.kl_P, [0, 0, 0, 0])
        np.testing.assert_array_equal(law.reward_P, [-INF, -INF, -INF, -5000])
        assert (law.log_z_P[:3] == -INF).all()
        np.testing.assert_array_equal(expectation(law.weight_PN, np.ones((4, 2))), [0, 0, 0, 1])


def test_reweight_over_a_beta_grid_is_a_loop_and_huge_scores_do_not_overflow():
    rng = np.random.default_rng(5)
    score_PN = rng.normal(0, 1e4, (4, 6)).astype(np.float32)
    betas = np.array([0.0, 1e-3, 0.7, 1e3, INF], np.float32)
    grid = jax.vmap(lambda beta: reweight(score_PN, beta))(betas)
    for i, beta in enumerate(betas):
        one = reweight(score_PN, beta)
        for a, b in zip(grid, one):
            np.testing.assert_allclose(a[i], b, rtol=1e-5)
        assert np.isfinite(one.weight_PN).all() and np.isfinite(one.kl_P).all() and (one.kl_P >= 0).all()
    assert (np.diff(grid.kl_P, axis=0) <= 1e-5).all() and (np.diff(grid.reward_P, axis=0) <= 1e-2).all()
    np.testing.assert_allclose(grid.kl_P[0], math.log(6), rtol=1e-6)
    np.testing.assert_allclose(grid.kl_P[-1], 0, atol=1e-6)


# Best-of-n


@pytest.mark.parametrize("seed", range(3))
def test_e1_best_of_n_equals_the_mean_over_all_subsets(seed, precision):
    dtype, tol = precision
    rng = np.random.default_rng(seed)
    N = 9
    score_PN, gold_PN, mask_PN = some_pool(rng, 5, N, dtype)
    curve_Pn = best_of_n(score_PN, gold_PN, mask_PN)
    hidden_PN = np.where(mask_PN, score_PN, -INF)
    expected = [[brute_best_of_n(s, g, n) for n in range(1, N + 1)] for s, g in zip(hidden_PN, gold_PN)]
    np.testing.assert_allclose(curve_Pn, expected, rtol=0, atol=tol)


def test_e2_proxy_equal_to_gold_is_pass_at_n(precision):
    _, tol = precision
    right_PN = np.random.default_rng(0).random((6, 10)) < np.arange(6)[:, None] / 5
    expected = [
        [1 - math.comb(10 - c, n) / math.comb(10, n) for n in range(1, 11)] for c in right_PN.sum(-1).tolist()
    ]
    np.testing.assert_allclose(rerank.pass_at_n(right_PN), expected, atol=tol)
    np.testing.assert_allclose(best_of_n(right_PN, right_PN), expected, atol=tol)


def test_pass_at_n_without_the_bias_of_drawing_with_replacement():
    """p = .02, M = 64: averaged over c ~ Binomial(64, p), pass@n is 1 - (1 - p)^n; the plug-in gives .250, .400, .559."""
    right_PN = np.arange(64) < np.arange(65)[:, None]
    chance_P = np.array([math.comb(64, c) * 0.02**c * 0.98 ** (64 - c) for c in range(65)])
    got_n = chance_P @ np.asarray(rerank.pass_at_n(right_PN, size_n=np.array([16, 32, 64])))
    np.testing.assert_allclose(got_n, [0.276, 0.476, 0.726], atol=5e-4)
    np.testing.assert_allclose(got_n, 1 - 0.98 ** np.array([16, 32, 64]), atol=1e-6)


def test_e3_ends_of_the_curve_and_permutations(precision):
    _, tol = precision
    rng = np.random.default_rng(6)
    score_PN, gold_PN, _ = some_pool(rng, 5, 9)
    score_PN[:, 0] = 1.0  # at least one that can win
    gold_PN = np.where(score_PN > -INF, gold_PN, 0.0)
    curve_Pn = best_of_n(score_PN, gold_PN)
    np.testing.assert_allclose(curve_Pn[:, 0], gold_PN.mean(-1), atol=tol)
    top_PN = score_PN == score_PN.max(-1, keepdims=True)
    np.testing.assert_allclose(curve_Pn[:, -1], (gold_PN * top_PN).sum(-1) / top_PN.sum(-1), atol=tol)
    shuffle_N = rng.permutation(9)
    np.testing.assert_allclose(best_of_n(score_PN[:, shuffle_N], gold_PN[:, shuffle_N]), curve_Pn, atol=tol)


def test_ties_first_is_the_lowest_index_in_every_subset():
    rng = np.random.default_rng(7)
    score_PN, gold_PN, _ = some_pool(rng, 4, 8)
    unique_PN = score_PN - 1e-3 * np.arange(8)  # the same order, ties broken by index
    expected = [[brute_best_of_n(s, g, n) for n in range(1, 9)] for s, g in zip(unique_PN, gold_PN)]
    np.testing.assert_allclose(best_of_n(score_PN, gold_PN, ties="first"), expected, atol=1e-6)


def test_what_ties_and_what_does_not():
    half = lambda x: np.asarray(x, np.float16).astype(np.float32)
    a, b, c = half(0.9995), half(0.999), half(0.9985)  # a * c and b * b differ by 2.4e-7
    pairs = {
        "-0 and 0": ([0.0, -0.0], True),
        "a sum in another order": ([np.float32(0.1) + 0.2 + 0.3, np.float32(0.3) + 0.2 + 0.1], True),
        "one float32 apart": ([-0.3, np.nextafter(np.float32(-0.3), np.float32(0))], True),
        "products of half-precision scores": ([np.log(a) + np.log(c), 2 * np.log(b)], False),
        "neighbours in half precision": ([np.log(a), np.log(half(1.0))], False),
        "-inf and the lowest": ([-INF, -1e38], False),
    }
    for name, (score_N, ties) in pairs.items():
        share = best_of_n(np.array([score_N], np.float32), np.array([[1.0, 0.0]]))[0, 1]
        assert (share == 0.5) == ties, name


def test_order_is_a_stable_sort_of_any_float():
    rng = np.random.default_rng(8)
    score_PN = (rng.choice([-1, 1], (5, 300)) * 10.0 ** rng.integers(-37, 38, (5, 300))).astype(np.float32)
    score_PN[:, ::7] = rng.choice(np.array([0.0, -0.0, -INF, INF, 1.0], np.float32), score_PN[:, ::7].shape)
    score_PN = np.asarray(rerank.round_score(score_PN))
    for N in (1, 2, 300):
        expected = np.argsort(-score_PN[:, :N], -1, kind="stable")
        np.testing.assert_array_equal(jax.jit(rerank._best_first)(score_PN[:, :N]), expected)


def test_edge_sizes_and_nan():
    score_PN, gold_PN = np.array([[2.0, 1.0], [np.nan, 1.0], [-INF, -INF]]), np.ones((3, 2))
    got = np.asarray(best_of_n(score_PN, gold_PN, size_n=np.array([0, 1, 2, 3])))
    assert np.isnan(got[:, [0, 3]]).all()  # sizes outside 1..N
    np.testing.assert_array_equal(got[:, 1:3], [[1, 1], [np.nan, np.nan], [0, 0]])
    np.testing.assert_array_equal(best_of_n(score_PN[:1, :1], gold_PN[:1, :1]), [[1]])
    soft_Pn = rerank.soft_best_of_n(
        jax.random.key(0), score_PN, gold_PN, 1.0, size_n=np.array([0, 3]), draws=2
    )
    assert np.isnan(soft_Pn).all()


def test_rank_weights_against_exact_fractions_at_1860():
    """The sum of all errors of a row bounds the error of any curve with gold within 0..1."""
    N, sizes = 1860, [1, 2, 10, 50, 500, 1500, 1859, 1860]
    weight_nN = np.asarray(jax.jit(rerank.rank_weights, static_argnums=1)(np.array(sizes), N), np.float64)
    for row_N, n in zip(weight_nN, sizes):
        exact = [float(Fraction(math.comb(N - 1 - rank, n - 1), math.comb(N, n))) for rank in range(N)]
        assert np.abs(row_N - exact).sum() < 3e-7, n


def test_curve_at_1860_is_right_to_1e_6_in_float32():
    rng = np.random.default_rng(9)
    score_PN = np.round(rng.normal(size=(3, 1860)), 2).astype(np.float32)  # ties
    gold_PN = rng.random((3, 1860)) < np.array([0.02, 0.5, 0.98])[:, None]
    single = best_of_n(score_PN, gold_PN)
    assert single.dtype == np.float32
    n = np.array([1, 3, 64, 1000, 1860])
    for p in range(3):
        order = np.argsort(-score_PN[p])
        block = {s: gold_PN[p][score_PN[p] == s].mean() for s in set(score_PN[p])}
        gold = np.array([block[s] for s in score_PN[p][order]])
        for size in n:
            hazard = np.minimum(size / (1860 - np.arange(1860)), 1)
            weight = hazard * np.concatenate([[1], np.cumprod(1 - hazard)[:-1]])
            assert abs(single[p, size - 1] - weight @ gold) < 1e-6


def normal_cdf(x):
    return np.vectorize(lambda z: 0.5 * math.erfc(-z / math.sqrt(2)))(x)


@pytest.mark.parametrize(
    ("d", "q", "N", "truth"),
    [
        (1.0, 0.00, 64, [0.5000, 0.6301, 0.7352, 0.8115, 0.8639, 0.8996, 0.9242]),
        (1.5, 0.02, 128, [0.5000, 0.6696, 0.7921, 0.8444, 0.8326, 0.7663, 0.6502, 0.4939]),
    ],
    ids=["E5", "E6"],
)
def test_e5_e6_closed_form_truths(d, q, N, truth):
    """Right ~ N(d, 1); wrong ~ N(0, 1), a share q of them ~ N(4, 1); success .5."""
    size_n = 2 ** np.arange(len(truth))
    s = np.linspace(-9, 13, 20001)
    density = lambda m: np.exp(-0.5 * (s - m) ** 2) / math.sqrt(2 * math.pi)
    below = 0.5 * normal_cdf(s - d) + 0.5 * ((1 - q) * normal_cdf(s) + q * normal_cdf(s - 4))
    integral_n = [np.trapezoid(n * 0.5 * density(d) * below ** (n - 1), s) for n in size_n]
    np.testing.assert_allclose(integral_n, truth, atol=6e-5)
    rng = np.random.default_rng(10)
    P, M = 3000, 2 * N
    right_PN = rng.random((P, M)) < 0.5
    wrong_PN = rng.normal(size=(P, M)) + 4 * (rng.random((P, M)) < q)
    curve_Pn = best_of_n(np.where(right_PN, rng.normal(d, 1, (P, M)), wrong_PN), right_PN, size_n=size_n)
    error_n = curve_Pn.std(0) / math.sqrt(P)
    assert (np.abs(curve_Pn.mean(0) - np.array(truth)) < 4 * error_n + 1e-4).all()
    if q:
        assert curve_Pn.mean(0).argmax() == 3  # peaks at n = 8, then over-optimises


def test_e7_band_is_the_standard_deviation_of_shuffles():
    """OpenAI's protocol: shuffle, take the first n, arg max; 400 trials. Its mean is the curve, its std the band."""
    rng = np.random.default_rng(11)
    P, N, n, trials = 100, 32, 8, 400
    score_PN, gold_PN = rng.normal(size=(P, N)), rng.random((P, N)) < 0.4
    order_SPN = rng.permuted(np.tile(np.arange(N), (trials, P, 1)), axis=-1)[..., :n]
    drawn_SPN = np.take_along_axis(np.broadcast_to(score_PN, (trials, P, N)), order_SPN, -1)
    winner_SP = np.take_along_axis(order_SPN, drawn_SPN.argmax(-1)[..., None], -1)
    rate_S = np.take_along_axis(np.broadcast_to(gold_PN, (trials, P, N)), winner_SP, -1).mean((1, 2))
    curve_P1 = best_of_n(score_PN, gold_PN, size_n=np.array([n]))
    band = float(rerank.subset_band(curve_P1)[0])
    assert 0.9 < rate_S.std() / band < 1.1
    assert abs(rate_S.mean() - curve_P1.mean()) < 4 * band / math.sqrt(trials)
    assert float(rerank.subset_band(np.array([[0.0, 0.5], [1.0, 0.5]]))[1]) == pytest.approx(
        math.sqrt(0.5) / 2
    )


def test_e8_exact_kl_of_best_of_n(precision):
    _, tol = precision
    for outcomes, n, kl, bound in (
        (2, 256, 0.6931, 4.549),
        (10, 16, 1.733, 1.835),
        (1000, 256, 4.546, 4.549),
    ):
        ref_PN = np.full((1, outcomes), 1 / outcomes)
        law_PN = rerank.best_of_n_law(np.arange(outcomes)[None] * 1.0, n)
        exact = (np.arange(1, outcomes + 1) / outcomes) ** n - (np.arange(outcomes) / outcomes) ** n
        np.testing.assert_allclose(law_PN[0], exact, atol=tol)
        got = float(rerank.kl_divergence(law_PN, ref_PN)[0])
        assert got == pytest.approx(kl, abs=6e-4) and got <= float(rerank.best_of_n_kl_bound(n)) + tol
        assert float(rerank.best_of_n_kl_bound(n)) == pytest.approx(bound, abs=6e-4)


def test_best_of_n_law_against_all_draws_with_ties(precision):
    dtype, tol = precision
    score_N = np.array([1.0, 3.0, 1.0, -INF, 3.0, 2.0], dtype)
    ref_N = np.array([0.1, 0.2, 0.1, 0.2, 0.1, 0.3], dtype)
    law_N = np.zeros(6)
    for drawn in itertools.product(range(6), repeat=3):
        top = max(score_N[i] for i in drawn)
        if top > -INF:
            tied = score_N == top  # shared in proportion to ref over all outcomes of that score
            law_N += np.prod(ref_N[list(drawn)].astype(float)) * tied * ref_N / ref_N[tied].sum()
    np.testing.assert_allclose(rerank.best_of_n_law(score_N[None], 3, ref_N[None])[0], law_N, atol=tol)
    masked = rerank.best_of_n_law(score_N[None], 3, 7 * ref_N[None], (np.arange(6) != 3)[None])[0]
    assert masked.sum() == pytest.approx(1, abs=tol) and masked[3] == 0
    np.testing.assert_array_equal(
        rerank.best_of_n_law(score_N[None], 3, mask_PN=np.zeros((1, 6), bool)), np.zeros((1, 6))
    )


def test_within_problem_auroc_from_the_curve():
    """Pair-weighted AUROC = 1/2 + (BoN@2 - pass@1) / (2 (pass@2 - pass@1))."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(12)
        right_PN = rng.random((20, 12)) < 0.5
        score_PN = np.round(rng.normal(size=(20, 12)) + right_PN, 1)
        pair_PNN = right_PN[:, :, None] & ~right_PN[:, None]
        above_PNN = score_PN[:, :, None] - score_PN[:, None]
        auroc = np.sum(((above_PNN > 0) + 0.5 * (above_PNN == 0)) * pair_PNN) / pair_PNN.sum()
        size_n = np.array([1, 2])
        one, two = best_of_n(score_PN, right_PN, size_n=size_n).mean(0)
        pass_two = rerank.pass_at_n(right_PN, size_n=size_n).mean(0)[1]
        assert float(0.5 + (two - one) / (2 * (pass_two - one))) == pytest.approx(auroc, abs=1e-12)


def test_soft_best_of_n():
    """beta 0 is best-of-n; all N candidates give the reweighted law; the key decides."""
    rng = np.random.default_rng(14)
    P, N, draws = 40, 12, 300
    score_PN, gold_PN = rng.normal(size=(P, N)).astype(np.float32), rng.random((P, N)) < 0.4
    mask_PN = rng.random((P, N)) < 0.9
    key, size_n = jax.random.key(0), np.array([1, 4, 12])
    sample = functools.partial(rerank.soft_best_of_n, mask_PN=mask_PN, size_n=size_n, draws=draws)
    cold_Pn = sample(key, score_PN, gold_PN, 0.0)
    exact_Pn = best_of_n(score_PN, gold_PN, mask_PN, size_n)
    error_n = rerank.subset_band(exact_Pn) / math.sqrt(draws)
    assert (np.abs(cold_Pn.mean(0) - exact_Pn.mean(0)) <= 4 * error_n + 1e-6).all()
    soft_Pn = sample(key, score_PN, gold_PN, 0.5)
    law_PN = reweight(score_PN, 0.5, None, mask_PN).weight_PN
    np.testing.assert_allclose(soft_Pn[:, -1], expectation(law_PN, gold_PN), atol=1e-5)
    np.testing.assert_array_equal(soft_Pn, sample(key, score_PN, gold_PN, 0.5))
    assert (soft_Pn != sample(jax.random.key(1), score_PN, gold_PN, 0.5)).any()


# Intervals


def test_bootstrap_intervals():
    rng = np.random.default_rng(15)
    value_PX = np.stack([rng.normal(0.3, 1, 400), np.zeros(400), rng.random(400) < 0.5], -1)
    got = bootstrap(jax.random.key(0), value_PX, draws=4000)
    np.testing.assert_allclose(got.mean_X, value_PX.mean(0), rtol=1e-5, atol=1e-7)
    half_X = 1.96 * value_PX.std(0) / 20
    np.testing.assert_allclose(got.high_X - got.mean_X, half_X, rtol=0.1)
    np.testing.assert_allclose(got.mean_X - got.low_X, half_X, rtol=0.1)
    assert got.p_X[1] == 1 and got.p_X[0] < 0.01 and got.p_X[2] == pytest.approx(2 / 4001)
    # one column alone, another level, another key
    alone = bootstrap(jax.random.key(0), value_PX[:, 0], draws=4000, level=0.5)
    np.testing.assert_allclose(alone.high_X - alone.low_X, 2 * 0.6745 * value_PX[:, 0].std() / 20, rtol=0.1)
    other = bootstrap(jax.random.key(1), value_PX, draws=4000)
    assert (other.low_X != got.low_X)[0] and (
        bootstrap(jax.random.key(0), value_PX, draws=4000).low_X == got.low_X
    ).all()


def test_paired_difference_is_sharper_than_two_intervals():
    rng = np.random.default_rng(16)
    a_P = rng.random(300) < 0.7
    b_P = a_P & (rng.random(300) < 0.95)  # b fails on a few more
    paired = bootstrap(jax.random.key(0), a_P.astype(float) - b_P)
    alone = bootstrap(jax.random.key(0), a_P)
    assert paired.low_X > 0 and paired.p_X < 0.01
    assert paired.high_X - paired.low_X < 0.6 * (alone.high_X - alone.low_X)


# Transformations


def test_jit_equals_no_jit_and_vmap_equals_a_loop():
    rng = np.random.default_rng(17)
    logit_PNT, mask_PNT = rng.normal(0, 2, (2, 5, 3)).astype(np.float32), rng.random((2, 5, 3)) < 0.8
    gold_PN, key = rng.random((2, 5)).astype(np.float32), jax.random.key(0)

    def everything(logit_PNT):
        score_PN = aggregate(logit_PNT, mask_PNT, "prod", unit="logit")
        return {
            "two": rerank.aggregate_all(logit_PNT, mask_PNT, ("last", "softmin"), unit="logit"),
            "law": reweight(score_PN, 0.5),
            "best": best_of_n(score_PN, gold_PN),
            "best_law": rerank.best_of_n_law(score_PN, 3),
            "soft": rerank.soft_best_of_n(key, score_PN, gold_PN, 0.5, draws=2),
            "interval": bootstrap(key, score_PN, draws=8),
        }

    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6)
    plain, shifted = everything(logit_PNT), everything(1 + logit_PNT)
    batched = jax.jit(jax.vmap(everything))(np.stack([logit_PNT, 1 + logit_PNT]))
    jax.tree.map(lambda both, one, other: close(both, np.stack([one, other])), batched, plain, shifted)
    with jax.disable_jit():
        score_PN = aggregate(logit_PNT, mask_PNT, "prod", unit="logit")
        jax.tree.map(close, reweight(score_PN, 0.5), plain["law"])


# Real pools: two of the PRMs' public best-of-32 pools, counted once by a plain loop over stored scores

AGGREGATED = ("min", "last", "prod", "mean")
RIGHT = {  # problems solved of 259 (gsm8k) and 256 (math500) by best-of-32 under AGGREGATED, ties="first"
    ("gsm8k", "qwen_prm"): (250, 247, 252, 252),
    ("gsm8k", "skywork_prm"): (249, 251, 249, 252),
    ("gsm8k", "skywork_prm_1_5b"): (243, 246, 243, 247),
    ("gsm8k", "rlhflow_prm"): (247, 245, 247, 247),
    ("gsm8k", "math_shepherd"): (246, 246, 246, 247),
    ("gsm8k", "internlm2_7b_reward"): (236, 248, 239, 240),
    ("gsm8k", "internlm2_1_8b_reward"): (241, 244, 242, 240),
    ("math500", "qwen_prm"): (208, 198, 211, 203),
}
SHARED = {  # solved share with ties="share", where it differs from the above
    ("gsm8k", "qwen_prm", "last"): 0.9637,
    ("gsm8k", "rlhflow_prm", "last"): 0.9455,
    ("gsm8k", "skywork_prm", "min"): 0.9582,
    ("math500", "qwen_prm", "min"): 0.8172,
    ("math500", "qwen_prm", "last"): 0.7850,
    ("math500", "qwen_prm", "prod"): 0.8251,
    ("math500", "qwen_prm", "mean"): 0.7937,
}
TIED = {  # problems whose maximum is shared
    ("gsm8k", "qwen_prm"): (128, 229, 65, 69),
    ("gsm8k", "skywork_prm"): (60, 18, 2, 5),
    ("gsm8k", "skywork_prm_1_5b"): (64, 7, 2, 2),
    ("gsm8k", "rlhflow_prm"): (70, 136, 22, 32),
    ("gsm8k", "math_shepherd"): (43, 39, 10, 18),
    ("gsm8k", "internlm2_7b_reward"): (17, 6, 5, 5),
    ("gsm8k", "internlm2_1_8b_reward"): (12, 3, 3, 3),
    ("math500", "qwen_prm"): (98, 232, 42, 36),
}


def stored_logp(rows, scorer):
    """logp_PNT, mask_PNT of the stored scores."""
    steps = [[c["prm_step_scores"][scorer] for c in row["candidates"]] for row in rows]
    logp_PNT = np.zeros((len(rows), 32, max(len(s) for row in steps for s in row)), np.float32)
    mask_PNT = np.zeros(logp_PNT.shape, bool)
    for p, row in enumerate(steps):
        for i, score_T in enumerate(row):
            logp_PNT[p, i, : len(score_T)] = np.log(score_T)
            mask_PNT[p, i, : len(score_T)] = True
    return logp_PNT, mask_PNT


@pytest.mark.parametrize(("name", "right", "oracle"), [("gsm8k", 7682, 253), ("math500", 5803, 234)])
def test_real_mean_and_oracle(best_of_32, name, right, oracle):
    gold_PN = real_gold(best_of_32[name])
    assert gold_PN.sum() == right
    assert float(rerank.pass_at_n(gold_PN)[:, -1].sum()) == pytest.approx(oracle, abs=1e-4)


@pytest.mark.parametrize(("name", "scorer"), RIGHT)
def test_real_best_of_32_counts(best_of_32, name, scorer):
    gold_PN = real_gold(best_of_32[name])
    score = rerank.aggregate_all(*stored_logp(best_of_32[name], scorer), AGGREGATED, unit="logp")
    size_n = np.array([32])
    first = [float(best_of_n(score[how], gold_PN, size_n=size_n, ties="first").sum()) for how in AGGREGATED]
    assert first == list(RIGHT[name, scorer])
    for how, count in zip(AGGREGATED, RIGHT[name, scorer]):
        share = float(best_of_n(score[how], gold_PN, size_n=size_n).mean())
        assert share == pytest.approx(SHARED.get((name, scorer, how), count / len(gold_PN)), abs=6e-5), how
    rounded = [np.asarray(rerank.round_score(score[how])) for how in AGGREGATED]
    tied = [int(((r == r.max(-1, keepdims=True)).sum(-1) > 1).sum()) for r in rounded]
    assert tied == list(TIED[name, scorer])
