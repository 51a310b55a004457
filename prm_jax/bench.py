"""Measures speed and memory of models with random weights; conf/bench.yaml lists what. Rates count useful
tokens alone, without padding. examples/bench_peers.py trains the same in PyTorch and TRL."""

import dataclasses
import functools
import os
import statistics
import time
import traceback
from collections.abc import Callable
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from prm_jax import training
from prm_jax.attention import attend, dense
from prm_jax.checkpoints.folders import EMBEDDED
from prm_jax.checkpoints.tokenizer import load_tokenizer
from prm_jax.examples import Example
from prm_jax.formats import Format
from prm_jax.generate.sampling import Policy, Sampling
from prm_jax.launch import cli, mesh, run_folder
from prm_jax.launch.config import Count, one_of, parse
from prm_jax.launch.hosts import set_cpu_devices
from prm_jax.launch.sharding import platform
from prm_jax.model import PRM, ModelConfig, cast_backbone
from prm_jax.packing import pack_batch
from prm_jax.scoring import HeadScorer

SHAPE_FIELDS = ("vocab", "dim", "layers", "heads", "kv_heads", "head_dim", "ffn")
SHAPES = {
    "embedded": (320, 64, 4, 4, 2, 16, 192),
    "small": (8192, 512, 8, 8, 2, 64, 1408),  # 26.7M parameters
    "500m": (151_936, 896, 24, 14, 2, 64, 4864),  # this and the next ones: Qwen2.5's
    "1500m": (151_936, 1536, 28, 12, 2, 128, 8960),
    "7b": (152_064, 3584, 28, 28, 4, 128, 18_944),
}
ACCELERATOR_SHAPES = ("embedded", "small", "500m", "1500m")
ACCELERATOR_SIZES = {"rows": 8, "solutions": 64, "new_tokens": 256}
LOSS = training.LossConfig("prm", "bce", 1.0, 0.0)
OPTIMIZER = training.OptimizerConfig(1e-4, 0.1, 0.1, 0.01, 0.9, 0.98, 1.0, "all", "float32")
PLAIN = Format("plain", separator="\n")
WARMUP = 3  # calls that are not timed
PROBLEM, STEP = 80, 40  # tokens of a problem and of a step
Numbers = dict[str, float]  # a name that ends with the unit -> the number


@dataclasses.dataclass(frozen=True)
class BenchConfig:  # conf/bench.yaml says what each key means
    what: Literal["train", "score", "sampling", "memory", "accelerator"]
    shape: Annotated[str, one_of(SHAPES)]
    dtype: Literal["float32", "bfloat16"]
    rows: Count
    mean_tokens: Count
    solutions: Count
    problems: Count
    new_tokens: Count
    mesh: mesh.MeshConfig
    repeats: Count


def model_config(cfg: BenchConfig, **more) -> ModelConfig:
    shape = dict(zip(SHAPE_FIELDS, SHAPES[cfg.shape], strict=True)) | {"dtype": cfg.dtype, "head": "binary"}
    fixed = {"rope_theta": 1e4, "norm_eps": 1e-6, "qkv_bias": True, "tied": True, "remat": "dots"}
    return ModelConfig(**shape | fixed | more)


def measure(f: Callable, tokens: int, repeats: int) -> Numbers:
    """The median wall time of f() after WARMUP calls, its arrays waited for."""
    seconds = []
    for _ in range(WARMUP + repeats):
        start = time.perf_counter()
        jax.block_until_ready(f())
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[WARMUP:])
    return {"seconds": median, "tokens_per_second": tokens / median}


def random_solutions(cfg: BenchConfig, problems: int) -> list[Example]:
    """`solutions` of each problem, whose tokens they share. Lengths are log-normal, as on GSM8K and MATH."""
    rng, made = np.random.default_rng(0), []
    vocab = SHAPES[cfg.shape][0]
    for _ in range(problems):
        problem_L = rng.integers(0, vocab, PROBLEM)
        length_N = rng.lognormal(np.log(cfg.mean_tokens) - 0.125, 0.5, cfg.solutions)
        for n in np.clip(length_N, 8, 4 * cfg.mean_tokens).astype(int):
            ids_L = np.concatenate([problem_L, rng.integers(0, vocab, n)]).astype(np.int32)
            ends_T = np.append(np.arange(PROBLEM + STEP, len(ids_L) - 1, STEP), len(ids_L) - 1)
            label_T = rng.integers(0, 2, len(ends_T)).astype(np.float32)
            targets = {"label": label_T, "weight": np.ones_like(label_T)}
            made.append(Example(ids_L, ends_T.astype(np.int32), PROBLEM, targets))
    return made


def random_batch(cfg: BenchConfig) -> tuple[dict[str, np.ndarray], int]:
    """One batch of `solutions` in rows of nearly equal length, and how many tokens they have."""
    solutions = sorted(random_solutions(cfg, 1), key=lambda e: len(e.ids_L))
    rows = [solutions[i :: cfg.rows] for i in range(cfg.rows)]
    L = max(sum(len(e.ids_L) for e in row) for row in rows)
    T = max(sum(len(e.step_end_T) for e in row) for row in rows)
    multiple = 16 if platform() == "cpu" else 128  # of the kernels' tiles
    return pack_batch(rows, -(-L // multiple) * multiple, T), sum(len(e.ids_L) for e in solutions)


def random_model(cfg: BenchConfig, stored=cast_backbone, **more) -> PRM:
    """Weights as scoring and sampling store them; as training does with another `stored`."""
    return mesh.make_sharded(lambda: stored(PRM(model_config(cfg, **more), rngs=nnx.Rngs(0))))


def bench_train(cfg: BenchConfig) -> Numbers:
    """Steps on one batch, whose contents do not change the time."""
    model = random_model(cfg, stored=lambda model: model)
    opt = training.make_optimizer(model, OPTIMIZER, 1000)
    batch, tokens = random_batch(cfg)
    batch = mesh.shard_batch({name: x[None] for name, x in batch.items()}, cfg.rows, axis=1)
    metrics = None

    def step():
        nonlocal model, opt, metrics
        model, opt, metrics = training.train_step(model, opt, batch, LOSS, jax.random.key(0))
        return metrics

    numbers = measure(step, tokens, cfg.repeats)
    return numbers | {"last_loss_nats": float(metrics["loss"])}


def bench_score(cfg: BenchConfig) -> Numbers:
    about = {"format": PLAIN, "label_kind": "correctness", "name": "bench", "batch_rows": cfg.rows}
    scorer = HeadScorer(model=random_model(cfg), tokenizer=None, **about)
    solutions = random_solutions(cfg, cfg.problems)
    tokens = sum(len(e.ids_L) for e in solutions)
    return measure(lambda: scorer.score_encoded(solutions), tokens, cfg.repeats)


def bench_sampling(cfg: BenchConfig) -> Numbers:
    """`solutions` samples of `new_tokens` tokens of each of `problems` prompts; none ends earlier."""
    model, sampling = random_model(cfg, head="none", lm_head=True), Sampling(1.0, None, 1.0, cfg.new_tokens)
    tokenizer, rows = load_tokenizer(EMBEDDED), cfg.rows * cfg.solutions
    policy = Policy(model, tokenizer, PLAIN, "bench", sampling, rows, eos_ids=(-1,))  # no token's id
    digits_PL = np.random.default_rng(0).integers(0, 10, (cfg.problems, PROBLEM))  # a token each
    prefixes = [("".join(map(str, digits_L)), ()) for digits_L in digits_PL]
    tokens = cfg.problems * cfg.solutions * cfg.new_tokens
    return measure(
        lambda: policy.extend(prefixes, cfg.solutions, "end", jax.random.key(0)), tokens, cfg.repeats
    )


def abstract_state(model_cfg: ModelConfig) -> dict:
    """The arguments of the train step beside the batch, as shapes without arrays."""

    def make():
        model = PRM(model_cfg, rngs=nnx.Rngs(0))
        transform = training.make_transform(model, OPTIMIZER, 1000)
        opt = nnx.Optimizer(model, transform, wrt=training.TRAINABLE["all"])
        return {"model": model, "opt": opt, "key": jax.random.key(0)}

    return jax.eval_shape(make)


def bench_memory(cfg: BenchConfig) -> Numbers:
    """What a train step takes of each device of the mesh, whose share is a row of 4,096 tokens, as XLA plans
    it for this machine's kind of device; nothing runs."""
    state = abstract_state(model_config(cfg, remat="full", tied=False))
    model, opt = (mesh.abstract_arrays(x, mesh.shardings(x)) for x in (state["model"], state["opt"]))
    rows = mesh.row_shards()
    batch = {name: x[None] for name, x in pack_batch([[]] * rows, 4096, 64).items()}
    used = training.plan_memory(model, opt, mesh.shard_batch(batch, rows, axis=1), LOSS)
    return {f"{name}_gb": x for name, x in used.items()}


@functools.partial(jax.jit, static_argnames="attention")
def both_passes(attention: Callable, q, k, v, until_BL, do):
    """The output of attention and the gradients of q, k and v."""
    o, pull = jax.vjp(lambda *qkv: attention(*qkv, until_BL), q, k, v)
    return o, *pull(do)


def bench_attention(cfg: BenchConfig, attention: Callable) -> Numbers:
    """Both passes on a batch; their largest errors, as shares of the largest number of float32's `dense`."""
    m, (batch, tokens) = model_config(cfg), random_batch(cfg)
    until_BL = np.minimum(batch["visible_until"], batch["ids"].shape[1] - 1)  # padding sees padding
    shapes = [(*until_BL.shape, heads, m.head_dim) for heads in (m.heads, m.kv_heads, m.kv_heads, m.heads)]
    q, k, v, do = (jax.random.normal(jax.random.key(i), shape, m.dtype) for i, shape in enumerate(shapes))
    with jax.default_matmul_precision("highest"):
        exact = both_passes(dense, *(x.astype("float32") for x in (q, k, v)), until_BL, do.astype("float32"))
    pairs = zip(both_passes(attention, q, k, v, until_BL, do), exact, strict=True)
    errors = [float(jnp.abs(x - y).max() / jnp.abs(y).max()) for x, y in pairs]
    numbers = measure(lambda: both_passes(attention, q, k, v, until_BL, do), tokens, cfg.repeats)
    return numbers | {"output_error": errors[0], "gradient_error": max(errors[1:])}


def bench_accelerator(cfg: BenchConfig) -> Numbers:
    """What a GPU or TPU runs: its attention beside plain attention, then models. What fails is printed."""
    numbers, attentions = {}, {"dense": dense, "kernel": attend}
    jobs = {name: functools.partial(bench_attention, attention=f) for name, f in attentions.items()}
    for shape in ACCELERATOR_SHAPES:
        cfg = dataclasses.replace(cfg, shape=shape, dtype="bfloat16", **ACCELERATOR_SIZES)
        for name, job in (jobs | MODEL_JOBS).items():
            try:
                numbers |= {f"{shape}/{name}/{key}": x for key, x in job(cfg).items()}
            except (RuntimeError, ValueError):  # of XLA, or of a kernel
                traceback.print_exc()
    return numbers


MODEL_JOBS = {"score": bench_score, "sampling": bench_sampling, "train": bench_train}
JOBS = MODEL_JOBS | {"memory": bench_memory, "accelerator": bench_accelerator}


@cli.command("bench", BenchConfig)
def main(cfg):
    """Prints a table and writes results.json."""
    raw_cfg, cfg = cfg, parse(cfg, BenchConfig, elsewhere=("cpu_devices", "distributed"))
    set_cpu_devices(max(raw_cfg.cpu_devices, cfg.mesh.fsdp * cfg.mesh.tensor))
    folder = run_folder.output_dir()
    run_folder.claim_folder(folder, raw_cfg)
    used = mesh.modest_mesh(cfg.rows, cfg.mesh)
    with jax.set_mesh(used):
        numbers = JOBS[cfg.what](cfg)
    about = {"device": jax.devices()[0].device_kind, "devices": used.size, "cpus": os.cpu_count()}
    about |= run_folder.versions()
    for name, x in (about | numbers).items():
        print(f"{name:<36}{f'{x:,.4g}' if isinstance(x, float) else x}")
    run_folder.write_json(folder / "results.json", numbers | about)


if __name__ == "__main__":
    main()
