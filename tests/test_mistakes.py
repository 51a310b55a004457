"""Sets of labelled mistakes: their rows in, their own metrics by hand, one command."""

import base64
import hashlib
import itertools
import json

import numpy as np
import pytest
from conftest import printed
from scipy import special
from test_benchmarks import Given, read_set, write

import evaluate
from prm_jax import InputError
from prm_jax.data.sources import load
from prm_jax.evals import benchmarks
from prm_jax.evals.benchmarks import SOLUTION_METRICS


def mr(verdict="correct", error="N/A", answer="correct"):
    found = {"solution_correctness": verdict, "solution_first_error_step": error}
    found["answer_correctness"] = answer
    row = {"question": "q", "model_output_steps": ["a", "b", "c"], "question_type": "POT"}
    return row | {f"model_output_{name}": x for name, x in found.items()}


def test_mr_gsm8k_rows(tmp_path):
    rows = [mr(), mr("wrong", 2.0, "wrong"), mr("wrong", "1"), mr("wrong", "N/A")]
    solutions, counts = load(write(tmp_path / "m.jsonl", *rows), "mr_gsm8k")
    assert [s.labels for s in solutions] == [(1, 1, 1), (1, 0, None), (0, None, None)]
    assert [s.outcome for s in solutions] == [1, 0, 1]
    assert counts["wrong_solutions_without_a_place_dropped"] == 1
    for error in (4, "²"):
        with pytest.raises(InputError, match="line 1: model_output_solution_first_error_step: "):
            load(write(tmp_path / "far.jsonl", mr("wrong", error)), "mr_gsm8k")


def test_hard2verify_rows_plain_and_hidden(tmp_path, monkeypatch):
    plain = {"question": "x = 1?", "model_response_by_step": ["é", "b"], "human_labels": [1, 0]}

    def hide(value):
        data = (value if isinstance(value, str) else json.dumps(value)).encode()
        key = itertools.cycle(hashlib.sha256(b"a canary").digest())
        return base64.b64encode(bytes(a ^ b for a, b in zip(data, key))).decode()

    hidden = {name: hide(x) for name, x in plain.items()} | {"canary": "a canary"}
    number = hidden | {"question": hide("41")}
    [a, b, c], _ = load(write(tmp_path / "h.jsonl", plain, hidden, number), "hard2verify", duplicates="keep")
    for s in (a, b):
        assert (s.problem, s.steps, s.labels) == ("x = 1?", ("é", "b"), (1.0, 0.0))
    assert c.problem == "41"
    for row, labels in ((plain, [1, 2]), (hidden, [1, 0])):  # none, and not hidden
        with pytest.raises(InputError, match=r"line 1: human_labels(\[1\])?: "):
            load(write(tmp_path / "bad.jsonl", row | {"human_labels": labels}), "hard2verify")
    other = {"q": plain.pop("question")} | plain
    monkeypatch.setattr("prm_jax.data.rows.load_hub", lambda name, split: [(1, other)])
    found, _ = read_set("hard2verify", hub="set", hub_split="a+b", columns={"question": "q"})
    assert [row.group for row in found] == ["a", "b"]  # each with a row 1


def command(monkeypatch, tmp_path, kind, rows, scores):
    """(results.json, what is printed) of task=mistakes on these rows under these step scores."""
    path = write(tmp_path / "g.jsonl", *rows)
    given = Given([special.logit(score_T) for score_T in scores])
    monkeypatch.setattr(benchmarks.verifiers, "one_scorer", lambda setup: given)
    rows_are = ["data=files", f"data.name={kind}", f"data.path={path}"]
    asked = ["task=mistakes", *rows_are, "checkpoint=random", "hydra.run.dir=out"]
    out = printed(evaluate.main, monkeypatch, *asked, cwd=tmp_path)
    return json.loads((tmp_path / "out/results.json").read_text()), out


def test_first_mistakes_by_the_sets_own_metric(monkeypatch, tmp_path):
    rows = [mr("wrong", 2), mr("wrong", 1), mr(), mr()]
    # Found; too late; found; a false alarm.
    scores = [[0.9, 0.2, 0.9], [0.9, 0.1, 0.9], [0.5, 0.6, 0.7], [0.9, 0.1, 0.9]]
    results, out = command(monkeypatch, tmp_path, "mr_gsm8k", rows, scores)
    x = results["groups"]["all"]
    assert x["accuracy_error"] == 0.5 and results["groups"]["POT"] == x and "accuracy_error" in out
    assert (x["n"], x["n_error"], x["n_steps"], x["n_bad_steps"]) == (4, 2, 2 + 1 + 3 + 3, 2)


def test_other_metrics_by_hand():
    predicted, error = np.array([1, 1, -1, 1]), np.array([1, 0, -1, -1])
    found = {name: metric(error, predicted) for name, metric in SOLUTION_METRICS.items()}
    assert found["accuracy_error"] == found["first_error_f1"] == 0.5
    # sound: 1 of 2 called so; unsound: 2 of 2
    assert found["solution_balanced_f1"] == pytest.approx(2 * 0.5 * 1 / 1.5)
    assert found["mcc"] == pytest.approx(1 / 3**0.5)
