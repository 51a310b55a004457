"""A sweep's table: literal means and intervals, what is left out, and which numbers are compared."""

import json
import os

import numpy as np
import pandas as pd
import pytest
from conftest import call
from omegaconf import OmegaConf

from prm_jax import InputError
from prm_jax.figures import style, sweeps
from prm_jax.figures.sweeps import Config, make_table
from prm_jax.launch.run_folder import runs_of


def put_run(folder, lr, head, seed, loss, finished=True, settings=None, **more):
    """A run folder as train.py leaves it, whose losses are `loss` + step."""
    (folder / ".hydra").mkdir(parents=True)
    cfg = {"optimizer": {"lr": lr}, "model": {"head": head}, "seed": seed, "steps": 2, "objective": "prm"}
    OmegaConf.save(OmegaConf.merge(cfg, settings or {}), folder / ".hydra/config.yaml")
    lines = [{"step": s, "loss": loss + s} for s in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step')
    summary = {"eval_loss": loss, "seed": seed, "objective": "prm", "versions": {"commit": "c" * 40}}
    if finished:
        (folder / "summary.json").write_text(json.dumps(summary | more))


@pytest.fixture
def sweep(tmp_path):
    """Two learning rates x two heads x two seeds, and a run that stopped."""
    jobs = [(lr, head, seed) for lr in (1e-3, 1e-1) for head in ("mlp", "scalar") for seed in (0, 1)]
    for i, (lr, head, seed) in enumerate(jobs):
        put_run(tmp_path / str(i), lr, head, seed, lr + seed + (10 if head == "mlp" else 0))
    put_run(tmp_path / "8", 1e-3, "mlp", 2, 0, finished=False)
    return tmp_path


def test_a_sweep_stands_for_its_finished_runs_whatever_their_names(sweep):
    for name in ("10", "outcome_0"):
        put_run(sweep / name, 1e-3, "mlp", 9, 0)
    assert [run.name for run in runs_of(sweep)] == [*"01234567", "10", "outcome_0"]


def test_seeds_are_averaged_and_settings_stand_apart(sweep):
    table = make_table(Config([str(sweep), f"{sweep}/0", f"{sweep}/"], y=["eval_loss", "eval_loss"]))
    assert table.keys == ["optimizer.lr", "model.head"]
    settings = table.frame[["optimizer.lr", "model.head", "y", "runs"]].to_numpy().tolist()
    pairs = [(0.001, "mlp"), (0.001, "scalar"), (0.1, "mlp"), (0.1, "scalar")]
    assert settings == [[lr, head, "eval_loss", 2] for lr, head in pairs]
    expected = [[10.501, 10.001, 11.001], [0.501, 0.001, 1.001], [10.6, 10.1, 11.1], [0.6, 0.1, 1.1]]
    np.testing.assert_allclose(table.frame[["mean", "low", "high"]], expected, atol=1e-9)
    assert {name.rsplit("/", 1)[1]: why for name, why in table.left_out.items()} == {"8": "not finished"}


def test_a_learning_curve_has_each_step_that_all_runs_have(sweep):
    frame = make_table(Config(str(sweep), x="step", y="loss")).frame
    row = frame[(frame["step"] == 2) & (frame["model.head"] == "scalar") & (frame["optimizer.lr"] == 0.1)]
    assert len(frame) == 8 and row["mean"].item() == pytest.approx(2.6) and row["runs"].item() == 2


def test_losses_of_different_definitions_are_no_default(tmp_path):
    for name, loss in (("bce", 0.38), ("focal", 0.10)):
        step = {"loss": {"step": name}}
        put_run(tmp_path / name, 1e-3, "mlp", 0, loss, settings=step, eval_accuracy=0.8)
    table = make_table(Config(str(tmp_path)))
    assert table.keys == ["loss.step"] and set(table.frame["y"]) == {"eval_accuracy"}
    assert set(make_table(Config(str(tmp_path), y="eval_loss")).frame["y"]) == {"eval_loss"}
    assert set(make_table(Config(str(tmp_path / "bce"))).frame["y"]) == {"eval_loss", "eval_accuracy"}


def test_a_setting_may_be_called_n(tmp_path):
    for n in (16, 8):
        put_run(tmp_path / f"{n:02}", 1e-3, "mlp", 0, 0.1, settings={"n": n})
    assert make_table(Config(str(tmp_path))).frame["n"].tolist() == [8, 16]


def test_intervals():
    assert style.over_seeds([1, np.nan, 3, 2]) == (2, 1, 3)
    np.testing.assert_array_equal(style.over_seeds([1, np.nan]), [1, np.nan, np.nan])
    mean, low, high = style.over_seeds([0.1] * 3)  # whose mean is rounded up; a bar has no negative length
    assert low <= mean <= high
    np.testing.assert_array_equal(style.over_seeds([np.nan]), [np.nan] * 3)
    # From eight on: mean 4.5, sd 2.449490, t(.975, 7) = 2.364624, half width 2.047825.
    np.testing.assert_allclose(style.over_seeds(np.arange(1, 9)), [4.5, 2.452175, 6.547825], atol=1e-6)


def test_a_repeat_counts_once_and_a_number_that_is_undefined_not_at_all(sweep):
    put_run(sweep / "again", 1e-3, "mlp", 0, 99)
    os.utime(sweep / "again/summary.json", (1, 1))
    put_run(sweep / "other", 1e-3, "mlp", 5, 0, eval_loss=None)
    table = make_table(Config(str(sweep)))
    row = table.frame.iloc[0]
    assert row["mean"] == pytest.approx(10.501) and row["runs"] == 2 and "again" in str(table.left_out)


def test_a_learning_curve_is_that_of_the_newest_run_alone(tmp_path):
    for name in ("new", "old"):
        put_run(tmp_path / name, 1e-3, "mlp", 0, 0.1)
    (tmp_path / "old/metrics.jsonl").write_text('{"step": 99, "loss": 9}\n')  # it went further
    os.utime(tmp_path / "old/metrics.jsonl", (1, 1))
    assert make_table(Config(str(tmp_path), x="step")).frame["step"].tolist() == [1, 2]


def test_evaluations_are_drawn_against_their_settings(tmp_path):
    for i, rule in enumerate(("min", "prod")):
        (tmp_path / rule / ".hydra").mkdir(parents=True)
        OmegaConf.save({"aggregator": rule, "task": "steps"}, tmp_path / rule / ".hydra/config.yaml")
        results = {"step_auroc": 0.5 + i, "by_position": {"2": {"auroc": 0.1 * i}}}
        (tmp_path / rule / "results.json").write_text(json.dumps(results))
    table = make_table(Config(str(tmp_path), y=["step_auroc", "by_position.2.auroc"]))
    assert table.keys == ["aggregator"] and table.frame["mean"].tolist() == [0.5, 1.5, 0.0, 0.1]


def test_lists_texts_and_nulls_are_settings_as_any_other(tmp_path):
    values = ([1], [1, 2], None, "\n", "a_b", True)
    for i, value in enumerate(values):
        put_run(tmp_path / str(i), 0.1, "mlp", 0, i, settings={"format": {"separator": value}})
    table = make_table(Config(str(tmp_path)))
    found = table.frame["format.separator"].tolist()
    assert found == ["[1]", "[1, 2]", "None", "'\\n'", "a_b", "True"]
    sweeps.show_sweep(tmp_path)
    assert "a\\_b" in (tmp_path / "sweep.tex").read_text()
    for name in ("sweep.png", "sweep.pdf", "sweep.csv"):
        assert (tmp_path / name).stat().st_size > 100


@pytest.mark.parametrize("x", [None, "step", "model.head"])
def test_every_kind_of_figure_is_drawn(sweep, x):
    table = make_table(Config(str(sweep), x=x))
    assert sweeps.draw(table, sweep / "sweep.png").stat().st_size > 5_000


@pytest.mark.parametrize(
    "key, value",
    [("y", "evalloss"), ("y", ["eval_loss", "objective"]), ("x", "optimizer.lrr"), ("over", ["fold"])],
)
def test_a_key_that_no_run_has_is_named(sweep, key, value):
    with pytest.raises(InputError, match=rf"^{key}: .*"):
        make_table(Config(str(sweep), **{key: value}))


def test_the_command_writes_into_its_folder(sweep, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(tmp_path_factory.mktemp("work"))
    monkeypatch.setattr("sys.argv", ["sweeps", f"runs={sweep}", "hydra.run.dir=out"])
    sweeps.main()
    assert len(pd.read_csv("out/sweep.csv")) == 4
    (sweep / "0/summary.json").write_text("{")
    assert "0/summary.json" in call(sweeps.main, monkeypatch, "sweeps", f"runs={sweep}")
