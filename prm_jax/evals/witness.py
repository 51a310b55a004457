"""task=witness: the policies of the toy trace witness at one aggregator and beta, and over the whole plane."""

import dataclasses
import math

from prm_jax import InputError, rerank, witness
from prm_jax.evals.common import Setup


@dataclasses.dataclass(frozen=True)
class WitnessConfig:
    aggregator: str
    beta: float
    betas: int
    errors: int

    def __post_init__(self):
        if self.aggregator not in rerank.AGGREGATORS:
            expected = ", ".join(rerank.AGGREGATORS)
            raise InputError(f"witness.aggregator: got {self.aggregator!r}, expected one of {expected}")
        if not 0 <= self.beta < math.inf:
            raise InputError(f"witness.beta: got {self.beta}, expected a finite number, at least 0")
        for name in ("betas", "errors"):
            if getattr(self, name) < 2:
                raise InputError(f"witness.{name}: got {getattr(self, name)}, expected at least 2")


@dataclasses.dataclass(frozen=True)
class Config:
    """conf/task/witness.yaml says what each key means."""

    witness: WitnessConfig


def needs_checkpoint(cfg: Config) -> bool:
    return False


def run(setup: Setup, cfg: Config) -> dict:
    cfg = cfg.witness
    found = witness.results(cfg.aggregator, cfg.beta)
    return found | witness.grids(cfg.aggregator, cfg.betas, cfg.errors)


def show(results: dict):
    how, beta = results["aggregator"], results["beta"]
    print(f"policies    aggregator {how}, beta {beta:g}; KL to the reference and mean score in nats")
    print(" " * 12 + "".join(f"{name:>13}" for name in (*results["traces"], "KL", "score")) + "  winner")
    for name, policy_N in results["policies"].items():
        row = (*policy_N, results["kl"][name], results["reward"][name])
        print(f"  {name:<10}" + "".join(f"{x:13.6f}" for x in row) + f"  {results['winners'][name]}")
