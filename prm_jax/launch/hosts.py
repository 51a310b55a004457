"""Makes many processes work as one: starts them, shares files; only process 0 writes and prints."""

import atexit
import contextlib
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
    """Makes n devices of this process's CPU, before jax initialises its devices."""
    expect(type(n) is int and 1 <= n <= 1024, "cpu_devices", n, "1 to 1024")
    keep_freed_memory()
    with contextlib.suppress(RuntimeError):  # a process makes its devices once, in a sweep for its first job
        jax.config.update("jax_num_cpu_devices", n)


def keep_freed_memory():
    """Makes glibc keep what XLA frees for its next call, before jax starts threads. Page faults of
    temporaries take 8 % of a training step of 26.7M parameters."""
    libc, M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = ctypes.CDLL(None), -1, -4, -8
    if hasattr(libc, "mallopt"):
        for option, value in ((M_ARENA_MAX, 1), (M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1)):
            libc.mallopt(option, value)


def return_large_blocks():
    """Makes glibc return blocks of 32 MB and more. A wide model's step would find what it freed cut up by
    small blocks, and take as much again; page faults are nothing beside its products."""
    libc, M_MMAP_THRESHOLD, M_MMAP_MAX = ctypes.CDLL(None), -3, -4
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, 1 << 25)
        libc.mallopt(M_MMAP_MAX, 1 << 16)


def init_distributed(cfg):
    """Connects this process to those that `cfg.distributed` names; the key, no setting, becomes null."""
    setting, cfg.distributed = cfg.distributed, None
    if setting is None or jax.distributed.is_initialized():
        return
    jax.config.update("jax_enable_preemption_service", False)  # it would handle SIGTERM, as train.py does
    try:
        jax.distributed.initialize(**{} if setting == "auto" else dict(setting))
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"distributed: got {setting}: {error}") from error
    if jax.process_index() > 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for the life of the process)


def broadcast(content: bytes) -> bytes:
    """The `content` of process 0 on every process; all must call it."""
    size = int(multihost_utils.broadcast_one_to_all(len(content)))
    buffer = np.frombuffer(content, np.uint8) if jax.process_index() == 0 else np.zeros(size, np.uint8)
    return bytes(multihost_utils.broadcast_one_to_all(buffer)) if size else b""


def share_file(path: Path):
    """Copies process 0's file to the `path` of every other process; an absent file becomes an empty one."""
    if jax.process_count() > 1:
        content = broadcast(path.read_bytes() if path.exists() else b"")
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
    """The largest n of any process, as an array that is computed in the background; all must call it."""
    if jax.process_count() == 1:
        return n
    mesh = jax.sharding.get_mesh()
    local = np.full(len(mesh.local_devices), n)
    return jax.make_array_from_process_local_data(sharding(mesh.axis_names), local).max()
