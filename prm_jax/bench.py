"""How fast, and how far from the machine's limit? Medians of repeated steps; results.json and a table."""

import dataclasses
import resource
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from prm_jax import InputError, cli, hf
from prm_jax.batches import Example, pack_row
from prm_jax.model import PRM, ModelConfig
from prm_jax.training import LossConfig, OptimizerConfig, make_optimizer, train_step


@dataclasses.dataclass(frozen=True)
class BatchConfig:
    rows: int
    tokens: int
    solution_tokens: int
    marks: int


@dataclasses.dataclass(frozen=True)
class BenchConfig:
    """conf/bench.yaml says what each key means."""

    what: str
    model: hf.ModelChoice
    batch: BatchConfig
    warmup: int
    repeats: int
    seed: int


@cli.command("bench")
def main(cfg):
    """Measure the speed of training on this machine."""
    given, cfg = cfg, cli.parse(cfg, BenchConfig)
    if cfg.what != "train":
        raise InputError(f"what: got {cfg.what!r}, expected train")
    cli.claim(cli.output_dir(), given)
    results = bench_train(cfg) | {"versions": cli.versions(), "device": jax.devices()[0].device_kind}
    for name, x in results.items():
        if isinstance(x, int | float):
            print(f"{name:<28}{x:,.4g}")
    path = cli.output_dir() / "results.json"
    cli.write_json(path, results)
    print(f"results     {path}")


def median_seconds(f, warmup: int, repeats: int) -> float:
    """Median wall time of f(), which returns arrays that are waited for."""
    times = []
    for i in range(warmup + repeats):
        start = time.perf_counter()
        jax.block_until_ready(f())
        times.append(time.perf_counter() - start)
    return statistics.median(times[warmup:])


def matmul_peak(dtype: str, warmup: int, repeats: int) -> float:
    """FLOP/s of a large square matrix product in the compute dtype: the limit that this machine shows."""
    size = 2048 if jax.devices()[0].platform == "cpu" else 8192  # long enough to hide an accelerator's launch
    a, b = jax.random.normal(jax.random.key(0), (2, size, size), dtype)
    product = jax.jit(jnp.matmul)
    return 2 * size**3 / median_seconds(lambda: product(a, b), warmup, repeats)


def useful_flops(cfg: ModelConfig, solution_lengths: list[int], marks: int) -> float:
    """FLOPs of one forward and backward pass over whole solutions: 6 x matmul parameters x tokens, and attention's pairs.

    No credit for padding or recomputation; embeddings are look-ups; the head is read at marks only.
    """
    D, F, K = cfg.dim, cfg.ffn, cfg.head_dim
    weights = cfg.layers * (2 * D * cfg.heads * K + 2 * D * cfg.kv_heads * K + 3 * D * F)
    pairs = sum(n * (n + 1) / 2 for n in solution_lengths)
    return 6 * weights * sum(solution_lengths) + 6 * D * marks + 6 * 2 * cfg.layers * cfg.heads * K * pairs


def bench_train(cfg: BenchConfig) -> dict:
    """One optimiser step of the PRM objective on packed random rows."""
    model_cfg, _ = cfg.model.resolve(hf.read_config(hf.EMBEDDED), "model", head=cfg.model.head)
    rng = np.random.default_rng(cfg.seed)
    b = cfg.batch
    if not 0 < b.marks <= b.solution_tokens <= b.tokens:
        raise InputError(
            f"batch: expected 0 < marks ({b.marks}) <= solution_tokens ({b.solution_tokens}) <= tokens ({b.tokens})"
        )

    def solution():
        ids = rng.integers(0, model_cfg.vocab, b.solution_tokens).astype(np.int32)
        mark_T = np.sort(rng.choice(b.solution_tokens, b.marks, replace=False)).astype(np.int32)
        return Example(
            ids, mark_T, rng.random(b.marks).astype(np.float32), np.full(b.marks, np.nan, np.float32), 0
        )

    each = b.tokens // b.solution_tokens
    rows = [
        pack_row([solution() for _ in range(each)], b.tokens, each * b.marks, "uniform")
        for _ in range(b.rows)
    ]
    batch = {k: jnp.asarray(np.stack([row[k] for row in rows]))[None] for k in rows[0]}
    model = PRM(model_cfg, rngs=nnx.Rngs(cfg.seed))
    adamw = OptimizerConfig(
        lr=1e-4,
        warmup=0.1,
        final_lr=0.1,
        weight_decay=0.01,
        b1=0.9,
        b2=0.98,
        clip=1.0,
        trains="all",
        mu_dtype="float32",
        nu_dtype="float32",
    )
    opt = make_optimizer(model, adamw, 1000)
    state, key, loss_cfg = [model, opt], jax.random.key(0), LossConfig("prm", 1.0, 0.0)

    def step():
        state[0], state[1], metrics = train_step(state[0], state[1], batch, loss_cfg, key)
        return metrics["loss"]

    seconds = median_seconds(step, cfg.warmup, cfg.repeats)
    lengths = [b.solution_tokens] * each * b.rows
    peak = matmul_peak(model_cfg.dtype, cfg.warmup, cfg.repeats)
    rate = useful_flops(model_cfg, lengths, each * b.marks * b.rows) / seconds
    memory = jax.devices()[0].memory_stats() or {}  # None on CPU
    return {
        "parameters": sum(x.size for x in jax.tree.leaves(nnx.state(model))),
        "step_seconds": seconds,
        "useful_tokens_per_second": sum(lengths) / seconds,
        "matmul_peak_gflops": peak / 1e9,
        "achieved_gflops": rate / 1e9,
        "share_of_matmul_peak": rate / peak,
        "process_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "device_peak_mib": memory.get("peak_bytes_in_use", float("nan")) / 2**20,
    }


if __name__ == "__main__":
    main()
