"""task=prmbench: PRMScore by class of error (arXiv 2501.03124).

PRMScore is the mean of F1 on good and F1 on bad steps; of multi_solutions, which has no bad step, F1 on good
steps alone. A category's is the plain mean over its classes, nan unless all are there. Every class is judged
by validity, not by the redundancy ratings behind ReasonEval's published redundency and circular. As in the
authors' evaluator (ssmisya/PRMBench at a1ae4ea), a step at the threshold is bad.
"""

import numpy as np

from prm_jax.evals.benchmarks import PUBLISHED, Benchmark
from prm_jax.launch.files import read_yaml


class Prmbench(Benchmark):
    kind = "prmbench"
    metrics = ("prmscore",)
    calls_good = staticmethod(np.greater)

    def measure(self, rows, scores, seed: int) -> dict:
        """`published`: over all steps."""
        results, table, categories = super().measure(rows, scores, seed), read_yaml(PUBLISHED).prmbench, {}
        for name, classes in table.groups.items():
            has_all = set(classes) <= results["groups"].keys()
            prmscores = [results["groups"][member]["prmscore"] for member in classes] if has_all else [np.nan]
            categories[name] = float(np.mean(prmscores))
        published = {system: overall / 100 for system, (overall, *_) in table.prmscore.items()}
        return results | {"categories": categories, "published": published, "source": table.source}

    def rows_of_table(self, results: dict) -> dict[str, dict]:
        table = super().rows_of_table(results)
        for name, prmscore in results["categories"].items():
            table[f"{name}, mean of its classes"] = {"prmscore": prmscore}
        return table

    def metric(self, results: dict) -> float | None:
        """PRMScore over all steps."""
        return results["groups"]["all"]["prmscore"]
