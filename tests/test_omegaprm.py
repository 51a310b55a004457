"""examples/omegaprm.py: the tree of a literal example, its rows, and the first errors of the checker."""

import json
import sys

import pytest

from examples import omegaprm
from examples.omegaprm import RollOut, grow_tree, tree_rows
from prm_jax.data.pools import Candidate, Problem, write_pool


def complete(steps):
    """Two roll-outs of a state: alive is what begins with no x; the second one is wrong."""
    right = not any("x" in step for step in steps)
    return [RollOut((*steps, "r"), right), RollOut((*steps, "b", "x", "c"), False)]


def test_a_tree_by_hand(monkeypatch):
    """Roots: one right, two wrong, one cut. The shorter one has the higher Q, so it is searched first."""
    monkeypatch.setattr(omegaprm, "K", 2)
    monkeypatch.setattr(omegaprm, "SEARCHES", 4)
    cut = RollOut(("a", "z"), False, finished=False)
    roots = [RollOut(("r",), True), RollOut(("a", "x", "c", "d"), False), RollOut(("x",), False), cut]
    states, paths = grow_tree(roots, complete)
    # Of a x c d two steps are dead and one is alive; the state (a,) gives a b x c, (a, b) gives a b b x c.
    assert paths == [("x",), ("a", "x", "c", "d"), ("a", "b", "x", "c"), ("a", "b", "b", "x", "c")]
    values = {"": 0.25, "ax": 0, "a": 0.5, "ab": 0.5, "abx": 0, "abb": 0.5, "abbx": 0}
    assert {"".join(steps): state.value for steps, state in states.items()} == values
    assert [state.visits for state in states.values()] == [2, 0, 1, 1, 0, 0, 0]
    rows = list(tree_rows(Problem("p", "q", None, (Candidate(("a",)),)), states, paths))
    assert [row["labels"] for row in rows] == [
        [0.0],
        [0.5, 0.0, None, 0.0],
        [None, 0.5, 0.0, 0.0],
        [None, None, 0.5, 0.0, 0.0],
    ]
    assert rows[1]["completions"] == ["a", "x", "c", "d"] and rows[1]["id"] == "p/tree/1"


@pytest.mark.slow
def test_the_script_writes_rows(monkeypatch, tmp_path):
    steps = ("4*5=6", "6-3=4", "4max2+6=3")
    problem = Problem("0", "4 *5 -3 max2 +6 mod7?", "2", (Candidate(steps, "3", False),), task="chain")
    write_pool(tmp_path / "pool.jsonl", [problem])
    monkeypatch.setattr(omegaprm, "SEARCHES", 3)
    monkeypatch.setattr(
        sys, "argv", ["", "--input", f"{tmp_path}/pool.jsonl", "--output", f"{tmp_path}/t.jsonl"]
    )
    omegaprm.main()
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert 0 < len(rows) <= 3 and all(row["labels"][-1] == 0 for row in rows)
