"""Times the HTTP server with the embedded outcome model under many clients, beside task=score on the same rows."""

import asyncio
import contextlib
import json
import math
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

from prm_jax import InputError, tasks
from prm_jax.bench.common import BenchConfig, Row
from prm_jax.checkpoints.open import open_checkpoint
from prm_jax.data.splits import data_config
from prm_jax.data.units import probability
from prm_jax.formats import read_format
from prm_jax.launch.config import CONF, PACKAGE
from prm_jax.scoring import score_into

MODEL = "embedded_orm"


@contextlib.contextmanager
def started():
    """The address of a fresh `python -m prm_jax.serve` process, which is stopped at the end."""
    with tempfile.TemporaryDirectory() as folder:
        options = [f"checkpoint={MODEL}", "port=0", "limits.requests_each=256", f"hydra.run.dir={folder}/run"]
        command = [sys.executable, "-m", "prm_jax.serve", *options]
        process = subprocess.Popen(command, cwd=PACKAGE.parent, stdout=subprocess.PIPE, text=True)
        try:
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line.startswith("serving"):
                    break
            else:
                raise InputError(
                    f"the server did not start: {''.join(lines).strip() or 'its error stands above'}"
                )
            yield line.split()[1]
        finally:
            process.terminate()
            process.communicate()


async def ask(host: str, port: int, queue: list[tuple[int, bytes]], answers: list):
    """One client: posts (number, body) pairs of the queue; answers[number] becomes (status, body, seconds)."""
    reader, writer = await asyncio.open_connection(host, port)
    while queue:
        number, body = queue.pop()
        fields = (f"Host: {host}", "Content-Type: application/json", f"Content-Length: {len(body)}")
        head = "\r\n".join(("POST /score HTTP/1.1", *fields, "\r\n"))
        start = time.perf_counter()
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode()
        content = await reader.readexactly(int(re.search(r"content-length: (\d+)", answer)[1]))
        answers[number] = int(answer.split(" ", 2)[1]), content, time.perf_counter() - start
    writer.close()


def load(url: str, bodies: list[bytes], clients: int) -> tuple[list, float]:
    """(the answer to each body, or None; seconds until the last) with this many clients at a time."""
    host, port = url.removeprefix("http://").split(":")
    queue, answers = list(enumerate(bodies))[::-1], [None] * len(bodies)

    async def all_clients():
        await asyncio.gather(
            *(ask(host, int(port), queue, answers) for _ in range(clients)), return_exceptions=True
        )

    start = time.perf_counter()
    asyncio.run(all_clients())
    return answers, time.perf_counter() - start


def cpu_seconds(url: str) -> float:
    """CPU seconds of the server's process by its metrics."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        return float(re.search(r"^process_cpu_seconds_total (\S+)", answer.read().decode(), re.MULTILINE)[1])


def bench_serve(cfg: BenchConfig) -> list[Row]:
    s, data = cfg.serve, data_config(OmegaConf.load(CONF / "data" / "chain.yaml"))
    problems = tasks.make_problems(tasks.chain, data.task, s.requests, "test", cfg.seed)
    pool = list(tasks.solver_pool(tasks.chain, data.task, problems, s.candidates, cfg.seed))
    rows = [(f"{p.id} {i}", p.problem, c.steps) for p in pool for i, c in enumerate(p.candidates)]
    bodies = [
        json.dumps({"problem": p.problem, "candidates": [c.steps for c in p.candidates]}).encode()
        for p in pool
    ]
    scorer = open_checkpoint(MODEL, "best", read_format("auto"), "float32").scorer(4)
    seconds, waited = [], []
    with started() as url, tempfile.TemporaryDirectory() as folder:
        for turn in range(1 + s.repeats):  # side by side; the first compiles
            path = Path(folder) / f"{turn}.jsonl"
            start, cpu = time.perf_counter(), time.process_time()
            logits = score_into(path, scorer, rows, len(rows))
            alone, alone_cpu, cpu = time.perf_counter() - start, time.process_time() - cpu, cpu_seconds(url)
            answers, served = load(url, bodies, s.clients)
            seconds.append((alone, alone_cpu, served, cpu_seconds(url) - cpu))
            waited += [answer[2] for answer in answers if answer] if turn else []
        expected = np.concatenate(list(logits))
    right = [json.loads(answer[1]) for answer in answers if answer and answer[0] == 200]
    lost, note = (
        len(bodies) - len(right),
        f"{s.requests} requests of {s.candidates} solutions, {s.clients} clients",
    )
    logit_n = np.array([x for one in right for c in one["problems"][0]["candidates"] for x in c["log_odds"]])
    difference = logit_difference = math.nan
    if not lost:
        difference = float(np.abs(probability(logit_n) - probability(expected)).max())
        logit_difference = float(np.abs(logit_n - expected).max())
    alone_n, alone_cpu_n, served_n, served_cpu_n = np.array(seconds[1:]).T
    alone, served = float(np.median(alone_n)), float(np.median(served_n))
    share, cpu_share = float(np.median(alone_n / served_n)), float(np.median(alone_cpu_n / served_cpu_n))
    p50, p99 = 1000 * np.percentile(waited, [50, 99])
    note_of_difference = f"of P(good) from task=score's; {logit_difference:.2g} of log-odds"
    return [
        Row("score_solutions_per_second", len(rows) / alone, "task=score's scoring, compiled"),
        Row("serve_solutions_per_second", len(rows) / served, note),
        Row("serve_requests_per_second", len(bodies) / served),
        Row("serve_share_of_score", share, f"median of {s.repeats}; the clients work beside the server"),
        Row("serve_cpu_share_of_score", cpu_share, "the same by CPU seconds, the clients' left out"),
        Row("serve_p50_milliseconds", float(p50)),
        Row("serve_p99_milliseconds", float(p99)),
        Row("serve_lost_requests", lost),
        Row("serve_largest_difference", difference, note_of_difference),
    ]
