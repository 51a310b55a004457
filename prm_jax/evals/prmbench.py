"""task=prmbench: PRMScore by class of error, from a verifier now or from stored scores."""

from prm_jax.evals import benchmarks
from prm_jax.evals.common import Setup, plus_minus

Config, needs_checkpoint = benchmarks.Config, benchmarks.needs_checkpoint


def run(setup: Setup, cfg: Config) -> dict:
    rows, scores, about = benchmarks.rows_and_scores(setup, cfg, "prmbench")
    return about | benchmarks.prmbench(rows, scores, cfg.threshold, setup.cfg.seed)


def show(results: dict):
    benchmarks.show_verifier(results)
    print(f"  {'class':<21}{'rows':>6}{'steps':>7}{'bad':>6}  PRMScore")
    for name, x in results["classes"].items():
        sizes = f"{x['n_rows']:6}{x['n_steps']:7}{x['n_bad_steps']:6}"
        print(f"  {name:<21}{sizes}  {x['prmscore']:.4f} {plus_minus(x['prmscore_interval'])}")
    for name, x in results["groups"].items():
        print(f"  {name + ', mean of its':<27}{len(x['classes'])} classes{x['prmscore']:>13.4f}")
    sizes = f"{results['n_rows']:6}{results['n_steps']:7}{results['n_bad_steps']:6}"
    interval = plus_minus(results["overall_interval"])
    print(f"  {'overall, all steps':<21}{sizes}  {results['overall']:.4f} {interval}")
