"""The devices: how many, the mesh of them, and which types and memory suit them."""

import contextlib
import ctypes
import dataclasses
import math
import resource
import sys
from pathlib import Path

import jax
from jax.experimental.mesh_utils import create_device_mesh
from jax.sharding import AxisType, Mesh

from prm_jax.launch.config import Count, expect
from prm_jax.launch.sharding import AXES

MALLOC = {"trim_threshold": -1, "mmap_threshold": -3, "mmap_max": -4, "arena_max": -8}  # of glibc's malloc.h


def set_cpu_devices(n: int):
    """Makes n devices of this process's CPU, before jax initialises its devices and starts threads."""
    expect(type(n) is int and 1 <= n <= 1024, "cpu_devices", n, "1 to 1024")
    # glibc keeps what XLA frees for its next call: page faults of temporaries take 8 % of a training step of
    # 26.7M parameters.
    tune_malloc(arena_max=1, mmap_max=0, trim_threshold=2**31 - 1)
    with contextlib.suppress(RuntimeError):  # a process makes its devices once, in a sweep for its first job
        jax.config.update("jax_num_cpu_devices", n)


def return_large_blocks():
    """Makes glibc return blocks of 32 MB and more. A large step would find what it freed cut up by small
    blocks, and take as much again; page faults are nothing beside its products."""
    tune_malloc(mmap_threshold=1 << 25, mmap_max=1 << 16)


def tune_malloc(**values: int):
    """Gives glibc's allocator these values, and makes it return what is free now."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim"):
        for name, value in values.items():
            libc.mallopt(MALLOC[name], value)
        libc.malloc_trim(0)


def held_memory() -> float:
    """GB that this process holds; where the system does not say it, the most that it has held."""
    pages = Path("/proc/self/statm")
    if not pages.exists():
        return peak_memory()
    return int(pages.read_text().split()[1]) * resource.getpagesize() / 1e9


def peak_memory() -> float:
    """The most GB that this process has held."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


@dataclasses.dataclass(frozen=True)
class MeshConfig:  # conf/train.yaml says what each key means
    data: Count | None
    fsdp: Count
    tensor: Count


def make_mesh(cfg: MeshConfig, rows: int, devices=None, is_wide: bool = False) -> Mesh:
    """A mesh of `devices` (None: all) for batches of `rows` rows; on CPU of as many as divide them. A wide
    model takes one device of a CPU, which uses all its cores: each would hold the model, and none would be
    faster."""
    devices = jax.devices() if devices is None else devices
    inner = cfg.fsdp * cfg.tensor
    data = cfg.data or len(devices) // inner
    if devices[0].platform == "cpu" and jax.process_count() == 1:
        while cfg.data is None and data > 1 and (is_wide or rows % (data * cfg.fsdp) != 0):
            data -= 1
        devices = devices[: data * inner] or devices
    expected = f"factors of {len(devices)}, the number of devices"
    expect(data * inner == len(devices) > 0, "mesh", vars(cfg), expected)
    # An axis of 8 may need parts of two axes of a TPU slice of 4 x 4 x 4, which jax.make_mesh refuses.
    grid = create_device_mesh((data, cfg.fsdp, cfg.tensor), devices, allow_split_physical_axes=True)
    # Auto: XLA chooses the sharding of what model code leaves open.
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * 3)


def modest_mesh(rows: int, cfg: MeshConfig = MeshConfig(None, 1, 1)) -> Mesh:
    """A mesh of as many devices as asked; data=null: one accelerator, or what of a CPU divides the rows."""
    devices = jax.devices()
    n = math.prod(filter(None, vars(cfg).values()))
    return make_mesh(cfg, rows, devices if cfg.data is None and devices[0].platform == "cpu" else devices[:n])


def choose_dtype(name: str) -> str:
    """The compute dtype of a config: `auto` is bfloat16 on GPU and TPU, float32 on CPU."""
    if name == "auto":
        return "float32" if jax.devices()[0].platform == "cpu" else "bfloat16"
    expect(name in ("float32", "bfloat16"), "dtype", name, "auto, float32 or bfloat16")
    return name


def choose_remat(name: str) -> str:
    """The remat of a ModelConfig: `auto` is dots on CPU, and full on GPU and TPU, whose memory is scarce."""
    if name == "auto":
        return "dots" if jax.devices()[0].platform == "cpu" else "full"
    return name


def has_bfloat16_unit() -> bool:
    cpu = Path("/proc/cpuinfo")
    return cpu.is_file() and any(flag in cpu.read_text() for flag in ("avx512_bf16", "amx_bf16"))
