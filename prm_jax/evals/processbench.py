"""task=processbench: the benchmark's F1 of finding the first wrong step (arXiv 2412.06559)."""

import numpy as np

from prm_jax.evals.benchmarks import PUBLISHED, Benchmark
from prm_jax.launch.files import read_yaml


class Processbench(Benchmark):
    """Measures each split; the benchmark's number is the plain mean over them."""

    kind = "processbench"
    metrics = ("accuracy_error", "accuracy_clean", "first_error_f1")
    is_mean_over_groups = True

    def measure(self, rows, scores, seed: int) -> dict:
        """`published`: the mean over the same splits."""
        results, table, published = super().measure(rows, scores, seed), read_yaml(PUBLISHED).processbench, {}
        if set(results["groups"]) <= set(table.columns):
            places = [table.columns.index(name) for name in results["groups"]]
            for system, f1 in table.f1.items():
                published[system] = float(np.mean([f1[k] for k in places])) / 100
        return results | {"published": published, "source": table.source}

    def metric(self, results: dict) -> float | None:
        """Mean F1 over the splits."""
        return results["judges"]["verifier"]["f1"]
