"""Folders of runs and evaluations: make a new one, find and resume an old one, and write results into them."""

import ast
import contextlib
import fcntl
import hashlib
import json
import math
import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from prm_jax import InputError
from prm_jax.launch.config import CONF, expect, flatten


def output_dir() -> Path:
    """The folder of this run or evaluation, as Hydra made it."""
    return Path(HydraConfig.get().runtime.output_dir)


def create_run_folder(folder: Path, cfg: DictConfig):
    """Makes an output folder this command's own, and records its configuration there, as Hydra lays it out.

    Hydra's own record is switched off: it is written before the command could refuse a folder that holds a run already.
    The record appears whole or not at all, so a kill flatten a folder that is either free or a run.
    """
    record, temporary = folder / ".hydra", folder / f".hydra.{os.getpid()}"
    temporary.mkdir(exist_ok=True)
    OmegaConf.save(cfg, temporary / "config.yaml")
    OmegaConf.save(OmegaConf.create(list(HydraConfig.get().overrides.task)), temporary / "overrides.yaml")
    try:
        os.rename(temporary, record)  # onto an empty folder, which a kill of an earlier version could leave, too
    except OSError:
        shutil.rmtree(temporary)
        hint = f"resume={folder} goes on with one that was stopped"
        raise InputError(f"hydra.run.dir: {folder} already holds a run or an evaluation; {hint}") from None


@contextlib.contextmanager
def locked_run_folder(folder: Path, cfg: DictConfig, resumes: bool = False, worth: str = "*.jsonl*"):
    """An output folder as this process's own: a new one records its configuration, an old one is gone on with.

    A command that fails before there is anything `worth` going on with, files of this pattern that hold something, flatten the
    folder as it was: the corrected command finds it free. The lock goes with its process, however that ends.
    """
    with contextlib.ExitStack() as stack:
        before = set(folder.iterdir())
        if not resumes or not (folder / ".hydra").is_dir():  # what is resumed lies with process 0 alone
            create_run_folder(folder, cfg)
        lock = stack.enter_context((folder / ".hydra" / "lock").open("a+"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise InputError(f"resume: {folder}: {lock.read().strip()} works in it; stop that one first") from None
        lock.truncate(0)
        print(f"process {os.getpid()} of {socket.gethostname()}", file=lock, flush=True)
        try:
            yield
        except BaseException:
            if not resumes and not any(path.stat().st_size for path in folder.glob(worth)):
                for path in set(folder.iterdir()) - before | {folder / ".hydra"}:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            raise


def read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error})") from None


def newest_run() -> Path:
    """The training run that finished last under runs/, language models left aside: they cannot score."""
    summaries = sorted(Path("runs").glob("**/summary.json"), key=lambda path: path.stat().st_mtime)
    finished = [path.parent for path in summaries if read_json(path).get("objective") not in (None, "lm")]
    if not finished:
        hint = "run `python train.py` first, or name one"
        raise InputError(f"checkpoint: no finished run under {Path('runs').resolve()}; {hint}")
    return finished[-1].resolve()


def runs_of(folder: Path) -> list[Path]:
    """The runs of a checkpoint argument: the finished numbered runs of a sweep folder, or the one folder that it is."""
    numbered = sorted((p for p in folder.glob("*") if p.name.isdigit()), key=lambda p: int(p.name))
    if (folder / "checkpoints").is_dir() or not numbered:
        return [folder]
    finished = [p for p in numbered if (p / "summary.json").exists()]
    missing = [p.name for p in numbered if p not in finished]
    if not finished:
        raise InputError(f"checkpoint: {folder} holds {len(numbered)} runs of a sweep, none of them finished")
    if missing:
        told = f"not finished: {', '.join(missing)}"
        print(f"left out    {len(missing)} of {len(numbered)} runs of the sweep: {told}")
    return finished


def run_config(folder: Path) -> DictConfig:
    """The configuration that a run or an evaluation was made with."""
    path = folder / ".hydra" / "config.yaml"
    if not path.exists():
        raise InputError(f"{folder} is no run folder (it has no .hydra/config.yaml)")
    try:
        stored = OmegaConf.load(path)
    except (yaml.YAMLError, OmegaConfBaseException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from None
    if not OmegaConf.is_dict(stored) or not stored:
        raise InputError(f"{path}: holds no configuration, expected that of a run")
    return stored


# Keys and sections on which no number of a finished run or evaluation depends.
KEYS_WITHOUT_EFFECT = ["resume", "log_every", "checkpoint_every", "tensorboard", "wandb", "distributed", "server"]
# Those that say how sums are cut: a run may be resumed with others, but as rounding grows it ends elsewhere.
DEVICES = ["cpu_devices", "mesh"]


def settings(folder: str | Path) -> dict:
    """What a run's configuration sets, {dotted key: value}; the seed is left aside, so that runs which share all of it are one setting."""
    found = flatten(run_config(Path(folder)))
    return {key: value for key, value in found if key.split(".")[0] not in ("seed", *KEYS_WITHOUT_EFFECT, *DEVICES)}


def group_by_settings(told: list[dict]) -> list[tuple[dict, list[int]]]:
    """[(its own of what settings do not share, the indices of those that are it)] of each setting, in the order of the first.

    Only settings that have a key can differ in it: runs made before there was a key lack it. `verifier`, of what is no run of
    ours, always tells apart.
    """
    values = lambda key: {repr(settings[key]) for settings in told if key in settings}
    varied = sorted(key for key in {k for s in told for k in s} if key == "verifier" or len(values(key)) > 1)
    groups = {}
    for i, settings in enumerate(told):
        own = {key: settings[key] for key in varied if key in settings}
        groups.setdefault(repr(own), (own, []))[1].append(i)
    return list(groups.values())


def overrides_of(folder: str | Path) -> list[str]:
    """What the command line of a run or an evaluation said; empty where it is no folder of ours."""
    path = Path(folder) / ".hydra" / "overrides.yaml"
    return list(OmegaConf.load(path)) if path.exists() else []


def resumed(cfg: DictConfig) -> tuple[Path, DictConfig]:
    """The run folder named by cfg.resume and the configuration to go on with: the stored one.

    Keys given on this command line must agree with it, but for KEYS_WITHOUT_EFFECT, DEVICES, and `steps`, which may be more: the
    run is then made longer, and its configuration says what length it had. The folder that Hydra made goes.
    """
    with contextlib.suppress(OSError):  # not empty, or another process was first
        output_dir().rmdir()
    run = Path(str(cfg.resume)).resolve()
    try:
        stored = run_config(run)
    except InputError as error:
        raise InputError(f"resume: {error}") from None
    old, new, overrides = dict(flatten(stored)), dict(flatten(cfg)), overridden_keys()
    if "experiment" in overrides:
        raise InputError("resume: goes on with the run's own configuration, expected no experiment= beside it")
    named = lambda key: any(key == name or key.startswith(f"{name}.") for name in overrides)
    changed = sorted(key for key in new.keys() | old.keys() if named(key) and new.get(key) != old.get(key))
    if "steps" in changed:
        more = f"more than the {old['steps']} that the run has, which a resumed run can be made longer than"
        expect(type(new["steps"]) is int and new["steps"] > old["steps"], "steps", new["steps"], more)
        changed.remove("steps")
        OmegaConf.update(stored, "lengthened", [*old.get("lengthened", ()), old["steps"]])
        OmegaConf.update(stored, "steps", new["steps"])
    if refused := [key for key in changed if key.split(".")[0] not in KEYS_WITHOUT_EFFECT + DEVICES]:
        listed = ", ".join(f"{key} (was {old.get(key)}, asked {new.get(key)})" for key in refused)
        raise InputError(f"resume: {listed}: would change the result; start a new run instead")
    for key in changed:
        OmegaConf.update(stored, key, new[key])
    return run, stored


def record_length(folder: Path, cfg: DictConfig):
    """Keeps what `resumed` said of a run that is made longer; it is unfinished again, and another setting than one of this length
    from the start."""
    stored = run_config(folder)
    if stored.get("steps") == cfg.steps:
        return
    record = folder / ".hydra"
    told = [o for o in overrides_of(folder) if not o.startswith("steps=")]
    stored.steps, stored.lengthened = cfg.steps, cfg.lengthened
    for name, value in {"overrides": [*told, f"steps={cfg.steps}"], "config": stored}.items():
        OmegaConf.save(OmegaConf.create(value), record / f"{name}.yaml.tmp")
        os.replace(record / f"{name}.yaml.tmp", record / f"{name}.yaml")
    (folder / "summary.json").unlink(missing_ok=True)


def of_resumed(cfg: DictConfig, key: str):
    """A key that is needed before `resumed`: that of the run which goes on, if there is one and the command line says nothing."""
    run = Path(str(cfg.resume))
    given = cfg.resume is None or key in overridden_keys() or not (run / ".hydra" / "config.yaml").exists()
    return cfg[key] if given else run_config(run).get(key, cfg[key])


def overridden_keys() -> list[str]:
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


def check_about(path: Path, about: dict):
    """Writes about.json beside a file that is to be made; InputError where the file is there and was made in another way."""
    beside = path.with_name("about.json")
    if path.exists() and path.stat().st_size:
        expect(beside.exists(), str(path), "a file without about.json", "one beside it that says how it was made")
        before = read_json(beside)
        for name, value in json.loads(json.dumps(about)).items():
            asked = f"{value!r}, which is asked for now; write into another folder"
            expect(before.get(name) == value, f"{path}: {name}", before.get(name), asked)
    write_json(beside, about | {"finished": False})


def code_fingerprint(files: Iterable[Path]) -> str:
    """sha256 of what source files say to Python: comments and line breaks do not count."""
    trees = [ast.dump(ast.parse(file.read_text())) for file in files]
    return hashlib.sha256("\n".join(trees).encode()).hexdigest()


def versions() -> dict[str, str]:
    """What produced a result: package versions and the commit of this repository (`+` = with uncommitted changes)."""
    packages = ("jax", "flax", "optax", "orbax-checkpoint", "transformers", "grain")

    def git(*args):  # an archive without .git has no commit, nor a machine without git, which is no error
        try:
            return subprocess.run(["git", *args], cwd=CONF, capture_output=True, text=True, check=False).stdout.strip()
        except FileNotFoundError:
            return ""

    commit = git("rev-parse", "HEAD")
    dirty = "+" if commit and git("status", "--porcelain", "--untracked-files=no") else ""
    python = {"python": platform.python_version()}
    return python | {p: metadata.version(p) for p in packages} | {"commit": commit + dirty or "unknown"}
