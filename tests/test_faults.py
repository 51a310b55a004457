"""What a fault leaves behind: whose a folder is, what goes on, what is refused. All cells of the matrix: tests/faults.py."""

import fcntl
import json
import os
import pwd
import subprocess
import sys
import time

import pytest
from conftest import ROOT, call, printed, without_torch
from omegaconf import OmegaConf

import evaluate
import train
from prm_jax import InputError
from prm_jax.figures import __main__ as figures
from prm_jax.figures import pipeline, running
from prm_jax.launch import files, run_folder
from prm_jax.launch.run_log import MetricsLog

ROW = {"prompt": "p", "completions": ["a"], "labels": [True]}


@pytest.fixture
def cfg(monkeypatch):
    monkeypatch.setattr(run_folder.HydraConfig, "get", lambda: OmegaConf.create({"overrides": {"task": []}}))
    return OmegaConf.create({"seed": 0})


def test_a_command_that_fails_leaves_what_is_worth_going_on_with_or_a_free_folder(tmp_path, cfg):
    (tmp_path / "own.txt").write_text("mine")
    for made, kept in (("scores.jsonl", ""), ("results.txt", "x"), ("scores.jsonl", "{}")):
        with pytest.raises(OSError), run_folder.locked_run_folder(tmp_path, cfg):
            (tmp_path / "figures").mkdir()
            (tmp_path / made).write_text(kept)
            raise OSError("disk full")
        is_kept = kept == "{}"
        assert (tmp_path / ".hydra/config.yaml").exists() == (tmp_path / made).exists() == is_kept
        assert (tmp_path / "own.txt").read_text() == "mine"
    for has_resume, hint in (
        (False, "choose another folder"),
        (True, "resume=.* continues one that was stopped"),
    ):
        if has_resume:
            cfg.resume = None
        with (
            pytest.raises(InputError, match=f"already holds a run or an evaluation; {hint}"),
            run_folder.locked_run_folder(tmp_path, cfg),
        ):
            pass


def test_one_process_works_in_a_folder(tmp_path, cfg):
    cfg.resume = None
    with run_folder.locked_run_folder(tmp_path, cfg):
        second = run_folder.locked_run_folder(tmp_path, cfg, resumes=True)
        with (
            pytest.raises(InputError, match=rf"^{tmp_path}: process {os.getpid()} of \S+ works in it"),
            second,
        ):
            pass
    with run_folder.locked_run_folder(tmp_path, cfg, resumes=True):  # the lock went with its owner
        pass


def test_lines_that_a_log_has_lost_are_told(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    whole = [json.dumps({"step": step}) + "\n" for step in (5, 10, 15, 20)]
    for lines, said in (
        (whole, ""),
        ([*whole[:2], "{\n", whole[3]], f"metrics     1 broken lines of {path} are left out\n"),
        (
            whole[1:],
            f"metrics     {path} has 2 lines up to step 15, expected 3 at log_every=5: others are lost, or log_every was larger\n",
        ),
    ):
        path.write_text("".join(lines))
        MetricsLog(tmp_path, 15, False, every=5).close()
        assert capsys.readouterr().out == said
        assert path.read_text() == "".join(
            line for line in lines if line.startswith('{"') and "20" not in line
        )


def test_what_the_system_refuses_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    error = call(train.main, monkeypatch, "train.py", "hydra.run.dir=file/run")
    assert error == "error: file/run: Not a directory"
    error = call(figures.main, monkeypatch, "figures", "name=best_of_n", "seed=0", "folder=file/figures")
    assert error.startswith("error: file/figures/stages/prm_0-") and error.endswith(": Not a directory")


def test_one_sweep_works_in_a_folder(tmp_path, monkeypatch):
    """Of two, each would take jobs from the other, and both would end as failed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "all").mkdir()
    with (tmp_path / "all/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        error = call(train.main, monkeypatch, "train.py", "-m", "seed=0,1", "steps=1", "hydra.sweep.dir=all")
    assert error == "error: hydra.sweep.dir: all: another sweep works in it; stop that one first"
    assert [path.name for path in (tmp_path / "all").iterdir()] == [".lock"]


def test_an_evaluation_is_not_gone_on_with_on_other_data(tmp_path, monkeypatch):
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    asked = ("task=score", "checkpoint=random", "input=rows.jsonl", "figures=0", "hydra.run.dir=out")
    printed(evaluate.main, monkeypatch, *asked, cwd=tmp_path)
    printed(evaluate.main, monkeypatch, "resume=out", cwd=tmp_path)
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW | {"prompt": "q"}) + "\n")
    error = call(evaluate.main, monkeypatch, "evaluate.py", "resume=out")
    assert error.startswith("error: resume: rows.jsonl: is not what the evaluation began with")


def test_an_evaluation_is_not_gone_on_with_on_another_test_file(tmp_path, monkeypatch):
    """Its scores are kept by row, and those of data.test_path were taken for those of other texts."""
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(json.dumps(ROW | {"prompt": f"{name} {i}"}) + "\n" for i in range(40))
        )
    asked = (
        "task=steps",
        "checkpoint=random",
        "data=jsonl",
        "data.path=train.jsonl",
        "data.test_path=test.jsonl",
    )
    printed(evaluate.main, monkeypatch, *asked, "baselines=false", "hydra.run.dir=out", cwd=tmp_path)
    printed(evaluate.main, monkeypatch, "resume=out", cwd=tmp_path)
    (tmp_path / "test.jsonl").write_text((tmp_path / "test.jsonl").read_text().replace("test 1", "other 1"))
    error = call(evaluate.main, monkeypatch, "evaluate.py", "resume=out")
    assert error.startswith("error: resume: test.jsonl: is not what the evaluation began with")


def test_an_evaluation_is_not_gone_on_with_by_a_run_that_went_on(tmp_path, monkeypatch):
    """Its kept scores are of step 2, and those to come would be of step 4."""
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    small = (
        "data.solutions=40",
        "data.test_solutions=8",
        "data.samples=solver",
        "eval.every=2",
        "eval.solutions=8",
    )
    small += ("batch.rows=2", "optimizer.warmup=0.5")
    printed(train.main, monkeypatch, *small, "steps=2", "hydra.run.dir=run", cwd=tmp_path)
    asked = (
        "task=score",
        "checkpoint=run",
        "which=latest",
        "input=rows.jsonl",
        "figures=0",
        "hydra.run.dir=out",
    )
    printed(evaluate.main, monkeypatch, *asked, cwd=tmp_path)
    printed(train.main, monkeypatch, "resume=run", "steps=4", cwd=tmp_path)
    error = call(evaluate.main, monkeypatch, "evaluate.py", "resume=out")
    assert error == "error: resume: run: got 'run step 4', expected run step 2; start a new one"


def test_a_stage_that_another_process_makes_is_left_alone(tmp_path):
    """A command without resume= begins again; its folder was emptied before anyone asked whose it was."""
    stage = pipeline.Stage("out", {}, "export", (), (), {}, frozenset(), "0", tmp_path)
    (tmp_path / ".hydra").mkdir()
    (tmp_path / "model").write_text("half")
    with open(tmp_path / "log.txt", "ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        with pytest.raises(InputError, match=f"^stage out: another process is making {tmp_path}$"):
            running.start(stage, None)
    assert (tmp_path / "model").read_text() == "half"


@pytest.mark.parametrize("home", ["a file", None, "", "full"])
def test_without_a_cache_nothing_is_kept_and_one_line_says_so(home, tmp_path, monkeypatch, capsys):
    """At import, and so for every command, a user without a home was a RuntimeError."""
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / str(home)))
    if home is None:
        monkeypatch.delenv("HOME")
        monkeypatch.setattr(pwd, "getpwuid", lambda uid: (_ for _ in ()).throw(KeyError(uid)))
    if home == "":  # was /
        monkeypatch.setenv("HOME", "")
    if home == "full":
        monkeypatch.setattr(files.tempfile, "TemporaryFile", lambda dir: open("/dev/full", "wb"))  # noqa: SIM115
    files.cache_folder.cache_clear()
    try:
        folder = files.cache_folder()
        assert files.cache_folder() == folder and folder.is_dir() and tmp_path not in folder.parents
    finally:
        files.cache_folder.cache_clear()
    why = {"a file": "Not a directory", None: "Could not determine home directory."}
    why |= {"": "HOME is empty", "full": "No space left on device"}
    expected = f"cache       ~/.cache/prm_jax: {why[home]}; nothing is kept for later commands\n"
    assert capsys.readouterr() == ("", expected)


def test_an_interrupt_says_how_to_go_on(tmp_path, cfg, monkeypatch, capsys):
    cfg.resume = None
    with pytest.raises(KeyboardInterrupt), run_folder.locked_run_folder(tmp_path, cfg):
        (tmp_path / "scores.jsonl").write_text("{}")
        raise KeyboardInterrupt
    assert capsys.readouterr().out == f"stopped     continue with resume={tmp_path}\n"

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.undo()  # whole commands have Hydra's own configuration
    monkeypatch.setattr(figures, "run", interrupted)
    monkeypatch.setattr(evaluate, "start_command", interrupted)
    monkeypatch.chdir(tmp_path)
    for main, words, said in (
        (figures.main, ["name=best_of_n"], "interrupted; the same command goes on\n"),
        (evaluate.main, ["hydra.run.dir=out"], "interrupted\n"),
    ):
        assert call(main, monkeypatch, "command", *words) == "130"
        assert capsys.readouterr().err == said


@pytest.mark.parametrize("words", ["train.py", "evaluate.py", "-m prm_jax.rl", "-m prm_jax train"])
def test_an_interrupt_during_the_imports_is_one_line(words, tmp_path):
    """As if Ctrl-C came while jax is imported; it was a traceback of some import."""
    heard = "signal.signal(signal.SIGINT, signal.default_int_handler)"  # also where the tests run in the background
    (tmp_path / "sitecustomize.py").write_text(f"import signal\n{heard}\n")
    (tmp_path / "jax.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, *words.split()]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_a_run_of_the_future_is_named(tmp_path, monkeypatch, capsys):
    """After a clock was set back, the newest file need not be the newest run."""
    monkeypatch.chdir(tmp_path)
    for name, hours in (("old", -1), ("future", 1)):
        path = tmp_path / "runs" / name / "summary.json"
        path.parent.mkdir(parents=True)
        path.write_text('{"objective": "prm"}')
        os.utime(path, (time.time() + hours * 3600,) * 2)
    assert run_folder.newest_run() == tmp_path / "runs/future"
    note = "note        runs/future is dated in the future: taken for the newest, name another with checkpoint=\n"
    assert capsys.readouterr().out == note
    os.utime(path, (time.time(),) * 2)
    assert run_folder.newest_run() == tmp_path / "runs/future" and not capsys.readouterr().out


@pytest.mark.slow
def test_a_cell_of_the_matrix(tmp_path):
    """A killed stage whose last line is cut goes on to the undisturbed end; the other cells are the script's."""
    command = [sys.executable, str(ROOT / "tests/faults.py"), "label", "cut_log"]
    environment = without_torch(os.environ)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.count("| label |") == 1, done.stdout + done.stderr
