"""Labels steps without completions: by a verifier's scores, a checker, outcomes or two label files.

python -m prm_jax.relabeling input=POOL by=scorer checkpoint=VERIFIER     writes labels.jsonl and about.json

`by` names the source of labels. scorer and scores distil another verifier, from new or stored scores; checker
is formal; td spreads the outcome over the steps by a value model; labels hardens or masks those of a file;
consensus keeps the solutions on which two label files agree. labeling.py labels by completions.

Dimension key: T steps.
"""

import collections
import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import jax
import numpy as np

from prm_jax import tasks
from prm_jax.checkpoints.folders import training_tokens
from prm_jax.checkpoints.verifiers import OpenOptions, open_verifier
from prm_jax.data import sources
from prm_jax.data.pools import pool_solutions, read_pool, scores_in_unit
from prm_jax.data.rows import file_fingerprint, read_rows, require, write_rows
from prm_jax.data.score_files import score_into
from prm_jax.data.splits import LabelKind
from prm_jax.data.units import UNITS, as_probability, probability
from prm_jax.generate.labeling import read_input
from prm_jax.generate.sampling import CommandConfig, fingerprint
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import Share, expect, one_of, parse
from prm_jax.launch.hosts import writable_folder
from prm_jax.launch.mesh import make_mesh
from prm_jax.launch.progress import print_counts
from prm_jax.launch.run_folder import described_file, start_command
from prm_jax.model import choose_dtype
from prm_jax.solutions import Solution, first_error, native_row, relabel_after_error
from prm_jax.tasks.checkers import checker_rule, is_own, own_function, own_labels


def td_targets(value_T: np.ndarray, outcome: float, decay: float, discount: float) -> np.ndarray:
    """TD(lambda) target in [0, 1] of the value after each step, target_T, without roll-outs (AgentPRM,
    2511.08325).

    V_t = value_T[t - 1] is a model's P(final answer right) after step t, but V_T = 0, since nothing follows.
    With the outcome as the last step's reward, generalised advantages (Schulman et al. 2016) are A_t = sum_l
    (gamma lambda)^l delta_{t+l}, delta_t = r_t + gamma V_t - V_{t-1}; the target of step t is V_{t-1} + A_t,
    in which V_0 cancels: for t = T the outcome, else with lambda (`decay`) = 1 gamma^(T-t) outcome, with 0
    gamma V_t."""
    target_T = np.full(len(value_T), outcome, np.float64)
    for t in reversed(range(len(value_T) - 1)):
        target_T[t] = discount * ((1 - decay) * value_T[t] + decay * target_T[t + 1])
    return target_T


def consensus(labels, others, threshold: float, other_threshold: float) -> list[float | None] | None:
    """The labels on which two sources agree (Zhang et al. 2025, 2501.07301): 1 before the first wrong step, 0
    at it, null behind it and where `labels` is; None where they name different steps, or one of them labels
    no step."""
    if any(all(y is None for y in source) for source in (labels, others)):
        return None
    if (t := first_error(labels, threshold)) != first_error(others, other_threshold):
        return None
    return [None if y is None or 0 <= t < i else float(i != t) for i, y in enumerate(labels)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelabelingConfig(CommandConfig):  # conf/relabeling.yaml says what each key means
    input: str
    by: Literal["scorer", "scores", "checker", "td", "labels", "consensus"]
    label_kind: LabelKind | None
    threshold: Share | None
    after_first_error: Annotated[str, one_of(sources.OPTIONS["after_first_error"])]
    checkpoint: str | None
    reference: str | None
    scores: str | None
    scores_unit: Annotated[str, one_of(UNITS)]
    checker: Annotated[str, checker_rule(tasks.TASKS)] | None
    td_lambda: Share
    gamma: Share
    other: str | None
    other_threshold: Share

    def __post_init__(self):
        for by, key in (("scorer", "checkpoint"), ("scores", "scores"), ("consensus", "other")):
            expect(self.by != by or getattr(self, key) is not None, key, None, f"one, which by={by} needs")
        if self.after_first_error != "keep" and self.by not in ("checker", "consensus"):
            expect(self.threshold is not None, "threshold", None, "one: soft labels have no first error")


class Labelled(NamedTuple):
    """Solutions and their labels, as a function of SOURCES finds them."""

    solutions: list[Solution]
    labels: Iterable  # of each solution, made when asked for; null is None or NaN; None where it is dropped
    kind: str  # the labels' meaning: correctness, value, advantage, unknown


def by_scorer(cfg: RelabelingConfig, scorer, path: Path) -> Labelled:
    """P(step good) by a verifier, whose scores are kept in `path`."""
    solutions, _ = read_input(cfg.input, "task")

    def labels() -> Iterator[np.ndarray]:
        rows = ((s.id, s.problem, s.steps) for s in solutions)
        yield from map(probability, score_into(path, scorer, rows, len(solutions)))

    kind = "value" if scorer.objective == "orm" else scorer.label_kind  # whatever labels its steps had
    return Labelled(solutions, labels(), kind)


def by_scores(cfg: RelabelingConfig, *_) -> Labelled:
    """Step scores that a pool holds, as probabilities."""
    pool = read_pool(cfg.input, [cfg.scores])
    scores, unit = scores_in_unit(pool, cfg.scores, cfg.scores_unit)
    solutions = [s for p in pool for s in pool_solutions(p)]
    return Labelled(solutions, [as_probability(score_T, unit) for score_T in scores], "unknown")


def by_td(cfg: RelabelingConfig, scorer, path: Path) -> Labelled:
    """`td_targets` of a value model, or without one of the outcomes alone."""
    if scorer is None:
        expect(cfg.td_lambda == 1, "td_lambda", cfg.td_lambda, "1 without a value model, checkpoint=MODEL")
        solutions, _ = read_input(cfg.input, "task")
        values = (np.zeros(len(s.steps)) for s in solutions)
    else:
        solutions, values, kind = by_scorer(cfg, scorer, path)
        expect(kind != "correctness", "checkpoint", scorer.name, "a value or an outcome model")
    # A solution without an outcome, such as a cut one, has nothing to spread: all null.
    outcomes = [np.nan if s.outcome is None else s.outcome for s in solutions]
    require(not np.isnan(outcomes).all(), f"{cfg.input}: outcome", None, "0 or 1, which by=td spreads")
    pairs = zip(values, outcomes, strict=True)
    return Labelled(solutions, (td_targets(y_T, y, cfg.td_lambda, cfg.gamma) for y_T, y in pairs), "value")


def by_checker(cfg: RelabelingConfig, *_) -> Labelled:
    """Labels by the exact checker of the embedded task, or by a function of the user's."""
    solutions, answers = read_input(cfg.input, cfg.checker if is_own(cfg.checker) else "task")
    if is_own(cfg.checker):
        ask = own_function(cfg.checker, own_labels)
        labels = [ask(s.problem, s.steps, answers[s.problem]) for s in solutions]
    else:
        task = tasks.read_task([cfg.input], cfg.checker)
        solutions = [dataclasses.replace(s, task=task.name) for s in solutions]
        labels = (task.step_labels(s.problem, s.steps) for s in solutions)
    return Labelled(solutions, labels, "correctness")


def by_labels(cfg: RelabelingConfig, *_) -> Labelled:
    """The labels of a file of native rows."""
    solutions, kind = read_labels(cfg.input)
    return Labelled(solutions, [s.labels for s in solutions], kind)


def by_consensus(cfg: RelabelingConfig, *_) -> Labelled:
    """`consensus` of two files of native rows."""
    (first, kind), (second, other_kind) = map(read_labels, (cfg.input, cfg.other))
    is_same = [(s.problem, s.steps) for s in first] == [(s.problem, s.steps) for s in second]
    expect(is_same, "other", cfg.other, f"rows of the same solutions in the same order as {cfg.input}")
    bounds = 0.5 if cfg.threshold is None else cfg.threshold, cfg.other_threshold
    labels = [consensus(a.labels, b.labels, *bounds) for a, b in zip(first, second, strict=True)]
    return Labelled(first, labels, kind if kind == other_kind else "unknown")


def read_labels(path: str) -> tuple[list[Solution], str]:
    """The solutions of a label file, and the label_kind that all its rows name."""
    kinds = {row.get("label_kind") for _, row in read_rows(path)}
    kind = kinds.pop() if kinds in ({"correctness"}, {"value"}, {"advantage"}) else "unknown"
    return sources.load(path, "native", labels_required=True)[0], kind


# by -> its function, and the keys that its labels depend on, besides those of all
SOURCES = {
    "scorer": (by_scorer, ()),
    "scores": (by_scores, ("scores", "scores_unit")),
    "td": (by_td, ("td_lambda", "gamma")),
    "checker": (by_checker, ("checker",)),
    "labels": (by_labels, ()),
    "consensus": (by_consensus, ("other", "other_threshold")),
}


def labelled_rows(
    found: Labelled, cfg: RelabelingConfig, origin: dict, counts: collections.Counter
) -> Iterator[dict]:
    """Yields a native row with its `origin` for each solution that has labels, and counts them."""
    for s, y_T in zip(found.solutions, found.labels, strict=True):
        counts["solutions_dropped_where_they_differ" if y_T is None else "solutions"] += 1
        if y_T is None:
            continue
        y_T = np.array(y_T, np.float64)
        if cfg.threshold is not None and cfg.by != "consensus":
            y_T = np.where(np.isnan(y_T), np.nan, y_T >= cfg.threshold)
        s = dataclasses.replace(s, labels=tuple(None if np.isnan(y) else y for y in y_T.tolist()))
        labels = relabel_after_error(s, cfg.after_first_error).labels
        known = [y for y in labels if y is not None]
        counts.update(steps=len(labels), labels=len(known), labels_good=sum(y >= 0.5 for y in known))
        counts.update(steps_without_label=len(labels) - len(known), solutions_without_label=not known)
        yield native_row(s, labels) | origin


def open_scorer(cfg: RelabelingConfig):
    """The verifier of by=scorer and by=td, None where these have none."""
    if cfg.by not in ("scorer", "td") or cfg.checkpoint is None:
        return None
    shared = {name: getattr(cfg, name) for name in ("which", "format", "reference")}
    shared |= {"dtype": choose_dtype(cfg.dtype), "rows": cfg.batch_rows}
    return open_verifier(cfg.checkpoint, OpenOptions(**shared, task=cfg.checker, files=(cfg.input,)))


@cli.command("relabeling", RelabelingConfig)
def main(cfg):
    """Label the steps of solutions by what exists already: a verifier, a checker, outcomes, two label
    files."""
    folder, raw_cfg, resumes = start_command(cfg)
    folder, cfg = writable_folder(folder), parse(raw_cfg, RelabelingConfig)
    path, scores = folder / "labels.jsonl", folder / "scores.jsonl"
    mesh = make_mesh(cfg.mesh, cfg.batch_rows)
    with run_folder.locked_run_folder(folder, raw_cfg, resumes), jax.set_mesh(mesh):
        scorer, (read, keys) = open_scorer(cfg), SOURCES[cfg.by]
        found = read(cfg, scorer, scores)
        fits = cfg.label_kind in (None, found.kind) or found.kind == "unknown"
        expect(fits, "label_kind", cfg.label_kind, f"null or {found.kind}")
        kind = cfg.label_kind or found.kind
        origin = {"label_kind": kind} | {
            key: getattr(cfg, key) for key in ("by", "threshold", "after_first_error", *keys)
        }
        origin |= {"scorer": scorer.name} if scorer else {}
        files = {file: file_fingerprint(file) for file in (cfg.input, cfg.other) if file}
        weights = {"weights": fingerprint(scorer.model)} if hasattr(scorer, "model") else {}
        about = {**origin, "files": files, **weights}
        with described_file(scores if scorer else path, about) as counts:
            if scorer and (tokens := training_tokens(cfg.checkpoint)) is not None:
                counts["policy_tokens_of_scorer"] = tokens  # of the samples that it was trained on
            write_rows(path, labelled_rows(found, cfg, origin, counts))
            about |= getattr(scorer, "about", {})  # a critic's: what became of its critiques
    print_counts(counts, totals=())
    kind = kind.replace("unknown", "correctness|value, which their source does not say")
    print(f"labels      {path}; train on them: data=jsonl data.path={path} data.label_kind={kind}")
