"""Times training, scoring and sampling of a model with random weights: the jobs that peers.py does in other code.

The peer trains on the same random solutions in every step; it scores in sorted, padded batches of 32, where ours share
a problem's tokens; it samples one prompt at a time with transformers' `generate`, texts of a fixed length as ours.
"""

import dataclasses
import functools
import statistics
import time

import jax
import numpy as np
from flax import nnx

from prm_jax.bench import common
from prm_jax.bench.common import BenchConfig, Row
from prm_jax.checkpoints import hf
from prm_jax.data.units import probability
from prm_jax.examples import Example
from prm_jax.formats import Encoded, Format
from prm_jax.generate.sampling import Policy, Sampling
from prm_jax.launch.config import expect
from prm_jax.launch.mesh import shard_batch
from prm_jax.packing import layout_row, pack_batch, plan_rows
from prm_jax.scoring import HeadScorer, ScoringStats
from prm_jax.training import LossConfig, OptimizerConfig, make_optimizer, make_schedule, train_step

PLAIN = Format("plain", separator="\n")
PROBLEM, STEP = 80, 40  # tokens of what is scored
LOSS = LossConfig("prm", "bce", 1.0, 0.0)
OPTIMIZER = {
    "lr": 1e-4,
    "warmup": 0.1,
    "final_lr": 0.1,
    "weight_decay": 0.01,
    "b1": 0.9,
    "b2": 0.98,
    "clip": 1.0,
}
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
            batch = shard_batch(
                {name: x[None] for name, x in pack_batch(batch, L, T).items()}, t.rows, axis=1
            )
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


def bench_score(cfg: BenchConfig) -> list[Row]:
    s, rng, encoded = cfg.score, np.random.default_rng(cfg.seed), []
    shape, scores, ours = common.model_config(cfg, cfg.dtypes[0]), {}, {}
    for _ in range(s.problems):
        problem_L = rng.integers(0, shape.vocab, PROBLEM)
        for n in common.random_lengths(rng, s.candidates, s.mean_tokens, s.longest):
            ids_L = np.concatenate([problem_L, rng.integers(0, shape.vocab, n)]).astype(np.int32)
            ends_T = np.append(np.arange(PROBLEM + STEP, len(ids_L) - 1, STEP), len(ids_L) - 1).astype(
                np.int32
            )
            encoded.append(Encoded(ids_L, ends_T, PROBLEM))
    job = {"solutions": [{"ids": e.ids_L.tolist(), "step_end": e.step_end_T.tolist()} for e in encoded]}
    theirs = common.run_peer(cfg, job)  # first: an error in its environment is raised at once
    for dtype in cfg.dtypes:
        model = common.random_model(cfg, dtype)
        about = {"format": PLAIN, "label_kind": "correctness", "name": "bench"}
        scorer = HeadScorer(model=model, tokenizer=None, **about, batch_rows=s.rows, row_tokens=s.tokens)

        def score(scorer=scorer, dtype=dtype):
            scorer.stats = ScoringStats()
            scores[dtype] = scorer.score_encoded(encoded)

        ours[dtype] = common.median_seconds(score, 1, s.repeats)
        scores[dtype] = list(map(probability, scores[dtype]))
    work, width = scorer.stats, scorer.row_tokens
    rows = [
        [encoded[i].ids_L for i in pack]
        for pack in plan_rows([e.ids_L for e in encoded], width, share=True)[0]
    ]
    pairs = sum(int((layout_row(row, share=True)[0][1] + 1).sum()) for row in rows)
    flops = common.forward_flops(shape, work.computed, pairs)  # a shared token counts once
    return [
        Row("tokens", work.tokens, f"of {len(encoded)} solutions"),
        Row("tokens_a_computed_token", work.tokens / work.computed, "shared prefixes"),
        Row("padding_share", 1 - work.computed / work.places, f"{s.rows} rows of {width} tokens a batch"),
        *[Row(f"{dtype}_seconds", seconds, f"median of {s.repeats}") for dtype, seconds in ours.items()],
        *common.speed(cfg, work.tokens, flops, ours, {dtype: r["seconds"] for dtype, r in theirs.items()}),
        *common.differences(cfg, "score", scores, theirs, "largest, of P(good)"),
    ]


def bench_sampling(cfg: BenchConfig) -> list[Row]:
    s, rng, ours, greedy = cfg.sampling, np.random.default_rng(cfg.seed), {}, {}
    shape = common.model_config(cfg, cfg.dtypes[0])
    prompts = [tuple(rng.integers(1, shape.vocab, s.prompt_tokens).tolist()) for _ in range(s.prompts)]
    job = {"prompts": prompts, "n": s.n, "new_tokens": s.new_tokens}
    theirs = common.run_peer(cfg, job)  # first: an error in its environment is raised at once
    sampling, never_V = Sampling(1.0, None, 1.0, s.new_tokens), np.zeros(shape.vocab, bool)
    greedy_sampling = dataclasses.replace(sampling, temperature=0.0)
    for dtype in cfg.dtypes:
        model = common.random_model(cfg, dtype)
        policy = Policy(model, hf.load_tokenizer(hf.EMBEDDED), PLAIN, "bench", sampling, s.rows)

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
    same = {
        dtype: float((greedy[dtype] == np.array(r["greedy"])).cumprod().mean()) for dtype, r in theirs.items()
    }
    shape = f"{s.n} samples of each of {s.prompts} prompts of {before} tokens"
    note = "share of the greedy tokens of one prompt before the first that differs"
    return [
        Row("tokens", tokens, f"{shape}, {s.rows} rows at a time"),
        *[Row(f"{dtype}_seconds", seconds, f"median of {s.repeats}") for dtype, seconds in ours.items()],
        *common.speed(cfg, tokens, flops, ours, {dtype: r["seconds"] for dtype, r in theirs.items()}),
        *[Row(f"{cfg.peer}_{dtype}_same_tokens", share, note) for dtype, share in same.items()],
    ]
