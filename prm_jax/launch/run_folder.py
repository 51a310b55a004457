"""Folders of runs and evaluations: create_run_folder a new one, find and resume an old one, write results and logs into them."""

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from prm_jax import InputError
from prm_jax.launch.config import CONF, leaves


def output_dir() -> Path:
    """The folder of this run or evaluation, as Hydra made it."""
    return Path(HydraConfig.get().runtime.output_dir)


def create_run_folder(folder: Path, cfg: DictConfig):
    """Makes an output folder this command's own, and records its configuration there, as Hydra lays it out.

    Hydra's own record is switched off: it is written before the command could refuse a folder that holds a run already.
    """
    try:
        (folder / ".hydra").mkdir()
    except FileExistsError:
        hint = f"; resume={folder} goes on with it" if (folder / "checkpoints").is_dir() else ""
        raise InputError(f"hydra.run.dir: {folder} already holds a run or an evaluation{hint}") from None
    OmegaConf.save(cfg, folder / ".hydra" / "config.yaml")
    OmegaConf.save(OmegaConf.create(list(HydraConfig.get().overrides.task)), folder / ".hydra" / "overrides.yaml")


def newest_run(root: str = "runs") -> Path:
    """The training run that finished last under `root`, language models left aside: they cannot score."""
    summaries = sorted(Path(root).glob("**/summary.json"), key=lambda path: path.stat().st_mtime)
    finished = [path.parent for path in summaries if json.loads(path.read_text()).get("objective") in ("prm", "orm")]
    if not finished:
        where = Path(root).resolve()
        raise InputError(f"checkpoint: no finished run under {where}; run `python train.py` first, or name one")
    return finished[-1].resolve()


def runs_of(folder: Path) -> list[Path]:
    """The runs of a checkpoint argument: the finished numbered runs of a sweep folder, or the one folder that it is."""
    numbered = sorted((p for p in folder.glob("*") if p.name.isdigit()), key=lambda p: int(p.name))
    if (folder / "checkpoints").is_dir() or not numbered:
        return [folder]
    finished = [p for p in numbered if (p / "summary.json").exists()]
    if not finished:
        raise InputError(f"checkpoint: {folder} holds {len(numbered)} runs of a sweep, none of them finished")
    if len(finished) < len(numbered):
        print(f"left out    {len(numbered) - len(finished)} of {len(numbered)} runs of the sweep: not finished")
    return finished


def resumed(cfg: DictConfig, harmless: tuple[str, ...]) -> tuple[Path, DictConfig]:
    """The run folder named by cfg.resume and the configuration to go on with: the stored one.

    Keys given on this command line must agree with it, but for the `harmless` ones, on which no result depends.
    """
    run = Path(str(cfg.resume)).resolve()
    if not (run / ".hydra" / "config.yaml").exists():
        raise InputError(f"resume: {run} is no run folder (it has no .hydra/config.yaml)")
    stored = OmegaConf.load(run / ".hydra" / "config.yaml")
    old, new, asked = dict(leaves(stored)), dict(leaves(cfg)), asked_keys()
    if "experiment" in asked:
        raise InputError("resume: goes on with the run's own configuration, expected no experiment= beside it")
    keys = [key for key in new.keys() | old.keys() if any(key == a or key.startswith(f"{a}.") for a in asked)]
    changed = sorted(key for key in keys if new.get(key) != old.get(key))
    refused = [f"{key} (was {old.get(key)}, asked {new.get(key)})" for key in changed if key not in harmless]
    if refused:
        raise InputError(f"resume: {', '.join(refused)}: would change the result; start a new run instead")
    for key in changed:
        OmegaConf.update(stored, key, new[key])
    return run, stored


def of_resumed(cfg: DictConfig, key: str):
    """A key that is needed before `resumed`: that of the run which goes on, if there is one and the command line says nothing."""
    stored = Path(str(cfg.resume)).resolve() / ".hydra" / "config.yaml"
    if cfg.resume is None or key in asked_keys() or not stored.exists():
        return cfg[key]
    return OmegaConf.load(stored).get(key, cfg[key])


def asked_keys() -> list[str]:
    """What this command line overrides."""
    return [override.split("=")[0].lstrip("+~") for override in HydraConfig.get().overrides.task]


def write_json(path: Path, value):
    """Writes a JSON file at once or not at all; a number that is undefined (NaN, infinite) is written as null."""

    def defined(x):
        if isinstance(x, dict):
            return {name: defined(y) for name, y in x.items()}
        if isinstance(x, list | tuple):
            return [defined(y) for y in x]
        return None if isinstance(x, float) and not math.isfinite(x) else x

    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(defined(value), indent=2, allow_nan=False) + "\n")
    temporary.replace(path)


def versions() -> dict[str, str]:
    """What produced a result: package versions and the commit of this repository (`+` = with uncommitted changes)."""
    from importlib import metadata

    packages = ("jax", "flax", "optax", "orbax-checkpoint", "transformers", "grain")

    def git(*args):  # an archive without .git has no commit, which is no error
        return subprocess.run(["git", *args], cwd=CONF, capture_output=True, text=True, check=False).stdout.strip()

    commit = git("rev-parse", "HEAD")
    dirty = "+" if commit and git("status", "--porcelain", "--untracked-files=no") else ""
    python = ".".join(map(str, sys.version_info[:3]))
    return {"python": python, **{p: metadata.version(p) for p in packages}, "commit": commit + dirty or "unknown"}


class MetricsLog:
    """metrics.jsonl, one JSON object a line, each step once: lines after the step that a run resumes from are cut off."""

    def __init__(self, run: Path, first: int, tensorboard: bool):
        self.board = None
        if tensorboard:
            try:
                from tensorboardX import SummaryWriter
            except ImportError as error:
                raise InputError(
                    "tensorboard: needs a package that is not installed: pip install tensorboardX"
                ) from error
            self.board = SummaryWriter(str(run / "tensorboard"), purge_step=first + 1)
        path = run / "metrics.jsonl"
        kept = []
        if path.exists():
            lines = path.read_text().splitlines()
            kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= first]
        path.write_text("".join(line + "\n" for line in kept))
        self.file = path.open("a")

    def write(self, record: dict):
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()
        if self.board is not None:
            for name in record.keys() - {"step"}:
                self.board.add_scalar(name, record[name], record["step"])


class StopSignal:
    """Remembers the first SIGTERM or SIGINT, so that the loop can save and leave; a second one acts at once."""

    received: signal.Signals | None = None

    def __enter__(self):
        self.before = {s: signal.signal(s, self.receive) for s in (signal.SIGTERM, signal.SIGINT)}
        return self

    def receive(self, number, frame):
        self.received = signal.Signals(number)
        self.__exit__()

    def __exit__(self, *error):
        for s, handler in self.before.items():
            signal.signal(s, handler)
