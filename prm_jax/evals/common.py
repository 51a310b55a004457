"""What the tasks share: the verifiers that are asked, the data they are asked about, and the files that keep their scores."""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from omegaconf import DictConfig, OmegaConf

from prm_jax import InputError
from prm_jax.checkpoints import hf
from prm_jax.checkpoints.verifiers import BUILT_IN, OpenOptions, needs_folder, open_verifier
from prm_jax.data.formats import Format
from prm_jax.data.rows import file_fingerprint
from prm_jax.data.splits import Data, DataConfig, count_known, data_config
from prm_jax.launch import run_folder
from prm_jax.launch.config import Count, Seed
from prm_jax.launch.mesh import MeshConfig
from prm_jax.scoring import score_into, stored_scores

BENCHMARKS = ("processbench", "prmbench")


@dataclasses.dataclass(frozen=True)
class ScoreBatch:
    rows: Count
    tokens: Count | None


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """The keys that every task has; conf/evaluate.yaml says what each means."""

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
    """What one evaluation works with."""

    cfg: EvaluateConfig
    checkpoints: list[str]  # folders, hub names or BUILT_IN; empty where stored scores are enough
    data: DictConfig  # the data section as it was given
    folder: Path
    files: tuple[str, ...] = ()  # that it reads


def check_data(cfg: DictConfig):
    """InputError where files are named but not what their rows are; the benchmarks know theirs."""
    data = cfg.data
    if data.name == "of_run" and (data.path or data.hub) and cfg.task not in BENCHMARKS:
        raise InputError("data.path: say what the rows are, data=NAME, such as data=prm800k data.path=FILE")


def check_inputs(path: Path, cfg: DictConfig) -> tuple[str, ...]:
    """Writes the hashes of the files that an evaluation reads, which it returns; InputError where one that is gone on with
    began with others."""
    named = [cfg.get(key) for key in ("input", "pool", "questions", "scores_file")] + [cfg.data.get("path")]
    files = [str(x) for name in named for x in (name if OmegaConf.is_list(name) else [name]) if x is not None]
    found = {file: file_fingerprint(file) for file in files if Path(file).is_file()}
    before = run_folder.read_json(path) if path.exists() else found
    if changed := [file for file, x in found.items() if before.get(file) != x]:
        raise InputError(
            f"resume: {', '.join(changed)}: is not what the evaluation began with; start a new one instead"
        )
    run_folder.write_json(path, found)
    return tuple(found)


def checkpoints(cfg: EvaluateConfig, needed: bool) -> list[str]:
    """The verifiers that are named, a sweep's finished runs in place of its folder; if none is named and one is needed, the newest run."""
    if cfg.checkpoint is None:
        return [str(run_folder.newest_run())] if needed else []
    named = cfg.checkpoint if isinstance(cfg.checkpoint, list) else [cfg.checkpoint]
    if not named:
        raise InputError("checkpoint: got an empty list, expected at least one")
    found = [
        str(run) for name in named for run in (run_folder.runs_of(Path(name)) if needs_folder(str(name)) else [name])
    ]
    for name in filter(needs_folder, found):
        check_there(name, cfg.which)
    return found


def check_there(name: str, which: str):
    """InputError where a verifier is not there: said before another one has worked for an hour."""
    if is_run(name):
        run_folder.run_config(Path(name))
        if not any((Path(name) / "checkpoints" / which).glob("[0-9]*")):
            raise InputError(
                f"{name}: stopped before its first checkpoint; python train.py resume={name} goes on with it"
            )
    elif not any((hf.locate(name) / file).exists() for file in ("config.json", "adapter_config.json")):
        raise InputError(f"{name}: is neither a run with checkpoints nor a Hugging Face folder with a config.json")


def open_scorer(setup: Setup, name: str):
    """The Scorer of one checkpoint argument."""
    cfg = setup.cfg
    how = cfg.which, cfg.format, cfg.dtype, *vars(cfg.batch).values(), cfg.reference, cfg.seed, setup.data
    return open_verifier(name, OpenOptions(*how, exact_task(setup), setup.files))


def exact_task(setup: Setup) -> str | None:
    """What `data`, or where no file is read the data of the first run, is called: an embedded task whose checker is asked."""
    run = next(filter(is_run, setup.checkpoints), None)
    own = setup.data.name == "of_run" and run and not setup.files
    data = run_folder.run_config(Path(run)).data if own else setup.data
    names = {part.name for part in (data.get("sources") or {"": data}).values()}
    return names.pop() if len(names) == 1 else None


def one_scorer(setup: Setup, task: str):
    if len(setup.checkpoints) > 1:
        raise InputError(f"checkpoint: task={task} takes one verifier, got {len(setup.checkpoints)}")
    return open_scorer(setup, setup.checkpoints[0])


def scored(path: Path, scorer, rows: Iterable, total: int) -> Iterator[np.ndarray]:
    """Log-odds of the steps of (id, problem, steps) rows, one after another, by way of a file that a resumed evaluation keeps."""
    score_into(path, scorer, rows, total)
    return stored_scores(path)


def describe(scorer) -> dict:
    kind = {"label_kind": scorer.label_kind, "objective": scorer.objective}
    return {"verifier": scorer.name, **kind, "scores_unit": scorer.unit} | getattr(scorer, "about", {})


def is_run(name: str) -> bool:
    return (Path(name) / "checkpoints").is_dir()


def data_of(setup: Setup, name: str) -> tuple[DataConfig, int]:
    """(the data to evaluate a verifier on, the seed of its run): the data that is named, or the run's own."""
    own = run_folder.run_config(Path(name)) if is_run(name) else None
    if setup.data.name != "of_run":
        return data_config(setup.data), own.seed if own else 0
    if own is None:
        raise InputError(f"data: {name} is no run of ours, so name the data set to evaluate on: data=NAME")
    return data_config(own.data), own.seed


def record_of(name: str, file: str) -> dict:
    """What a run of ours keeps in one of its JSON files; empty for other verifiers, which do not say."""
    path = Path(name) / file
    return run_folder.read_json(path) if path.exists() else {}


def trained(name: str) -> dict:
    """How a run of ours was made: its seed and seconds, its settings, and what its command line said of them."""
    summary, settings = (
        record_of(name, "summary.json"),
        run_folder.settings(name) if is_run(name) else {"verifier": name},
    )
    about = {"train_seed": summary.get("seed"), "train_seconds": summary.get("seconds")}
    return about | {"settings": settings, "overrides": run_folder.overrides_of(name)}


def trained_on(name: str, data: Data, test) -> int:
    """How many distinct problems of `test` a run of ours was trained on. Says which files of its data have changed since."""
    record = record_of(name, "data.json")
    for file, found in data.fingerprints.items():
        if record.get("files", {}).get(file, found) != found:
            print(f"note        {file} has changed since {name} was trained")
    return count_known(test, record.get("problems", ()))


def new_name(asked: str | None, scorer, taken: set[str]) -> str:
    """The name under which a verifier's scores go into a pool: the one asked for, or prm, prm_1, ... as is free, of what is built
    in its own, such as checker."""
    if asked is not None and (asked in taken or "/" in asked):
        raise InputError(f"scores_name: got {asked!r}, expected a name without / that the pool does not have")
    built_in = BUILT_IN.fullmatch(scorer.name)
    first = (built_in[1] or built_in[0]) if built_in else scorer.objective
    names = itertools.chain([first], (f"{first}_{i}" for i in itertools.count(1)))
    return asked or next(name for name in names if name not in taken)


def plus_minus(interval) -> str:
    return "[{:.4f}, {:.4f}]".format(*interval) if np.isfinite(interval).all() else f"{'no interval':<16}"


def write_report(path: Path, task, results: dict):
    """Writes as text what a task shows on the screen and, where it has them, its further tables (`detail`)."""
    with path.open("w") as report, contextlib.redirect_stdout(report):
        task.show(results)
        getattr(task, "detail", lambda _: None)(results)
