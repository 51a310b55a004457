"""One thread that scores all waiting requests together, with shared prefixes.

Requests gather while a batch is computed, so batches grow with the load and no request waits for others.
"""

import asyncio
import contextlib
import dataclasses
import logging
import queue
import threading
from collections.abc import Callable

import numpy as np

from prm_jax import InputError
from prm_jax.data.formats import Encoded
from prm_jax.protocols import Rows
from prm_jax.rerank import solution_scores
from prm_jax.scoring import ModelScorer
from prm_jax.serve.metrics import Metrics

LOG = logging.getLogger("prm_jax.serve")


class Refused(Exception):
    """The status and the reason, in one line, for which a request is refused."""

    def __init__(self, status: int, why: str):
        super().__init__(why)
        self.status = status


@dataclasses.dataclass
class ServedScorer(ModelScorer):
    """A ModelScorer that refuses solutions of more than `longest` tokens and widens its rows for one batch only."""

    longest: int = 1 << 30

    def __post_init__(self):
        self.usual = self.row_tokens

    def score_encoded(self, encoded: list[Encoded]) -> list[np.ndarray]:
        if (most := max(len(e.ids_L) for e in encoded)) > self.longest:
            raise Refused(413, f"a solution has {most} tokens, expected at most {self.longest}")
        self.row_tokens = self.usual
        return super().score_encoded(encoded)


@dataclasses.dataclass
class Job:
    """The solutions of one request: texts with the aggregator that ranks them, or a function that returns tokens."""

    rows: Rows = ()
    aggregator: str = "min"
    tokens: Callable[[], list[Encoded]] | None = None
    answer: asyncio.Future | None = None
    encoded: list[Encoded] | None = None  # result of `tokens`
    scores: list[np.ndarray] = dataclasses.field(default_factory=list)  # log-odds of each solution's steps
    log_scores: np.ndarray | None = None  # aggregate of each solution, rounded so that equal ones tie


class Worker:
    """Takes jobs from the event loop and returns them scored; `stop` still scores what waits."""

    def __init__(self, scorer, solutions: int, metrics: Metrics):
        self.scorer, self.solutions, self.metrics = scorer, solutions, metrics
        self.waiting: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.run, name="scorer", daemon=True)
        self.thread.start()

    async def score(self, job: Job) -> Job:
        """The job with its scores; raises the error of its scoring."""
        job.answer = asyncio.get_running_loop().create_future()
        self.waiting.put(job)
        return await job.answer

    def stop(self):
        self.waiting.put(None)
        self.thread.join()

    def run(self):
        while (job := self.waiting.get()) is not None:
            jobs, n = [job], max(1, len(job.rows))
            while n < self.solutions and not self.waiting.empty():
                job = self.waiting.get()
                if job is None:  # stop after these
                    self.waiting.put(None)
                    break
                jobs.append(job)
                n += max(1, len(job.rows))
            results = self.work(jobs)
            with contextlib.suppress(RuntimeError):  # the loop is closed, since stopping took too long
                jobs[0].answer.get_loop().call_soon_threadsafe(give_back, results)

    def work(self, jobs: list[Job]) -> list[tuple[Job, Exception | None]]:
        """(job, its error or None) of each job; bisects the batch after an error to find the jobs that cause it."""
        try:
            self.score_all(jobs)
        except Exception as error:
            if len(jobs) > 1:
                middle = len(jobs) // 2
                return self.work(jobs[:middle]) + self.work(jobs[middle:])
            if not isinstance(error, (Refused, InputError)):
                LOG.exception("scoring failed")  # a client gets only a status
            return [(jobs[0], error)]
        return [(job, None) for job in jobs]

    def score_all(self, jobs: list[Job]):
        for job in jobs:
            if job.tokens and job.encoded is None:
                job.encoded = job.tokens()
        rows = [row for job in jobs for row in job.rows]
        encoded = [e for job in jobs for e in job.encoded or ()]
        by_text = iter(self.scorer.score(rows) if rows else ())
        by_token = iter(self.scorer.score_encoded(encoded) if encoded else ())
        for job in jobs:
            job.scores = [next(by_token) for _ in job.encoded] if job.tokens else [next(by_text) for _ in job.rows]
            if not all(np.isfinite(score_T).all() for score_T in job.scores):
                raise FloatingPointError(f"{self.scorer.name}: gives a score that is no number")
        for aggregator in {job.aggregator for job in jobs if job.rows}:
            group = [job for job in jobs if job.rows and job.aggregator == aggregator]
            log_scores = iter(solution_scores([x_T for job in group for x_T in job.scores], aggregator, rounded=True))
            for job in group:
                job.log_scores = np.array([next(log_scores) for _ in job.rows])
        self.metrics.solutions.add(len(rows) + len(encoded))
        self.metrics.steps += sum(len(score_T) for job in jobs for score_T in job.scores)


def give_back(results: list[tuple[Job, Exception | None]]):
    for job, error in results:
        if not job.answer.done():  # its task may have been cancelled
            job.answer.set_result(job) if error is None else job.answer.set_exception(error)
