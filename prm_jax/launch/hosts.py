"""Makes many processes work as one: starts them, shares files between them, lets only process 0 write and print."""

import atexit
import collections
import contextlib
import ctypes
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from prm_jax import InputError
from prm_jax.launch import run_folder
from prm_jax.launch.config import expect
from prm_jax.launch.files import read_json, sums_file, write_json
from prm_jax.launch.mesh import sharding


def set_cpu_devices(n: int | None):
    """Makes n devices of this process's CPU, before jax initialises its devices; None: 2, or 1 of a single core. XLA
    runs matrix products on all cores, but attention's loop and small operations on one; devices run in parallel."""
    is_right = n is None or (type(n) is int and 1 <= n <= 1024)
    expect(is_right, "cpu_devices", n, "a number of at least 1, at most 1024, or null")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    keep_freed_memory()
    try:
        jax.config.update("jax_num_cpu_devices", n or min(2, cores))
    except RuntimeError:  # a process makes its devices once, in a sweep for its first job
        if n not in (None, present := len(jax.local_devices(backend="cpu"))):
            print(
                f"devices     cpu_devices={n} has no effect: this process has made {present} of its CPU already"
            )


def keep_freed_memory():
    """Makes glibc keep what XLA frees for its next call, before jax starts threads; no effect without glibc. XLA's CPU
    backend allocates a program's temporaries at each call, and glibc would map them anew: at 26.7M parameters 80,000
    page faults a training step, 8 % of its CPU time."""
    libc, M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = ctypes.CDLL(None), -1, -4, -8
    if hasattr(libc, "mallopt"):
        for option, value in ((M_ARENA_MAX, 1), (M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1)):
            libc.mallopt(option, value)


def init_distributed(cfg):
    """Connects this process to the others that `cfg.distributed` names, before jax initialises its devices. The key
    is set to null, since it is no setting of the run. Only process 0 prints."""
    setting, cfg.distributed = cfg.distributed, None
    if setting is None or jax.distributed.is_initialized():
        return
    jax.config.update("jax_enable_preemption_service", False)  # it would handle SIGTERM, as train.py does
    names = {"coordinator": "coordinator_address", "processes": "num_processes", "process": "process_id"}
    explicit = "{coordinator: HOST:PORT, processes: N, process: I}"
    is_right = setting == "auto" or getattr(setting, "keys", dict)() == names.keys()
    expect(is_right, "distributed", setting, f"null, auto or {explicit}")
    try:
        jax.distributed.initialize(
            **{} if setting == "auto" else {names[key]: x for key, x in setting.items()}
        )
    except (ValueError, TypeError, RuntimeError) as error:
        why = f"{setting}: {str(error).splitlines()[0]}"
        if setting == "auto":
            why = "got 'auto', but no SLURM, Open MPI or Cloud TPU says which processes there are"
            why += f"; expected null (one) or {explicit}"
        raise InputError(f"distributed: {why}") from error
    if jax.process_index() > 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for the life of the process)


def start_command(cfg) -> tuple:
    """(folder, configuration, whether it is resumed) of a command, whose devices and processes are set up first."""
    set_cpu_devices(run_folder.of_resumed(cfg, "cpu_devices"))
    init_distributed(cfg)
    if cfg.resume is not None:
        return *run_folder.resumed(cfg), True
    folder = run_folder.output_dir()
    if jax.process_count() > 1:  # all use the folder of process 0
        made_by_hydra, folder = folder.resolve(), Path(broadcast(str(folder.resolve()).encode()).decode())
        if folder != made_by_hydra:
            made_by_hydra.rmdir()
    return folder, cfg, False


def broadcast(content: bytes) -> bytes:
    """The `content` of process 0 on every process; all must call it."""
    size = int(multihost_utils.broadcast_one_to_all(len(content)))
    buffer = np.frombuffer(content, np.uint8) if jax.process_index() == 0 else np.zeros(size, np.uint8)
    return bytes(multihost_utils.broadcast_one_to_all(buffer)) if size else b""


def share_file(path: Path):
    """Copies process 0's file to the `path` of every other process; an absent file becomes an empty one."""
    if jax.process_count() == 1:
        return
    content = broadcast(path.read_bytes() if jax.process_index() == 0 and path.exists() else b"")
    if jax.process_index() > 0:
        path.write_bytes(content)


def writable_folder(folder: Path) -> Path:
    """The folder itself on process 0, a temporary one on the others, so that all processes may write."""
    if jax.process_index() == 0:
        return folder
    temporary = tempfile.TemporaryDirectory()
    atexit.register(temporary.cleanup)
    return Path(temporary.name)


def max_over_processes(n: int):
    """The largest n of any process, as an array that is computed in the background; every process must call it."""
    if jax.process_count() == 1:
        return n
    mesh = jax.sharding.get_mesh()
    local = np.full(len(mesh.local_devices), n)
    return jax.make_array_from_process_local_data(sharding(mesh.axis_names), local).max()


@contextlib.contextmanager
def described_file(path: Path, about: dict):
    """Writes about.json beside a file of rows: `about` at once, then the yielded Counter, the seconds and the versions.
    The file may be left by a stopped call; InputError where that had another `about`."""
    start, counts, beside = time.perf_counter(), collections.Counter(), path.with_name("about.json")
    share_file(path), share_file(sums_file(path)), share_file(beside)
    if path.exists() and path.stat().st_size:
        expect(
            beside.exists(), str(path), "a file without about.json", "one beside it that says how it was made"
        )
        stored = read_json(beside, f"delete {path} to make it again")
        for name, value in json.loads(json.dumps(about)).items():
            expected = f"{value!r}, which this command has; write into another folder"
            expect(stored.get(name) == value, f"{path}: {name}", stored.get(name), expected)
    write_json(beside, about | {"finished": False})
    yield counts
    end = {"finished": True, "counts": dict(counts), "seconds": time.perf_counter() - start}
    end |= {"versions": run_folder.versions(), "machine": run_folder.machine()}
    write_json(beside, about | end)
