"""What only an embedded task knows of its steps: kinds of errors, exact correctness, exact values."""

import numpy as np
from scipy import stats

from prm_jax import tasks
from prm_jax.evals.tables import interval_of, show_table
from prm_jax.metrics import auroc, labelled_steps, mean
from prm_jax.solutions import Solution

COMPLETIONS = [2**i for i in range(7)]  # K of a Monte-Carlo label


def exact_numbers(data_cfg, test: list[Solution], p: list[np.ndarray], threshold: float, seed: int) -> dict:
    """Scores of an embedded task's steps against both exact meanings of a label, whatever the verifier
    learned. auroc_correctness: of the steps up to and including the first wrong one; auroc_value: with the
    exact value of every step, at most auroc_value_ceiling."""
    task = tasks.find_task(data_cfg.name)
    value = np.concatenate([task.values(data_cfg.task, s.problem, s.steps) for s in test])
    correct = [task.step_labels(s.problem, s.steps) for s in test]
    counted = np.concatenate([np.isin(np.arange(len(y_T)), labelled_steps(list(y_T))[0]) for y_T in correct])
    unfinished = np.concatenate([np.arange(len(s.steps)) < len(s.steps) - 1 for s in test])
    score, good = np.concatenate(p).astype(np.float64), np.concatenate(correct)
    return {
        "auroc_correctness": auroc(score[counted], good[counted]),
        "auroc_value": auroc(score, value),
        "auroc_value_ceiling": auroc(value, value),
        "label_errors": label_errors(value[unfinished & counted], good[unfinished & counted]),
        "errors": {"kinds": errors_by_kind(task, test, p, threshold, seed)},
    }


def errors_by_kind(task, test: list[Solution], p: list[np.ndarray], threshold: float, seed: int) -> dict:
    """{kind of a first error: `n`, the share that a verifier misses (P >= threshold), its 95 % bootstrap
    interval over problems}."""
    of_kind = {}
    for s, p_T in zip(test, p, strict=True):
        if error := task.first_wrong(s.problem, s.steps):
            t, kind = error
            of_kind.setdefault(kind, []).append((s.problem, p_T[t] >= threshold))
    table = {}
    for kind, errors in sorted(of_kind.items()):
        problems, missed = zip(*errors)
        interval = interval_of(np.mean, problems, seed, np.array(missed))
        table[kind] = {"n": len(errors), "missed": float(np.mean(missed)), "interval": interval}
    return table


def label_errors(value, good) -> dict[str, dict]:
    """{K: errors of a label by K completions, in expectation over them}, of steps with these values and
    correctness: the share of labels `any` (one is right) and `half` (half of them are) that are wrong, and
    the mean |share right - value| (`soft`)."""
    table, is_good = {}, good == 1
    for k in COMPLETIONS:
        p_Kn = stats.binom.pmf(np.arange(k + 1)[:, None], k, value)  # of 0 ... k right completions
        share_K = np.arange(k + 1) / k
        half_n = p_Kn[share_K >= 0.5].sum(0)
        table[str(k)] = {
            "any": mean(np.where(is_good, p_Kn[0], 1 - p_Kn[0])),
            "half": mean(np.where(is_good, 1 - half_n, half_n)),
            "soft": mean((p_Kn * np.abs(share_K[:, None] - value)).sum(0)),
        }
    return table


def show(runs: list[dict]):
    names = "auroc_correctness", "auroc_value", "auroc_value_ceiling"
    aurocs = {run["verifier"]: {name: run[name] for name in names} for run in runs}
    show_table("AUROC against exact labels", aurocs)
    show_table("first wrong lines that are taken for right", runs[0]["errors"]["kinds"], digits=3)
