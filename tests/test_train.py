"""train.py and evaluate.py as a user runs them: end to end, killed and resumed, and given bad input."""

import contextlib
import dataclasses
import io
import json
import os
import re
import shutil
import signal
import sys
import time
import types

import hydra
import numpy as np
import pytest
from conftest import ROOT, call, printed, run, start
from omegaconf import OmegaConf

import evaluate
import train
from prm_jax import InputError, packing, tasks
from prm_jax.checkpoints import export
from prm_jax.checkpoints.hf import load_tokenizer, locate
from prm_jax.checkpoints.open import open_checkpoint
from prm_jax.data.pools import read_pool
from prm_jax.data.rows import write_rows
from prm_jax.data.splits import data_config, load_splits
from prm_jax.data.units import probability
from prm_jax.examples import Example, make_examples
from prm_jax.formats import read_format
from prm_jax.launch import cli, config, run_folder
from prm_jax.launch.run_log import MetricsLog
from prm_jax.solutions import Solution, native_row
from prm_jax.training import OptimizerConfig, make_schedule

SMALL = [
    "steps=12",
    "data.samples=solver",
    "data.solutions=300",
    "data.test_solutions=60",
    "eval.every=5",
    "checkpoint_every=6",
    "log_every=3",
    "batch.rows=4",
]
THIN = [
    "init=random",
    "model.dim=16",
    "model.layers=2",
    "model.heads=2",
    "model.kv_heads=1",
    "model.head_dim=8",
    "model.ffn=16",
]


def records(folder):
    """metrics.jsonl without its timings."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in row.items() if k not in ("seconds", "cpu_seconds", "tokens_per_second")}
        for row in rows
    ]


def parameters(folder, step):
    """Every saved number of a checkpoint: model, optimiser and data position."""
    import orbax.checkpoint as ocp

    with ocp.CheckpointManager(folder / "checkpoints" / "latest") as manager:
        out = manager.restore(
            step, args=ocp.args.Composite(model=ocp.args.StandardRestore(), opt=ocp.args.StandardRestore())
        )
    import jax

    return [np.asarray(x) for x in jax.tree.leaves(dict(out.items()))]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder in which a small run has finished."""
    cwd = tmp_path_factory.mktemp("work")
    with pytest.MonkeyPatch.context() as monkeypatch:
        out = printed(train.main, monkeypatch, *SMALL, "hydra.run.dir=runs/train/whole", cwd=cwd)
    return cwd, out


@pytest.mark.parametrize("name", ["focal", "mse", "pairwise", "pqm"])
def test_train_with_every_step_loss(name, tmp_path, monkeypatch):
    small = ["init=random", "model.dim=32", "model.layers=1", "model.ffn=32", *SMALL, "steps=2"]
    out = printed(train.main, monkeypatch, *small, f"loss.step={name}", "hydra.run.dir=run", cwd=tmp_path)
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (
        "finished" in out and 0 < summary["eval_loss"] < 10
    )  # pairwise: pairs were found in held-out rows too


def test_labels_all_alike_and_solutions_longer_than_the_model_was_made_for_are_said():
    def example(n_tokens, *labels):
        return Example(
            np.zeros(n_tokens, int), np.arange(len(labels)), 0, {"label": np.array(labels, np.float32)}
        )

    nan = np.nan
    assert list(train.oddities([example(5, 1, nan), example(9, 1, 1)], 9)) == [
        "all training labels are 1, so there is nothing to tell apart"
    ]
    assert list(train.oddities([example(5, 1, nan), example(9, 0, 1)], 8)) == [
        "1 of 2 training solutions have more tokens than the 8 of the model"
    ]
    assert not list(train.oddities([example(5, 0.5, 0), example(9, nan)], 9))


@pytest.mark.parametrize("name", ["bce", "pairwise"])
def test_an_implicit_prm_is_trained_from_outcomes_and_scores_steps(name, tmp_path, monkeypatch):
    """CE and DPO form; the reference of an evaluation is what the run began with, so before the first step all ratios are 0."""
    asked = [
        "objective=implicit",
        f"loss.step={name}",
        "batch.tokens=384",
        "steps=3",
        "eval.every=3",
        "log_every=1",
        "hydra.run.dir=runs/a",
    ]
    printed(train.main, monkeypatch, *SMALL, *asked, cwd=tmp_path)
    loss = records(tmp_path / "runs/a")[0]["loss"]
    if name == "pairwise":
        assert 0 < loss < np.log(2)  # some have no partner
        return
    assert loss == pytest.approx(np.log(2), abs=1e-4)
    run = open_checkpoint(tmp_path / "runs/a", "best", read_format("auto"), "float32")
    assert (run.format.beta, run.objective, run.label_kind) == (
        0.05,
        "prm",
        "value",
    ) and run.reference is not None
    scorer, rows = run.scorer(2), [("4 +5 *3 mod7?", ("4+5=2", "2*3=6"))]
    assert np.abs(scorer.score(rows)[0]).min() > 0
    untrained = dataclasses.replace(run, model=run.reference).scorer(2)
    np.testing.assert_allclose(untrained.score(rows)[0], 0, atol=1e-6)
    out = printed(
        evaluate.main, monkeypatch, "task=steps", "baselines=false", "max_solutions=20", cwd=tmp_path
    )
    assert "learned value labels and is measured on correctness labels" in out
    refused = call(train.main, monkeypatch, "train.py", "objective=implicit", "init=random")
    assert "init: got 'random', expected a language model with objective=implicit" in refused


def test_an_exported_run_scores_as_the_run_and_has_a_card(finished, monkeypatch):
    cwd, _ = finished
    said = printed(export.main, monkeypatch, "checkpoint=runs/train/whole", "to=out/my-prm", cwd=cwd)
    assert "exported    step" in said
    rows = [("Modulo 10: start with 7, add 5.", ("7 + 5 = 2", "2 + 2 = 5"))]
    ours, theirs = (
        open_checkpoint(cwd / name, "best", read_format("auto"), "float32")
        for name in ("runs/train/whole", "out/my-prm")
    )
    assert ours.format == theirs.format and theirs.label_kind == "correctness"
    for a, b in zip(*(v.scorer(1, 128).score(rows) for v in (ours, theirs)), strict=True):
        np.testing.assert_array_equal(a, b)
    card = (cwd / "out/my-prm/README.md").read_text()
    tag = json.loads((cwd / "out/my-prm/config.json").read_text())["prm_jax"]["step_tag_id"]
    assert theirs.tokenizer.decode([tag]) == theirs.format.separator
    summary = json.loads((cwd / "runs/train/whole/summary.json").read_text())
    for text in (
        '"name": "chain"', '"separator": "\\n"', f"| eval_loss | {summary['eval_loss']:.6g} |", summary["versions"]["commit"],
        "# my-prm", "step head scalar", "AutoModelForTokenClassification", f"Step tag: token id {tag}", "class 0 is `good`",
    ):  # fmt: skip
        assert text in card, text
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)[1].replace("problem, steps = ", "_ = ")
    assert len(code.splitlines()) == 11
    monkeypatch.chdir(cwd / "out")
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        exec(code, {"problem": rows[0][0], "steps": rows[0][1]})  # noqa: S102 (as a reader would)
    numbers = [float(x) for x in re.findall(r"\d\.\d+", shown.getvalue())]
    np.testing.assert_allclose(numbers, probability(theirs.scorer(1, 128).score(rows)[0]), atol=1e-4)


def test_run_folder_and_its_evaluation(finished, monkeypatch):
    cwd, out = finished
    folder = cwd / "runs/train/whole"
    assert "eval loss" in out and "next        python -m prm_jax evaluate" in out
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["finished"] and summary["label_kind"] == "correctness" and summary["seed"] == 0
    assert summary["counts"]["train_too_long_dropped"] == 0 and "commit" in summary["versions"]
    assert summary["machine"].keys() == {
        "processor",
        "instructions",
        "cpus",
        "device",
        "devices",
        "xla_flags",
    }
    assert [row["step"] for row in records(folder)] == [3, 5, 6, 9, 10, 12]  # logged or evaluated, each once
    assert {"eval_loss", "eval_accuracy", "eval_errors"} <= records(folder)[1].keys()

    # The newest finished run: step metrics and a fresh pool.
    fresh = ("fresh.problems=6", "fresh.candidates=8")
    out = printed(evaluate.main, monkeypatch, "hydra.run.dir=runs/evaluate/a", *fresh, cwd=cwd)
    results = json.loads((cwd / "runs/evaluate/a/results.json").read_text())
    assert list(results["runs"][0]["errors"]["learning"]) == ["5", "10", "12"]
    assert (
        results["machine"] == summary["machine"]
        and results["versions"]["jaxlib"] == summary["versions"]["jaxlib"]
    )
    for key in (
        "step_auroc", "step_accuracy", "bad_step_f1", "brier", "ece", "first_error_accuracy", "first_error_f1",
        "within_problem_auroc", "n_steps", "n_solutions",
    ):  # fmt: skip
        assert isinstance(results[key], int | float), key
    assert results["n_solutions"] == 60 and set(results["baselines"]) == {
        "position",
        "length",
        "bag_of_tokens",
    }
    figures, names = re.search(r"^figures     (\S+): (.*)$", out, re.MULTILINE).groups()
    assert "best_of_n.png" in names and all(
        (cwd / figures / x).stat().st_size > 5_000 for x in names.split(", ")
    )
    scores = [json.loads(line) for line in (cwd / "runs/evaluate/a/scores_0.jsonl").read_text().splitlines()]
    assert len(scores) == 60 and {row["unit"] for row in scores} == {"logit"}

    assert (results["n_problems"], results["n_candidates"], list(results["scorers"])) == (6, 8, ["prm"])
    assert (
        results["calibration"]["prm"]["step_label"] == "exact"
        and "8" in results["scorers"]["prm"]["min"]["trace"]
    )
    pool = read_pool(cwd / "runs/evaluate/a/pool.jsonl.gz")
    right = [c.answer == p.answer for p in pool for c in p.candidates]
    assert right == [c.correct for p in pool for c in p.candidates] and np.mean(right) == pytest.approx(
        results["mean"]
    )


def test_a_machine_without_git_knows_no_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert run_folder.versions()["commit"] == "unknown"


def test_a_run_is_made_longer_on_purpose(monkeypatch, tmp_path):
    small = (*SMALL, *THIN, "log_every=1")
    printed(train.main, monkeypatch, *small, "hydra.run.dir=r", cwd=tmp_path)
    before, told = records(tmp_path / "r"), run_folder.settings(tmp_path / "r")
    error = call(train.main, monkeypatch, "train.py", "resume=r", "steps=11")
    assert re.search(r"^error: steps: got 11, expected more than the 12 that the run has", error)
    out = printed(train.main, monkeypatch, "resume=r", "steps=20", cwd=tmp_path)
    after, summary = records(tmp_path / "r"), json.loads((tmp_path / "r/summary.json").read_text())
    assert (
        after[:12] == before
        and [row["step"] for row in after] == list(range(1, 21))
        and summary["steps"] == 20
    )
    schedule = make_schedule(OptimizerConfig(1e-3, 0.35, 0.02, 0.01, 0.9, 0.98, 1.0, "all", "float32"), 20)
    assert [row["lr"] for row in after[12:]] == [float(schedule(step)) for step in range(12, 20)]
    assert (
        "longer      12 -> 20 steps" in out and f"step 13 has {after[12]['lr']:.3g} in place of 2e-05" in out
    )
    # Another setting than 20 steps from the start, and what it was told is what it did.
    now = run_folder.settings(tmp_path / "r")
    assert now == told | {"steps": 20, "lengthened": [12]} and summary["overrides"][-1] == "steps=20"
    assert "longer  " not in printed(
        train.main, monkeypatch, "resume=r", cwd=tmp_path
    )  # nothing is left to do


def test_the_best_model_is_best_by_the_metric_that_is_asked(monkeypatch, tmp_path):
    for name, by in (("a", "loss"), ("b", "first_error_f1")):
        overrides = (*SMALL, *THIN, f"eval.best_by={by}", "eval.every=2", f"hydra.run.dir={name}")
        printed(train.main, monkeypatch, *overrides, cwd=tmp_path)
        rows = [row for row in records(tmp_path / name) if "eval_loss" in row]
        best = (min if by == "loss" else max)(rows, key=lambda row: row[f"eval_{by}"])
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        assert (summary["best_step"], summary[f"eval_{by}"]) == (best["step"], best[f"eval_{by}"])
        assert str(best["step"]) in os.listdir(tmp_path / name / "checkpoints/best")
    # The numbers are those of the evaluation, on the same solutions.
    args = ("task=steps", "checkpoint=a", "which=latest", "baselines=false", "hydra.run.dir=e")
    OmegaConf.save(OmegaConf.load(tmp_path / "a/.hydra/config.yaml"), tmp_path / "config.yaml")
    solutions = load_splits(data_config(OmegaConf.load(tmp_path / "config.yaml").data), 0).splits[
        "validation"
    ]
    write_rows(tmp_path / "v.jsonl", map(native_row, solutions))
    printed(
        evaluate.main,
        monkeypatch,
        *args,
        "data=jsonl",
        "data.path=v.jsonl",
        "data.duplicates=keep",
        cwd=tmp_path,
    )
    results, last = json.loads((tmp_path / "e/results.json").read_text()), records(tmp_path / "a")[-1]
    for name in ("step_auroc", "first_error_f1"):
        assert results[name] == pytest.approx(last[f"eval_{name}"], abs=2e-3), name


def test_every_line_of_metrics_goes_to_weights_and_biases_where_asked(monkeypatch, tmp_path):
    """The package itself is optional; its run is one of its own, the same one when resumed, with the configuration."""
    begun, lines = [], []
    own = types.SimpleNamespace(
        log=lambda numbers, step: lines.append((step, numbers)), finish=lambda: lines.append("end")
    )
    stub = types.SimpleNamespace(Settings=lambda **kw: kw, init=lambda **kw: begun.append(kw) or own)
    monkeypatch.setitem(sys.modules, "wandb", stub)
    (tmp_path / "r/.hydra").mkdir(parents=True)
    OmegaConf.save({"optimizer": {"lr": 1e-3}, "seed": 4}, tmp_path / "r/.hydra/config.yaml")
    for _ in range(2):
        log = MetricsLog(tmp_path / "r", 0, False, "offline")
        log.write({"step": 3, "loss": 0.5})
        log.close()
    assert lines == [(3, {"loss": 0.5}), "end"] * 2 and begun[0] == begun[1] and begun[0]["mode"] == "offline"
    assert begun[0]["config"] == {"optimizer.lr": 1e-3, "seed": 4}
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match="wandb: needs a package: pip install wandb"):
        MetricsLog(tmp_path / "r", 0, False, "offline")


def test_misses_are_counted_by_the_kind_of_the_first_error(monkeypatch, tiny_model):
    """Against brute force, solution by solution, with scores that some first errors pass: packing changes their order."""
    data = OmegaConf.merge(
        OmegaConf.load(config.CONF / "data/chain.yaml"), {"samples": "solver", "test_solutions": 200}
    )
    solutions, tokenizer = (
        load_splits(data_config(data), 0).splits["validation"],
        load_tokenizer(locate("embedded")),
    )
    examples, _ = make_examples(solutions, read_format("plain"), tokenizer, "prm")
    passes = lambda ids, place: (ids[place] + place) % 3 > 0

    def scores(model, batch, *more, **options):
        ids_BT = np.take_along_axis(batch["ids"], batch["step_end"], 1)
        place_BT = np.take_along_axis(batch["pos"], batch["step_end"], 1)
        sums = dict.fromkeys(("step", "n_steps", "right", "lm", "n_next"), 1.0)
        logit_BT = np.where((ids_BT + place_BT) % 3 > 0, 1.0, -1.0)
        return sums | {"logit": logit_BT, "outputs": logit_BT[..., None]}

    monkeypatch.setattr(train.training, "eval_step", scores)
    monkeypatch.setattr(train, "shard_batch", lambda batch, rows: batch)
    errors = [tasks.CHAIN.first_wrong(s.problem, s.steps) for s in solutions]
    loss = train.training.LossConfig("prm", "bce", 1.0, 0.0)
    _, found = train.evaluate(tiny_model, packing.eval_batches(examples, 64, 4), loss, "correctness", errors)
    expected = {}
    for s, e in zip(solutions, examples, strict=True):
        wrong = [
            (t, x)
            for t, x in enumerate(tasks.CHAIN.verdicts(s.problem, s.steps))
            if x not in ("right", "neutral")
        ]
        for t, kind in wrong[:1]:
            expected.setdefault(kind, []).append(passes(e.ids_L, e.step_end_T[t]))
    assert found == {kind: {"n": len(x), "missed": np.mean(x)} for kind, x in expected.items()}
    assert len(found) >= 4 and 0 < found["*"]["missed"] < 1


MIXED = ["data=mixture", "+data@data.sources.a=jsonl", "+data@data.sources.b=jsonl"]


def test_a_mixture_of_files_says_what_was_drawn_from_each(monkeypatch, tmp_path):
    small = [x for x in (*SMALL, *THIN) if not x.startswith("data.")]
    data = data_config(
        OmegaConf.merge(
            OmegaConf.load(config.CONF / "data/chain.yaml"), {"samples": "solver", "solutions": 400}
        )
    )
    rows = load_splits(data, 0).splits["train"]
    for name, of in (("a", rows[::4]), ("b", [row for i, row in enumerate(rows) if i % 4])):
        write_rows(tmp_path / f"{name}.jsonl", map(native_row, of))
    paths = [f"data.sources.{name}.path={name}.jsonl" for name in "ab"]
    weights = "data.weights={a: 3, b: 1}"
    printed(train.main, monkeypatch, *small, *MIXED, *paths, weights, "hydra.run.dir=r", cwd=tmp_path)
    assert not any(
        "eval_errors" in row for row in records(tmp_path / "r")
    )  # rows of files have no kinds of errors
    summary = json.loads((tmp_path / "r/summary.json").read_text())
    assert set(summary["drawn"]) == {"a", "b"} and summary["drawn"]["a"]["share"] == pytest.approx(
        0.75, abs=0.05
    )
    assert summary["counts"]["a_rows"] == 100 and summary["counts"]["b_rows"] == 300
    assert set(json.loads((tmp_path / "r/data.json").read_text())["files"]) == {"a.jsonl", "b.jsonl"}
    printed(
        evaluate.main,
        monkeypatch,
        "task=steps",
        "baselines=false",
        "checkpoint=r",
        "hydra.run.dir=e",
        cwd=tmp_path,
    )
    results = json.loads((tmp_path / "e/results.json").read_text())
    ids = [json.loads(line)["id"] for line in (tmp_path / "e/scores_0.jsonl").read_text().splitlines()]
    assert {i.split("/")[0] for i in ids} == {"a", "b"} and results["runs"][0]["data"]["name"] == "mixture"


def test_an_interrupted_evaluation_is_gone_on_with(finished, monkeypatch):
    cwd, _ = finished
    folder = cwd / "runs/evaluate/b"
    printed(evaluate.main, monkeypatch, "task=steps", f"hydra.run.dir={folder}", cwd=cwd)
    whole, results = (
        (folder / "scores_0.jsonl").read_bytes(),
        json.loads((folder / "results.json").read_text()),
    )
    (folder / "scores_0.jsonl").write_bytes(whole[: len(whole) // 2])
    (folder / "results.json").unlink()
    out = printed(evaluate.main, monkeypatch, f"resume={folder}", cwd=cwd)
    again = json.loads((folder / "results.json").read_text())
    assert "solutions before" in out and again["step_auroc"] == pytest.approx(results["step_auroc"])
    assert (folder / "scores_0.jsonl").read_bytes().count(b"\n") == 60


def test_scoring_a_file_and_a_pool(finished, monkeypatch, tmp_path):
    cwd, _ = finished
    problem = "4 +5 max3 mod7?"
    rows = Solution(problem, ("4+5=2", "2max3=3"), id="a"), Solution(problem, ("4+5=6",), id="b/c")
    write_rows(tmp_path / "mine.jsonl", map(native_row, rows))
    mine = ("task=score", f"input={tmp_path}/mine.jsonl", "figures=[b/c]", "hydra.run.dir=runs/s")
    out = printed(evaluate.main, monkeypatch, *mine, cwd=cwd)
    ranking = json.loads((cwd / "runs/s/results.json").read_text())["ranking"]
    assert {r["id"] for r in ranking} == {"a", "b/c"} and ranking[0]["score"] >= ranking[1]["score"]
    assert list((cwd / "runs/s/figures").glob("solution_b_c_*.png")) and "weakest step" in out
    scores = {
        r["id"]: r["scores"] for r in map(json.loads, (cwd / "runs/s/scores.jsonl").read_text().splitlines())
    }
    assert len(scores["a"]) == 2 and len(scores["b/c"]) == 1

    candidates = [{"steps": ["4+5=2", "2max3=3"], "correct": True}, {"steps": ["4+5=6"], "correct": False}]
    pool = {"id": "p", "problem": problem, "answer": "3", "candidates": candidates}
    (tmp_path / "pool.jsonl").write_text(json.dumps(pool) + "\n")
    pool = ("task=score", f"input={tmp_path}/pool.jsonl", "scores_name=mine", "hydra.run.dir=runs/p")
    printed(evaluate.main, monkeypatch, *pool, cwd=cwd)
    (scored,) = read_pool(cwd / "runs/p/pool.jsonl.gz")
    np.testing.assert_allclose(scored.candidates[0].step_scores["mine"], scores["a"], atol=1e-6)


@pytest.mark.slow
def test_killed_and_resumed_is_bitwise_the_uninterrupted_run(monkeypatch, tmp_path):
    """Killed before the first checkpoint or at a random one; log, evaluation and checkpoint steps all differ."""
    long = [*SMALL, *THIN, "steps=36", "eval.every=7", "checkpoint_every=5"]
    printed(train.main, monkeypatch, *long, "hydra.run.dir=whole", cwd=tmp_path)
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    stop = max(0, int(np.random.default_rng(int.from_bytes(os.urandom(4))).integers(-6, 24)))
    latest, deadline = folder / "checkpoints" / "latest", time.time() + 120
    is_there = lambda: any(int(path.name) >= stop for path in latest.glob("*") if path.name.isdigit())
    process = start("train.py", *long, "hydra.run.dir=killed", cwd=tmp_path)
    while not (is_there() if stop else (folder / "model").exists()):
        assert process.poll() is None and time.time() < deadline, process.communicate()
        time.sleep(0.005)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL and not (folder / "summary.json").exists()
    monkeypatch.setattr(run_folder, "machine", lambda: {"processor": "another"})  # on which a run goes on too
    printed(train.main, monkeypatch, f"resume={folder}", cwd=tmp_path)
    assert records(folder) == records(whole), f"killed after step {stop}"
    seconds = [json.loads(line)["seconds"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert seconds == sorted(seconds)  # of all sessions together
    for mine, theirs in zip(parameters(folder, 36), parameters(whole, 36), strict=True):
        np.testing.assert_array_equal(mine, theirs, err_msg=f"killed after step {stop}")


@pytest.mark.slow
def test_sigterm_saves_and_resume_refuses_what_would_change_the_result(monkeypatch, tmp_path, capsys):
    """In this process; test_sharding.py and test_paper.py stop processes of their own."""
    folder = tmp_path / "stopped"
    args = [
        *SMALL,
        *THIN,
        "steps=4000",
        "eval.every=4000",
        "checkpoint_every=4000",
        "log_every=1",
        f"hydra.run.dir={folder}",
    ]
    write = MetricsLog.write

    def write_and_stop(self, record):
        write(self, record)
        if record["step"] == 3:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(MetricsLog, "write", write_and_stop)
    monkeypatch.chdir(tmp_path)
    assert call(train.main, monkeypatch, "train.py", *args) == str(128 + signal.SIGTERM)
    out = capsys.readouterr().out
    step = int(re.search(r"by SIGTERM after step (\d+); continue with: python train.py resume=", out)[1])
    assert (folder / "checkpoints/latest" / str(step)).is_dir() and not (folder / "summary.json").exists()
    assert [row["step"] for row in records(folder)] == list(range(1, step + 1))
    before = (folder / ".hydra/config.yaml").read_text()
    err = call(train.main, monkeypatch, "train.py", f"resume={folder}", "optimizer.lr=1", "log_every=7")
    assert re.fullmatch(r"error: resume: optimizer.lr \(was 0.\d+, asked 1\): would change the result.*", err)
    err = call(train.main, monkeypatch, "train.py", f"resume={folder}", "experiment=random_init")
    assert err.startswith("error: resume: uses the run's own configuration, expected no experiment=")
    err = call(train.main, monkeypatch, "train.py", f"hydra.run.dir={folder}", "optimizer.lr=1")
    assert "already holds a run" in err and (folder / ".hydra/config.yaml").read_text() == before


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_the_run_and_leaves_the_last_good_checkpoint(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    wild = ("optimizer.lr=1e30", "optimizer.clip=1e30", "hydra.run.dir=r")
    err = call(train.main, monkeypatch, "train.py", *SMALL, *wild)
    assert re.match(r"error: step \d+: \w+ is (nan|inf).*stopped", err) and "\n" not in err
    assert not (tmp_path / "r/summary.json").exists()


def test_figures_draw_latex_as_text(tmp_path):
    from prm_jax.figures import steps as figures

    steps = ("It is $\\boxed{2}$.", "costs $5 and $6", "x_1 \\frac{1}{2} $")
    drawn = {"id": "a$b", "problem": "What is $\\frac{4}{2}$?", "steps": steps, "scores": [0.9, 0.2, 0.5]}
    shown = {"shown_unit": "probability", "threshold": 0.5, "verifier": "v", "versions": {"commit": "0"}}
    path = figures.solution_figure(drawn, shown, tmp_path)
    assert path.stat().st_size > 4_000


def test_an_experiment_of_the_user_s_own_needs_no_command_in_its_file(monkeypatch, tmp_path, capsys):
    shutil.copytree(config.CONF, tmp_path / "conf")
    (tmp_path / "conf/experiment/mine.yaml").write_text("# @package _global_\nsteps: 0\n")
    monkeypatch.setattr(cli, "CONF", tmp_path / "conf")
    monkeypatch.chdir(tmp_path)
    assert call(train.main, monkeypatch, "train.py", "experiment=mine").startswith("error: steps: got 0")
    cli.print_help("train", "", [])
    assert ", mine, " in " ".join(capsys.readouterr().out.split())


def test_a_resumed_run_says_what_is_wrong_with_a_section(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run/.hydra").mkdir(parents=True)
    with hydra.initialize_config_dir(str(config.CONF), version_base="1.3"):
        OmegaConf.save(hydra.compose("train"), "run/.hydra/config.yaml")
    for override, error in (
        ("mesh=4", "mesh: got 4, expected a section of MeshConfig keys"),
        ("mesh=null", "mesh.fsdp: got None, expected an integer"),
        ("~log_every", "log_every: got None, expected an integer"),
    ):
        assert call(train.main, monkeypatch, "train.py", "resume=run", override).startswith(f"error: {error}")


def test_exit_code_and_streams_of_an_error(tmp_path):
    out, err = run("train.py", "distributed=auto", cwd=tmp_path, code=1)
    assert err.startswith("error: distributed: got 'auto', but no SLURM, Open MPI or Cloud TPU")
    assert err.count("\n") == 1 and "Traceback" not in out + err


@pytest.mark.slow
def test_help_shows_every_option_with_its_meaning(capsys, monkeypatch):
    def shown(*names):
        monkeypatch.setattr(sys, "argv", ["train.py", "--help", *names])
        train.main()
        return capsys.readouterr().out

    text = shown("data=chain", "model", "format=plain") + (top := shown())
    with hydra.initialize_config_dir(str(config.CONF), version_base="1.3"):
        keys = [key for key, _ in config.flatten(hydra.compose("train"))]
    for key in keys:
        line = re.search(rf"^\s*{re.escape(key.split('.')[-1])}:.*$", text, flags=re.MULTILINE) or re.search(
            rf"[{{,] *\"?{re.escape(key.split('.')[-1])}\"?:", text
        )
        assert line, key
    contents = top[: top.index("Keys of the command")]
    assert len(contents.splitlines()) < 20 and re.search(
        r"^data +what to train on \(default: chain\): agent", contents, re.MULTILINE
    )
    assert "# peak learning rate" in top and "chain of arithmetic" not in top
    section = shown("optimizer")
    assert section.startswith("optimizer:") and "mu_dtype" in section and "lora:" not in section
    assert shown("data=jsonl").startswith("# ----- data=jsonl -----\n# Native rows") and "prm800k" in shown(
        "data"
    )
    assert "# ----- data=files -----\n# Keys of all" in shown("data=jsonl")
    assert shown("loss.gamma") == shown("gamma") == shown("loss") and shown("rank").startswith(
        "lora: {rank: 16"
    )
    assert "# ----- data=files -----\nfolds: 10" in shown("data.folds") and "optimizer" not in shown("steps")
    assert re.search(r"^experiment .*: base_lm", top, re.MULTILINE) and "dapo" not in top
    for nothing in ("nix", "loss.lr", "data=nix"):
        assert shown(nothing) == f"--help {nothing}: no such group, section or key\n"


def test_a_refused_run_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    error = call(train.main, monkeypatch, "train.py", "data=jsonl", "data.path=nope.jsonl")
    assert error == "error: nope.jsonl: no such file" and [*tmp_path.glob("runs/*/*")] == []


def test_every_experiment_file_composes():
    import hydra

    files = sorted((ROOT / "conf/experiment").glob("*.yaml"))
    assert files
    with hydra.initialize_config_dir(str(config.CONF), version_base="1.3"):
        for path in files:
            command = re.match(r"# python (train\.py|-m prm_jax\.rl) ", path.read_text().splitlines()[1])
            assert command, "line 2 is its command"
            name = "train" if command[1] == "train.py" else "rl"
            hydra.compose(name, overrides=[f"experiment={path.stem}"], return_hydra_config=True)


def test_what_is_needed_before_a_run_is_read_is_that_of_the_run_which_goes_on(monkeypatch, tmp_path):
    (tmp_path / ".hydra").mkdir()
    OmegaConf.save({"cpu_devices": 4}, tmp_path / ".hydra" / "config.yaml")
    cfg = OmegaConf.create({"cpu_devices": 2, "resume": str(tmp_path)})
    asked = []
    monkeypatch.setattr(run_folder, "overridden_keys", lambda: asked)
    assert run_folder.of_resumed(cfg, "cpu_devices") == 4
    OmegaConf.save({"seed": 0}, tmp_path / ".hydra" / "config.yaml")  # a run from before there was the key
    assert run_folder.of_resumed(cfg, "cpu_devices") == 2
    OmegaConf.save({"cpu_devices": 4}, tmp_path / ".hydra" / "config.yaml")
    asked.append("cpu_devices")
    assert run_folder.of_resumed(cfg, "cpu_devices") == 2
    cfg.resume = None
    assert run_folder.of_resumed(cfg, "cpu_devices") == 2
