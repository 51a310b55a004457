"""Sweeps: runs against what they were told. Literal means and intervals, what is left out, and the sweep that ends with its table."""

import argparse
import csv
import json
import os
import pickle
import re
import shlex
import signal

import hydra
import numpy as np
import pytest
from conftest import ROOT, call, printed, run
from omegaconf import OmegaConf
from test_train import THIN

import train
from prm_jax import InputError
from prm_jax.figures import style, sweep_table, sweeps
from prm_jax.figures.records import as_settings, number, read_records
from prm_jax.figures.sweep_table import Config, make_table, spread
from prm_jax.launch import cli, run_folder

SMALL = ("data.samples=solver", "data.solutions=60", "data.test_solutions=20", "batch.rows=4", "eval.every=2")


def put_run(folder, lr, head, seed, loss, steps=2, finished=True, **more):
    """A run folder as train.py leaves it, whose losses are `loss` + step."""
    (folder / ".hydra").mkdir(parents=True)
    cfg = {"optimizer": {"lr": lr}, "model": {"head": head}, "seed": seed, "steps": steps, "objective": "prm"}
    OmegaConf.save(cfg, folder / ".hydra/config.yaml")
    OmegaConf.save([f"optimizer.lr={lr}", f"seed={seed}", "steps=2"], folder / ".hydra/overrides.yaml")
    lines = [{"step": s, "loss": loss + s} for s in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step')
    summary = {"eval_loss": loss, "seed": seed, "objective": "prm", "versions": {"commit": "c" * 40}}
    summary |= {"overrides": [f"optimizer.lr={lr}", f"seed={seed}", "steps=2"]} | more
    if finished:
        (folder / "summary.json").write_text(json.dumps(summary))


@pytest.fixture
def sweep(tmp_path):
    """Two learning rates x two heads x two seeds, a run that stopped and one that was refused."""
    jobs = [(lr, head, seed) for lr in (1e-3, 1e-1) for head in ("mlp", "scalar") for seed in (0, 1)]
    for i, (lr, head, seed) in enumerate(jobs):
        put_run(tmp_path / str(i), lr, head, seed, lr + seed + (10 if head == "mlp" else 0))
    put_run(tmp_path / "8", 1e-3, "mlp", 2, 0, finished=False)
    (tmp_path / "9").mkdir()
    (tmp_path / "9/error.txt").write_text("error: steps: got 0 (steps=0)\n")
    (tmp_path / "10").mkdir()
    (tmp_path / "multirun.yaml").write_text("hydra: {}\n")
    return tmp_path


def test_seeds_are_averaged_and_settings_stand_apart(sweep):
    table = make_table(Config(str(sweep)))
    assert (table["x"], table["lines"], table["y"], table["n_runs"]) == (
        "optimizer.lr",
        ["model.head"],
        ["eval_loss"],
        8,
    )
    found = [(*r["setting"].values(), r["n"], r["mean"], r["low"], r["high"]) for r in table["rows"]]
    expected = [
        (0.001, "mlp", 2, 10.501, 10.001, 11.001), (0.1, "mlp", 2, 10.6, 10.1, 11.1),
        (0.001, "scalar", 2, 0.501, 0.001, 1.001), (0.1, "scalar", 2, 0.6, 0.1, 1.1),
    ]  # fmt: skip
    for a, b in zip(found, expected, strict=True):
        assert a[:3] == b[:3] and a[3:] == pytest.approx(b[3:])
    assert table["everywhere"] == ["steps=2"]
    assert {name.rsplit("/", 1)[1]: why for name, why in table["left_out"].items()} == {
        "8": "not finished: at step 2 of 2", "9": "failed: error: steps: got 0 (steps=0)", "10": "not begun, or refused at its start",
    }  # fmt: skip


def test_losses_of_different_definitions_share_no_column(tmp_path):
    """loss.step=bce,focal: focal looked four times better (.10 against .38)."""
    scores = {"eval_accuracy": 0.8, "eval_step_auroc": 0.9}
    for name, loss in (("bce", 0.38), ("focal", 0.10)):
        put_run(tmp_path / name, 1e-3, "mlp", 0, loss, **scores)
        path = tmp_path / name / ".hydra/config.yaml"
        OmegaConf.save(OmegaConf.merge(OmegaConf.load(path), {"loss": {"step": name}}), path)
    table = make_table(Config(str(tmp_path)))
    assert (table["y"], table["x"]) == (["eval_accuracy", "eval_step_auroc"], "loss.step")
    assert [row["mean"] for row in table["rows"]] == [0.8, 0.8, 0.9, 0.9]
    asked = make_table(Config(str(tmp_path), y="eval_loss"))  # who asks for it gets it, and no best one
    assert asked["y"] == ["eval_loss"] and not any("best" in row for row in asked["rows"])
    assert make_table(Config(str(tmp_path / "bce")))["y"] == ["eval_loss", "eval_step_auroc"]


def test_a_loss_whose_weights_the_start_decides_is_no_default(tmp_path):
    """loss.lm_weight=null is 0.5 for the embedded model and 0 for a random one."""
    for name in ("embedded", "random"):
        put_run(tmp_path / name, 1e-3, "mlp", 0, 0.3, eval_accuracy=0.8)
        path = tmp_path / name / ".hydra/config.yaml"
        OmegaConf.save(OmegaConf.merge(OmegaConf.load(path), {"init": name}), path)
    assert make_table(Config(str(tmp_path)))["y"] == ["eval_accuracy"]


def test_a_list_is_a_setting_as_any_other(tmp_path):
    for i, targets in enumerate((["w_q"], ["w_q", "w_v"])):
        put_run(tmp_path / str(i), 0.1, "mlp", 0, i)
        cfg = OmegaConf.load(tmp_path / str(i) / ".hydra/config.yaml")
        OmegaConf.save(
            OmegaConf.merge(cfg, {"lora": {"targets": targets}}), tmp_path / str(i) / ".hydra/config.yaml"
        )
    table = make_table(Config(str(tmp_path)))
    assert {row["setting"]["lora.targets"] for row in table["rows"]} == {"['w_q']", "['w_q', 'w_v']"}


def test_a_text_of_several_lines_is_one_cell(tmp_path, capsys):
    for i, separator in enumerate(("\n", "\n\n", r"~^\ ")):
        put_run(tmp_path / str(i), 0.1, "mlp", 0, i)
        cfg = OmegaConf.load(tmp_path / str(i) / ".hydra/config.yaml")
        path = tmp_path / str(i) / ".hydra/config.yaml"
        OmegaConf.save(OmegaConf.merge(cfg, {"format": {"separator": separator}}), path)
    table = make_table(Config(str(tmp_path)))
    sweeps.show(table)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[-3:]] == [
        "'\\n'",
        "'\\n\\n'",
        "~^\\",
    ]
    cells = [line.split(" & ")[0] for line in sweeps.latex(table).splitlines()[5:8]]
    assert (
        cells[0] == r"'\textbackslash{}n'"
        and cells[2] == r"\textasciitilde{}\textasciicircum{}\textbackslash{} "
    )


def test_the_best_setting_is_marked(sweep):
    table = make_table(Config(str(sweep)))
    assert [(row["setting"]["optimizer.lr"], row["mean"]) for row in table["rows"] if row["best"]] == [
        (0.001, pytest.approx(0.501))
    ]
    assert not any(
        "best" in row for row in make_table(Config(str(sweep), y="seed"))["rows"]
    )  # neither way is better
    _, body = sweeps.cells(table)
    assert [line[-1].endswith(" *") for line in body] == [False, False, True, False]
    assert sweeps.means(table).endswith("; *: the best")
    assert r"\textbf{0.5010 [0.0010, 1.0010]} \\" in sweeps.latex(table)


def test_a_learning_curve_has_each_step(sweep):
    table = make_table(Config(str(sweep), x="step", y="loss", by="model.head"))
    assert table["lines"] == ["model.head", "optimizer.lr"] and len(table["rows"]) == 8
    row = table["rows"][1]
    assert (row["setting"], row["step"], row["n"]) == ({"model.head": "mlp", "optimizer.lr": 0.001}, 2, 2)
    assert row["mean"] == pytest.approx(12.501)


def test_intervals():
    # mean 2, sd 1, n 3: t(.975, 2) = 4.302653, half width 4.302653 / sqrt(3) = 2.484138
    x = spread([1.0, 2.0, 3.0], "t")
    assert (x["mean"], x["low"], x["high"]) == pytest.approx((2, -0.484138, 4.484138), abs=1e-6)
    x = spread([1.0, np.nan, 4.0], "range")
    assert (x["n"], x["mean"], x["low"], x["high"]) == (2, 2.5, 1, 4)
    # Figures of papers have the range of few runs, here of three and two, of one and none nothing; what is undefined does not count.
    y_SX = np.array([[1, 1, 1, np.nan], [2, 4, np.nan, np.nan], [3, np.nan, np.nan, np.nan]])
    for kind, low, high in (("auto", 1, 3), ("t", -0.484138, 4.484138)):
        mean_X, low_X, high_X = style.over_seeds(y_SX[:, [0, 2, 3]], kind)
        np.testing.assert_allclose(mean_X, [2, 1, np.nan])
        np.testing.assert_allclose(low_X, [low, np.nan, np.nan], atol=1e-6)
        np.testing.assert_allclose(high_X, [high, np.nan, np.nan], atol=1e-6)
    np.testing.assert_equal([x[1] for x in style.over_seeds(y_SX)], [2.5, 1, 4])
    # From eight on they have the t interval: mean 4.5, sd 2.449490, t(.975, 7) = 2.364624, half width 2.047825.
    np.testing.assert_allclose(
        style.over_seeds(np.arange(1, 9)[:, None]), [[4.5], [2.452175], [6.547825]], atol=1e-6
    )
    for values in ([5.0], [np.nan, np.nan], [1.0, 2.0, 3.0], [1.0, 4.0]):
        x = spread(values, "range")
        np.testing.assert_equal([x["mean"], x["low"], x["high"]], style.over_seeds(values))
    eight = list(range(8))
    assert sweep_table.interval_kind("auto", [eight, [8]]) == "t"
    assert sweep_table.interval_kind("auto", [eight, [0, 1, 2]]) == "range"


def test_a_repeat_counts_once_and_an_undefined_number_is_named(sweep):
    put_run(sweep / "again", 1e-3, "mlp", 0, 99)
    os.utime(sweep / "again/summary.json", (1, 1))
    put_run(sweep / "other", 1e-3, "mlp", 5, 0, eval_loss=None)
    table = make_table(Config(str(sweep)))
    assert table["rows"][0]["mean"] == pytest.approx(10.501) and table["rows"][0]["n"] == 2
    said = {k.rsplit("/", 1)[1]: v for k, v in table["left_out"].items()}
    assert (
        said["again (summary)"] == "an older one of the same setting and seed"
        and said["other: eval_loss"] == "undefined"
    )


def test_evaluations_of_a_sweep_are_drawn_against_what_its_runs_were_told(tmp_path):
    runs = [
        {
            "verifier": f"r{i}",
            "step_auroc": 0.5 + i,
            "by_position": {"2": {"auroc": 0.1 * i}},
            "train_seed": i % 2,
        }
        | {
            "settings": {"optimizer.lr": [1e-3, 1e-1][i // 2], "batch.rows": 32},
            "overrides": [f"seed={i % 2}"],
        }
        for i in range(4)
    ]
    results = {
        "runs": runs,
        "overrides": ["task=steps", "batch.rows=4"],
        "seed": 0,
        "versions": {"commit": "c"},
    }
    (tmp_path / "results.json").write_text(json.dumps(results))
    (tmp_path / ".hydra").mkdir()
    OmegaConf.save(
        {"task": "steps", "batch": {"rows": 4}, "checkpoint": ["a"]}, tmp_path / ".hydra/config.yaml"
    )
    table = make_table(Config(str(tmp_path), x="optimizer.lr", y=["step_auroc", "by_position.2.auroc"]))
    assert [round(r["mean"], 3) for r in table["rows"]] == [1.0, 3.0, 0.05, 0.25] and table["lines"] == []
    (record, *_), _ = read_records([str(tmp_path / "results.json")])
    assert record.settings == {
        "task": "steps",
        "evaluate.batch.rows": 4,
        "optimizer.lr": 1e-3,
        "batch.rows": 32,
        "seed": 0,
    }


def test_numbers_that_travel_alone_are_known_by_their_overrides(sweep, tmp_path_factory):
    away, copies = tmp_path_factory.mktemp("away"), []
    for i in range(8):
        copies.append(away / f"{i}/summary.json")
        copies[-1].parent.mkdir()
        copies[-1].write_text((sweep / str(i) / "summary.json").read_text())
    table = make_table(Config([str(path) for path in copies[2:4] + copies[6:]]))
    assert [(r["setting"], r["n"]) for r in table["rows"]] == [
        ({"optimizer.lr": 0.001}, 2),
        ({"optimizer.lr": 0.1}, 2),
    ]
    assert as_settings(["+a.b=1e-3", "c=[1,2]", "~d"]) == {"a.b": 1e-3, "c": [1, 2]}


def test_unknown_keys_name_near_ones(sweep, monkeypatch, tmp_path):
    for cfg, message in (
        (
            {"y": "evalloss"},
            r"y: got 'evalloss', which no summary or results or metrics has; did you mean eval_loss, loss\?",
        ),
        ({"x": "optimizer.lrr"}, r"x: got 'optimizer.lrr', which no run was told; did you mean optimizer.lr"),
        ({"by": "head"}, r"by: got 'head', which no run was told; did you mean .*model.head"),
        ({"x": "step", "y": "eval_loss"}, r"y: got 'eval_loss', which no metrics has; did you mean loss"),
    ):
        with pytest.raises(InputError, match=message):
            make_table(Config(str(sweep), **cfg))
    with pytest.raises(InputError, match=r"runs: nowhere: no such file or folder"):
        make_table(Config("nowhere"))
    monkeypatch.chdir(tmp_path)
    assert call(sweeps.main, monkeypatch, "sweeps", f"runs={sweep}", "y=evalloss").startswith(
        "error: y: got 'evalloss'"
    )


def test_files_and_a_log_axis(sweep, monkeypatch):
    out = printed(sweeps.main, monkeypatch, f"runs={sweep}", "hydra.run.dir=out", cwd=sweep)
    assert "8, 3 left out; means over seed 0, 1; brackets: lowest to highest" in out
    with (sweep / "out/sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert (
        rows[0]["model.head"] == "mlp"
        and rows[0]["values"] == "10.001;11.001"
        and rows[0]["interval"] == "range"
    )
    assert r"mlp & 0.001 & 2 & 10.5010 [10.0010, 11.0010] \\" in (sweep / "out/sweep.tex").read_text()
    assert r"\begin{tabular}{lllr}" in (sweep / "out/sweep.tex").read_text()
    assert [row["best"] for row in rows] == ["False", "False", "True", "False"]
    assert len(json.loads((sweep / "out/sweep.json").read_text())["rows"]) == 4
    for suffix, start in ((".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")):
        assert (sweep / f"out/sweep{suffix}").read_bytes().startswith(start)
    axes = []
    monkeypatch.setattr(sweeps.plt, "close", lambda figure: axes.append(figure.axes[0]))
    sweeps.draw(make_table(Config(str(sweep))), sweep / "a.png")
    sweeps.draw(make_table(Config(str(sweep), x="model.head")), sweep / "a.png")
    assert [a.get_xscale() for a in axes] == ["log", "linear"]
    assert [t.get_text() for t in axes[1].get_xticklabels()] == ["mlp", "scalar"]
    for a in axes:  # every run is in sight, and no line on another
        (left, right), (low, high) = a.get_xlim(), a.get_ylim()
        points = [(x, y) for line in a.lines for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]
        assert {0.001, 1.1, 10.001, 11.1} <= {y for _, y in points}
        assert all(left < x < right and low < y < high for x, y in points)
        assert len({x for x, _ in points}) == 4


@pytest.mark.slow
def test_a_sweep_ends_with_its_table_and_what_comes_next(monkeypatch, tmp_path, capsys):
    args = ("-m", *SMALL, *THIN, "steps=0,2", "optimizer.lr=1e-3,1e-2", "hydra.sweep.dir=sw")
    monkeypatch.chdir(tmp_path)
    assert call(train.main, monkeypatch, "train.py", *args) == "1"
    out, err = capsys.readouterr()
    assert "Traceback" not in err and "steps: got 0" in err
    assert "runs        2, 2 left out" in out and re.search(
        r"left out    sw/0: failed: error: steps: got 0.*steps=0", out
    )
    assert (
        re.search(r"  0\.001 +1 +\d\.\d{4}( \*)? +\d\.\d{4}( \*)?\n  0\.01 +1 ", out)
        and (tmp_path / "sw/sweep.png").stat().st_size > 5_000
    )
    assert (
        "next        python evaluate.py task=steps checkpoint=sw hydra.run.dir=sw/steps && python -m prm_jax"
        in out
    )
    assert out.splitlines()[-1].startswith("go on       python train.py -m ")
    assert [p.name for p in run_folder.runs_of(tmp_path / "sw")] == ["2", "3"]
    summary = json.loads((tmp_path / "sw/2/summary.json").read_text())
    assert {"steps=2", "optimizer.lr=0.001"} <= set(summary["overrides"])


@pytest.mark.slow
def test_the_same_command_goes_on_with_a_sweep(monkeypatch, tmp_path, capsys):
    """Ctrl-C in the second of three jobs: the first is left alone, the second resumed bit for bit, the third begun."""
    args = ["train.py", "-m", *SMALL, *THIN, "experiment=base_lm", "seed=0,1,2", "steps=4", "log_every=1"]
    monkeypatch.chdir(tmp_path)

    def sweep(folder, *more):
        monkeypatch.setattr("sys.argv", [*args, *more, f"hydra.sweep.dir={folder}"])
        train.main()
        return capsys.readouterr().out

    def curve(run):
        lines = [json.loads(line) for line in (tmp_path / run / "metrics.jsonl").open()]
        return [{key: x for key, x in line.items() if "second" not in key} for line in lines]

    assert "go on" not in sweep("whole", "seed=1")
    step, calls = train.training.train_step, []

    def interrupted(*arrays):
        calls.append(None)
        if len(calls) == 5:
            signal.raise_signal(signal.SIGINT)
        return step(*arrays)

    with monkeypatch.context() as patch, pytest.raises(SystemExit, match="130"):
        patch.setattr(train.training, "train_step", interrupted)
        sweep("cut")
    out = capsys.readouterr().out
    assert "stopped     by SIGINT after step 2" in out
    assert out.splitlines()[-1] == f"go on       python {shlex.join([*args, 'hydra.sweep.dir=cut'])}"
    assert not (tmp_path / "cut/2").exists()
    before = (tmp_path / "cut/0/summary.json").stat().st_mtime_ns
    out = sweep("cut", "cpu_devices=1", "log_every=1")
    assert "job 0: done before: " in out and "job 1: goes on: " in out and "runs        3;" in out
    assert (tmp_path / "cut/0/summary.json").stat().st_mtime_ns == before
    assert curve("cut/1") == curve("whole/0") and len(curve("cut/2")) == 4
    with pytest.raises(SystemExit):
        sweep("cut", "optimizer.lr=0.1")
    why = "cut/0: holds the job with no other override, expected optimizer.lr=0.1; give another sweep another folder"
    assert f"{why}\n" in capsys.readouterr().err


def test_a_sweep_whose_jobs_break_says_so_at_its_end(monkeypatch, tmp_path, capsys):
    def boom(*args):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(train, "train", boom)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train.py", "-m", "seed=0,1", "hydra.sweep.dir=sw"])
    with pytest.raises(RuntimeError, match="out of memory"):
        train.main()
    out = capsys.readouterr().out
    assert (
        "sweep       runs: no finished run or evaluation in sw; sw/0: failed: RuntimeError: out of memory (seed=0)"
        in out
    )
    assert "sw/1: failed" in out and "HYDRA_FULL_ERROR" not in os.environ


@pytest.mark.slow
def test_a_cluster_s_launcher_runs_the_jobs(tmp_path):
    """submitit_local pickles what submitit_slurm does. Its jobs are processes, which find the code where the sweep was started."""
    args = ("-m", "hydra/launcher=submitit_local", *SMALL, *THIN, "steps=0,2", f"hydra.sweep.dir={tmp_path}")
    out, _ = run("train.py", *args, cwd=ROOT, code=1)
    assert (
        "runs        1, 1 left out" in out and "/0: failed: error: steps: got 0, expected at least 1" in out
    )
    assert json.loads((tmp_path / "1/summary.json").read_text())["steps"] == 2


def test_a_sweep_holds_its_folder_and_its_callback_can_be_pickled(tmp_path):
    cfg = OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path), "subdir": "${hydra.job.num}"}}})
    callback = cli.SweepFolder()
    callback.on_multirun_start(cfg)
    pickle.dumps(callback)
    with pytest.raises(SystemExit, match="another sweep works in it"):
        cli.SweepFolder().on_multirun_start(cfg)
    assert cli.active_sweeps.pop()[0] == tmp_path


@pytest.mark.skipif(hydra.__version__ >= "1.4", reason="Hydra 1.4 sees to it itself")
def test_python_3_14_s_check_of_help_stops_no_command(monkeypatch, tmp_path):
    """Its argparse formats the help of each option when that is added; Hydra 1.3's --shell-completion has one that it cannot."""
    add = argparse._ActionsContainer.add_argument

    def check_help(self, action):
        if action.help and hasattr(self, "_get_formatter"):
            self._get_formatter()._expand_help(action)

    def add_and_check(self, *names, **more):
        action = add(self, *names, **more)
        getattr(self, "_check_help", lambda action: None)(action)
        return action

    monkeypatch.setattr(argparse.ArgumentParser, "_check_help", check_help, raising=False)
    monkeypatch.setattr(argparse._ActionsContainer, "add_argument", add_and_check)
    assert "error: steps: got 0" in call(
        train.main, monkeypatch, "train.py", "steps=0", f"hydra.run.dir={tmp_path}"
    )


def test_hydra_1_4_is_told_the_one_class_that_a_configuration_names(monkeypatch):
    told = {}

    def main(config_path, config_name, execution_whitelist):
        told.update(execution_whitelist=execution_whitelist)
        return lambda job: lambda: None

    monkeypatch.setattr("hydra.main", main)
    monkeypatch.setattr("sys.argv", ["train.py"])
    train.main()
    assert told == {
        "execution_whitelist": OmegaConf.load(ROOT / "conf/runs.yaml").hydra.callbacks.sweep._target_
    }


def test_a_caption_has_no_absolute_path():
    figure = style.plt.figure()
    text = "runs/a/b, /home/x/runs/train/a, prm: /tmp/e; http://h:80/v1/x, 1/2, by_policy:/a/b/c"
    style.caption(figure, text, {"versions": {"commit": "c"}})
    shown = " ".join(figure.texts[0].get_text().split())
    assert shown == "runs/a/b, train/a, prm: tmp/e; http://h:80/v1/x, 1/2, by_policy:/a/b/c. Commit c."
    style.plt.close(figure)


def test_numbers_by_dotted_key():
    values = {"a": {"b": [1, {"c": None}]}, "d": True, "e": "x"}
    assert number(values, "a.b.0") == 1 and np.isnan(number(values, "a.b.1.c")) and number(values, "d") == 1
    assert number(values, "e") is None and number(values, "a.x") is None


def test_help(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["sweeps", "--help"])
    sweeps.main()
    assert "Usage: python -m prm_jax.sweeps [key=value" in capsys.readouterr().out
    assert train.end_of_sweep
