"""task=prmbench: PRMScore by class of error (arXiv 2501.03124), also of Socratic-PRMBench (arXiv 2505.23474)."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from prm_jax.evals import benchmarks
from prm_jax.evals.benchmarks import Row
from prm_jax.evals.published import PRMBENCH, PRMBENCH_CLASSES, PRMBENCH_GROUPS, SOCRATIC_GROUPS
from prm_jax.evals.setup import Setup
from prm_jax.evals.tables import interval_of, plus_minus
from prm_jax.evals.task import Task
from prm_jax.metrics import f1, prm_score
from prm_jax.stats import problem_numbers


@dataclasses.dataclass(frozen=True)
class Config(benchmarks.Config):
    official: bool


def run(setup: Setup, cfg: Config) -> dict:
    rows, scores, origin = benchmarks.rows_and_scores(setup, cfg, "prmbench")
    return {**origin, **prmscore_results(rows, scores, cfg.threshold, setup.cfg.seed, cfg.official)}


def show(results: dict):
    benchmarks.show_verifier(results)
    print(f"rule        {results['rule']}")
    width = max(21, *(len(name) + 2 for name in results["classes"]))
    print(f"  {'class':<{width}}{'rows':>6}{'steps':>7}{'bad':>6}  PRMScore")

    def show_row(name: str, x: dict, score: float, interval):
        counts = f"{x['n_rows']:6}{x['n_steps']:7}{x['n_bad_steps']:6}"
        print(f"  {name:<{width}}{counts}  {score:.4f} {plus_minus(interval)}")

    for name, x in results["classes"].items():
        show_row(name, x, x["prmscore"], x["prmscore_interval"])
    for name, x in results["groups"].items():
        missing = [member for member in x["classes"] if member not in results["classes"]]
        note = f"  (no rows of {', '.join(missing)})" if missing else ""
        print(
            f"  {name + ', mean of its':<{width + 6}}{len(x['classes'])} classes{x['prmscore']:>13.4f}{note}"
        )
    show_row("overall, all steps", results, results["overall"], results["overall_interval"])


def prmscore_results(
    rows: list[Row], scores: Sequence, threshold: float, seed: int = 0, official: bool = True
) -> dict:
    """PRMBench's numbers: PRMScore per class, over all steps pooled, and per group of classes.

    PRMScore is the mean of F1 on good and F1 on bad steps; of multi_solutions, which has no bad step, F1 on good steps
    alone. A group's is the plain mean over its classes, nan unless all are there. Where no class is PRMBench's the
    groups are Socratic-PRMBench's, which has no published table here. Every class is judged by validity, not by the
    redundancy ratings behind ReasonEval's published redundency and circular. Intervals: 95 %, bootstrap over problems.

    `official`: as in the authors' evaluator (ssmisya/PRMBench at a1ae4ea), a step at the threshold is bad, and a row
    that repeats a class and idx is passed over: 6,211 of the paper's 6,216 count.
    """
    repeated = sum(row.repeats for row in rows)
    rule = f"a step at the threshold is good, {repeated} rows that repeat a class and idx count"
    if official:
        rule = f"official: a step at the threshold is bad, {repeated} rows that repeat a class and idx are passed over"
        rows, scores = zip(
            *((row, score) for row, score in zip(rows, scores, strict=True) if not row.repeats)
        )
    is_good = np.concatenate([row.solution.labels for row in rows]) >= 0.5
    p = np.concatenate([np.asarray(score, np.float64) for score in scores])
    predicted = p > threshold if official else p >= threshold
    row_of_step = np.repeat(np.arange(len(rows)), [len(row.solution.steps) for row in rows])
    names = list(dict.fromkeys(row.group for row in rows))
    is_socratic = not set(PRMBENCH_CLASSES) & set(names)
    grouped = SOCRATIC_GROUPS if is_socratic else PRMBENCH_GROUPS
    known = [name for members in grouped.values() for name in members]
    problem, group = (
        problem_numbers(getattr(row, name) for row in rows)[row_of_step] for name in ("problem", "group")
    )

    def numbers(steps, score_fn):
        good, verdict = is_good[steps], predicted[steps]
        return {
            "prmscore": score_fn(good, verdict),
            "prmscore_interval": interval_of(score_fn, problem[steps], seed, good, verdict),
            "f1_good": f1(good, verdict), "f1_bad": np.nan if good.all() else f1(~good, ~verdict),
            "step_accuracy": float(np.mean(good == verdict)), "n_rows": len(np.unique(row_of_step[steps])),
            "n_steps": len(good), "n_bad_steps": int((~good).sum()),
        }  # fmt: skip

    classes, groups = {}, {}
    for name in sorted(names, key=lambda name: [*known, name].index(name)):
        score_fn = f1 if name == "multi_solutions" else prm_score
        classes[name] = numbers(np.flatnonzero(group == names.index(name)), score_fn)
    for name, members in grouped.items():
        scores = [classes[member]["prmscore"] if member in classes else np.nan for member in members]
        groups[name] = {"prmscore": float(np.mean(scores)), "classes": list(members)}
    pooled = numbers(np.arange(len(group)), prm_score)
    return {
        "classes": classes, "groups": groups, "overall": pooled.pop("prmscore"),
        "overall_interval": pooled.pop("prmscore_interval"), **pooled, "threshold": float(threshold),
        "threshold_origin": "given", "rule": rule,
        "published": {"source": None, "prmscore": {}} if is_socratic else PRMBENCH,
    }  # fmt: skip


class Prmbench(Task):
    Config = Config

    @property
    def needs_checkpoint(self) -> bool:
        return self.cfg.scores_file is None

    def run(self, setup: Setup) -> dict:
        return run(setup, self.cfg)

    def show(self, results: dict):
        show(results)

    def figures(self, results: dict, folder: Path) -> list[Path]:
        from prm_jax.figures.benchmarks import prmbench_figures

        return prmbench_figures(results, folder)

    def metric(self, results: dict) -> float | None:
        return results["overall"]
