"""Creates, finds and resumes the folders of runs and evaluations; says how a run was made, and in which
settings runs differ."""

import contextlib
import platform
import re
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import jax
from flax.traverse_util import flatten_dict
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from prm_jax import InputError, __version__
from prm_jax.launch import hosts
from prm_jax.launch.config import CONF, PACKAGE, ROOT, expect
from prm_jax.launch.devices import set_cpu_devices
from prm_jax.launch.files import read_json, read_yaml, replaced

# What a resumed run may have otherwise: it changes no number, or (the last two) the order of sums alone.
FREE = ("resume", "log_every", "checkpoint_every", "wandb", "distributed", "server", "cpu_devices", "mesh")
OVERRIDES = ".hydra/overrides.yaml"
# Files of which one lies in the folder of a command that has begun its work.
BEGUN = ("*.jsonl", "*.jsonl.gz", "checkpoints/*/*", "summary.json", "results.json")


def output_dir() -> Path:
    """The folder of this run or evaluation, as Hydra made it."""
    return Path(HydraConfig.get().runtime.output_dir)


def by_key(overrides: Iterable[str]) -> dict[str, str]:
    """{key: the last override of it}."""
    return {word.split("=")[0].lstrip("+~"): word for word in overrides}


def section(override: str) -> str:
    """The first part of an override's key: mesh of `mesh.fsdp=2`."""
    return re.split(r"[.=]", override.lstrip("+~"))[0]


def start_command(cfg: DictConfig) -> tuple[Path, Path, DictConfig]:
    """(folder, the one that this process writes, configuration) of a command, whose `resume` names the folder
    if it is resumed; sets up its devices and processes."""
    folder = output_dir()
    if HydraConfig.get().mode == RunMode.MULTIRUN and (folder / OVERRIDES).exists():
        cfg.resume = str(folder)  # a job of a sweep that is started again
    if cfg.resume is not None:
        folder, cfg = resumed(cfg)
    set_cpu_devices(cfg.cpu_devices)
    hosts.init_distributed(cfg)
    if jax.process_count() > 1 and cfg.resume is None:  # all use the folder of process 0
        made_by_hydra = folder.resolve()
        folder = Path(hosts.broadcast(str(made_by_hydra).encode()).decode())
        if folder != made_by_hydra:
            made_by_hydra.rmdir()
    return folder, hosts.writable_folder(folder), cfg


def resumed(cfg: DictConfig) -> tuple[Path, DictConfig]:
    """(folder, stored configuration) of the run that cfg.resume names. The command line may change FREE keys,
    make `steps` more and repeat others. Removes the folder that Hydra made."""
    run = Path(str(cfg.resume)).resolve()
    if run != output_dir().resolve():
        output_dir().rmdir()
    stored = run_config(run, "resume: ")
    keys = ["task"] if "task" in cfg else cfg  # an evaluation has those of its task
    lacks = [key for key in keys if key not in stored]
    expect(not lacks, "resume", str(run), f"a folder of this command; it has no {', '.join(lacks)}")
    before = by_key(overrides_of(run))
    words = by_key(HydraConfig.get().overrides.task)
    for key, word in words.items():
        value = OmegaConf.select(cfg, key)
        is_longer = key == "steps" and isinstance(value, int) and value > stored.steps
        if section(word) in FREE or is_longer:
            OmegaConf.update(stored, key, value)
        else:
            expect(word == before.get(key), f"resume: {key}", word, "what the run has, or a new run")
    if run == output_dir().resolve():  # a job of a sweep has all its settings on the command line
        gone = [key for key in before if key not in words and section(key) not in FREE]
        job = " ".join(before.values())
        expect(not gone, "hydra.sweep.dir", str(run), f"another folder: this one holds the job {job}")
    stored.resume = cfg.resume
    return run, stored


def claim_folder(folder: Path, cfg: DictConfig):
    """Records the configuration in a folder, which is free unless a run is resumed."""
    resumes = cfg.get("resume") is not None
    if not resumes and any(path for pattern in BEGUN for path in folder.glob(pattern)):
        hint = f"resume={folder} continues it" if "resume" in cfg else "choose another folder"
        raise InputError(f"hydra.run.dir: {folder} already holds a run or an evaluation; {hint}")
    (folder / ".hydra").mkdir(exist_ok=True)
    before = overrides_of(folder) if resumes else []
    words = [*by_key([*before, *HydraConfig.get().overrides.task]).values()]
    for name, value in {"config": cfg, "overrides": OmegaConf.create(words)}.items():
        with replaced(folder / f".hydra/{name}.yaml") as temporary:
            OmegaConf.save(value, temporary)
    (folder / "summary.json").unlink(missing_ok=True)  # of a run that is made longer


def run_config(folder: Path, key: str = "") -> DictConfig:
    """The stored configuration of a run or an evaluation; an error begins with `key`."""
    path = folder / ".hydra/config.yaml"
    if not path.exists():
        raise InputError(f"{key}{folder}: has no .hydra/config.yaml, expected a run's folder")
    return read_yaml(path)


def overrides_of(folder: str | Path) -> list[str]:
    """The command-line overrides of a run or an evaluation; [] for other folders."""
    path = Path(folder) / OVERRIDES
    return list(map(str, read_yaml(path))) if path.exists() else []


def versions() -> dict[str, str]:
    """Versions of Python and packages, and the commit of this clone (`+`: with uncommitted changes)."""
    git = ["git", "describe", "--always", "--abbrev=10", "--exclude=*", "--dirty=+"]
    commit = ""
    if ROOT == PACKAGE.parent:  # else installed, perhaps in somebody else's repository
        with contextlib.suppress(FileNotFoundError):  # a machine without git
            commit = subprocess.run(git, cwd=CONF, capture_output=True, text=True, check=False).stdout.strip()
    packages = {name: metadata.version(name) for name in ("jax", "flax", "transformers")}
    ours = {"prm_jax": __version__, "python": platform.python_version()}
    return ours | packages | {"commit": commit or "unknown"}


def made_by(folder: Path) -> dict:
    """What the record of a run or an evaluation says of how it was made."""
    return {"overrides": overrides_of(folder), "versions": versions()}


# Runs, and what differs between them


def newest_run() -> Path:
    """The training run under runs/ that finished last, language models aside, which could not score."""
    summaries = sorted(Path("runs").glob("**/summary.json"), key=lambda path: path.stat().st_mtime)
    finished = [path.parent for path in summaries if read_json(path).get("objective") not in (None, "lm")]
    if not finished:
        raise InputError(f"checkpoint: no finished run in {Path('runs').resolve()}; name one or train first")
    return finished[-1].resolve()


def runs_of(folder: Path) -> list[Path]:
    """The runs of a checkpoint argument: the finished ones of a sweep's folder, or the folder itself."""
    if (folder / "checkpoints").is_dir():
        return [folder]
    runs = [path.parent for path in folder.glob("*/.hydra")]
    runs.sort(key=lambda run: run.name.zfill(9))  # 2 before 10
    if not runs:
        return [folder]
    finished = [run for run in runs if (run / "summary.json").exists()]
    expect(finished, "checkpoint", str(folder), "a sweep with a run that is finished")
    if len(finished) < len(runs):
        print(f"left out    {len(runs) - len(finished)} runs of the sweep that are not finished")
    return finished


def settings(folder: str | Path) -> dict:
    """{dotted key: value} of a run's configuration, without the seed and what changes no result."""
    nested = OmegaConf.to_container(run_config(Path(folder)), resolve=True)
    pairs = ((".".join(map(str, path)), value) for path, value in flatten_dict(nested).items())
    return {key: value for key, value in pairs if section(key) not in ("seed", *FREE)}
