"""Benchmarks of speed and memory, beside other code and the machine's limit: a table and results.json."""

import math

import jax

from prm_jax.bench.accelerator import bench_accelerator, markdown
from prm_jax.bench.common import PEERS, BenchConfig, table
from prm_jax.bench.memory import bench_memory
from prm_jax.bench.models import bench_sampling, bench_score, bench_train
from prm_jax.bench.rerank import bench_rerank
from prm_jax.bench.search import bench_search
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import expect, parse
from prm_jax.launch.hosts import set_cpu_devices
from prm_jax.launch.mesh import modest_mesh

JOBS = (bench_train, bench_score, bench_sampling, bench_accelerator, bench_rerank, bench_search)
JOBS = {job.__name__.removeprefix("bench_"): job for job in (*JOBS, bench_memory)}


@cli.command("bench")
def main(cfg):
    """Measure the speed of training, scoring, sampling, search and reranking, or a step's memory."""
    raw_cfg, cfg = cfg, parse(cfg, BenchConfig)
    expect(cfg.what in JOBS, "what", cfg.what, ", ".join(JOBS))
    folder = run_folder.output_dir()
    mesh = None
    if cfg.what in (*PEERS, "accelerator", "search"):
        default = (
            1 if cfg.what == "sampling" else None
        )  # conf/sampling.yaml's; else that of training and scoring
        set_cpu_devices(math.prod(vars(cfg.mesh).values()) if cfg.mesh.data else default)
        mesh = modest_mesh(getattr(getattr(cfg, cfg.what), "rows", 4), cfg.mesh)  # 4 rows in evaluation
    print(f"measuring   {cfg.what}: the table follows, after some minutes with the default sizes", flush=True)
    with run_folder.locked_run_folder(folder, raw_cfg), jax.set_mesh(mesh):
        rows = JOBS[cfg.what](cfg)
        measured_on = run_folder.machine() | {"versions": run_folder.versions()}
    versions = ", ".join(f"{name} {version}" for name, version in measured_on["versions"].items())
    text = "\n".join(f"{name:<14}{x}" for name, x in (measured_on | {"versions": versions}).items())
    if cfg.what == "accelerator":
        text += f"\n\n{markdown(rows)}\n"
        (folder / "results.md").write_text(text)
    print(text if cfg.what == "accelerator" else f"{text}\n{table(rows)}")
    path = folder / "results.json"
    results = {row.name: row.value for row in rows} | {
        "notes": {row.name: row.note for row in rows if row.note}
    }
    run_folder.write_json(path, results | measured_on)
    print(f"results     {path}")


if __name__ == "__main__":
    main()
