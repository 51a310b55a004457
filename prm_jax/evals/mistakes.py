"""task=mistakes: sets of labelled mistakes, each measured by its own metric; data=NAME, a name of OWN, is the
set."""

import functools

import numpy as np

from prm_jax.evals.benchmarks import Benchmark, Row, rows_and_scores
from prm_jax.evals.setup import Setup
from prm_jax.evals.tables import interval_of, show_table
from prm_jax.launch.config import expect
from prm_jax.metrics import (
    auroc,
    first_error_accuracy,
    first_error_f1,
    harmonic_mean,
    mcc,
    mean,
    predict_first_error,
    problem_numbers,
)
from prm_jax.solutions import first_error

# The metrics that the authors of a set report, of `solution_numbers` and `step_numbers`.
OWN = {
    # Share of traces whose first mistake, or absence of one, is found (Tyen et al. 2024, section 3).
    "big_bench_mistake": ("location_accuracy",),
    # MR-Score = .2 max(0, MCC) + .3 accuracy of the step + .5 of the reason; PRMs give no reason (Zeng et
    # al. 2023, section 3).
    "mr_gsm8k": ("mcc", "accuracy_error"),
    # Balanced F1: harmonic mean of accuracies on good and bad steps, solutions, first errors (Pandit et al.
    # 2025).
    "hard2verify": ("step_balanced_f1", "solution_balanced_f1", "first_error_f1"),
    "processbench": ("first_error_f1",),
}


class Mistakes(Benchmark):
    def run(self, setup: Setup) -> dict:
        kind, threshold = setup.data.name, self.cfg.threshold
        expect(kind in OWN, "data", kind, f"data=NAME, a set of labelled mistakes: {', '.join(OWN)}")
        rows, scores, origin = rows_and_scores(setup, self.cfg, kind)
        pairs, groups = list(zip(rows, scores, strict=True)), {}
        for row, score_T in pairs:
            groups.setdefault(row.group, []).append((row, score_T))
        measure = functools.partial(group_numbers, kind=kind, threshold=threshold, seed=setup.cfg.seed)
        return origin | {
            "threshold": float(threshold),
            "threshold_origin": "given",
            "own": OWN[kind],
            "n_rows": len(rows),
            "groups": {name: measure(members) for name, members in groups.items()},
            "all": measure(pairs),
        }

    def show(self, results: dict):
        """Prints the set's own numbers of each group, and all numbers of all rows."""
        super().show(results)
        for name, x in (*results["groups"].items(), ("all", results["all"])):
            steps = f"{x['n_steps']} labelled steps, {x['n_bad_steps']} bad"
            title = f"{name}: {x['n']} solutions, {x['n_error']} with a mistake; {steps}"
            shown = x["numbers"] if name == "all" else results["own"]
            rows = {key: {"": x["numbers"][key]} for key in shown}
            for key in results["own"]:
                rows[key] |= {"interval": x["intervals"][key], "the set's own": "*"}
            show_table(title, rows)

    def metric(self, results: dict) -> float | None:
        """The first of the set's own metrics over all rows."""
        return results["all"]["numbers"][results["own"][0]]


def solution_numbers(predicted, error) -> dict[str, float]:
    """Metrics of first errors (index or -1): accuracy over all; ProcessBench's two accuracies and F1;
    balanced F1 and MCC of the verdict whether there is an error, with a sound solution as positive."""
    calls_sound, is_sound = predicted == -1, error == -1
    split = first_error_f1(predicted, error)
    return {
        "location_accuracy": first_error_accuracy(predicted, error),
        "accuracy_error": split["accuracy_error"],
        "accuracy_clean": split["accuracy_clean"],
        "first_error_f1": split["f1"],
        "solution_balanced_f1": harmonic_mean(mean(calls_sound[is_sound]), mean(~calls_sound[~is_sound])),
        "mcc": mcc(is_sound, calls_sound),
    }


def step_numbers(p, is_good, threshold: float) -> dict[str, float]:
    """Metrics of all labelled steps, those after an error too: AUROC, accuracy, balanced F1."""
    hit = (p >= threshold) == is_good
    balanced = harmonic_mean(mean(hit[is_good]), mean(hit[~is_good]))
    return {"step_auroc": auroc(p, is_good), "step_accuracy": mean(hit), "step_balanced_f1": balanced}


def group_numbers(members: list[tuple[Row, np.ndarray]], kind: str, threshold: float, seed: int) -> dict:
    rows, scores = zip(*members)
    labels = [row.solution.labels for row in rows]
    problem = problem_numbers(row.problem for row in rows)
    steps = [(k, t) for k, label_T in enumerate(labels) for t, y in enumerate(label_T) if y is not None]
    problem_n = problem[[k for k, _ in steps]]
    p_n = np.array([scores[k][t] for k, t in steps])
    good_n = np.array([labels[k][t] for k, t in steps]) >= 0.5
    predicted = np.array([predict_first_error(score_T, threshold) for score_T in scores])
    error = np.array([first_error(label_T) for label_T in labels])
    step_table = functools.partial(step_numbers, threshold=threshold)
    # (problems, {name: number} of arrays, arrays with an entry a problem)
    tables = [(problem, solution_numbers, predicted, error), (problem_n, step_table, p_n, good_n)]
    numbers, intervals = {}, {}
    for owner, table, *arrays in tables:
        values = table(*arrays)
        numbers |= values
        for name in [name for name in OWN[kind] if name in values]:
            statistic = lambda *x, name=name, table=table: table(*x)[name]
            intervals[name] = interval_of(statistic, owner, seed, *arrays)
    return {
        "n": len(members),
        "n_error": int((error != -1).sum()),
        "n_problems": len(np.unique(problem)),
        "n_steps": len(p_n),
        "n_bad_steps": int((~good_n).sum()),
        "numbers": numbers,
        "intervals": intervals,
    }
