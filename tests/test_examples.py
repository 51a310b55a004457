"""examples/relabel.py: by hand, and as a command."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from examples import relabel
from prm_jax import tasks
from prm_jax.data.pools import Candidate, Problem, write_pool

PROBLEM = "4 +5 *3 max2 -2 mod7?"
TEXTS = ["4+5=2\n2*3=6\n6max2=6\n6-2=4", "4+5=3\n3*3=1\n1max2=2\n2-2=0", "4+5=2  2*3=5"]


def written(monkeypatch, command):
    """The labels of the one row that a command writes."""
    monkeypatch.setattr(sys, "argv", ["", *command.split()])
    relabel.main()
    (row,) = map(json.loads, Path("labels.jsonl").read_text().splitlines())
    return [y if y is None else round(y, 6) for y in row["labels"]]


def test_labels_from_what_is_there(tmp_path, monkeypatch):
    value_T = np.array([0.2, 0.6, 0.9])
    assert relabel.td_targets(value_T, 1.0, 1.0).tolist() == [1, 1, 1]
    assert relabel.td_targets(value_T, 1.0, 0.0).tolist() == [0.2, 0.6, 1]  # the value after the step
    assert relabel.td_targets(value_T, 0.0, 0.5) == pytest.approx([0.25, 0.3, 0])

    monkeypatch.chdir(tmp_path)
    steps = tuple(TEXTS[1].split())
    write_pool("pool.jsonl", [Problem("0", PROBLEM, "4", (Candidate(steps, "0", False),), {}, "chain")])
    exact = tasks.CHAIN.step_labels(PROBLEM, steps)
    commands = {"checker pool.jsonl": exact, "scorer pool.jsonl --checkpoint checker": exact}
    for command, labels in commands.items():
        assert written(monkeypatch, command) == labels
    (*targets, last) = written(monkeypatch, "td pool.jsonl --checkpoint embedded_orm")
    assert last == 0 and all(0 < y < 1 for y in targets)
