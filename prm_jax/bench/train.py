"""Optimiser steps of the PRM objective on random solutions; a peer takes the same solutions in every step."""

import statistics
import time

import jax
import numpy as np
from flax import nnx

from prm_jax.bench import measure
from prm_jax.bench.measure import BenchConfig, Row
from prm_jax.data.examples import Example
from prm_jax.data.packing import pack_batch
from prm_jax.launch.config import expect
from prm_jax.launch.mesh import shard_batch
from prm_jax.training import LossConfig, OptimizerConfig, make_optimizer, make_schedule, train_step

LOSS = LossConfig("prm", "bce", 1.0, 0.0)
OPTIMIZER = {"lr": 1e-4, "warmup": 0.1, "final_lr": 0.1, "weight_decay": 0.01, "b1": 0.9, "b2": 0.98, "clip": 1.0}
OPTIMIZER |= {"trainable": "all", "mu_dtype": "float32"}


def balanced(lengths, groups: int, size: int) -> list[list[int]]:
    """`groups` lists of `size` indices with nearly equal sums of lengths: the longest first, each to the smallest sum."""
    found, total = [[] for _ in range(groups)], np.zeros(groups)
    for i in np.argsort(-np.asarray(lengths), kind="stable"):
        g = int(total.argmin())
        found[g].append(int(i))
        total[g] = total[g] + lengths[i] if len(found[g]) < size else np.inf
    return found


def random_example(rng, n: int, vocab: int, tokens_a_step: int) -> Example:
    T = max(1, n // tokens_a_step)
    step_end_T = np.sort(rng.choice(n, T, replace=False)).astype(np.int32)
    targets = {"label": rng.integers(0, 2, T).astype(np.float32), "weight": np.ones(T, np.float32)}
    return Example(rng.integers(0, vocab, n).astype(np.int32), step_end_T, 0, targets)


def bench_train(cfg: BenchConfig) -> list[Row]:
    t, rng, n_steps = cfg.train, np.random.default_rng(cfg.seed), cfg.warmup + cfg.repeats
    expect(t.solutions % t.rows == 0, "train.rows", t.rows, f"a divisor of train.solutions ({t.solutions})")
    model = measure.random_model(cfg, cfg.dtypes[0])
    lengths = measure.random_lengths(rng, n_steps * t.solutions, t.mean_tokens, t.longest)
    examples = [random_example(rng, n, model.cfg.vocab, t.tokens_a_step) for n in lengths]
    rows = [[examples[i] for i in row] for row in balanced(lengths, n_steps * t.rows, t.solutions // t.rows)]
    batches = [rows[at : at + t.rows] for at in range(0, len(rows), t.rows)]
    steps = [[e for row in batch for e in row] for batch in batches]
    L = -(-max(sum(len(e.ids_L) for e in row) for row in rows) // 16) * 16
    T = max(sum(len(e.step_end_T) for e in row) for row in rows)

    optimizer, ours, losses = OptimizerConfig(**OPTIMIZER), {}, {}
    rates = [float(make_schedule(optimizer, n_steps)(i)) for i in range(n_steps)]
    labels = lambda e: e.targets["label"].astype(int).tolist()
    solution = lambda e: {"ids": e.ids_L.tolist(), "step_end": e.step_end_T.tolist(), "label": labels(e)}
    job = {"steps": [[solution(e) for e in step] for step in steps], "rates": rates} | OPTIMIZER
    theirs = measure.run_peer(cfg, model, job)  # first, so that what it lacks is said at once
    for dtype in cfg.dtypes:
        model, ours[dtype], losses[dtype] = measure.random_model(cfg, dtype), [], []
        opt = make_optimizer(model, optimizer, n_steps)
        for batch in batches:
            batch = shard_batch({name: x[None] for name, x in pack_batch(batch, L, T).items()}, t.rows, axis=1)
            start = time.perf_counter()
            model, opt, metrics = train_step(model, opt, batch, LOSS, jax.random.key(0))
            losses[dtype].append(float(metrics["loss"]))
            ours[dtype].append(time.perf_counter() - start)

    timed = slice(cfg.warmup, None)
    n = [len(e.ids_L) for step in steps[timed] for e in step]
    flops = 3 * measure.forward_flops(model.cfg, sum(n), sum(x * (x + 1) // 2 for x in n))
    places = sum(len(step) * max(len(e.ids_L) for e in step) for step in steps)
    note = f"median of {cfg.repeats}; {t.solutions} solutions, {sum(n) / cfg.repeats:.0f} tokens"
    seconds = {dtype: sum(s[timed]) for dtype, s in ours.items()}
    peer_seconds = {dtype: sum(result["seconds"][timed]) for dtype, result in theirs.items()}
    return [
        Row("parameters", sum(x.size for x in jax.tree.leaves(nnx.state(model)))),
        Row("padding_share", 1 - lengths.sum() / (len(rows) * L), f"ours: rows of {L} tokens, one shape"),
        Row("peer_padding_share", 1 - lengths.sum() / places, f"of {t.solutions} solutions padded to the longest"),
        *[Row(f"{dtype}_step_seconds", statistics.median(s[timed]), note) for dtype, s in ours.items()],
        *measure.speed(cfg, sum(n), flops, seconds, peer_seconds),
        *measure.differences(cfg, "loss", losses, theirs, f"largest of {n_steps} steps from equal weights"),
    ]
