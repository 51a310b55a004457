"""What length buys at equal correctness."""

import math

import numpy as np
import pytest

from prm_jax.evals.biases import length_correlation, ranks_within


def test_ranks_within_groups_by_hand():
    found = ranks_within(np.array([-np.inf, 3.0, 3.0, 9.0]), np.array([0, 0, 1, 1]))
    np.testing.assert_allclose(found, [1 - 1.75, 2.5 - 1.75, 2.5 - 3.25, 4 - 3.25])


def test_length_correlation_is_given_the_group(rng):
    problem = np.repeat(np.arange(40), 10)
    right = rng.integers(0, 2, 400)
    # Right solutions are longer and score higher, and so are those of some problems: no length bias within
    # either.
    length, score = 50 * right + problem + rng.random(400), 5.0 * right + problem + rng.random(400)
    group = np.stack([problem, right], -1)
    given = length_correlation(score, length, group, problem, 0)
    assert abs(given["r"]) < 0.15 and given["interval"][0] < 0 < given["interval"][1]
    biased = length_correlation(score + 2 * length, length, group, problem, 0)
    assert biased["r"] > 0.5 and biased["interval"][0] > 0.5
    # Brute force: ranks, then ordinary correlation of what each group's mean leaves.
    rank = lambda x: np.array([(x < v).sum() + ((x == v).sum() + 1) / 2 for v in x])
    a, b = rank(score), rank(length)
    for key in {tuple(g) for g in group}:
        here = (group == key).all(-1)
        a[here], b[here] = a[here] - a[here].mean(), b[here] - b[here].mean()
    assert given["r"] == pytest.approx(np.corrcoef(a, b)[0, 1])
    assert math.isnan(length_correlation(score[:1], length[:1], group[:1], problem[:1], 0)["r"])
