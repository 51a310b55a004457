"""What the tasks share: the verifiers to evaluate, the data to evaluate them on, the files that keep their scores."""

import contextlib
import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from omegaconf import DictConfig, OmegaConf

from prm_jax import InputError
from prm_jax.checkpoints import hf
from prm_jax.checkpoints.verifiers import (
    BUILT_IN,
    ENSEMBLE,
    OpenOptions,
    members_of,
    needs_folder,
    open_verifier,
)
from prm_jax.data.rows import file_fingerprint
from prm_jax.data.splits import Data, DataConfig, count_known, data_config
from prm_jax.formats import Format
from prm_jax.heads import HEADS
from prm_jax.launch import run_folder
from prm_jax.launch.config import Count, Seed, expect
from prm_jax.launch.mesh import MeshConfig
from prm_jax.scoring import ModelScorer, ScoringStats
from prm_jax.stats import bootstrap_interval

SPREAD = {
    "median": np.median,
    "lowest": np.min,
    "highest": np.max,
    "mean": np.mean,
    "sd": lambda x: np.std(x, ddof=1),
}


@dataclasses.dataclass(frozen=True)
class ScoreBatch:
    rows: Count
    tokens: Count | None


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """The keys that every task has. conf/evaluate.yaml says what each means, conf/task/NAME.yaml those of a task."""

    checkpoint: str | list | None
    resume: str | None
    reference: str | None
    which: Literal["best", "latest"]
    dtype: str
    format: Format
    batch: ScoreBatch
    mesh: MeshConfig
    seed: Seed


@dataclasses.dataclass(frozen=True)
class Setup:
    """The inputs of one evaluation, and its folder."""

    cfg: EvaluateConfig
    checkpoints: list[str]  # folders, hub names or BUILT_IN; empty where stored scores are enough
    data: DictConfig  # the data section of the configuration
    folder: Path
    files: tuple[str, ...] = ()  # the files that the evaluation reads

    @property
    def runs(self) -> list[str]:
        """Those checkpoints, and members of ensembles, that are runs of ours."""
        return [member for name in self.checkpoints for member in members_of(name) if is_run(member)]


def check_data(cfg: DictConfig):
    """InputError where files are named but not the kind of their rows, which benchmarks know."""
    data = cfg.data
    if data.name == "of_run" and (data.path or data.hub) and cfg.task not in ("processbench", "prmbench"):
        raise InputError("data.path: say what the rows are, data=NAME, such as data=prm800k data.path=FILE")


def check_inputs(folder: Path, cfg: DictConfig) -> tuple[str, ...]:
    """The files that the keys of an evaluation name; InputError if it began with others."""
    names = [cfg.get(key) for key in ("input", "scores_file")] + [cfg.data.get("path")]
    files = [str(x) for name in names for x in (name if OmegaConf.is_list(name) else [name]) if x is not None]
    hashes = {file: file_fingerprint(file) for file in files if Path(file).is_file()}
    check_unchanged(folder, hashes)
    return tuple(hashes)


def check_unchanged(folder: Path, hashes: dict[str, str]):
    """Adds hashes of what an evaluation reads to inputs.json; InputError if it has others there."""
    path = folder / "inputs.json"
    before = run_folder.read_json(path) if path.exists() else {}
    if changed := ", ".join(file for file, x in hashes.items() if before.get(file, x) != x):
        raise InputError(f"resume: {changed}: is not what the evaluation began with; start a new one instead")
    run_folder.write_json(path, before | hashes)


def checkpoints(cfg: EvaluateConfig, needed: bool) -> list[str]:
    """The verifiers of the key `checkpoint`, a sweep's runs for its folder; if it is null and needed, the newest."""
    if cfg.checkpoint is None:
        return [str(run_folder.newest_run())] if needed else []
    names = list(map(str, cfg.checkpoint)) if isinstance(cfg.checkpoint, list) else [cfg.checkpoint]
    if not names:
        raise InputError("checkpoint: got an empty list, expected at least one")
    groups = [run_folder.runs_of(Path(name)) if needs_folder(name) else [name] for name in names]
    verifiers = [str(name) for group in groups for name in group]
    for name in verifiers:
        check_there(name, cfg.which)
    return verifiers


def check_there(name: str, which: str):
    """Raises InputError where a verifier's folder, or a member's, is missing, before another one works for an hour."""
    for x in filter(needs_folder, members_of(name)):
        if is_run(x):
            run_folder.run_config(Path(x))
            if not any((Path(x) / "checkpoints" / which).glob("[0-9]*")):
                raise InputError(
                    f"{x}: stopped before its first checkpoint; resume={x} of its command continues it"
                )
        elif not any((hf.locate(x) / file).exists() for file in ("config.json", "adapter_config.json")):
            raise InputError(
                f"{x}: is neither a run with checkpoints nor a Hugging Face folder with a config.json"
            )


def open_scorer(setup: Setup, name: str):
    """The Scorer of one checkpoint argument."""
    cfg = setup.cfg
    options = cfg.which, cfg.format, cfg.dtype, cfg.batch.rows, cfg.batch.tokens, cfg.reference, cfg.seed
    run = next(iter(setup.runs), None)
    by_run = setup.data.name == "of_run" and run and not setup.files
    data = (
        run_folder.run_config(Path(run)).data if by_run else setup.data
    )  # an embedded task has a checker, a policy
    names = {part.name for part in (data.get("sources") or {"": data}).values()}
    scorer = open_verifier(
        name, OpenOptions(*options, data, names.pop() if len(names) == 1 else None, setup.files)
    )
    file = (
        setup.folder / "verifiers.json"
    )  # whose scores are kept; a run that went on has another step in its name
    before = {name: scorer.name} | (run_folder.read_json(file) if file.exists() else {})
    expect(before[name] == scorer.name, f"resume: {name}", scorer.name, f"{before[name]}; start a new one")
    run_folder.write_json(file, before)
    return scorer


def one_scorer(setup: Setup):
    expect(
        len(setup.checkpoints) == 1, "checkpoint", setup.checkpoints, "one verifier: this task takes no more"
    )
    return open_scorer(setup, setup.checkpoints[0])


def bounds_of(scorer) -> list:
    """The Scorers of the lower and of the upper bound of a step's value, as log-odds; none of a verifier whose head has
    no bounds."""
    head = HEADS.get(scorer.model.cfg.head) if isinstance(scorer, ModelScorer) else None
    outputs = head and head.bounds or ()
    return [dataclasses.replace(scorer, output=i, stats=ScoringStats()) for i in outputs]


def describe(scorer) -> dict:
    kind = {"label_kind": scorer.label_kind, "objective": scorer.objective, "scores_unit": scorer.unit}
    return {"verifier": scorer.name, **kind, **getattr(scorer, "about", {})}


def is_run(name: str) -> bool:
    return (Path(name) / "checkpoints").is_dir()


def data_of(setup: Setup, name: str) -> tuple[DataConfig, int]:
    """(the data to evaluate a verifier on, the seed of its run): the data of the key `data`, or the run's own."""
    run = next((run_folder.run_config(Path(member)) for member in members_of(name) if is_run(member)), None)
    if setup.data.name != "of_run":
        return data_config(setup.data), run.seed if run else 0
    if run is None:
        raise InputError(f"data: {name} is no run of ours, so name the data set to evaluate on: data=NAME")
    return data_config(run.data), run.seed


def record_of(name: str, file: str, **kinds) -> dict:
    """The content of one of a run's JSON files; empty for other verifiers."""
    path = Path(name) / file
    return run_folder.read_json(path, **kinds) if path.exists() else {}


def trained(name: str) -> dict:
    """How a run was made: its seed and seconds, its settings, and the overrides of its command line."""
    summary, overrides = record_of(name, "summary.json"), run_folder.overrides_of(name)
    settings = run_folder.settings(name) if is_run(name) else {"verifier": name}
    times = {"train_seed": summary.get("seed"), "train_seconds": summary.get("seconds")}
    return {**times, "settings": settings, "overrides": overrides}


def trained_on(name: str, data: Data, test) -> int:
    """How many distinct problems of `test` a run was trained on; prints which files of its data have changed since."""
    record = record_of(name, "data.json", files=dict, problems=list)
    for file, fingerprint in data.fingerprints.items():
        if record.get("files", {}).get(file, fingerprint) != fingerprint:
            print(f"note        {file} has changed since {name} was trained")
    return count_known(test, record.get("problems", ()))


def new_name(name: str | None, scorer, taken: set[str]) -> str:
    """The name of a verifier's scores in a pool: `name`, or the first free of prm, prm_1, ... (checker, checker_1)."""
    is_free = name is None or not (name in taken or "/" in name)
    expect(is_free, "scores_name", name, "a name without / that the pool does not have")
    built_in = BUILT_IN.fullmatch(scorer.name) or ENSEMBLE.fullmatch(scorer.name)
    first = (built_in[1] or built_in[0].partition(":")[0]) if built_in else scorer.objective
    names = itertools.chain([first], (f"{first}_{i}" for i in itertools.count(1)))
    return name or next(free for free in names if free not in taken)


def interval_of(statistic, problems, seed: int, *arrays):
    """95 % bootstrap interval over problems of statistic(*arrays), whose arrays have an entry a row."""
    return bootstrap_interval(lambda rows: statistic(*(x[rows] for x in arrays)), problems, seed=seed)


def plus_minus(interval) -> str:
    return "[{:.4f}, {:.4f}]".format(*interval) if np.isfinite(interval).all() else f"{'no interval':<16}"


def spread(values: Sequence[float]) -> dict[str, float]:
    """SPREAD of one number over runs that differ in their seed alone; sd: standard deviation of the sample."""
    return {name: float(f(values)) for name, f in SPREAD.items()}


def show_spread(title: str, rows: dict[str, dict[str, float]]):
    print(f"over seeds  {title:<26}" + "".join(f"{name:>10}" for name in SPREAD))
    for name, x in rows.items():
        print(f"  {name:<36}" + "".join(f"{x[key]:>10.4f}" for key in SPREAD))


def write_report(path: Path, task, results: dict):
    """Writes the tables that a task shows on the screen and its further ones (`detail`) as text."""
    with path.open("w") as report, contextlib.redirect_stdout(report):
        task.show(results)
        getattr(task, "detail", lambda _: None)(results)
