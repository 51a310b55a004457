"""Countdown: the checker and exact values against brute force, the solver's rates, splits without leaks, bad input."""

import dataclasses
import itertools
import re
from fractions import Fraction

import numpy as np
import pytest
from omegaconf import OmegaConf

from prm_jax import InputError, tasks
from prm_jax.data.splits import data_config
from prm_jax.launch.config import CONF, parse
from prm_jax.tasks import countdown
from prm_jax.tasks.countdown import Config, moves, reaches, solve, solved, values, verdicts

DEFAULT = OmegaConf.load(CONF / "data" / "countdown.yaml")
CFG = parse(DEFAULT.task, Config, "data.task")
PROBLEM = "3,5,7,9=24?"  # 9 + 7 + 5 + 3


def test_verdicts_by_kind():
    first = lambda line, problem=PROBLEM: verdicts(problem, [line])[0]
    assert [first(x) for x in ("9*3=27", "3*9=27", "9 * 3 = 27", "9*3=27 5,7,27", "9/3=3 7,5,3")] == [
        "right", "right", "right", "right", "right",
    ]  # fmt: skip
    assert [first(x) for x in ("9*3=28", "9/5=1", "3-9=-6", "9*4=36", "3*3=9", "9*3=27 5,7", "9*3=27 5,7,28", "hello", "9*3=" + "9" * 5000)] == [
        "arithmetic", "arithmetic", "form", "operand", "operand", "rest", "rest", "form", "form",
    ]  # fmt: skip
    assert first("7-7=0", "7,7=14?") == "range" and first("50*2=100", "2,50=52?") == "range"
    assert first("7+7=15", "7,7=15?") == "cheat" and first("7+7=16", "7,7=15?") == "arithmetic"
    # A line is judged by itself: it goes on from what was written, wrong or not, and from what was restated.
    assert verdicts(PROBLEM, ["9*3=28", "28-7=21", "21+5=26"]) == ["arithmetic", "right", "right"]
    assert verdicts(PROBLEM, ["9*3=28", "27-7=20", "20+5=24"]) == ["arithmetic", "operand", "arithmetic"]
    assert verdicts(PROBLEM, ["9+7=16 3,5,16", "16+5=21 3,21", "21+3=24", "24+0=24"])[2:] == [
        "right",
        "operand",
    ]
    assert verdicts(PROBLEM, ["9+7=16 3,4,16", "16+4=20 3,20", "20+3=24"]) == ["rest", "right", "cheat"]
    assert verdicts(PROBLEM, ["nothing", "9+7=16"]) == ["form", "right"]


def test_solved_needs_right_lines_and_all_numbers():
    right = ["9+7=16", "16+5=21", "21+3=24"]
    assert solved(PROBLEM, right) and countdown.stated_answer(right) == countdown.gold_answer(PROBLEM) == "24"
    assert not solved(PROBLEM, ["9+7=16", "16+5=21", "21+4=24"])
    assert not solved(PROBLEM, ["9+7=16", "16+5=21", "21-3=24"])  # a cheat states the target
    assert not solved("3,8,9=24?", ["8*3=24"])  # 9 is left
    assert solved("3,8=24?", ["8*3=024"]) and countdown.stated_answer(["8*3=024"]) == "24"
    assert not solved(PROBLEM, [*right, "24*1=24"])
    assert not solved(PROBLEM, ["9+7=16", "16+5=21", "21-3=18"]) and countdown.stated_answer(["none"]) is None


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


@pytest.mark.parametrize("n", [2, 3, 4])
def test_reach_and_values_equal_exhaustive_search(n):
    rng = np.random.default_rng(n)
    for _ in range({2: 200, 3: 60, 4: 6}[n]):
        hand = tuple(sorted(rng.integers(1, 13, n).tolist()))
        expected = outcomes([Fraction(x) for x in hand])
        assert {x for x in range(1, 100) if reaches(hand, x)} == expected
        for target in sorted(int(x) for x in expected)[:10]:
            problem = f"{','.join(map(str, hand))}={target}?"
            for move in moves(hand):
                line = f"{move.first}{move.operation}{move.second}={move.result}"
                assert verdicts(problem, [line]) == ["right"]
                if n == 4 and target % 3:
                    continue
                assert values(CFG, problem, [line]) == [
                    float(target in outcomes(list(map(Fraction, move.left))))
                ]


def spend(hand, line):
    """The numbers at hand after a right line without restated numbers, None after a wrong one: lists are spent, Python computes."""
    left, right = line.split("=")
    hand = list(hand)
    try:
        for operand in re.split(r"[-+*/]", left):
            hand.remove(int(operand))
    except ValueError:
        return None
    return [*hand, int(right)] if eval(left) == int(right) and 1 <= int(right) <= 99 else None


def test_checker_equals_an_independent_one_on_damaged_solutions():
    rng, cfg, n_wrong = (
        np.random.default_rng(0),
        dataclasses.replace(CFG, slip=0.3, cheat=0.3, restate=False),
        0,
    )
    for problem in tasks.make_problems(countdown, cfg, 150, "test", 0):
        hand, target = countdown.parse_problem(problem)
        steps = list(solve(cfg, problem, rng))
        t = rng.integers(3)
        if steps[t][place := rng.integers(len(steps[t]))].isdigit():
            steps[t] = steps[t][:place] + str(rng.integers(1, 10)) + steps[t][place + 1 :]
        sound, in_reach = [], []
        for step in steps:
            hand = hand and spend(hand, step)
            sound.append(float(bool(hand)))
            in_reach.append(float(bool(hand) and target in outcomes(list(map(Fraction, hand)))))
        assert tasks.correctness(verdicts(problem, steps)) == sound
        assert values(cfg, problem, steps) == in_reach
        assert solved(problem, steps) == (hand == [target])
        n_wrong += not hand
    assert n_wrong > 50


# Of lab-task.md 4, simulated there with 120 problems; here 400, by another program.
def test_statistics_of_the_default():
    rng, drawn = np.random.default_rng(0), 2000
    hands = [tuple(sorted(rng.integers(1, 11, 4).tolist())) for _ in range(drawn)]
    targets = rng.integers(10, 41, drawn)
    solvable = [
        reaches(hand, int(target)) for hand, target in zip(hands, targets, strict=True) if target not in hand
    ]
    assert np.mean(solvable) == pytest.approx(0.69, abs=0.07)  # 0.73 here; there 120 problems, sd .04
    problems = [countdown.parse_problem(countdown.make_problem(CFG, rng)) for _ in range(400)]
    legal, keep, second = [], [], []
    for hand, target in problems:
        good = [move for move in moves(hand) if reaches(move.left, target)]
        legal.append(len(moves(hand)))
        keep.append(len(good) / len(moves(hand)))
        second += [np.mean([reaches(x.left, target) for x in moves(move.left)]) for move in good]
    assert np.mean(legal) == pytest.approx(17.2, abs=0.5)
    assert np.mean(keep) == pytest.approx(0.25, abs=0.03) and np.mean(second) == pytest.approx(0.20, abs=0.03)


@pytest.mark.parametrize(
    "error, expected, tolerance",
    [(0.2, 0.62, 0.05), (0.3, 0.47, 0.05), (0.4, 0.35, 0.05), (1.0, 0.018, 0.01)],
)
def test_solver_succeeds_as_often_as_its_error_says(error, expected, tolerance):
    cfg, rng = dataclasses.replace(CFG, error=error, slip=0.0, cheat=0.0), np.random.default_rng(0)
    problems = tasks.make_problems(countdown, cfg, 400, "base", 0)
    rows = [(problem, solve(cfg, problem, rng)) for problem in problems for _ in range(5)]
    assert all(set(verdicts(*row)) == {"right"} for row in rows)
    assert np.mean([solved(*row) for row in rows]) == pytest.approx(expected, abs=tolerance)


def test_solver_errs_by_the_configured_kinds():
    rng, problems = np.random.default_rng(0), tasks.make_problems(countdown, CFG, 200, "base", 0)
    kinds = lambda **keys: [
        verdicts(problem, solve(dataclasses.replace(CFG, **keys), problem, rng)) for problem in problems
    ]
    assert {x for row in kinds(slip=0.0, cheat=0.0) for x in row} == {"right"}
    wrong = np.mean([x != "right" for row in kinds(slip=0.3, cheat=0.0, error=1.0) for x in row])
    assert wrong == pytest.approx(0.3, abs=0.06)
    cheats = kinds(slip=0.0, cheat=1.0, error=1.0)
    assert {x for row in cheats for x in row[:-1]} == {"right"}
    assert np.mean([row[-1] == "cheat" for row in cheats]) > 0.9 and {row[-1] for row in cheats} <= {
        "cheat",
        "right",
    }
    restated = solve(dataclasses.replace(CFG, slip=0.0), PROBLEM, rng)
    assert all(len(line.split(" ")[1].split(",")) == n for line, n in zip(restated, (3, 2)))
    assert (
        " " not in restated[2] and " " not in solve(dataclasses.replace(CFG, restate=False), PROBLEM, rng)[0]
    )


def test_no_permutation_of_a_problem_is_in_two_splits():
    found = {split: tasks.make_problems(countdown, CFG, 400, split, 0) for split in tasks.SPLITS}
    canonical = lambda problem: (tuple(sorted(re.split("[,=?]", problem)[:-2])), problem.split("=")[1])
    sets = {split: {canonical(problem) for problem in problems} for split, problems in found.items()}
    assert all(len(keys) == 400 for keys in sets.values())
    assert not any(sets[a] & sets[b] for a, b in itertools.combinations(sets, 2))
    with pytest.raises(InputError, match="not a Countdown problem.*sorted"):
        verdicts("5,3,7,9=24?", ["5*3=15"])


def test_labels_of_both_kinds():
    steps = [
        "9+7=16 3,5,16",
        "16-3=13 5,13",
        "13+5=18",
    ]  # the first line keeps 24 in reach, the second does not
    row = tasks.labelled(countdown, CFG, PROBLEM, steps, "value", "x")
    assert (row.labels, row.ratings, row.outcome, row.answer) == ((1.0, 0.0, 0.0), None, 0.0, "18")
    row = tasks.labelled(countdown, CFG, PROBLEM, steps, "correctness", "x")
    assert (row.labels, row.outcome) == ((1.0, 1.0, 1.0), 0.0)
    assert row.task == "countdown" and tasks.step_labels(countdown, PROBLEM, steps) == [1, 1, 1]
    assert values(CFG, PROBLEM, ["9+7=17", "16+5=21", "21+3=24"]) == [0, 0, 0]


def test_bad_input_is_one_line():
    for broken in (
        "3,5,7,9=24",
        "3,5,7,9=124?",
        "=24?",
        "24=24?",
        "0,5=24?",
        "1,2,3,4,5,6,7=24?",
        "4 +5 mod7?",
    ):
        with pytest.raises(InputError, match="not a Countdown problem"):
            countdown.gold_answer(broken)
    bad = {"numbers": 1, "min_number": 11, "max_target": 100, "min_target": 41, "error": 1.5, "restate": 1}
    for key, value in bad.items():
        with pytest.raises(InputError, match=f"data.task.{key}"):
            data_config(OmegaConf.merge(DEFAULT, {"task": {key: value}}))
    impossible = dataclasses.replace(CFG, max_number=1, min_target=40)
    with pytest.raises(InputError, match="data.task: none of 10000"):
        countdown.make_problem(impossible, np.random.default_rng(0))
