"""What only an embedded task knows of its steps: exact correctness, exact values."""

import numpy as np

from prm_jax import tasks
from prm_jax.evals.tables import show_table
from prm_jax.metrics import auroc, labelled_steps
from prm_jax.solutions import Solution


def exact_numbers(data_cfg, test: list[Solution], p: list[np.ndarray]) -> dict:
    """Scores of an embedded task's steps against both exact meanings of a label, whatever the verifier
    learned. auroc_correctness: of the steps up to and including the first wrong one; auroc_value: with the
    exact value of every step, at most auroc_value_ceiling."""
    task = tasks.find_task(data_cfg.name)
    value = np.concatenate([task.values(data_cfg.task, s.problem, s.steps) for s in test])
    correct = [task.step_labels(s.problem, s.steps) for s in test]
    counted = np.concatenate([np.isin(np.arange(len(y_T)), labelled_steps(list(y_T))[0]) for y_T in correct])
    score, good = np.concatenate(p).astype(np.float64), np.concatenate(correct)
    return {
        "auroc_correctness": auroc(score[counted], good[counted]),
        "auroc_value": auroc(score, value),
        "auroc_value_ceiling": auroc(value, value),
    }


def show(runs: list[dict]):
    names = "auroc_correctness", "auroc_value", "auroc_value_ceiling"
    aurocs = {run["verifier"]: {name: run[name] for name in names} for run in runs}
    show_table("AUROC against exact labels", aurocs)
