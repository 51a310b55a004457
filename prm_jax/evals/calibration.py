"""Calibration of probabilities, and temperature and Platt scaling (Guo et al. 2017; Platt 1999).

P(step good) = sigmoid(a z + b) of log-odds z; temperature scaling has b = 0 and T = 1 / a. Arrays have one
entry a step.
"""

from pathlib import Path

import numpy as np

from prm_jax import InputError
from prm_jax.data.units import UNITS, as_probability, probability
from prm_jax.evals.baselines import fit_logistic
from prm_jax.launch import run_folder
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
    w = fit_logistic(x, y, l2=2e-6 * len(y), start=np.array([1.0, 0.0][: 1 + bias]))
    return float(w[0]), float(w[1]) if bias else 0.0


def recalibrated(p, y, problem, elsewhere: dict[str, list[float]] | None = None) -> dict[str, dict]:
    """{way: calibration numbers and parameters (a, b)}: of scores as they are (`none`), after temperature and
    Platt. A scaling is fitted on the steps of one half of the problems and measured on the other half, and
    the reverse; its `parameters` are fitted on all. `elsewhere`, the parameters of another evaluation, are
    applied as they are."""
    z = np.clip(UNITS["probability"].log_odds(p), -MOST, MOST)
    ways = {"none": calibration_numbers(p, y) | {"parameters": [1.0, 0.0]}}
    halves = [np.asarray(problem) % 2 == side for side in (0, 1)]
    for way, bias in WAYS.items() if all(half.any() for half in halves) else ():
        q = np.empty_like(z)
        for measured, fitted in (halves, halves[::-1]):
            a, b = fit(z[fitted], y[fitted], bias)
            q[measured] = probability(a * z[measured] + b)
        ways[way] = calibration_numbers(q, y) | {"parameters": list(fit(z, y, bias))}
    for way, (a, b) in (elsewhere or {}).items():
        ways[f"{way}, elsewhere"] = calibration_numbers(probability(a * z + b), y) | {"parameters": [a, b]}
    return ways


def parameters_of(folder: str | None) -> dict[str, list[float]] | None:
    """{way: (a, b)} that another evaluation by task=steps has fitted to its first run's scores."""
    if folder is None:
        return None
    path = Path(folder) / "results.json"
    try:
        ways = run_folder.read_json(path)["runs"][0]["recalibrated"]
        return {way: ways[way]["parameters"] for way in WAYS}
    except (OSError, LookupError):
        raise InputError(f"calibrated_by: {path}: expected results of task=steps with scalings") from None
