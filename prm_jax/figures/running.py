"""Runs a figure's stages side by side; all but SIGKILL stops them too, and the next call continues them."""

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
from prm_jax.launch.config import PACKAGE, ROOT


def argv(stage: Stage, launcher: str | None) -> list[str]:
    """The command line of a stage, in a new folder or going on with one that a kill has left."""
    name = config_name(stage.command)
    script = [str(ROOT / f"{name}.py")] if name in ("train", "evaluate") else ["-m", f"prm_jax.{name}"]
    overrides, folder = stage.overrides, stage.folder
    if stage.can_resume and "resume" in stage.keys:
        hydra_keys = [x for x in stage.overrides if x.startswith("hydra")]
        overrides, folder = [f"resume={stage.folder}", *hydra_keys], stage.folder / "resumed"
    if launcher is None:
        return [sys.executable, *script, *overrides, f"hydra.run.dir={folder}"]
    # A sweep of one job, which Hydra's launcher takes elsewhere and waits for.
    keys = (
        f"hydra/launcher={launcher}",
        f"hydra.sweep.dir={folder.parent}",
        f"hydra.sweep.subdir={folder.name}",
    )
    return [sys.executable, *script, "-m", *overrides, *keys]


def start(stage: Stage, launcher: str | None) -> subprocess.Popen:
    """The running stage, which writes into log.txt and keeps it locked as long as it lives."""
    stage.folder.mkdir(parents=True, exist_ok=True)
    command = argv(stage, launcher)
    path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
    with open(stage.folder / "log.txt", "ab") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"stage {stage.name}: another process is making {stage.folder}") from None
        begun = stage.read("stage.json").get("code") if stage.can_resume and "resume" in stage.keys else None
        if stage.can_resume and "resume" not in stage.keys:  # begins again, in a folder that is now ours
            for path in set(stage.folder.iterdir()) - {stage.folder / "log.txt"}:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        code = " ".join(
            dict.fromkeys(filter(None, [begun, code_fingerprint()]))
        )  # what is gone on with is of both
        record = {"name": stage.name, "config": stage.config, "code": code}
        run_folder.write_json(stage.folder / "stage.json", record)
        log.write(f"$ {shlex.join(command)}\n".encode())
        log.flush()
        # In a session of its own, so that an interrupt reaches it once, through us.
        environment = os.environ | {"PYTHONPATH": path}
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)


def make_all(stages: list[Stage], jobs: int = 1, launcher: str | None = None):
    """Runs the stages that are not done, at most `jobs` at a time, each after those it needs; prints one line a stage.
    The first failure stops the others, as our own end does; the next call continues them."""
    waiting = list({stage.folder: stage for stage in stages}.values())
    running: dict[subprocess.Popen, tuple[Stage, float, bool]] = {}
    with stopped_at_the_end(running):
        while waiting or running:
            for stage in [stage for stage in waiting if stage.done]:
                waiting.remove(stage)
                seconds = f"{stage.record()['seconds']:>7.1f} s"
                print(
                    f"read        {stage.name:<28} {seconds}  {stage.folder}{stage.by_other_code}", flush=True
                )
            for stage in [stage for stage in waiting if all(x.done for x in stage.needs)][
                : jobs - len(running)
            ]:
                waiting.remove(stage)
                resumed = stage.can_resume and "resume" in stage.keys
                running[start(stage, launcher)] = stage, time.monotonic(), resumed
            time.sleep(0.05)
            for process in list(running):
                before = cpu_seconds()
                if process.poll() is not None:
                    finish(process.returncode, cpu_seconds() - before, *running.pop(process))


def cpu_seconds() -> float:
    """CPU seconds of all children that were waited for; a `poll` adds those of a process that has ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def finish(code: int, cpu: float, stage: Stage, began: float, resumed: bool):
    """Writes DONE, or raises InputError where the stage has failed."""
    seconds, log = time.monotonic() - began, stage.folder / "log.txt"
    if code:
        lines = (
            log.read_text(errors="replace").rsplit("\n$ ", 1)[-1].strip().splitlines()
        )  # since it was last started
        reason = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1]).strip()
        raise InputError(
            f"stage {stage.name}: failed after {seconds:.1f} s (exit {code}): {reason[:300]}; see {log}"
        )
    record = {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "resumed": resumed,
        "commit": run_folder.versions()["commit"],
    }
    run_folder.write_json(stage.folder / "DONE", record)
    print(
        f"{'resumed' if resumed else 'made':<12}{stage.name:<28} {seconds:>7.1f} s  {stage.folder}",
        flush=True,
    )


@contextlib.contextmanager
def stopped_at_the_end(running: dict[subprocess.Popen, tuple]) -> Iterator[None]:
    """Stops processes that still run, with a minute to write a checkpoint; SIGTERM ends us as an exception."""

    def stop(number, _):
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        for process in running:
            process.terminate()
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
        signal.signal(signal.SIGTERM, before)
