"""The default path: the policy's samples are drawn once and kept, train a verifier, and make the pool that it
reranks."""

import dataclasses
import hashlib
import json

import pytest
from conftest import printed
from omegaconf import OmegaConf
from test_floors import loaded

import evaluate
import train
from prm_jax import tasks
from prm_jax.data.pools import Candidate, Problem
from prm_jax.data.splits import data_config, load_splits
from prm_jax.generate import samples as lab
from prm_jax.generate.sampling import Policy
from prm_jax.launch.config import CONF

CHAIN = OmegaConf.load(CONF / "data/chain.yaml")
CFG = data_config(CHAIN)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Samples of these tests lie in a folder of their own."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        folder = tmp_path_factory.mktemp("cache")
        monkeypatch.setattr(lab, "cache_folder", lambda: folder)
        monkeypatch.setattr(lab, "ROWS", 64)
        yield folder / "samples"


def test_samples_are_drawn_once_and_graded_by_the_checker_of_today(cache, monkeypatch, capsys):
    problems = tasks.make_problems(tasks.CHAIN, CFG.task, 4, "test", 0)
    asked = {"cfg": CFG, "problems": problems, "n": 8, "seed": 0}
    first = list(lab.policy_pool(**asked))
    (folder,) = cache.iterdir()
    about = json.loads((folder / "about.json").read_text())
    assert about["finished"] and about["n"] == 8 and about["weights"]
    assert about["sampling"]["temperature"] == 1.0
    for p in first:
        assert p.answer == tasks.CHAIN.gold_answer(p.problem) and len(p.candidates) == 8
        assert all(c.correct == (c.answer == p.answer) for c in p.candidates)
    monkeypatch.setattr(Policy, "extend", None)  # a second draw would fail
    assert list(lab.policy_pool(**asked)) == first
    change_of = lambda **keys: {"cfg": dataclasses.replace(CFG, **keys)}
    own = change_of(name=f"{cache.parent}/away/x.py:Task")
    for change in ({"n": 4}, {"seed": 1}, change_of(temperature=0.5), own):
        with pytest.raises(TypeError):  # other samples are asked for, and not read from this folder
            list(lab.policy_pool(**asked | change))
    assert not (cache.parent / "away").exists()
    monkeypatch.setattr(tasks.CHAIN, "solved", lambda problem, steps: True)
    assert '"correct": true' not in (folder / "pool.jsonl").read_text()
    assert all(c.correct for p in lab.policy_pool(**asked) for c in p.candidates)
    texts = [[p.problem, *(c.steps for c in p.candidates)] for p in first]
    digest = hashlib.sha256("".join(map(repr, texts)).encode()).hexdigest()[:8]  # the same everywhere
    assert f"4 problems x 8 of embedded, 1.000 right, hash {digest}, kept in" in capsys.readouterr().out


def test_the_code_that_decides_a_sample_is_all_that_decoding_loads():
    code = {"prm_jax." + file.removesuffix(".py").replace("/", ".") for file in lab.CODE}
    others = loaded("prm_jax.generate.decoding") - code - {"prm_jax.generate", "prm_jax.kernels"}
    others = {name.removeprefix("prm_jax.") for name in others if "launch" not in name}
    assert others == {"heads", "protocols", "data.units"}  # which decide no token


def test_samples_become_labelled_solutions(cache):
    cfg = dataclasses.replace(CFG, solutions_per_problem=8, after_first_error="keep")
    rows = tasks.sample_solutions(cfg, 20, "train", 0, lab.policy_pool)
    assert [s.id for s in rows[:2]] == ["chain/train/0/0", "chain/train/0/1"] and len(rows) == 20
    assert len({s.problem for s in rows}) == 3
    assert all(list(s.labels) == tasks.CHAIN.step_labels(s.problem, s.steps) for s in rows)
    cfg = dataclasses.replace(cfg, label_kind="value")
    values = tasks.sample_solutions(cfg, 20, "train", 0, lab.policy_pool)
    assert [s.steps for s in values] == [s.steps for s in rows]
    assert any(0 < y < 1 for s in values for y in s.labels)


@pytest.mark.slow
def test_the_default_path_end_to_end(cache, monkeypatch, tmp_path):
    """Two commands: samples of the shipped policy, a PRM, its steps, best of N beside the outcome model."""
    small = ("steps=3", "data.solutions=64", "data.test_solutions=32", "batch.rows=4", "eval.every=3")
    printed(train.main, monkeypatch, *small, "hydra.run.dir=runs/train/a", cwd=tmp_path)
    asked = ("fresh.problems=3", "fresh.candidates=8", "hydra.run.dir=runs/e", "cpu_devices=1")
    out = printed(evaluate.main, monkeypatch, *asked, cwd=tmp_path)
    results = json.loads((tmp_path / "runs/e/results.json").read_text())
    assert set(results["scorers"]) == {"prm", "orm", "policy"}
    assert results["pool"] == "drawn from the policy embedded of the chain task"
    assert results["verifiers"]["orm"]["objective"] == "orm" and "solved at n" in out
    # What is read first fits a screen; every table stands in the report, whose first lines are the screen's.
    report = (tmp_path / "runs/e/report.txt").read_text()
    assert len(out.splitlines()) <= 40 and "every table as text: report.txt" in out
    shown, further = report.split("counts      ")
    assert shown in out and "differences at" in further


def test_a_sample_that_was_cut_has_labels_and_no_outcome():
    """An outcome model would learn that it is right or wrong by the line that happened to be its last."""

    def draw(cfg, problems, n, seed):
        cut, ended = Candidate(("1=1",), finished=False), Candidate(("1=1",))
        return [Problem(str(i), x, None, (cut, ended), policy_tokens=7) for i, x in enumerate(problems)]

    cfg = dataclasses.replace(CFG, solutions=4, test_solutions=2, solutions_per_problem=2)
    for outcome in ("answer", "steps"):
        data = load_splits(dataclasses.replace(cfg, outcome=outcome), 0, draw)
        assert data.counts["policy_tokens"] == 14  # of two problems that train
        rows = data.splits["train"]
        assert [s.outcome is None for s in rows] == [True, False, True, False]
        assert all(s.labels is not None for s in rows)
