"""Which solutions a data config names, and how they are split so that no problem is on two sides."""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Literal

from omegaconf import OmegaConf

from prm_jax import InputError, tasks
from prm_jax.data import sources
from prm_jax.data.pools import Problem
from prm_jax.data.rows import file_fingerprint, read_rows, require
from prm_jax.data.solutions import Solution, relabel_after_error
from prm_jax.launch.config import Count, Positive, Rule, expect, one_of, parse

LabelKind = Literal["correctness", "value", "advantage"]
are_files = lambda paths: {type(path) for path in paths} == {str}
Files = str | Annotated[list, Rule(are_files, "a file or a list of files")] | None


@dataclasses.dataclass(frozen=True)
class FileData:
    """Labelled rows from files or the hub; conf/data/files.yaml says what each key means."""

    name: str
    label_kind: LabelKind
    path: Files
    hub: str | None
    hub_split: str
    neutral: str
    after_first_error: str
    alternatives: str
    duplicates: str
    quality_control: str
    folds: int
    fold: int | None
    # Runs made before there were these keys lack them.
    validation_path: Files = None
    test_path: Files = None
    split_by: str = "line"
    no_verdict: str = "mask"
    validation_name: Annotated[str, one_of(sources.READERS)] | None = None


@dataclasses.dataclass(frozen=True)
class TaskData:
    """An embedded task; conf/data/chain.yaml says what each key means."""

    name: str
    label_kind: Literal["correctness", "value"]
    after_first_error: str
    samples: Literal["policy", "solver"]
    policy: str
    temperature: Positive
    max_tokens: Count
    solutions: Count
    solutions_per_problem: Count
    test_solutions: Count
    train_split: Literal["train", "base"]
    task: object = None  # the Config of tasks.TASKS[name]
    outcome: Literal["answer", "steps"] = "answer"  # runs made before there was this key lack it


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Several data sets as one; conf/data/mixture.yaml says what each key means."""

    name: str
    label_kind: LabelKind  # of all sources
    sources: dict[str, FileData | TaskData]
    weights: dict[str, Positive] | None  # of each source


DataConfig = FileData | TaskData | Mixture
# Asks the policy of an embedded task: (its data section, problems, samples of each, seed) -> the problems with graded samples.
Draw = Callable[[TaskData, Sequence[str], int, int], Iterable[Problem]]


@dataclasses.dataclass(frozen=True)
class Data:
    splits: dict[str, list[Solution]]  # train, validation, test
    counts: dict[str, float]  # everything read, masked, dropped or odd
    fingerprints: dict[str, str]  # file -> sha256 of its bytes; data set of the hub -> sha256 of its solutions
    # Of a mixture: training solutions of each source, in order.
    parts: dict[str, int] = dataclasses.field(default_factory=dict)


def data_config(node, key: str = "data") -> DataConfig:
    """The data section of a config as a dataclass; InputError on a key or value that does not belong."""
    name = node.get("name") if OmegaConf.is_dict(node) and not OmegaConf.is_missing(node, "name") else None
    names = (*tasks.TASKS, *(["mixture"] if key == "data" else []), *sources.READERS)
    expect(name in names, f"{key}.name", name, ", ".join(names))
    if name == "mixture":
        return _mixture(node)
    if name in tasks.TASKS:
        cfg = parse(node, TaskData, key, elsewhere=("task",))
        cfg = dataclasses.replace(cfg, task=parse(node.get("task"), tasks.TASKS[name].Config, f"{key}.task"))
    else:
        cfg = parse(node, FileData, key)
    for option in sources.OPTIONS.keys() & vars(cfg).keys():
        found, allowed = getattr(cfg, option), sources.OPTIONS[option]
        expect(found in allowed, f"{key}.{option}", found, ", ".join(allowed))
    if cfg.label_kind != "correctness":
        expected = f"keep with label_kind={cfg.label_kind}: {cfg.label_kind} labels know no first error"
        expect(cfg.after_first_error == "keep", f"{key}.after_first_error", cfg.after_first_error, expected)
    return cfg


def _mixture(node) -> Mixture:
    found = {name: data_config(part, f"data.sources.{name}") for name, part in (node.get("sources") or {}).items()}
    example = "two or more, each put there by +data@data.sources.NAME=DATA"
    expect(len(found) > 1, "data.sources", ", ".join(found) or "none", example)
    cfg = parse(node, Mixture, "data", elsewhere=("sources",), sources=found)
    given, one_each = cfg.weights or dict.fromkeys(found), f"one of each: {', '.join(found)}"
    expect(given.keys() == found.keys(), "data.weights", given, one_each)
    kinds = {name: part.label_kind for name, part in found.items()}
    expected = f"data.label_kind={cfg.label_kind} of all: they are never mixed"
    expect(set(kinds.values()) == {cfg.label_kind}, "data.sources", kinds, expected)
    return cfg


def load_splits(cfg: DataConfig, seed: int, draw: Draw | None = None, labels_required: bool = False) -> Data:
    """The three splits to train on.

    Of an embedded task: solutions by its solver, or by its policy, which `draw` asks. Of files: the test split is
    `test_path`, or else the fold `fold` of the problems, the validation split `validation_path`, or else the next fold; what
    is left trains. With `labels_required` a native row without labels raises: a misspelt column would train on nothing.
    """
    if isinstance(cfg, TaskData):
        return _load_task(cfg, seed, draw)
    if isinstance(cfg, Mixture):
        return _load_mixture(cfg, seed, draw, labels_required)
    splits, counts, fingerprints = _load(cfg, labels_required, test=cfg.test_path, validation=cfg.validation_path)
    hashed = [side for side in ("test", "validation") if side not in splits]
    try:
        splits |= split_by_problem(splits["train"], cfg.folds, cfg.fold or 0, hashed)
    except InputError as error:
        raise InputError(f"data.{error}") from None
    known = problem_hashes(splits["train"])
    counts |= {f"{side}_problems_in_training": count_known(splits[side], known) for side in ("validation", "test")}
    return Data(splits, counts, fingerprints)


def load_evaluation(cfg: DataConfig, seed: int, draw: Draw | None = None, *, named: bool) -> Data:
    """What to evaluate on, as the split `test`: all of a file that was `named` for it, unless the config names a fold or a
    test file; else the test split of the run's own data, beside the splits that it was trained with."""
    if named and isinstance(cfg, FileData) and cfg.fold is None and cfg.test_path is None:
        splits, *rest = _load(cfg, labels_required=True)
        return Data({"train": [], "validation": [], "test": splits["train"]}, *rest)
    return load_splits(cfg, seed, draw, labels_required=True)


def _load(cfg: FileData, labels_required: bool, **more):
    """The fields of Data: the rows of `path` or `hub` as `train`, those of other files under the given names."""
    if (cfg.path is None) == (cfg.hub is None):
        expected = "a file (data.path=FILE), or a hub data set (data.hub=OWNER/NAME), and not both"
        raise InputError(f"data.path: expected {expected}")
    options = {key: getattr(cfg, key) for key in sources.OPTIONS}
    splits, counts, fingerprints, totals = {}, {}, {}, ("rows", "solutions", "steps", "labels")
    named = {"train": cfg.path or cfg.hub} | {side: path for side, path in more.items() if path is not None}
    for side, path in named.items():
        split = cfg.hub_split if side == "train" and cfg.hub else None
        name = (cfg.validation_name if side == "validation" else None) or cfg.name
        if split is None and name == "native":
            check_label_kind(path, cfg.label_kind)
        splits[side], found = sources.load(path, name, split=split, labels_required=labels_required, **options)
        counts |= found if side == "train" else {f"{side}_{k}": n for k, n in found.items() if k not in totals}
        if split is None:
            fingerprints |= {str(file): file_fingerprint(file) for file in ([path] if isinstance(path, str) else path)}
        else:
            rows = hashlib.sha256()
            for solution in splits[side]:
                rows.update(repr(solution).encode())
            fingerprints[f"{path} split {split}"] = rows.hexdigest()
    return splits, counts, fingerprints


def check_label_kind(paths: str | list, label_kind: str):
    """InputError where a file of native rows states another meaning of its labels: labels by completions are values."""
    for path in [paths] if isinstance(paths, str) else paths:
        stated = next(iter(read_rows(path)))[1].get("label_kind")
        expected = f"{stated}, as {path} states"
        expect(stated in (None, "unknown", label_kind), "data.label_kind", label_kind, expected)


def _load_task(cfg: TaskData, seed: int, draw: Draw) -> Data:
    """Training problems depend on the seed; validation and test are the same for every seed, so that runs compare."""
    splits, task = {}, tasks.TASKS[cfg.name]
    for name in ("train", "validation", "test"):
        source = (cfg.solutions, cfg.train_split, seed) if name == "train" else (cfg.test_solutions, name, 0)
        rows = task_solutions(cfg, *source, draw)
        lucky = tasks.lucky_share(task, rows)  # of the test split in the end
        if cfg.outcome == "steps":
            sound = lambda s: None if s.outcome is None else float(0 not in tasks.step_labels(task, s.problem, s.steps))
            rows = [dataclasses.replace(row, outcome=sound(row)) for row in rows]
        splits[name] = [relabel_after_error(row, cfg.after_first_error) for row in rows]
    return Data(splits, {"solutions": cfg.solutions, "lucky_share_of_right_answers": lucky}, {})


def _load_mixture(cfg: Mixture, seed: int, draw: Draw, labels_required: bool) -> Data:
    """The sources' training solutions one source after another, their other splits in turn; ids begin with the source's name."""
    parts = {}
    for name, part in cfg.sources.items():
        try:
            parts[name] = load_splits(part, seed, draw, labels_required)
        except InputError as error:
            raise InputError(str(error).replace("data.", f"data.sources.{name}.", 1)) from None
    named = lambda name, rows: [dataclasses.replace(s, id=f"{name}/{s.id}") for s in rows]
    of = lambda side: [named(name, data.splits[side]) for name, data in parts.items()]
    splits = {"train": [s for rows in of("train") for s in rows]}
    for side in ("validation", "test"):
        splits[side] = [s for turn in itertools.zip_longest(*of(side)) for s in turn if s is not None]
    counts = {f"{name}_{key}": n for name, data in parts.items() for key, n in data.counts.items()}
    known = problem_hashes(splits["train"])
    counts |= {f"{side}_problems_in_training": count_known(splits[side], known) for side in ("validation", "test")}
    fingerprints = {file: x for data in parts.values() for file, x in data.fingerprints.items()}
    return Data(splits, counts, fingerprints, {name: len(data.splits["train"]) for name, data in parts.items()})


def task_solutions(cfg: TaskData, n: int, split: str, seed: int, draw: Draw) -> list[Solution]:
    """n labelled solutions of the problems of one split of an embedded task, solutions_per_problem of each."""
    task, each, name = tasks.TASKS[cfg.name], cfg.solutions_per_problem, f"{cfg.name}/{split}/{seed}"
    pool = task_pool(cfg, -(-n // each), each, split, seed, draw)
    rows = itertools.islice(((p.problem, c) for p in pool for c in p.candidates), n)
    label = lambda i, problem, c: tasks.labelled(
        task, cfg.task, problem, c.steps, cfg.label_kind, f"{name}/{i}", c.finished
    )
    return [label(i, *row) for i, row in enumerate(rows)]


def task_pool(cfg: TaskData, n: int, each: int, split: str, seed: int, draw: Draw) -> Iterable[Problem]:
    """n problems of one split of an embedded task with `each` graded solutions, by its policy or its noisy solver."""
    task = tasks.TASKS[cfg.name]
    problems = tasks.make_problems(task, cfg.task, n, split, seed)
    by_solver = cfg.samples == "solver"
    return tasks.solver_pool(task, cfg.task, problems, each, seed) if by_solver else draw(cfg, problems, each, seed)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def assign_fold(problem: str, folds: int) -> int:
    """Fold 0 to folds - 1 of a problem: a hash of its text up to white space, so the same in every run."""
    return int(_sha256(" ".join(problem.split()))[:16], 16) % folds


def split_by_problem(solutions: Sequence[Solution], folds: int, fold: int, sides=("test", "validation")) -> dict:
    """{train, *sides: solutions}: the first of `sides` is `fold`, the second the next one; no problem is on two sides."""
    require(folds > len(sides), "folds", folds, f"at least {len(sides) + 1}, for train, {' and '.join(sides)}")
    require(0 <= fold < folds, "fold", fold, f"0 to {folds - 1}")
    found = {"train": [], **{side: [] for side in sides}}
    for solution in solutions:
        offset = (assign_fold(solution.problem, folds) - fold) % folds
        found[sides[offset] if offset < len(sides) else "train"].append(solution)
    for side, members in found.items():
        if not members:
            hint = f"; data.{side}_path=FILE names some" if side != "train" else ""
            raise InputError(f"folds: {folds} with fold {fold} leave no {side} solution of {len(solutions)}{hint}")
    return found


def problem_hashes(solutions: Iterable[Solution]) -> list[str]:
    """Short hashes of the distinct problems, sorted: what a run keeps of what it was trained on. White space does not count."""
    return sorted({_sha256("".join(solution.problem.split()))[:16] for solution in solutions})


def count_known(solutions: Iterable[Solution], hashes: Iterable[str]) -> int:
    """How many distinct problems of `solutions` are among `problem_hashes` of others."""
    return len(set(problem_hashes(solutions)) & set(hashes))
