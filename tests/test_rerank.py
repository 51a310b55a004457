"""rerank.py against brute force, closed forms and literal arrays.

Compiling is most of the time of these tests, so most share one shape and one way to call each function.
"""

import itertools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prm_jax import rerank
from prm_jax.kernels.sort import best_first, ranks
from prm_jax.rerank import aggregate, best_of_n, reweight

INF = np.inf
P, N, T = 8, 9, 6
ALL_PN, EVEN_PN = np.ones((P, N), bool), np.ones((P, N))


def kl_divergence(p_PN, ref_PN):
    return rerank.expectation(p_PN, jnp.log(p_PN) - jnp.log(ref_PN))


def corner(x, shape=(P, N)):
    """x in the corner of an array of zeros, and the mask of what it fills."""
    out, mask = np.zeros(shape, x.dtype), np.zeros(shape, bool)
    place = tuple(slice(size) for size in x.shape)
    out[place], mask[place] = x, True
    return out, mask


def brute_best_of_n(score_N, gold_N, eligible_N, mask_N, n, ties="share"):
    """Mean over all n-subsets of the candidates that exist of the (mean, or first) gold of the best eligible;
    else 0."""
    golds, there = [], np.flatnonzero(mask_N)
    for drawn in itertools.combinations(there, min(n, len(there))):
        able = [i for i in drawn if eligible_N[i]]
        best = [i for i in able if score_N[i] == max(score_N[j] for j in able)]
        golds.append(np.mean(gold_N[best[: 1 if ties == "first" else None]]) if best else 0.0)
    return np.mean(golds)


def brute_curves(*pool, ties="share"):
    """curve_Pn of a pool score_PN, gold_PN, eligible_PN, mask_PN."""
    return [[brute_best_of_n(*problem, n, ties) for n in range(1, N + 1)] for problem in zip(*pool)]


def some_pool(rng, dtype=np.float64):
    """Integer scores with ties and -inf, gold of any value, who is eligible, who exists."""
    score_PN = rng.integers(0, 4, (P, N)).astype(dtype)
    score_PN[rng.random((P, N)) < 0.2] = -INF
    score_PN[1] = -INF  # all of probability 0: a tie
    eligible_PN, mask_PN = rng.random((P, N)) < 0.8, rng.random((P, N)) < 0.8
    eligible_PN[2] = False
    mask_PN[:, 3], mask_PN[3] = True, np.arange(N) == 3
    return score_PN, rng.random((P, N)).astype(dtype), eligible_PN, mask_PN


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
    # r = 2 p - 1 = .9, .8, -.4, .7 and T = .1: weights exp(-(r + .4) / .1) = e^-13, e^-12, 1, e^-11 over
    # their sum
    "softmin": math.log(
        (0.95 * math.exp(-13) + 0.9 * math.exp(-12) + 0.3 + 0.85 * math.exp(-11))
        / (math.exp(-13) + math.exp(-12) + 1 + math.exp(-11))
    ),
}


def aggregated(step_NT, unit):
    """{how: score_N} of a few solutions of equal length."""
    step_PNT, mask_PNT = corner(step_NT[None], (P, N, T))
    score = rerank.aggregate_all(step_PNT, mask_PNT, unit=unit)
    assert tuple(sorted(score)) == tuple(sorted(rerank.AGGREGATORS))
    return {how: np.asarray(score_PN)[0, : len(step_NT)] for how, score_PN in score.items()}


@pytest.mark.parametrize("unit", ["logit", "logp"])
def test_aggregators_match_hand_worked_numbers(unit, precision):
    dtype, tol = precision
    step_p = STEP_P.astype(dtype)
    step_T = np.log(step_p) - (np.log1p(-step_p) if unit == "logit" else 0)
    for how, score_N in aggregated(step_T[None], unit).items():
        assert score_N.dtype == dtype
        np.testing.assert_allclose(score_N, [EXPECTED[how]], rtol=tol, atol=tol, err_msg=how)


def test_extreme_steps_stay_finite_ordered_and_precise():
    """Solutions: all steps certain, one doubtful in 1e-6, hopeless, hopeless and worse."""
    logit_NT = np.array([[40.0, 40.0], [40.0, 14.0], [-500.0, -600.0], [-500.0, -700.0]], np.float32)
    score = aggregated(logit_NT, "logit")
    for how in set(rerank.AGGREGATORS) - {"last", "sum_logit"}:
        assert np.isfinite(score[how]).all(), how
        assert score[how][0] >= score[how][1] > score[how][2] >= score[how][3], how
    # 1 - p = 8.3e-7 in one of two steps; a mean taken over p itself would be off by a tenth in float32
    np.testing.assert_allclose(score["mean"][1], -0.5 / (1 + math.exp(14)), rtol=1e-5)
    np.testing.assert_allclose(score["mean"][2], -500 - math.log(2), rtol=1e-6)


def test_stored_scores_of_zero_and_one_are_not_clipped_but_by_sum_logit():
    with np.errstate(divide="ignore"):
        logp_NT = np.log(np.array([[1.0, 1.0], [1.0, 0.5], [1.0, 1e-12], [1.0, 0.0]], np.float32))
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
    score = aggregated(logp_NT, "logp")
    for how, score_N in expected.items():
        np.testing.assert_allclose(score[how], score_N, rtol=1e-6, err_msg=how)
    wide_N = aggregate(logp_NT, np.ones(logp_NT.shape, bool), "sum_logit", unit="logp", clip=1e-3)
    for score_N, top in ((score["sum_logit"], 13.815510), (wide_N, 6.906755)):
        np.testing.assert_allclose(score_N, [2 * top, top, 0, 0], rtol=1e-6, atol=1e-6)


def test_padding_changes_no_bit_and_empty_is_minus_inf():
    rng = np.random.default_rng(1)
    logit_PNT = rng.normal(0, 3, (P, N, T)).astype(np.float32)
    mask_PNT = rng.random((P, N, T)) < 0.6  # gaps too
    mask_PNT[1, 2] = False
    run = lambda x_PNT: jax.device_get(rerank.aggregate_all(x_PNT, mask_PNT, unit="logit"))
    clean = run(np.where(mask_PNT, logit_PNT, 0))
    for junk in (7.0, -1e30, INF, -INF, np.nan):
        for how, score_PN in run(np.where(mask_PNT, logit_PNT, np.float32(junk))).items():
            np.testing.assert_array_equal(score_PN, clean[how], err_msg=f"{how} {junk}")
    for how, score_N in aggregated(logit_PNT[0, 0][mask_PNT[0, 0]][None], "logit").items():
        assert clean[how][1, 2] == -INF, how
        np.testing.assert_array_equal(np.isfinite(clean[how]), mask_PNT.any(-1), err_msg=how)
        if how != "weighted":  # whose weights belong to places in the array, gaps included
            np.testing.assert_allclose(score_N[0], clean[how][0, 0], rtol=1e-6, err_msg=how)


# Reweighting


def test_reweight_matches_the_definition(precision):
    dtype, tol = precision
    rng = np.random.default_rng(3)
    score_PN, ref_PN = rng.normal(0, 2, (P, N)).astype(dtype), rng.random((P, N)).astype(dtype)
    mask_PN = rng.random((P, N)) < 0.7
    got = jax.device_get(reweight(score_PN, 0.7, ref_PN, None, mask_PN))
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
    np.testing.assert_allclose(kl_divergence(got.weight_PN, law_PN), kl_P, atol=10 * tol)


def test_e9_identities_by_finite_differences():
    with jax.enable_x64(True):
        rng = np.random.default_rng(4)
        score_PN, ref_PN = rng.normal(0, 2, (P, N)), rng.random((P, N))
        at = lambda inverse: jax.device_get(reweight(score_PN, 1 / inverse, ref_PN, ALL_PN))
        inverse, step = 1 / 0.7, 1e-5
        here, up, down = at(inverse), at(inverse + step), at(inverse - step)
        mean_P = here.reward_P
        variance_P = np.sum(here.weight_PN * score_PN**2, -1) - mean_P**2
        np.testing.assert_allclose(here.kl_P, mean_P * inverse - here.log_z_P, rtol=1e-12)
        np.testing.assert_allclose((up.log_z_P - down.log_z_P) / (2 * step), mean_P, rtol=1e-6)
        np.testing.assert_allclose((up.reward_P - down.reward_P) / (2 * step), variance_P, rtol=1e-6)
        np.testing.assert_allclose((up.kl_P - down.kl_P) / (2 * step), variance_P * inverse, rtol=1e-6)


def test_reweight_at_the_ends_of_beta():
    score_N = np.array([-1.0, -3.0, -1.0, -INF, -2.0], np.float32)
    score_PN, mask_PN = corner(score_N[None])
    ref_PN = corner(np.array([[1.0, 2.0, 3.0, 2.0, 2.0]], np.float32))[0]
    law = lambda score_PN, beta, ref_PN=ref_PN: jax.tree.map(
        lambda x: np.asarray(x)[0], reweight(score_PN, beta, ref_PN, ALL_PN, mask_PN)
    )
    cold, hot = law(score_PN, 0.0), law(score_PN, INF)
    # beta 0: the two maxima in proportion 1 : 3 of ref, KL = log(total ref / theirs), log Z -> -1 / 0
    np.testing.assert_allclose(cold.weight_PN[:5], [0.25, 0, 0.75, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(
        [cold.kl_P, cold.log_z_P, cold.reward_P], [math.log(10 / 4), -INF, -1], rtol=1e-6
    )
    # beta inf: ref itself, also of the candidate of probability 0, whose score the mean leaves out
    np.testing.assert_allclose(hot.weight_PN[:5], [0.1, 0.2, 0.3, 0.2, 0.2], rtol=1e-6)
    np.testing.assert_allclose([hot.kl_P, hot.log_z_P, hot.reward_P], [0, 0, -1.75], atol=1e-6)
    assert law(score_PN, 1e30).weight_PN[3] == 0
    assert law(score_PN, 1e-6).weight_PN[2] == pytest.approx(0.75)
    np.testing.assert_allclose(law(score_PN + 1, 0.0).log_z_P, math.log(4 / 10), rtol=1e-6)
    # equal up to float32's rounding: a tie at 0, compared after rounding, reported before
    score_PN[0, :5] = [-0.3, np.nextafter(np.float32(-0.3), np.float32(0)), -INF, -INF, -INF]
    near = law(score_PN, 0.0, np.ones_like(ref_PN))
    np.testing.assert_array_equal(near.weight_PN[:5], [0.5, 0.5, 0, 0, 0])
    score_PN[0, 1] = -INF
    assert law(score_PN, 0.0).reward_P == np.float32(-0.3)


def test_reweight_over_a_beta_grid_is_a_loop_and_huge_scores_do_not_overflow():
    """By default the reference is even and nothing is masked."""
    rng = np.random.default_rng(5)
    score_PN = rng.normal(0, 1e4, (P, N)).astype(np.float32)
    betas = np.array([0.0, 1e-3, 0.7, 1e3, INF], np.float32)
    grid = jax.device_get(jax.vmap(lambda beta: reweight(score_PN, beta))(betas))
    for i, beta in enumerate(betas):
        one = jax.device_get(reweight(score_PN, float(beta), EVEN_PN, ALL_PN))
        for a, b in zip(grid, one):
            np.testing.assert_allclose(a[i], b, rtol=1e-5)
        assert np.isfinite(one.weight_PN).all() and np.isfinite(one.kl_P).all() and (one.kl_P >= 0).all()
    assert (np.diff(grid.kl_P, axis=0) <= 1e-5).all() and (np.diff(grid.reward_P, axis=0) <= 1e-2).all()
    np.testing.assert_allclose(grid.kl_P[0], math.log(N), rtol=1e-6)
    np.testing.assert_allclose(grid.kl_P[-1], 0, atol=1e-6)


# Best-of-n


def curve(score_PN, gold_PN, eligible_PN=ALL_PN, mask_PN=ALL_PN, ties="share"):
    """best_of_n at every size; the sizes next to 1..N are nan."""
    curve_Pn = np.asarray(best_of_n(score_PN, gold_PN, eligible_PN, mask_PN, np.arange(N + 2), ties=ties))
    assert np.isnan(curve_Pn[:, [0, -1]]).all()
    return curve_Pn[:, 1:-1]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ties", ["share", "first"])
def test_e1_best_of_n_equals_the_mean_over_all_subsets(seed, ties, precision):
    """Ragged pools, scores of -inf, ineligible and tied candidates together."""
    dtype, tol = precision
    pool = some_pool(np.random.default_rng(seed), dtype)
    np.testing.assert_allclose(curve(*pool, ties=ties), brute_curves(*pool, ties=ties), rtol=0, atol=tol)


def test_e2_proxy_equal_to_gold_is_pass_at_n(precision):
    _, tol = precision
    pass_at = lambda c, M, n: 1 - math.comb(M - c, n) / math.comb(M, n)
    right_P = [0, 1, 2, 3, 5, 6, 8, 9]
    right_PN = np.random.default_rng(0).permuted(np.arange(N) < np.array(right_P)[:, None], axis=-1)
    expected_Pn = [[pass_at(c, N, n) for n in range(1, N + 1)] for c in right_P]
    np.testing.assert_allclose(curve(1.0 * right_PN, 1.0 * right_PN), expected_Pn, atol=tol)

    # Averaged over c ~ Binomial(64, .02) pass@n is 1 - .98^n, without bias; the plug-in gives .250 at 16.
    M, size_n = 64, np.array([1, 2, 16, 32, 64])
    right_PN = 1.0 * (np.arange(M) < np.arange(M + 1)[:, None])
    all_Pn = np.asarray(best_of_n(right_PN, right_PN, size_n=size_n))
    chance_P = np.array([math.comb(M, c) * 0.02**c * 0.98 ** (M - c) for c in range(M + 1)])
    np.testing.assert_allclose(chance_P @ all_Pn, 1 - 0.98**size_n, atol=tol)


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
        "a last bit kept": ([-1.0, -1 - 2.0**-16], False),
        "a first bit rounded off": ([-1.0, -1 - 2.0**-18], True),
    }
    score_PN, mask_PN = corner(np.array([scores for scores, _ in pairs.values()], np.float32))
    first_PN = np.broadcast_to(np.arange(N) == 0, (P, N)).astype(float)
    share_P = curve(score_PN, first_PN, ALL_PN, mask_PN)[:, -1]
    for share, (name, (_, ties)) in zip(share_P, pairs.items()):
        assert (share == 0.5) == ties, name


def test_order_is_a_stable_sort_of_any_float():
    rng = np.random.default_rng(8)
    score_PN = (rng.choice([-1, 1], (5, 300)) * 10.0 ** rng.integers(-37, 38, (5, 300))).astype(np.float32)
    score_PN[:, ::7] = rng.choice(np.array([0.0, -0.0, -INF, INF, 1.0], np.float32), score_PN[:, ::7].shape)
    score_PN = np.asarray(rerank.round_score(score_PN))
    for size in (1, 2, 300):
        expected = np.argsort(-score_PN[:, :size], -1, kind="stable")
        np.testing.assert_array_equal(jax.jit(best_first)(score_PN[:, :size]), expected)


@pytest.mark.parametrize("N", [1, 5, 128, 129, 300])
def test_ranks_are_those_of_a_sort(N):
    high_PN = np.random.default_rng(0).integers(2**20, size=(3, N))
    key_PN = (high_PN << 9 | np.arange(N)).astype(np.uint32)
    key_PN[1, ::2] |= np.uint32(2**31)  # no sign
    np.testing.assert_array_equal(jax.jit(ranks)(key_PN), key_PN.argsort(-1).argsort(-1))


def test_rank_weights_against_exact_fractions_at_1860():
    """The sum of all errors of a row bounds the error of any curve with gold within 0..1."""
    size, sizes = 1860, [1, 2, 10, 50, 500, 1500, 1859, 1860]
    weights = jax.jit(rerank.rank_weights, static_argnums=1).lower(np.array(sizes), size).compile()
    assert weights.memory_analysis().temp_size_in_bytes < size**2  # no table of all sizes
    for row_N, n in zip(np.asarray(weights(np.array(sizes)), np.float64), sizes):
        exact = [
            float(Fraction(math.comb(size - 1 - rank, n - 1), math.comb(size, n))) for rank in range(size)
        ]
        assert np.abs(row_N - exact).sum() < 1e-7, n
