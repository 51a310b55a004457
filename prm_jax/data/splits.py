"""Which solutions a data config names, and how they are split so that no problem is on two sides."""

import dataclasses
import hashlib
from collections.abc import Sequence

from omegaconf import OmegaConf

from prm_jax import InputError
from prm_jax.data import solutions, sources
from prm_jax.data.rows import field_error
from prm_jax.data.solutions import Solution
from prm_jax.launch.config import parse
from prm_jax.tasks import chain as arithmetic
from prm_jax.tasks.chain import ArithmeticConfig


@dataclasses.dataclass(frozen=True)
class FileData:
    """Labelled rows from files or the hub; conf/data/files.yaml says what each key means."""

    name: str
    label_kind: str
    path: str | list | None
    hub: str | None
    hub_split: str
    neutral: str
    after_first_error: str
    alternatives: str
    duplicates: str
    quality_control: str
    folds: int
    fold: int


@dataclasses.dataclass(frozen=True)
class ArithmeticData:
    """The embedded task; conf/data/arithmetic.yaml says what each key means."""

    name: str
    label_kind: str
    after_first_error: str
    solutions: int
    test_solutions: int
    train_split: str
    task: ArithmeticConfig


DataConfig = FileData | ArithmeticData


def data_config(node) -> DataConfig:
    """The data section of a config as a dataclass; InputError on a key or value that does not belong."""
    name = node.get("name") if OmegaConf.is_dict(node) and not OmegaConf.is_missing(node, "name") else None
    if name not in ("arithmetic", *sources.OPTIONS["kind"]):
        raise InputError(f"data.name: got {name!r}, expected arithmetic, {', '.join(sources.OPTIONS['kind'])}")
    cfg = parse(node, ArithmeticData if name == "arithmetic" else FileData, "data")
    for key in sources.OPTIONS.keys() & vars(cfg).keys():
        if getattr(cfg, key) not in sources.OPTIONS[key]:
            raise InputError(f"data.{key}: got {getattr(cfg, key)!r}, expected {', '.join(sources.OPTIONS[key])}")
    if cfg.label_kind not in ("correctness", "value"):
        raise InputError(f"data.label_kind: got {cfg.label_kind!r}, expected correctness or value")
    if cfg.label_kind == "value" and cfg.after_first_error != "keep":
        raise InputError(
            "data.after_first_error: value labels know no first error; expected keep with label_kind=value"
        )
    return cfg


def load_splits(
    cfg: DataConfig, seed: int, labels_required: bool = False
) -> tuple[dict[str, list[Solution]], dict[str, int]]:
    """{train, validation, test: solutions}, and counts of everything read, masked and dropped.

    With `labels_required` a native row without labels raises: a misspelt column would train on nothing.
    """
    if isinstance(cfg, ArithmeticData):
        return load_arithmetic(cfg, seed)
    if (cfg.path is None) == (cfg.hub is None):
        raise InputError(
            "data.path: expected a file (data.path=FILE), or a hub data set (data.hub=OWNER/NAME), and not both"
        )
    options = {key: getattr(cfg, key) for key in ("neutral", "after_first_error", "alternatives", "duplicates")}
    options["quality_control"] = cfg.quality_control
    rows, counts = sources.load(
        cfg.path or cfg.hub, cfg.name, split=cfg.hub and cfg.hub_split, labels_required=labels_required, **options
    )
    try:
        train, validation, test = split_by_problem(rows, cfg.folds, cfg.fold)
    except InputError as error:
        raise InputError(f"data.{error}") from None
    return {"train": train, "validation": validation, "test": test}, counts


def load_arithmetic(cfg: ArithmeticData, seed: int):
    """Training problems depend on the seed; validation and test are the same for every seed, so that runs compare."""
    if cfg.train_split not in ("train", "base"):
        raise InputError(f"data.train_split: got {cfg.train_split!r}, expected train or base")
    sizes = {"train": cfg.solutions, "validation": cfg.test_solutions, "test": cfg.test_solutions}
    if min(cfg.solutions, cfg.test_solutions) < 1:
        raise InputError(f"data.solutions: got {cfg.solutions} and {cfg.test_solutions} to test, expected at least 1")
    splits = {}
    for name, n in sizes.items():
        source = cfg.train_split if name == "train" else name
        rows = arithmetic.make_solutions(cfg.task, n, source, seed if name == "train" else 0, cfg.label_kind)
        splits[name] = [solutions.relabel_after_error(row, cfg.after_first_error) for row in rows]
    return splits, {"solutions": cfg.solutions, "lucky_share_of_right_answers": arithmetic.lucky_share(splits["test"])}


def assign_fold(problem: str, folds: int) -> int:
    """Fold 0 to folds - 1 of a problem: a hash of its text up to white space, so the same in every run."""
    digest = hashlib.sha256(" ".join(problem.split()).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % folds


def split_by_problem(solutions: Sequence[Solution], folds: int, fold: int) -> tuple[list, list, list]:
    """(train, validation, test): test is `fold`, validation the next fold; no problem is on two sides."""
    if folds < 3:
        raise field_error("folds", folds, "at least 3, for train, validation and test")
    if not 0 <= fold < folds:
        raise field_error("fold", fold, f"0 to {folds - 1}")
    sides = {"train": [], "validation": [], "test": []}
    for solution in solutions:
        offset = (assign_fold(solution.problem, folds) - fold) % folds
        sides[{0: "test", 1: "validation"}.get(offset, "train")].append(solution)
    for side, members in sides.items():
        if not members:
            raise InputError(f"folds: {folds} with fold {fold} leave no {side} solution of {len(solutions)}")
    return sides["train"], sides["validation"], sides["test"]
