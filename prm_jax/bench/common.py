"""What the benchmarks share: configuration, table, timers, the matmul peak, the random model, the peer's process."""

import dataclasses
import functools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import timeit
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import jax
import numpy as np
from flax import nnx

from prm_jax import InputError
from prm_jax.checkpoints import hf, hf_config
from prm_jax.kernels.cpu import matmul
from prm_jax.launch.config import Count, Natural, Positive, Rule, Seed, expect
from prm_jax.launch.mesh import MeshConfig, check_divides, make_mesh, make_sharded
from prm_jax.model import PRM, ModelConfig, cast_backbone

# Benchmarks that run a model -> {peer: what `pip install` needs for its interpreter}.
PEERS = {"train": {"torch": "torch transformers", "trl": "torch trl==1.13.0"}}
PEERS |= {what: {"torch": "torch transformers"} for what in ("score", "sampling")}
DTYPES = Rule(
    lambda x: sorted(x) in (["float32"], ["bfloat16"], ["bfloat16", "float32"]), "float32, bfloat16 or both"
)


def keys(name: str, *counts: str, **others) -> type:
    """A frozen dataclass whose fields `counts` are Counts; `others` are {field: type}."""
    return dataclasses.make_dataclass(
        name, [*((count, Count) for count in counts), *others.items()], frozen=True
    )


Train = keys("Train", "solutions", "rows", "longest", "tokens_a_step", mean_tokens=Positive)
Score = keys(
    "Score", "problems", "candidates", "longest", "rows", "repeats", mean_tokens=Positive, tokens=Count | None
)
Samples = keys("Samples", "prompts", "prompt_tokens", "n", "new_tokens", "rows", "repeats")
Search = keys("Search", "problems", "width", "singles")
Rerank = keys("Rerank", "problems", "candidates", "steps", "betas", "python_trials")
Case = keys("Case", "data", "fsdp", "tensor", model=str)
Models = dict[str, dict[str, int]]
Memory = keys(
    "Memory", "tokens", "step_ends", target=Literal["cpu", "tpu"], models=Models, cases=tuple[Case, ...]
)
Accelerator = keys(
    "Accelerator", "tokens", models=dict[str, dict], train=Train, score=Score, sampling=Samples
)


@dataclasses.dataclass(frozen=True)
class BenchConfig:  # conf/bench.yaml says what each key means
    what: str
    dtypes: Annotated[list, DTYPES]
    model: hf_config.ModelChoice
    train: Train
    score: Score
    sampling: Samples
    search: Search
    rerank: Rerank
    memory: Memory
    accelerator: Accelerator
    peer: str | None
    peer_python: str | None
    mesh: MeshConfig
    warmup: Natural
    repeats: Count
    seed: Seed

    def __post_init__(self):
        expect(
            self.model.dtype == "auto",
            "model.dtype",
            self.model.dtype,
            "auto: `dtypes` says what is measured",
        )
        peers = (None, *PEERS.get(self.what, ()))
        listed = ", ".join(peer or "null" for peer in peers)
        expect(self.peer in peers, "peer", self.peer, f"{listed} where what={self.what}")


class Row(NamedTuple):  # a line of the table; its name, a key of results.json, ends with the unit
    name: str
    value: float
    note: str = ""


def table(rows: list[Row]) -> str:
    """The rows as aligned columns: name, value, note."""
    return "\n".join(f"{row.name:<36}{shown(row.value):>12}  {row.note}".rstrip() for row in rows)


def shown(x: float) -> str:
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.4g}"


def call_seconds(f, warmup: int, repeats: int) -> list[float]:
    """Wall time of each repetition of f() in seconds, after `warmup` calls that are not timed; waits for its arrays."""
    return timeit.repeat(lambda: jax.block_until_ready(f()), number=1, repeat=warmup + repeats)[warmup:]


def median_seconds(f, warmup: int, repeats: int) -> float:
    return statistics.median(call_seconds(f, warmup, repeats))


def one_device():
    """A mesh of the first device, to be in use. A CPU multiplies on all cores in each of its devices."""
    return jax.set_mesh(make_mesh(MeshConfig(1, 1, 1), 1, jax.devices()[:1]))


@functools.cache
def matmul_peak(dtype: str, warmup: int, repeats: int) -> float:
    """FLOP/s of the fastest of several large matrix products on one device."""
    size = 2048 if jax.default_backend() == "cpu" else 8192  # long enough to hide an accelerator's launch
    with one_device():
        a, b = (jax.random.normal(jax.random.key(i), (size, size), dtype) for i in range(2))
        product = jax.jit(matmul)
        return 2 * size**3 / min(call_seconds(lambda: product(a, b), warmup, repeats))


def forward_flops(cfg: ModelConfig, tokens: int, pairs: int) -> float:
    """FLOPs of the matrix products of one forward pass: 2 per parameter and token without embeddings, and 4 K per head
    and visible pair of tokens. A backward pass costs twice as many."""
    D, F, H, G, K = cfg.dim, cfg.ffn * max(1, cfg.experts_per_token), cfg.heads, cfg.kv_heads, cfg.head_dim
    return cfg.layers * (2 * tokens * (2 * D * (H + G) * K + 3 * D * F) + 4 * H * K * pairs)


def model_config(cfg: BenchConfig, dtype: str) -> ModelConfig:
    choice = dataclasses.replace(cfg.model, dtype=dtype)
    uses = {"head": "none", "lm_head": True} if cfg.what == "sampling" else {"head": choice.head}
    return hf_config.resolve_model(choice, hf_config.read_config(hf.EMBEDDED), "model", **uses)[0]


def random_model(cfg: BenchConfig, dtype: str) -> PRM:
    """A model of the configured shape with random weights, the same in each dtype, stored as training, scoring and
    sampling store them."""
    model_cfg = model_config(cfg, dtype)
    check_divides(model_cfg, getattr(cfg, cfg.what).rows, f"{cfg.what}.rows")
    stored = (lambda model: model) if cfg.what == "train" else cast_backbone
    return make_sharded(lambda: stored(PRM(model_cfg, rngs=nnx.Rngs(cfg.seed))))


def random_lengths(rng, n: int, mean: float, longest: int) -> np.ndarray:
    """Token counts of solutions: log-normal with sigma 0.5, as on GSM8K and MATH, cut at `longest`."""
    return np.clip(rng.lognormal(np.log(mean) - 0.125, 0.5, n), 8, longest).astype(int)


def run_peer(cfg: BenchConfig, job: dict) -> dict[str, dict]:
    """{dtype: result} of a job that peers.py does with the same weights; empty without a peer. One process does all
    dtypes. It can import nothing of ours and has no network."""
    if cfg.peer is None:
        return {}
    python, script = cfg.peer_python or sys.executable, Path(__file__).with_name("peers.py")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hf.save(folder, random_model(cfg, cfg.dtypes[0]), hf.load_tokenizer(hf.EMBEDDED))
        (folder / "job.json").write_text(
            json.dumps({"what": cfg.what, "peer": cfg.peer, "dtypes": cfg.dtypes} | job)
        )
        env = os.environ | {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
        try:
            done = subprocess.run(
                [python, "-P", script, folder], capture_output=True, text=True, env=env, check=False
            )
        except OSError as error:
            raise InputError(f"peer_python: cannot be run: {error}") from error
        if done.returncode:
            error = (done.stderr.strip().splitlines() or ["no message"])[-1]
            needs = f"it needs an environment made by `pip install {PEERS[cfg.what][cfg.peer]}`, given as peer_python"
            raise InputError(f"peer={cfg.peer}: {python} failed ({error}); {needs}=ENVIRONMENT/bin/python")
        return json.loads((folder / "result.json").read_text())


def differences(
    cfg: BenchConfig, what: str, ours: dict[str, list], theirs: dict[str, dict], note: str
) -> list[Row]:
    """Rows with the largest difference between our numbers and the peer's in each dtype."""
    rows = []
    for dtype, result in theirs.items():
        largest = max(
            float(np.abs(np.subtract(x, y)).max()) for x, y in zip(ours[dtype], result[what], strict=True)
        )
        rows.append(Row(f"{cfg.peer}_{dtype}_{what}_difference", largest, note))
    return rows


def speed(
    cfg: BenchConfig, tokens: int, flops: float, ours: dict[str, float], theirs: dict[str, float]
) -> list[Row]:
    """Rates, shares of the matmul peak and ratios from seconds by dtype, ours and the peer's, and the peak memory.
    `tokens` and `flops` are useful work: padding and recomputation do not count."""
    rows, best, slowest = [], min(ours, key=ours.get), max(ours, key=ours.get)
    chips = 1 if jax.default_backend() == "cpu" else jax.sharding.get_mesh().size
    for dtype, seconds in ours.items():
        peak = matmul_peak(dtype, cfg.warmup, cfg.repeats)
        share = flops / seconds / peak / chips
        doubt = "; above 1: other processes slowed the products, so trust no number here" if share > 1 else ""
        rows += [
            Row(f"{dtype}_tokens_per_second", tokens / seconds, "ours, useful tokens"),
            Row(
                f"{dtype}_matmul_peak_gflops",
                peak / 1e9,
                "one device: the fastest of repeated large matrix products",
            ),
            Row(f"{dtype}_share_of_matmul_peak", share, f"of {chips} x it, by useful FLOPs alone{doubt}"),
        ]
    lead = f", {ours[slowest] / ours[best]:.2f} times {slowest}" if len(ours) > 1 else ""
    rows.append(Row("best_tokens_per_second", tokens / ours[best], f"faster on this machine: {best}{lead}"))
    for dtype, seconds in theirs.items():
        rows.append(Row(f"{cfg.peer}_{dtype}_tokens_per_second", tokens / seconds))
        rows.append(Row(f"times_{cfg.peer}_{dtype}", seconds / ours[dtype], f"both in {dtype}"))
    if theirs:
        fastest = min(theirs, key=theirs.get)
        rows.append(
            Row(
                f"times_{cfg.peer}_best", theirs[fastest] / ours[best], f"ours in {best}, theirs in {fastest}"
            )
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows.append(Row("process_peak_mib", peak, f"of {' and '.join(ours)}"))
    if device := jax.devices()[0].memory_stats():  # None on CPU
        rows.append(Row("device_peak_mib", device["peak_bytes_in_use"] / 2**20))
    return rows
