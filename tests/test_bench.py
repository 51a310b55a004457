"""The benchmark's jobs run, its counts are right, and PyTorch takes the same steps."""

import json
import runpy
import sys

import pytest

from examples import bench_peers
from prm_jax import bench

SMALL = ["shape=embedded", "row_tokens=256", "mean_tokens=20", "problems=4", "solutions=4", "repeats=1"]


@pytest.fixture(autouse=True)
def tiny_shape(monkeypatch):
    monkeypatch.setitem(bench.SHAPES, "embedded", (320, 32, 1, 4, 2, 8, 48))


def numbers_of(monkeypatch, folder, *words, main=bench.main):
    monkeypatch.setattr(sys, "argv", ["bench", *SMALL, *words, f"hydra.run.dir={folder}"])
    main()
    return json.loads((folder / "results.json").read_text())["numbers"]


PEERS = {"train": "torch our rows", "score": "torch by length", "sampling": "generate"}
TOKENS = {"train": (256, 512), "score": (640, 4000), "sampling": (16, 16 * 80)}  # the least, the most


@pytest.mark.parametrize("what", PEERS)
def test_jobs_count_useful_tokens_and_pytorch_takes_our_steps(monkeypatch, tmp_path, what, capsys):
    """The peer's side is a script; it runs in this process, where PyTorch has been imported."""

    def run_here(command, **_):
        monkeypatch.setattr(sys, "argv", command[2:])
        runpy.run_path(command[2], run_name="__main__")

    monkeypatch.setattr(bench_peers.subprocess, "run", run_here)
    monkeypatch.setattr(bench, "JOBS", dict(bench.JOBS))
    numbers = numbers_of(monkeypatch, tmp_path / "bench", f"what={what}", main=bench_peers.main)
    got, theirs = numbers[f"{what}/embedded/float32"], PEERS[what]
    least, most = TOKENS[what]
    assert least < got["tokens_per_second"] * got["seconds"] <= most
    assert "call 1 of" in capsys.readouterr().out and got[f"{theirs} ours_by_theirs_second"] > 0
    if what == "train":
        assert abs(got["last_loss_nats"] - got[f"{theirs} last_loss_nats"]) < 1e-4


def test_a_dtype_that_is_emulated_is_skipped(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench.devices, "has_bfloat16_unit", lambda: False)
    assert numbers_of(monkeypatch, tmp_path / "bench", "dtype=bfloat16") == {}
    assert "skipped" in capsys.readouterr().out


def test_two_results_are_compared(tmp_path, capsys):
    files = [tmp_path / name for name in ("a.json", "b.json")]
    for path, rate in zip(files, (2.0, 3.0), strict=True):
        path.write_text(json.dumps({"about": {}, "numbers": {"train/small": {"tokens_per_second": rate}}}))
    bench.compare(list(map(str, files)))
    assert capsys.readouterr().out.split()[-4:] == ["tokens_per_second", "2", "3", "1.5"]
