"""Samples of random prompts, a fixed number of tokens each, so that both codes do equal work; the peer is `generate` of
transformers, one prompt at a time."""

import dataclasses
import statistics
import time

import jax
import numpy as np

from prm_jax.bench import common
from prm_jax.bench.common import BenchConfig, Row
from prm_jax.checkpoints import hf
from prm_jax.data.formats import Format
from prm_jax.generate.sampling import Policy, Sampling


def same_tokens(ours: np.ndarray, theirs: list) -> float:
    """Share of the greedy tokens before the first difference: rounding decides between two that are equally likely."""
    return float((ours == np.array(theirs)).cumprod().mean())


def bench_sampling(cfg: BenchConfig) -> list[Row]:
    s, rng, ours, greedy = cfg.sampling, np.random.default_rng(cfg.seed), {}, {}
    model = common.random_model(cfg, cfg.dtypes[0])
    prompts = [tuple(rng.integers(1, model.cfg.vocab, s.prompt_tokens).tolist()) for _ in range(s.prompts)]
    job = {"prompts": prompts, "n": s.n, "new_tokens": s.new_tokens}
    theirs = common.run_peer(cfg, model, job)  # first, so that what it lacks is said at once
    law, never_V = Sampling(1.0, None, 1.0, s.new_tokens), np.zeros(model.cfg.vocab, bool)
    for dtype in cfg.dtypes:
        model, seconds = common.random_model(cfg, dtype), []
        policy = Policy(model, hf.load_tokenizer(hf.EMBEDDED), Format("plain", separator="\n"), "bench", law, s.rows)

        def sample(policy, n):
            found, key = [], jax.random.key(cfg.seed)
            for group in policy.groups(prompts, lambda _: n):
                rows = [(p, p, j) for p in range(len(group)) for j in range(n)]
                found += policy.decode(group, rows, s.prompt_tokens, never_V, key, np.arange(len(prompts)))
            return found

        for _ in range(1 + s.repeats):  # the first compiles
            start = time.perf_counter()
            sample(policy, s.n)
            seconds.append(time.perf_counter() - start)
        ours[dtype] = statistics.median(seconds[1:])
        greedy[dtype] = sample(dataclasses.replace(policy, sampling=dataclasses.replace(law, temperature=0.0)), 1)[0][0]
    tokens, before, after = s.prompts * s.n * s.new_tokens, s.prompt_tokens, s.prompt_tokens + s.new_tokens
    pairs = lambda n: n * (n + 1) // 2
    pairs = s.prompts * (pairs(before) + s.n * (pairs(after) - pairs(before)))
    flops = common.forward_flops(model.cfg, tokens + s.prompts * before, pairs)
    flops += 2 * tokens * model.cfg.dim * model.cfg.vocab
    shape = f"{s.n} samples of each of {s.prompts} prompts of {before} tokens"
    note = "share of the greedy tokens of one prompt before the first that differs"
    return [
        Row("tokens", tokens, f"{shape}, {s.rows} rows at a time"),
        *[Row(f"{dtype}_seconds", seconds, f"median of {s.repeats}") for dtype, seconds in ours.items()],
        *common.speed(cfg, tokens, flops, ours, {dtype: r["seconds"] for dtype, r in theirs.items()}),
        *[Row(f"{cfg.peer}_{d}_same_tokens", same_tokens(greedy[d], r["greedy"]), note) for d, r in theirs.items()],
    ]
