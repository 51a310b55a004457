"""examples/countdown.py: the checker and exact values against brute force, and a task of one's own in data
and tasks."""

import dataclasses
import itertools
import re
from fractions import Fraction

import numpy as np
from conftest import ROOT, data_node

from examples import countdown
from examples.countdown import moves, reaches
from prm_jax import tasks
from prm_jax.data.splits import data_config, load_splits

CFG, TASK = countdown.Config(), countdown.Countdown()
PLACE = f"{ROOT}/examples/countdown.py"


def outcomes(numbers):
    """All values that play from a list of numbers can end with, by brute force over fractions."""
    if len(numbers) == 1:
        return {numbers[0]}
    found = set()
    for i, j in itertools.permutations(range(len(numbers)), 2):
        a, b = numbers[i], numbers[j]
        others = [x for k, x in enumerate(numbers) if k not in (i, j)]
        for c in (a + b, a - b, a * b, a / b):
            if c.denominator == 1 and 1 <= c <= 99:
                found |= outcomes([*others, c])
    return found


def test_reach_equals_exhaustive_search():
    rng = np.random.default_rng(0)
    for _ in range(60):
        hand = tuple(sorted(rng.integers(1, 13, 3).tolist()))
        assert {x for x in range(1, 100) if reaches(hand, x)} == outcomes([Fraction(x) for x in hand])
        problem = f"{','.join(map(str, hand))}=24?"
        assert all(TASK.ratings(problem, [line]) == [1] for line in moves(hand))


def spend(hand, line):
    """The numbers at hand after a right line, None after a wrong one: lists are spent, Python computes."""
    left, right = line.split("=")
    hand = list(hand)
    try:
        for operand in re.split(r"[-+*/]", left):
            hand.remove(int(operand))
    except ValueError:
        return None
    return [*hand, int(right)] if eval(left) == int(right) and 1 <= int(right) <= 99 else None


def test_labels_values_and_grades_equal_an_independent_checker():
    rng, cfg = np.random.default_rng(0), dataclasses.replace(CFG, slip=0.3)
    n_wrong = 0
    for problem in tasks.make_problems(TASK, cfg, 40, "test", 0):
        hand, target = countdown.parse_problem(problem)
        steps = TASK.solve(cfg, problem, rng)
        sound, in_reach = [], []
        for step in steps:
            hand = hand and spend(hand, step)
            sound.append(float(bool(hand)))
            in_reach.append(float(bool(hand) and target in outcomes(list(map(Fraction, hand)))))
        assert TASK.step_labels(problem, steps) == sound
        assert TASK.values(cfg, problem, steps) == in_reach
        assert countdown.solved(problem, steps, None) == (hand == [target])
        n_wrong += not hand
    assert n_wrong > 10


def config(**changes):
    own = {"name": f"{PLACE}:Countdown", "solutions": 32, "test_solutions": 16}
    return data_config(data_node("embedded", **own | changes))


def test_a_task_of_ones_own_is_data_by_its_place():
    cfg = config(label_kind="value", task={"numbers": 3})
    splits = load_splits(cfg, 0).splits
    assert [len(splits[side]) for side in ("train", "validation", "test")] == [32, 16, 16]
    problems = {side: {s.problem for s in rows} for side, rows in splits.items()}
    assert not problems["train"] & problems["test"] and all(s.task == cfg.name for s in splits["train"])
    assert all(s.problem.count(",") == 2 and set(s.labels) <= {0, 1} for s in splits["train"])
