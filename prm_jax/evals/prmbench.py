"""task=prmbench: PRMScore by class of error (arXiv 2501.03124), also of Socratic-PRMBench (arXiv
2505.23474)."""

from collections.abc import Sequence

import numpy as np

from prm_jax.evals.benchmarks import Benchmark, Row, rows_and_scores
from prm_jax.evals.published import PRMBENCH, PRMBENCH_CLASSES, PRMBENCH_GROUPS, SOCRATIC_GROUPS
from prm_jax.evals.setup import Setup
from prm_jax.evals.tables import interval_of, show_table
from prm_jax.metrics import f1, prm_score, problem_numbers


class Prmbench(Benchmark):
    def run(self, setup: Setup) -> dict:
        rows, scores, origin = rows_and_scores(setup, "prmbench")
        return origin | prmscore_results(rows, scores, self.cfg.threshold, setup.cfg.seed)

    def show(self, results: dict):
        super().show(results)
        overall = {"prmscore": results["overall"], "prmscore_interval": results["overall_interval"]}
        rows = {}
        for name, x in (results["classes"] | {"overall, all steps": results | overall}).items():
            counts = {"rows": x["n_rows"], "steps": x["n_steps"], "bad": x["n_bad_steps"]}
            rows[name] = counts | {"PRMScore": x["prmscore"], "interval": x["prmscore_interval"]}
        for name, x in results["groups"].items():  # nan where a class has no rows
            rows[f"{name}, mean of its classes"] = {"PRMScore": x["prmscore"]}
        for system, published in results["published"]["prmscore"].items():
            rows[f"published, all steps: {system}"] = {"PRMScore": published["overall"]}
        show_table("class", rows)

    def metric(self, results: dict) -> float | None:
        """PRMScore over all steps."""
        return results["overall"]


def prmscore_results(rows: list[Row], scores: Sequence, threshold: float, seed: int = 0) -> dict:
    """PRMBench's numbers: PRMScore per class, over all steps pooled, and per group of classes.

    PRMScore is the mean of F1 on good and F1 on bad steps; of multi_solutions, which has no bad step, F1 on
    good steps alone. A group's is the plain mean over its classes, nan unless all are there. Every class is
    judged by validity, not by the redundancy ratings behind ReasonEval's published redundency and circular.

    As in the authors' evaluator (ssmisya/PRMBench at a1ae4ea), a step at the threshold is bad.
    """
    is_good = np.concatenate([row.solution.labels for row in rows]) >= 0.5
    p = np.concatenate([np.asarray(score, np.float64) for score in scores])
    predicted = p > threshold
    row_of_step = np.repeat(np.arange(len(rows)), [len(row.solution.steps) for row in rows])
    problem = problem_numbers(row.problem for row in rows)[row_of_step]
    group = problem_numbers(row.group for row in rows)[row_of_step]
    names = list(dict.fromkeys(row.group for row in rows))
    is_socratic = not set(PRMBENCH_CLASSES) & set(names)
    grouped = SOCRATIC_GROUPS if is_socratic else PRMBENCH_GROUPS

    def numbers(steps, score_fn) -> dict:
        good, verdict = is_good[steps], predicted[steps]
        return {
            "prmscore": score_fn(good, verdict),
            "prmscore_interval": interval_of(score_fn, problem[steps], seed, good, verdict),
            "n_rows": len(np.unique(row_of_step[steps])),
            "n_steps": len(good),
            "n_bad_steps": int((~good).sum()),
        }

    classes, groups = {}, {}
    for name in sorted(names, key=[*PRMBENCH_CLASSES, *names].index):
        score_fn = f1 if name == "multi_solutions" else prm_score
        classes[name] = numbers(group == names.index(name), score_fn)
    for name, members in grouped.items():
        prmscores = [classes[member]["prmscore"] if member in classes else np.nan for member in members]
        groups[name] = {"prmscore": float(np.mean(prmscores)), "classes": list(members)}
    pooled = numbers(np.ones(len(group), bool), prm_score)
    return {
        "classes": classes,
        "groups": groups,
        "overall": pooled.pop("prmscore"),
        "overall_interval": pooled.pop("prmscore_interval"),
        **pooled,
        "threshold": float(threshold),
        "published": {"source": None, "prmscore": {}} if is_socratic else PRMBENCH,
    }
