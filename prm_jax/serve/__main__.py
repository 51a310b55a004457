"""Serves step scores and rankings over HTTP: python -m prm_jax.serve checkpoint=RUN"""

import dataclasses
import os
import signal
import socket
from pathlib import Path
from typing import Annotated, Literal

import jax
import numpy as np

from prm_jax import InputError
from prm_jax.checkpoints.verifiers import OpenOptions, open_verifier
from prm_jax.evals.common import ScoreBatch, check_there
from prm_jax.formats import Encoded, Format
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import Count, Natural, Positive, Seed, one_of, parse
from prm_jax.launch.files import read_yaml
from prm_jax.launch.hosts import set_cpu_devices
from prm_jax.launch.mesh import modest_mesh
from prm_jax.model import choose_dtype
from prm_jax.rerank import AGGREGATORS, default_aggregator, solution_scores
from prm_jax.scorers import EnsembleScorer
from prm_jax.scoring import ModelScorer
from prm_jax.serve.worker import ServedScorer
from prm_jax.tasks import TASKS

PAGE = Path(__file__).parents[1] / "assets" / "serve.html"


@dataclasses.dataclass(frozen=True)
class ServeBatch(ScoreBatch):
    tokens: Count
    solutions: Count
    characters: Count


@dataclasses.dataclass(frozen=True)
class Limits:
    body: Count
    solutions: Count
    steps: Count
    tokens: Count
    characters: Count
    requests: Count
    requests_each: Count
    connections_each: Count
    seconds: Positive


@dataclasses.dataclass(frozen=True)
class ServeConfig:
    """conf/serve.yaml says what each key means."""

    checkpoint: str | None
    reference: str | None
    which: Literal["best", "latest"]
    dtype: str
    seed: Seed
    format: Format
    checker: Annotated[str, one_of(TASKS)] | None
    aggregator: Annotated[str, one_of(AGGREGATORS)] | None
    batch: ServeBatch
    cpu_devices: Count | None
    host: str
    port: Natural
    limits: Limits
    stop_seconds: Count


def open_served(cfg: ServeConfig):
    """(scorer, the name by which clients may call it)."""
    name = str(run_folder.newest_run()) if cfg.checkpoint is None else cfg.checkpoint
    check_there(name, cfg.which)
    dtype, batch = choose_dtype(cfg.dtype), cfg.batch
    options = cfg.which, cfg.format, dtype, batch.rows, batch.tokens, cfg.reference, cfg.seed
    scorer = open_verifier(name, OpenOptions(*options, task=cfg.checker))
    if isinstance(scorer, EnsembleScorer):
        scorer.members = [as_served(member, cfg) for member in scorer.members]
    return as_served(scorer, cfg), name


def as_served(scorer, cfg: ServeConfig):
    """A verifier of ours within the server's limits, compiled; another one as it is."""
    if isinstance(scorer, ModelScorer):
        scorer = ServedScorer(**vars(scorer), longest=min(cfg.limits.tokens, scorer.model.cfg.max_positions))
        compile_usual_shapes(scorer, cfg.aggregator or default_aggregator(scorer))
    return scorer


def compile_usual_shapes(scorer: ServedScorer, aggregator: str):
    """Scores a text, and batches of 1, 2, 4, ... full rows, so that no client waits for the compiler."""
    solution_scores(scorer.score([("1+1?", ("1+1=2",))]), aggregator, rounded=True)
    L = scorer.usual
    ends_T = (
        np.arange(15, L, 16, dtype=np.int32) if not scorer.format.outcome else np.array([L - 1], np.int32)
    )
    for k in range(scorer.batch_rows.bit_length()):
        rows = [
            np.full(L, i % scorer.model.cfg.vocab, np.int32) for i in range(min(1 << k, scorer.batch_rows))
        ]
        scorer.score_encoded([Encoded(ids_L, ends_T, 1) for ids_L in rows])
    scorer.stats = type(scorer.stats)(shapes=scorer.stats.shapes)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; InputError where the address is taken or not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise InputError(f"host, port: cannot listen at {host}:{port} ({error})") from None


@cli.command("serve")
def main(cfg):
    """Serve a verifier over HTTP: step scores and rankings, vLLM's /pooling, health, metrics, and a page to try it."""
    try:
        from prm_jax.serve.app import App, make_server
    except ImportError as error:
        raise InputError(
            f"the server needs the package {error.name}: pip install starlette uvicorn"
        ) from None
    raw_cfg, cfg, folder = cfg, parse(cfg, ServeConfig), run_folder.output_dir()
    record = folder / ".hydra" / "config.yaml"
    restarts = record.is_file() and read_yaml(record) == raw_cfg  # the same command again
    set_cpu_devices(cfg.cpu_devices)
    mesh, locked = modest_mesh(cfg.batch.rows), run_folder.locked_run_folder(folder, raw_cfg, restarts)
    with locked, listen(cfg.host, cfg.port) as listener, jax.set_mesh(mesh):
        scorer, name = open_served(cfg)
        token, names = os.environ.get("PRM_JAX_TOKEN") or None, (name, scorer.name)
        app = App(scorer, names, cfg.aggregator, cfg.limits, cfg.batch, cfg.host, token, PAGE.read_bytes())
        host, port = listener.getsockname()[:2]
        for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises them again once it has stopped
            signal.signal(number, lambda *_: None)
        if token is None and cfg.host not in ("127.0.0.1", "::1", "localhost"):
            print("warning     PRM_JAX_TOKEN is not set: everyone who reaches this address may use it")
        print(f"verifier    {scorer.name}")
        print(f"serving     http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
        make_server(app, cfg.host, port, cfg.stop_seconds).run([listener])
        has_ended, requests = app.worker.stop(), sorted(app.metrics.requests.items())
        answered = sum(n for (_, status), n in requests if status not in (499, 503))  # 499: the client left
        left = sum(n for (_, status), n in requests if status == 503)
        requests = {f"{path} {status}": n for (path, status), n in requests}
        run_folder.write_json(folder / "results.json", {"verifier": scorer.name, "requests": requests})
        why = f"; {left} left unanswered after stop_seconds={cfg.stop_seconds}" if left else ""
        print(f"stopped     {answered} requests answered, {app.metrics.steps} steps scored{why}", flush=True)
    if left or not has_ended:
        os._exit(int(left > 0))  # Python would wait for a batch that nobody wants


if __name__ == "__main__":
    main()
