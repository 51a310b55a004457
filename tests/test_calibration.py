"""Platt scaling of a figure (examples/papers/shift.py): the parameters that made the labels
come back, and halves of the problems are kept apart."""

import numpy as np
import pytest

from examples.papers.shift import ece_here, fit
from prm_jax.data.units import probability
from prm_jax.metrics import ece


def test_a_fit_is_the_least_cross_entropy(rng):
    z = rng.normal(0, 3, 4000)
    for a, b in ((0.5, 0.0), (0.5, -1.0), (2.0, 0.5)):
        found = fit(z, probability(a * z + b))  # soft labels: no noise
        assert found == pytest.approx((a, b), abs=1e-3)
    a, b = fit(np.array([-2.0, -1.0, 1.0, 2.0]), np.array([0.0, 0.0, 1.0, 1.0]))
    assert 1 < a < 100 and abs(b) < 1  # finite where the steps can be separated


def test_scaling_repairs_overconfidence_and_another_half_fits_it(rng):
    z, problem = rng.normal(0, 4, 6000), np.arange(6000) // 10
    y = (rng.random(6000) < probability(0.5 * z + 0.7)).astype(float)
    assert ece(probability(z), y) > 0.08 and ece_here(z, y, problem) < 0.02
    # Halves with opposite labels: what one half teaches is wrong for the other.
    y = np.where(problem % 2, z > 0, z < 0).astype(float)
    assert ece_here(z, y, problem) > 0.4
