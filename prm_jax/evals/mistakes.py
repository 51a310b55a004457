"""task=mistakes: sets of labelled mistakes, each measured by its own metric; data.name, a name of OWN, is the
set."""

from prm_jax.evals.benchmarks import Benchmark
from prm_jax.evals.setup import Setup
from prm_jax.launch.config import expect

# The metrics that the authors of a set report.
OWN = {
    # MR-Score = .2 max(0, MCC) + .3 accuracy of the step + .5 of the reason; PRMs give no reason (Zeng et
    # al. 2023, section 3).
    "mr_gsm8k": ("mcc", "accuracy_error"),
    "hard2verify": ("step_balanced_f1", "solution_balanced_f1", "first_error_f1"),  # Pandit et al. 2025
    "processbench": ("first_error_f1",),
}


class Mistakes(Benchmark):
    def run(self, setup: Setup) -> dict:
        self.kind = setup.data.name
        expect(self.kind in OWN, "data.name", self.kind, f"a set of labelled mistakes: {', '.join(OWN)}")
        self.metrics = OWN[self.kind]
        return super().run(setup)

    def metric(self, results: dict) -> float | None:
        """The first of the set's own metrics over all rows."""
        return results["groups"]["all"][results["metrics"][0]]
