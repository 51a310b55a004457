"""The embedded task: the checker against an independent one, exact value labels against simulation, rates, splits."""

import dataclasses
import hashlib
import re

import numpy as np
import pytest

from prm_jax import InputError
from prm_jax.launch.config import parse
from prm_jax.tasks import TASKS, chain
from prm_jax.tasks.chain import (
    ERRORS,
    SPLITS,
    WORDS,
    Chain,
    Config,
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

OPERATIONS = {"+": 2, "-": 2, "*": 2, "max": 1, "min": 1}
CFG = Config(3, 5, 0.2, 0.0, OPERATIONS, {"near": 0.4, "operation": 0.2, "operand": 0.2, "random": 0.2}, 4)
CHAIN = Chain(4, (("+", 5), ("*", 4), ("max", 3), ("-", 6)))  # any operand is legal, drawn or not


def test_problem_text_and_back():
    text = "Modulo 7: start with 4, add 5, times 4, max 3, minus 6."
    assert str(CHAIN) == text and parse_problem(text) == CHAIN
    assert CHAIN.values() == [2, 1, 3, 4]
    for broken in (
        "Modulo 7: start with 4, add five.",
        "Modulo 10: start with 4, add 5.",
        "Modulo 7: start with 8, add 5.",
    ):
        with pytest.raises(InputError, match="not an arithmetic problem"):
            parse_problem(broken)


RIGHT = ["4+5=2", "2*4=1", "max(1,3)=3", "3-6=4"]


@pytest.mark.parametrize(
    "steps, labels",
    [
        (RIGHT, [1, 1, 1, 1]),
        (["4 + 5 = 2", "2 * 4 = 1", "max(1, 3) = 3", "3 - 6 = 4"], [1, 1, 1, 1]),
        (["4+5=3", "3*4=5", "max(5,3)=5", "5-6=6"], [0, 0, 0, 0]),  # wrong result, then consistent
        (["4+5=2", "2*3=6", "max(6,3)=6", "6-6=0"], [1, 0, 0, 0]),  # wrong operand
        (["4+5=2", "2+4=6", "max(6,3)=6", "6-6=0"], [1, 0, 0, 0]),  # wrong operation
        (["4+5=2", "2*4=1", "max(2,3)=3", "3-6=4"], [1, 1, 0, 0]),  # miscopied value
        (["4+5=2", "2*4=2", "max(2,3)=3", "3-6=4"], [1, 0, 0, 0]),  # wrong step, right answer: lucky
        (["4+5=2", "two times four"], [1, 0]),
    ],
)
def test_correctness_labels(steps, labels):
    assert correctness_labels(CHAIN, steps) == labels


def test_steps_and_answers_are_checked_from_texts_alone():
    assert TASKS["arithmetic"] is chain
    problem = str(CHAIN)
    assert chain.step_labels(problem, RIGHT) == [1, 1, 1, 1] and chain.answer(problem) == "4"
    assert chain.step_labels(problem, ["4 + 5 = 2", "2*4=2", "so it is 2", "", "5"]) == [1, 0, 0, 0, 0]
    assert chain.step_labels(problem, []) == []
    for call in (lambda: chain.step_labels("What is 2 + 3?", ["5"]), lambda: chain.answer("")):
        with pytest.raises(InputError, match="not an arithmetic problem"):
            call()


def test_samples_are_those_behind_the_published_numbers():
    texts = repr(
        [(s.problem, s.steps, s.labels, s.outcome, s.answer, s.id) for s in make_solutions(CFG, 500, "test", 0)]
    )
    assert hashlib.sha256(texts.encode()).hexdigest()[:16] == "c7b0d433db798696"


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
            ] % 7
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
    for t, value in ((0, 4), (2, 1)):
        p = transition(CHAIN, t, cfg)
        np.testing.assert_allclose(p.sum(1), 1)
        n = np.bincount([noisy_step(CHAIN, t, value, cfg, rng)[1] for _ in range(8_000)], minlength=7)
        np.testing.assert_allclose(n / 8_000, p[value], atol=4 * np.sqrt(0.25 / 8_000))
    rest = Chain(3, CHAIN.operations[1:])
    rollouts = [noisy_solution(rest, cfg, rng, "correctness").answer == "4" for _ in range(8_000)]
    first = value_labels(CHAIN, ["4+5=3", "3*4=5", "max(5,3)=5", "5-6=6"], cfg)
    assert abs(first[0] - np.mean(rollouts)) < 4 * np.sqrt(0.25 / 8_000)
    assert first[-1] == 0 and value_labels(CHAIN, RIGHT, cfg)[-1] == 1


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
        p = weight / 8
        assert abs(names.count(name) / len(names) - p) < 4 * np.sqrt(p * (1 - p) / len(names)), name


@pytest.mark.parametrize(
    "kind, results", [("near", {1, 3}), ("operation", {6}), ("operand", {1, 3}), ("random", {0, 1, 3, 4, 5, 6})]
)
def test_each_error_kind_writes_the_right_formula_with_a_wrong_result(kind, results):
    only = dataclasses.replace(CFG, error_rate=1.0, errors={k: float(k == kind) for k in ERRORS})
    steps = {noisy_step(CHAIN, 0, 4, only, np.random.default_rng(i)) for i in range(300)}
    assert steps == {(f"4+5={r}", r) for r in results}


def test_wrong_results_by_hand():
    assert wrong_results("operation", "max", 6, 3) == [3] and wrong_results("operation", "*", 2, 4) == [6]
    assert wrong_results("operation", "+", 1, 3) == [5] and wrong_results("operand", "*", 3, 4) == [1, 2]
    # min(3, 3) would be right too: any other digit then
    assert wrong_results("operation", "max", 3, 3) == [0, 1, 2, 4, 5, 6]


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
        parse(dataclasses.asdict(CFG) | change, Config, "data.task")


def test_too_few_problems_raise():
    tiny = dataclasses.replace(CFG, min_operations=1, max_operations=1)
    with pytest.raises(InputError, match="only 10 distinct problems of 20"):
        sample_problems(tiny, 20, "test", 0)


def test_words_cover_all_operations():
    assert set(WORDS) == {"+", "-", "*", "max", "min"}
