"""One device or eight, one process or four: the same numbers; nothing lies whole where it should be split."""

import dataclasses
import json
import shutil
import signal
import socket
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import ROOT, TINY, printed, start, with_devices
from devices import CFG, MESHES, leaves, sample
from flax import nnx
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh
from jax.sharding import PartitionSpec as P
from safetensors.numpy import load_file, save_file
from test_sampling import random_model
from test_train import SMALL, THIN, records

import evaluate
import train
from prm_jax.checkpoints import hf
from prm_jax.checkpoints.tokenizer import train_tokenizer
from prm_jax.launch.mesh import map_layout
from prm_jax.launch.sharding import IN_SPLIT, OUT_SPLIT, platform, spec
from prm_jax.lora import LoraConfig, attach
from prm_jax.model import PRM


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    """What devices.py found with eight devices."""
    folder = tmp_path_factory.mktemp("eight")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hf, "export_config", lambda cfg, tokenizer: {})  # no family has all these parameters
        hf.save(folder / "f32", PRM(CFG, rngs=nnx.Rngs(5)), train_tokenizer(["1"], 280))
    tensors = load_file(folder / "f32" / "model.safetensors")
    (folder / "bf16").mkdir()
    save_file({k: x.astype(jnp.bfloat16) for k, x in tensors.items()}, folder / "bf16" / "model.safetensors")
    environment = with_devices(8) | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    command = [sys.executable, str(ROOT / "tests" / "devices.py"), str(folder)]
    output = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, timeout=300).stdout
    return json.loads(output)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_eight_devices_train_as_one(eight, mesh):
    one, many = eight["one"], eight[mesh]
    np.testing.assert_allclose(many["losses"][0], one["losses"][0], rtol=2e-6)  # later Adam enlarges rounding
    np.testing.assert_allclose(many["losses"], one["losses"], rtol=1e-4)
    np.testing.assert_allclose(list(many["sums"].values()), list(one["sums"].values()), rtol=1e-4)
    assert many["compiled"] == one["compiled"] == 1  # outputs lie as inputs do


@pytest.mark.slow
def test_eight_devices_score_and_decode_as_one(eight):
    """Scores and gradients of rows through tiles, of a number that the devices do not divide, too."""
    one, many = eight["one"], eight["all"]
    assert len(one["scores"]) == 20 and np.ptp(one["scores"]) > 0.1
    np.testing.assert_allclose(many["scores"], one["scores"], atol=2e-4)
    np.testing.assert_allclose(many["long_gradient"], one["long_gradient"], rtol=1e-4)
    np.testing.assert_allclose(many["decoded"], one["decoded"], atol=1e-5)
    assert eight["gathers"] == 0  # where rows alone are split, a token costs no exchange


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_parameters_lie_by_the_rule_and_are_read_in_parts(eight, mesh):
    _, fsdp, tensor = MESHES[mesh]
    assert eight[mesh]["on_rule"]
    assert eight[mesh]["shards"] == [[2, 32 // fsdp, 32 // tensor], [2, 48 // tensor, 32 // fsdp]]
    saved = PRM(CFG, rngs=nnx.Rngs(5))
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype("float32"), saved)
    assert (eight[mesh]["f32"], eight[mesh]["bf16"]) == (leaves(saved), leaves(rounded))


@pytest.mark.slow
def test_a_checkpoint_of_eight_devices_restores_on_fewer_bit_for_bit(eight):
    assert len(eight["restored"]) == 2 and all(eight["restored"].values())
    assert eight["parts"] == [8, 6, 1, 3]  # a CPU gives as many devices as divide the rows


@pytest.mark.slow
def test_eight_devices_sample_as_one_and_refuse_rows_that_they_do_not_divide(eight):
    assert eight["samples"] == sample(random_model())
    assert eight["refused"].startswith("batch.rows: got 6")


@pytest.mark.slow
def test_of_eight_devices_each_is_planned_to_hold_an_eighth(eight):
    used = eight["memory"]
    matrices = 8192 * 512 + 8 * (2 * 512 * 512 + 2 * 512 * 128 + 3 * 512 * 1408)
    assert 4 * matrices / 8 < 1e9 * used["weights_gb"] < 1.1 * 4 * matrices / 8  # and small arrays, not split
    assert used["moments_gb"] == pytest.approx(2 * used["weights_gb"], rel=1e-3)


@pytest.mark.slow
def test_sums_over_devices_are_rounded_once(eight):
    one = eight["rounding"].pop("one")
    assert 1e-3 < one < 2e-3  # bfloat16's half unit is 2e-3 to 4e-3 of a number
    assert list(eight["rounding"].values()) == pytest.approx([one, one], rel=0.05)


def test_the_platform_is_that_of_the_mesh():
    assert platform() == "cpu"
    chip = AbstractDevice("TPU v5", 1, "tpu")
    with use_abstract_mesh(AbstractMesh((1,), ("data",), abstract_device=chip)):
        assert platform() == "tpu"


def test_the_layout_rule():
    sizes = {"data": 2, "fsdp": 4, "tensor": 2}
    assert spec(OUT_SPLIT, (3, 8, 6), sizes) == P(None, "fsdp", "tensor")  # of 3 layers
    assert spec(IN_SPLIT, (3, 8, 6), sizes) == P(None, "tensor")  # 6 is no multiple of 4
    assert spec(OUT_SPLIT, (3, 5, 8, 16), sizes) == P(None, None, "fsdp", "tensor")  # of 5 experts
    assert spec((), (8, 1), sizes) == spec((), (), sizes) == P()


def test_a_parameter_and_its_moments_lie_as_the_parameter_declares():
    """A low-rank factor as its matrix but for the rank; what is small, whole."""
    cfg = dataclasses.replace(TINY, head="mlp", lm_head=True, tied=False, o_bias=True, qk_norm=True)
    model = attach(PRM(cfg, rngs=nnx.Rngs(0)), LoraConfig(2, 4.0, ["w_q", "w_o"]), 0)
    opt = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    out, into = P(None, "fsdp", "tensor"), P(None, "tensor", "fsdp")
    blocks = dict.fromkeys(("w_k", "w_v", "w_gate", "w_up", "w_q.base"), out)
    blocks |= dict.fromkeys(("w_down", "w_o.base"), into)
    blocks |= {"w_q.a": P(None, "fsdp"), "w_q.b": P(None, None, "tensor")}
    blocks |= {"w_o.a": P(None, "tensor"), "w_o.b": P(None, None, "fsdp")}
    expected = {f"blocks.{name}": axes for name, axes in blocks.items()}
    expected |= {"embed": P("tensor", "fsdp"), "unembed": P("fsdp", "tensor")}
    for tree in (nnx.state(model), opt.opt_state[0].mu):
        layout = map_layout(lambda _, axes: axes, tree, {"data": 2, "fsdp": 2, "tensor": 2})
        leaves = jax.tree.leaves_with_path(layout, is_leaf=lambda x: isinstance(x, P))
        name = lambda path: jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value")
        assert {name(path): axes for path, axes in leaves if axes != P()} == expected


def free_port(low):
    """A port of this machine that nobody listens on, at least `low`."""
    for port in range(low, 65_536):
        with socket.socket() as s:
            if s.connect_ex(("localhost", port)):
                return port


def launch(script, *args, cwd):
    """Starts two processes, of which one finds the other by its address, the other by SLURM."""
    port = free_port(61_440)  # SLURM's: 61440 + job number % 4096
    address = f"coordinator_address: 'localhost:{port}', num_processes: 2, process_id: 0"
    job = {"JOB_ID": port - 61_440, "STEP_NODELIST": "localhost", "NTASKS": 2, "LOCALID": 0, "PROCID": 1}
    slurm = {f"SLURM_{key}": str(x) for key, x in job.items()}
    ways = (f"distributed={{{address}}}", {}), ("distributed=auto", slurm)
    return [start(script, *args, how, cwd=cwd, **env) for how, env in ways]


def finish(processes):
    """What process 0 printed, once both have ended well; none is left behind."""
    try:
        texts = [process.communicate(timeout=200) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], texts
    assert "run folder" not in texts[1][0]  # only process 0 speaks
    return texts[0][0]


STOP_RESUME_AND_EVALUATE = f"""
import pathlib, sys
sys.path.insert(0, {str(ROOT)!r})
import evaluate, train
script, *words, how = sys.argv
try:
    sys.argv = [script, *words, how]
    train.main()
except SystemExit as stopped:
    assert stopped.code == 128 + {signal.SIGTERM:d}
(folder,) = pathlib.Path("runs/train").iterdir()
assert not (folder / "summary.json").exists()
for main, resumed in ((train.main, folder), (evaluate.main, "b")):
    sys.argv = [script, f"resume={{resumed}}", "cpu_devices=2", how]
    main()
"""


@pytest.mark.slow
def test_processes_train_stop_resume_and_score_as_one(monkeypatch, tmp_path):
    """Two processes of two devices each, stopped by a signal to one of them, go on as one device does, also
    with an evaluation that was stopped while it wrote: process 0 alone has its folder, and both skip the same
    rows."""
    args = [*SMALL, *THIN, "log_every=1", "eval.every=4", "checkpoint_every=4"]
    printed(train.main, monkeypatch, *args, "hydra.run.dir=one", cwd=tmp_path)
    data = ["task=steps", "baselines=false", "batch.rows=8", "checkpoint=one"]
    printed(evaluate.main, monkeypatch, *data, "hydra.run.dir=a", cwd=tmp_path)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "results.json").unlink()
    lines = (tmp_path / "b" / "scores_0.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "b" / "scores_0.jsonl").write_text("".join(lines[:23]) + lines[23][:9])

    # Each process of a job gets its own folder from Hydra's clock; all must end up in that of process 0.
    (tmp_path / "both.py").write_text(STOP_RESUME_AND_EVALUATE)
    processes = launch(tmp_path / "both.py", *args, "mesh.fsdp=2", "cpu_devices=2", cwd=tmp_path)
    deadline = time.time() + 120
    while not (logs := list(tmp_path.glob("runs/train/*/metrics.jsonl"))) or not logs[0].read_text():
        assert all(p.poll() is None for p in processes) and time.time() < deadline, finish(processes)
        time.sleep(0.05)
    processes[1].send_signal(signal.SIGTERM)
    out = finish(processes)
    assert "by SIGTERM after step" in out and "scored      23 of 60 solutions before" in out
    assert_same_scores(tmp_path / "a", tmp_path / "b")
    (folder,) = tmp_path.glob("runs/train/*")
    assert len(list(folder.rglob("metrics.jsonl"))) == 1
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["finished"] and summary["steps"] == 12
    many, one = records(folder), records(tmp_path / "one")
    assert [row["step"] for row in many] == [row["step"] for row in one] == list(range(1, 13))
    for mine, theirs in zip(many, one, strict=True):
        assert mine.keys() == theirs.keys() and mine["n_tokens"] == theirs["n_tokens"]  # the same rows
        np.testing.assert_allclose(mine["loss"], theirs["loss"], rtol=1e-3)


def assert_same_scores(a, b):
    """Of two evaluation folders, and the numbers made from them."""
    rows = [[json.loads(line) for line in (x / "scores_0.jsonl").read_text().splitlines()] for x in (a, b)]
    assert len(rows[0]) == 60
    for mine, theirs in zip(*rows, strict=True):
        assert mine["id"] == theirs["id"]
        np.testing.assert_allclose(mine["scores"], theirs["scores"], atol=1e-5)
    a, b = (json.loads((x / "results.json").read_text()) for x in (a, b))
    assert a.keys() == b.keys() and a["step_auroc"] == pytest.approx(b["step_auroc"], abs=1e-3)
