"""votes.py against brute force over all subsets, votes counted by hand, and real pools."""

import collections
import functools
import itertools
import math

import jax
import numpy as np
import pytest
from conftest import real_gold

from prm_jax import rerank, votes
from prm_jax.rerank import expectation
from prm_jax.votes import majority_curve, vote

INF = np.inf


def subsets(N, n):
    return itertools.combinations(range(N), n)


def brute_majority(answer_N, gold_N, n):
    """Mean over all n-subsets of the mean gold of the largest answer groups; -1 is no answer."""
    gold = {a: np.mean([g for b, g in zip(answer_N, gold_N) if a == b]) for a in set(answer_N)}
    total = 0.0
    for drawn in subsets(len(answer_N), n):
        count = collections.Counter(answer_N[i] for i in drawn if answer_N[i] >= 0)
        if count:
            total += np.mean([gold[a] for a in count if count[a] == max(count.values())])
    return total / math.comb(len(answer_N), n)


@pytest.mark.parametrize("seed", range(4))
def test_e4_majority_equals_the_mean_over_all_subsets(seed, precision):
    dtype, tol = precision
    rng = np.random.default_rng(seed)
    N = 9
    answer_PN = rng.integers(-1, (2, 3, 5, 9)[seed], (4, N))
    answer_PN[0] = np.arange(N)  # all different
    answer_PN[1] = -1 if seed % 2 else 0  # no answer at all; all the same
    gold_PN, mask_PN = rng.random((4, N)).astype(dtype), rng.random((4, N)) < 0.85
    got = majority_curve(answer_PN, gold_PN, mask_PN)
    seen_PN = np.where(mask_PN, answer_PN, -1)
    expected = [
        [brute_majority(a.tolist(), g.tolist(), n) for n in range(1, N + 1)] for a, g in zip(seen_PN, gold_PN)
    ]
    np.testing.assert_allclose(got, expected, rtol=0, atol=tol)
    law_PN = vote(answer_PN, mask_PN=mask_PN)
    np.testing.assert_allclose(expectation(law_PN, gold_PN), got[:, -1], atol=tol)


def test_majority_at_64_in_float32_equals_float64_and_starts_at_pass_at_1():
    rng = np.random.default_rng(13)
    answer_PN = rng.integers(-1, 12, (6, 64))
    answer_PN[0] = np.arange(64)
    gold_PN = answer_PN == 3
    single_Pn = majority_curve(answer_PN, gold_PN)
    with jax.enable_x64(True):
        double_Pn = majority_curve(answer_PN, gold_PN)
    np.testing.assert_allclose(single_Pn, double_Pn, atol=1e-6)
    seen_P = np.where((answer_PN >= 0).all(-1), gold_PN.mean(-1), np.nan)  # E_maj(1) = E_maj(2) = pass@1
    whole = ~np.isnan(seen_P)
    np.testing.assert_allclose(double_Pn[whole][:, :2], np.stack([seen_P, seen_P], -1)[whole], atol=1e-12)
    np.testing.assert_allclose(double_Pn[0], 1 / 64, atol=1e-12)
    size_n = np.array([64, 7])
    np.testing.assert_array_equal(majority_curve(answer_PN, gold_PN, size_n=size_n), single_Pn[:, size_n - 1])


def test_votes_by_hand():
    """Answers a a b b c -, log weights such that b and c weigh the same."""
    answer_PN = np.array([[0, 0, 1, 1, 2, -1]])
    share = lambda *args, **kwargs: np.asarray(vote(answer_PN, *args, **kwargs))[0]
    np.testing.assert_allclose(share(), [0.25, 0.25, 0.25, 0.25, 0, 0])
    np.testing.assert_array_equal(share(ties="first"), [1, 0, 0, 0, 0, 0])
    weight_N = np.log([[0.1, 0.2, 0.3, 0.3, 0.6, 0.9]])  # .3, .6, .6, and .9 that may not vote
    np.testing.assert_allclose(share(weight_N), [0, 0, 0.25, 0.25, 0.5, 0], rtol=1e-6)
    np.testing.assert_array_equal(share(weight_N, ties="first"), [0, 0, 1, 0, 0, 0])
    with jax.enable_x64(True):  # exp(-1000) is 0, its ratios are not
        np.testing.assert_allclose(share(weight_N - 1000), [0, 0, 0.25, 0.25, 0.5, 0], rtol=1e-6)
    mask_PN = np.array([[True, True, False, True, True, True]])
    np.testing.assert_array_equal(share(weight_N, mask_PN), [0, 0, 0, 0, 1, 0])
    np.testing.assert_array_equal(share(weight_N, np.zeros((1, 6), bool)), np.zeros(6))
    np.testing.assert_array_equal(share(np.full((1, 6), -INF), ties="first"), np.zeros(6))


def test_top_k_vote_by_hand():
    score_PN = np.array([[-1.0, -2.0, -2.0, -2.0, -3.0, -INF]])
    weights = lambda k: np.exp(votes.top_k(score_PN, k))[0]
    np.testing.assert_allclose(weights(1), [1, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(
        weights(3), [1, 2 / 3, 2 / 3, 2 / 3, 0, 0], rtol=1e-6
    )  # three share two places
    for k in (5, 6, 9):
        np.testing.assert_allclose(weights(k), [1, 1, 1, 1, 1, 0])
    answer_PN = np.array([[0, 1, 1, 0, 2, 3]])
    np.testing.assert_allclose(
        vote(answer_PN, votes.top_k(score_PN, 2)), [[0.5, 0, 0, 0.5, 0, 0]]
    )  # 4/3 to 2/3
    np.testing.assert_allclose(vote(answer_PN, votes.top_k(score_PN, 4)), [[0.25, 0.25, 0.25, 0.25, 0, 0]])


def test_vote_curve():
    """Without weights it samples the exact majority; of all N candidates it is the vote itself."""
    rng = np.random.default_rng(14)
    P, N, draws = 40, 12, 300
    answer_PN = rng.integers(-1, 4, (P, N))
    gold_PN = answer_PN == 0
    score_PN = rng.normal(size=(P, N)).astype(np.float32)
    mask_PN = rng.random((P, N)) < 0.9
    key, size_n = jax.random.key(0), np.array([1, 4, 12])
    sample = functools.partial(votes.vote_curve, mask_PN=mask_PN, size_n=size_n, draws=draws)
    sampled_Pn = sample(key, answer_PN, gold_PN, np.zeros_like(score_PN))
    exact_Pn = majority_curve(answer_PN, gold_PN, mask_PN, size_n)
    error_n = rerank.subset_band(exact_Pn) / math.sqrt(draws)
    assert (np.abs(sampled_Pn.mean(0) - exact_Pn.mean(0)) <= 4 * error_n + 1e-6).all()
    full_P = expectation(vote(answer_PN, score_PN, mask_PN), gold_PN)
    weighted_Pn = sample(key, answer_PN, gold_PN, score_PN)
    np.testing.assert_allclose(weighted_Pn[:, -1], full_P, atol=1e-5)


def test_sizes_outside_are_nan_and_wrong_arguments_raise():
    answer_PN, gold_PN = np.array([[0, 1]]), np.ones((1, 2))
    assert np.isnan(majority_curve(answer_PN, gold_PN, size_n=np.array([0, 3]))).all()
    curve_Pn = votes.vote_curve(jax.random.key(0), answer_PN, gold_PN, size_n=np.array([3]), draws=2)
    assert np.isnan(curve_Pn).all()
    with pytest.raises(ValueError, match='expected "share" or "first"'):
        vote(answer_PN, ties="last")
    with pytest.raises(ValueError, match="129 candidates, expected at most 128: use vote_curve"):
        majority_curve(np.zeros((1, 129), int), np.zeros((1, 129)))


def test_jit_equals_no_jit_and_vmap_equals_a_loop():
    rng = np.random.default_rng(17)
    answer_PN, gold_PN = rng.integers(-1, 3, (2, 5)), rng.random((2, 5)).astype(np.float32)
    score_PN, key = rng.normal(size=(2, 5)).astype(np.float32), jax.random.key(0)

    def everything(score_PN):
        return {
            "top": vote(answer_PN, votes.top_k(score_PN, 3)),
            "majority": majority_curve(answer_PN, gold_PN),
            "weighted": votes.vote_curve(key, answer_PN, gold_PN, score_PN, draws=2),
        }

    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6)
    plain, other = everything(score_PN), everything(-score_PN)
    batched = jax.jit(jax.vmap(everything))(np.stack([score_PN, -score_PN]))
    jax.tree.map(lambda both, one, other: close(both, np.stack([one, other])), batched, plain, other)


@pytest.mark.parametrize(("name", "majority"), [("gsm8k", 245), ("math500", 195)])
def test_real_majority(best_of_32, name, majority):
    """Of 259 and 256 problems, counted once by a plain loop in the order of the file."""
    rows = best_of_32[name]
    gold_PN, answer_PN = real_gold(rows), []
    for row in rows:
        ids = {}
        answer_PN.append([ids.setdefault(c["extracted_answer"], len(ids)) for c in row["candidates"]])
    answer_PN = np.array(answer_PN)
    assert float(expectation(vote(answer_PN, ties="first"), gold_PN).sum()) == majority
    curve_Pn = majority_curve(answer_PN, gold_PN)
    np.testing.assert_allclose(curve_Pn[:, -1], expectation(vote(answer_PN), gold_PN), atol=1e-6)
    np.testing.assert_allclose(
        curve_Pn[:, :2].mean(0), gold_PN.mean(), atol=1e-6
    )  # E_maj(1) = E_maj(2) = pass@1
