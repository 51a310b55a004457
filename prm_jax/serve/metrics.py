"""What the server counts, as Prometheus' text. Written by hand: the format is a line a number, the client library a package."""

import bisect
import collections
import itertools
import time

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SOLUTIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Histogram:
    """Counts of values up to each bound, their number and their sum."""

    def __init__(self, bounds: tuple[float, ...]):
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, x: float):
        self.counts[bisect.bisect_left(self.bounds, x)] += 1
        self.sum += x

    def lines(self, name: str):
        below = list(itertools.accumulate(self.counts))
        yield from (
            f'{name}_bucket{{le="{bound}"}} {n}' for bound, n in zip((*self.bounds, "+Inf"), below, strict=True)
        )
        yield from (f"{name}_sum {self.sum:.9g}", f"{name}_count {below[-1]}")


class Metrics:
    """Counts since the start. The event loop alone writes the first three, the worker alone the others."""

    def __init__(self):
        self.requests = collections.Counter()  # by (path, status)
        self.seconds = Histogram(SECONDS)
        self.waiting = 0
        self.solutions = Histogram(SOLUTIONS)  # of each batch
        self.steps = 0

    def text(self, stats=None) -> str:
        """`stats`: the ScoringStats of a scorer that has a model."""
        found = {
            ("prm_jax_requests_total", "counter", "requests answered"): [
                f'{{path="{path}",status="{status}"}} {n}' for (path, status), n in sorted(self.requests.items())
            ],
            ("prm_jax_requests_waiting", "gauge", "requests that arrive, wait or are scored"): [f" {self.waiting}"],
            ("prm_jax_request_seconds", "histogram", "from a request's headers to its answer"): self.seconds,
            ("prm_jax_batch_solutions", "histogram", "solutions that were scored together"): self.solutions,
            ("prm_jax_steps_total", "counter", "steps scored"): [f" {self.steps}"],
            ("process_cpu_seconds_total", "counter", "CPU time of this process"): [f" {time.process_time():.6f}"],
        }
        if stats is not None:
            found |= {
                ("prm_jax_tokens_total", "counter", "tokens of distinct solutions scored"): [f" {stats.tokens}"],
                ("prm_jax_tokens_computed_total", "counter", "tokens left after prefixes are shared"): [
                    f" {stats.computed}"
                ],
                ("prm_jax_shapes_compiled", "gauge", "shapes of batches met so far"): [f" {len(stats.shapes)}"],
            }
        lines = []
        for (name, kind, help), values in found.items():
            lines += [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
            lines += values.lines(name) if isinstance(values, Histogram) else [name + value for value in values]
        return "\n".join(lines) + "\n"
