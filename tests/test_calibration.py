"""Temperature and Platt scaling: the parameters that made the labels come back, and halves of the problems
are kept apart."""

import numpy as np
import pytest

from prm_jax.data.units import probability
from prm_jax.evals.calibration import fit, recalibrated


def test_a_fit_is_the_least_cross_entropy(rng):
    z = rng.normal(0, 3, 4000)
    for a, b, bias in ((0.5, 0.0, False), (0.5, -1.0, True), (2.0, 0.5, True)):
        found = fit(z, probability(a * z + b), bias)  # soft labels: no noise
        assert found == pytest.approx((a, b), abs=1e-3)
    # By brute force over a grid, of noisy labels.
    y = (rng.random(4000) < probability(0.4 * z)).astype(float)
    grid = np.arange(0.2, 0.7, 0.001)
    loss = [np.mean(np.logaddexp(0, a * z) - y * a * z) for a in grid]
    assert fit(z, y, False)[0] == pytest.approx(grid[np.argmin(loss)], abs=0.002)


def test_separable_steps_have_finite_parameters():
    a, b = fit(np.array([-2.0, -1.0, 1.0, 2.0]), np.array([0.0, 0.0, 1.0, 1.0]), True)
    assert 1 < a < 100 and abs(b) < 1


def test_scaling_repairs_overconfidence_and_another_half_fits_it(rng):
    z = rng.normal(0, 4, 6000)
    y, problem = (rng.random(6000) < probability(0.5 * z + 0.7)).astype(float), np.arange(6000) // 10
    found = recalibrated(probability(z), y, problem)
    assert list(found) == ["none", "temperature", "platt"]
    assert found["none"]["ece"] > 0.08 and found["platt"]["ece"] < 0.02
    assert found["platt"]["brier"] < found["temperature"]["brier"] < found["none"]["brier"]
    assert found["platt"]["parameters"] == pytest.approx([0.5, 0.7], abs=0.1)
    # Halves with opposite labels: what one half teaches is wrong for the other.
    y = np.where(problem % 2, z > 0, z < 0).astype(float)
    assert recalibrated(probability(z), y, problem)["temperature"]["brier"] > 0.4
    one_problem = np.zeros(6000, int)  # has no other half
    assert list(recalibrated(probability(z), y, one_problem)) == ["none"]
