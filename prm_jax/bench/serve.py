"""The embedded outcome model behind HTTP: many clients at once, beside task=score's scoring of the same rows by the same code
without a server."""

import asyncio
import contextlib
import json
import math
import re
import statistics
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
from prm_jax.data.formats import read_format
from prm_jax.data.splits import data_config
from prm_jax.data.units import probability
from prm_jax.launch.config import CONF
from prm_jax.scoring import score_into, stored_scores

MODEL = "embedded_orm"


@contextlib.contextmanager
def started():
    """The address of `python -m prm_jax.serve` in a process of its own, which is stopped at the end."""
    with tempfile.TemporaryDirectory() as folder:
        asked = [f"checkpoint={MODEL}", "port=0", f"hydra.run.dir={folder}/run"]
        command = [sys.executable, "-m", "prm_jax.serve", *asked]
        process = subprocess.Popen(command, cwd=CONF.parent, stdout=subprocess.PIPE, text=True)
        try:
            said = []
            while not (said and said[-1].startswith("serving")):
                said.append(process.stdout.readline())
                if not said[-1]:
                    raise InputError(f"the server did not start: {''.join(said).strip() or 'it says why above'}")
            yield said[-1].split()[1]
        finally:
            process.terminate()
            process.communicate()


async def ask(host: str, port: int, queue: list[tuple[int, bytes]], found: list):
    """One client: takes the next (number, body) of the queue until it is empty; found[number] becomes (status, answer, seconds)."""
    reader, writer = await asyncio.open_connection(host, port)
    while queue:
        number, body = queue.pop()
        head = f"POST /score HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        start = time.perf_counter()
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode()
        content = await reader.readexactly(int(re.search(r"content-length: (\d+)", answer)[1]))
        found[number] = int(answer.split(" ", 2)[1]), content, time.perf_counter() - start
    writer.close()


def load(url: str, bodies: list[bytes], clients: int) -> tuple[list, float]:
    """(what each body was answered, None where nothing; seconds of all) with so many clients at once."""
    host, port = url.removeprefix("http://").split(":")
    queue, found = list(enumerate(bodies))[::-1], [None] * len(bodies)

    async def all_clients():
        await asyncio.gather(*(ask(host, int(port), queue, found) for _ in range(clients)), return_exceptions=True)

    start = time.perf_counter()
    asyncio.run(all_clients())
    return found, time.perf_counter() - start


def cpu_seconds(url: str) -> float:
    """Of the server's process, as its metrics say."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        return float(re.search(r"^process_cpu_seconds_total (\S+)", answer.read().decode(), re.MULTILINE)[1])


def bench_serve(cfg: BenchConfig) -> list[Row]:
    s, data = cfg.serve, data_config(OmegaConf.load(CONF / "data" / "chain.yaml"))
    problems = tasks.make_problems(tasks.chain, data.task, s.requests, "test", cfg.seed)
    pool = list(tasks.solver_pool(tasks.chain, data.task, problems, s.candidates, cfg.seed))
    rows = [(f"{p.id} {i}", p.problem, c.steps) for p in pool for i, c in enumerate(p.candidates)]
    bodies = [json.dumps({"problem": p.problem, "candidates": [c.steps for c in p.candidates]}).encode() for p in pool]
    scorer = open_checkpoint(MODEL, "best", read_format("auto"), "float32").scorer(4)
    by_score, by_server, cpu_score, cpu_server, waited = [], [], [], [], []
    with started() as url, tempfile.TemporaryDirectory() as folder:
        for turn in range(1 + s.repeats):  # side by side; the first compiles
            path = Path(folder) / f"{turn}.jsonl"
            start, cpu = time.perf_counter(), time.process_time()
            score_into(path, scorer, rows, len(rows))
            by_score.append(time.perf_counter() - start)
            cpu_score.append(time.process_time() - cpu)
            cpu = cpu_seconds(url)
            found, seconds = load(url, bodies, s.clients)
            by_server.append(seconds)
            cpu_server.append(cpu_seconds(url) - cpu)
            waited += [answer[2] for answer in found if answer] if turn else []
        expected = np.concatenate(list(stored_scores(path)))
    right = [json.loads(answer[1]) for answer in found if answer and answer[0] == 200]
    lost, note = len(bodies) - len(right), f"{s.requests} requests of {s.candidates} solutions, {s.clients} clients"
    got = [x for one in right for c in one["problems"][0]["candidates"] for x in c["log_odds"]]
    largest = lambda f: math.nan if lost else float(np.abs(f(np.array(got)) - f(expected)).max())
    difference, of_logits = largest(probability), largest(np.array)
    median = lambda values: statistics.median(values[1:])
    share = lambda ours, theirs: statistics.median(b / a for a, b in zip(ours[1:], theirs[1:], strict=True))
    beside = "the clients work beside the server"
    p50, p99 = 1000 * np.percentile(waited, [50, 99])
    return [
        Row("score_solutions_per_second", len(rows) / median(by_score), "task=score's scoring, compiled"),
        Row("serve_solutions_per_second", len(rows) / median(by_server), note),
        Row("serve_requests_per_second", len(bodies) / median(by_server)),
        Row("serve_share_of_score", share(by_server, by_score), f"median of {s.repeats}; {beside}"),
        Row("serve_cpu_share_of_score", share(cpu_server, cpu_score), "the same by CPU seconds, the clients' left out"),
        Row("serve_p50_milliseconds", float(p50)),
        Row("serve_p99_milliseconds", float(p99)),
        Row("serve_lost_requests", lost),
        Row("serve_largest_difference", difference, f"of P(good) from task=score's; {of_logits:.2g} of log-odds"),
    ]
