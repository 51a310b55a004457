"""A script that serves step scores and rankings over HTTP: copy it and edit it.

    pip install starlette uvicorn pydantic
    python -m examples.serve --checkpoint RUN               # http://127.0.0.1:8001, for this machine alone
    PRM_JAX_TOKEN=SECRET python -m examples.serve --checkpoint RUN --host 0.0.0.0   # for others, by the token
    curl localhost:8001/score -d '{"problem": "4 +5 *3 mod7?", "candidates": [["4+5=2", "2*3=6"], ["4+5=3"]]}'

POST /score takes {"problem": TEXT, "steps": [TEXT, ...]}, {"problem": TEXT, "candidates": [STEPS, ...]} or
{"problems": [such objects]}. The answer has for each problem its `candidates`, with `probability` and
`log_odds` of each step and the solution's `log_score` (in nats), and its `ranking`, indices of candidates,
best first. GET /health: who scores.

Requests that wait are scored together. One beyond a limit below is refused by one line, {"error": TEXT}."""

import argparse
import asyncio
import concurrent.futures
import contextlib
import hmac
import itertools
import os
from collections.abc import Iterator
from typing import Annotated

import numpy as np
import uvicorn
from pydantic import BaseModel, Field, ValidationError, model_validator
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from prm_jax import InputError, load
from prm_jax.api import Verifier
from prm_jax.data.units import probability
from prm_jax.encoding import encode
from prm_jax.launch import cli
from prm_jax.rerank import AGGREGATORS, solution_scores
from prm_jax.scoring import ModelScorer

MOST_BYTES = 1 << 20  # of a body
MOST_SOLUTIONS = 1024  # of a request
MOST_TOKENS = 8192  # of a solution as the model reads it
MOST_WAITING = 256  # requests at a time; more get a 503
LOCAL = ["localhost", "127.0.0.1"]
BATCH = 512  # solutions with which a batch is full

Steps = Annotated[list[str], Field(min_length=1)]


class Problem(BaseModel, extra="forbid", strict=True):
    problem: str
    steps: Steps | None = None
    candidates: Annotated[list[Steps], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def check_solutions(self):
        if (self.steps is None) == (self.candidates is None):
            raise ValueError("expected either steps or candidates")
        return self

    @property
    def rows(self) -> list[tuple[str, list[str]]]:
        return [(self.problem, steps) for steps in self.candidates or [self.steps]]


class Job(BaseModel, extra="forbid", strict=True):
    """The solutions of one request, problem by problem."""

    problems: Annotated[list[Problem], Field(min_length=1)]

    @model_validator(mode="before")
    def as_list(fields):
        return {"problems": [fields]} if isinstance(fields, dict) and "problem" in fields else fields

    @property
    def rows(self) -> list[tuple[str, list[str]]]:
        return [row for problem in self.problems for row in problem.rows]


async def read_job(request: Request) -> Job:
    """The job of a request's body; a refusal names the first field that is wrong."""
    if int(request.headers.get("content-length", MOST_BYTES + 1)) > MOST_BYTES:
        raise HTTPException(413, f"content-length: expected at most {MOST_BYTES} bytes")
    try:
        job = Job.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"[{x}]" if isinstance(x, int) else f".{x}" for x in first["loc"]).lstrip(".")
        raise HTTPException(400, f"{place or 'the body'}: {first['msg']}") from None
    if len(job.rows) > MOST_SOLUTIONS:
        raise HTTPException(413, f"candidates: expected at most {MOST_SOLUTIONS} solutions")
    return job


class Batcher:
    """Scores the jobs of all requests that wait, in one thread, as one batch."""

    def __init__(self, verifier: Verifier):
        self.verifier = verifier
        self.waiting: asyncio.Queue[tuple[Job, asyncio.Future]] = asyncio.Queue()
        self.thread = concurrent.futures.ThreadPoolExecutor(1)

    async def submit(self, job: Job) -> list[np.ndarray]:
        """The log-odds of each solution's steps; a job that cannot be read is refused before it waits."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self.thread, self.check, job)
        answer = loop.create_future()
        self.waiting.put_nowait((job, answer))
        return await answer

    async def run(self):
        """Scores batches for ever."""
        while True:
            batch = [await self.waiting.get()]
            while not self.waiting.empty() and sum(len(job.rows) for job, _ in batch) < BATCH:
                batch.append(self.waiting.get_nowait())
            jobs = [job for job, _ in batch]
            scoring = asyncio.get_running_loop().run_in_executor(self.thread, self.log_odds, jobs)
            await asyncio.wait([scoring])
            for i, (_, answer) in enumerate(batch):
                if answer.done():  # its request was cancelled
                    continue
                if scoring.exception():
                    answer.set_exception(scoring.exception())
                else:
                    answer.set_result(scoring.result()[i])

    def check(self, job: Job):
        scorer = self.verifier.scorer
        if isinstance(scorer, ModelScorer):
            encoded = encode(scorer.format, scorer.tokenizer, job.rows)
            if max(len(one.ids_L) for one in encoded) > MOST_TOKENS:
                raise HTTPException(413, f"steps: expected at most {MOST_TOKENS} tokens in a solution")

    def log_odds(self, jobs: list[Job]) -> list[list[np.ndarray]]:
        """The log-odds of each step of each solution of each job."""
        rows = [row for job in jobs for row in job.rows]
        scores = iter(self.verifier.log_odds([problem for problem, _ in rows], [steps for _, steps in rows]))
        return [[next(scores) for _ in job.rows] for job in jobs]


def describe(job: Job, scores: list[np.ndarray], aggregator: str) -> Iterator[dict]:
    """The answer's problems, from the log-odds of each solution's steps."""
    log_score_N = solution_scores(scores, aggregator, rounded=True)
    pairs = iter(zip(scores, log_score_N.tolist(), strict=True))
    for problem in job.problems:
        candidates = []
        for log_odds_T, log_score in itertools.islice(pairs, len(problem.rows)):
            steps = {"probability": probability(log_odds_T).tolist(), "log_odds": log_odds_T.tolist()}
            candidates.append(steps | {"log_score": log_score})
        order = np.argsort([-candidate["log_score"] for candidate in candidates], kind="stable")
        yield {"candidates": candidates, "ranking": order.tolist()}


def make_app(verifier: Verifier, token: str | None) -> Starlette:
    """The application. Without a token requests must name this machine: no page of another site can ask."""
    batcher = Batcher(verifier)
    scorer = verifier.scorer
    about = {"model": scorer.name, "unit": scorer.unit, "label_kind": scorer.label_kind}
    about |= {"aggregator": verifier.aggregator}

    async def score(request: Request) -> JSONResponse:
        sent = request.headers.get("authorization", "").encode()
        if token and not hmac.compare_digest(sent, f"Bearer {token}".encode()):  # in constant time
            raise HTTPException(401, "authorization: expected `Bearer` and the server's token")
        job = await read_job(request)
        scores = await batcher.submit(job)
        return JSONResponse(about | {"problems": [*describe(job, scores, verifier.aggregator)]})

    async def health(request: Request) -> JSONResponse:
        return JSONResponse(about | {"status": "ok"})

    async def refuse(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, error.status_code, {"connection": "close"})

    async def refuse_input(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 400)

    @contextlib.asynccontextmanager
    async def lifespan(app):
        task = asyncio.create_task(batcher.run())
        yield
        task.cancel()

    return Starlette(
        routes=[Route("/score", score, methods=["POST"]), Route("/health", health)],
        exception_handlers={HTTPException: refuse, InputError: refuse_input, ClientDisconnect: refuse_input},
        middleware=[] if token else [Middleware(TrustedHostMiddleware, allowed_hosts=LOCAL)],
        lifespan=lifespan,
    )


def make_server(app: Starlette, host: str, port: int) -> uvicorn.Server:
    config = uvicorn.Config(app, host, port, log_level="warning", limit_concurrency=MOST_WAITING)
    return uvicorn.Server(config)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", help="as in evaluate.py; the newest finished run if it is left out")
    parser.add_argument("--aggregator", choices=AGGREGATORS, help="of a solution's steps")
    parser.add_argument("--dtype", default="float32", help="as in evaluate.py")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8001)
    args = parser.parse_args()
    token = os.environ.get("PRM_JAX_TOKEN")
    if not token and args.host not in LOCAL:
        parser.error("PRM_JAX_TOKEN: is not set, and other machines need a token")
    verifier = load(args.checkpoint, aggregator=args.aggregator, dtype=args.dtype)
    print(f"{verifier.scorer.name} at http://{args.host}:{args.port}", flush=True)
    make_server(make_app(verifier, token), args.host, args.port).run()


if __name__ == "__main__":
    cli.script(main)
