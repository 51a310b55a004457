"""Times samples of a fixed length for random prompts; the peer is transformers' `generate`, one prompt at a time."""

import dataclasses
import functools

import jax
import numpy as np

from prm_jax.bench import common
from prm_jax.bench.common import BenchConfig, Row
from prm_jax.checkpoints import hf
from prm_jax.data.formats import Format
from prm_jax.generate.sampling import Policy, Sampling


def bench_sampling(cfg: BenchConfig) -> list[Row]:
    s, rng, ours, greedy = cfg.sampling, np.random.default_rng(cfg.seed), {}, {}
    shape = common.model_config(cfg, cfg.dtypes[0])
    prompts = [tuple(rng.integers(1, shape.vocab, s.prompt_tokens).tolist()) for _ in range(s.prompts)]
    job = {"prompts": prompts, "n": s.n, "new_tokens": s.new_tokens}
    theirs = common.run_peer(cfg, job)  # first: an error in its environment is raised at once
    sampling, never_V = Sampling(1.0, None, 1.0, s.new_tokens), np.zeros(shape.vocab, bool)
    greedy_sampling = dataclasses.replace(sampling, temperature=0.0)
    for dtype in cfg.dtypes:
        model, plain = common.random_model(cfg, dtype), Format("plain", separator="\n")
        policy = Policy(model, hf.load_tokenizer(hf.EMBEDDED), plain, "bench", sampling, s.rows)

        def sample(policy, n):
            samples, key = [], jax.random.key(cfg.seed)
            for group in policy.groups(prompts, lambda _: n):
                rows = [(p, p, j) for p in range(len(group)) for j in range(n)]
                samples += policy.decode(group, rows, s.prompt_tokens, never_V, key, np.arange(len(prompts)))
            return samples

        ours[dtype] = common.median_seconds(functools.partial(sample, policy, s.n), 1, s.repeats)
        if theirs:
            greedy[dtype] = sample(dataclasses.replace(policy, sampling=greedy_sampling), 1)[0][0]
    tokens, before, after = s.prompts * s.n * s.new_tokens, s.prompt_tokens, s.prompt_tokens + s.new_tokens
    prompt_pairs, all_pairs = (n * (n + 1) // 2 for n in (before, after))
    pairs = s.prompts * (prompt_pairs + s.n * (all_pairs - prompt_pairs))
    flops = common.forward_flops(shape, tokens + s.prompts * before, pairs)
    flops += 2 * tokens * shape.dim * shape.vocab
    # Where two tokens are equally likely, rounding decides.
    same = {dtype: float((greedy[dtype] == np.array(r["greedy"])).cumprod().mean()) for dtype, r in theirs.items()}
    shape = f"{s.n} samples of each of {s.prompts} prompts of {before} tokens"
    note = "share of the greedy tokens of one prompt before the first that differs"
    return [
        Row("tokens", tokens, f"{shape}, {s.rows} rows at a time"),
        *[Row(f"{dtype}_seconds", seconds, f"median of {s.repeats}") for dtype, seconds in ours.items()],
        *common.speed(cfg, tokens, flops, ours, {dtype: r["seconds"] for dtype, r in theirs.items()}),
        *[Row(f"{cfg.peer}_{dtype}_same_tokens", share, note) for dtype, share in same.items()],
    ]
