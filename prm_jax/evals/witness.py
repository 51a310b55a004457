"""task=witness: the policies of the toy trace witness at one aggregator and beta, and over the whole plane."""

import dataclasses
from typing import Annotated

from prm_jax import rerank, witness
from prm_jax.evals.common import Setup
from prm_jax.evals.pool_metrics import shown_aggregators
from prm_jax.figures.witness import witness_figures as figures  # noqa: F401 (evaluate.py asks the task)
from prm_jax.launch.config import NotNegative, Rule, one_of

AtLeast2 = Annotated[int, Rule(lambda n: n >= 2, "at least 2"), Rule(lambda n: n <= 1000, "at most 1000")]


@dataclasses.dataclass(frozen=True)
class WitnessConfig:
    aggregator: Annotated[str, one_of(rerank.AGGREGATORS)]
    beta: NotNegative
    betas: AtLeast2
    errors: AtLeast2
    aggregators: str | list | None = None


@dataclasses.dataclass(frozen=True)
class Config:
    needs_checkpoint = False
    witness: WitnessConfig


def run(setup: Setup, cfg: Config) -> dict:
    cfg = cfg.witness
    shown = shown_aggregators(cfg.aggregators, [cfg.aggregator])
    grids = witness.grids(cfg.aggregator, cfg.betas, cfg.errors)
    return {**witness.results(cfg.aggregator, cfg.beta), **grids, "aggregators": shown}


def show(results: dict):
    aggregator, beta = results["aggregator"], results["beta"]
    print(f"policies    aggregator {aggregator}, beta {beta:g}; KL to the reference and mean score in nats")
    print(" " * 12 + "".join(f"{name:>13}" for name in (*results["traces"], "KL", "score")) + "  winner")
    for name, policy_N in results["policies"].items():
        row = (*policy_N, results["kl"][name], results["reward"][name])
        print(f"  {name:<10}" + "".join(f"{x:13.6f}" for x in row) + f"  {results['winners'][name]}")
