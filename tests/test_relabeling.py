"""Labels from what exists: TD targets literally and by their definition, every source, resuming, consensus, bad input."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, call, printed
from omegaconf import OmegaConf

from prm_jax import tasks
from prm_jax.data import sources
from prm_jax.data.pools import read_pool, with_scores, write_pool
from prm_jax.data.units import probability
from prm_jax.generate import relabeling
from prm_jax.generate.relabeling import consensus, td_targets
from prm_jax.launch.config import CONF, parse
from prm_jax.scorers import RandomScorer
from prm_jax.tasks import chain
from prm_jax.tasks.chain import CHAIN

CFG = parse(OmegaConf.load(CONF / "data/chain.yaml").task, chain.Config, "data.task")


def test_td_targets_literally():
    value_T = np.array([0.2, 0.6, 0.9])
    assert td_targets(value_T, 1.0, 1.0, 1.0).tolist() == [1, 1, 1]  # lambda = 1: the outcome at every step
    assert td_targets(value_T, 0.0, 1.0, 1.0).tolist() == [0, 0, 0]
    assert td_targets(value_T, 1.0, 0.0, 1.0).tolist() == [
        0.2,
        0.6,
        1,
    ]  # lambda = 0: the value after the step
    assert td_targets(value_T, 0.0, 0.5, 1.0) == pytest.approx([0.25, 0.3, 0])
    assert td_targets(value_T, 1.0, 1.0, 0.5).tolist() == [0.25, 0.5, 1]
    assert td_targets(np.array([0.3]), 1.0, 0.5, 1.0).tolist() == [1]


@pytest.mark.parametrize("before", [0.0, 0.7])
def test_td_targets_are_the_value_before_plus_the_generalised_advantage(rng, before):
    for T in range(1, 6):
        decay, gamma, outcome, value_T = rng.random(), rng.random(), float(rng.integers(2)), rng.random(T)
        state, after, reward = [before, *value_T[:-1]], [*value_T[:-1], 0.0], [0.0] * (T - 1) + [outcome]
        delta = [r + gamma * v - s for r, v, s in zip(reward, after, state, strict=True)]
        advantage = [sum((gamma * decay) ** l * delta[t + l] for l in range(T - t)) for t in range(T)]
        assert td_targets(value_T, outcome, decay, gamma) == pytest.approx(np.add(state, advantage))


def test_consensus_literally():
    soft, hard = [1.0, 0.6, 0.2, 0.9], [1.0, 1.0, 0.0, None]
    assert consensus(soft, hard, 0.5, 0.5) == [1, 1, 0, None]
    assert consensus(soft, hard, 0.1, 0.5) is None  # the first names no wrong step
    assert consensus(soft, [1.0, None, 1.0, 1.0], 0.1, 0.5) == [1, 1, 1, 1]
    assert consensus([1.0, None, 0.0], [1.0, 1.0, 0.0], 0.5, 0.5) == [1, None, 0]
    assert consensus([None, None], [1.0, 1.0], 0.5, 0.5) is None


@pytest.fixture
def pool(tmp_path):
    """A pool of 6 problems x 3 of the solver, with step scores `seen` as probabilities and `log` as log-odds."""
    problems = list(tasks.solver_pool(CHAIN, CFG, tasks.make_problems(CHAIN, CFG, 6, "train", 0), 3, 0))
    rows = [(p.problem, c.steps) for p in problems for c in p.candidates]
    log_odds = RandomScorer(0).score(rows)
    problems = with_scores(problems, "log", log_odds, "logit")
    write_pool(
        tmp_path / "pool.jsonl", with_scores(problems, "seen", map(probability, log_odds), "probability")
    )
    return tmp_path / "pool.jsonl"


def make(monkeypatch, pool, name, *overrides):
    """(rows of labels.jsonl, about.json, what was printed)."""
    given = f"input={pool}", f"hydra.run.dir={name}"
    out = printed(relabeling.main, monkeypatch, *given, *overrides, cwd=pool.parent)
    folder = pool.parent / name
    rows = [json.loads(line) for line in (folder / "labels.jsonl").read_text().splitlines()]
    return rows, json.loads((folder / "about.json").read_text()), out


def candidates(pool):
    return [(p, c) for p in read_pool(pool) for c in p.candidates]


def test_scores_of_a_pool_become_labels_whatever_their_unit(monkeypatch, pool):
    seen, about, out = make(monkeypatch, pool, "a", "by=scores", "scores=seen")
    assert [row["labels"] for row in seen] == [list(c.step_scores["seen"]) for _, c in candidates(pool)]
    assert about["label_kind"] == "unknown" and "data.label_kind=correctness|value, which their source" in out
    log, about, _ = make(monkeypatch, pool, "b", "by=scores", "scores=log", "label_kind=value")
    for a, b in zip(seen, log, strict=True):
        assert a["labels"] == pytest.approx(b["labels"], abs=1e-7)
        assert b["label_kind"] == "value" and b["by"] == "scores" and b["scores"] == "log"
    hard, *_ = make(monkeypatch, pool, "c", "by=scores", "scores=log", "threshold=0.6")
    assert [row["labels"] for row in hard] == [[float(y >= 0.6) for y in row["labels"]] for row in seen]
    assert [s.labels for s in sources.load(pool.parent / "c/labels.jsonl", "native")[0]] == [
        tuple(row["labels"]) for row in hard
    ]


def test_formal_labels_and_what_has_no_verdict(monkeypatch, pool):
    exact, about, _ = make(monkeypatch, pool, "a", "by=checker")
    assert [row["labels"] for row in exact] == [
        CHAIN.step_labels(p.problem, c.steps) for p, c in candidates(pool)
    ]
    assert about["label_kind"] == "correctness" and [row["outcome"] for row in exact] == [
        float(c.correct) for _, c in candidates(pool)
    ]
    text = pool.parent / "text.jsonl"
    text.write_text(
        json.dumps({"prompt": "q", "completions": ["2+2=4", "so it is", "4*2=9"]})
        + "\n"
        + json.dumps({"prompt": "q", "completions": ["no"]})
    )
    found, about, _ = make(
        monkeypatch, text, "b", "by=checker", f"checker={ROOT}/examples/equations.py:labels"
    )
    assert [row["labels"] for row in found] == [[1, None, 0], [None]]
    assert about["counts"]["steps_without_label"] == 2 and about["counts"]["solutions_without_label"] == 1


def test_the_task_is_named_by_the_rows_or_by_one_key(monkeypatch, tmp_path):
    path, row = tmp_path / "rows.jsonl", {"prompt": "4 +5 mod7?", "completions": ["4+5=2"]}

    def ask(row, *given):
        path.write_text(json.dumps(row) + "\n")
        return call(
            relabeling.main, monkeypatch, "r", f"input={path}", "by=checker", "hydra.run.dir=x", *given
        )

    monkeypatch.chdir(tmp_path)
    assert ask(row).startswith(f"error: {path}: task: ")
    assert ask(row | {"task": "sums"}).startswith(f"error: {path}: task: ")
    path.write_text(json.dumps(row) + "\n")
    found, *_ = make(monkeypatch, path, "a", "by=checker", "checker=chain")
    assert [(row["labels"], row["task"]) for row in found] == [([1.0], "chain")]
    noisy = "by=scorer", "checkpoint=checker-0-9", "checker=chain", "threshold=0.5"
    assert make(monkeypatch, path, "b", *noisy)[0][0]["labels"] == [1.0]


def test_td_spreads_outcomes_by_a_value_model(monkeypatch, pool):
    blind, about, _ = make(monkeypatch, pool, "a", "by=td", "td_lambda=1")
    assert all(set(row["labels"]) == {row["outcome"]} for row in blind) and about["label_kind"] == "value"
    found, about, out = make(monkeypatch, pool, "b", "by=td", "checkpoint=embedded_orm", "td_lambda=0.25")
    stored = [json.loads(line) for line in (pool.parent / "b/scores.jsonl").read_text().splitlines()]
    for row, scores in zip(found, stored, strict=True):
        wanted = td_targets(probability(scores["scores"]), row["outcome"], 0.25, 1.0)
        assert (
            row["labels"] == wanted.tolist() and row["td_lambda"] == 0.25 and row["scorer"] == "embedded_orm"
        )
    assert len(about["weights"]) == 64
    # What "no completions" leaves out: the samples that the value model was trained on.
    assert about["counts"]["policy_tokens_of_scorer"] == 905_797 and "905,797 policy_tokens_of_scorer" in out


def test_a_solution_that_was_cut_has_no_outcome_to_spread(monkeypatch, pool):
    rows = [json.loads(line) for line in pool.read_text().splitlines()]
    rows[0]["candidates"][1] |= {"finished": False, "correct": True}
    pool.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found, about, out = make(monkeypatch, pool, "a", "by=td", "td_lambda=1")
    assert found[1]["outcome"] is None and set(found[1]["labels"]) == {None} and len(found) == 18
    assert about["counts"]["solutions_without_label"] == 1 and "1 solutions_without_label" in out


def test_a_verifier_is_distilled_and_an_interrupted_file_goes_on(monkeypatch, pool):
    found, about, _ = make(monkeypatch, pool, "a", "by=scorer", "checkpoint=random")
    rows = [(p.problem, c.steps) for p, c in candidates(pool)]
    assert [row["labels"] for row in found] == [probability(x).tolist() for x in RandomScorer(0).score(rows)]
    assert about["label_kind"] == "unknown" and about["scorer"] == "random"
    value, about, _ = make(monkeypatch, pool, "b", "by=scorer", "checkpoint=embedded_orm", "threshold=0.5")
    assert about["label_kind"] == "value" and {y for row in value for y in row["labels"]} == {0, 1}
    labels, scores = (pool.parent / "b" / name for name in ("labels.jsonl", "scores.jsonl"))
    before, stored = labels.read_bytes(), scores.read_bytes()
    labels.unlink()
    scores.write_bytes(stored[:700])
    printed(relabeling.main, monkeypatch, f"resume={pool.parent}/b", cwd=pool.parent)
    assert (
        labels.read_bytes() == before
    )  # a threshold apart, scores in other batches are equal up to rounding
    assert scores.read_bytes().splitlines()[:5] == stored.splitlines()[:5]
    lines = pool.read_text().splitlines()
    pool.write_text("\n".join(lines[1:]))
    assert "files: got" in call(relabeling.main, monkeypatch, "relabeling", f"resume={pool.parent}/b")


def test_soft_labels_of_a_file_are_hardened_and_masked(monkeypatch, tmp_path):
    """As Math-Shepherd's hard labels up to the first dead step, from the counts that soft ones are."""
    rows = [[1.0, 0.125, 0.0, 0.25], [None, 0.5, 1.0], [0.0, None, 0.0]]
    lines = [{"prompt": "q", "completions": ["s"] * len(y), "labels": y, "label_kind": "value"} for y in rows]
    (path := tmp_path / "soft.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    hard = "by=labels", "threshold=0.001"
    found, about, _ = make(monkeypatch, path, "a", *hard)
    assert [row["labels"] for row in found] == [[1, 1, 0, 1], [None, 1, 1], [0, None, 0]]
    assert about["label_kind"] == "value" == found[0]["label_kind"]
    found, *_ = make(monkeypatch, path, "b", *hard, "after_first_error=mask")
    assert [row["labels"] for row in found] == [[1, 1, 0, None], [None, 1, 1], [0, None, None]]
    same, *_ = make(monkeypatch, path, "c", "by=labels")
    assert [row["labels"] for row in same] == rows


def test_consensus_keeps_what_two_files_agree_on(monkeypatch, pool):
    make(monkeypatch, pool, "a", "by=checker")
    make(monkeypatch, pool, "b", "by=scores", "scores=seen", "label_kind=value")
    paths = [pool.parent / name / "labels.jsonl" for name in "ab"]
    first, second = ([json.loads(line)["labels"] for line in path.read_text().splitlines()] for path in paths)
    wanted = [consensus(x, y, 0.5, 0.3) for x, y in zip(first, second, strict=True)]
    asked = "by=consensus", f"other={paths[1]}", "other_threshold=0.3"
    rows, about, _ = make(monkeypatch, paths[0], "c", *asked, "label_kind=correctness")
    assert [row["labels"] for row in rows] == [y for y in wanted if y is not None] and 0 < len(rows) < 18
    assert (
        about["counts"]["solutions_dropped_where_they_differ"] == 18 - len(rows)
        and about["label_kind"] == "correctness"
    )
    same, about, _ = make(monkeypatch, paths[0], "d", "by=consensus", f"other={paths[0]}")
    assert len(same) == 18 and about["label_kind"] == "correctness"


@pytest.mark.parametrize(
    ("given", "key"),
    [
        (["by=scorer"], "checkpoint"),
        (["by=scores"], "scores"),
        (["by=consensus"], "other"),
        (["by=td"], "td_lambda"),
        (["by=td", "checkpoint=checker"], "checkpoint"),
        (["by=checker", "label_kind=value"], "label_kind"),
        (["by=scores", "scores=seen", "after_first_error=mask"], "threshold"),
    ],
)
def test_bad_settings_name_their_key(monkeypatch, pool, given, key):
    monkeypatch.chdir(pool.parent)
    asked = f"input={pool}", "hydra.run.dir=x", *given
    assert call(relabeling.main, monkeypatch, "relabeling", *asked).startswith(f"error: {key}: ")


def test_bad_files_are_named(monkeypatch, pool):
    monkeypatch.chdir(pool.parent)
    native = [{"prompt": "q", "completions": [text], "labels": [1]} for text in "ab"]
    for name, rows in (("one", native[:1]), ("two", native), ("turned", native[::-1])):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = "input=two.jsonl", "by=consensus", "hydra.run.dir=y"
    for other in ("one.jsonl", "turned.jsonl"):
        message = call(relabeling.main, monkeypatch, "relabeling", *asked, f"other={other}")
        assert message.startswith(f"error: other: got '{other}'")
    rows = [json.loads(line) for line in pool.read_text().splitlines()]
    ungraded = [c | {"correct": None} for c in rows[0]["candidates"]]
    pool.write_text(json.dumps(rows[0] | {"candidates": ungraded}) + "\n")
    asked = f"input={pool}", "by=td", "td_lambda=1", "hydra.run.dir=z"
    assert call(relabeling.main, monkeypatch, "relabeling", *asked).startswith(f"error: {pool}: outcome: ")
