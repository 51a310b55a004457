"""The server's counters in Prometheus' text format, whose few lines need no client library."""

import bisect
import collections
import itertools
import time

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SOLUTIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Histogram:
    """Counts of values up to each bound, and their sum."""

    def __init__(self, bounds: tuple[float, ...]):
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, x: float):
        self.counts[bisect.bisect_left(self.bounds, x)] += 1
        self.sum += x

    def lines(self, name: str) -> list[str]:
        counts = list(itertools.accumulate(self.counts))
        lines = [
            f'{name}_bucket{{le="{x}"}} {n}' for x, n in zip((*self.bounds, "+Inf"), counts, strict=True)
        ]
        return [*lines, f"{name}_sum {self.sum:.9g}", f"{name}_count {counts[-1]}"]


class Metrics:
    """Counts since the start; only the event loop writes the first four, only the worker the others."""

    def __init__(self):
        self.requests = collections.Counter()  # by (path, status)
        self.seconds = Histogram(SECONDS)
        self.arriving = {}  # {time limit: client's address} of each body that has not arrived yet, the oldest first
        self.waiting = []  # the client's address of each request that waits or is scored
        self.solutions = Histogram(SOLUTIONS)  # of each batch
        self.steps = 0

    def text(self, stats=None) -> str:
        """All metrics; `stats` are the ScoringStats of a scorer with a model."""
        requests = {
            f'{{path="{path}",status="{status}"}}': n for (path, status), n in sorted(self.requests.items())
        }
        metrics = [  # name, type, help, a Histogram or {labels: value}
            ("prm_jax_requests_total", "counter", "requests by path and status", requests),
            ("prm_jax_requests_arriving", "gauge", "requests whose body arrives", {"": len(self.arriving)}),
            (
                "prm_jax_requests_waiting",
                "gauge",
                "requests that wait or are scored",
                {"": len(self.waiting)},
            ),
            ("prm_jax_request_seconds", "histogram", "from a request's headers to its answer", self.seconds),
            ("prm_jax_batch_solutions", "histogram", "solutions that were scored together", self.solutions),
            ("prm_jax_steps_total", "counter", "steps scored", {"": self.steps}),
            (
                "process_cpu_seconds_total",
                "counter",
                "CPU time of this process",
                {"": f"{time.process_time():.6f}"},
            ),
        ]
        if stats is not None:
            computed = "tokens left after prefixes are shared"
            metrics += [
                (
                    "prm_jax_tokens_total",
                    "counter",
                    "tokens of distinct solutions scored",
                    {"": stats.tokens},
                ),
                ("prm_jax_tokens_computed_total", "counter", computed, {"": stats.computed}),
                ("prm_jax_shapes_compiled", "gauge", "shapes of batches met so far", {"": len(stats.shapes)}),
            ]
        lines = []
        for name, kind, help, values in metrics:
            lines += [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
            is_histogram = isinstance(values, Histogram)
            lines += (
                values.lines(name)
                if is_histogram
                else [f"{name}{labels} {x}" for labels, x in values.items()]
            )
        return "\n".join(lines) + "\n"
