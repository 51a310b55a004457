"""stats.py against closed forms, brute force and hand-worked p-values."""

import itertools

import numpy as np
import pytest

from prm_jax import stats

NAN = float("nan")


def test_bootstrap_of_a_mean_has_the_clustered_standard_error():
    rng = np.random.default_rng(0)
    n_problems, n_rows = 300, 4
    value_P = rng.normal(size=n_problems)
    value = np.repeat(value_P, n_rows)  # rows of one problem say the same thing
    ids = np.repeat([f"p{i}" for i in range(n_problems)], n_rows)
    rows = rng.permutation(len(value))
    value, ids = value[rows], ids[rows]
    low, high = stats.bootstrap_interval(np.mean, ids, value)
    standard_error = value.std() / np.sqrt(n_problems)
    assert (high - low) / (2 * 1.96) == pytest.approx(standard_error, rel=0.1)
    assert (high + low) / 2 == pytest.approx(value.mean(), abs=0.2 * standard_error)
    # one way of drawing problems: the mean of an array has the very interval of the statistic "mean"
    as_array = stats.mean_interval(np.stack([value_P, -value_P], -1), seed=3)
    as_statistic = stats.bootstrap_interval(np.mean, range(n_problems), value_P, seed=3)
    np.testing.assert_allclose([x[0] for x in as_array], as_statistic, rtol=1e-12)
    np.testing.assert_allclose([-x[1] for x in as_array[::-1]], as_statistic, rtol=1e-12)


def test_bootstrap_draws_whole_problems():
    ids, drawn = ["b", "a", "b", "c", "b", "c"], []
    stats.bootstrap_interval(lambda r: drawn.append(np.bincount(r, minlength=6)) or 0.0, ids, np.arange(6))
    for count in drawn:
        assert count[0] == count[2] == count[4] and count[3] == count[5]
        assert count[0] + count[1] + count[3] == 3
    assert len({tuple(count) for count in drawn}) > 5


def test_bootstrap_is_seeded_and_states_when_it_knows_nothing():
    value, ids = np.random.default_rng(0).normal(size=10), list("aabbccddee")
    intervals = [stats.bootstrap_interval(np.mean, ids, value, seed=s) for s in (0, 0, 1)]
    assert intervals[0] == intervals[1] != intervals[2]
    for few in ([], ["a", "a"]):
        assert np.isnan(stats.bootstrap_interval(lambda: 1.0, few)).all()
    assert np.isnan(stats.mean_interval(np.ones((1, 2)))).all()
    # A statistic undefined on some resamples keeps the others.
    assert stats.bootstrap_interval(lambda r: 3.0 if 0 in r else NAN, ids, np.arange(10)) == (3.0, 3.0)


@pytest.mark.parametrize(
    "difference_P, p",
    [
        ([1] * 5 + [0] * 295, 0.0625),  # percentile bootstrap: .015
        ([-1] * 4 + [0] * 296, 0.125),  # .039, with an interval that excludes 0
        ([1] * 6 + [0] * 3, 2 / 64),
        ([0.5] * 9 + [-0.5], 22 / 1024),
        ([1], 1.0),
        ([0, 1e-7, 0], 1.0),
        ([], 1.0),
        ([1, -1, 1, -1], 1.0),
        # 5 in four ways, 7 in one, and as many below 0
        ([3, 1, 1, 1, -1], 10 / 32),
        ([1, 2, 4, 8], 2 / 16),
        ([1] * 60 + [-1] * 40, 0.0568879),
    ],
)
def test_the_exact_sign_flip_test(difference_P, p):
    assert stats.sign_flip_test(difference_P) == pytest.approx(p, rel=1e-5)


def test_sign_flips_against_brute_force_and_the_normal_limit():
    rng = np.random.default_rng(0)
    for _ in range(5):
        x = rng.normal(0.5, 1, 9)
        sums = [abs(np.dot(signs, x)) for signs in itertools.product([-1, 1], repeat=9)]
        assert stats.sign_flip_test(x) == np.mean(np.array(sums) >= abs(x.sum()) - 1e-9)
    x = rng.normal(0, 1, 400)
    x += 2 * x.std() / 20 - x.mean()  # two standard errors from 0
    p = stats.sign_flip_test(x)
    assert p == pytest.approx(0.0455, abs=0.008)
    assert stats.sign_flip_test(x, seed=1) != p == stats.sign_flip_test(x)
    assert stats.sign_flip_test(x + 10) == 1 / 20_001  # the pattern seen is one of them: never 0
    # under the null p is below .05 about one time in twenty
    null = [stats.sign_flip_test(rng.normal(size=12)) for _ in range(400)]
    assert 0.02 < np.mean(np.array(null) <= 0.05) < 0.08


def test_paired_differences_say_how_many_problems_differ():
    zero_P = np.zeros(300)
    five = stats.paired_difference(np.arange(300) < 5, zero_P)
    assert five.pop("interval")[0] > 0  # which is why p must not come from it
    assert five == {"difference": pytest.approx(1 / 60), "p": 0.0625, "n_differ": 5}
    none = stats.paired_difference(zero_P, zero_P + 1e-6)  # no more than rounding
    assert none == {"difference": 0, "interval": [0, 0], "p": 1, "n_differ": 0}
    many = stats.paired_difference(np.arange(300) % 2, zero_P)
    assert many["n_differ"] == 150 and many["p"] < 1e-40
