"""How fast, against what, and how far from the machine's limit? Medians of repeated calls; results.json and a table."""

import dataclasses
import math
import os
import random
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax import InputError, rerank
from prm_jax.checkpoints import hf_config
from prm_jax.kernels.products import matmul
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import parse
from prm_jax.launch.mesh import MeshConfig


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    solutions: int
    rows: int
    mean_tokens: float
    longest: int
    tokens_a_step: int

    def __post_init__(self):
        at_least_1("train", self)
        if self.solutions % self.rows:
            raise InputError(f"train.rows: got {self.rows}, expected a divisor of train.solutions ({self.solutions})")


@dataclasses.dataclass(frozen=True)
class ScoreConfig:
    pool: str | None
    tokenizer: str | None
    problems: int
    candidates: int
    mean_tokens: float
    longest: int
    rows: int
    tokens: int | None
    repeats: int

    def __post_init__(self):
        at_least_1("score", self)
        if (self.pool is None) != (self.tokenizer is None):
            raise InputError(
                "score.tokenizer: expected a folder with a tokenizer where score.pool is given, and only there"
            )


def at_least_1(section: str, cfg):
    for name, x in vars(cfg).items():
        if isinstance(x, int | float) and x < 1:
            raise InputError(f"{section}.{name}: got {x}, expected at least 1")


@dataclasses.dataclass(frozen=True)
class RerankConfig:
    problems: int
    candidates: int
    steps: int
    betas: int
    trials: int
    timed_trials: int

    def __post_init__(self):
        at_least_1("rerank", self)
        if self.timed_trials > self.trials:
            raise InputError(
                f"rerank.timed_trials: got {self.timed_trials}, expected at most rerank.trials ({self.trials})"
            )


@dataclasses.dataclass(frozen=True)
class BenchConfig:
    """conf/bench.yaml says what each key means."""

    what: str
    model: hf_config.ModelChoice
    train: TrainConfig
    score: ScoreConfig
    rerank: RerankConfig
    peer: str | None
    peer_python: str | None
    mesh: MeshConfig
    warmup: int
    repeats: int
    seed: int

    def __post_init__(self):
        if self.warmup < 0 or self.repeats < 1:
            raise InputError(f"warmup, repeats: got {self.warmup}, {self.repeats}, expected at least 0, 1")
        if self.mesh.data is None:
            raise InputError("mesh.data: got null, expected a number")
        peers = {"train": ("torch", "trl"), "score": ("torch",)}.get(self.what, ())
        if self.peer not in (None, *peers):
            raise InputError(f"peer: got {self.peer!r}, expected {', '.join(('null', *peers))} where what={self.what}")


class Row(NamedTuple):
    """A line of the table. In results.json the value stands under the name, which ends with its unit."""

    name: str
    value: float
    note: str = ""


@cli.command("bench")
def main(cfg):
    """Measure the speed of training, scoring, reranking or starting on this machine."""
    given, cfg = cfg, parse(cfg, BenchConfig)
    match cfg.what:
        case "rerank":
            bench = bench_rerank
        case "train" | "score" | "startup":
            from prm_jax.bench import models as bench_models  # which imports this module's table and timers

            bench = getattr(bench_models, f"bench_{cfg.what}")
        case _:
            raise InputError(f"what: got {cfg.what!r}, expected train, score, rerank or startup")
    run_folder.create_run_folder(run_folder.output_dir(), given)
    rows = bench(cfg)
    print(table(rows))
    machine = {"device": jax.devices()[0].device_kind, "cpus": os.cpu_count(), "versions": run_folder.versions()}
    notes = {row.name: row.note for row in rows if row.note}
    path = run_folder.output_dir() / "results.json"
    run_folder.write_json(path, {row.name: row.value for row in rows} | {"notes": notes} | machine)
    print(f"results     {path}")


def table(rows: list[Row]) -> str:
    number = lambda x: f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.4g}"
    return "\n".join(f"{name:<32}{number(x):>12}  {note}".rstrip() for name, x, note in rows)


def call_seconds(f, warmup: int, repeats: int) -> list[float]:
    """Wall times of f(), which returns arrays that are waited for."""
    times = []
    for i in range(warmup + repeats):
        start = time.perf_counter()
        jax.block_until_ready(f())
        times.append(time.perf_counter() - start)
    return times[warmup:]


def matmul_peak(dtype: str, warmup: int, repeats: int) -> float:
    """FLOP/s of the fastest of repeated large matrix products in the compute dtype, rows split over all devices of the mesh
    in use: the limit that they show."""
    mesh = jax.sharding.get_mesh()
    size = 2048 if mesh.devices.flat[0].platform == "cpu" else 8192  # long enough to hide an accelerator's launch
    rows = -(-size // mesh.size) * mesh.size
    a = jax.random.normal(jax.random.key(0), (rows, size), dtype)
    b = jax.random.normal(jax.random.key(1), (size, size), dtype)
    a, product = jax.device_put(a, NamedSharding(mesh, P(mesh.axis_names))), jax.jit(matmul)
    return 2 * rows * size**2 / min(call_seconds(lambda: product(a, b), warmup, repeats))


# Reranking: dimension key as in rerank.py; S trials, b betas

# Subset sizes of the published evaluation of PRM800K's verifiers (Lightman et al. 2023, figure 3), eval/eval.py.
PUBLISHED_SIZES = (10, 25, 50, 75, 100, 200, 300, 400, 500, 750, 1000, 1250, 1500, 1860)


def bench_rerank(cfg: BenchConfig) -> list[Row]:
    """Aggregation, exact best-of-n curves and reweighting of a synthetic pool, against shuffles of the same scores."""
    c, rng = cfg.rerank, np.random.default_rng(cfg.seed)
    pool = synthetic_pool(c, rng)
    logp_PNT, mask_PNT, right_PN, answered_PN = map(jnp.asarray, pool)
    beta_b = jnp.geomspace(1e-2, 1e2, c.betas)

    def aggregate_all():
        return rerank.aggregate_all(logp_PNT, mask_PNT, unit="logp")

    @jax.jit  # one program for all, in which the rank weights are computed once
    def curves(score):
        return {how: rerank.best_of_n(score_PN, right_PN, answered_PN) for how, score_PN in score.items()}

    def one_curve():
        score_PN = rerank.aggregate(logp_PNT, mask_PNT, "prod", unit="logp")
        return rerank.best_of_n(score_PN, right_PN, answered_PN)

    score = aggregate_all()
    seconds = lambda f: statistics.median(call_seconds(f, cfg.warmup, cfg.repeats))
    ours, every = seconds(one_curve), f"at every n of 1..{c.candidates:,}"
    rows = [
        Row("problems", c.problems),
        Row("candidates", c.candidates, f"a problem, {pool.answered_PN.mean():.0%} of them with an answer"),
        Row("steps", c.steps, f"a candidate at most, {pool.mask_PNT.sum(-1).mean():.1f} on average"),
        Row(
            "share_of_scores_exactly_1",
            float(np.mean(pool.logp_PNT[pool.mask_PNT] == 0)),
            "of the step scores, which are in half precision",
        ),
        Row("aggregate_all_seconds", seconds(aggregate_all), f"{len(score)} aggregators"),
        Row("curves_seconds", seconds(lambda: curves(score)), f"{len(score)} exact best-of-n curves {every}"),
        Row("aggregate_and_curves_seconds", seconds(lambda: curves(aggregate_all())), "both, in one go"),
        Row(
            "reweight_seconds",
            seconds(lambda: reweight_grid(beta_b, score["prod"], right_PN, answered_PN)),
            f"{c.betas} betas: expected accuracy, KL and score under each",
        ),
        Row("one_curve_seconds", ours, f"the product of the step scores and its exact curve {every}"),
    ]

    # The shuffles get the product ready-made, rounded as ours compares it: so they see the same ties.
    score_PN = np.asarray(jnp.where(answered_PN, rerank.round_score(score["prod"]), -jnp.inf))
    sizes = [n for n in PUBLISHED_SIZES if n < c.candidates] + [c.candidates]
    curve_Pn = np.asarray(one_curve())[:, np.array(sizes) - 1]
    samples = as_samples(score_PN, pool.right_PN, pool.answered_PN)
    shuffle = random.Random(cfg.seed).shuffle
    vectorised = lambda: numpy_trial(score_PN, pool.right_PN, sizes, rng)
    published = lambda: python_trial(samples, sizes, shuffle)
    for name, trial, timed, how in (
        ("numpy_shuffles", vectorised, c.trials, "vectorised, one for all n"),
        ("python_shuffles", published, c.timed_trials, "as published, one for each n"),
    ):
        a_trial, rate_Sn = time_trials(name, trial, timed)
        theirs = a_trial * c.trials
        error = largest_error(rate_Sn, curve_Pn)
        rows += [
            Row(f"{name}_seconds", theirs, f"timed {timed} of {c.trials} trials; {len(sizes)} n; {how}"),
            Row(f"{name}_times_slower", theirs / ours, "than one_curve, though given the product"),
            Row(f"{name}_largest_error", error, "over n: their mean against one_curve, in its standard errors"),
        ]
    return rows


class SyntheticPool(NamedTuple):
    """logp_PNT: natural logs of step scores kept in half precision. right_PN, answered_PN: is there an answer?"""

    logp_PNT: np.ndarray
    mask_PNT: np.ndarray
    right_PN: np.ndarray
    answered_PN: np.ndarray


def synthetic_pool(cfg: RerankConfig, rng) -> SyntheticPool:
    """Problems of all difficulties; right solutions have better steps; a quarter of the scores saturate at exactly 1."""
    shape = P, N, T = cfg.problems, cfg.candidates, cfg.steps
    quality_PN = rng.standard_normal((P, 1), np.float32) + rng.standard_normal((P, N), np.float32)
    logit_PNT = 4 + 2 * quality_PN[..., None] + 5 * rng.standard_normal(shape, np.float32)
    half_PNT = (1 / (1 + np.exp(-logit_PNT))).astype(np.float16)
    with np.errstate(divide="ignore"):
        logp_PNT = np.log(half_PNT.astype(np.float32))
    return SyntheticPool(
        logp_PNT,
        mask_PNT=np.arange(T) < rng.integers(-(-T // 3), T + 1, (P, N, 1)),
        right_PN=rng.random((P, N)) < 1 / (1 + np.exp(-quality_PN)),
        answered_PN=rng.random((P, N)) < 0.95,
    )


@jax.jit
def reweight_grid(beta_b, score_PN, right_PN, mask_PN):
    """Means over problems of expected accuracy, KL and score, each of them x_b. A vmap is 8 times slower on CPU."""

    def under(beta):
        law = rerank.reweight(score_PN, beta, None, mask_PN)
        return rerank.expectation(law.weight_PN, right_PN).mean(), law.kl_P.mean(), law.reward_P.mean()

    return jax.lax.map(under, beta_b)


def as_samples(score_PN, right_PN, answered_PN) -> list[list[dict]]:
    """A pool as the published evaluation reads it: a dict a candidate."""
    rows = zip(score_PN.tolist(), right_PN.tolist(), answered_PN.tolist())
    keys = ("score", "is_correct", "answer")
    return [[dict(zip(keys, (x, y, "" if z else None))) for x, y, z in zip(*row)] for row in rows]


def python_trial(samples: list[list[dict]], sizes: list[int], shuffle: Callable) -> list[float]:
    """Pass rate at each n in a trial of the published protocol: shuffle the candidates, the best answered of n wins.

    A fresh shuffle of every problem for every n; the first of equal scores wins; no answer among n counts as wrong.
    """
    rates = []
    for n in sizes:
        solved = 0
        for candidates in samples:
            candidates = list(candidates)
            shuffle(candidates)
            drawn = [x for x in candidates[:n] if x["answer"] is not None]
            best = max(drawn, key=lambda x: x["score"], default=None)
            solved += best is not None and best["is_correct"]
        rates.append(solved / len(samples))
    return rates


def numpy_trial(score_PN, right_PN, sizes: list[int], rng) -> list[float]:
    """The same without loops over problems and candidates, and one shuffle of each problem for all n."""
    order_PN = rng.permuted(np.broadcast_to(np.arange(score_PN.shape[1]), score_PN.shape), axis=1)
    drawn_PN = np.take_along_axis(score_PN, order_PN, 1)
    right_PN = np.take_along_axis(right_PN, order_PN, 1) & (drawn_PN > -np.inf)
    best = [drawn_PN[:, :n].argmax(1, keepdims=True) for n in sizes]
    return [float(np.take_along_axis(right_PN, best_P1, 1).mean()) for best_P1 in best]


def time_trials(name: str, trial: Callable, count: int) -> tuple[float, np.ndarray]:
    """(median seconds of a trial, its rates rate_Sn)."""
    seconds, rates = [], []
    with cli.progress(name, count, "trial") as bar:
        for _ in range(count):
            start = time.perf_counter()
            rates.append(trial())
            seconds.append(time.perf_counter() - start)
            bar.update()
    return statistics.median(seconds), np.array(rates)


def largest_error(rate_Sn, curve_Pn) -> float:
    """Largest |mean of the trials - exact| over n, in standard errors of that mean (at least float32's 1e-6)."""
    error_n = np.abs(rate_Sn.mean(0) - curve_Pn.mean(0))
    standard_n = np.asarray(rerank.subset_band(curve_Pn)) / math.sqrt(len(rate_Sn))
    return float((error_n / np.maximum(standard_n, 1e-6)).max())


if __name__ == "__main__":
    main()
