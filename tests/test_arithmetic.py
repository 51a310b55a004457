"""The embedded task: the checker against an independent one, exact value labels against simulation, rates, splits."""

import dataclasses
import re

import numpy as np
import pytest

from prm_jax import InputError
from prm_jax.arithmetic import (
    ERRORS,
    SPLITS,
    WORDS,
    ArithmeticConfig,
    Chain,
    correctness_labels,
    lucky_share,
    make_solutions,
    noisy_solution,
    noisy_step,
    parse_problem,
    sample_problems,
    transition,
    value_labels,
    wrong_results,
)

OPERATIONS = {"+": 2, "-": 2, "*": 1, "max": 1, "min": 1}
CFG = ArithmeticConfig(
    3, 5, 0.2, 0.0, OPERATIONS, {"near": 0.4, "operation": 0.2, "operand": 0.2, "random": 0.2}, 4
)
CHAIN = Chain(7, (("+", 5), ("*", 4), ("max", 3), ("-", 9)))


def test_problem_text_and_back():
    text = "Modulo 10: start with 7, add 5, times 4, max 3, minus 9."
    assert str(CHAIN) == text and parse_problem(text) == CHAIN
    assert CHAIN.values() == [2, 8, 8, 9]
    with pytest.raises(InputError, match="not an arithmetic problem"):
        parse_problem("Modulo 10: start with 7, add five.")


@pytest.mark.parametrize(
    "steps, labels",
    [
        (["7+5=2", "2*4=8", "max(8,3)=8", "8-9=9"], [1, 1, 1, 1]),
        (
            ["7+5=3", "3*4=2", "max(2,3)=3", "3-9=4"],
            [0, 0, 0, 0],
        ),  # wrong result, then consistent
        (["7+5=2", "2*3=6", "max(6,3)=6", "6-9=7"], [1, 0, 0, 0]),  # wrong operand
        (["7+5=2", "2+4=6", "max(6,3)=6", "6-9=7"], [1, 0, 0, 0]),  # wrong operation
        (["7+5=2", "2*4=8", "max(9,3)=9", "9-9=0"], [1, 1, 0, 0]),  # miscopied value
        (
            ["7+5=2", "2*4=8", "max(8,4)=8", "8-9=9"],
            [1, 1, 0, 0],
        ),  # wrong step, right value: lucky
        (["7+5=2", "two times four"], [1, 0]),
    ],
)
def test_correctness_labels(steps, labels):
    assert correctness_labels(CHAIN, steps) == labels


def independent_check(problem: str, steps: list[str]) -> list[float]:
    """Written apart from the module: evaluates Python expressions."""
    value, *operations = re.findall(r"(?:start with|add|minus|times|max|min) \d", problem)
    value = int(value[-1])
    symbol = {"add": "+", "minus": "-", "times": "*"}
    labels, good = [], True
    for step, operation in zip(steps, operations, strict=True):
        word, operand = operation.split()
        if word in symbol:
            value_next = {"+": value + int(operand), "-": value - int(operand), "*": value * int(operand)}[
                symbol[word]
            ] % 10
        else:
            value_next = {"max": max, "min": min}[word](value, int(operand))
        good = (
            good
            and step
            == (f"{word}({value},{operand})" if word in ("max", "min") else f"{value}{symbol[word]}{operand}")
            + f"={value_next}"
        )
        labels.append(float(good))
        value = int(step[-1])
    return labels


def test_checker_agrees_with_an_independent_one():
    cfg = dataclasses.replace(CFG, error_rate=0.4)
    for s in make_solutions(cfg, 2000, "train", 3):
        assert list(s.labels) == independent_check(s.problem, list(s.steps))
        assert s.outcome == (int(s.answer) == parse_problem(s.problem).values()[-1])


def test_transition_and_value_labels_equal_simulation():
    cfg = dataclasses.replace(CFG, error_rate=0.5)
    rng = np.random.default_rng(0)
    for t, value in ((0, 7), (2, 4)):
        p = transition(CHAIN, t, cfg)
        np.testing.assert_allclose(p.sum(1), 1)
        n = np.bincount([noisy_step(CHAIN, t, value, cfg, rng)[1] for _ in range(8_000)], minlength=10)
        np.testing.assert_allclose(n / 8_000, p[value], atol=4 * np.sqrt(0.25 / 8_000))
    rest = Chain(3, CHAIN.operations[1:])
    rollouts = [noisy_solution(rest, cfg, rng, "correctness").answer == "9" for _ in range(8_000)]
    first = value_labels(CHAIN, ["7+5=3", "3*4=2", "max(2,3)=3", "3-9=4"], cfg)
    assert abs(first[0] - np.mean(rollouts)) < 4 * np.sqrt(0.25 / 8_000)
    assert first[-1] == 0 and value_labels(CHAIN, ["7+5=2", "2*4=8", "max(8,3)=8", "8-9=9"], cfg)[-1] == 1


def test_rates_are_those_of_the_config():
    rows = make_solutions(CFG, 8000, "train", 0)
    first_steps_wrong = np.mean([s.labels[0] == 0 for s in rows])
    assert abs(first_steps_wrong - 0.2) < 4 * np.sqrt(0.2 * 0.8 / 8000)
    assert 0.10 <= lucky_share(rows) <= 0.25
    half = make_solutions(dataclasses.replace(CFG, perfect_share=0.5, error_rate=1.0), 2000, "train", 0)
    assert abs(np.mean([s.labels[0] for s in half]) - 0.5) < 4 * np.sqrt(0.25 / 2000)


def test_operations_come_as_often_as_the_config_says():
    chains = sample_problems(CFG, 2000, "train", 0)
    names = [operation for chain in chains for operation, _ in chain.operations]
    for name, weight in OPERATIONS.items():
        p = weight / 7
        assert abs(names.count(name) / len(names) - p) < 4 * np.sqrt(p * (1 - p) / len(names)), name


@pytest.mark.parametrize(
    "kind, results",
    [("near", {1, 3}), ("operation", {2}), ("operand", {1, 3}), ("random", set(range(10)) - {2})],
)
def test_each_error_kind_writes_the_right_formula_with_a_wrong_result(kind, results):
    chain = Chain(7, (("+", 5), ("max", 3)))  # 7+5=2; 7-5=2 is right by chance, so any other digit
    if kind == "operation":
        results = set(range(10)) - {2}
    only = dataclasses.replace(CFG, error_rate=1.0, errors={k: float(k == kind) for k in ERRORS})
    steps = {noisy_step(chain, 0, 7, only, np.random.default_rng(i)) for i in range(300)}
    assert steps == {(f"7+5={r}", r) for r in results}


def test_confused_operations():
    assert wrong_results("operation", "max", 7, 3) == [3] and wrong_results("operation", "*", 2, 4) == [6]
    assert wrong_results("operation", "+", 1, 3) == [8] and wrong_results("operand", "*", 3, 4) == [5, 9]


def test_splits_share_no_problem_and_seeds_repeat():
    problems = {split: {str(c) for c in sample_problems(CFG, 400, split, 0)} for split in SPLITS}
    for a in SPLITS:
        assert len(problems[a]) == 400
        assert all(not problems[a] & problems[b] for b in SPLITS if b != a)
    assert make_solutions(CFG, 50, "test", 1) == make_solutions(CFG, 50, "test", 1)
    assert make_solutions(CFG, 50, "test", 1) != make_solutions(CFG, 50, "test", 2)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"error_rate": 1.5}, "data.task.error_rate"),
        ({"errors": {"result": 1.0}}, "data.task.errors"),
        ({"operations": OPERATIONS | {"+": -1}}, "data.task.operations"),
        ({"min_operations": 7}, "data.task.min_operations"),
        ({"solutions_per_problem": 0}, "data.task.solutions_per_problem"),
    ],
)
def test_bad_task_settings(change, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(CFG, **change)


def test_too_few_problems_raise():
    tiny = dataclasses.replace(CFG, min_operations=1, max_operations=1)
    with pytest.raises(InputError, match="distinct problems"):
        sample_problems(tiny, 500, "test", 0)


def test_words_cover_all_operations():
    assert set(WORDS) == {"+", "-", "*", "max", "min"}
