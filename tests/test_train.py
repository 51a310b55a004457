"""train.py and evaluate.py as a user runs them: end to end, killed and resumed, and given bad input."""

import contextlib
import dataclasses
import io
import json
import os
import re

import numpy as np
import pytest
from conftest import call, data_node, printed
from flax import nnx
from omegaconf import OmegaConf

import evaluate
import train
from prm_jax import export
from prm_jax.checkpoints.init import fill_optimizer
from prm_jax.checkpoints.open import open_checkpoint
from prm_jax.data.pools import read_pool
from prm_jax.data.splits import data_config, load_splits
from prm_jax.data.writing import native_row, write_rows
from prm_jax.formats import read_format
from prm_jax.launch.run_folder import run_config
from prm_jax.solutions import Solution

SMALL = ["steps=12", "eval.every=6", "checkpoint_every=6", "log_every=3", "batch.rows=4"]
SMALL += ["data.samples=solver", "data.solutions=300", "data.test_solutions=60"]
THIN = "init=random model.dim=16 model.layers=2 model.ffn=16 model.heads=2 model.kv_heads=1 model.head_dim=8"
THIN = THIN.split()
TIMES = ("seconds", "tokens_per_second")


def records(folder):
    """metrics.jsonl without its timings."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: x for name, x in row.items() if name not in TIMES} for row in rows]


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
        asked = *SMALL, "eval.every=5", "hydra.run.dir=runs/train/whole"
        out = printed(train.main, monkeypatch, *asked, cwd=cwd)
    return cwd, out


@pytest.mark.parametrize("name", ["pairwise", "pqm"])
def test_train_with_step_losses_of_several_steps(name, tmp_path, monkeypatch):
    small = ["init=random", "model.dim=32", "model.layers=1", "model.ffn=32", *SMALL, "steps=2"]
    out = printed(train.main, monkeypatch, *small, f"loss.step={name}", "hydra.run.dir=run", cwd=tmp_path)
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    # Of pairwise, pairs were found in held-out rows, too.
    assert "finished" in out and 0 < summary["eval_loss"] < 10


@pytest.mark.parametrize("name", ["bce", "pairwise"])
def test_an_implicit_prm_is_trained_from_outcomes_and_scores_steps(name, tmp_path, monkeypatch):
    """CE and DPO form; the reference is what the run began with, so before the first step ratios are 0."""
    ignored = "format.head=tokens", "format.good=a", "format.bad=b"  # of released heads; it has none of them
    asked = f"objective=implicit loss.step={name} batch.tokens=384 steps=3 eval.every=3 log_every=1"
    asked = *SMALL, *ignored, *asked.split(), "hydra.run.dir=runs/a"
    out = printed(train.main, monkeypatch, *asked, cwd=tmp_path)
    loss = records(tmp_path / "runs/a")[0]["loss"]
    if name == "pairwise":
        assert 0 < loss < np.log(2)  # some have no partner
        assert re.search("partners .* for [1-9]", out)
        return
    assert loss == pytest.approx(np.log(2), abs=1e-4)
    run = open_checkpoint(tmp_path / "runs/a", "best", read_format("auto"), "float32")
    assert (run.format.beta, run.objective, run.label_kind) == (0.05, "prm", "value")
    scorer, rows = run.scorer(2), [("4 +5 *3 mod7?", ("4+5=2", "2*3=6"))]
    assert np.abs(scorer.score(rows)[0]).min() > 0
    untrained = dataclasses.replace(run, model=run.reference).scorer(2)
    np.testing.assert_allclose(untrained.score(rows)[0], 0, atol=1e-6)
    export.export(open_checkpoint(tmp_path / "runs/a", "best", None, "float32"), tmp_path / "hf")
    card = re.search(r"```python\n(.*?)```", (tmp_path / "hf/README.md").read_text(), flags=re.DOTALL)
    exec(card[1], names := {})  # noqa: S102 (our own page)
    np.testing.assert_allclose(names["verifier"].log_odds(*rows[0]), scorer.score(rows)[0], atol=1e-5)
    steps = ("task=steps", "baselines=false", "max_solutions=20")
    out = printed(evaluate.main, monkeypatch, *steps, cwd=tmp_path)
    assert "learned value labels" in out


def test_a_verifier_starts_from_a_run_of_objective_lm(tmp_path, monkeypatch):
    """Its weights, tokenizer, format and optimiser are the run's; only the step head is new."""
    asked = (*THIN, "tokenizer=new", "objective=lm", "format.separator='!'", "hydra.run.dir=lm")
    printed(train.main, monkeypatch, *SMALL, *asked, "steps=2", cwd=tmp_path)
    asked = ("init=lm", "steps=1", "optimizer.lr=1e-9", "optimizer.warmup=0", "hydra.run.dir=prm")
    printed(train.main, monkeypatch, *SMALL, *asked, "model.head=mlp", cwd=tmp_path)
    policy, verifier = (open_checkpoint(name, "best", None, "float32") for name in ("lm", "prm"))
    assert verifier.format.separator == "!" and verifier.model.cfg.head == "mlp"
    assert '"pooling_type": "STEP", "step_tag_id": 5}' in export.model_card("x", verifier, 5).content
    assert verifier.tokenizer.get_vocab() == policy.tokenizer.get_vocab()
    assert verifier.config.optimizer.b2 == policy.config.optimizer.b2
    for key, x in nnx.to_pure_dict(nnx.state(policy.model.blocks)).items():
        np.testing.assert_allclose(getattr(verifier.model.blocks, key)[...], x, atol=1e-6)
    asked = ("init=prm", "model.head=binary", "hydra.run.dir=other")
    assert "model.head: " in call(train.main, monkeypatch, "train.py", *SMALL, *asked)


def test_a_file_of_solutions_of_few_problems_shares_their_prefixes_by_itself(tmp_path, monkeypatch):
    def trained(name, problems, *asked):
        texts = [f"{7 * (i % problems)} + 1 + 1 + 1 + 1 + 1 + 1 + 1?" for i in range(60)]
        rows = [{"prompt": text, "completions": [str(i)], "labels": [i % 2]} for i, text in enumerate(texts)]
        write_rows(tmp_path / f"{name}.jsonl", rows)
        words = ("data=jsonl", f"data.path={name}.jsonl", "data.label_kind=value", "steps=2", "log_every=1")
        words += (*THIN, "tokenizer=embedded", *asked, f"hydra.run.dir={name}")
        out = printed(train.main, monkeypatch, *words, cwd=tmp_path)
        return "shared prefixes save" in out, records(tmp_path / name)

    assert trained("auto", 12) == trained("asked", 12, "batch.share_prefixes=true")
    assert not trained("apart", 60)[0]


def test_an_exported_run_has_a_card(finished, monkeypatch):
    cwd, _ = finished
    said = printed(export.main, monkeypatch, "checkpoint=runs/train/whole", "to=out/my-prm", cwd=cwd)
    assert said.startswith("exported    ")
    exported = open_checkpoint(cwd / "out/my-prm", "best", read_format("auto"), "float32")
    assert exported.label_kind == "correctness"
    card = (cwd / "out/my-prm/README.md").read_text()
    tag = json.loads((cwd / "out/my-prm/config.json").read_text())["prm_jax"]["step_tag_id"]
    assert exported.tokenizer.decode([tag]) == exported.format.separator
    texts = [f"token {tag}", "# my-prm", "Qwen2ForTokenClassification", "correctness"]
    texts += ["vllm serve my-prm --runner pooling", '"pooling_type": "ALL"']
    assert all(text in card for text in texts)
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)[1]
    monkeypatch.chdir(cwd / "out")
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        exec(code)  # noqa: S102 (as a reader would)
    assert len(re.findall(r"\d\.\d+", shown.getvalue())) == 2


def test_run_folder_and_its_evaluation(finished, monkeypatch):
    cwd, out = finished
    folder = cwd / "runs/train/whole"
    assert "eval loss" in out and "next        python -m prm_jax evaluate" in out
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["finished"] and summary["label_kind"] == "correctness" and summary["seed"] == 0
    assert summary["counts"]["train_too_long_dropped"] == 0 and "commit" in summary["versions"]
    assert [row["step"] for row in records(folder)] == [3, 5, 6, 9, 10, 12]  # logged or evaluated, each once
    assert {"eval_loss", "eval_accuracy"} <= records(folder)[1].keys()

    # The newest finished run: step metrics and a fresh pool.
    fresh = ("fresh.problems=6", "fresh.candidates=8")
    out = printed(evaluate.main, monkeypatch, "hydra.run.dir=runs/evaluate/a", *fresh, cwd=cwd)
    results = json.loads((cwd / "runs/evaluate/a/results.json").read_text())
    assert results["versions"] == summary["versions"]
    numbers = "step_auroc step_accuracy bad_step_f1 brier ece first_error_accuracy first_error_f1 n_steps"
    assert all(isinstance(results[key], int | float) for key in numbers.split())
    assert results["n_solutions"] == 60
    assert {"position", "length", "likelihood"} < results["runs"][0]["beside_rules"]["judges"].keys()
    figures, names = re.search(r"^figures     (\S+): (.*)$", out, re.MULTILINE).groups()
    assert "best_of_n.png" in names
    assert all((cwd / figures / x).stat().st_size > 5_000 for x in names.split(", "))
    scores = [json.loads(line) for line in (cwd / "runs/evaluate/a/scores_0.jsonl").read_text().splitlines()]
    assert len(scores) == 60 and {row["unit"] for row in scores} == {"logit"}

    assert (results["n_problems"], results["n_candidates"], list(results["scorers"])) == (6, 8, ["prm"])
    pool = read_pool(cwd / "runs/evaluate/a/pool.jsonl.gz")
    right = [c.answer == p.answer for p in pool for c in p.candidates]
    assert right == [c.correct for p in pool for c in p.candidates]
    assert np.mean(right) == pytest.approx(results["mean"])


def test_the_best_model_is_best_by_the_metric_that_is_asked(monkeypatch, tmp_path):
    for name, by in (("a", "loss"), ("b", "first_error_f1")):
        overrides = (*SMALL, *THIN, f"eval.best_by={by}", "eval.every=3", f"hydra.run.dir={name}")
        printed(train.main, monkeypatch, *overrides, cwd=tmp_path)
        rows = [row for row in records(tmp_path / name) if "eval_loss" in row]
        best = (min if by == "loss" else max)(rows, key=lambda row: row[f"eval_{by}"])
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        assert (summary["best_step"], summary[f"eval_{by}"]) == (best["step"], best[f"eval_{by}"])
        assert str(best["step"]) in os.listdir(tmp_path / name / "checkpoints/best")
    # The numbers are those of the evaluation, on the same solutions.
    args = ("task=steps", "checkpoint=a", "which=latest", "baselines=false", "hydra.run.dir=e")
    splits = load_splits(data_config(run_config(tmp_path / "a").data), 0).splits
    write_rows(tmp_path / "v.jsonl", map(native_row, splits["validation"]))
    data = ("data=jsonl", "data.path=v.jsonl", "data.duplicates=keep")
    printed(evaluate.main, monkeypatch, *args, *data, cwd=tmp_path)
    results, last = json.loads((tmp_path / "e/results.json").read_text()), records(tmp_path / "a")[-1]
    for name in ("step_auroc", "first_error_f1"):
        assert results[name] == pytest.approx(last[f"eval_{name}"], abs=2e-3), name


@pytest.mark.parametrize(
    ("name", "given", "lr", "b2"),
    [
        ("embedded", {}, 1e-3, 0.98),
        ("random", {"lr": 2e-3}, 2e-3, 0.98),
        ("owner/name", {}, 1e-5, 0.999),
        ("a/folder", {"lr": 3e-4, "warmup": 0.1}, 3e-4, 0.999),
    ],
)
def test_the_optimiser_is_by_what_is_opened_and_a_key_that_is_set_wins(name, given, lr, b2):
    nulls = dict.fromkeys(("lr", "warmup", "weight_decay", "b2"))
    cfg = OmegaConf.create({"optimizer": nulls | given})
    fill_optimizer(cfg, name)
    assert (cfg.optimizer.lr, cfg.optimizer.b2) == (lr, b2) and cfg.optimizer.warmup is not None


def test_a_runs_optimiser_is_by_what_it_began_as(tmp_path):
    for name, began in {"large": "init: a/b", "rl": f"policy: {tmp_path}/large"}.items():
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        (tmp_path / name / ".hydra").mkdir()
        (tmp_path / name / ".hydra/config.yaml").write_text(began)
    cfg = OmegaConf.create({"optimizer": dict.fromkeys(("lr", "warmup", "weight_decay", "b2"))})
    fill_optimizer(cfg, f"{tmp_path}/rl")
    assert cfg.optimizer.lr == 1e-5


MIXED = ["data=mixture", "+data@data.sources.a=jsonl", "+data@data.sources.b=jsonl"]


def test_a_mixture_of_files_is_trained_and_evaluated(monkeypatch, tmp_path):
    small = [x for x in (*SMALL, *THIN) if not x.startswith("data.")]
    data = data_config(data_node("chain", samples="solver", solutions=400))
    rows = load_splits(data, 0).splits["train"]
    for name, of in (("a", rows[::4]), ("b", [row for i, row in enumerate(rows) if i % 4])):
        write_rows(tmp_path / f"{name}.jsonl", map(native_row, of))
    paths = [f"data.sources.{name}.path={name}.jsonl" for name in "ab"]
    weights = "data.weights={a: 3, b: 1}"
    out = printed(train.main, monkeypatch, *small, *MIXED, *paths, weights, "hydra.run.dir=r", cwd=tmp_path)
    assert "100 a_rows" not in out
    summary = json.loads((tmp_path / "r/summary.json").read_text())
    assert summary["counts"]["a_rows"] == 100 and summary["counts"]["b_rows"] == 300
    assert set(json.loads((tmp_path / "r/data.json").read_text())["files"]) == {"a.jsonl", "b.jsonl"}
    steps = ("task=steps", "baselines=false", "checkpoint=r", "hydra.run.dir=e")
    printed(evaluate.main, monkeypatch, *steps, cwd=tmp_path)
    results = json.loads((tmp_path / "e/results.json").read_text())
    assert results["n_solutions"] > 20 and results["runs"][0]["data"]["name"] == "mixture"


def test_scoring_a_file_and_a_pool(finished, monkeypatch, tmp_path):
    cwd, _ = finished
    problem = "4 +5 max3 mod7?"
    rows = Solution(problem, ("4+5=2", "2max3=3"), id="a"), Solution(problem, ("4+5=6\n!",), id="b/c")
    write_rows(tmp_path / "mine.jsonl", map(native_row, rows))
    mine = ("task=score", f"input={tmp_path}/mine.jsonl", "hydra.run.dir=runs/s")
    out = printed(evaluate.main, monkeypatch, *mine, cwd=cwd)
    ranking = json.loads((cwd / "runs/s/results.json").read_text())["ranking"]
    assert {r["id"] for r in ranking} == {"a", "b/c"} and ranking[0]["score"] >= ranking[1]["score"]
    assert "4+5=6 !" in (cwd / "runs/s/report.txt").read_text() and "weakest_step" in out
    lines = (cwd / "runs/s/scores.jsonl").read_text().splitlines()
    scores = {row["id"]: row["scores"] for row in map(json.loads, lines)}
    assert len(scores["a"]) == 2 and len(scores["b/c"]) == 1

    candidates = [{"steps": ["4+5=2", "2max3=3"], "correct": True}, {"steps": ["4+5=6"], "correct": False}]
    pool = {"id": "p", "problem": problem, "answer": "3", "candidates": candidates}
    (tmp_path / "pool.jsonl").write_text(json.dumps(pool) + "\n")
    pool = ("task=score", f"input={tmp_path}/pool.jsonl", "hydra.run.dir=runs/p")
    printed(evaluate.main, monkeypatch, *pool, cwd=cwd)
    (scored,) = read_pool(cwd / "runs/p/pool.jsonl.gz")
    np.testing.assert_allclose(scored.candidates[0].step_scores["prm"], scores["a"], atol=1e-6)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_the_run_and_leaves_the_last_good_checkpoint(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    wild = ("optimizer.lr=1e30", "optimizer.clip=1e30", "hydra.run.dir=r")
    err = call(train.main, monkeypatch, "train.py", *SMALL, *wild)
    assert re.match(r"error: step \d+: \w+ is (nan|inf).*stopped", err) and "\n" not in err
    assert not (tmp_path / "r/summary.json").exists()
