"""Temperature and Platt scaling of step scores: what a verifier's calibration costs to repair (Guo et al. 2017; Platt 1999).

P(step good) = sigmoid(a z + b) of log-odds z; temperature scaling has b = 0 and T = 1 / a. Neither changes a ranking by one
step's score. Arrays have one entry a step.
"""

from pathlib import Path

import numpy as np

from prm_jax import InputError
from prm_jax.data.units import UNITS, probability
from prm_jax.evals.pool_metrics import reliability_table
from prm_jax.launch import run_folder
from prm_jax.metrics import brier, ece

MOST = 30.0  # log-odds: beyond them a probability is 1 to thirteen digits, and no scaling tells more
WAYS = {"temperature": False, "platt": True}  # way -> whether it has a bias


def fit(z, y, bias: bool) -> tuple[float, float]:
    """(a, b) of the least cross-entropy with labels y in [0, 1], by Newton's method; b is 0 without a bias.

    A tiny pull to a = 1, b = 0 keeps them finite where the steps can be separated.
    """
    x = np.stack([z, np.ones_like(z)][: 1 + bias], -1)
    start = np.array([1.0, 0.0][: 1 + bias])
    loss = lambda w: np.mean(np.logaddexp(0.0, x @ w) - y * (x @ w)) + 1e-6 * ((w - start) ** 2).sum()
    w = start
    for _ in range(100):
        q = probability(x @ w)
        gradient = x.T @ (q - y) / len(y) + 2e-6 * (w - start)
        curvature = (x * (q * (1 - q))[:, None]).T @ x / len(y) + 2e-6 * np.eye(len(w))
        step = np.linalg.solve(curvature, gradient)
        while loss(w - step) > loss(w) and np.abs(step).max() > 1e-9:
            step = step / 2
        w = w - step
        if np.abs(step).max() < 1e-9:
            break
    return float(w[0]), float(w[1]) if bias else 0.0


def recalibrated(p, y, problem, elsewhere: dict[str, list[float]] | None = None) -> dict[str, dict]:
    """{way: ece, brier, reliability, parameters (a, b)}: the scores as they are (`none`), after temperature and Platt scaling.

    A scaling is fitted on the steps of one half of the problems and measured on the other half, and the reverse; its
    `parameters` are fitted on all. `elsewhere`, the parameters of another evaluation, are applied as they are.
    """
    z = np.clip(UNITS["probability"].log_odds(p), -MOST, MOST)
    ways = {"none": numbers(p, y) | {"parameters": [1.0, 0.0]}}
    halves = [np.asarray(problem) % 2 == side for side in (0, 1)]
    for way, bias in WAYS.items() if all(half.any() for half in halves) else ():
        q = np.empty_like(z)
        for own, other in (halves, halves[::-1]):
            a, b = fit(z[other], y[other], bias)
            q[own] = probability(a * z[own] + b)
        ways[way] = numbers(q, y) | {"parameters": list(fit(z, y, bias))}
    for way, (a, b) in (elsewhere or {}).items():
        ways[f"{way}, elsewhere"] = numbers(probability(a * z + b), y) | {"parameters": [a, b]}
    return ways


def numbers(p, y) -> dict:
    return {"ece": ece(p, y), "brier": brier(p, y), "reliability": reliability_table(p, y)}


def parameters_of(folder: str | None) -> dict[str, list[float]] | None:
    """{way: (a, b)} that an evaluation of step scores has fitted."""
    if folder is None:
        return None
    path = f"{folder}/results.json"
    try:
        runs = run_folder.read_json(Path(path))["runs"]
        return {way: runs[0]["recalibrated"][way]["parameters"] for way in WAYS}
    except (OSError, KeyError, IndexError):
        raise InputError(f"calibrated_by: {path}: expected the results of task=steps with fitted scalings") from None
