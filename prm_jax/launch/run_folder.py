"""Creates, finds, locks and resumes the folders of runs and evaluations, and writes files into them."""

import ast
import contextlib
import fcntl
import os
import platform
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from prm_jax import InputError, __version__
from prm_jax.launch.config import CONF, PACKAGE, ROOT, expect, flatten, script
from prm_jax.launch.files import read_json, read_yaml, sha256, write_json, write_yaml  # noqa: F401

CLOCK = 60  # seconds that a file server's clock may be ahead of ours
# Instructions that decide how a processor multiplies and in which order it sums, as /proc/cpuinfo names them: x86's, then ARM's.
INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")


def output_dir() -> Path:
    """The folder of this run or evaluation, as Hydra made it."""
    return Path(HydraConfig.get().runtime.output_dir)


def create_run_folder(folder: Path, cfg: DictConfig):
    """Records the configuration in Hydra's layout; InputError where the folder holds a run. Hydra's own record is off,
    since it precedes this refusal. Ours appears in one step, so that a kill leaves a folder that is free or a run."""
    record, temporary = folder / ".hydra", folder / f".hydra.{os.getpid()}"
    temporary.mkdir(exist_ok=True)
    write_yaml(temporary / "config.yaml", cfg)
    write_yaml(temporary / "overrides.yaml", OmegaConf.create(list(HydraConfig.get().overrides.task)))
    try:
        os.rename(temporary, record)  # `record` may be an empty folder
    except OSError:
        shutil.rmtree(temporary)
        hint = (
            f"resume={folder} continues one that was stopped" if "resume" in cfg else "choose another folder"
        )
        raise InputError(f"hydra.run.dir: {folder} already holds a run or an evaluation; {hint}") from None


@contextlib.contextmanager
def locked_run_folder(folder: Path, cfg: DictConfig, resumes: bool = False, worth: str = "*.jsonl*"):
    """Locks a folder while this process lives, and records a new one's configuration. A command that fails before
    it has written a non-empty file matching `worth` removes what it made, so that the next can use the folder."""
    before = set(folder.iterdir())
    if not resumes or not (folder / ".hydra").is_dir():  # only process 0 has the folder of a resumed run
        create_run_folder(folder, cfg)
    with (folder / ".hydra" / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise InputError(f"{folder}: {lock.read().strip()} works in it; stop that one first") from None
        lock.truncate(0)
        print(f"process {os.getpid()} of {socket.gethostname()}", file=lock, flush=True)
        try:
            yield
        except BaseException as error:
            if not resumes and not any(path.stat().st_size for path in folder.glob(worth)):
                for path in set(folder.iterdir()) - before | {folder / ".hydra"}:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            elif isinstance(error, KeyboardInterrupt) and "resume" in cfg:
                print(f"stopped     continue with resume={folder}")
            raise


def begin_job(cfg: DictConfig) -> bool:
    """Whether a command has something to do: false for a job of a sweep that an earlier call of the same sweep has ended.
    A job that was cut is made to resume. InputError where its folder holds another job."""
    hydra_cfg = HydraConfig.instance().cfg.hydra
    if hydra_cfg.mode != RunMode.MULTIRUN or not OmegaConf.is_interpolation(hydra_cfg.sweep, "subdir"):
        return True
    folder = output_dir()
    (folder / "error.txt").unlink(missing_ok=True)  # of the call before
    if "resume" not in cfg or cfg.resume is not None or not (folder / ".hydra").is_dir():
        return True
    free, both = (*KEYS_WITHOUT_EFFECT, *DEVICES), (overrides_of(folder), hydra_cfg.overrides.task)
    old, new = ({word for word in words if re.split(r"[.=]", word)[0] not in free} for words in both)
    if old != new:
        was, now = (" ".join(sorted(words)) or "no other override" for words in (old - new, new - old))
        why = f"holds the job with {was}, expected {now}; give another sweep another folder"
        raise InputError(f"hydra.sweep.dir: {folder}: {why}")
    if is_finished(folder):
        print(f"job {hydra_cfg.job.num}: done before: {folder}")
        return False
    print(f"job {hydra_cfg.job.num}: goes on: {folder}")
    cfg.resume = str(folder)
    return True


def is_finished(folder: Path) -> bool:
    """Whether the command that works in a folder has ended."""
    about = folder / "about.json"
    is_file_whole = about.exists() and read_json(about).get("finished") is True
    return is_file_whole or any((folder / name).exists() for name in ("summary.json", "results.json"))


def newest_run() -> Path:
    """The training run under runs/ that finished last and is no language model, which could not score."""
    summaries = sorted(Path("runs").glob("**/summary.json"), key=lambda path: path.stat().st_mtime)
    finished = [path.parent for path in summaries if read_json(path).get("objective") not in (None, "lm")]
    if not finished:
        hint = f"run `{script('train')}` first, or name one"
        raise InputError(f"checkpoint: no finished run under {Path('runs').resolve()}; {hint}")
    if (finished[-1] / "summary.json").stat().st_mtime > time.time() + CLOCK:
        print(
            f"note        {finished[-1]} is dated in the future: taken for the newest, name another with checkpoint="
        )
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
        print(
            f"left out    {len(missing)} of {len(numbered)} runs of the sweep: not finished: {', '.join(missing)}"
        )
    return finished


def run_config(folder: Path) -> DictConfig:
    """The stored configuration of a run or an evaluation."""
    path = folder / ".hydra" / "config.yaml"
    if not path.exists():
        raise InputError(f"{folder} is no run folder (it has no .hydra/config.yaml)")
    stored = read_yaml(path)
    if not OmegaConf.is_dict(stored) or not stored:
        raise InputError(f"{path}: holds no configuration, expected that of a run")
    return stored


# Keys and sections that change no number of a finished run or evaluation.
KEYS_WITHOUT_EFFECT = [
    "resume",
    "log_every",
    "checkpoint_every",
    "tensorboard",
    "wandb",
    "distributed",
    "server",
]
# Keys that change the order of sums: a run may be resumed with others, but its result differs by rounding.
DEVICES = ["cpu_devices", "mesh"]


def settings(folder: str | Path) -> dict:
    """{dotted key: value} of a run's configuration without the seed: runs that differ only in it are one setting."""
    pairs = flatten(run_config(Path(folder)))
    return {
        key: value
        for key, value in pairs
        if key.split(".")[0] not in ("seed", *KEYS_WITHOUT_EFFECT, *DEVICES)
    }


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


def overrides_of(folder: str | Path) -> list[str]:
    """The command-line overrides of a run or an evaluation; [] for other folders."""
    path = Path(folder) / ".hydra" / "overrides.yaml"
    return list(map(str, read_yaml(path))) if path.exists() else []


def resumed(cfg: DictConfig) -> tuple[Path, DictConfig]:
    """(folder, stored configuration) of the run that cfg.resume names; removes the folder that Hydra made. Overrides
    of this command line must agree with the stored configuration, except for KEYS_WITHOUT_EFFECT, DEVICES, and
    `steps`, which may be more: the configuration then keeps the earlier lengths in `lengthened`."""
    with contextlib.suppress(OSError):  # not empty, or removed by another process
        output_dir().rmdir()
    run = Path(str(cfg.resume)).resolve()
    try:
        stored = run_config(run)
    except InputError as error:
        raise InputError(f"resume: {error}") from None
    old, new, overrides = dict(flatten(stored)), dict(flatten(cfg)), overridden_keys()
    if (
        "resume" not in overrides
    ):  # a job of a sweep: begin_job has compared the overrides that change a result
        overrides = [key for key in overrides if key.split(".")[0] in KEYS_WITHOUT_EFFECT + DEVICES]
    if "experiment" in overrides:
        raise InputError("resume: uses the run's own configuration, expected no experiment= beside it")
    differing = sorted(key for key in new.keys() | old.keys() if new.get(key) != old.get(key))
    changed = [
        key for key in differing if any(key == name or key.startswith(f"{name}.") for name in overrides)
    ]
    if "steps" in changed and "lengthened" in cfg:  # training alone has the key
        more = f"more than the {old['steps']} that the run has: a resumed run can only be made longer"
        expect(type(new["steps"]) is int and new["steps"] > old["steps"], "steps", new["steps"], more)
        changed.remove("steps")
        OmegaConf.update(stored, "lengthened", [*old.get("lengthened", ()), old["steps"]])
        OmegaConf.update(stored, "steps", new["steps"])
    if refused := [key for key in changed if key.split(".")[0] not in KEYS_WITHOUT_EFFECT + DEVICES]:
        listed = ", ".join(f"{key} (was {old.get(key)}, asked {new.get(key)})" for key in refused)
        raise InputError(f"resume: {listed}: would change the result; start a new run instead")
    for key in reversed(
        changed
    ):  # a section after its keys, so that its parser says what is wrong with mesh=4
        OmegaConf.update(stored, key, new.get(key))
    stored.resume = cfg.resume
    return run, stored


def record_length(folder: Path, cfg: DictConfig):
    """Stores the new length of a resumed run; `lengthened` sets it apart from a run of this length from the start."""
    stored = run_config(folder)
    if stored.get("steps") == cfg.steps:
        return
    record = folder / ".hydra"
    overrides = [*(o for o in overrides_of(folder) if not o.startswith("steps=")), f"steps={cfg.steps}"]
    stored.steps, stored.lengthened = cfg.steps, cfg.lengthened
    for name, value in {"overrides": overrides, "config": stored}.items():
        write_yaml(record / f"{name}.yaml", OmegaConf.create(value))
    (folder / "summary.json").unlink(missing_ok=True)


def of_resumed(cfg: DictConfig, key: str):
    """The value of a key that is needed before `resumed`: the resumed run's, unless the command line overrides it."""
    run = Path(str(cfg.resume))
    if cfg.resume is None or key in overridden_keys() or not (run / ".hydra" / "config.yaml").exists():
        return cfg[key]
    return run_config(run).get(key, cfg[key])


def overridden_keys() -> list[str]:
    """The keys that this command line overrides."""
    return [override.split("=")[0].lstrip("+~") for override in HydraConfig.get().overrides.task]


def code_fingerprint(files: Iterable[Path]) -> str:
    """sha256 of the syntax trees of source files, which comments and line breaks do not change."""
    return sha256("\n".join(ast.dump(ast.parse(file.read_text())) for file in files))


def versions() -> dict[str, str]:
    """Versions of Python and packages, and the commit of this repository (`+` = with uncommitted changes): of the clone,
    since an installed package may lie in the repository of somebody else."""
    packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "transformers", "grain")
    git = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    try:
        is_clone = ROOT == PACKAGE.parent
        commit = (
            is_clone
            and subprocess.run(git, cwd=CONF, capture_output=True, text=True, check=False).stdout.strip()
        )
    except FileNotFoundError:  # a machine without git
        commit = ""
    python = {"prm_jax": __version__, "python": platform.python_version()}
    return python | {p: metadata.version(p) for p in packages} | {"commit": commit or "unknown"}


def short_commit(commit: str) -> str:
    """The first ten digits of a commit, with its + of a modified tree."""
    return commit[:10].rstrip("+") + "+" * commit.endswith("+")


def machine() -> dict:
    """What speed and rounding depend on: the processor, its instructions and cores, the devices in use, XLA's flags."""
    import jax  # not above: tables of runs need none

    info = Path("/proc/cpuinfo")
    cpu = dict(
        re.findall(r"(?m)^(model name|flags|Features)\s*: (.*)", info.read_text() if info.exists() else "")
    )
    flags = (cpu.get("flags") or cpu.get("Features") or "").split()
    return {
        "processor": cpu.get("model name") or platform.processor() or platform.machine(),
        "instructions": " ".join(name for name in INSTRUCTIONS if name in flags),
        "cpus": os.cpu_count(),
        "device": jax.devices()[0].device_kind,
        "devices": max(1, jax.sharding.get_mesh().size),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def made_by(folder: Path) -> dict:
    """What the record of a run or an evaluation says of how it was made; nothing compares it with another's."""
    return {"overrides": overrides_of(folder), "versions": versions(), "machine": machine()}
