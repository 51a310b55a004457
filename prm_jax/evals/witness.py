"""task=witness: policies of the toy trace witness at one aggregator and beta, and over the plane."""

import dataclasses
from typing import Annotated

from prm_jax import rerank, witness
from prm_jax.evals.task import Task
from prm_jax.launch.config import NotNegative, one_of


@dataclasses.dataclass(frozen=True)
class Config:
    aggregator: Annotated[str, one_of(rerank.AGGREGATORS)]
    beta: NotNegative


class Witness(Task):
    Config = Config
    drawing = "witness"
    needs_checkpoint = False

    def run(self, setup) -> dict:
        return witness.results(self.cfg.aggregator, self.cfg.beta) | {"plane": witness.grid()}

    def show(self, results: dict):
        aggregator, beta = results["aggregator"], results["beta"]
        what = f"aggregator {aggregator}, beta {beta:g}; KL to the reference and mean score in nats"
        print(f"policies    {what}")
        print(" " * 12 + "".join(f"{name:>13}" for name in (*results["traces"], "KL", "score")) + "  winner")
        for name, policy_N in results["policies"].items():
            row = (*policy_N, results["kl"][name], results["reward"][name])
            print(f"  {name:<10}" + "".join(f"{x:13.6f}" for x in row) + f"  {results['winners'][name]}")
