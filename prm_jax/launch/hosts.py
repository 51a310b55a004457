"""Makes many processes work as one: starts them, shares files; only process 0 writes and prints."""

import atexit
import os
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from prm_jax import InputError
from prm_jax.launch.mesh import sharding


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
