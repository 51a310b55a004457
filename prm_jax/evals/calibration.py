"""Calibration of probabilities, and temperature and Platt scaling (Guo et al. 2017; Platt 1999).

P(step good) = sigmoid(a z + b) of log-odds z; temperature scaling has b = 0 and T = 1 / a. Arrays have one
entry a step.
"""

import numpy as np
from scipy import optimize

from prm_jax.data.units import UNITS, as_probability, probability
from prm_jax.metrics import auroc, brier, ece, labelled_steps, reliability
from prm_jax.rerank import AGGREGATORS

MOST = 30.0  # log-odds: beyond them a probability is 1 to thirteen digits, and no scaling can be read from it
WAYS = {"temperature": False, "platt": True}  # {way: whether it has a bias}


def calibration_numbers(p, y) -> dict:
    """ECE, Brier score and AUROC of probabilities p of labels y in [0, 1], and the curve of a calibration
    figure."""
    p = np.clip(p, 0.0, 1.0)  # exp(log(...)) may pass 1 by a rounding
    return {
        "ece": ece(p, y),
        "brier": brier(p, y),
        "auroc": auroc(p, y >= 0.5),
        "reliability": reliability_table(p, y),
    }


def reliability_table(p, y) -> dict:
    return {name: x.tolist() for name, x in zip(("mean_score", "mean_label", "n"), reliability(p, y))}


def pool_calibration(pool, scorer: str, unit: str, aggregator: str, score_PN, by_labels: bool) -> dict:
    """Calibration of step scores as P(good) against exact labels or outcomes, and of exp(solution score)
    against the outcome if the aggregator gives the log of a probability; of candidates with an outcome."""
    right_n = pool.right_PN[pool.present_PN].astype(float)
    solutions = {}
    if AGGREGATORS[aggregator].is_log_probability:
        p_n = np.exp(score_PN[pool.present_PN].astype(float))
        solutions[aggregator] = calibration_numbers(p_n[pool.finished_n], right_n[pool.finished_n])
    if by_labels and pool.labels:
        step_label = "exact"
        counted = [np.isin(np.arange(len(label_T)), labelled_steps(label_T)[0]) for label_T in pool.labels]
        is_kept_m, y_m = np.concatenate(counted), np.concatenate([np.array(x, float) for x in pool.labels])
    else:
        step_label = "outcome"
        is_kept_m, y_m = np.repeat(pool.finished_n, pool.steps_n), np.repeat(right_n, pool.steps_n)
    steps = calibration_numbers(as_probability(pool.scores[scorer][is_kept_m], unit), y_m[is_kept_m])
    return {"solutions": solutions, "steps": steps, "step_label": step_label}


def fit(z, y, bias: bool) -> tuple[float, float]:
    """(a, b) of the least cross-entropy with labels y in [0, 1]; b is 0 without `bias`. A tiny pull to (1, 0)
    keeps them finite where the steps can be separated."""
    x = np.stack([z, np.ones_like(z)][: 1 + bias], -1)
    start = np.array([1.0, 0.0][: 1 + bias])
    pull = 2e-6 * len(y)

    def loss(w):
        return np.logaddexp(0, x @ w).sum() - y @ (x @ w) + pull / 2 * ((w - start) ** 2).sum()

    def gradient(w):
        return x.T @ (probability(x @ w) - y) + pull * (w - start)

    def curvature(w, direction):
        q = probability(x @ w)
        return x.T @ (q * (1 - q) * (x @ direction)) + pull * direction

    method = {"jac": gradient, "hessp": curvature, "method": "Newton-CG", "options": {"xtol": 1e-6}}
    w = optimize.minimize(loss, start, **method).x
    return float(w[0]), float(w[1]) if bias else 0.0


def recalibrated(p, y, problem) -> dict[str, dict]:
    """{way: calibration numbers and parameters (a, b)}: of scores as they are (`none`), after temperature and
    Platt. A scaling is fitted on the steps of one half of the problems and measured on the other half, and
    the reverse; its `parameters` are fitted on all."""
    z = np.clip(UNITS["probability"].log_odds(p), -MOST, MOST)
    ways = {"none": calibration_numbers(p, y) | {"parameters": [1.0, 0.0]}}
    halves = [np.asarray(problem) % 2 == side for side in (0, 1)]
    for way, bias in WAYS.items() if all(half.any() for half in halves) else ():
        q = np.empty_like(z)
        for measured, fitted in (halves, halves[::-1]):
            a, b = fit(z[fitted], y[fitted], bias)
            q[measured] = probability(a * z[measured] + b)
        ways[way] = calibration_numbers(q, y) | {"parameters": list(fit(z, y, bias))}
    return ways
