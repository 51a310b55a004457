"""Times search over all problems at once and over one at a time, with the embedded policy and outcome model."""

import cProfile
import itertools
import pstats
import time

import jax
from omegaconf import OmegaConf

from prm_jax import tasks
from prm_jax.bench.common import BenchConfig, Row
from prm_jax.checkpoints.open import open_checkpoint
from prm_jax.data.splits import data_config
from prm_jax.formats import read_format
from prm_jax.generate import search
from prm_jax.generate.samples import open_lab_policy
from prm_jax.generate.search_state import SearchState
from prm_jax.launch.config import CONF


def model_seconds(profile: cProfile.Profile) -> float:
    """Seconds spent in compiled programs, in waiting for them and in fetching their results."""
    fetches = ("_value", "<built-in method numpy.asarray>", "<built-in method numpy.array>")
    return sum(
        times[2]
        for (file, _, name), times in pstats.Stats(profile).stats.items()
        if name in fetches or "block_until_ready" in name or file.endswith("pjit.py")
    )


def bench_search(cfg: BenchConfig) -> list[Row]:
    s, node = cfg.search, OmegaConf.load(CONF / "data" / "chain.yaml")
    del node["defaults"]  # of Hydra
    data = data_config(node)
    policy = open_lab_policy(data.policy, data.temperature, data.max_tokens)
    verifier = open_checkpoint("embedded_orm", "best", read_format("auto"), "float32").scorer(4, 128)
    problems = tasks.make_problems(tasks.CHAIN, data.task, s.problems, "test", cfg.seed)
    rows, methods = [], {"beam": {"width": s.width}, "mcts": {"simulations": 4 * s.width}}
    for method, arguments in methods.items():
        key = itertools.count()  # other draws in each run

        def seconds(batch, key=key, method=method, arguments=arguments):
            start, texts = time.perf_counter(), [problems[p] for p in batch]
            state = SearchState(policy, verifier, texts, "last", 40, jax.random.key(next(key)))
            search.METHODS[method].run(state, range(len(texts)), branch=4, **arguments)
            return time.perf_counter() - start

        every, some = range(len(problems)), range(s.singles)
        for batch in (every, *([p] for p in some), every):  # compile
            seconds(batch)
        profile = cProfile.Profile()
        together = seconds(every)
        alone = sum(seconds([p]) for p in some) / len(some) * len(problems)
        profile.runcall(seconds, every)  # not the timed run: profiling slows Python
        share = model_seconds(profile) / together
        rows += [
            Row(f"{method}_seconds", together, f"{len(problems)} problems at once, width {s.width}"),
            Row(f"{method}_alone_seconds", alone, f"one at a time, from {len(some)} of them"),
            Row(f"{method}_ratio", alone / together, "one at a time over all at once"),
            Row(f"{method}_models_share", share, "of the time; the rest is text, packing and choosing"),
        ]
    return rows
