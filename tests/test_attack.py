"""task=attack: edits by hand, verdicts by the exact checker, the worst version found by brute force; training on edits."""

import json

import numpy as np
import pytest
from conftest import call, printed

import evaluate
from prm_jax import tasks
from prm_jax.data.edits import EDITS, edited
from prm_jax.evals import attack

PROBLEM, SOUND = "3 +5 *2 mod7?", ("3+5=1", "1*2=2")
SMALL = ("task=attack", "data=chain", "data.samples=solver", "solutions=80", "hydra.run.dir=run")


def test_edits_of_two_lines():
    versions = {name: list(edit(SOUND)) for name, edit in EDITS.items()}
    a, b = SOUND
    assert versions == {
        "repeat": [(a, a, b), (a, b, b)],
        "drop": [(b,), (a,)],
        "swap": [(b, a)],
        "restate": [(a, "1=1", b), (a, b, "2=2")],
        "idle": [(a, "1+0=1", b), (a, b, "2+0=2")],
        "blank": [("3 + 5 = 1", "1 * 2 = 2")],
    }
    assert list(EDITS["drop"]((a,))) == [] and list(EDITS["restate"](("no sign",))) == []
    assert edited((a, a)) == {(a, a, a): "repeat", (a,): "drop"} | {
        new: name for name in ("restate", "idle", "blank") for new in EDITS[name]((a, a))
    }  # swapped it is itself


def test_the_checker_says_what_an_edit_changes():
    verdict = {name: {attack.is_sound(tasks.chain, PROBLEM, new) for new in EDITS[name](SOUND)} for name in EDITS}
    assert attack.is_sound(tasks.chain, PROBLEM, SOUND)
    assert {name for name, kept in verdict.items() if kept == {True}} == {"restate", "blank"}
    assert {name for name, kept in verdict.items() if kept == {False}} == {"repeat", "drop", "swap", "idle"}


def test_the_exact_checker_cannot_be_attacked(tmp_path, monkeypatch):
    out = printed(evaluate.main, monkeypatch, *SMALL, "checkpoint=checker", cwd=tmp_path)
    results = json.loads((tmp_path / "run/results.json").read_text())
    assert {table["sound_refused"] for table in [results["before"], *results["edits"].values()]} == {0}
    # What it accepts ends early: no line of it is wrong.
    # Where a wrong line must be left, the checker refuses every version.
    wrong_line, before = results["edits"]["worst_wrong_line"], results["before"]
    assert wrong_line["unsound_accepted"] == before["unsound_accepted"] < results["edits"]["worst"]["unsound_accepted"]
    assert results["before"]["auroc"] > 0.95 and results["edits"]["repeat"]["unsound_accepted"] < 0.1
    assert results["edits"]["restate"]["verdict_kept"] == results["edits"]["blank"]["verdict_kept"] == 1
    assert "unsound above .5" in out and (tmp_path / "run/figures/attack.png").stat().st_size > 5000


class Liker:
    """A scorer that likes long solutions, and whose calls are counted."""

    name, unit, label_kind, objective = "liker", "logit", "correctness", "prm"

    def score(self, rows):
        return [np.full(len(steps), len(steps) - 3.5, np.float32) for _, steps in rows]


def test_the_worst_edit_is_that_of_brute_force(tmp_path, monkeypatch):
    drawn = []
    sample = tasks.sample_solutions
    monkeypatch.setattr(tasks, "sample_solutions", lambda *args: drawn.extend(sample(*args)) or drawn)
    monkeypatch.setattr(attack, "one_scorer", lambda setup, task: Liker())
    printed(evaluate.main, monkeypatch, *SMALL, "aggregator=min", "checkpoint=checker", cwd=tmp_path)
    edits = json.loads((tmp_path / "run/results.json").read_text())["edits"]
    sound = {s: attack.is_sound(tasks.chain, s.problem, s.steps) for s in drawn}
    for chosen in [*EDITS, "worst"]:
        names = EDITS if chosen == "worst" else [chosen]
        longest = []  # of what is kept in hand of each unsound solution; the scorer likes length
        for s in (s for s in drawn if not sound[s]):
            versions = [s.steps, *(new for name in names for new in EDITS[name](s.steps))]
            longest.append(max(len(x) for x in versions if not attack.is_sound(tasks.chain, s.problem, x)))
        assert edits[chosen]["unsound_accepted"] == np.mean(np.array(longest) > 3.5), chosen


@pytest.mark.parametrize(
    "words, message",
    [
        (["edits=[typo]"], "edits: got 'typo', expected names of repeat, drop"),
        (["edits=[]"], "edits: got [], expected at least one"),
        (["aggregator=sum_logit"], "aggregator: got 'sum_logit', expected one whose score is a probability"),
    ],
)
def test_bad_input(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in call(evaluate.main, monkeypatch, "evaluate.py", *SMALL, "checkpoint=checker", *words)


def test_edited_training_solutions_have_the_checkers_labels():
    cfg = type("Data", (), {"augment": 0.5, "task": None, "label_kind": "correctness"})
    solutions = [tasks.labelled(tasks.chain, None, PROBLEM, SOUND, "correctness", str(i)) for i in range(400)]
    made = list(tasks.edited_solutions(tasks.chain, cfg, solutions, 0))
    assert 160 < len(made) < 240 and len({s.steps for s in made}) == 10  # every place of every edit
    for s in made:
        assert list(s.labels) == tasks.step_labels(tasks.chain, PROBLEM, s.steps)
        assert s.outcome == tasks.chain.solved(PROBLEM, s.steps)
