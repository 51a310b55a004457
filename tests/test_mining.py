"""task=mining: convincing wrong answers, beside as many solutions drawn evenly; both labelled, none twice."""

import json
import re

import numpy as np
import pytest
from conftest import call, printed

import evaluate
import train
from prm_jax.data import sources
from prm_jax.data.pools import Candidate
from prm_jax.data.rows import read_rows
from prm_jax.evals.mining import count, different, mine

WRITTEN = [
    ("a", True),
    ("b", False),
    ("a", True),
    ("c", False),
    ("b", False),
    ("d", False),
    ("e", True),
    ("f", False),
]
CANDIDATES = tuple(Candidate((step,), correct=right) for step, right in WRITTEN)
SCORE_N = np.array([-1.0, -5.0, -1.0, -2.0, -5.0, -3.0, -4.0, -6.0])


def test_convincing_wrong_answers_come_first_and_no_solution_twice():
    assert different(CANDIDATES) == [0, 1, 3, 5, 6, 7]
    # Wrong are c -2, d -3, b -5, f -6; right a -1, e -4.
    assert mine(CANDIDATES, SCORE_N, 4, 0.5) == [3, 5, 0, 6]
    assert mine(CANDIDATES, SCORE_N, 5, 0.8) == [3, 5, 1, 7, 0]
    assert mine(CANDIDATES, SCORE_N, 3, 0.0) == [0, 3, 5]
    assert mine(CANDIDATES, SCORE_N, 9, 1.0) == [3, 5, 1, 7, 0, 6]  # fewer than asked for


def test_what_was_cut_is_not_known_to_be_wrong():
    cut = (*CANDIDATES[:3], Candidate(("c",), correct=False, finished=False), *CANDIDATES[4:])
    assert mine(cut, SCORE_N, 3, 1.0) == [5, 1, 7]  # d, b, f


SMALL = (
    "task=mining",
    "data=chain",
    "data.samples=solver",
    "solutions=25",
    "kept=5",
    "samples=24",
    "validation_solutions=7",
)


def test_files_hold_equally_many_labelled_solutions_of_the_same_training_problems(tmp_path, monkeypatch):
    out = printed(
        evaluate.main, monkeypatch, *SMALL, "checkpoint=checker-0-3", "hydra.run.dir=run", cwd=tmp_path
    )
    results = json.loads((tmp_path / "run/results.json").read_text())
    rows = {
        name: sources.load(tmp_path / f"run/{name}.jsonl", "native")[0]
        for name in ("mined", "uniform", "validation")
    }
    assert {name: len(found) for name, found in rows.items()} == {"mined": 25, "uniform": 25, "validation": 7}
    assert [s.problem for s in rows["mined"]] == [s.problem for s in rows["uniform"]]
    assert len({s.problem for s in rows["mined"]}) == 5
    for name, found in rows.items():
        assert results["counts"][name] | count(found) == results["counts"][name]
        assert name == "validation" or len({(s.problem, s.steps) for s in found}) == 25
    wrong = [sum(s.outcome == 0 for s in rows["mined"][at : at + 5]) for at in range(0, 25, 5)]
    assert min(wrong) >= 4  # .8 of 5
    assert results["counts"]["mined"]["mean_score"] < 0 and "mined       25 solutions" in out
    assert not {s.problem for s in rows["mined"]} & {s.problem for s in rows["validation"]}
    assert "data.label_kind=correctness data.after_first_error=mask" in out


def test_files_and_the_next_command_say_what_the_labels_mean(tmp_path, monkeypatch):
    """Countdown's are values: trained as correctness, all after the first 0 would be masked."""
    data = ("data=countdown", "solutions=10", "kept=5", "samples=8", "validation_solutions=4")
    out = printed(
        evaluate.main,
        monkeypatch,
        "task=mining",
        *data,
        "checkpoint=random",
        "hydra.run.dir=run",
        cwd=tmp_path,
    )
    for name in ("mined", "uniform", "validation"):
        rows = [row for _, row in read_rows(tmp_path / f"run/{name}.jsonl")]
        assert {row["label_kind"] for row in rows} == {"value"} and all(
            row["ratings"] is None for row in rows
        )
    files = "data.path=run/mined.jsonl data.validation_path=run/validation.jsonl"
    assert re.search(f"next .*{files} data.label_kind=value$".replace("run/", r"\S*run/"), out, re.MULTILINE)
    assert "with a value below .5" in out and "with a wrong step" not in out
    monkeypatch.chdir(tmp_path)
    asked = ("data=jsonl", "data.path=run/mined.jsonl", "hydra.run.dir=t")
    error = call(train.main, monkeypatch, "train.py", *asked)
    assert (
        "data.label_kind: got correctness, expected value, as run/mined.jsonl line 1 states"
        in error.replace("'", "")
    )


NATIVE = "data: task=mining samples training problems of an embedded task, got native"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data=chain", "kept=30", "samples=24"], "kept: got 30, expected at most samples (24)"),
        (["data=jsonl", "data.path=x"], NATIVE),
        (["data=chain", "wrong=1.5"], "wrong: got 1.5, expected "),
    ],
)
def test_what_cannot_be_mined_is_one_line(overrides, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ["task=mining", "checkpoint=random", "hydra.run.dir=run", *overrides]
    assert f"error: {message}" in call(evaluate.main, monkeypatch, "evaluate.py", *given)
