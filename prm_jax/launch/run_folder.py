"""Creates, finds and resumes the folders of runs and evaluations, and says how a run was made."""

import ast
import collections
import contextlib
import fcntl
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import jax
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from prm_jax import InputError, __version__
from prm_jax.launch import hosts
from prm_jax.launch.config import CONF, PACKAGE, ROOT, expect, flatten, script
from prm_jax.launch.files import read_json, read_yaml, sha256, write_json, write_yaml

# Keys and sections that change no number of a finished run or evaluation.
NO_EFFECT = ("resume", "log_every", "checkpoint_every", "tensorboard", "wandb", "distributed", "server")
# Keys that change the order of sums: a run may be resumed with others, but its result differs by rounding.
DEVICES = ("cpu_devices", "mesh")
FREE = NO_EFFECT + DEVICES  # what the command line may change of a resumed run
OVERRIDES = ".hydra/overrides.yaml"
# Files of which one lies in the folder of a command that has begun its work.
BEGUN = ("*.jsonl", "*.jsonl.gz", "checkpoints/*/*", "summary.json", "results.json")


def output_dir() -> Path:
    """The folder of this run or evaluation, as Hydra made it."""
    return Path(HydraConfig.get().runtime.output_dir)


def section(override: str) -> str:
    """The first part of an override's key: mesh of `mesh.fsdp=2`."""
    return re.split(r"[.=]", override.lstrip("+~"))[0]


def start_command(cfg: DictConfig) -> tuple[Path, DictConfig, bool]:
    """(folder, configuration, whether it is resumed) of a command, whose devices and processes are set up first."""
    resumes = cfg.resume is not None
    folder, cfg = resumed(cfg) if resumes else (output_dir(), cfg)
    hosts.set_cpu_devices(cfg.cpu_devices)
    hosts.init_distributed(cfg)
    if jax.process_count() > 1 and not resumes:  # all use the folder of process 0
        made_by_hydra = folder.resolve()
        folder = Path(hosts.broadcast(str(made_by_hydra).encode()).decode())
        if folder != made_by_hydra:
            made_by_hydra.rmdir()
    return folder, cfg, resumes


def resumed(cfg: DictConfig) -> tuple[Path, DictConfig]:
    """(folder, stored configuration) of the run that cfg.resume names. The command line may change FREE keys and make
    `steps` more; it may repeat others. Removes the folder that Hydra made."""
    with contextlib.suppress(OSError):  # it is the run's own, in a sweep
        output_dir().rmdir()
    run = Path(str(cfg.resume)).resolve()
    stored = run_config(run, "resume: ")
    overrides = HydraConfig.get().overrides.task
    in_sweep = all(section(word) != "resume" for word in overrides)  # begin_job has compared the others
    for word in overrides:
        key = word.split("=")[0].lstrip("+~")
        value = OmegaConf.select(cfg, key)
        if section(word) in FREE:
            OmegaConf.update(stored, key, value)
        elif key == "steps" and not in_sweep:
            more = f"at least the {stored.steps} of the run"
            expect(type(value) is int and value >= stored.steps, "steps", value, more)
            stored.steps = value
        else:
            is_same = in_sweep or (section(word) in cfg and OmegaConf.select(stored, key) == value)
            expected = "what the run has, since it would change the result; start a new run instead"
            expect(is_same, f"resume: {key}", word, expected)
    stored.resume = cfg.resume
    return run, stored


@contextlib.contextmanager
def locked_run_folder(folder: Path, cfg: DictConfig, resumes: bool = False):
    """Records the configuration in a folder, which must be free unless a run is resumed, and locks it until the
    command ends."""
    record = folder / ".hydra"
    is_new = not (resumes and record.is_dir())  # only process 0 has the folder of a resumed run
    if is_new and any(path for pattern in BEGUN for path in folder.glob(pattern)):
        hint = f"resume={folder} continues it" if "resume" in cfg else "choose another folder"
        raise InputError(f"hydra.run.dir: {folder} already holds a run or an evaluation; {hint}")
    record.mkdir(exist_ok=True)
    with (record / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder}: another process works in it; stop that one first") from None
        if is_new:
            write_record(record, cfg, HydraConfig.get().overrides.task)
        elif cfg.get("steps") != run_config(folder).get("steps"):  # the run is made longer
            (folder / "summary.json").unlink(missing_ok=True)
            write_record(record, cfg, [*overrides_of(folder), f"steps={cfg.steps}"])
        yield


def write_record(record: Path, cfg: DictConfig, overrides: Iterable[str]):
    write_yaml(record / "config.yaml", cfg)
    write_yaml(record / "overrides.yaml", OmegaConf.create(list(overrides)))


def begin_job(cfg: DictConfig) -> dict | None:
    """The summary or results of a job of a sweep that an earlier call has finished; else None. A job that was cut is
    made to resume. InputError where its folder holds another job."""
    hydra_cfg, folder = HydraConfig.get(), output_dir()
    old = [word for word in overrides_of(folder) if section(word) not in FREE]
    new = [word for word in hydra_cfg.overrides.task if section(word) not in FREE]
    if hydra_cfg.mode != RunMode.MULTIRUN or "resume" not in cfg or not (folder / OVERRIDES).exists():
        return None
    is_same = sorted(old) == sorted(new)
    expect(is_same, "hydra.sweep.dir", f"{folder}, which holds the job {' '.join(old)}", "another folder")
    for name in ("summary.json", "results.json", "about.json"):
        if (folder / name).exists():
            record = read_json(folder / name)
            if record.get("finished") is not False:
                print(f"job {hydra_cfg.job.num}: done before: {folder}")
                return record
    print(f"job {hydra_cfg.job.num}: goes on: {folder}")
    cfg.resume = str(folder)
    return None


@contextlib.contextmanager
def described_file(path: Path, about: dict):
    """Writes about.json beside a file of rows: `about` at once, then the yielded Counter, the seconds and the versions.
    The file may be left by a stopped call; InputError where that had another `about`."""
    start, counts, beside = time.perf_counter(), collections.Counter(), path.with_name("about.json")
    hosts.share_file(path)
    hosts.share_file(beside)
    if path.exists() and path.stat().st_size:
        expect(beside.exists(), str(path), "a file without about.json", "one that says how it was made")
        stored = read_json(beside)
        for name, value in json.loads(json.dumps(about)).items():
            expected = f"{value!r}, which this command has; write into another folder"
            expect(stored.get(name) == value, f"{path}: {name}", stored.get(name), expected)
    write_json(beside, about | {"finished": False})
    yield counts
    end = {"finished": True, "counts": dict(counts), "seconds": time.perf_counter() - start}
    write_json(beside, about | end | {"versions": versions(), "machine": machine()})


def newest_run() -> Path:
    """The training run under runs/ that finished last and is no language model, which could not score."""
    summaries = sorted(Path("runs").glob("**/summary.json"), key=lambda path: path.stat().st_mtime)
    finished = [path.parent for path in summaries if read_json(path).get("objective") not in (None, "lm")]
    if not finished:
        hint = f"run `{script('train')}` first, or name one"
        raise InputError(f"checkpoint: no finished run under {Path('runs').resolve()}; {hint}")
    return finished[-1].resolve()


def runs_of(folder: Path) -> list[Path]:
    """The runs of a checkpoint argument: the finished numbered runs of a sweep folder, or the folder itself."""
    numbered = sorted((p for p in folder.glob("*") if p.name.isdigit()), key=lambda p: int(p.name))
    if (folder / "checkpoints").is_dir() or not numbered:
        return [folder]
    finished = [p for p in numbered if (p / "summary.json").exists()]
    if not finished:
        raise InputError(f"checkpoint: {folder} holds {len(numbered)} runs of a sweep, none of them finished")
    if missing := [p.name for p in numbered if p not in finished]:
        print(f"left out    runs of the sweep that are not finished: {', '.join(missing)}")
    return finished


def run_config(folder: Path, key: str = "") -> DictConfig:
    """The stored configuration of a run or an evaluation; an error begins with `key`."""
    path = folder / ".hydra" / "config.yaml"
    if not path.exists():
        raise InputError(f"{key}{folder} is no run folder (it has no .hydra/config.yaml)")
    stored = read_yaml(path)
    if not OmegaConf.is_dict(stored) or not stored:
        raise InputError(f"{key}{path}: holds no configuration, expected that of a run")
    return stored


def overrides_of(folder: str | Path) -> list[str]:
    """The command-line overrides of a run or an evaluation; [] for other folders."""
    path = Path(folder) / OVERRIDES
    return list(map(str, read_yaml(path))) if path.exists() else []


def settings(folder: str | Path) -> dict:
    """{dotted key: value} of a run's configuration without the seed: runs that differ only in it are one setting."""
    pairs = flatten(run_config(Path(folder)))
    return {key: value for key, value in pairs if section(key) not in ("seed", *FREE)}


def group_by_settings(settings: list[dict]) -> list[tuple[dict, list[int]]]:
    """[(its {key: value} that differ from others, indices of its runs)] of each setting, in the order of first runs.
    A missing key is no difference, since older runs lack newer ones; `verifier`, of what is no run, always is one."""
    values, groups = {}, {}
    for setting in settings:
        for key, value in setting.items():
            values.setdefault(key, set()).add(repr(value))
    varied = sorted(key for key in values if key == "verifier" or len(values[key]) > 1)
    for i, setting in enumerate(settings):
        differing = {key: setting[key] for key in varied if key in setting}
        groups.setdefault(repr(differing), (differing, []))[1].append(i)
    return list(groups.values())


def code_fingerprint(files: Iterable[Path]) -> str:
    """sha256 of the syntax trees of source files, which comments and line breaks do not change."""
    return sha256("\n".join(ast.dump(ast.parse(file.read_text())) for file in files))


def versions() -> dict[str, str]:
    """Versions of Python and packages, and the commit of this clone (`+`: with uncommitted changes)."""
    packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "transformers", "grain")
    git = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    commit = ""
    if ROOT == PACKAGE.parent:  # else installed, perhaps in somebody else's repository
        with contextlib.suppress(FileNotFoundError):  # a machine without git
            commit = subprocess.run(git, cwd=CONF, capture_output=True, text=True, check=False).stdout.strip()
    python = {"prm_jax": __version__, "python": platform.python_version()}
    return python | {p: metadata.version(p) for p in packages} | {"commit": commit or "unknown"}


def short_commit(commit: str) -> str:
    """The first ten digits of a commit, with its + of a modified tree."""
    return commit[:10].rstrip("+") + "+" * commit.endswith("+")


def machine() -> dict:
    """What speed and rounding depend on: the processor and its cores, the devices in use, XLA's flags."""
    info = Path("/proc/cpuinfo")
    model = re.search(r"(?m)^model name\s*: (.*)", info.read_text() if info.exists() else "")
    return {
        "processor": model[1] if model else platform.processor(),
        "cpus": os.cpu_count(),
        "device": jax.devices()[0].device_kind,
        "devices": max(1, jax.sharding.get_mesh().size),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def made_by(folder: Path) -> dict:
    """What the record of a run or an evaluation says of how it was made; nothing compares it with another's."""
    return {"overrides": overrides_of(folder), "versions": versions(), "machine": machine()}
