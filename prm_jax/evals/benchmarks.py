"""What the benchmarks share: their rows, a verifier's step scores, metrics by group, and rules beside them.

A score is P(step good) in [0, 1]. A step scored below the threshold is predicted bad, one at it good, except
in PRMBench, as its authors have it. Shares and F1 lie in [0, 1].
"""

import collections
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

from prm_jax import InputError
from prm_jax.data.rows import field, optional
from prm_jax.data.sources import Reading, load_placed
from prm_jax.data.splits import Files
from prm_jax.data.units import probability
from prm_jax.data.writing import score_into
from prm_jax.evals.baselines import Row, compare_apart, show_comparison
from prm_jax.evals.setup import Setup
from prm_jax.evals.tables import interval_of, show_table, with_interval
from prm_jax.evals.task import Task
from prm_jax.evals.verifiers import (
    backbone_of,
    describe,
    known_rows,
    likelihood_scores,
    note_seen,
    one_scorer,
)
from prm_jax.launch.config import Share, expect, parse
from prm_jax.launch.progress import print_counts
from prm_jax.metrics import (
    first_error_f1,
    harmonic_mean,
    mcc,
    mean,
    predict_first_error,
    prm_score,
    problem_numbers,
)
from prm_jax.solutions import first_error

GROUP_FIELDS = {"mr_gsm8k": "question_type", "prmbench": "classification"}  # other rows are grouped by file


@dataclasses.dataclass(frozen=True)
class Config:
    threshold: Share  # conf/task/processbench.yaml


@dataclasses.dataclass(frozen=True)
class Source:
    path: Files
    hub: str | None
    hub_split: str


def balanced_f1(is_good, called_good) -> float:
    """Harmonic mean of the accuracies on what is good and on what is bad."""
    is_hit = called_good == is_good
    return harmonic_mean(mean(is_hit[is_good]), mean(is_hit[~is_good]))


# Of each solution's labelled and predicted first error, -1 where there is none; a sound one is positive.
SOLUTION_METRICS = {
    "accuracy_error": lambda error, predicted: mean((predicted == error)[error != -1]),
    "accuracy_clean": lambda error, predicted: mean((predicted == error)[error == -1]),
    "first_error_f1": lambda error, predicted: first_error_f1(predicted, error)["f1"],
    "solution_balanced_f1": lambda error, predicted: balanced_f1(error == -1, predicted == -1),
    "mcc": lambda error, predicted: mcc(error == -1, predicted == -1),
}
# Of each labelled step, after a first error too: is it good, is it called so.
STEP_METRICS = {"step_balanced_f1": balanced_f1, "prmscore": prm_score}
COUNTS = ("n", "n_error", "n_steps", "n_bad_steps")
PUBLISHED = Path(__file__).parents[1] / "assets/published.yaml"  # numbers in per cent, with their sources


class Benchmark(Task):
    """A task on published rows."""

    Config = Config
    kind: str  # the reader of its rows
    metrics: tuple[str, ...]  # those that its authors report
    calls_good = staticmethod(np.greater_equal)  # (score, threshold) -> bool
    is_mean_over_groups = False  # else all rows are one

    def run(self, setup: Setup) -> dict:
        data, threshold, seed = setup.data, self.cfg.threshold, setup.cfg.seed
        expect(data.name in ("of_run", self.kind), "data", data.name, f"data={self.kind}, or data.path alone")
        source = OmegaConf.masked_copy(data, [field.name for field in dataclasses.fields(Source)])
        rows, counts = read(self.kind, parse(source, Source, "data"))
        print_counts(counts)
        scorer, name = one_scorer(setup), setup.checkpoints[0]
        solutions = [row.solution for row in rows]
        texts = [(s.id, s.problem, s.steps) for s in solutions]
        scores = list(map(probability, score_into(setup.folder / "scores.jsonl", scorer, texts, len(rows))))
        likelihood = likelihood_scores(setup, backbone_of(name), texts, setup.folder / "likelihood.jsonl")
        compared = rows if self.is_mean_over_groups else [row._replace(group="") for row in rows]
        known_R = known_rows(name, solutions)
        results = describe(scorer) | compare_apart(compared, scores, likelihood, known_R, threshold, seed)
        results |= {"data": OmegaConf.to_container(source), "counts": counts, "n_rows": len(rows)}
        results |= {"n_seen": sum(known_R)}
        return results | {"threshold": threshold} | self.measure(rows, scores, seed)

    def measure(self, rows: list[Row], scores, seed: int) -> dict:
        """The authors' metrics of all rows and of each group, with 95 % bootstrap intervals over problems."""
        groups = {} if self.is_mean_over_groups else {"all": list(range(len(rows)))}
        for i, row in enumerate(rows):
            groups.setdefault(row.group, []).append(i)
        numbers = {}
        for name, members in groups.items():
            numbers[name] = self.numbers([rows[i] for i in members], [scores[i] for i in members], seed)
        return {"metrics": self.metrics, "groups": numbers}

    def numbers(self, rows: list[Row], scores, seed: int) -> dict:
        """Counts, and the metrics with their intervals, of some rows. n: all their steps."""
        threshold, problem = self.cfg.threshold, problem_numbers(row.problem for row in rows)
        error = np.array([first_error(row.solution.labels) for row in rows])
        predicted = np.array([predict_first_error(score_T, threshold) for score_T in scores])
        label_n = np.concatenate([np.array(row.solution.labels, float) for row in rows])
        is_labelled_n = ~np.isnan(label_n)
        is_good_n = label_n[is_labelled_n] >= 0.5
        called_good_n = self.calls_good(np.concatenate(scores, dtype=float), threshold)[is_labelled_n]
        problem_n = np.repeat(problem, [len(score_T) for score_T in scores])[is_labelled_n]
        numbers = {
            "n": len(rows),
            "n_error": int((error != -1).sum()),
            "n_steps": len(is_good_n),
            "n_bad_steps": int((~is_good_n).sum()),
        }
        for name in self.metrics:
            if name in STEP_METRICS:
                metric, owner, arrays = STEP_METRICS[name], problem_n, (is_good_n, called_good_n)
            else:
                metric, owner, arrays = SOLUTION_METRICS[name], problem, (error, predicted)
            numbers[name] = float(metric(*arrays))
            numbers[f"{name}_interval"] = interval_of(metric, owner, seed, *arrays)
        return numbers

    def rows_of_table(self, results: dict) -> dict[str, dict]:
        table = {}
        for name, x in results["groups"].items():
            counts = {count: x[count] for count in COUNTS}
            table[name] = counts | {metric: with_interval(x, metric) for metric in results["metrics"]}
        for system, x in results.get("published", {}).items():
            table[f"published: {system}"] = {results["metrics"][-1]: x}
        return table

    def show(self, results: dict):
        print(f"verifier    {results['verifier']} ({results['label_kind']} labels)")
        print(f"threshold   {results['threshold']:.4g}")
        show_table("rows", self.rows_of_table(results))
        if "source" in results:
            print(f"published   {results['source']}")
        show_comparison(results)

    def detail(self, results: dict):
        note_seen(results["verifier"], results["n_seen"], "solutions' problems")


def places(source: Source) -> Iterator[tuple[str, str | None, str]]:
    """Yields (file or hub data set, its split, the name of its group); hub_split=gsm8k+math is two."""
    if (source.path is None) == (source.hub is None):
        raise InputError("data.path: expected files (data.path=FILE) or a data set (data.hub=OWNER/NAME)")
    for split in source.hub_split.split("+") if source.hub else ():
        yield source.hub, split, split
    for path in [source.path] if isinstance(source.path, str) else source.path or ():
        yield path, None, Path(path.removesuffix(".gz")).stem


def read(kind: str, source: Source) -> tuple[list[Row], dict[str, int]]:
    """The rows of a benchmark as published, exact repeats too, and counts of its oddities. Where PRMBench
    repeats a row's class and idx the second is passed over, as by its authors."""
    rows, counts, ids, seen = [], collections.Counter(), set(), set()
    for place, split, group in places(source):
        for line, raw, solution in load_placed(place, Reading(name=kind), counts, split):
            try:
                expect(solution.id not in ids, "id", solution.id, "each id once")
                group = field(raw, GROUP_FIELDS[kind], str) if kind in GROUP_FIELDS else group
                problem = optional(raw, "question", str) if kind == "prmbench" else None
            except InputError as error:
                raise InputError(f"{line}: {error}") from None
            ids.add(solution.id)
            key = group, str(raw.get("idx", solution.id))
            if kind == "prmbench" and key in seen:
                counts["rows_with_repeated_idx"] += 1
                continue
            seen.add(key)
            # PRMBench's modified question, solution.problem, differs between classes of one problem.
            rows.append(Row(solution, group, problem or solution.problem))
    return rows, dict(counts)
