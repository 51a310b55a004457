"""The benchmark runs, and what it compares agrees."""

import dataclasses
import json
import sys
import venv

import numpy as np
import pytest
from conftest import TINY as TINY_MODEL
from conftest import call

from prm_jax.bench import __main__ as bench
from prm_jax.bench import models as bench_models

TINY = [f"rerank.{key}" for key in ("problems=20", "candidates=30", "steps=3", "betas=3", "trials=300")]


def test_rerank_agrees_with_both_shuffles(monkeypatch, tmp_path):
    timed = ["rerank.timed_trials=200", "warmup=0", "repeats=1"]
    args = ["what=rerank", *TINY, *timed, f"hydra.run.dir={tmp_path}/bench"]
    monkeypatch.setattr(sys, "argv", ["bench", *args])
    bench.main()
    got = json.loads((tmp_path / "bench" / "results.json").read_text())
    for name, timed in (("numpy_shuffles", "300 of 300"), ("python_shuffles", "200 of 300")):
        assert 0 < got[f"{name}_largest_error"] < 4
        assert got[f"{name}_times_slower"] == got[f"{name}_seconds"] / got["one_curve_seconds"]
        assert got["notes"][f"{name}_seconds"].startswith(f"timed {timed} trials; 3 n")  # 10, 25, 30
    assert 0.1 < got["share_of_scores_exactly_1"] < 0.4


SMALL = [
    "model.layers=1",
    "model.dim=32",
    "model.ffn=48",
    "model.vocab=300",
    "model.heads=2",
    "model.kv_heads=1",
    "model.head_dim=8",
]


def results(monkeypatch, tmp_path, *args):
    monkeypatch.setattr(sys, "argv", ["bench", *args, *SMALL, f"hydra.run.dir={tmp_path}/bench"])
    bench.main()
    return json.loads((tmp_path / "bench" / "results.json").read_text())


def test_training_takes_the_peers_steps(monkeypatch, tmp_path):
    """The same solutions, weights, schedule and loss: PyTorch's loss is ours, step by step."""
    args = ["what=train", "peer=torch", "warmup=1", "repeats=5", "train.mean_tokens=50", "train.rows=2"]
    got = results(monkeypatch, tmp_path, *args)
    assert got["torch_float32_loss_difference"] < 1e-4
    assert got["times_torch_float32"] == pytest.approx(
        got["useful_tokens_per_second"] / got["torch_float32_tokens_per_second"]
    )


def test_scoring_gives_the_peers_scores(monkeypatch, tmp_path):
    args = ["what=score", "peer=torch", "score.problems=2", "score.candidates=4", "score.tokens=512"]
    got = results(monkeypatch, tmp_path, *args, "warmup=0", "repeats=1", "score.mean_tokens=100")
    assert got["torch_float32_score_difference"] < 1e-5 and got["tokens_a_computed_token"] > 1.2


def test_a_peer_without_its_packages_says_what_to_give(monkeypatch, tmp_path):
    """An environment without packages: the error comes before anything is measured."""
    venv.create(tmp_path / "bare", symlinks=True)
    python = tmp_path / "bare" / "bin" / "python"
    asked = ["what=train", "peer=trl", f"peer_python={python}", f"hydra.run.dir={tmp_path}/bench"]
    assert call(bench.main, monkeypatch, "bench", *asked, *SMALL) == (
        f"error: peer=trl: {python} cannot import it (ModuleNotFoundError: No module named 'trl'); `pip install torch "
        "trl==1.13.0` in an environment of its own and give peer_python=ENVIRONMENT/bin/python"
    )
    asked[2] = f"peer_python={tmp_path}/none"
    asked[3] += "2"
    message = call(bench.main, monkeypatch, "bench", *asked, *SMALL)
    assert message == f"error: peer_python: cannot be run: [Errno 2] No such file or directory: '{tmp_path}/none'"


def test_groups_of_equal_size_and_nearly_equal_tokens(rng):
    lengths = rng.integers(20, 700, 80)
    groups = bench_models.balanced(lengths, 10, 8)
    assert sorted(i for g in groups for i in g) == list(range(80)) and {len(g) for g in groups} == {8}
    totals = [lengths[g].sum() for g in groups]
    assert max(totals) < 1.05 * np.mean(totals)


def test_useful_flops_by_hand():
    cfg = dataclasses.replace(TINY_MODEL, dim=4, ffn=8, heads=2, kv_heads=1, head_dim=2, layers=3)
    products = 2 * 4 * 4 + 2 * 4 * 2 + 3 * 4 * 8  # q and o; k and v; feed-forward
    assert bench_models.forward_flops(cfg, tokens=5, pairs=15) == 3 * (2 * products * 5 + 2 * 2 * 4 * 15)


def test_table_gives_name_value_and_note():
    rows = [bench.Row("shuffles_seconds", 1487.6, "timed 4 of 400 trials"), bench.Row("share", 0.22757)]
    assert bench.table(rows).splitlines() == [
        "shuffles_seconds" + " " * 23 + "1,488  timed 4 of 400 trials",
        "share" + " " * 33 + "0.2276",
    ]


def test_largest_error_counts_standard_errors():
    """Two problems with e = .5: the mean of 16 trials has the standard error sqrt(.5) / 2 / 4."""
    curve_Pn = np.array([[0.5, 0.0], [0.5, 1.0]])
    rate_Sn = np.tile([0.5 + 3 * np.sqrt(0.5) / 8, 0.5], (16, 1))
    assert bench.largest_error(rate_Sn, curve_Pn) == pytest.approx(3, rel=1e-5)
    assert bench.largest_error(rate_Sn + [0, 1e-3], curve_Pn) == pytest.approx(1000, rel=1e-3)


def test_trials_by_hand():
    """The best of all is wrong and without an answer; then the right one wins wherever it is drawn."""
    score_PN = np.array([[-np.inf, -1.0, -2.0], [-np.inf, -np.inf, -np.inf]])
    right_PN, answered_PN = np.array([[True, True, False], [True] * 3]), score_PN > -np.inf
    rng = np.random.default_rng(0)
    samples = bench.as_samples(np.where(answered_PN, score_PN, 0.0), right_PN, answered_PN)
    assert bench.numpy_trial(score_PN, right_PN, [3], rng) == [0.5]
    assert bench.python_trial(samples, [3], rng.shuffle) == [0.5]
    rates = np.array([bench.python_trial(samples, [1, 2], rng.shuffle) for _ in range(300)])
    np.testing.assert_allclose(rates.mean(0), [1 / 6, 2 / 6], atol=0.05)
    rates = np.array([bench.numpy_trial(score_PN, right_PN, [1, 2], rng) for _ in range(300)])
    np.testing.assert_allclose(rates.mean(0), [1 / 6, 2 / 6], atol=0.05)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rerank.trials=0", "error: rerank.trials: got 0, expected at least 1"),
        ("rerank.timed_trials=401", "error: rerank.timed_trials: got 401, expected at most rerank.trials (400)"),
        ("rerank.steps=2.5", "error: rerank.steps: got 2.5, expected an integer"),
        ("what=sleep", "error: what: got 'sleep', expected train, score, rerank or startup"),
        ("peer=keras", "error: peer: got 'keras', expected null, torch, trl where what=train"),
        ("repeats=0", "error: warmup, repeats: got 3, 0, expected at least 0, 1"),
    ],
)
def test_bad_input_gives_one_line(override, message, monkeypatch, tmp_path):
    folder = f"hydra.run.dir={tmp_path}/bench"
    assert call(bench.main, monkeypatch, "bench", override, folder) == message
