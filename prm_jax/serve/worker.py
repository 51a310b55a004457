"""One thread that scores all waiting requests together, with shared prefixes.

Requests gather while a batch is computed, so batches grow with the load. What does not fit into a batch waits its turn:
a large request is scored in parts, and between two of them the others have theirs.
"""

import asyncio
import collections
import contextlib
import dataclasses
import itertools
import logging
import queue
import threading
from collections.abc import Callable, Sequence

import jax
import numpy as np

from prm_jax import InputError
from prm_jax.formats import Encoded
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


@dataclasses.dataclass(eq=False)
class Job:
    """The solutions of one request: texts with the aggregator that ranks them, or what `encode` turns into tokens."""

    rows: Sequence = ()  # (problem, steps), or what `encode` reads
    sizes: Sequence[int] = ()  # characters, or tokens, of each
    aggregator: str | None = None
    encode: Callable[[Sequence], list[Encoded]] | None = None
    answer: asyncio.Future | None = None
    error: Exception | None = None
    tokens: int = 0  # that `encode` gave
    scores: list[np.ndarray] = dataclasses.field(
        default_factory=list
    )  # log-odds of each scored solution's steps
    log_scores: list[float] = dataclasses.field(
        default_factory=list
    )  # aggregates, rounded so that equal ones tie


class Worker:
    """Takes jobs from the event loop and returns them scored. `batch` says how much is scored at a time."""

    def __init__(self, scorer, batch, metrics: Metrics):
        self.scorer, self.batch, self.metrics = scorer, batch, metrics
        self.arrived: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.mesh = jax.sharding.get_mesh()  # each thread has its own
        self.thread = threading.Thread(target=self.run, name="scorer", daemon=True)
        self.thread.start()

    def submit(self, job: Job) -> asyncio.Future:
        """A future of the job with its scores, or of the error of its scoring."""
        job.answer = asyncio.get_running_loop().create_future()
        self.arrived.put(job)
        return job.answer

    def stop(self) -> bool:
        """Whether the thread has ended. What waits is not scored, and a batch that is computed has a second to end."""
        self.arrived.put(None)
        self.thread.join(1)
        return not self.thread.is_alive()

    def run(self):
        jax.set_mesh(self.mesh)
        waiting, unfinished = collections.deque(), []
        while True:
            while not self.arrived.empty() or not (waiting or unfinished):
                waiting.append(self.arrived.get())
            if waiting and waiting[-1] is None:
                return
            waiting += unfinished
            unfinished, finished = [], []
            if parts := self.take(waiting):
                self.work(parts)
            for job, _ in parts:
                has_more = job.error is None and len(job.scores) < len(job.rows)
                (unfinished if has_more else finished).append(job)
            with contextlib.suppress(RuntimeError):  # the loop is closed, since stopping took too long
                if finished:
                    finished[0].answer.get_loop().call_soon_threadsafe(give_back, finished)

    def take(self, waiting: collections.deque[Job]) -> list[tuple[Job, Sequence]]:
        """The next batch, (job, its next rows): of one job after the other, until the batch is full. A job whose client
        has left is dropped."""
        parts, room, characters = [], self.batch.solutions, self.batch.characters
        while waiting and room > 0 and characters > 0:
            job = waiting.popleft()
            start = stop = len(job.scores)
            while stop < len(job.rows) and room > 0 and characters > 0 and not job.answer.done():
                room, characters, stop = room - 1, characters - job.sizes[stop], stop + 1
            if rows := job.rows[start:stop]:
                parts.append((job, rows))
        return parts

    def work(self, parts: list[tuple[Job, Sequence]]):
        """Scores a batch; bisects it after an error to find the jobs that cause it."""
        try:
            self.score_all(parts)
        except Exception as error:
            if len(parts) > 1:
                middle = len(parts) // 2
                self.work(parts[:middle])
                self.work(parts[middle:])
                return
            if not isinstance(error, (Refused, InputError)):
                LOG.exception("scoring failed")  # a client gets only a status
            parts[0][0].error = error

    def score_all(self, parts: list[tuple[Job, Sequence]]):
        """Scores the rows of each part; the jobs change only where nothing failed."""
        texts = [row for job, rows in parts if not job.encode for row in rows]
        encoded = [job.encode(rows) if job.encode else [] for job, rows in parts]
        tokens = list(itertools.chain(*encoded))
        by_text = iter(self.scorer.score(texts) if texts else ())
        by_token = iter(self.scorer.score_encoded(tokens) if tokens else ())
        scores = [[next(by_token if job.encode else by_text) for _ in rows] for job, rows in parts]
        if not all(np.isfinite(score_T).all() for part in scores for score_T in part):
            raise FloatingPointError(f"{self.scorer.name}: gives a score that is no number")
        for aggregator in {job.aggregator for job, _ in parts if job.aggregator}:
            group = [(job, part) for (job, _), part in zip(parts, scores) if job.aggregator == aggregator]
            log_scores = solution_scores([x_T for _, part in group for x_T in part], aggregator, rounded=True)
            log_scores = iter(log_scores.tolist())
            for job, part in group:
                job.log_scores[len(job.scores) :] = [next(log_scores) for _ in part]
        for (job, _), part, encoded_part in zip(parts, scores, encoded):
            job.scores += part
            job.tokens += sum(len(e.ids_L) for e in encoded_part)
        self.metrics.solutions.add(len(texts) + len(tokens))
        self.metrics.steps += sum(len(score_T) for part in scores for score_T in part)


def give_back(jobs: list[Job]):
    for job in jobs:
        if not job.answer.done():  # its task may have been cancelled
            job.answer.set_result(job) if job.error is None else job.answer.set_exception(job.error)
