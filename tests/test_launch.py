"""Commands, their configuration and what they keep: keys, metrics, resumed and damaged files, stopped
processes."""

import dataclasses
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import hydra
import numpy as np
import pytest
from conftest import MODULES, call, printed, refuses, run, start
from flax.traverse_util import flatten_dict
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from test_train import SMALL, THIN, parameters, records
from tqdm import tqdm

import prm_jax
import train
from prm_jax import InputError
from prm_jax import __main__ as commands
from prm_jax.data.writing import keep_rows
from prm_jax.figures import sweeps
from prm_jax.launch import files, run_folder
from prm_jax.launch.cli import expand_home, store_defaults
from prm_jax.launch.config import CONF, parse
from prm_jax.launch.own import read_function
from prm_jax.launch.run_log import MetricsLog

TINY_DATA = [*SMALL, *THIN, "steps=2", "data.solutions=60", "data.test_solutions=20"]


@dataclasses.dataclass(frozen=True)
class Inner:
    rate: float
    decay: float = 0.5


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner
    steps: int
    schedule: str = "cosine"
    names: tuple[str, ...] = ("a",)


def test_a_field_with_a_default_is_a_key_without_a_line_in_yaml(tmp_path):
    store_defaults("outer_defaults", Outer)
    (tmp_path / "mine.yaml").write_text("defaults: [outer_defaults, _self_]\nsteps: 3\ninner: {rate: 1.0}\n")
    with hydra.initialize_config_dir(str(tmp_path), version_base="1.3"):
        cfg = hydra.compose("mine", ["schedule=wsd", "inner.decay=0.1", "names=[b,c]"])
        assert parse(cfg, Outer) == Outer(Inner(1.0, 0.1), 3, "wsd", ("b", "c"))
        assert parse(hydra.compose("mine"), Outer) == Outer(Inner(1.0), 3)
        with pytest.raises(hydra.errors.ConfigCompositionException, match="shedule"):
            hydra.compose("mine", ["shedule=wsd"])


@pytest.mark.parametrize("name", ["train", "evaluate", "rl", "sampling", "labeling", "export", "sweeps"])
def test_each_default_stands_once(name):
    """In YAML or in the dataclass, and the dataclass' node is in the command's defaults list."""
    __import__(MODULES.get(name, f"prm_jax.{name}"))
    node = ConfigStore.instance().load(f"{name}_defaults.yaml").node
    stored = flatten_dict(OmegaConf.to_container(node), sep=".")
    written = OmegaConf.load(CONF / f"{name}.yaml")
    included = [entry for entry in written.pop("defaults") if isinstance(entry, str)]
    assert f"{name}_defaults" in included
    for path in [CONF / f"{x}.yaml" for x in included if x.startswith("shared/")]:
        written = OmegaConf.merge(written, OmegaConf.load(path))
    twice = stored.keys() & flatten_dict(OmegaConf.to_container(written), sep=".").keys()
    assert not {key for key in twice if written and OmegaConf.select(written, key) == stored[key]}


@pytest.mark.parametrize("group, command", [("experiment", "train"), ("algorithm", "rl")])
def test_every_experiment_composes(group, command):
    __import__(MODULES[command])
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        for path in sorted((CONF / group).glob("*.yaml")):
            hydra.compose(command, [f"{group}={path.stem}"], return_hydra_config=True)


def test_a_path_may_begin_at_home(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    words = "checkpoint=[~/a, policy:~/b] +data.path='~/c' ~seed x=a~/b"
    expanded = "checkpoint=[/home/me/a, policy:/home/me/b] +data.path='/home/me/c' ~seed x=a~/b"
    assert expand_home(words) == expanded
    assert "runs: got '/home/me/none'" in call(sweeps.main, monkeypatch, "sweeps", "runs=~/none")
    refuses("/home/me/none: no such folder", prm_jax.load, "~/none")


@pytest.mark.parametrize(
    "word, error",
    [
        ("lr=1e-3", "Could not override 'lr'"),
        ("optimizer.lr", "optimizer.lr: "),
        ("batch=null", "batch=null: "),
        ("data.path=a b=c", "data.path=a b=c: "),
        ("seed=1,2", "seed=1,2.*--multirun"),
    ],
)
def test_what_hydra_refuses_is_one_line(word, error, monkeypatch):
    told = call(train.main, monkeypatch, "train.py", word)
    assert re.match("error: .*" + error, told) and "\n" not in told


def test_a_sweep_runs_every_job_and_goes_on_where_it_was_cut(monkeypatch, tmp_path, capsys):
    sweep = ["-m", *TINY_DATA, "steps=2,0", "hydra.sweep.dir=s"]
    monkeypatch.chdir(tmp_path)
    assert call(train.main, monkeypatch, "train.py", *sweep).startswith("error: steps")
    assert capsys.readouterr().err.count("error: steps") == 1
    before, log = json.loads(Path("s/0/summary.json").read_text()), Path("s/0/metrics.jsonl").read_bytes()
    sweep = [*sweep[:-2], "steps=2", sweep[-1]]  # job 0 alone
    for cut in ("summary.json", "checkpoints"):
        shutil.rmtree(f"s/0/{cut}") if cut == "checkpoints" else Path(f"s/0/{cut}").unlink()
        shown = printed(train.main, monkeypatch, *sweep, cwd=tmp_path)
        assert "eval_loss" in shown and "pruned" not in shown  # the table, and no log of its fonts
        after = json.loads(Path("s/0/summary.json").read_text())
        assert before["eval_loss"] == after["eval_loss"] == after["metric"]
        assert (Path("s/0/metrics.jsonl").read_bytes() == log) == (cut == "summary.json")
    printed(train.main, monkeypatch, *sweep[:-2], "steps=3", sweep[-1], cwd=tmp_path)
    assert json.loads(Path("s/0/summary.json").read_text())["steps"] == 3
    for other in (["seed=4"], ["optimizer.lr=1"]):
        told = call(train.main, monkeypatch, "train.py", *sweep, *other)  # another job lies there
        assert told.startswith("error: resume")


def test_a_sweeper_gets_the_metric_of_a_job(monkeypatch, tmp_path):
    asked = ["-m", *TINY_DATA, "hydra/sweeper=optuna", "hydra.sweeper.n_trials=2", "hydra.sweep.dir=s"]
    printed(train.main, monkeypatch, *asked, "seed=choice(3,4)", cwd=tmp_path)
    losses = [json.loads((tmp_path / f"s/{i}/summary.json").read_text())["eval_loss"] for i in range(2)]
    assert OmegaConf.load(tmp_path / "s/optimization_results.yaml").best_value == min(losses)


def test_an_error_is_one_line_and_exits_with_one(tmp_path):
    _, err = run("train.py", "distributed=auto", cwd=tmp_path, code=1)
    assert err.startswith("error: distributed") and err.count("\n") == 1
    assert not list(tmp_path.glob("runs/*/*"))


@pytest.mark.slow
def test_killed_and_resumed_is_bitwise_the_uninterrupted_run(monkeypatch, tmp_path):
    """Killed at a random step; the steps of log, evaluation and checkpoints all differ."""
    long = [*SMALL, *THIN, "steps=30", "eval.every=9", "checkpoint_every=5"]
    printed(train.main, monkeypatch, *long, "hydra.run.dir=whole", cwd=tmp_path)
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    stop = max(0, int(np.random.default_rng(int.from_bytes(os.urandom(4))).integers(-6, 18)))
    latest, deadline = folder / "checkpoints" / "latest", time.time() + 120

    def is_there():
        steps = [int(path.name) for path in latest.glob("*") if path.name.isdigit()]
        return max(steps, default=-1) >= stop if stop else (folder / "model").exists()

    process = start("train.py", *long, "hydra.run.dir=killed", cwd=tmp_path)
    while not is_there():
        assert process.poll() is None and time.time() < deadline, process.communicate()
        time.sleep(0.005)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL and not (folder / "summary.json").exists()
    printed(train.main, monkeypatch, f"resume={folder}", cwd=tmp_path)
    assert records(folder) == records(whole), f"killed after step {stop}"
    for mine, theirs in zip(parameters(folder, 30), parameters(whole, 30), strict=True):
        np.testing.assert_array_equal(mine, theirs, err_msg=f"killed after step {stop}")


@pytest.mark.slow
def test_sigterm_saves_and_resume_refuses_what_would_change_the_result(monkeypatch, tmp_path, capsys):
    folder = tmp_path / "stopped"
    args = [*SMALL, *THIN, "steps=4000", "eval.every=4000", "checkpoint_every=4000", "log_every=1"]
    write = MetricsLog.write

    def write_and_stop(self, record):
        write(self, record)
        if record["step"] == 3:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(MetricsLog, "write", write_and_stop)
    monkeypatch.chdir(tmp_path)
    code = call(train.main, monkeypatch, "train.py", *args, f"hydra.run.dir={folder}")
    assert code == str(128 + signal.SIGTERM) and not (folder / "summary.json").exists()
    (step,) = (folder / "checkpoints/latest").iterdir()
    assert [row["step"] for row in records(folder)] == list(range(1, int(step.name) + 1))
    before = (folder / ".hydra/config.yaml").read_text()
    for words, key in (
        ([f"resume={folder}", "optimizer.lr=1", "log_every=7"], "resume: optimizer.lr"),
        ([f"resume={folder}", "experiment=random_init"], "resume: experiment"),
        ([f"resume={folder}", "mesh=4"], "mesh"),
        ([f"resume={folder}", "steps=3"], "resume: steps"),
        ([f"hydra.run.dir={folder}", "optimizer.lr=1"], "hydra.run.dir"),
    ):
        assert call(train.main, monkeypatch, "train.py", *words).startswith(f"error: {key}: ")
    assert (folder / ".hydra/config.yaml").read_text() == before


def test_a_run_is_made_longer_on_purpose(monkeypatch, tmp_path):
    printed(train.main, monkeypatch, *TINY_DATA, "log_every=1", "hydra.run.dir=r", cwd=tmp_path)
    before = records(tmp_path / "r")
    printed(train.main, monkeypatch, "resume=r", "steps=4", cwd=tmp_path)
    after = records(tmp_path / "r")
    assert after[:2] == before and [row["step"] for row in after] == [1, 2, 3, 4]
    assert run_folder.settings(tmp_path / "r")["steps"] == 4
    told = json.loads((tmp_path / "r/summary.json").read_text())["overrides"]
    assert [word for word in told if word.startswith("steps=")] == ["steps=4"]
    told = call(train.main, monkeypatch, "train.py", "resume=r", "steps=2")  # as it once was
    assert told.startswith("error: resume: steps: ")


def test_a_folder_is_claimed_once(monkeypatch, tmp_path):
    cfg = OmegaConf.create({"seed": 0})
    told = OmegaConf.create({"overrides": {"task": ["seed=0"]}})
    monkeypatch.setattr(run_folder.HydraConfig, "get", lambda: told)
    for _ in range(2):  # nothing was done in it
        run_folder.claim_folder(tmp_path, cfg)
    (tmp_path / "scores.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match="hydra.run.dir"):
        run_folder.claim_folder(tmp_path, cfg)
    assert run_folder.overrides_of(tmp_path) == ["seed=0"]
    assert run_folder.run_config(tmp_path) == cfg


def test_kept_lines_go_on_behind_the_last_whole_one(tmp_path):
    path = tmp_path / "a.jsonl"
    files.append_lines(path, [{"a": 1}, {"a": 2}])
    whole = path.read_bytes()
    for cut in range(len(whole) // 2, len(whole)):
        path.write_bytes(whole[:cut])
        assert list(files.read_lines(path)) == [{"a": 1}] and path.read_bytes() == whole[:cut]
        assert list(files.read_lines(path, cuts=True)) == [{"a": 1}]
        files.append_lines(path, [{"a": 2}])
        assert path.read_bytes() == whole
    for damage in (b"{", b"[1]", b"\xff"):
        path.write_bytes(damage + b"\n" + whole)
        with pytest.raises(InputError, match=r"a.jsonl line 1: "):
            list(files.read_lines(path))


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b'{"a": 1', b"[" * 100_000])
def test_a_damaged_file_of_state_is_one_line_with_its_name(content, tmp_path):
    path = tmp_path / "state.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"state.json"):
        files.read_json(path)
    record = tmp_path / ".hydra"
    record.mkdir()
    (record / "config.yaml").write_bytes(content)
    with pytest.raises(InputError, match=r"config.yaml"):
        run_folder.run_config(tmp_path)


def test_state_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "state.json"
    files.write_json(path, {"a": float("nan"), "b": [1.5]})
    assert files.read_json(path, b=list) == {"a": None, "b": [1.5]}
    with pytest.raises(InputError, match="state.json: b"):
        files.read_json(path, b=dict)
    with pytest.raises(OSError), files.replaced(path) as temporary:
        temporary.write_text("half")
        raise OSError
    assert files.read_json(path)["b"] == [1.5] and list(tmp_path.iterdir()) == [path]


def test_a_file_that_goes_on_is_of_the_same_settings(tmp_path):
    path = tmp_path / "pool.jsonl"
    keep = lambda n: keep_rows(path, {"n": n}, [([{}], 0)], lambda row: {"rows": 1}, {}, tqdm())
    keep(4)
    about = files.read_json(tmp_path / "about.json")
    assert about["finished"] and about["counts"] == {"resumed": 0, "rows": 1} and about["n"] == 4
    path.write_text("{}\n")
    with pytest.raises(InputError, match="pool.jsonl: .*n"):
        keep(5)


def test_a_log_goes_on_after_the_step_that_is_resumed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    log = MetricsLog(tmp_path, 2)
    log.write({"step": 3, "loss": 0.5})
    log.close()
    assert list(files.read_lines(path)) == [{"step": 1}, {"step": 2}, {"step": 3, "loss": 0.5}]
    files.keep_steps(path, -1)
    assert path.read_text() == ""


def test_a_function_of_ones_own_fails_in_one_line_with_its_name(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def f(x):\n    raise SystemExit('a\\nb')\n")
    own = read_function("checker", f"{path}:f", lambda where, result, *args: result)
    with pytest.raises(InputError, match=r"checker: .*mine.py:f: SystemExit: a"):
        own(1)
    for place in ("none.py:f", f"{path}:g"):
        with pytest.raises(InputError, match="checker"):
            read_function("checker", place, None)


def test_the_commands_are_listed(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["prm_jax"])
    commands.main()
    shown = capsys.readouterr().out
    assert all(name in shown for name in commands.COMMANDS)
    assert call(commands.main, monkeypatch, "prm_jax", "nix").startswith("error: nix")
