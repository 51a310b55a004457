"""The default task: the checker against an independent one, the solver's laws, exact values against
simulation, splits."""

import dataclasses
import itertools
import re
import zlib

import numpy as np
import pytest
from omegaconf import OmegaConf

from prm_jax import InputError, tasks
from prm_jax.data.pools import Candidate, Problem
from prm_jax.launch.config import CONF, parse
from prm_jax.tasks import chain
from prm_jax.tasks.chain import CHAIN

CFG = parse(OmegaConf.load(CONF / "data/chain.yaml").task, chain.Config, "data.task")
PROBLEM = "4 +5 *4 max3 -6 mod7?"
RIGHT = ["4+5=2", "2*4=1", "1max3=3", "3-6=4"]


def test_problem_and_lines_are_read():
    assert chain.parse_problem(PROBLEM) == (4, (("+", 5), ("*", 4), ("max", 3), ("-", 6)), 7)
    assert CHAIN.gold_answer(PROBLEM) == CHAIN.stated_answer(RIGHT) == "4"
    assert CHAIN.stated_answer(["so 4"]) is None
    assert chain.parse_line("12max3*10=4") == (12, (("max", 3), ("*", 10)), 4)
    for broken in ("4 +5 mod4?", "4 +5 *9 mod7?", "4 +5 *3", "4 add 5 mod7?", "", "+5 mod7?"):
        with pytest.raises(InputError):
            CHAIN.gold_answer(broken)


@pytest.mark.parametrize(
    "steps, ratings",
    [
        (RIGHT, [1] * 4),
        (["4 + 5 = 2", "2 * 4 = 1 "], [1] * 2),
        (["4+5*4=1", "1max3-6=4"], [1] * 2),  # merged
        (["4+5=2", "2=2", "2*4=1"], [1, 0, 1]),
        (["4+5=3", "3*4=5", "5max3=5"], [-1, 1, 1]),  # wrong result, then consistent
        (["4+5*4=2", "2max3=3"], [-1, 1]),
        (["4+5=2", "2*4=2", "2max3=2"], [1, -1, -1]),
        (["4+5=2", "2*3=6", "6max3=6"], [1, -1, 1]),  # wrong operand
        (["4+5=2", "2+4=6"], [1, -1]),  # wrong operation
        (["4+5=2", "3*4=5"], [1, -1]),  # miscopied value
        (["4+5=2", "two times four", "1max3=3"], [1, -1, -1]),
        ([*RIGHT, "4-6=5"], [1] * 4 + [-1]),  # more than was asked
    ],
)
def test_ratings(steps, ratings):
    assert CHAIN.ratings(PROBLEM, steps) == ratings


def test_labels_ratings_and_outcome_of_anybodys_solution():
    steps = ["4+5=2", "2=2", "2*4=2", "2max3=3", "3-6=4"]
    lucky = tasks.labelled(CHAIN, CFG, PROBLEM, steps, "correctness", "a")
    assert lucky.labels == (1, 1, 0, 0, 0) and lucky.ratings == (1, 0, -1, 1, 1)
    assert (lucky.outcome, lucky.answer) == (1.0, "4")
    assert CHAIN.step_labels(PROBLEM, RIGHT) == [1, 1, 1, 1]
    candidates = Candidate(tuple(RIGHT)), Candidate(("4+5=2",)), Candidate(("no",))
    pool = CHAIN.grade(Problem("p", PROBLEM, None, candidates))
    assert [(c.answer, c.correct) for c in pool.candidates] == [("4", True), ("2", False), (None, False)]


def independent_labels(problem: str, steps) -> list[float]:
    """Written apart from the module: the state is a value and the text of the operations that are left."""
    start, *todo, modulus = re.findall(r"\d+|[-+*]\d+|max\d+|min\d+", problem.replace("mod", ""))
    labels, value, good = [], start, True
    for step in steps:
        left, _, result = step.partition("=")
        first, *own = re.findall(r"^\d+|[-+*]\d+|max\d+|min\d+", left)
        good = good and first == value and own == todo[: len(own)]
        number = int(first)
        for operation in own:
            name, operand = re.fullmatch(r"(\D+)(\d+)", operation).groups()
            text = f"{name}({number}, {operand})" if len(name) > 1 else f"{number}{operation}"
            number = eval(text) % int(modulus)
        good = good and int(result) == number
        labels.append(float(good))
        value, todo = result, todo[len(own) :]
    return labels


def test_the_checker_agrees_with_an_independent_one():
    cfg = dataclasses.replace(CFG, restate=0.2)
    problems = tasks.make_problems(CHAIN, cfg, 300, "train", 3)
    for p in tasks.solver_pool(CHAIN, cfg, problems, 6, 3):
        for c in p.candidates:
            assert CHAIN.step_labels(p.problem, c.steps) == independent_labels(p.problem, c.steps)
            assert c.correct == (c.answer == p.answer)


def test_hard_facts_have_their_share_and_a_belief_of_their_own():
    """Exactly so many facts for every seed; on them .30 right, .45 one wrong result, the rest anything."""
    first, second = (chain.fact_distributions(dataclasses.replace(CFG, seed=seed)) for seed in (0, 1))
    assert any((first[fact] != second[fact]).any() for fact in first)
    for name, share in (CFG.hard | {"max": 0, "min": 0}).items():
        facts = list(itertools.product(range(chain.lowest(name), 7), range(7)))
        hard = 0
        for operand, value in facts:
            law_w, right = first[name, operand][value], chain.APPLY[name](value, operand) % 7
            assert law_w.sum() == pytest.approx(1) and (law_w >= 0).all()
            if law_w.max() < 0.9:
                hard += 1
                rest = np.sort(np.delete(law_w, right))
                assert law_w[right] == pytest.approx(0.3 + 0.25 / 7)
                np.testing.assert_allclose(rest, [0.25 / 7] * 5 + [0.45 + 0.25 / 7])
        assert hard == round(share * len(facts))


def value_by_force(cfg, value, left, gold) -> float:
    """P(right answer) of the solver from here: every line that it may write, one after another."""
    if not left:
        return float(value == gold)
    total = 0.0
    for n, share in ((1, 1 - cfg.merge), (2, cfg.merge)) if len(left) > 1 else ((1, 1.0),):
        law = np.eye(cfg.modulus)[value]
        for operation in left[:n]:
            law = law @ chain.fact_distributions(cfg)[operation]
        total += share * sum(law[w] * value_by_force(cfg, w, left[n:], gold) for w in range(cfg.modulus))
    return total


def test_values_by_force():
    problem, gold = "4 *5 -3 max2 mod7?", 3
    _, todo, _ = chain.parse_problem(problem)
    force = lambda value, k: value_by_force(CFG, value, todo[len(todo) - k :], gold)
    steps = ["4*5=2", "2-3=6", "6=6", "6max2=6"]
    found = CHAIN.values(CFG, problem, steps)
    np.testing.assert_allclose(found, [force(2, 2), force(6, 1), force(6, 1), 0], rtol=1e-12)
    assert CHAIN.values(CFG, problem, ["4*5=9", "9-3=6", "6max2=3"]) == [0, force(6, 1), 1]
    assert CHAIN.values(CFG, problem, ["so on", "4*5=6"]) == [0, 0]
    rng, n = np.random.default_rng(0), 6000
    right = np.mean([CHAIN.solved(problem, CHAIN.solve(CFG, problem, rng)) for _ in range(n)])
    assert abs(right - force(4, 3)) < 4 * np.sqrt(0.25 / n)


def test_draws_repeat():
    rng = np.random.default_rng(0)
    drawn = [CHAIN.solve(dataclasses.replace(CFG, restate=0.3), PROBLEM, rng) for _ in range(200)]
    assert zlib.crc32(repr((drawn, rng.random())).encode()) == 3660884714


def test_rates_of_the_default():
    """Of the noisy solver's answers .5 to .62 are right, a quarter of these rests on a wrong step."""
    problems = tasks.make_problems(CHAIN, CFG, 300, "test", 1)
    pool = list(tasks.solver_pool(CHAIN, CFG, problems, 64, 1))
    right_PN = np.array([[c.correct for c in p.candidates] for p in pool])
    assert 0.5 < right_PN.mean() < 0.62 and right_PN.any(1).mean() > 0.97
    votes = lambda p: np.bincount([int(c.answer) for c in p.candidates]).argmax() == int(p.answer)
    assert abs(np.mean([votes(p) for p in pool]) - right_PN.mean()) < 0.06
    right = [(p.problem, c.steps) for p in pool[:100] for c in p.candidates if c.correct]
    assert 0.1 < np.mean([CHAIN.step_labels(*solution)[-1] == 0 for solution in right]) < 0.25


def test_splits_share_no_problem_and_seeds_repeat():
    make = lambda split, seed: tasks.make_problems(CHAIN, CFG, 400, split, seed)
    problems = {split: set(make(split, 0)) for split in tasks.SPLITS}
    assert {len(split) for split in problems.values()} == {400}
    assert len(set().union(*problems.values())) == 400 * len(tasks.SPLITS)
    assert make("test", 1) == make("test", 1) != make("test", 2)
    tiny = dataclasses.replace(CFG, min_operations=1, max_operations=1)
    with pytest.raises(InputError, match="^data.task: "):
        tasks.make_problems(CHAIN, tiny, 100, "test", 0)


@pytest.mark.parametrize("change", [{"modulus": 9}, {"hard": {"+": 1.0}}])
def test_bad_task_settings(change):
    with pytest.raises(InputError, match="^data.task."):
        parse(dataclasses.asdict(CFG) | change, chain.Config, "data.task")
