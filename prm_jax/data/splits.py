"""Reads the solutions that a data config names and splits them so that no problem's text is on two sides.
Near repeats, of other case or spaces, are counted, not moved (`count_overlaps`)."""

import collections
import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from omegaconf import OmegaConf

from prm_jax.data.rows import file_fingerprint
from prm_jax.data.sources import READERS, AfterError, Reading, load_placed
from prm_jax.launch.config import Count, Positive, Rule, expect, parse
from prm_jax.launch.files import read_json, sha256, write_json
from prm_jax.launch.progress import TOTALS
from prm_jax.solutions import Pickled, Solution, pickled_solutions

LabelKind = Literal["correctness", "value", "advantage"]
FileList = Annotated[list, Rule(lambda paths: {*map(type, paths)} == {str}, "a file or a list of files")]
Files = str | FileList | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileData(Reading):
    """Labelled rows from files or the hub; conf/data/files.yaml says what each key means."""

    label_kind: LabelKind
    path: Files
    validation_path: Files
    test_path: Files
    hub: str | None
    hub_split: str
    folds: int
    fold: int | None


@dataclasses.dataclass(frozen=True)
class TaskData:
    """An embedded task; conf/data/chain.yaml says what each key means."""

    name: str
    label_kind: Literal["correctness", "value"]
    after_first_error: AfterError
    samples: Literal["policy", "solver"]
    policy: str
    temperature: Positive
    max_tokens: Count
    solutions: Count
    solutions_per_problem: Count
    test_solutions: Count
    train_split: Literal["train", "base"]
    outcome: Literal["answer", "steps"]
    task: object  # the Config of the embedded task


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Several data sets as one; conf/data/mixture.yaml says what each key means."""

    name: str
    label_kind: LabelKind  # of all sources
    sources: dict[str, FileData | TaskData]
    weights: dict[str, Positive] | None  # of each source


DataConfig = FileData | TaskData | Mixture
# Samples a task's policy: (TaskData, problems, samples a problem, seed) -> graded pools.Problems.
Draw = Callable[[TaskData, Sequence[str], int, int], Iterable]


@dataclasses.dataclass(frozen=True)
class Data:
    splits: dict[str, Sequence[Solution]]  # train, validation, test
    counts: dict[str, float]  # of everything read, masked, dropped or odd
    fingerprints: dict[str, str]  # file -> sha256 of its bytes; hub data set -> sha256 of its solutions
    # Of a mixture: source -> training solutions.
    parts: dict[str, int] = dataclasses.field(default_factory=dict)

    def record(self, path: Path):
        """Writes hashes of the files, which a resumed run must have again, and of the problems, which
        evaluations read and RL keeps apart from."""
        if path.exists():
            old = read_json(path, files=dict)["files"]
            changed = [name for name, x in self.fingerprints.items() if old.get(name) != x]
            expect(not changed, "resume", changed, "the files that the run began with")
        train, validation = (problem_hashes(self.splits[side]) for side in ("train", "validation"))
        hashes = {"files": self.fingerprints, "problems": train, "validation": validation}
        write_json(path, hashes)


def data_config(node, key: str = "data") -> DataConfig:
    """The data section of a config as a dataclass; InputError on a key or value that does not belong."""
    name = node.get("name") if OmegaConf.is_dict(node) and not OmegaConf.is_missing(node, "name") else None
    if name == "mixture" and key == "data":
        return mixture_config(node)
    is_own = ".py:" in str(name)  # FILE.py:CLASS of a task, or FILE.py:FUNCTION of a reader
    if name in READERS or is_own and "path" in node:
        cfg = parse(node, FileData, key)
        expected = f"a file, or a hub data set ({key}.hub=OWNER/NAME), and not both"
        expect(bool(cfg.path) != bool(cfg.hub), f"{key}.path", cfg.path, expected)
        has_part = cfg.fold is None or None in (cfg.test_path, cfg.validation_path)
        expect(has_part, f"{key}.fold", cfg.fold, "null, for test_path and validation_path leave it no part")
    else:
        from prm_jax import tasks  # not above: data of files need no embedded task

        names = ", ".join((*tasks.TASKS, "mixture", *READERS))
        is_known = name in tasks.TASKS or is_own
        expect(is_known, f"{key}.name", name, f"{names} or one of your own, FILE.py:NAME")
        section = parse(node.get("task"), tasks.find_task(name).Config, f"{key}.task")
        cfg = parse(node, TaskData, key, task=section)
    is_right = cfg.label_kind == "correctness" or cfg.after_first_error == "keep"
    expected = f"keep: {cfg.label_kind} labels know no first error"
    expect(is_right, f"{key}.after_first_error", cfg.after_first_error, expected)
    return cfg


def mixture_config(node) -> Mixture:
    section = node.get("sources") or {}
    parts = {name: data_config(part, f"data.sources.{name}") for name, part in section.items()}
    cfg = parse(node, Mixture, "data", sources=parts)
    weights = cfg.weights or parts
    kinds = {part.label_kind for part in parts.values()}
    expect(len(parts) > 1, "data.sources", list(parts), "two or more, each by +data@data.sources.NAME=DATA")
    expect(weights.keys() == parts.keys(), "data.weights", weights, f"one of each: {', '.join(parts)}")
    expect(kinds == {cfg.label_kind}, "data.sources", kinds, f"data.label_kind={cfg.label_kind} of all")
    return cfg


def load_splits(cfg: DataConfig, seed: int, draw: Draw | None = None, labels_required: bool = False) -> Data:
    """Returns the train, validation and test splits. An embedded task's solutions come from its solver, or
    from its policy by `draw` (generate/samples.policy_pool). Of files, the test split is `test_path` or fold
    `fold` of the problems, validation is `validation_path` or the next fold not taken; the rest trains.
    With `labels_required` a native row without labels raises: a misspelt column would train on nothing."""
    if isinstance(cfg, TaskData):
        from prm_jax.tasks import sample_solutions

        counts = {"solutions": cfg.solutions}
        splits = {"train": sample_solutions(cfg, cfg.solutions, cfg.train_split, seed, draw, counts)}
        for side in ("validation", "test"):  # the same with every seed, so that runs compare
            splits[side] = sample_solutions(cfg, cfg.test_solutions, side, 0, draw)
        return Data(splits, counts, {})
    if isinstance(cfg, Mixture):
        return load_mixture(cfg, seed, draw, labels_required)
    data = load_files(cfg, labels_required)
    hashed = [side for side in ("test", "validation") if side not in data.splits]
    splits = data.splits | split_by_problem(data.splits["train"], cfg.folds, cfg.fold or 0, hashed)
    return dataclasses.replace(data, splits=splits, counts=data.counts | count_overlaps(splits))


def load_evaluation(cfg: DataConfig, seed: int, draw: Draw | None = None, *, named: bool) -> Data:
    """Returns the solutions to evaluate on as the split `test`: a whole file if it was `named` and the config
    sets neither a fold nor a test file, else the splits of the run's own data."""
    if named and isinstance(cfg, FileData) and cfg.fold is None and cfg.test_path is None:
        data = load_files(dataclasses.replace(cfg, validation_path=None), labels_required=True)
        splits = {"train": [], "validation": [], "test": data.splits["train"]}
        return dataclasses.replace(data, splits=splits)
    return load_splits(cfg, seed, draw, labels_required=True)


def load_files(cfg: FileData, labels_required: bool) -> Data:
    """The rows of `path` or `hub` as `train`, those of `validation_path` and `test_path` by their side."""
    data = Data({}, {}, {})
    paths = {"train": cfg.path or cfg.hub, "validation": cfg.validation_path, "test": cfg.test_path}
    for side, path in paths.items():
        if path is None:
            continue
        hub_split = cfg.hub_split if path is cfg.hub else None
        counts = collections.Counter()
        solutions = pickled_solutions()
        digest = hashlib.sha256()
        for place, row, solution in load_placed(path, cfg, counts, hub_split, labels_required):
            kind = row.get("label_kind")
            is_same = kind in (None, "unknown", cfg.label_kind)
            expect(is_same, "data.label_kind", cfg.label_kind, f"{kind}, as {place} states")
            solutions.append(solution)
            if hub_split:
                digest.update(repr(solution).encode())
        data.splits[side] = solutions
        if side != "train":
            counts = {f"{side}_{name}": n for name, n in counts.items() if name not in TOTALS}
        data.counts.update(counts)
        if hub_split:
            data.fingerprints[f"{path} split {hub_split}"] = digest.hexdigest()
        else:
            files = [path] if isinstance(path, str) else path
            data.fingerprints.update({str(file): file_fingerprint(file) for file in files})
    return data


def load_mixture(cfg: Mixture, seed: int, draw: Draw, labels_required: bool) -> Data:
    """Training solutions stand source by source, those of the other splits alternate."""
    parts = {name: load_splits(part, seed, draw, labels_required) for name, part in cfg.sources.items()}
    counts, fingerprints = {}, {}
    for name, data in parts.items():
        counts |= {f"{name}_{event}": n for event, n in data.counts.items()}
        fingerprints |= data.fingerprints
    train = itertools.chain(*(data.splits["train"] for data in parts.values()))
    splits = {"train": pickled_solutions(train)}
    for side in ("validation", "test"):
        turns = itertools.zip_longest(*(data.splits[side] for data in parts.values()))
        splits[side] = pickled_solutions(s for turn in turns for s in turn if s is not None)
    sizes = {name: len(data.splits["train"]) for name, data in parts.items()}
    return Data(splits, counts | count_overlaps(splits), fingerprints, sizes)


def assign_fold(problem: str, folds: int) -> int:
    """Fold (0 to folds - 1) of a problem: a hash of its text up to white space, the same in every run."""
    return int(sha256(" ".join(problem.split()))[:16], 16) % folds


def split_by_problem(solutions: Pickled, folds: int, fold: int, sides=("test", "validation")) -> dict:
    """Returns {train, *sides: solutions}: the first of `sides` is fold `fold`, the second the next one."""
    expect(folds > len(sides), "data.folds", folds, f"more, for train, {' and '.join(sides)}")
    expect(0 <= fold < folds, "data.fold", fold, f"0 to {folds - 1}")
    splits = {side: pickled_solutions() for side in ("train", *sides)}
    for row, solution in zip(solutions.rows, solutions, strict=True):
        offset = (assign_fold(solution.problem, folds) - fold) % folds
        splits[sides[offset] if offset < len(sides) else "train"].rows.append(row)
    for side, members in splits.items():
        expected = f"a number that puts one of {len(solutions)} into {side}, or data.{side}_path=FILE"
        expect(len(members) > 0, "data.folds", folds, expected)
    return splits


def normal_text(problem: str) -> str:
    """The problem's text without white space and case; problems with equal ones count as one."""
    return "".join(problem.split()).casefold()


def problem_hash(problem: str) -> str:
    return sha256(normal_text(problem))[:16]


def problem_hashes(solutions: Iterable[Solution]) -> list[str]:
    """Sorted short hashes of the distinct problems: a run keeps those that it was trained on."""
    return sorted({problem_hash(solution.problem) for solution in solutions})


def count_overlaps(splits: dict) -> dict[str, int]:
    """Number of distinct problems of each other split that are in the training split, too."""
    hashes = {side: set(problem_hashes(solutions)) for side, solutions in splits.items()}
    known = hashes.pop("train")
    return {f"{side}_problems_in_training": len(known & found) for side, found in hashes.items()}
