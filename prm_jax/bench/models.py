"""The bench's jobs for models: training, scoring and starting. peers.py does the first two in PyTorch.

FLOPs that count as useful are those of the solutions' own tokens: no credit for padding or for computing again. They are
set against the largest rate that a matrix product shows on this machine.
"""

import dataclasses
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from prm_jax import InputError
from prm_jax.bench.__main__ import BenchConfig, Row, matmul_peak
from prm_jax.checkpoints import hf, hf_config
from prm_jax.data import pools
from prm_jax.data.examples import Example
from prm_jax.data.formats import Encoded, Format, encode
from prm_jax.data.packing import layout_row, pack_batch, plan_rows
from prm_jax.data.units import probability
from prm_jax.launch.hosts import set_cpu_devices
from prm_jax.launch.mesh import check_divides, make_mesh, make_sharded, shard_batch
from prm_jax.model import PRM, ModelConfig
from prm_jax.scoring import ModelScorer, ScoringStats
from prm_jax.training import LossConfig, OptimizerConfig, make_optimizer, make_schedule, train_step

PLAIN = Format("plain", separator="\n")
OPTIMIZER = {
    "lr": 1e-4,
    "warmup": 0.1,
    "final_lr": 0.1,
    "weight_decay": 0.01,
    "b1": 0.9,
    "b2": 0.98,
    "clip": 1.0,
    "trainable": "all",
    "mu_dtype": "float32",
    "nu_dtype": "float32",
}


def make_model(cfg: BenchConfig) -> PRM:
    """Random weights of the shape asked for; a head of two classes, which PyTorch has too."""
    shape = dataclasses.replace(cfg.model, head="binary")
    model_cfg, _ = hf_config.resolve_model(shape, hf_config.read_config(hf.EMBEDDED), "model", head="binary")
    check_divides(model_cfg, getattr(cfg, cfg.what).rows, f"{cfg.what}.rows")
    return make_sharded(lambda: PRM(model_cfg, rngs=nnx.Rngs(cfg.seed)))


def on_mesh(bench: Callable) -> Callable:
    """The bench of one job, on the first devices, as many as the mesh asked for has."""

    def run(cfg: BenchConfig) -> list[Row]:
        rows, n = getattr(cfg, cfg.what).rows, math.prod(vars(cfg.mesh).values())
        set_cpu_devices(n)
        with jax.set_mesh(make_mesh(cfg.mesh, rows, jax.devices()[:n])):
            return bench(cfg)

    return run


def forward_flops(cfg: ModelConfig, tokens: int, pairs: int) -> float:
    """Of the matrix products of one forward pass: 2 a parameter and token (embeddings are look-ups), 4 K a head and visible
    pair of tokens. A backward pass costs twice as many again."""
    D, F, K = cfg.dim, cfg.ffn, cfg.head_dim
    products = D * (2 * cfg.heads + 2 * cfg.kv_heads) * K + 3 * D * F
    return cfg.layers * (2 * products * tokens + 4 * cfg.heads * K * pairs)


def random_lengths(rng, n: int, mean: float, longest: int) -> np.ndarray:
    """Token counts of solutions: log-normal with sigma 0.5, as on GSM8K and MATH, cut at `longest`."""
    return np.clip(rng.lognormal(np.log(mean) - 0.125, 0.5, n), 8, longest).astype(int)


def memory() -> list[Row]:
    device = jax.devices()[0].memory_stats() or {}  # None on CPU
    return [
        Row("process_peak_mib", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        Row("device_peak_mib", device.get("peak_bytes_in_use", float("nan")) / 2**20),
    ]


# The peer, in a process of its own

PEER_NEEDS = {  # what it imports, and what to install where that fails
    "torch": ("import transformers, torch", "torch transformers"),
    "trl": ("import trl.experimental.prm, transformers, torch", "torch trl==1.13.0"),  # the last that has it
}


def run_peer_python(cfg: BenchConfig, *args: str):
    """(exit code, last line of the errors) of the peer's interpreter; nothing of ours is on its path, nor the network."""
    env = os.environ | {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    try:
        done = subprocess.run(
            [cfg.peer_python or sys.executable, "-P", *args], capture_output=True, text=True, env=env, check=False
        )
    except OSError as error:
        raise InputError(f"peer_python: cannot be run: {error}") from error
    return done.returncode, (done.stderr.strip().splitlines() or ["no message"])[-1]


def peer_dtypes(cfg: BenchConfig) -> list[str]:
    """In which the peer runs. Raises InputError, before anything is measured, where it lacks a package."""
    if cfg.peer is None:
        return []
    imports, packages = PEER_NEEDS[cfg.peer]
    failed, error = run_peer_python(cfg, "-c", imports)
    if failed:
        python = cfg.peer_python or sys.executable
        raise InputError(
            f"peer={cfg.peer}: {python} cannot import it ({error}); `pip install {packages}` in an environment of "
            "its own and give peer_python=ENVIRONMENT/bin/python"
        )
    return ["float32", "bfloat16"]


def run_peer(cfg: BenchConfig, folder: Path, dtype: str, **job) -> dict:
    """The result of a job of peers.py on the model in `folder`.

    Training: steps (of each its solutions: ids, marks, labels), rates, b1, b2, weight_decay, clip; gives seconds and
    losses of each step. Scoring: solutions (ids, marks); gives seconds of all and scores of each.
    """
    (folder / "job.json").write_text(json.dumps({"what": cfg.what, "peer": cfg.peer, "dtype": dtype} | job))
    failed, error = run_peer_python(cfg, str(Path(__file__).with_name("peers.py")), str(folder))
    if failed:
        raise InputError(f"peer={cfg.peer}: failed in {dtype} ({error})")
    return json.loads((folder / "result.json").read_text())


# Training


def balanced(lengths, groups: int, size: int) -> list[list[int]]:
    """`groups` lists of `size` indices with nearly equal sums of lengths: the longest first, each to the smallest sum."""
    found, total = [[] for _ in range(groups)], np.zeros(groups)
    for i in np.argsort(-np.asarray(lengths), kind="stable"):
        open_groups = [g for g in range(groups) if len(found[g]) < size]
        g = min(open_groups, key=lambda g: total[g])
        found[g].append(int(i))
        total[g] += lengths[i]
    return found


def for_peer(e: Example) -> dict:
    """A training example as peers.py takes it."""
    return {"ids": e.ids_L.tolist(), "marks": e.step_end_T.tolist(), "labels": e.targets["label"].astype(int).tolist()}


@on_mesh
def bench_train(cfg: BenchConfig) -> list[Row]:
    """Optimiser steps of the PRM objective on random solutions; the peer takes the same solutions in every step."""
    dtypes = peer_dtypes(cfg)
    model, rng, t = make_model(cfg), np.random.default_rng(cfg.seed), cfg.train
    n_steps = cfg.warmup + cfg.repeats
    lengths = random_lengths(rng, n_steps * t.solutions, t.mean_tokens, t.longest)

    def solution(n):
        marks = max(1, n // t.tokens_a_step)
        step_end_T = np.sort(rng.choice(n, marks, replace=False)).astype(np.int32)
        label_T = rng.integers(0, 2, marks).astype(np.float32)
        ids_L = rng.integers(0, model.cfg.vocab, n).astype(np.int32)
        return Example(ids_L, step_end_T, 0, {"label": label_T, "weight": np.ones(marks, np.float32)})

    examples = [solution(n) for n in lengths]
    steps = balanced(lengths, n_steps, t.solutions)
    rows = [balanced(lengths[step], t.rows, t.solutions) for step in steps]
    widest = max(sum(lengths[step[i]] for i in row) for step, here in zip(steps, rows, strict=True) for row in here)
    L = -(-int(widest) // 16) * 16
    marks = max(
        sum(len(examples[step[i]].step_end_T) for i in row)
        for step, here in zip(steps, rows, strict=True)
        for row in here
    )
    batches = []
    for step, here in zip(steps, rows, strict=True):
        batch = pack_batch([[examples[step[i]] for i in row] for row in here], L, marks)
        batches.append(shard_batch({name: x[None] for name, x in batch.items()}, t.rows, axis=1))

    optimizer = OptimizerConfig(**OPTIMIZER)
    scratch = tempfile.TemporaryDirectory()
    folder = Path(scratch.name)
    if dtypes:
        hf.save(folder, model, hf.load_tokenizer(hf.EMBEDDED))
    opt, key, loss_cfg = (make_optimizer(model, optimizer, n_steps), jax.random.key(0), LossConfig("prm", 1.0, 0.0))
    seconds, losses = [], []
    for batch in batches:
        start = time.perf_counter()
        model, opt, metrics = train_step(model, opt, batch, loss_cfg, key)
        losses.append(float(metrics["loss"]))
        seconds.append(time.perf_counter() - start)
    timed = slice(cfg.warmup, None)
    tokens = [sum(lengths[i] for i in step) for step in steps]
    useful = sum(tokens[timed])
    rate = useful / sum(seconds[timed])
    pairs = sum(int(lengths[i]) * (int(lengths[i]) + 1) // 2 for step in steps[timed] for i in step)
    peak = matmul_peak(model.cfg.dtype, cfg.warmup, cfg.repeats)
    achieved = 3 * forward_flops(model.cfg, useful, pairs) / sum(seconds[timed])
    out = [
        Row("parameters", sum(x.size for x in jax.tree.leaves(nnx.state(model)))),
        Row("padding_share", 1 - sum(tokens) / (n_steps * t.rows * L), f"rows of {L} tokens, one shape"),
        Row(
            "step_seconds",
            statistics.median(seconds[timed]),
            f"{t.solutions} solutions, {useful / cfg.repeats:.0f} tokens",
        ),
        Row("useful_tokens_per_second", rate, f"ours, computed in {model.cfg.dtype}"),
        Row("matmul_peak_gflops", peak / 1e9),
        Row("achieved_gflops", achieved / 1e9),
        Row("share_of_matmul_peak", achieved / peak),
        *memory(),
    ]
    schedule = make_schedule(optimizer, n_steps)
    job = {
        "steps": [[for_peer(examples[i]) for i in step] for step in steps],
        "rates": [float(schedule(step)) for step in range(n_steps)],
        **{name: OPTIMIZER[name] for name in ("b1", "b2", "weight_decay", "clip")},
    }
    padded = sum(len(step) * max(lengths[i] for i in step) for step in steps)
    for dtype in dtypes:
        theirs, peer = run_peer(cfg, folder, dtype, **job), f"{cfg.peer}_{dtype}"
        theirs_rate = useful / sum(theirs["seconds"][timed])
        worst = max(abs(a - b) for a, b in zip(losses, theirs["losses"], strict=True))
        out += [
            Row(
                f"{peer}_tokens_per_second",
                theirs_rate,
                f"{1 - sum(tokens) / padded:.0%} of what it computes is padding",
            ),
            Row(f"times_{peer}", rate / theirs_rate),
            Row(f"{peer}_loss_difference", worst, f"largest of {n_steps} steps from the same weights"),
        ]
    scratch.cleanup()
    return out


# Scoring


def scoring_job(cfg: BenchConfig, vocab: int) -> list[Encoded]:
    """Candidates of a pool, ids modulo the vocabulary; without a pool random ones that share their problem alone."""
    s = cfg.score
    if s.pool is not None:
        problems = pools.read_pool(s.pool)[: s.problems]
        rows = [(p.problem, c.steps) for p in problems for c in p.candidates]
        encoded = encode(PLAIN, hf.load_tokenizer(Path(s.tokenizer)), rows)
        return [dataclasses.replace(e, ids_L=e.ids_L % vocab) for e in encoded]
    rng, found = np.random.default_rng(cfg.seed), []
    for _ in range(s.problems):
        prompt_L = rng.integers(0, vocab, 80)
        for n in random_lengths(rng, s.candidates, s.mean_tokens, s.longest):
            ids_L = np.concatenate([prompt_L, rng.integers(0, vocab, n)]).astype(np.int32)
            found.append(Encoded(ids_L, np.arange(100, len(ids_L), 40, dtype=np.int32), 80))
    return found


@on_mesh
def bench_score(cfg: BenchConfig) -> list[Row]:
    """Step scores of all candidates of a pool; the peer sorts by length and pads per batch of 32."""
    dtypes = peer_dtypes(cfg)
    model, s = make_model(cfg), cfg.score
    encoded = scoring_job(cfg, model.cfg.vocab)
    scorer, seconds = ModelScorer(model, None, PLAIN, "correctness", "prm", "bench", None, s.rows, s.tokens), []
    for _ in range(1 + s.repeats):  # the first compiles
        scorer.stats, start = ScoringStats(), time.perf_counter()
        scores = scorer.score_encoded(encoded)
        seconds.append(time.perf_counter() - start)
    work, width = scorer.stats, scorer.row_tokens
    seconds = statistics.median(seconds[1:])
    packs, _ = plan_rows([e.ids_L for e in encoded], width, share=True)
    pairs = 0
    for pack in packs:
        _, pos_n, _, _ = layout_row([encoded[i].ids_L for i in pack], share=True)
        pairs += int(pos_n.sum()) + len(pos_n)
    peak = matmul_peak(model.cfg.dtype, cfg.warmup, cfg.repeats)
    achieved = forward_flops(model.cfg, work.computed, pairs) / seconds
    out = [
        Row("solutions", len(encoded)),
        Row("tokens", work.tokens),
        Row("tokens_a_computed_token", work.tokens / work.computed, "shared prefixes"),
        Row("padding_share", 1 - work.computed / work.places, f"{s.rows} rows of {width} tokens a batch"),
        Row("compiled_shapes", len(work.shapes)),
        Row("seconds", seconds),
        Row("useful_tokens_per_second", work.tokens / seconds, f"ours, computed in {model.cfg.dtype}"),
        Row("matmul_peak_gflops", peak / 1e9),
        Row("achieved_gflops", achieved / 1e9, "of computed tokens: a shared one counts once"),
        Row("share_of_matmul_peak", achieved / peak),
        *memory(),
    ]
    job = {"solutions": [{"ids": e.ids_L.tolist(), "marks": e.step_end_T.tolist()} for e in encoded]}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if dtypes:
            hf.save(folder, model, hf.load_tokenizer(hf.EMBEDDED))
        for dtype in dtypes:
            theirs, peer = run_peer(cfg, folder, dtype, **job), f"{cfg.peer}_{dtype}"
            worst = max(float(np.abs(probability(a) - b).max()) for a, b in zip(scores, theirs["scores"], strict=True))
            out += [
                Row(f"{peer}_tokens_per_second", work.tokens / theirs["seconds"]),
                Row(f"times_{peer}", theirs["seconds"] / seconds),
                Row(f"{peer}_score_difference", worst),
            ]
    return out


# Starting


LATE = ("torch", "datasets", "matplotlib", "math_verify", "transformers")  # packages that wait until they are needed


def bench_startup(cfg: BenchConfig) -> list[Row]:
    """Wall seconds of fresh processes that import a module, and which of the packages that should wait it imports too."""
    program = "import json, sys; import {}; print(json.dumps([m for m in {} if m in sys.modules]))"
    out = []
    for module in ("prm_jax.rerank", "prm_jax.scoring", "prm_jax.model"):
        seconds = []
        for _ in range(cfg.repeats):
            start = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", program.format(module, LATE)], capture_output=True, text=True, check=True
            )
            seconds.append(time.perf_counter() - start)
        early = ", ".join(json.loads(done.stdout)) or "none"
        out.append(
            Row(f"import_{module.split('.')[1]}_seconds", statistics.median(seconds), f"imported too early: {early}")
        )
    return out
