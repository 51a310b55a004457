"""Times optimiser steps of the PRM objective on random solutions; the peer trains on the same ones in every step."""

import statistics
import time

import jax
import numpy as np
from flax import nnx

from prm_jax.bench import common
from prm_jax.bench.common import BenchConfig, Row
from prm_jax.data.examples import Example
from prm_jax.data.packing import pack_batch
from prm_jax.launch.config import expect
from prm_jax.launch.mesh import shard_batch
from prm_jax.training import LossConfig, OptimizerConfig, make_optimizer, make_schedule, train_step

LOSS = LossConfig("prm", "bce", 1.0, 0.0)
OPTIMIZER = {"lr": 1e-4, "warmup": 0.1, "final_lr": 0.1, "weight_decay": 0.01, "b1": 0.9, "b2": 0.98, "clip": 1.0}
OPTIMIZER |= {"trainable": "all", "mu_dtype": "float32"}


def balanced(lengths, groups: int, size: int) -> list[list[int]]:
    """`groups` lists of `size` indices with nearly equal sums of lengths: the longest goes first to the least sum."""
    members, total = [[] for _ in range(groups)], np.zeros(groups)
    for i in np.argsort(-np.asarray(lengths), kind="stable"):
        g = int(total.argmin())
        members[g].append(int(i))
        total[g] = total[g] + lengths[i] if len(members[g]) < size else np.inf
    return members


def random_example(rng, n: int, vocab: int, tokens_a_step: int) -> Example:
    T = max(1, n // tokens_a_step)
    step_end_T = np.sort(rng.choice(n, T, replace=False)).astype(np.int32)
    targets = {"label": rng.integers(0, 2, T).astype(np.float32), "weight": np.ones(T, np.float32)}
    return Example(rng.integers(0, vocab, n).astype(np.int32), step_end_T, 0, targets)


def as_json(example: Example) -> dict:
    """An example as job.json of peers.py holds it."""
    label = example.targets["label"].astype(int)
    return {"ids": example.ids_L.tolist(), "step_end": example.step_end_T.tolist(), "label": label.tolist()}


def packed_steps(cfg: BenchConfig, vocab: int):
    """(the rows of examples of each step, tokens a row, step ends a row)."""
    t, rng, n_steps = cfg.train, np.random.default_rng(cfg.seed), cfg.warmup + cfg.repeats
    expect(t.solutions % t.rows == 0, "train.rows", t.rows, f"a divisor of train.solutions ({t.solutions})")
    lengths = common.random_lengths(rng, n_steps * t.solutions, t.mean_tokens, t.longest)
    examples = [random_example(rng, n, vocab, t.tokens_a_step) for n in lengths]
    rows = [[examples[i] for i in row] for row in balanced(lengths, n_steps * t.rows, t.solutions // t.rows)]
    L = -(-max(sum(len(e.ids_L) for e in row) for row in rows) // 16) * 16
    T = max(sum(len(e.step_end_T) for e in row) for row in rows)
    return [rows[i : i + t.rows] for i in range(0, len(rows), t.rows)], L, T


def bench_train(cfg: BenchConfig) -> list[Row]:
    t, n_steps = cfg.train, cfg.warmup + cfg.repeats
    batches, L, T = packed_steps(cfg, common.model_config(cfg, cfg.dtypes[0]).vocab)
    steps = [[e for row in batch for e in row] for batch in batches]

    optimizer, ours, losses = OptimizerConfig(**OPTIMIZER), {}, {}
    rates = [float(make_schedule(optimizer, n_steps)(i)) for i in range(n_steps)]
    job = {"steps": [[as_json(e) for e in step] for step in steps], "rates": rates} | OPTIMIZER
    theirs = common.run_peer(cfg, job)  # first: an error in its environment is raised at once
    for dtype in cfg.dtypes:
        model, ours[dtype], losses[dtype] = common.random_model(cfg, dtype), [], []
        opt = make_optimizer(model, optimizer, n_steps)
        for batch in batches:
            batch = shard_batch({name: x[None] for name, x in pack_batch(batch, L, T).items()}, t.rows, axis=1)
            start = time.perf_counter()
            model, opt, metrics = train_step(model, opt, batch, LOSS, jax.random.key(0))
            losses[dtype].append(float(metrics["loss"]))
            ours[dtype].append(time.perf_counter() - start)

    timed = slice(cfg.warmup, None)
    n = [len(e.ids_L) for step in steps[timed] for e in step]
    flops = 3 * common.forward_flops(model.cfg, sum(n), sum(x * (x + 1) // 2 for x in n))
    tokens = sum(len(e.ids_L) for step in steps for e in step)
    places = sum(len(step) * max(len(e.ids_L) for e in step) for step in steps)
    note = f"median of {cfg.repeats}; {t.solutions} solutions, {sum(n) / cfg.repeats:.0f} tokens"
    seconds = {dtype: sum(s[timed]) for dtype, s in ours.items()}
    peer_seconds = {dtype: sum(result["seconds"][timed]) for dtype, result in theirs.items()}
    return [
        Row("parameters", sum(x.size for x in jax.tree.leaves(nnx.state(model)))),
        Row("padding_share", 1 - tokens / (n_steps * t.rows * L), f"ours: rows of {L} tokens, one shape"),
        Row("peer_padding_share", 1 - tokens / places, f"of {t.solutions} solutions padded to the longest"),
        *[Row(f"{dtype}_step_seconds", statistics.median(s[timed]), note) for dtype, s in ours.items()],
        *common.speed(cfg, sum(n), flops, seconds, peer_seconds),
        *common.differences(cfg, "loss", losses, theirs, f"largest of {n_steps} steps from equal weights"),
    ]
