"""The benchmark's jobs run, its counts are right, and PyTorch takes the same steps."""

import json
import sys

import pytest
from conftest import run

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


@pytest.mark.parametrize("what", ["train", "score", "sampling"])
def test_jobs_count_useful_tokens(monkeypatch, tmp_path, what, capsys):
    got = numbers_of(monkeypatch, tmp_path / "bench", f"what={what}")[f"{what}/embedded/float32"]
    tokens = got["tokens_per_second"] * got["seconds"]
    least, most = {"train": (256, 512), "score": (640, 4000), "sampling": (16, 16 * 80)}[what]
    assert least < tokens <= most and "call 1 of" in capsys.readouterr().out


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


@pytest.mark.slow
def test_pytorch_takes_our_steps_and_the_others_run(monkeypatch, tmp_path):
    pytest.importorskip("torch")
    monkeypatch.setattr(bench, "JOBS", dict(bench.JOBS))
    for what, theirs in (("train", "torch our rows"), ("score", "torch by length"), ("sampling", "generate")):
        got = numbers_of(monkeypatch, tmp_path / what, f"what={what}", main=bench_peers.main)[
            f"{what}/embedded/float32"
        ]
        assert got[f"{theirs} ours_by_theirs_second"] > 0
        if what == "train":
            assert abs(got["last_loss_nats"] - got[f"{theirs} last_loss_nats"]) < 1e-4


@pytest.mark.slow
def test_of_eight_devices_each_holds_an_eighth(tmp_path):
    words = ["what=memory", "shape=small", "dtype=bfloat16", "mesh.fsdp=4", "mesh.tensor=2", "mesh.data=1"]
    folder = f"hydra.run.dir={tmp_path}/a"
    run("prm_jax/bench.py", *words, folder, cwd=tmp_path, PYTHONPATH=str(bench.cli.CONF.parent))
    got = json.loads((tmp_path / "a/results.json").read_text())["numbers"]["memory/small/bfloat16"]
    matrices = 8192 * 512 + 8 * (2 * 512 * 512 + 2 * 512 * 128 + 3 * 512 * 1408)
    assert 4 * matrices / 8 < 1e9 * got["weights_gb"] < 1.1 * 4 * matrices / 8  # and small arrays, not split
    assert got["moments_gb"] == pytest.approx(2 * got["weights_gb"], rel=1e-3)
