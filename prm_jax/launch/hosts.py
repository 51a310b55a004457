"""Many processes as one: start them, share files between them, let only process 0 write and print."""

import atexit
import os
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax import InputError
from prm_jax.launch import run_folder
from prm_jax.launch.config import expect


def set_cpu_devices(n: int):
    """Makes n devices of this process's CPU; must come before jax looks for devices.

    XLA gives matrix products all cores, but the loop of attention and what is small only one: devices run side by side.
    """
    expect(type(n) is int and n >= 1, "cpu_devices", n, "a number of at least 1")
    try:
        jax.config.update("jax_num_cpu_devices", n)
    except RuntimeError:  # a process makes its devices once, in a sweep for its first job
        made = len(jax.local_devices(backend="cpu"))
        if made != n:
            print(f"devices     cpu_devices={n} has no effect: this process has made {made} of its CPU already")


def init_distributed(cfg):
    """Makes this process one of the several that `cfg.distributed` names; must come before jax looks for devices.

    Afterwards the key is null: how a process was started is no part of its run. Only process 0 prints.
    """
    how, cfg.distributed = cfg.distributed, None
    if how is None or jax.distributed.is_initialized():
        return
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM, which train.py handles
    explicit = {"coordinator": "coordinator_address", "processes": "num_processes", "process": "process_id"}
    is_right = how == "auto" or (not isinstance(how, str) and how.keys() == explicit.keys())
    expect(is_right, "distributed", how, "null, auto or {coordinator: HOST:PORT, processes: N, process: I}")
    try:
        jax.distributed.initialize(**{} if how == "auto" else {explicit[key]: x for key, x in how.items()})
    except (ValueError, TypeError, RuntimeError) as error:
        why = f"{how}: {str(error).splitlines()[0]}"
        if how == "auto":
            why = "got 'auto', but no SLURM, Open MPI or Cloud TPU says which processes there are; expected null (one) or "
            why += "{coordinator: HOST:PORT, processes: N, process: I}"
        raise InputError(f"distributed: {why}") from error
    if jax.process_index() > 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for the life of the process)


def start_command(cfg) -> tuple:
    """How a command that can be resumed starts: (its folder, its configuration, whether it goes on with a stopped one).

    Devices and processes come first, before anything looks for devices.
    """
    set_cpu_devices(run_folder.of_resumed(cfg, "cpu_devices"))
    init_distributed(cfg)
    if cfg.resume is not None:
        return *run_folder.resumed(cfg), True
    return share_folder(run_folder.output_dir()), cfg, False


def share_folder(folder: Path) -> Path:
    """Process 0's output folder on every process; the one that Hydra made for another process goes."""
    if jax.process_count() == 1:
        return folder
    shared = Path(broadcast(str(folder.resolve()).encode()).decode())
    if shared != folder.resolve():
        folder.rmdir()
    return shared


def broadcast(content: bytes) -> bytes:
    """What process 0 gives, on every process; all must ask."""
    size = int(multihost_utils.broadcast_one_to_all(len(content)))
    own = np.frombuffer(content, np.uint8) if jax.process_index() == 0 else np.zeros(size, np.uint8)
    return bytes(multihost_utils.broadcast_one_to_all(own)) if size else b""


def share_file(path: Path):
    """Gives every process, each of which writes a `path` of its own, what the one of process 0 holds; nothing if it is absent."""
    if jax.process_count() == 1:
        return
    content = broadcast(path.read_bytes() if jax.process_index() == 0 and path.exists() else b"")
    if jax.process_index() > 0:
        path.write_bytes(content)


def writable_folder(folder: Path) -> Path:
    """The folder itself on process 0; a temporary one on the others, so that code which writes need not ask who it is."""
    if jax.process_index() == 0:
        return folder
    temporary = tempfile.TemporaryDirectory()
    atexit.register(temporary.cleanup)
    return Path(temporary.name)


def max_over_processes(n: int):
    """The largest n that any process gives, as a number that need not be waited for; every process must ask."""
    if jax.process_count() == 1:
        return n
    mesh = jax.sharding.get_mesh()
    own = np.full(len(mesh.local_devices), n)
    return jax.make_array_from_process_local_data(NamedSharding(mesh, P(mesh.axis_names)), own).max()
