"""Checks and times what a GPU or TPU runs: attention kernels beside `dense`, then models of several sizes in bfloat16.

Rows are named SHAPE/WHAT/COLUMN, and `markdown` makes tables of them, to paste into an issue; nan is what a device does
not tell. What fails gets a row that says so, and the others go on. It runs on a CPU, too.
"""

import dataclasses
import functools
import gc
import math
import re
import traceback
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax import InputError
from prm_jax.attention import dense
from prm_jax.bench import common
from prm_jax.bench.common import BenchConfig, Row
from prm_jax.bench.memory import compiled_bytes
from prm_jax.bench.models import bench_sampling, bench_score, bench_train, packed_steps
from prm_jax.checkpoints.hf_config import ModelChoice
from prm_jax.kernels import accelerator, cpu
from prm_jax.launch.config import expect, parse
from prm_jax.launch.sharding import platform

KERNELS = {
    "cpu": {"one_product": cpu.one_product, "tiled": cpu.tiled},
    "gpu": {"cudnn": accelerator.cudnn},
    "tpu": {"splash": accelerator.splash},
}
# Words of a device's name -> published TFLOP/s of its dense products in bfloat16. The first that fits counts.
PEAKS = {"A100": 312, "H100 PCIe": 756, "H100": 989, "H200": 989, "B200": 2250, "L4": 121, "TPU v4": 275}
PEAKS |= {
    "TPU v5 lite": 197,
    "TPU v5e": 197,
    "TPU v5": 459,
    "TPU v5p": 459,
    "TPU v6 lite": 918,
    "TPU v6e": 918,
}
# In order of the memory that they take, since a device tells only its highest use so far.
JOBS = {"score": bench_score, "sampling": bench_sampling, "train": bench_train}
Measured = Iterator[tuple[str, float]]  # (column, value)


def published_peak(device: str) -> float:
    """FLOP/s of a device by its name; nan where it is not known."""
    return next((1e12 * n for words, n in PEAKS.items() if re.search(rf"\b{words}\b", device)), math.nan)


@functools.cache
def output_and_gradients(attend):
    """(q, k, v, visible_until, do) -> the output and the gradients of q, k and v, jitted."""

    def run(q_BLHK, k_BLGK, v_BLGK, visible_until_BL, do_BLHK):
        o_BLHK, pull = jax.vjp(lambda *qkv: attend(*qkv, visible_until_BL), q_BLHK, k_BLGK, v_BLGK)
        return o_BLHK, *pull(do_BLHK)

    return jax.jit(run)


def packed_arrays(cfg: BenchConfig) -> list:
    """Random q, k, v, visible_until and do of two rows of packed solutions, in bfloat16."""
    t, L, shape = cfg.train, cfg.accelerator.tokens, common.model_config(cfg, "bfloat16")
    lengths_2n = common.random_lengths(np.random.default_rng(cfg.seed), (2, L), t.mean_tokens, t.longest)
    last_2L = [ends_n[np.searchsorted(ends_n, np.arange(L), "right")] - 1 for ends_n in lengths_2n.cumsum(1)]
    shapes = [(2, 2, L, heads, shape.head_dim) for heads in (shape.heads, shape.kv_heads)]
    (q, do), (k, v) = (jax.random.normal(jax.random.key(i), s, jnp.bfloat16) for i, s in enumerate(shapes))
    return [q, k, v, jnp.minimum(jnp.array(last_2L), L - 1), do]


def measure_kernel(cfg: BenchConfig, attend) -> Measured:
    """Largest errors, as shares of the largest number of `dense` in float32, and the time of both passes."""
    with common.one_device():
        arrays = packed_arrays(cfg)
        with jax.default_matmul_precision("highest"):
            exact = [x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x for x in arrays]
            exact = output_and_gradients(dense)(*exact)
        measured = output_and_gradients(attend)(*arrays)
        o, *gradients = [
            float(jnp.abs(x - y).max() / jnp.abs(y).max()) for x, y in zip(measured, exact, strict=True)
        ]
        yield from (("output_error", o), ("gradient_error", float(np.max(gradients))))
        both = (output_and_gradients(f) for f in (attend, dense))
        ours, slow = (common.median_seconds(lambda f=f: f(*arrays), cfg.warmup, cfg.repeats) for f in both)
        yield from (("milliseconds", 1000 * ours), ("times_dense", slow / ours))


def predicted_bytes(cfg: BenchConfig) -> float:
    """Bytes of the compiled step as in what=memory, which says nothing of sampling (nan)."""
    if cfg.what == "sampling":
        return math.nan
    shape, rows = common.model_config(cfg, "bfloat16"), getattr(cfg, cfg.what).rows
    L, T = (
        packed_steps(cfg, shape.vocab)[1:]
        if cfg.what == "train"
        else (cfg.score.tokens, cfg.score.tokens // 16)
    )
    return sum(compiled_bytes(shape, cfg.what, jax.sharding.get_mesh(), rows, L, T).values())


def peak_bytes() -> float:
    """The most memory that the first device has used so far; nan where it does not tell, as a CPU."""
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", math.nan)


def measure_job(cfg: BenchConfig) -> Measured:
    """Memory and speed of one of JOBS; MFU where the chip's peak is known, else the share of the measured one."""
    yield "predicted_gb", predicted_bytes(cfg) / 1e9
    before, values, after = peak_bytes(), {row.name: row.value for row in JOBS[cfg.what](cfg)}, peak_bytes()
    yield "peak_gb", after / 1e9 if after > before else math.nan
    yield "tokens_per_second", values["bfloat16_tokens_per_second"]
    share, published = values["bfloat16_share_of_matmul_peak"], published_peak(jax.devices()[0].device_kind)
    mfu = share * common.matmul_peak("bfloat16", cfg.warmup, cfg.repeats) / published
    yield ("share_of_measured_peak", share) if math.isnan(mfu) else ("mfu", mfu)


def bench_accelerator(cfg: BenchConfig) -> list[Row]:
    a, measures = cfg.accelerator, {}
    expect(
        a.score.tokens is not None,
        "accelerator.score.tokens",
        None,
        "a number, which decides the batch's shape",
    )
    cfg = dataclasses.replace(cfg, dtypes=["bfloat16"], train=a.train, score=a.score, sampling=a.sampling)
    kernels = {"dense": dense} | KERNELS[platform()]
    for name, changes in a.models.items():
        model = parse(vars(cfg.model) | changes, ModelChoice, f"accelerator.models.{name}")
        cfgs = {job: dataclasses.replace(cfg, what=job, model=model) for job in JOBS}
        measures |= {
            f"{name}/{k}": functools.partial(measure_kernel, cfgs["train"], f) for k, f in kernels.items()
        }
        measures |= {
            f"{name}/{job}": functools.partial(measure_job, job_cfg) for job, job_cfg in cfgs.items()
        }
    peak = (
        common.matmul_peak("bfloat16", cfg.warmup, cfg.repeats),
        published_peak(jax.devices()[0].device_kind),
    )
    rows = [Row(f"peak/{kind}/tflops", x / 1e12) for kind, x in zip(("measured", "published"), peak)]
    for name, measure in measures.items():
        print(f"measuring   {name}", flush=True)
        try:
            for column, x in measure():
                rows.append(Row(f"{name}/{column}", x))
        except InputError:
            raise
        except (RuntimeError, ValueError) as error:  # of XLA, or of a kernel
            traceback.print_exc()
            rows.append(
                Row(f"{name}/failed", math.nan, f"{type(error).__name__}: {str(error).splitlines()[0]}")
            )
        gc.collect()  # frees the arrays of a model that failed
    return rows


def markdown(rows: list[Row]) -> str:
    """Tables of rows SHAPE/WHAT/COLUMN, one for each set of columns."""
    lines, tables = {}, {}
    for row in rows:
        name, column = row.name.rsplit("/", 1)
        lines.setdefault(name, {})[column] = row.note or common.shown(row.value)
    for name, line in lines.items():
        tables.setdefault(tuple(line), []).append((name, *line.values()))
    table = [[("", *columns), ("---",) * (1 + len(columns)), *group] for columns, group in tables.items()]
    return "\n\n".join("\n".join(f"| {' | '.join(cells)} |" for cells in one) for one in table)
