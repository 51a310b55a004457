"""examples/attack.py: edits by hand, verdicts by the exact checker, and brute force."""

import sys

import numpy as np

from examples import attack
from prm_jax import metrics, tasks
from prm_jax.api import Verifier
from prm_jax.data.sources import load
from prm_jax.scorers import CheckerScorer


def test_edits_by_hand():
    a, b = steps = ("3+5=1", "1*2=2")
    assert {name: [*edit(steps)] for name, edit in attack.EDITS.items()} == {
        "repeat": [(a, a, b), (a, b, b)],
        "drop": [(b,), (a,)],
        "swap": [(b, a)],
        "restate": [(a, "1=1", b), (a, b, "2=2")],
        "idle": [(a, "1+0=1", b), (a, b, "2+0=2")],
        "blank": [("3 + 5 = 1", "1 * 2 = 2")],
    }
    sound = {
        name: {attack.is_sound("3 +5 *2 mod7?", new) for new in attack.EDITS[name](steps)}
        for name in attack.EDITS
    }
    assert {name for name, kept in sound.items() if kept == {True}} == {"restate", "blank"}


def test_the_exact_checker_is_fooled_by_dropping_alone():
    """A solution that ends early has no wrong line."""
    checker = Verifier(CheckerScorer(tasks.CHAIN.step_labels), "prod")
    aurocs = attack.attack(checker, attack.sample_task(80, 0, "solver"))
    before, dropped = aurocs.pop("no edit"), aurocs.pop("drop")
    assert aurocs.pop("worst edit") == dropped < before == 1
    assert set(aurocs.values()) == {before}


def test_hardened_rows_are_the_tasks_with_edits_labelled_anew(tmp_path):
    data = attack.load_chain(samples="solver", solutions=64, test_solutions=16)
    attack.harden(tmp_path, data, 1.0, 0)
    rows, _ = load(tmp_path / "train.jsonl", "native", labels_required=True)
    edited = [s for s in rows if s.id.endswith("/edited")]
    assert len(rows) - len(edited) == 64 and len(edited) > 50
    for s in edited:
        labels = [y for y in s.labels if y is not None]
        assert labels == tasks.CHAIN.step_labels(s.problem, s.steps)[: len(labels)]
    assert len(load(tmp_path / "test.jsonl", "native")[0]) == 16


class Liker:
    """A scorer that likes long solutions."""

    name, unit, label_kind, objective = "liker", "logit", "correctness", "prm"

    def score(self, rows):
        return [np.full(len(steps), len(steps) - 3.5, np.float32) for _, steps in rows]


def test_the_worst_edit_is_that_of_brute_force():
    solutions = attack.sample_task(80, 0, "solver")
    results = attack.attack(Verifier(Liker(), "min"), solutions)
    longest = []  # of each unsound solution the versions that are still unsound
    is_sound = [attack.is_sound(*row) for row in solutions]
    for (problem, steps), sound in zip(solutions, is_sound, strict=True):
        versions = [] if sound else [new for edit in attack.EDITS.values() for new in edit(steps)]
        longest.append(max(len(x) for x in [steps, *versions] if sound or not attack.is_sound(problem, x)))
    assert results["worst edit"] == metrics.auroc(np.array(longest), np.array(is_sound))


def test_the_command_prints_its_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(attack, "SOLUTIONS", 20)
    monkeypatch.setattr(sys, "argv", ["", "--checkpoint", "embedded_prm"])
    attack.main()
    assert "worst edit" in capsys.readouterr().out and (tmp_path / "attack.json").exists()
