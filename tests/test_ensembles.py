"""Ensembles of verifiers: their scores by hand, what cannot be one, and that commands take them where they
take one."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import LAST_DECIDES, printed

import evaluate
from prm_jax import InputError
from prm_jax.data.pools import Candidate, Problem, write_pool
from prm_jax.scorers import EnsembleScorer

PROBLEM, RIGHT, WRONG = LAST_DECIDES


def member(name, *scores, **said):
    given = {"unit": "logit", "label_kind": "correctness", "objective": "prm", "name": name} | said
    return SimpleNamespace(**given, score=lambda rows: [np.array(x, np.float32) for x in scores])


MEMBERS = member("a", [1, -2], [3]), member("b", [4, -1], [-1]), member("c", [-2, -6], [0])


@pytest.mark.parametrize(
    ("combine", "expected"),
    [
        ("mean", [[1, -3], [2 / 3]]),
        ("min", [[-2, -6], [-1]]),
        # 2, 0 and 1 of 3; 0 is no yes
        ("vote", [[math.log(2.5 / 1.5), math.log(0.5 / 3.5)], [math.log(1.5 / 2.5)]]),
    ],
)
def test_scores_by_hand(combine, expected):
    scorer = EnsembleScorer("x", combine, MEMBERS)
    scores = scorer.score(["row"] * 2)
    assert [x.dtype for x in scores] == [np.float32] * 2
    for score_T, right_T in zip(scores, expected, strict=True):
        np.testing.assert_allclose(score_T, right_T, rtol=1e-6)
    assert (scorer.label_kind, scorer.unit, scorer.objective) == ("correctness", "logit", "prm")
    assert scorer.about == {"members": [{"verifier": name} for name in "abc"]}


@pytest.mark.parametrize(
    ("key", "value"),
    [("unit", "log_ratio"), ("label_kind", "value"), ("objective", "orm"), ("label_kind", "unknown")],
)
def test_members_that_mean_different_things_are_one_line(key, value):
    with pytest.raises(InputError, match=f"^checkpoint: .*{value}.* {key} "):
        EnsembleScorer("x", "mean", [member("a"), member("b", **{key: value})])


def test_best_of_n_by_an_ensemble(monkeypatch, tmp_path):
    candidates = tuple(Candidate(steps, steps[-1][-1], correct=steps is RIGHT) for steps in (RIGHT, WRONG))
    write_pool(tmp_path / "pool.jsonl", [Problem("0", PROBLEM, "0", candidates, task="chain")])
    names = ["mean:[checker-0.1-3,checker-0.2-3]", "min:[checker-0.1-3,checker-0.2-3]"]
    given = ["task=best_of_n", "input=pool.jsonl", f"checkpoint={json.dumps(names)}", "hydra.run.dir=a"]
    printed(evaluate.main, monkeypatch, *given, cwd=tmp_path)
    verifiers = json.loads((tmp_path / "a/results.json").read_text())["verifiers"]
    assert {name: x["verifier"] for name, x in verifiers.items()} == dict(zip(("mean", "min"), names))
    assert verifiers["mean"]["members"][1] == {"verifier": "checker-0.2-3"}
