"""The keys of `python -m prm_jax.rl`; conf/rl.yaml says what each means."""

import dataclasses
from typing import Annotated, Literal

from prm_jax.generate.policies import Sampling
from prm_jax.generate.sampling import CommandConfig
from prm_jax.launch.config import Count, Natural, Seed, Share, expect
from prm_jax.lora import LoraConfig
from prm_jax.rl.advantages import EstimatorConfig
from prm_jax.rl.rewards import RewardConfig
from prm_jax.rl.update import UpdateConfig
from prm_jax.tasks.checkers import CHECKERS, checker_rule
from prm_jax.training import OptimizerConfig


@dataclasses.dataclass(frozen=True)
class RLBatch:
    rows: Count
    tokens: Count


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    every: Count
    problems: Count
    n: Count
    k: tuple[Count, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RLConfig(EstimatorConfig, CommandConfig):
    input: str | None
    held_out: str | None
    columns: dict[str, str] | None
    checker: Annotated[str, checker_rule(CHECKERS)] | None
    apart: str | None
    policy: str
    seed: Seed
    steps: Count
    problems: Count
    n: Count
    sampling: Sampling
    share_counts: bool
    select: Literal["all", "mixed"]
    accuracy_low: Share
    accuracy_high: Share
    resample: Natural
    reward: RewardConfig
    update: UpdateConfig
    optimizer: OptimizerConfig
    lora: LoraConfig
    batch: RLBatch
    eval: EvalConfig
    objective: Literal["lm"]
    log_every: Count
    checkpoint_every: Count
    wandb: Literal["offline", "online"] | None

    def __post_init__(self):
        is_whole = self.sampling.temperature == 1 and self.sampling.top_k is None and self.sampling.top_p == 1
        expect(is_whole, "sampling", str(self.sampling), "temperature 1 and all tokens")
        has_group = self.n > 1 or not self.estimator.needs_group
        expect(has_group, "n", self.n, f"at least 2, which advantage={self.advantage} compares")
        is_pair = (self.input is None) == (self.held_out is None)
        expect(is_pair, "held_out", self.held_out, "a file beside input, and only beside it")
