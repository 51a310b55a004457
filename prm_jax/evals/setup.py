"""What every evaluation is given: its keys, its verifiers by name, its folder, the files that it reads."""

import dataclasses
from pathlib import Path
from typing import Literal

from omegaconf import DictConfig, OmegaConf

from prm_jax import InputError
from prm_jax.data.rows import file_fingerprint
from prm_jax.formats import Format
from prm_jax.launch.config import Count, Seed
from prm_jax.launch.devices import MeshConfig
from prm_jax.launch.files import read_json, write_json

PATHS = ("input", "data.path")  # keys of files that an evaluation reads


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
    figures: bool | int


@dataclasses.dataclass(frozen=True)
class Setup:
    """The inputs of one evaluation, and its folder."""

    cfg: EvaluateConfig
    checkpoints: list[str]  # empty where stored scores are enough
    data: DictConfig  # the data section of the configuration
    folder: Path
    files: tuple[str, ...] = ()  # the files that the evaluation reads


def check_inputs(folder: Path, cfg: DictConfig) -> tuple[str, ...]:
    """The files that the keys of an evaluation name; InputError if it began with others."""
    data = cfg.data
    if data.name == "of_run" and (data.path or data.hub):
        raise InputError("data.path: say what the rows are, data=NAME, such as data=prm800k data.path=FILE")
    files = []
    for key in PATHS:
        value = OmegaConf.select(cfg, key)
        names = value if OmegaConf.is_list(value) else [value]
        files += [str(name) for name in names if name is not None and Path(name).is_file()]
    check_unchanged(folder, {file: file_fingerprint(file) for file in files})
    return tuple(files)


def check_unchanged(folder: Path, hashes: dict[str, str]):
    """Adds hashes of what an evaluation reads to inputs.json; InputError if it has others there."""
    path = folder / "inputs.json"
    before = read_json(path) if path.exists() else {}
    if changed := ", ".join(file for file, x in hashes.items() if before.get(file, x) != x):
        raise InputError(f"resume: {changed}: has changed since this evaluation began; start a new one")
    write_json(path, before | hashes)
