"""task=processbench: the benchmark's F1 of finding the first wrong step, from a verifier now or from stored scores."""

import dataclasses

from prm_jax.evals import benchmarks
from prm_jax.evals.common import Setup, plus_minus


@dataclasses.dataclass(frozen=True)
class Config(benchmarks.Config):
    """conf/task/processbench.yaml says what each key means."""

    threshold_split: str | None


needs_checkpoint = benchmarks.needs_checkpoint


def run(setup: Setup, cfg: Config) -> dict:
    rows, scores, about = benchmarks.rows_and_scores(setup, cfg, "processbench")
    return about | benchmarks.processbench(rows, scores, cfg.threshold, cfg.threshold_split, setup.cfg.seed)


def show(results: dict):
    benchmarks.show_verifier(results)
    print(f"  {'split':<15}{'n':>5}  erroneous   clean      F1")
    for name, x in results["splits"].items():
        accuracies = f"{x['accuracy_error']:9.4f}  {x['accuracy_clean']:6.4f}"
        print(f"  {name:<15}{x['n']:5}  {accuracies}  {x['f1']:.4f} {plus_minus(x['f1_interval'])}")
    print(f"  {'mean':<41}{results['mean_f1']:.4f} {plus_minus(results['mean_f1_interval'])}")
