"""Labels steps without completions: by a verifier's scores, a checker, outcomes or two label files.

python -m prm_jax.relabeling input=POOL by=scorer checkpoint=VERIFIER    writes labels.jsonl (native rows), about.json

`by` names the source of labels. scorer and scores distil another verifier, from new or stored scores; checker is
formal; td spreads the outcome over the steps by a value model; labels hardens or masks those of a file;
consensus keeps the solutions on which two label files agree. labeling.py labels by completions.

Dimension key: T steps.
"""

import collections
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import jax
import numpy as np

from prm_jax import InputError, tasks
from prm_jax.checkpoints.folders import training_tokens
from prm_jax.checkpoints.verifiers import OpenOptions, open_verifier
from prm_jax.data import sources
from prm_jax.data.pools import is_pool, read_pool, scores_in_unit
from prm_jax.data.rows import field_error, file_fingerprint, read_rows, row_place, write_rows
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
from prm_jax.scoring import score_into
from prm_jax.solutions import Solution, first_error, native_row, relabel_after_error
from prm_jax.tasks.checkers import checker_rule, is_own, own_function, own_labels


def td_targets(value_T: np.ndarray, outcome: float, decay: float, discount: float) -> np.ndarray:
    """TD(lambda) target in [0, 1] of the value after each step, target_T, without roll-outs (AgentPRM, 2511.08325).

    V_t = value_T[t - 1] is a model's P(final answer right) after step t, but V_T = 0, since nothing follows. With the
    outcome as the last step's reward, generalised advantages (Schulman et al. 2016) are A_t = sum_l (gamma lambda)^l
    delta_{t+l}, delta_t = r_t + gamma V_t - V_{t-1}; the target of step t is V_{t-1} + A_t, in which V_0 cancels: for
    t = T the outcome, else with lambda (`decay`) = 1 gamma^(T-t) outcome, with 0 gamma V_t."""
    target_T = np.full(len(value_T), outcome, np.float64)
    for t in reversed(range(len(value_T) - 1)):
        target_T[t] = discount * ((1 - decay) * value_T[t] + decay * target_T[t + 1])
    return target_T


def consensus(labels, others, threshold: float, other_threshold: float) -> list[float | None] | None:
    """The labels on which two sources agree (Zhang et al. 2025, 2501.07301): 1 before the first wrong step, 0 at it,
    null behind it and where `labels` is; None where they name different steps, or one of them labels no step."""
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
        is_idle = is_own(self.checker) and self.by != "checker"
        expected = "an embedded task, or by=checker: your own function gives the labels"
        expect(not is_idle, "checker", self.checker, expected)
        lacks_values = self.by == "td" and self.checkpoint is None and self.td_lambda < 1
        expect(not lacks_values, "td_lambda", self.td_lambda, "1 without a value model, checkpoint=MODEL")

    @property
    def files(self) -> list[str]:
        more = {"consensus": self.other, "checker": is_own(self.checker) and self.checker.rpartition(":")[0]}
        return [self.input, *filter(None, [more.get(self.by)])]


def kind_of(scorer) -> str:
    """The label_kind of step scores; an outcome model's are values, whatever labels its steps had."""
    return "value" if scorer.objective == "orm" else scorer.label_kind


def read(cfg: RelabelingConfig) -> tuple[list[Solution], list | None]:
    """(solutions, what the file or files hold for each: by=scores probability_T; by=labels, by=consensus and a
    checker of one's own labels)."""
    if cfg.by == "consensus":
        solutions, others = (sources.load(path, "native", labels_required=True)[0] for path in cfg.files)
        n, m = len(solutions), len(others)
        expect(n == m, f"other: {cfg.other}", m, f"{n} solutions, as {cfg.input} has")
        for i, (s, other) in enumerate(zip(solutions, others, strict=True), 1):
            if (s.problem, s.steps) != (other.problem, other.steps):
                raise InputError(
                    f"other: {row_place(cfg.other, i)}: another solution than row {i} of {cfg.input}"
                )
        return solutions, [other.labels for other in others]
    if cfg.by == "labels":
        solutions, _ = sources.load(cfg.input, "native", labels_required=True)
        return solutions, [np.array(s.labels, np.float64) for s in solutions]  # null: nan
    solutions, answers = read_input(cfg.input, cfg.checker if is_own(cfg.checker) else "task")
    if cfg.by == "checker" and is_own(cfg.checker):
        ask = own_function(cfg.checker, own_labels)
        return solutions, [
            np.array(ask(s.problem, s.steps, answers[s.problem]), np.float64) for s in solutions
        ]
    if cfg.by == "checker":
        name = tasks.read_task([cfg.input], cfg.checker).name
        solutions = [dataclasses.replace(s, task=name) for s in solutions]
    if cfg.by == "td" and all(s.outcome is None for s in solutions):
        expected = "0 or 1: by=td spreads it over the steps, and no solution has one"
        raise field_error(f"{cfg.input}: {solutions[0].id}: outcome", None, expected)
    if cfg.by != "scores":
        return solutions, None
    if not is_pool(next(iter(read_rows(cfg.input)))[1]):
        raise InputError(
            f"{cfg.input}: by=scores reads the step scores of a pool, and this file has no candidates"
        )
    scores, unit = scores_in_unit(read_pool(cfg.input, [cfg.scores]), cfg.scores, cfg.scores_unit)
    return solutions, [as_probability(score_T, unit) for score_T in scores]


def label_all(
    cfg: RelabelingConfig, scorer, path: Path, solutions: list[Solution], stored
) -> Iterator[list | None]:
    """The labels of each solution, None where it is dropped; stored: from `read`; path: keeps a scorer's scores."""
    if cfg.by == "consensus":
        bounds = 0.5 if cfg.threshold is None else cfg.threshold, cfg.other_threshold
        return (consensus(s.labels, labels, *bounds) for s, labels in zip(solutions, stored, strict=True))
    if cfg.by == "checker" and not stored:
        return (tasks.find_task(s.task).step_labels(s.problem, s.steps) for s in solutions)
    if scorer:
        rows = ((s.id, s.problem, s.steps) for s in solutions)
        labels = map(probability, score_into(path, scorer, rows, len(solutions)))
    else:
        labels = stored or (
            np.zeros(len(s.steps)) for s in solutions
        )  # values have no weight without a value model
    if cfg.by == "td":  # a solution without an outcome, such as a cut one, has nothing to spread: all null
        outcomes = [np.nan if s.outcome is None else s.outcome for s in solutions]
        labels = (
            td_targets(y_T, y, cfg.td_lambda, cfg.gamma) for y_T, y in zip(labels, outcomes, strict=True)
        )
    if cfg.threshold is not None:
        labels = (np.where(np.isnan(y_T), np.nan, y_T >= cfg.threshold) for y_T in labels)
    return ([None if np.isnan(y) else y for y in y_T.tolist()] for y_T in labels)


def label_kind(cfg: RelabelingConfig, scorer) -> str:
    """The meaning of the labels: that of their source or, where that is unknown, the key label_kind."""
    if cfg.by in ("labels", "consensus"):
        kinds = {row.get("label_kind") for path in cfg.files for _, row in read_rows(path)}
        kind = kinds.pop() if kinds in ({"correctness"}, {"value"}, {"advantage"}) else "unknown"
    else:
        fixed = {"checker": "correctness", "td": "value", "scores": "unknown"}
        kind = fixed.get(cfg.by) or kind_of(scorer)
    expect(
        cfg.label_kind in (None, kind) or kind == "unknown", "label_kind", cfg.label_kind, f"null or {kind}"
    )
    return cfg.label_kind or kind


# by -> the keys that its labels depend on, besides those of all
KEYS = {
    "scores": ("scores", "scores_unit"),
    "td": ("td_lambda", "gamma"),
    "consensus": ("other", "other_threshold"),
}


def labelled_rows(solutions, labels, origin: dict, counts: collections.Counter) -> Iterator[dict]:
    """Yields a native row with its `origin` for each solution that has labels, and counts them."""
    for s, y_T in zip(solutions, labels, strict=True):
        counts["solutions_dropped_where_they_differ" if y_T is None else "solutions"] += 1
        if y_T is None:
            continue
        y_T = relabel_after_error(
            dataclasses.replace(s, labels=tuple(y_T)), origin["after_first_error"]
        ).labels
        known = [y for y in y_T if y is not None]
        counts.update(steps=len(y_T), labels=len(known), labels_good=sum(y >= 0.5 for y in known))
        counts.update(steps_without_label=len(y_T) - len(known), solutions_without_label=not known)
        yield native_row(s, y_T) | origin


@cli.command("relabeling", RelabelingConfig)
def main(cfg):
    """Label the steps of solutions by what exists already: another verifier, a checker, outcomes, two label files."""
    folder, raw_cfg, resumes = start_command(cfg)
    folder, cfg = writable_folder(folder), parse(raw_cfg, RelabelingConfig)
    solutions, stored = read(cfg)
    mesh, path, scorer = make_mesh(cfg.mesh, cfg.batch_rows), folder / "labels.jsonl", None
    with run_folder.locked_run_folder(folder, raw_cfg, resumes), jax.set_mesh(mesh):
        if cfg.by in ("scorer", "td") and cfg.checkpoint is not None:
            opening = cfg.which, cfg.format, choose_dtype(cfg.dtype), cfg.batch_rows, None, cfg.reference
            scorer = open_verifier(
                cfg.checkpoint, OpenOptions(*opening, task=cfg.checker, files=(cfg.input,))
            )
        if cfg.by == "td" and scorer and kind_of(scorer) == "correctness":
            raise InputError(
                f"checkpoint: {scorer.name} learned correctness, by=td needs a value or an outcome model"
            )
        keys = {
            key: getattr(cfg, key) for key in ("by", "threshold", "after_first_error", *KEYS.get(cfg.by, ()))
        }
        keys |= {"checker": cfg.checker} if is_own(cfg.checker) else {}
        origin = {
            "label_kind": label_kind(cfg, scorer),
            **keys,
            **({"scorer": scorer.name} if scorer else {}),
        }
        weights = {"weights": fingerprint(scorer.model)} if hasattr(scorer, "model") else {}
        about = {**origin, "files": {file: file_fingerprint(file) for file in cfg.files}, **weights}
        resumable = folder / "scores.jsonl" if scorer else path
        with described_file(resumable, about) as counts:
            if scorer and (tokens := training_tokens(cfg.checkpoint)) is not None:
                counts["policy_tokens_of_scorer"] = tokens  # of the samples that it was trained on
            labels = label_all(cfg, scorer, resumable, solutions, stored)
            write_rows(path, labelled_rows(solutions, labels, origin, counts))
            about |= getattr(scorer, "about", {})  # a critic's: what became of its critiques
    kind = about["label_kind"].replace("unknown", "correctness|value, which their source does not say")
    print_counts(counts, totals=())
    print(f"labels      {path}; train on them: data=jsonl data.path={path} data.label_kind={kind}")
