"""The benchmark's jobs run, its counts are right, and PyTorch takes the same steps."""

import json
import sys

import pytest
from conftest import run

from examples import bench_peers
from prm_jax import bench


@pytest.fixture(autouse=True)
def tiny_shape(monkeypatch):
    monkeypatch.setitem(bench.SHAPES, "embedded", (320, 32, 1, 4, 2, 8, 48))


def numbers_of(monkeypatch, folder, *words):
    small = "shape=embedded", "mean_tokens=50", "new_tokens=4", "problems=2", "solutions=4", "repeats=1"
    monkeypatch.setattr(sys, "argv", ["bench", *small, *words, f"hydra.run.dir={folder}"])
    bench.main()
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize(("what", "rows"), [("train", 2), ("score", 2), ("sampling", 1)])
def test_jobs_count_useful_tokens(monkeypatch, tmp_path, what, rows):
    got = numbers_of(monkeypatch, tmp_path / "bench", f"what={what}", f"rows={rows}")
    tokens = got["tokens_per_second"] * got["seconds"]
    if what == "sampling":
        assert tokens == pytest.approx(2 * 4 * 4)
    else:
        assert tokens > (1 if what == "train" else 2) * 4 * bench.PROBLEM


@pytest.mark.slow
def test_pytorch_takes_our_steps():
    pytest.importorskip("torch")
    sizes = {"shape": "embedded", "mean_tokens": 50, "solutions": 4, "repeats": 1}
    got = bench_peers.compare("torch", sys.executable, **sizes)
    assert got["loss_difference"] < 1e-4 and got["times_peer"] > 0


@pytest.mark.slow
def test_of_eight_devices_each_holds_an_eighth(tmp_path):
    words = ["what=memory", "shape=small", "dtype=bfloat16", "mesh.fsdp=4", "mesh.tensor=2", "mesh.data=1"]
    folder = f"hydra.run.dir={tmp_path}/a"
    run("prm_jax/bench.py", *words, folder, cwd=tmp_path, PYTHONPATH=str(bench.cli.CONF.parent))
    got = json.loads((tmp_path / "a/results.json").read_text())
    matrices = 8192 * 512 + 8 * (2 * 512 * 512 + 2 * 512 * 128 + 3 * 512 * 1408)
    assert 4 * matrices / 8 < 1e9 * got["weights_gb"] < 1.1 * 4 * matrices / 8  # and small arrays, not split
    assert got["moments_gb"] == pytest.approx(2 * got["weights_gb"], rel=1e-3)
