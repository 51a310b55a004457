"""Makes many processes work as one: starts them, shares files between them, lets only process 0 write and print."""

import atexit
import ctypes
import os
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from prm_jax import InputError
from prm_jax.launch.config import expect
from prm_jax.launch.mesh import sharding


def set_cpu_devices(n: int):
    """Makes n devices of this process's CPU, before jax initialises its devices. XLA runs matrix products on all
    cores, but attention's loop and small operations on one; devices run in parallel."""
    expect(type(n) is int and 1 <= n <= 1024, "cpu_devices", n, "a number of at least 1, at most 1024")
    keep_freed_memory()
    try:
        jax.config.update("jax_num_cpu_devices", n)
    except RuntimeError:  # a process makes its devices once, in a sweep for its first job
        present = len(jax.local_devices(backend="cpu"))
        if n != present:
            print(f"devices     cpu_devices={n} has no effect: this process has {present} already")


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
    is_right = setting == "auto" or getattr(setting, "keys", dict)() == names.keys()
    explicit = "null, auto or {coordinator: HOST:PORT, processes: N, process: I}"
    expect(is_right, "distributed", setting, explicit)
    options = {} if setting == "auto" else {names[key]: x for key, x in setting.items()}
    try:
        jax.distributed.initialize(**options)
    except (ValueError, TypeError, RuntimeError) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"distributed: got {setting}, expected {explicit} ({why})") from error
    if jax.process_index() > 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for the life of the process)


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
