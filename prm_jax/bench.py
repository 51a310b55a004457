"""Measures speed and memory on lengths as real models write them; conf/bench.yaml lists what. Rates count
useful tokens alone, without padding. examples/bench_peers.py does the same work in PyTorch and TRL."""

import dataclasses
import itertools
import os
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import jax
import numpy as np
from flax import nnx

from prm_jax import training
from prm_jax.checkpoints.folders import EMBEDDED
from prm_jax.checkpoints.orbax import abstract_arrays
from prm_jax.checkpoints.tokenizer import load_tokenizer
from prm_jax.data.questions import read_questions
from prm_jax.examples import Example
from prm_jax.formats import Format
from prm_jax.generate.sampling import Policy, Sampling, open_policy
from prm_jax.launch import cli, devices, mesh, run_folder
from prm_jax.launch.config import Count, expect, one_of, parse
from prm_jax.launch.files import read_json, write_json
from prm_jax.model import PRM, ModelConfig, cast_backbone
from prm_jax.packing import TrainingRows, make_plan, pack_batch, train_batches
from prm_jax.scoring import HeadScorer

SHAPE_FIELDS = ("vocab", "dim", "layers", "heads", "kv_heads", "head_dim", "ffn")
SHAPES = {
    "embedded": (320, 64, 4, 4, 2, 16, 192),
    "small": (8192, 512, 8, 8, 2, 64, 1408),  # 26.7M parameters
    "smollm2": (49_152, 576, 30, 9, 3, 64, 1536),  # SmolLM2-135M
    "500m": (151_936, 896, 24, 14, 2, 64, 4864),  # this and the next ones: Qwen2.5's
    "1500m": (151_936, 1536, 28, 12, 2, 128, 8960),
    "7b": (152_064, 3584, 28, 28, 4, 128, 18_944),
}
LOSS = training.LossConfig("prm", "bce", 1.0, 0.0)
OPTIMIZER = training.OptimizerConfig(1e-4, 0.1, 0.1, 0.01, 0.9, 0.98, 1.0, "all", "float32")
PLAIN = Format("plain", separator="\n")
WARMUP = 2  # calls that are not timed: the first ones compile
# Lengths are log-normal, with medians and deviations of the logarithm as in SmolLM2's tokens of GSM8K and
# MATH-500 (58 and .36, 52 and .70) and Qwen2.5-7B-Instruct's solutions of them (272 and .39, 521 and .54).
DEVIATION = 0.5
PROBLEM, STEP = 55, 50  # tokens
LONGEST = 4  # times the mean, after which a sample is cut
Numbers = dict[str, float]  # a name that ends with the unit -> the number


@dataclasses.dataclass(frozen=True)
class BenchConfig:  # conf/bench.yaml says what each key means
    what: Literal["train", "score", "sampling", "memory", "compare"]
    shape: Annotated[str, one_of(SHAPES)]
    dtype: Literal["float32", "bfloat16"]
    rows: Count
    row_tokens: Count
    mean_tokens: Count
    solutions: Count
    problems: Count
    checkpoint: str | None
    input: str | None
    files: list[str]
    mesh: devices.MeshConfig
    repeats: Count

    def __post_init__(self):
        is_read = self.checkpoint is None or self.what == "sampling"
        expect(is_read, "checkpoint", self.checkpoint, f"null with what={self.what}, of random weights")
        is_pair = (self.checkpoint is None) == (self.input is None)
        expect(is_pair, "input", self.input, "a file of problems beside checkpoint, and only beside it")


def model_config(cfg: BenchConfig, **more) -> ModelConfig:
    fields = dict(zip(SHAPE_FIELDS, SHAPES[cfg.shape], strict=True)) | {"dtype": cfg.dtype, "head": "binary"}
    fields |= {"rope_theta": 1e4, "norm_eps": 1e-6, "qkv_bias": True, "tied": True}
    return ModelConfig(**fields | {"remat": devices.choose_remat("auto")} | more)


def measure(f: Callable[[], int], repeats: int) -> Numbers:
    """The median wall time of f() after WARMUP calls, each printed as it is known; the rates of the useful
    tokens that f() says it has done; the most memory that the device, or on CPU the process, has held."""
    seconds, cpu, tokens = [], [], []
    for i in range(WARMUP + repeats):
        start, cpu_start = time.perf_counter(), time.process_time()
        tokens.append(f())
        seconds.append(time.perf_counter() - start)
        cpu.append(time.process_time() - cpu_start)
        print(f"  call {i + 1} of {WARMUP + repeats}: {seconds[-1]:.4g} s", flush=True)
    median, done = statistics.median(seconds[WARMUP:]), statistics.mean(tokens[WARMUP:])
    rates = {
        "tokens_per_second": done / median,
        "tokens_per_cpu_second": done / statistics.median(cpu[WARMUP:]),
    }
    stats = jax.devices()[0].memory_stats()
    peak = stats["peak_bytes_in_use"] / 1e9 if stats else devices.peak_memory()
    return {"seconds": median, **rates, "peak_gb": peak}


def draw_lengths(rng, median: float, n: int, longest: float) -> np.ndarray:
    return rng.lognormal(np.log(median), DEVIATION, n).clip(8, longest).astype(int)


def random_solutions(cfg: BenchConfig) -> list[Example]:
    """`solutions` of each problem, whose tokens they share, of at most `row_tokens` tokens."""
    rng = np.random.default_rng(0)
    made = []
    vocab = SHAPES[cfg.shape][0]
    median = cfg.mean_tokens / np.exp(DEVIATION**2 / 2)
    for start in draw_lengths(rng, PROBLEM, cfg.problems, cfg.row_tokens // 4):
        problem_L = rng.integers(0, vocab, start)
        longest = min(LONGEST * cfg.mean_tokens, cfg.row_tokens - start)
        for n in draw_lengths(rng, median, cfg.solutions, longest):
            ids_L = np.concatenate([problem_L, rng.integers(0, vocab, n)]).astype(np.int32)
            ends_T = np.append(np.arange(start + STEP, len(ids_L) - 1, STEP), len(ids_L) - 1)
            label_T = rng.integers(0, 2, len(ends_T)).astype(np.float32)
            made.append(Example(ids_L, ends_T.astype(np.int32), start, label_T))
    return made


def training_rows(cfg: BenchConfig) -> TrainingRows:
    """Rows as train.py fills them, of all solutions in random order."""
    examples = random_solutions(cfg)
    return TrainingRows(examples, make_plan(examples, cfg.row_tokens), seed=0)


def random_model(cfg: BenchConfig, stored=cast_backbone, **more) -> PRM:
    """Weights as scoring and sampling store them; as training does with another `stored`."""
    return mesh.make_sharded(lambda: stored(PRM(model_config(cfg, **more), rngs=nnx.Rngs(0))))


def bench_train(cfg: BenchConfig) -> Numbers:
    """Steps on rows of different solutions; the loss is the last step's."""
    model = random_model(cfg, stored=lambda model: model)
    opt = training.make_optimizer(model, OPTIMIZER, 1000)
    batches, metrics = [], None
    for batch in train_batches(training_rows(cfg), WARMUP + cfg.repeats, cfg.rows, range(cfg.rows)):
        batch = {name: x[None] for name, x in batch.items()}
        batches.append(mesh.shard_batch(batch, cfg.rows, axis=1))
    planned = training.prepare_memory(model, opt, batches[0], LOSS)

    def step() -> int:
        nonlocal model, opt, metrics
        model, opt, metrics = training.train_step(model, opt, batches.pop(0), LOSS, jax.random.key(0))
        return int(metrics["n_tokens"])

    numbers = measure(step, cfg.repeats) | {"planned_gb": sum(planned.values())}
    return numbers | {"last_loss_nats": float(metrics["loss"])}


def bench_score(cfg: BenchConfig) -> Numbers:
    about = {"format": PLAIN, "label_kind": "correctness", "name": "bench", "batch_rows": cfg.rows}
    scorer = HeadScorer(model=random_model(cfg), tokenizer=None, **about)
    solutions = random_solutions(cfg)

    def score() -> int:
        scorer.score_encoded(solutions)
        return sum(len(e.ids_L) for e in solutions)

    return measure(score, cfg.repeats)


def sampling_work(cfg: BenchConfig) -> tuple[Policy, list]:
    """A policy and prompts: of `checkpoint` and `input`, or random ones. Random logits are nearly even, so
    one id in `mean_tokens` that ends a sample draws the lengths, which are then geometric."""
    sampling = Sampling(1.0, None, 1.0, LONGEST * cfg.mean_tokens)
    rows = cfg.rows * cfg.solutions
    if cfg.checkpoint:
        questions = itertools.islice(read_questions(cfg.input), cfg.problems)
        prefixes = [(question.problem, ()) for question in questions]
        return open_policy(cfg.checkpoint, "best", PLAIN, cfg.dtype, sampling, rows), prefixes
    model = random_model(cfg, head="none", lm_head=True)
    vocab = SHAPES[cfg.shape][0]
    ends = tuple(range(vocab - max(1, round(vocab / cfg.mean_tokens)), vocab))
    policy = Policy(model, load_tokenizer(EMBEDDED), PLAIN, "bench", sampling, rows, eos_ids=ends)
    rng = np.random.default_rng(0)
    lengths = draw_lengths(rng, PROBLEM, cfg.problems, 4 * PROBLEM)
    return policy, [("".join(map(str, rng.integers(0, 10, n))), ()) for n in lengths]  # a digit is a token


def bench_sampling(cfg: BenchConfig) -> Numbers:
    """`solutions` samples of each prompt to their own ends."""
    policy, prefixes = sampling_work(cfg)

    def sample() -> int:
        samples = policy.extend(prefixes, cfg.solutions, "end", jax.random.key(0))
        return sum(len(c.ids_L) for c in itertools.chain(*samples))

    numbers = measure(sample, cfg.repeats)
    return numbers | {"idle_share": policy.stats.idle}


def abstract_state(model_cfg: ModelConfig) -> dict:
    """The arguments of the train step beside the batch, as shapes without arrays."""

    def make():
        model = PRM(model_cfg, rngs=nnx.Rngs(0))
        transform = training.make_transform(model, OPTIMIZER, 1000)
        opt = nnx.Optimizer(model, transform, wrt=training.TRAINABLE["all"])
        return {"model": model, "opt": opt, "key": jax.random.key(0)}

    return jax.eval_shape(make)


def bench_memory(cfg: BenchConfig) -> Numbers:
    """What a train step takes of each device, with a row of 4,096 tokens each, as XLA plans it; nothing
    runs."""
    state = abstract_state(model_config(cfg, remat="full", tied=False))
    model, opt = (abstract_arrays(x, mesh.shardings(x)) for x in (state["model"], state["opt"]))
    rows = mesh.row_shards()
    batch = {name: x[None] for name, x in pack_batch([[]] * rows, 4096, 64).items()}
    used = training.plan_memory(model, opt, mesh.shard_batch(batch, rows, axis=1), LOSS)
    return {f"{name}_gb": x for name, x in used.items()}


JOBS = {"train": bench_train, "score": bench_score, "sampling": bench_sampling, "memory": bench_memory}


def run_job(cfg: BenchConfig) -> dict[str, Numbers]:
    """The numbers of the job, by its name, printed."""
    emulates = jax.default_backend() == "cpu" and not devices.has_bfloat16_unit()
    if cfg.what != "memory" and cfg.dtype == "bfloat16" and emulates:
        print(f"skipped     {cfg.what}: this processor emulates {cfg.dtype}")
        return {}
    name = f"{cfg.what}/{cfg.checkpoint or cfg.shape}/{cfg.dtype}"
    print(name)
    numbers = JOBS[cfg.what](cfg)
    for key, x in numbers.items():
        print(f"  {key:<36}{x:,.4g}")
    return {name: numbers}


def compare(files: list[str]):
    """Prints the numbers that two results.json share, and the second by the first."""
    import pandas as pd  # not above: what is measured runs without it

    expect(len(files) == 2, "files", files, "two results.json")
    stored = [read_json(Path(name), about=dict, numbers=dict) for name in files]
    print(*[x["about"] for x in stored], sep="\n")
    columns = [pd.json_normalize(x["numbers"], sep=" ").T[0] for x in stored]
    table = pd.concat(columns, axis=1, keys=["first", "second"]).dropna()
    print(table.assign(ratio=table["second"] / table["first"]).to_string(float_format="{:,.4g}".format))


@cli.command("bench", BenchConfig)
def main(cfg):
    """Prints numbers and writes results.json."""
    raw_cfg, cfg = cfg, parse(cfg, BenchConfig, elsewhere=("cpu_devices", "distributed"))
    if cfg.what == "compare":
        return compare(cfg.files)
    devices.set_cpu_devices(max(raw_cfg.cpu_devices, cfg.mesh.fsdp * cfg.mesh.tensor))
    folder = run_folder.output_dir()
    used = devices.modest_mesh(cfg.rows, cfg.mesh)
    run_folder.claim_folder(folder, raw_cfg)
    with jax.set_mesh(used):
        numbers = run_job(cfg)
    name = jax.devices()[0].device_kind
    info = Path("/proc/cpuinfo")
    if name == "cpu" and info.exists():
        name = re.search(r"model name\s*: (.*)|$", info.read_text())[1]
    about = {"processor": name, "cpus": os.cpu_count(), "devices": used.size} | run_folder.versions()
    write_json(folder / "results.json", {"about": about, "numbers": numbers})


if __name__ == "__main__":
    main()
