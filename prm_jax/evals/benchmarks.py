"""task=processbench, prmbench, mistakes: published sets of labelled mistakes, each by its authors' metrics,
beside rules that read nothing. data.name, a name of SETS, is the set.

A score is P(step good) in [0, 1]. A step scored below the threshold is predicted bad, one at it good, except
in PRMBench, as its authors have it. Shares and F1 lie in [0, 1].
"""

import collections
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from prm_jax import metrics
from prm_jax.data.rows import field, optional, placed
from prm_jax.data.sources import Reading, load_placed
from prm_jax.data.splits import FileData, data_config
from prm_jax.data.units import probability
from prm_jax.data.writing import score_into
from prm_jax.evals import verifiers
from prm_jax.evals.baselines import Row, compare_apart, show_comparison
from prm_jax.evals.setup import Setup
from prm_jax.evals.tables import show_table, with_interval
from prm_jax.evals.task import Task
from prm_jax.launch.config import Share, expect
from prm_jax.launch.files import read_yaml
from prm_jax.launch.progress import print_counts
from prm_jax.solutions import first_error
from prm_jax.stats import bootstrap_interval

GROUP_FIELDS = {"mr_gsm8k": "question_type", "prmbench": "classification"}  # other rows are grouped by file
COUNTS = ("n", "n_error", "n_steps", "n_bad_steps")
PUBLISHED = Path(__file__).parents[1] / "assets/published.yaml"  # numbers in per cent, with their sources


@dataclasses.dataclass(frozen=True)
class Config:
    threshold: Share  # conf/task/processbench.yaml
    baselines: bool = True  # false: without the likelihood, for which the base model loads


def balanced_f1(is_good, called_good) -> float:
    """Harmonic mean of the accuracies on what is good and on what is bad."""
    is_hit = called_good == is_good
    return metrics.harmonic_mean(metrics.mean(is_hit[is_good]), metrics.mean(is_hit[~is_good]))


# Of each solution's labelled and predicted first error, -1 where there is none; a sound one is positive.
SOLUTION_METRICS = {
    "accuracy_error": lambda error, predicted: metrics.mean((predicted == error)[error != -1]),
    "accuracy_clean": lambda error, predicted: metrics.mean((predicted == error)[error == -1]),
    "first_error_f1": lambda error, predicted: metrics.first_error_f1(predicted, error)["f1"],
    "solution_balanced_f1": lambda error, predicted: balanced_f1(error == -1, predicted == -1),
    "mcc": lambda error, predicted: metrics.mcc(error == -1, predicted == -1),
}
# Of each labelled step, after a first error too: is it good, is it called so.
STEP_METRICS = {"step_balanced_f1": balanced_f1, "prmscore": metrics.prm_score}


class Set(NamedTuple):
    """How its authors measure a set."""

    metrics: tuple[str, ...]  # the first one of all rows is the headline
    calls_good: Callable = np.greater_equal  # (score, threshold) -> bool
    is_mean_over_groups: bool = False  # the headline is the plain mean of F1 over the groups


SETS = {
    "processbench": Set(("accuracy_error", "accuracy_clean", "first_error_f1"), is_mean_over_groups=True),
    # The mean of F1 on good and F1 on bad steps; of multi_solutions, which has no bad step, F1 on good steps
    # alone. Every class is judged by validity, not by the redundancy ratings behind ReasonEval's published
    # redundency and circular. As in the authors' evaluator (ssmisya/PRMBench at a1ae4ea), a step at the
    # threshold is bad.
    "prmbench": Set(("prmscore",), calls_good=np.greater),  # arXiv 2501.03124
    # MR-Score = .2 max(0, MCC) + .3 accuracy of the step + .5 of the reason; PRMs give no reason (Zeng et
    # al. 2023, section 3).
    "mr_gsm8k": Set(("mcc", "accuracy_error")),
    "hard2verify": Set(("step_balanced_f1", "solution_balanced_f1", "first_error_f1")),  # Pandit et al. 2025
}


class Benchmarks(Task):
    Config = Config

    def run(self, setup: Setup) -> dict:
        threshold, seed = self.cfg.threshold, setup.cfg.seed
        expect(setup.data.name in SETS, "data.name", setup.data.name, ", ".join(SETS))
        source = data_config(setup.data)
        rows, counts = read(source)
        print_counts(counts)
        scorer = verifiers.one_scorer(setup)
        name = setup.checkpoints[0]
        solutions = [row.solution for row in rows]
        path = setup.folder / "scores.jsonl"
        scores = list(map(probability, score_into(path, scorer, solutions, len(rows))))
        path = setup.folder / "likelihood.jsonl"
        model = verifiers.backbone_of(name) if self.cfg.baselines else None
        likelihood = verifiers.likelihood_scores(setup, model, solutions, path)
        by_group = SETS[source.name].is_mean_over_groups
        compared = rows if by_group else [row._replace(group="") for row in rows]
        known_R = verifiers.known_rows(name, rows)
        results = verifiers.describe(scorer)
        results |= compare_apart(compared, scores, likelihood, known_R, threshold, seed)
        results |= {"data": dataclasses.asdict(source), "counts": counts, "n_rows": len(rows)}
        results |= {"n_seen": sum(known_R), "threshold": threshold}
        return results | measure(source.name, rows, scores, threshold, seed)

    def show(self, results: dict):
        print(f"verifier    {results['verifier']} ({results['label_kind']} labels)")
        print(f"threshold   {results['threshold']:.4g}")
        table = {}
        for name, x in results["groups"].items():
            counts = {count: x[count] for count in COUNTS}
            table[name] = counts | {metric: with_interval(x, metric) for metric in results["metrics"]}
        for system, x in results["published"].items():
            table[f"published: {system}"] = {results["metrics"][-1]: x}
        for name, prmscore in results["categories"].items():
            table[f"{name}, mean of its classes"] = {"prmscore": prmscore}
        show_table("rows", table)
        if results["published"]:
            print(f"published   {results['source']}")
        show_comparison(results)

    def detail(self, results: dict):
        verifiers.note_seen(results["verifier"], results["n_seen"], "solutions' problems")

    def metric(self, results: dict) -> float | None:
        """ProcessBench's mean F1 over the groups, or of all rows the first of the set's metrics."""
        if SETS[results["data"]["name"]].is_mean_over_groups:
            return results["judges"]["verifier"]["f1"]
        return results["groups"]["all"][results["metrics"][0]]


def measure(name: str, rows: list[Row], scores, threshold: float, seed: int) -> dict:
    """The authors' metrics of all rows and of each group, with 95 % bootstrap intervals over problems, and
    what is published."""
    groups = {} if SETS[name].is_mean_over_groups else {"all": list(range(len(rows)))}
    for group in dict.fromkeys(row.group for row in rows):  # a file may have the name all
        groups.setdefault(group, [i for i, row in enumerate(rows) if row.group == group])
    numbers = {}
    for group, members in groups.items():
        own = [rows[i] for i in members], [scores[i] for i in members]
        numbers[group] = group_numbers(name, *own, threshold, seed)
    table = read_yaml(PUBLISHED).get(name, {})
    published, categories = {}, {}
    if name == "processbench" and set(numbers) <= set(table.columns):
        places = [table.columns.index(group) for group in numbers]
        for system, f1 in table.f1.items():
            published[system] = float(np.mean([f1[k] for k in places])) / 100
    if name == "prmbench":
        published = {system: overall / 100 for system, (overall, *_) in table.prmscore.items()}
        for category, classes in table.groups.items():  # nan unless all classes are there
            prmscores = [numbers[x]["prmscore"] if x in numbers else np.nan for x in classes]
            categories[category] = float(np.mean(prmscores))
    results = {"metrics": SETS[name].metrics, "groups": numbers, "categories": categories}
    return results | {"published": published, "source": table.get("source")}


def group_numbers(name: str, rows: list[Row], scores, threshold: float, seed: int) -> dict:
    """Counts, and the metrics with their intervals, of some rows. n: all their steps."""
    problem = metrics.problem_numbers(row.problem for row in rows)
    error = np.array([first_error(row.solution.labels) for row in rows])
    predicted = np.array([first_error(score_T, threshold) for score_T in scores])
    label_n = np.concatenate([np.array(row.solution.labels, float) for row in rows])
    is_labelled_n = ~np.isnan(label_n)
    is_good_n = label_n[is_labelled_n] >= 0.5
    called_good_n = SETS[name].calls_good(np.concatenate(scores, dtype=float), threshold)[is_labelled_n]
    problem_n = np.repeat(problem, [len(score_T) for score_T in scores])[is_labelled_n]
    numbers = {
        "n": len(rows),
        "n_error": int((error != -1).sum()),
        "n_steps": len(is_good_n),
        "n_bad_steps": int((~is_good_n).sum()),
    }
    for metric in SETS[name].metrics:
        if metric in STEP_METRICS:
            f, owner, arrays = STEP_METRICS[metric], problem_n, (is_good_n, called_good_n)
        else:
            f, owner, arrays = SOLUTION_METRICS[metric], problem, (error, predicted)
        numbers[metric] = float(f(*arrays))
        numbers[f"{metric}_interval"] = bootstrap_interval(f, owner, *arrays, seed=seed)
    return numbers


def places(source: FileData) -> list[tuple[str, str | None, str]]:
    """(file or hub data set, its split, the name of its group) of each; hub_split=gsm8k+math is two."""
    if source.hub:
        return [(source.hub, split, split) for split in source.hub_split.split("+")]
    paths = [source.path] if isinstance(source.path, str) else source.path
    groups = [Path(path.removesuffix(".gz")).stem for path in paths]
    expect(len({*groups}) == len(groups), "data.path", paths, "files of different names: each is a group")
    return [(path, None, group) for path, group in zip(paths, groups, strict=True)]


def read(source: FileData) -> tuple[list[Row], dict[str, int]]:
    """The rows of a benchmark as published, exact repeats too, and counts of its oddities. Where PRMBench
    repeats a row's class and idx the second is passed over, as by its authors."""
    rows = []
    counts = collections.Counter()
    ids = set()
    seen = set()
    kind = source.name
    for key in ("fold", "validation_path", "test_path"):
        expect(getattr(source, key) is None, f"data.{key}", getattr(source, key), "null: all rows count")
    reading = Reading(name=kind, columns=source.columns, neutral=source.neutral, split_by=source.split_by)
    for place, split, group in places(source):
        for line, raw, solution in load_placed(place, reading, counts, split):
            with placed(line):
                expect((split, solution.id) not in ids, "id", solution.id, "each id once")
                group = field(raw, GROUP_FIELDS[kind], str) if kind in GROUP_FIELDS else group
                problem = optional(raw, "question", str) if kind == "prmbench" else None
            ids.add((split, solution.id))
            key = group, str(raw.get("idx", solution.id))
            if kind == "prmbench" and key in seen:
                counts["rows_with_repeated_idx"] += 1
                continue
            seen.add(key)
            # PRMBench's modified question, solution.problem, differs between classes of one problem.
            rows.append(Row(solution, group, problem or solution.problem))
    return rows, dict(counts)
