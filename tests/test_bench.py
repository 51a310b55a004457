"""The benchmark runs, what it compares agrees, and the bytes that it counts are those of real arrays."""

import dataclasses
import json
import runpy
import subprocess
import sys
import types
import venv

import jax
import numpy as np
import pytest
from conftest import ROOT, call, run
from conftest import TINY as TINY_MODEL
from flax import nnx

from prm_jax.bench import __main__ as bench
from prm_jax.bench import common, memory, models
from prm_jax.bench import rerank as bench_rerank
from prm_jax.model import PRM
from prm_jax.training import OptimizerConfig, make_optimizer

TINY = [
    f"rerank.{key}" for key in ("problems=20", "candidates=30", "steps=3", "betas=3", "python_trials=200")
]
SHAPE = {"vocab": 64, "dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "ffn": 48}
SMALL = [f"model.{key}={n}" for key, n in (SHAPE | {"layers": 1, "vocab": 300}).items()]


def results(monkeypatch, folder, *args):
    monkeypatch.setattr(sys, "argv", ["bench", *args, f"hydra.run.dir={folder}"])
    bench.main()
    return json.loads((folder / "results.json").read_text())


@pytest.fixture
def peer_in_this_process(monkeypatch):
    """Peers without a process of their own, which the test of training has: it imports PyTorch for seconds."""

    def run_here(command, **how):
        _, _, script, folder = map(str, command)
        monkeypatch.setattr(sys, "argv", [script, folder])
        runpy.run_path(script, run_name="__main__")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(common, "subprocess", types.SimpleNamespace(run=run_here))
    monkeypatch.setattr(common, "matmul_peak", lambda *asked: 1e11)  # measured by the test of training


def test_rerank_agrees_with_the_published_shuffles(monkeypatch, tmp_path):
    got = results(monkeypatch, tmp_path / "bench", "what=rerank", *TINY, "warmup=0", "repeats=1")
    assert 0 < got["python_shuffles_largest_error"] < 4
    slower = 400 * got["python_trial_seconds"] / got["one_curve_seconds"]  # the published number of trials
    assert got["python_shuffles_times_slower"] == pytest.approx(slower)
    note = got["notes"]["python_trial_seconds"]
    assert note.startswith("mean of 200 ") and note.endswith("at 3 n")  # 10, 25, 30


def test_training_takes_the_peers_steps(monkeypatch, tmp_path):
    """The same solutions, weights, schedule and loss: PyTorch's loss is ours, step by step."""
    sizes = ["warmup=0", "repeats=1", "train.mean_tokens=50", "train.rows=2", "dtypes=[float32]", *SMALL]
    got = results(monkeypatch, tmp_path / "bench", "what=train", "peer=torch", *sizes)
    assert got["torch_float32_loss_difference"] < 1e-4
    ratio = got["float32_tokens_per_second"] / got["torch_float32_tokens_per_second"]
    assert got["times_torch_best"] == got["times_torch_float32"] == pytest.approx(ratio)
    assert got["notes"]["best_tokens_per_second"] == "faster on this machine: float32"


def test_scoring_gives_the_peers_scores_in_both_dtypes(peer_in_this_process, monkeypatch, tmp_path):
    sizes = [
        "warmup=0",
        "repeats=1",
        "score.problems=2",
        "score.candidates=4",
        "score.mean_tokens=100",
        *SMALL,
    ]
    got = results(monkeypatch, tmp_path / "bench", "what=score", "peer=torch", "score.tokens=512", *sizes)
    assert got["torch_float32_score_difference"] < 1e-5 < got["torch_bfloat16_score_difference"] < 0.02
    assert got["tokens_a_computed_token"] > 1.2
    ours, theirs = (
        {d: got[f"{who}{d}_tokens_per_second"] for d in ("float32", "bfloat16")} for who in ("", "torch_")
    )
    assert got["times_torch_bfloat16"] == pytest.approx(ours["bfloat16"] / theirs["bfloat16"])
    assert got["times_torch_best"] == pytest.approx(max(ours.values()) / max(theirs.values()))
    faster = max(ours, key=ours.get)
    assert got["best_tokens_per_second"] == ours[faster]
    assert got["notes"]["best_tokens_per_second"].startswith(f"faster on this machine: {faster}, ")


def test_sampling_draws_the_peers_greedy_tokens(peer_in_this_process, monkeypatch, tmp_path):
    sizes = [
        f"sampling.{key}"
        for key in ("prompts=3", "n=4", "prompt_tokens=9", "new_tokens=20", "rows=8", "repeats=1")
    ]
    got = results(
        monkeypatch, tmp_path / "bench", "what=sampling", "peer=torch", "dtypes=[float32]", *sizes, *SMALL
    )
    assert got["tokens"] == 3 * 4 * 20 and got["torch_float32_same_tokens"] == 1
    ratio = got["float32_tokens_per_second"] / got["torch_float32_tokens_per_second"]
    assert got["times_torch_best"] == got["times_torch_float32"] == pytest.approx(ratio)


def test_search_counts_every_problem(monkeypatch, tmp_path):
    sizes = [f"search.{key}" for key in ("problems=2", "width=2", "singles=1")]
    got = results(monkeypatch, tmp_path / "bench", "what=search", *sizes)
    for method in ("beam", "mcts"):
        assert got[f"{method}_ratio"] == pytest.approx(
            got[f"{method}_alone_seconds"] / got[f"{method}_seconds"]
        )
        assert got[f"{method}_models_share"] > 0


def test_a_peer_without_its_packages_says_what_to_give(monkeypatch, tmp_path):
    """An environment without packages: the error comes before anything is measured."""
    venv.create(tmp_path / "bare", symlinks=True)
    python = tmp_path / "bare" / "bin" / "python"
    monkeypatch.setattr(models, "train_step", None)
    asked = ["what=train", "repeats=1", "peer=trl", *SMALL]
    folder = f"hydra.run.dir={tmp_path}/bench"
    assert call(bench.main, monkeypatch, "bench", *asked, f"peer_python={python}", folder) == (
        f"error: peer=trl: {python} failed (ModuleNotFoundError: No module named 'numpy'); it needs an "
        "environment made by `pip install torch trl==1.13.0`, given as peer_python=ENVIRONMENT/bin/python"
    )
    message = call(bench.main, monkeypatch, "bench", *asked, f"peer_python={tmp_path}/none", f"{folder}2")
    assert (
        message
        == f"error: peer_python: cannot be run: [Errno 2] No such file or directory: '{tmp_path}/none'"
    )


def test_groups_of_equal_size_and_nearly_equal_tokens(rng):
    lengths = rng.integers(20, 700, 80)
    groups = models.balanced(lengths, 10, 8)
    assert sorted(i for g in groups for i in g) == list(range(80)) and {len(g) for g in groups} == {8}
    totals = [lengths[g].sum() for g in groups]
    assert max(totals) < 1.05 * np.mean(totals)


def test_useful_flops_by_hand():
    cfg = dataclasses.replace(TINY_MODEL, dim=4, ffn=8, heads=2, kv_heads=1, head_dim=2, layers=3)
    products = 2 * 4 * 4 + 2 * 4 * 2 + 3 * 4 * 8  # q and o; k and v; feed-forward
    assert common.forward_flops(cfg, tokens=5, pairs=15) == 3 * (2 * products * 5 + 2 * 2 * 4 * 15)


def test_table_gives_name_value_and_note():
    rows = [common.Row("shuffles_seconds", 1487.6, "timed 4 of 400 trials"), common.Row("share", 0.22757)]
    assert common.table(rows).splitlines() == [
        "shuffles_seconds" + " " * 27 + "1,488  timed 4 of 400 trials",
        "share" + " " * 37 + "0.2276",
    ]


def test_largest_error_counts_standard_errors():
    """Two problems with e = .5: the mean of 16 trials has the standard error sqrt(.5) / 2 / 4."""
    curve_Pn = np.array([[0.5, 0.0], [0.5, 1.0]])
    rate_Sn = np.tile([0.5 + 3 * np.sqrt(0.5) / 8, 0.5], (16, 1))
    assert bench_rerank.largest_error(rate_Sn, curve_Pn) == pytest.approx(3, rel=1e-5)
    assert bench_rerank.largest_error(rate_Sn + [0, 1e-3], curve_Pn) == pytest.approx(1000, rel=1e-3)


def test_trials_by_hand():
    """The best of all is wrong and without an answer; then the right one wins wherever it is drawn."""
    samples = [[(9.0, True, False), (-1.0, True, True), (-2.0, False, True)], [(9.0, True, False)] * 3]
    rng = np.random.default_rng(0)
    trial = lambda sizes: bench_rerank.python_trial(samples, sizes, rng.shuffle)
    assert trial([3]) == [0.5]
    rates = np.array([trial([1, 2]) for _ in range(300)])
    np.testing.assert_allclose(rates.mean(0), [1 / 6, 2 / 6], atol=0.05)


def test_bytes_of_each_choice_are_those_of_real_arrays():
    cfg = dataclasses.replace(TINY_MODEL, tied=False, dtype="bfloat16")
    model = PRM(cfg, rngs=nnx.Rngs(0))
    opt = make_optimizer(model, OptimizerConfig(**models.OPTIMIZER), 10)
    parameters, moments = (sum(x.nbytes for x in jax.tree.leaves(tree)) for tree in (model, opt))
    counted = {name: memory.state_bytes(cfg, **choice) for name, choice in memory.CHOICES.items()}
    assert counted["all"] == {"parameters": parameters, "gradients": parameters, "moments": moments}
    assert counted["all_mu_bfloat16"]["moments"] == pytest.approx(0.75 * moments, rel=1e-3)
    rank_16 = (
        2 * 16 * (2 * (32 + 32) + 2 * (32 + 16) + 3 * (32 + 48))
    )  # layers x rank x (D + F) of q, o; k, v; feed-forward
    assert counted["lora_rank_16"]["gradients"] == 4 * (rank_16 + 32 + 1)  # and the step head
    assert counted["head"]["parameters"] < 0.6 * parameters  # frozen matrices are bfloat16
    assert memory.abstract_state(cfg)[0].embed.shape == (64, 32)


@pytest.mark.slow
def test_the_compiled_steps_of_eight_devices_hold_an_eighth_each(tmp_path):
    shape = json.dumps(SHAPE | {"dim": 64}).replace('"', "")
    case = "memory.cases=[{model: small, data: 1, fsdp: 4, tensor: 2}]"
    sizes = ["memory.tokens=16", "memory.step_ends=2", f"hydra.run.dir={tmp_path}/a"]
    out, _ = run(
        "prm_jax/bench/__main__.py",
        "what=memory",
        f"+memory.models.small={shape}",
        case,
        *sizes,
        cwd=tmp_path,
        PYTHONPATH=str(ROOT),
    )
    notes = json.loads((tmp_path / "a/results.json").read_text())["notes"]
    matrices = 64 * 64 + 2 * (2 * 64 * 32 + 2 * 64 * 16 + 3 * 64 * 48)
    for step, stored in (
        ("train", 3 * 4 * matrices / 8),
        ("score", 2 * matrices / 8),
    ):  # Adam in float32; bfloat16
        n, what = notes[f"small_{step}_fsdp4_tensor2_gb"].split()[:2]
        assert what == "arguments" and stored < 1e9 * float(n) < 1.3 * stored  # and small arrays, not split
    assert "small_train_fsdp4_tensor2_gb" in out


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rerank.python_trials=0", "error: rerank.python_trials: got 0, expected at least 1"),
        ("rerank.steps=2.5", "error: rerank.steps: got 2.5, expected an integer"),
        ("train.rows=3", "error: train.rows: got 3, expected a divisor of train.solutions (8)"),
        (
            "what=sleep",
            "error: what: got 'sleep', expected train, score, sampling, accelerator, rerank, search, memory",
        ),
        ("peer=keras", "error: peer: got 'keras', expected null, torch, trl where what=train"),
        ("repeats=0", "error: repeats: got 0, expected at least 1"),
        ("dtypes=[float16]", "error: dtypes: got ['float16'], expected float32, bfloat16 or both"),
        (
            "model.dtype=float32",
            "error: model.dtype: got 'float32', expected auto: `dtypes` says what is measured",
        ),
    ],
)
def test_bad_input_gives_one_line(override, message, monkeypatch, tmp_path):
    assert call(bench.main, monkeypatch, "bench", override, f"hydra.run.dir={tmp_path}/bench") == message
