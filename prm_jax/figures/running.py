"""Making the stages of a figure (figures/pipeline.py): processes side by side, stopped with us, gone on with by the next call."""

import contextlib
import fcntl
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from prm_jax import InputError
from prm_jax.figures.pipeline import Stage, code_fingerprint, config_name
from prm_jax.launch import run_folder
from prm_jax.launch.config import CONF


def argv(stage: Stage, launcher: str | None) -> list[str]:
    """The process of a stage: a new folder, or what a kill has left of it."""
    name = config_name(stage.command)
    script = [str(CONF.parent / f"{name}.py")] if name in ("train", "evaluate") else ["-m", f"prm_jax.{name}"]
    overrides, place = stage.overrides, stage.folder
    if stage.stopped and "resume" in stage.keys:
        own = [x for x in stage.overrides if x.startswith("hydra")]
        overrides, place = [f"resume={stage.folder}", *own], stage.folder / "resumed"
    where = [f"hydra.run.dir={place}"]
    if launcher:  # a sweep of one job, which Hydra's launcher takes elsewhere and waits for
        where = [f"hydra/launcher={launcher}", f"hydra.sweep.dir={place.parent}", f"hydra.sweep.subdir={place.name}"]
        script = [*script, "-m"]
    return [sys.executable, *script, *overrides, *where]


def start(stage: Stage, launcher: str | None) -> subprocess.Popen:
    """The running stage, its output in log.txt, which it keeps locked as long as it lives."""
    if stage.stopped and "resume" not in stage.keys:
        shutil.rmtree(stage.folder)
    stage.folder.mkdir(parents=True, exist_ok=True)
    command = argv(stage, launcher)
    path = os.pathsep.join(filter(None, [str(CONF.parent), os.environ.get("PYTHONPATH")]))
    with open(stage.folder / "log.txt", "ab") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"stage {stage.name}: another process is making {stage.folder}") from None
        about = {"name": stage.name, "config": stage.config, "code": code_fingerprint()}
        run_folder.write_json(stage.folder / "stage.json", about)
        log.write(f"$ {shlex.join(command)}\n".encode())
        log.flush()
        environment = os.environ | {"PYTHONPATH": path}
        # In a session of its own, so that an interrupt reaches it once, through us.
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)


def make_all(stages: list[Stage], jobs: int = 1, launcher: str | None = None):
    """Runs what is not done, as many as `jobs` at a time, each after what it needs; one line a stage.

    The first that fails ends all: the others are told to stop, as they are when we are, and the next call goes on with them.
    """
    waiting = list({stage.folder: stage for stage in stages}.values())
    running: dict[subprocess.Popen, tuple[Stage, float, bool]] = {}
    with terminated_by_signal(), stopped_at_the_end(running):
        while waiting or running:
            for stage in [stage for stage in waiting if stage.done]:
                waiting.remove(stage)
                told = f"{stage.record()['seconds']:>7.1f} s  {stage.folder}{stage.by_other_code}"
                print(f"read        {stage.name:<28} {told}", flush=True)
            for stage in [stage for stage in waiting if all(x.done for x in stage.needs)][: jobs - len(running)]:
                waiting.remove(stage)
                resumed = stage.stopped and "resume" in stage.keys
                running[start(stage, launcher)] = stage, time.time(), resumed
            time.sleep(0.05)
            for process in list(running):
                before = cpu_seconds()
                if process.poll() is not None:
                    finish(process.returncode, cpu_seconds() - before, *running.pop(process))


def cpu_seconds() -> float:
    """Of all processes that have ended and were waited for: what it grows by at a `poll` is the ended one's."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def finish(code: int, cpu: float, stage: Stage, began: float, resumed: bool):
    """DONE, where the stage has ended well."""
    seconds, log = time.time() - began, stage.folder / "log.txt"
    if code:
        said = log.read_text(errors="replace").rsplit("\n$ ", 1)[-1].strip().splitlines()  # since it was last started
        why = next((line for line in reversed(said) if line.startswith("error: ")), said[-1]).strip()
        raise InputError(f"stage {stage.name}: failed after {seconds:.1f} s (exit {code}): {why[:300]}; see {log}")
    commit = run_folder.versions()["commit"]
    about = {"seconds": seconds, "cpu_seconds": cpu, "resumed": resumed, "commit": commit}
    run_folder.write_json(stage.folder / "DONE", about)
    print(f"{'resumed' if resumed else 'made':<12}{stage.name:<28} {seconds:>7.1f} s  {stage.folder}", flush=True)


@contextlib.contextmanager
def terminated_by_signal() -> Iterator[None]:
    """SIGTERM ends us as an exception, so that stages that run are stopped."""

    def stop(number, _):
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def stopped_at_the_end(running: dict[subprocess.Popen, tuple]) -> Iterator[None]:
    """Processes that still run are told to stop, and have a minute to write a checkpoint."""
    try:
        yield
    finally:
        for process in running:
            process.terminate()
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
