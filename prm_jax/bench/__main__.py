"""How fast, against what, how far from the machine's limit, and in how many bytes? results.json and a table."""

import contextlib
import math
import os
import statistics
import subprocess
import sys
import time

import jax

from prm_jax.bench.common import PEERS, BenchConfig, Row, table
from prm_jax.bench.memory import bench_memory
from prm_jax.bench.rerank import bench_rerank
from prm_jax.bench.sampling import bench_sampling
from prm_jax.bench.score import bench_score
from prm_jax.bench.search import bench_search
from prm_jax.bench.serve import bench_serve
from prm_jax.bench.train import bench_train
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import expect, parse
from prm_jax.launch.hosts import set_cpu_devices
from prm_jax.launch.mesh import make_mesh

LATE = ("torch", "datasets", "matplotlib", "math_verify", "transformers")  # packages that wait until they are needed


def bench_startup(cfg: BenchConfig) -> list[Row]:
    """Wall seconds of fresh processes that import a module, and which of the packages that should wait it imports too."""
    program = "import sys; import {}; print(', '.join(m for m in {} if m in sys.modules))"
    out = []
    for module in ("rerank", "scoring", "model"):
        seconds = []
        command = [sys.executable, "-c", program.format(f"prm_jax.{module}", LATE)]
        for _ in range(cfg.repeats):
            start = time.perf_counter()
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            seconds.append(time.perf_counter() - start)
        note = f"imported too early: {done.stdout.strip() or 'none'}"
        out.append(Row(f"import_{module}_seconds", statistics.median(seconds), note))
    return out


JOBS = {"train": bench_train, "score": bench_score, "sampling": bench_sampling, "rerank": bench_rerank}
JOBS |= {"search": bench_search, "serve": bench_serve, "startup": bench_startup, "memory": bench_memory}


@cli.command("bench")
def main(cfg):
    """Measure how fast this machine trains, scores, samples, searches, serves, reranks and starts, or the bytes of a step on devices that are not here."""
    given, cfg = cfg, parse(cfg, BenchConfig)
    expect(cfg.what in JOBS, "what", cfg.what, ", ".join(JOBS))
    folder = run_folder.output_dir()
    mesh = contextlib.nullcontext()
    if cfg.what in PEERS:
        n = math.prod(vars(cfg.mesh).values())
        set_cpu_devices(n)
        mesh = jax.set_mesh(make_mesh(cfg.mesh, getattr(cfg, cfg.what).rows, jax.devices()[:n]))
    print(f"measuring   {cfg.what}: the table comes at the end, minutes later at the sizes of --help", flush=True)
    with run_folder.locked_run_folder(folder, given), mesh:
        rows = JOBS[cfg.what](cfg)
    print(table(rows))
    machine = {"device": jax.devices()[0].device_kind, "cpus": os.cpu_count(), "versions": run_folder.versions()}
    notes = {row.name: row.note for row in rows if row.note}
    path = folder / "results.json"
    run_folder.write_json(path, {row.name: row.value for row in rows} | {"notes": notes} | machine)
    print(f"results     {path}")


if __name__ == "__main__":
    main()
