"""votes.py against brute force over all subsets, and votes counted by hand."""

import collections
import functools
import itertools

import jax
import numpy as np
import pytest

from prm_jax import votes
from prm_jax.votes import majority_curve, vote

INF = np.inf
P, N = 4, 9  # one shape for most tests, so that a function compiles once a precision


def brute_majority(answer_N, gold_N, mask_N, n):
    """Mean over all n-subsets of the candidates that exist of the largest groups' gold; -1 is no answer."""
    golds, there = [], np.flatnonzero(mask_N)
    for drawn in itertools.combinations(there, min(n, len(there))):
        groups = collections.defaultdict(list)
        for i in drawn:
            if answer_N[i] >= 0:
                groups[answer_N[i]].append(i)
        top = [members for members in groups.values() if len(members) == max(map(len, groups.values()))]
        golds.append(np.mean([np.mean(gold_N[members]) for members in top]) if top else 0.0)
    return np.mean(golds)


def exact(answer_PN, gold_PN, mask_PN):
    """majority_curve at every size; the sizes next to 1..N are nan."""
    curve_Pn = np.asarray(majority_curve(answer_PN, gold_PN, mask_PN, np.arange(N + 2)))
    assert np.isnan(curve_Pn[:, [0, -1]]).all()
    return curve_Pn[:, 1:-1]


def law(answer_PN, log_weight_PN, mask_PN, ties="share"):
    return np.asarray(vote(answer_PN, log_weight_PN, mask_PN, ties=ties))


@pytest.mark.parametrize("seed", range(4))
def test_e4_majority_equals_the_mean_over_all_subsets(seed, precision):
    """Ragged problems: a candidate that does not exist fills no place, one without an answer does."""
    dtype, tol = precision
    rng = np.random.default_rng(seed)
    answer_PN = rng.integers(-1, (2, 3, 5, 9)[seed], (P, N))
    answer_PN[0] = np.arange(N)  # all different
    answer_PN[1] = -1 if seed % 2 else 0  # no answer at all; all the same
    gold_PN, mask_PN = rng.random((P, N)).astype(dtype), rng.random((P, N)) < 0.85
    mask_PN[2] = np.arange(N) == 4
    got = exact(answer_PN, gold_PN, mask_PN)
    pool = list(zip(answer_PN, gold_PN, mask_PN))
    expected = [[brute_majority(*problem, n) for n in range(1, N + 1)] for problem in pool]
    np.testing.assert_allclose(got, expected, rtol=0, atol=tol)
    law_PN = law(answer_PN, np.zeros((P, N), dtype), mask_PN)
    np.testing.assert_allclose((law_PN * gold_PN).sum(-1), got[:, -1], atol=tol)


def test_majority_at_64_in_float32_equals_float64_and_starts_at_pass_at_1():
    rng = np.random.default_rng(13)
    answer_XPN = rng.integers(-1, 12, (2, 3, 64))
    answer_XPN[0, 0], answer_XPN[1] = np.arange(64), np.abs(answer_XPN[1])
    gold_XPN = answer_XPN == 3
    single_XPn = np.asarray(jax.vmap(majority_curve)(answer_XPN, gold_XPN))
    with jax.enable_x64(True):
        double_XPn = np.asarray(jax.vmap(majority_curve)(answer_XPN, gold_XPN))
    np.testing.assert_allclose(single_XPn, double_XPn, atol=1e-6)
    np.testing.assert_allclose(double_XPn[0, 0], 1 / 64, atol=1e-12)
    whole_P1 = gold_XPN[1].mean(-1, keepdims=True)  # all answered: E_maj(1) = E_maj(2) = pass@1
    np.testing.assert_allclose(double_XPn[1, :, :2], np.broadcast_to(whole_P1, (3, 2)), atol=1e-12)


def by_hand(answer_N, log_weight_N, mask_N, ties="share"):
    """law_N of one problem, which has fewer candidates than those beside it."""
    size = len(answer_N)
    answer_PN, log_weight_PN, mask_PN = np.zeros((P, N), int), np.zeros((P, N)), np.ones((P, N), bool)
    answer_PN[1, :size], log_weight_PN[1, :size], mask_PN[1] = answer_N, log_weight_N, False
    mask_PN[1, :size] = mask_N
    law_PN = law(answer_PN, log_weight_PN, mask_PN, ties)
    np.testing.assert_allclose(np.delete(law_PN, 1, 0).sum(-1), 1, rtol=1e-6)
    assert (law_PN[1, size:] == 0).all()
    return law_PN[1, :size]


def test_votes_by_hand():
    """Answers a a b b c -, log weights such that b and c weigh the same."""
    vote_of = functools.partial(by_hand, [0, 0, 1, 1, 2, -1])
    np.testing.assert_allclose(vote_of(np.zeros(6), True), [0.25, 0.25, 0.25, 0.25, 0, 0])
    np.testing.assert_array_equal(vote_of(np.zeros(6), True, "first"), [1, 0, 0, 0, 0, 0])
    weight_N = np.log([0.1, 0.2, 0.3, 0.3, 0.6, 0.9])  # .3, .6, .6, and .9 that may not vote
    np.testing.assert_allclose(vote_of(weight_N, True), [0, 0, 0.25, 0.25, 0.5, 0], rtol=1e-6)
    np.testing.assert_array_equal(vote_of(weight_N, True, "first"), [0, 0, 1, 0, 0, 0])
    np.testing.assert_array_equal(vote_of(weight_N, False, "first"), np.zeros(6))
    with jax.enable_x64(True):  # exp(-1000) is 0, its ratios are not
        np.testing.assert_allclose(vote_of(weight_N - 1000, True), [0, 0, 0.25, 0.25, 0.5, 0], rtol=1e-6)
    np.testing.assert_array_equal(vote_of(weight_N, np.arange(6) != 2), [0, 0, 0, 0, 1, 0])
    np.testing.assert_array_equal(vote_of(weight_N, False), np.zeros(6))
    # all of probability 0: no vote is lost, they weigh the same
    np.testing.assert_allclose(vote_of(np.full(6, -INF), True), [0.25, 0.25, 0.25, 0.25, 0, 0])
    np.testing.assert_array_equal(vote_of([-INF, -INF, -INF, -INF, -900, 0], True), [0, 0, 0, 0, 1, 0])
    np.testing.assert_allclose(by_hand([2, 0, 1, 1, 0], np.zeros(5), True), [0, 0.25, 0.25, 0.25, 0.25])
    np.testing.assert_allclose(by_hand([2, 0, 1, 1, 0], np.zeros(5), True, "first"), [0, 1, 0, 0, 0])


def test_vote_curve():
    """Without weights it samples the exact majority; of all N candidates it is the vote itself."""
    rng = np.random.default_rng(14)
    draws, size_n = 1000, np.array([1, 4, N, 0, N + 1])
    answer_PN = rng.integers(-1, 4, (P, N))
    score_PN, mask_PN = rng.normal(size=(P, N)), rng.random((P, N)) < 0.9
    answer_PN[3], mask_PN[3] = 0, False  # a problem without candidates, which nobody solves
    gold_PN = 1.0 * (answer_PN == 0)
    run = lambda log_weight_PN: votes.vote_curve(
        jax.random.key(0), answer_PN, gold_PN, log_weight_PN, mask_PN, size_n, draws=draws
    )
    majority_Pn, weighted_Pn = np.asarray(jax.vmap(run)(np.stack([np.zeros((P, N)), score_PN])))
    assert np.isnan(majority_Pn[:, 3:]).all()  # sizes outside 1..N
    exact_Pn = exact(answer_PN, gold_PN, mask_PN)[:, size_n[:3] - 1]
    error_n = np.sqrt((exact_Pn * (1 - exact_Pn)).sum(0) / draws) / P
    assert (np.abs(majority_Pn[:, :3].mean(0) - exact_Pn.mean(0)) <= 4 * error_n + 1e-6).all()
    weighted_P = (law(answer_PN, score_PN, mask_PN) * gold_PN).sum(-1)
    np.testing.assert_allclose(weighted_Pn[:, 2], weighted_P, atol=1e-5)
