"""task=mistakes: sets of labelled mistakes, each measured by its own metric; data.name, a name of OWN, is the
set."""

import numpy as np

from prm_jax.evals.benchmarks import Benchmark, Row, rows_and_scores
from prm_jax.evals.setup import Setup
from prm_jax.evals.tables import interval_of, show_table
from prm_jax.launch.config import expect
from prm_jax.metrics import first_error_f1, harmonic_mean, mcc, mean, predict_first_error, problem_numbers
from prm_jax.solutions import first_error


def balanced_f1(predicted, is_good) -> float:
    """Harmonic mean of the accuracies on what is good and on what is bad."""
    hit = predicted == is_good
    return harmonic_mean(mean(hit[is_good]), mean(hit[~is_good]))


# Of each solution's predicted and labelled first error, -1 where there is none; a sound one is positive.
SOLUTION_METRICS = {
    "accuracy_error": lambda predicted, error: mean((predicted == error)[error != -1]),
    "first_error_f1": lambda predicted, error: first_error_f1(predicted, error)["f1"],
    "solution_balanced_f1": lambda predicted, error: balanced_f1(predicted == -1, error == -1),
    "mcc": lambda predicted, error: mcc(error == -1, predicted == -1),
}
# The metrics that the authors of a set report.
OWN = {
    # MR-Score = .2 max(0, MCC) + .3 accuracy of the step + .5 of the reason; PRMs give no reason (Zeng et
    # al. 2023, section 3).
    "mr_gsm8k": ("mcc", "accuracy_error"),
    "hard2verify": ("step_balanced_f1", "solution_balanced_f1", "first_error_f1"),  # Pandit et al. 2025
    "processbench": ("first_error_f1",),
}


class Mistakes(Benchmark):
    def run(self, setup: Setup) -> dict:
        kind, threshold, seed = setup.data.name, self.cfg.threshold, setup.cfg.seed
        expect(kind in OWN, "data.name", kind, f"a set of labelled mistakes: {', '.join(OWN)}")
        rows, scores, origin = rows_and_scores(setup, kind)
        groups = {"all": list(zip(rows, scores, strict=True))}
        for row, score_T in groups["all"]:
            groups.setdefault(f"group {row.group}", []).append((row, score_T))
        numbers = {name: set_numbers(pairs, OWN[kind], threshold, seed) for name, pairs in groups.items()}
        return origin | {"threshold": threshold, "own": OWN[kind], "groups": numbers}

    def show(self, results: dict):
        super().show(results)
        show_table("rows", results["groups"])

    def metric(self, results: dict) -> float | None:
        """The first of the set's own metrics over all rows."""
        return results["groups"]["all"][results["own"][0]]


def set_numbers(pairs: list[tuple[Row, np.ndarray]], own: tuple, threshold: float, seed: int) -> dict:
    """The set's own metrics of rows and their scores, with 95 % bootstrap intervals over problems."""
    problem = problem_numbers(row.problem for row, _ in pairs)
    error = np.array([first_error(row.solution.labels) for row, _ in pairs])
    predicted = np.array([predict_first_error(score_T, threshold) for _, score_T in pairs])
    steps = []
    for number, (row, score_T) in zip(problem, pairs, strict=True):
        labelled = zip(score_T, row.solution.labels, strict=True)
        steps += [(number, p >= threshold, y >= 0.5) for p, y in labelled if y is not None]
    problem_n, called_good_n, good_n = (np.array(x) for x in zip(*steps))
    numbers = {
        "n": len(pairs),
        "n_error": int((error != -1).sum()),
        "n_steps": len(steps),
        "n_bad_steps": int((~good_n).sum()),
    }
    measured = {name: (f, problem, predicted, error) for name, f in SOLUTION_METRICS.items()}
    measured["step_balanced_f1"] = balanced_f1, problem_n, called_good_n, good_n  # after an error, too
    for name in own:
        metric, owners, *arrays = measured[name]
        numbers[name] = metric(*arrays)
        numbers[f"{name}_interval"] = interval_of(metric, owners, seed, *arrays)
    return numbers
