"""task=processbench: the benchmark's F1 of finding the first wrong step (arXiv 2412.06559)."""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from prm_jax.evals import benchmarks
from prm_jax.evals.baselines import rule_scores
from prm_jax.evals.benchmarks import Benchmark, Row
from prm_jax.evals.published import PROCESSBENCH
from prm_jax.evals.setup import Setup
from prm_jax.evals.tables import interval_of, lead_text, show_table
from prm_jax.launch.config import expect
from prm_jax.metrics import first_error_f1, predict_first_error, problem_numbers
from prm_jax.solutions import first_error


@dataclasses.dataclass(frozen=True)
class Config(benchmarks.Config):
    threshold_split: str | None


class Processbench(Benchmark):
    Config = Config

    def run(self, setup: Setup) -> dict:
        rows, scores, origin = benchmarks.rows_and_scores(setup, "processbench")
        return origin | f1_results(rows, scores, self.cfg.threshold, self.cfg.threshold_split, setup.cfg.seed)

    def show(self, results: dict):
        super().show(results)
        if split := results["threshold_split"]:
            print(f"            of the best F1 on {split}")
        rows = {}
        for name, x in results["splits"].items():
            row = {"n": x["n"], "erroneous": x["accuracy_error"], "clean": x["accuracy_clean"]}
            rows[name] = row | {"F1": x["f1"], "interval": x["f1_interval"]}
        rows["mean"] = {"F1": results["mean_f1"], "interval": results["mean_f1_interval"]}
        for name, mean_f1 in results["cross_fitted"].items():
            rows[f"mean, {name} cross-fitted"] = {"F1": mean_f1}
        show_table("split", rows)
        name = f"the verifier at {results['threshold']:.4g}"
        print(f"verdict     {lead_text(name, results['best_rule'], results['lead'])}")

    def figures(self, results: dict, folder: Path) -> list[Path]:
        from prm_jax.figures.benchmarks import processbench_figures

        return processbench_figures(results, folder)

    def metric(self, results: dict) -> float | None:
        """Mean F1 over the splits."""
        return results["mean_f1"]


def f1_results(rows: list[Row], scores, threshold: float, tuned_on: str | None = None, seed: int = 0) -> dict:
    """ProcessBench's numbers: per split the accuracies and their F1, and the plain mean of F1; nan without
    erroneous or without clean solutions. tuned_on: the split whose best threshold is used for all splits, as
    the paper does for scalar PRMs with gsm8k; else `threshold`. Intervals: 95 %, bootstrap over problems, the
    threshold held fixed. `cross_fitted` are mean F1s at thresholds from other problems, of the verifier and
    of rules that read nothing; `lead`: F1 over the better rule's, paired by problem."""
    error = np.array([first_error(row.solution.labels) for row in rows])
    problem, split = (problem_numbers(getattr(row, name) for row in rows) for name in ("problem", "group"))
    names = list(dict.fromkeys(row.group for row in rows))
    if tuned_on is not None:
        expect(tuned_on in names, "threshold_split", tuned_on, ", ".join(names))
        here = split == names.index(tuned_on)
        is_tunable = 0 < (error[here] != -1).mean() < 1
        expect(is_tunable, "threshold_split", tuned_on, "a split with erroneous and with clean solutions")
        threshold = best_threshold(*windows(scores, error)[:, here], error[here] != -1)
    predicted = np.array([predict_first_error(score, threshold) for score in scores])

    def mean_f1(predicted, error, split):  # nan in a resample that lacks a split
        return np.mean([f1(predicted[split == k], error[split == k]) for k in range(len(names))])

    splits = {}
    for k, name in enumerate(names):
        own = predicted[split == k], error[split == k]
        splits[name] = first_error_f1(*own) | {
            "f1_interval": interval_of(f1, problem[split == k], seed, *own),
            "n": len(own[1]),
            "n_error": int((own[1] != -1).sum()),
        }
    judges = {"verifier": scores} | rule_scores([row.solution for row in rows])
    fitted = {name: cross_fitted(score, error, problem, split) for name, score in judges.items()}
    f1s = {name: float(mean_f1(x, error, split)) for name, x in fitted.items()}
    rule = max(("length", "position"), key=f1s.get)

    def lead(predicted, by_rule, error, split):
        return mean_f1(predicted, error, split) - mean_f1(by_rule, error, split)

    arrays = predicted, fitted[rule], error, split
    return {
        "cross_fitted": f1s,
        "best_rule": rule,
        "lead": {"difference": float(lead(*arrays)), "interval": interval_of(lead, problem, seed, *arrays)},
        "splits": splits,
        "mean_f1": float(mean_f1(predicted, error, split)),
        "mean_f1_interval": interval_of(mean_f1, problem, seed, predicted, error, split),
        "threshold": float(threshold),
        "threshold_split": tuned_on,
        "published": PROCESSBENCH,
    }


def f1(predicted, error) -> float:
    return first_error_f1(predicted, error)["f1"]


def cross_fitted(score, error, problem, split) -> np.ndarray:
    """First errors (-1: none) predicted in each half of a split's problems at the threshold that is best on
    the other half; none where that has no sound or no erroneous solution."""
    low_high, is_wrong, predicted = windows(score, error), error != -1, np.full(len(error), -1)
    for k, side in itertools.product(np.unique(split), (0, 1)):
        own = (split == k) & (problem % 2 == side)
        other = (split == k) & (problem % 2 != side)
        if len(np.unique(is_wrong[other])) == 2:
            threshold = best_threshold(*low_high[:, other], is_wrong[other])
            predicted[own] = [predict_first_error(score[i], threshold) for i in np.flatnonzero(own)]
    return predicted


def windows(scores, error) -> np.ndarray:
    """The `right_window` of each solution: low in the first row, high in the second."""
    return np.array([right_window(*pair) for pair in zip(scores, error, strict=True)]).T


def right_window(score: Sequence[float], error: int) -> tuple[float, float]:
    """(low, high]: the thresholds whose first step below is the first `error` (-1: none); empty if low >=
    high."""
    if error == -1:
        return -np.inf, min(score)
    return score[error], min(score[:error], default=np.inf)


def f1_curve(low, high, is_wrong, thresholds) -> np.ndarray:
    """F1 at every threshold. A solution is right where its window (low, high] holds it. is_wrong: has an
    error."""
    low = np.minimum(low, high)  # an empty window holds no threshold

    def accuracy(x):
        n_right = np.searchsorted(np.sort(low[x]), thresholds) - np.searchsorted(np.sort(high[x]), thresholds)
        return n_right / x.sum() if x.any() else np.full(len(thresholds), np.nan)

    a, b = accuracy(is_wrong), accuracy(~is_wrong)
    return np.divide(2 * a * b, a + b, out=np.where(np.isnan(a + b), np.nan, 0.0), where=a + b > 0)


def best_threshold(low, high, is_wrong) -> float:
    """The threshold of the highest F1 over all thresholds, midway between two scores; of equal ones the
    lowest."""
    edges = np.unique([low, high])
    edges = edges[np.isfinite(edges)]  # no solution's prediction changes between two of them
    candidates = np.append((edges[:-1] + edges[1:]) / 2, edges[-1])
    return float(candidates[np.argmax(f1_curve(low, high, is_wrong, candidates))])
