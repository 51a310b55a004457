"""task=processbench: the benchmark's F1 of finding the first wrong step (arXiv 2412.06559)."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from prm_jax import InputError
from prm_jax.data.solutions import first_error
from prm_jax.evals import benchmarks
from prm_jax.evals.benchmarks import Row, needs_checkpoint  # noqa: F401 (evaluate.py asks the task)
from prm_jax.evals.common import Setup, plus_minus
from prm_jax.evals.published import PROCESSBENCH
from prm_jax.launch.config import expect
from prm_jax.metrics import first_error_f1, predict_first_error
from prm_jax.stats import bootstrap_interval, problem_numbers


@dataclasses.dataclass(frozen=True)
class Config(benchmarks.Config):
    """conf/task/processbench.yaml says what each key means."""

    threshold_split: str | None


def run(setup: Setup, cfg: Config) -> dict:
    rows, scores, about = benchmarks.rows_and_scores(setup, cfg, "processbench")
    return about | measure(rows, scores, cfg.threshold, cfg.threshold_split, setup.cfg.seed)


def show(results: dict):
    benchmarks.show_verifier(results)
    print(f"  {'split':<15}{'n':>5}  erroneous   clean      F1")
    for name, x in results["splits"].items():
        accuracies = f"{x['accuracy_error']:9.4f}  {x['accuracy_clean']:6.4f}"
        lacking = ("erroneous", "n_error"), ("clean", "n_clean")
        print(
            f"  {name:<15}{x['n']:5}  {accuracies}  {x['f1']:.4f} {plus_minus(x['f1_interval'])}"
            + "".join(f"  undefined: no {kind} solution" for kind, n in lacking if not x[n])
        )
    print(f"  {'mean':<41}{results['mean_f1']:.4f} {plus_minus(results['mean_f1_interval'])}")


def measure(
    rows: list[Row], scores: Sequence[np.ndarray], threshold: float, threshold_split: str | None = None, seed: int = 0
) -> dict:
    """ProcessBench's numbers: per split the accuracies and their F1, and the plain mean of F1.

    threshold_split: the split whose best threshold is used for all splits, as the paper does for scalar PRMs with
    gsm8k; else `threshold`. Intervals: 95 %, bootstrap over problems, the threshold held fixed. A split without
    erroneous or without clean solutions has F1 nan, and so has the mean.
    """
    scores = [np.asarray(score, np.float64) for score in scores]
    error = np.array([first_error(row.solution.labels) for row in rows])
    problem, split = (problem_numbers(getattr(row, name) for row in rows) for name in ("problem", "group"))
    members = {name: np.flatnonzero(split == k) for k, name in enumerate(dict.fromkeys(row.group for row in rows))}
    low, high = np.array([right_window(*pair) for pair in zip(scores, error, strict=True)]).T
    windows = lambda here: (low[here], high[here], error[here] != -1)
    origin = "given"
    if threshold_split is not None:
        expect(threshold_split in members, "threshold_split", threshold_split, ", ".join(members))
        here = members[threshold_split]
        if len(np.unique(error[here] == -1)) < 2:
            expected = "a split with erroneous and with clean solutions"
            raise InputError(f"threshold_split: {threshold_split} has no F1 to tune on, expected {expected}")
        threshold, origin = best_threshold(*windows(here)), f"best F1 on {threshold_split}"
    predicted = np.array([predict_first_error(score, threshold) for score in scores])
    right_answer = np.array([row.solution.outcome == 1 for row in rows])
    numbers = lambda here: first_error_f1(predicted[here], error[here])
    splits = {}
    for name, here in members.items():
        splits[name], is_wrong = numbers(here), error[here] != -1
        for key in list(splits[name]):
            of_drawn = lambda drawn, key=key, here=here: numbers(here[drawn])[key]
            splits[name][f"{key}_interval"] = bootstrap_interval(of_drawn, problem[here], seed=seed)
        splits[name] |= {
            "n": len(here),
            "n_error": int(is_wrong.sum()),
            "n_error_with_right_answer": int((is_wrong & right_answer[here]).sum()),
            "n_clean": int((~is_wrong).sum()),
            "n_problems": len(np.unique(problem[here])),
            "n_steps": sum(len(scores[i]) for i in here),
        }

    def mean_f1(drawn):
        return np.mean([numbers(drawn[split[drawn] == k])["f1"] for k in range(len(members))])

    thresholds = np.linspace(0, 1, 401)
    curve = {name: f1_curve(*windows(here), thresholds).tolist() for name, here in members.items()}
    return {
        "splits": splits,
        "mean_f1": float(mean_f1(np.arange(len(rows)))),
        "mean_f1_interval": bootstrap_interval(mean_f1, problem, seed=seed),
        "threshold": float(threshold),
        "threshold_origin": origin,
        "curve": {"threshold": thresholds.tolist(), "f1": curve},
        "n_rows": len(rows),
        "published": PROCESSBENCH,
    }


def right_window(score: Sequence[float], error: int) -> tuple[float, float]:
    """(low, high): the predicted first error is the labelled one for thresholds in (low, high]; empty if low >= high.

    `error` is the index of the first bad step or -1. A prediction is the first step below the threshold.
    """
    if error == -1:
        return -np.inf, min(score)
    return score[error], min(score[:error], default=np.inf)


def f1_curve(low, high, is_wrong, thresholds) -> np.ndarray:
    """F1 at every threshold, by counting the solutions whose window (low, high] holds it; is_wrong: have an error."""
    accuracy = []
    for here in (is_wrong, ~is_wrong):
        open_ = here & (low < high)
        n_right = np.searchsorted(np.sort(low[open_]), thresholds)  # windows that begin below the threshold
        n_right = n_right - np.searchsorted(np.sort(high[open_]), thresholds)  # less those that end there
        accuracy.append(n_right / here.sum() if here.any() else np.full(len(thresholds), np.nan))
    a, b = accuracy
    return np.divide(2 * a * b, a + b, out=np.where(np.isnan(a + b), np.nan, 0.0), where=a + b > 0)


def best_threshold(low, high, is_wrong) -> float:
    """The threshold of the highest F1 over all thresholds, midway between two scores; of equal ones the lowest."""
    edges = np.unique([low, high])
    edges = edges[np.isfinite(edges)]  # no solution's prediction changes between two of them
    candidates = np.append((edges[:-1] + edges[1:]) / 2, edges[-1])
    return float(candidates[np.argmax(f1_curve(low, high, is_wrong, candidates))])
