"""Calibration of probabilities: of steps, and of a pool's solutions. Arrays have one entry a step."""

import numpy as np

from prm_jax.data.units import as_probability
from prm_jax.metrics import auroc, brier, ece, labelled_steps, reliability
from prm_jax.rerank import AGGREGATORS


def calibration_numbers(p, y) -> dict:
    """ECE, Brier score, AUROC and reliability curve of probabilities p of labels y in [0, 1]."""
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
