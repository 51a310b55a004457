"""ProcessBench and PRMBench: their rows and a verifier's step scores in, the benchmarks' own numbers out.

A score is P(step good) in [0, 1], other units are brought there first (data/units.py); a step scored below the threshold is
predicted bad, one at it good. (PRMBench's own adapters call a step at the threshold bad.) Shares and F1 lie in [0, 1]; the published tables
give them in per cent.
"""

import collections
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

from prm_jax import InputError
from prm_jax.data.rows import field, field_error, load_hub, optional, read_rows, row_place
from prm_jax.data.solutions import Solution, first_error
from prm_jax.data.sources import load
from prm_jax.data.units import UNITS, as_probability, probability
from prm_jax.evals.common import Setup, describe, one_scorer, scored
from prm_jax.evals.published import PRMBENCH, PRMBENCH_CLASSES, PRMBENCH_GROUPS, PROCESSBENCH
from prm_jax.launch import cli
from prm_jax.launch.config import parse
from prm_jax.metrics import f1, first_error_f1, predict_first_error, prm_score
from prm_jax.stats import bootstrap_interval, problem_numbers


@dataclasses.dataclass(frozen=True)
class Config:
    """The keys that both benchmarks have; conf/task/processbench.yaml and prmbench.yaml say what each means."""

    threshold: float
    scores_file: str | None
    scores_unit: str

    def __post_init__(self):
        if self.scores_unit not in UNITS:
            raise InputError(f"scores_unit: got {self.scores_unit!r}, expected {', '.join(UNITS)}")


def needs_checkpoint(cfg: Config) -> bool:
    return cfg.scores_file is None


def rows_and_scores(setup: Setup, cfg: Config, kind: str) -> tuple[list["Row"], list[np.ndarray], dict]:
    """(rows of the benchmark, P(good) of their steps, what gave them): scored now, or stored."""
    if cfg.scores_file and setup.checkpoints:
        raise InputError("scores_file: stored scores need no verifier, expected no checkpoint beside it")
    if setup.data.name not in ("of_run", kind):
        raise InputError(f"data: got {setup.data.name!r}, expected data={kind} or only data.path=FILE")
    keys = OmegaConf.to_container(setup.data)
    source = {key: keys[key] for key in ("path", "hub", "hub_split") if key in keys}
    rows, counts = read(kind, parse(source, Source, "data"))
    cli.print_counts(counts)
    if cfg.scores_file:
        n_steps = {row.solution.id: len(row.solution.steps) for row in rows}
        scores = stored_scores(cfg.scores_file, n_steps, cfg.scores_unit)
        about = {"verifier": cfg.scores_file, "label_kind": None, "objective": None}
    else:
        scorer = one_scorer(setup, kind)
        texts = ((row.solution.id, row.solution.problem, row.solution.steps) for row in rows)
        found = scored(setup.folder / "scores.jsonl", scorer, texts, len(rows))
        scores, about = [probability(logit_T) for logit_T in found], describe(scorer)
    return rows, scores, about | {"data": source, "counts": counts}


def show_verifier(results: dict):
    print(f"verifier    {results['verifier']} ({results['label_kind'] or 'unknown'} labels)")
    print(f"threshold   {results['threshold']:.4g} ({results['threshold_origin']})")


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a benchmark's rows are: the keys of the data config that a benchmark reads."""

    path: str | list | None
    hub: str | None
    hub_split: str


@dataclasses.dataclass(frozen=True)
class Row:
    """One solution of a benchmark."""

    solution: Solution
    group: str  # split of ProcessBench, class of PRMBench
    problem: str  # what intervals draw: rows of one problem are not independent


def read(kind: str, source: Source) -> tuple[list[Row], dict[str, int]]:
    """Every row of a benchmark (`kind`: processbench or prmbench), and counts of what is odd in the data.

    A split of ProcessBench is a file, under the file's name (gsm8k.json: gsm8k), or a split of the hub data set
    (hub_split=gsm8k+math: two). Rows are kept as published: exact repeats too, labels after an error untouched.
    Where PRMBench repeats a row's `classification` and `idx` both rows count, as in the paper's 6,216; the official
    loader passes over the second. Raises InputError naming file, line and field.
    """
    if (source.path is None) == (source.hub is None):
        expected = "a file or a list of files (data.path=FILE), or a hub data set (data.hub=OWNER/NAME)"
        raise InputError(f"data.path: task={kind} needs {expected}, and not both")
    if source.hub:
        places = [(source.hub, split, split) for split in source.hub_split.split("+")]
    else:
        paths = source.path if isinstance(source.path, list) else [source.path]
        places = [(path, None, Path(str(path).removesuffix(".gz")).stem) for path in paths]
    repeated = [name for name, n in collections.Counter(name for *_, name in places).items() if n > 1]
    if repeated:
        raise InputError(f"data.path: two files or splits have the name {repeated[0]!r}, expected each once")
    rows, counts, place_of, seen = [], collections.Counter(), {}, set()
    for place, split, name in places:
        solutions, found = load(place, kind, split=split)
        counts.update(found)
        raw_rows = load_hub(place, split) if split else read_rows(place)
        for (number, raw), solution in zip(raw_rows, solutions, strict=True):
            here, group, problem = row_place(place, number), name, solution.problem
            try:
                if kind == "prmbench":
                    group = field(raw, "classification", str)
                    # modified_question differs between classes of one problem
                    problem = optional(raw, "question", str) or problem
                    key = group, str(raw.get("idx"))
                    counts["rows_with_repeated_idx"] += "idx" in raw and key in seen
                    seen.add(key)
                if solution.id in place_of:
                    raise InputError(f"id: {solution.id!r} is the id of {place_of[solution.id]} too")
            except InputError as error:
                raise InputError(f"{here}: {error}") from None
            place_of[solution.id] = here
            rows.append(Row(solution, group, problem))
    return rows, dict(counts)


def stored_scores(path, n_steps: dict[str, int], default_unit: str) -> list[np.ndarray]:
    """Step scores of the solutions {id: number of steps} from a file, in that order, as P(good): float64, one array each.

    The file has one row {id, scores, unit} a solution, in any order; where it says no unit the default is meant. Raises
    InputError naming file, line and id.
    """
    scores, line_of = {}, {}
    for number, row in read_rows(path):
        where = row_place(path, number)
        try:
            i = field(row, "id", str)
            where += f": id {i!r}"
            if i in line_of:
                raise InputError(f"is the id of {row_place(path, line_of[i])} too")
            if i not in n_steps:
                example = next(iter(n_steps))
                raise InputError(f"no solution has it, expected one of {len(n_steps)} such as {example!r}")
            unit = optional(row, "unit", str) or default_unit
            if unit not in UNITS:
                raise field_error("unit", unit, ", ".join(UNITS))
            found, low, high = field(row, "scores", list), UNITS[unit].low, UNITS[unit].high
            if len(found) != n_steps[i]:
                raise InputError(f"scores: found {len(found)}, expected {n_steps[i]}, one a step")
            for t, score in enumerate(found):
                if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
                    raise field_error(f"scores[{t}]", score, "a finite number")
                if not low <= score <= high:
                    expected = f"a {unit} in [{low:g}, {high:g}]; scores_unit=logit takes unbounded scores"
                    raise field_error(f"scores[{t}]", score, expected)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        scores[i], line_of[i] = as_probability(np.array(found, np.float64), unit), number
    if missing := [i for i in n_steps if i not in scores]:
        more = f" and {len(missing) - 1} more ids" if len(missing) > 1 else ""
        expected = f"expected one for each of {len(n_steps)} solutions"
        raise InputError(f"{path}: no row has the id {missing[0]!r}{more}, {expected}")
    return [scores[i] for i in n_steps]


def right_window(score: Sequence[float], error: int) -> tuple[float, float]:
    """(low, high): the predicted first error is the labelled one for thresholds in (low, high]; empty if low >= high.

    `error` is the index of the first bad step or -1. A prediction is the first step below the threshold.
    """
    if error == -1:
        return -np.inf, min(score)
    return score[error], min(score[:error], default=np.inf)


def f1_curve(scores: Sequence[Sequence[float]], errors, thresholds) -> np.ndarray:
    """ProcessBench's F1 at every threshold, by counting: scores of n solutions, first errors (index or -1) [n]."""
    errors, thresholds = np.asarray(errors), np.asarray(thresholds, np.float64)
    low, high = np.array([right_window(s, e) for s, e in zip(scores, errors, strict=True)]).T
    accuracy = []
    for here in (errors != -1, errors == -1):
        open_ = here & (low < high)
        n_right = np.searchsorted(np.sort(low[open_]), thresholds)  # windows that begin below the threshold
        n_right = n_right - np.searchsorted(np.sort(high[open_]), thresholds)  # less those that end there
        accuracy.append(n_right / here.sum() if here.any() else np.full(len(thresholds), np.nan))
    a, b = accuracy
    return np.divide(2 * a * b, a + b, out=np.where(np.isnan(a + b), np.nan, 0.0), where=a + b > 0)


def best_threshold(scores: Sequence[Sequence[float]], errors) -> float:
    """The threshold of the highest F1 over all thresholds, midway between two scores; of equal ones the lowest."""
    edges = np.unique([right_window(s, e) for s, e in zip(scores, errors, strict=True)])
    edges = edges[np.isfinite(edges)]  # no solution's prediction changes between two of them
    candidates = np.append((edges[:-1] + edges[1:]) / 2, edges[-1])
    return float(candidates[np.argmax(f1_curve(scores, errors, candidates))])


def processbench(
    rows: list[Row], scores: Sequence[np.ndarray], threshold: float, threshold_split: str | None = None, seed: int = 0
) -> dict:
    """ProcessBench's numbers (arXiv 2412.06559): per split the accuracies and their F1, and the plain mean of F1.

    threshold_split: the split whose best threshold is used for all splits, as the paper does for scalar PRMs with
    gsm8k; else `threshold`. Intervals: 95 %, bootstrap over problems, the threshold held fixed. A split without
    erroneous or without clean solutions has F1 nan, and so has the mean.
    """
    scores = [np.asarray(score, np.float64) for score in scores]
    error = np.array([first_error(row.solution.labels) for row in rows])
    problem, split = (problem_numbers(getattr(row, name) for row in rows) for name in ("problem", "group"))
    members = {name: np.flatnonzero(split == k) for k, name in enumerate(dict.fromkeys(row.group for row in rows))}
    of = lambda here: ([scores[i] for i in here], error[here])
    origin = "given"
    if threshold_split is not None:
        if threshold_split not in members:
            raise InputError(f"threshold_split: got {threshold_split!r}, expected {', '.join(members)}")
        here = members[threshold_split]
        if len(np.unique(error[here] == -1)) < 2:
            raise InputError(
                f"threshold_split: {threshold_split} has no F1 to tune on, expected a split with erroneous and with"
                " clean solutions"
            )
        threshold, origin = best_threshold(*of(here)), f"best F1 on {threshold_split}"
    predicted = np.array([predict_first_error(score, threshold) for score in scores])
    right_answer = np.array([row.solution.outcome == 1 for row in rows])
    measure = lambda here: first_error_f1(predicted[here], error[here])
    splits = {}
    for name, here in members.items():
        numbers, is_wrong = measure(here), error[here] != -1
        interval = lambda key, here=here: bootstrap_interval(
            lambda drawn: measure(here[drawn])[key], problem[here], seed=seed
        )
        splits[name] = numbers | {f"{key}_interval": interval(key) for key in numbers}
        splits[name] |= {
            "n": len(here),
            "n_error": int(is_wrong.sum()),
            "n_error_with_right_answer": int((is_wrong & right_answer[here]).sum()),
            "n_clean": int((~is_wrong).sum()),
            "n_problems": len(np.unique(problem[here])),
            "n_steps": sum(len(scores[i]) for i in here),
        }

    def mean_f1(drawn):
        return np.mean([measure(drawn[split[drawn] == k])["f1"] for k in range(len(members))])

    thresholds = np.linspace(0, 1, 401)
    curve = {name: f1_curve(*of(here), thresholds).tolist() for name, here in members.items()}
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


def prmbench(rows: list[Row], scores: Sequence[np.ndarray], threshold: float, seed: int = 0) -> dict:
    """PRMBench's numbers (arXiv 2501.03124): PRMScore per class, over all steps pooled, and per group of classes.

    PRMScore is the mean of F1 on good and F1 on bad steps, of multi_solutions, which has no bad step, F1 on good steps
    alone. A group's is the plain mean of its classes', nan unless all are there. Every class is judged by validity;
    the redundancy ratings that ReasonEval's published redundency and circular rest on are not read. Intervals: 95 %,
    bootstrap over problems (`question`, which the classes share).
    """
    n_steps = [len(row.solution.steps) for row in rows]
    is_good = np.concatenate([row.solution.labels for row in rows]) >= 0.5
    predicted = np.concatenate([np.asarray(score, np.float64) for score in scores]) >= threshold
    if len(is_good) != len(predicted):
        raise ValueError(f"{len(predicted)} scores for {len(is_good)} steps")
    row_of_step = np.repeat(np.arange(len(rows)), n_steps)
    names = list(dict.fromkeys(row.group for row in rows))
    problem, group = (problem_numbers(getattr(row, name) for row in rows)[row_of_step] for name in ("problem", "group"))

    def measure(here, score_fn):
        good, says = is_good[here], predicted[here]
        interval = bootstrap_interval(lambda drawn: score_fn(good[drawn], says[drawn]), problem[here], seed=seed)
        return {
            "prmscore": score_fn(good, says),
            "prmscore_interval": interval,
            "f1_good": f1(good, says),
            "f1_bad": float("nan") if good.all() else f1(~good, ~says),
            "step_accuracy": float(np.mean(good == says)),
            "n_rows": len(np.unique(row_of_step[here])),
            "n_steps": len(good),
            "n_bad_steps": int((~good).sum()),
        }

    classes = {
        name: measure(np.flatnonzero(group == names.index(name)), f1 if name == "multi_solutions" else prm_score)
        for name in sorted(names, key=lambda name: [*PRMBENCH_CLASSES, name].index(name))
    }
    groups = {}
    for name, members in PRMBENCH_GROUPS.items():
        found = [classes[member]["prmscore"] for member in members if member in classes]
        mean = float(np.mean(found)) if len(found) == len(members) else float("nan")
        groups[name] = {"prmscore": mean, "classes": list(members)}
    pooled = measure(np.arange(len(group)), prm_score)
    return {
        "classes": classes,
        "groups": groups,
        "overall": pooled.pop("prmscore"),
        "overall_interval": pooled.pop("prmscore_interval"),
        **pooled,
        "threshold": float(threshold),
        "threshold_origin": "given",
        "published": PRMBENCH,
    }
