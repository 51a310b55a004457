"""The default task: the checker against an independent one, the solver's laws, exact values against simulation, splits."""

import dataclasses
import re

import numpy as np
import pytest
from omegaconf import OmegaConf

from prm_jax import InputError, tasks
from prm_jax.data.pools import Candidate, Problem
from prm_jax.launch.config import CONF, parse
from prm_jax.tasks import chain

CFG = parse(OmegaConf.load(CONF / "data/chain.yaml").task, chain.Config, "data.task")
PROBLEM = "4 +5 *4 max3 -6 mod7?"
RIGHT = ["4+5=2", "2*4=1", "1max3=3", "3-6=4"]


def test_problem_and_lines_are_read():
    assert chain.parse_problem(PROBLEM) == (4, (("+", 5), ("*", 4), ("max", 3), ("-", 6)), 7)
    assert (
        chain.gold_answer(PROBLEM) == "4"
        and chain.stated_answer(RIGHT) == "4"
        and chain.stated_answer(["so 4"]) is None
    )
    assert chain.parse_line("12max3*10=4") == (12, (("max", 3), ("*", 10)), 4)
    for broken in ("4 +5 mod4?", "4 +5 *9 mod7?", "4 +5 *3", "4 add 5 mod7?", "", "+5 mod7?"):
        with pytest.raises(InputError, match="^not a chain of arithmetic"):
            chain.gold_answer(broken)


@pytest.mark.parametrize(
    "steps, verdicts",
    [
        (RIGHT, ["right"] * 4),
        (["4 + 5 = 2", "2 * 4 = 1 "], ["right"] * 2),
        (["4+5*4=1", "1max3-6=4"], ["right"] * 2),  # merged
        (["4+5=2", "2=2", "2*4=1"], ["right", "neutral", "right"]),
        (["4+5=3", "3*4=5", "5max3=5"], ["+", "right", "right"]),  # wrong result, then consistent
        (["4+5*4=2", "2max3=3"], ["merged", "right"]),
        (["4+5=2", "2*4=2", "2max3=2"], ["right", "*", "max"]),
        (["4+5=2", "2*3=6", "6max3=6"], ["right", "form", "right"]),  # wrong operand
        (["4+5=2", "2+4=6"], ["right", "form"]),  # wrong operation
        (["4+5=2", "3*4=5"], ["right", "form"]),  # miscopied value
        (["4+5=2", "2=3"], ["right", "form"]),
        (["4+5=2", "two times four", "1max3=3"], ["right", "form", "form"]),
        ([*RIGHT, "4-6=5"], ["right"] * 4 + ["form"]),  # more than was asked
        ([], []),
    ],
)
def test_verdicts(steps, verdicts):
    assert chain.verdicts(PROBLEM, steps) == verdicts


def test_labels_ratings_and_outcome_of_anybodys_solution():
    lucky = tasks.labelled(chain, CFG, PROBLEM, ["4+5=2", "2=2", "2*4=2", "2max3=3", "3-6=4"], "correctness", "a")
    assert lucky.labels == (1, 1, 0, 0, 0) and lucky.ratings == (1, 0, -1, 1, 1)
    assert (lucky.outcome, lucky.answer) == (1.0, "4") and tasks.lucky_share(chain, [lucky]) == 1
    assert tasks.step_labels(chain, PROBLEM, RIGHT) == [1, 1, 1, 1]
    with pytest.raises(InputError, match="^not a chain of arithmetic"):
        tasks.step_labels(chain, "What is 2 + 3?", ["5"])
    pool = tasks.grade(
        chain, Problem("p", PROBLEM, None, (Candidate(tuple(RIGHT)), Candidate(("4+5=2",)), Candidate(("no",))))
    )
    assert pool.answer == "4"
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
            number = (
                {"max": max, "min": min}[name](number, int(operand)) if len(name) > 1 else eval(f"{number}{operation}")
            )
            number %= int(modulus)
        good = good and int(result) == number
        labels.append(float(good))
        value, todo = result, todo[len(own) :]
    return labels


def test_the_checker_agrees_with_an_independent_one():
    cfg = dataclasses.replace(CFG, restate=0.2)
    problems = tasks.make_problems(chain, cfg, 300, "train", 3)
    for p in tasks.solver_pool(chain, cfg, problems, 6, 3):
        for c in p.candidates:
            assert tasks.step_labels(chain, p.problem, c.steps) == independent_labels(p.problem, c.steps)
            assert c.correct == (c.answer == p.answer)


def test_hard_facts_have_their_share_and_a_belief_of_their_own():
    """Exactly so many facts for every seed; on them .30 right, .45 one wrong result, the rest anything."""
    for seed in (0, 1):
        laws = chain.fact_distributions(dataclasses.replace(CFG, seed=seed))
        for name, share in (("+", 0.15), ("-", 0.3), ("*", 0.45), ("max", 0), ("min", 0)):
            rows = [(laws[name, k][v], chain.APPLY[name](v, k) % 7) for k in chain.operands(name, 7) for v in range(7)]
            hard = [(law_w, right) for law_w, right in rows if law_w.max() < 0.9]
            assert len(hard) == round(share * len(rows))
            for law_w, right in rows:
                assert law_w.sum() == pytest.approx(1) and (law_w >= 0).all()
            for law_w, right in hard:
                rest = np.sort(np.delete(law_w, right))
                assert law_w[right] == pytest.approx(0.3 + 0.25 / 7) and rest[-1] == pytest.approx(0.45 + 0.25 / 7)
                np.testing.assert_allclose(rest[:-1], 0.25 / 7)
    assert any((a != b).any() for a, b in zip(laws.values(), chain.fact_distributions(CFG).values(), strict=True))


def test_the_solver_writes_by_these_laws():
    rng, n = np.random.default_rng(0), 4000
    cfg = dataclasses.replace(CFG, merge=0.5, restate=0.25)
    steps = [chain.solve(cfg, "4 *5 -3 mod7?", rng) for _ in range(n)]
    near = lambda share, p: abs(share - p) < 4 * np.sqrt(0.25 / n)
    one, two = (
        chain.fact_distributions(cfg)["*", 5],
        chain.fact_distributions(cfg)["*", 5] @ chain.fact_distributions(cfg)["-", 3],
    )
    merged = [s for s in steps if s[0].startswith("4*5-3=")]
    assert near(len(merged) / n, 0.5) and near(np.mean([len(s) > 1 for s in merged]), 0.25)
    for w in range(7):
        assert abs(np.mean([s[0] == f"4*5-3={w}" for s in merged]) - two[4, w]) < 0.04
        assert abs(np.mean([s[0] == f"4*5={w}" for s in steps if s not in merged]) - one[4, w]) < 0.04


def test_values_equal_simulation():
    cfg = dataclasses.replace(CFG, merge=0.4, slip=0.2)
    problem = "4 *5 -3 max2 +6 mod7?"
    steps = ["4*5=6", "6-3=3", "3max2+6=2"]
    found = chain.values(cfg, problem, steps)
    rng, n = np.random.default_rng(0), 8000
    for value, rest in zip(found, ("6 -3 max2 +6 mod7?", "3 max2 +6 mod7?"), strict=False):
        rollouts = [chain.stated_answer(chain.solve(cfg, rest, rng)) == chain.gold_answer(problem) for _ in range(n)]
        assert abs(value - np.mean(rollouts)) < 4 * np.sqrt(0.25 / n)
    assert found[-1] == 1.0 and chain.values(cfg, problem, ["4*5=6", "so on", "3max2=3"])[1:] == [0, 0]
    labelled = tasks.labelled(chain, cfg, problem, steps, "value", "v")
    assert labelled.labels == tuple(found) and labelled.ratings is None
    with pytest.raises(InputError, match="^data.task.modulus: got 7, expected 13"):
        chain.values(cfg, "4 +12 mod13?", ["4+12=3"])


def test_rates_of_the_default():
    """lab-task numbers of the noisy solver: answers right .54, lucky among them .16, and a majority hardly better."""
    problems = tasks.make_problems(chain, CFG, 300, "test", 1)
    pool = list(tasks.solver_pool(chain, CFG, problems, 64, 1))
    right_PN = np.array([[c.correct for c in p.candidates] for p in pool])
    assert 0.5 < right_PN.mean() < 0.62 and right_PN.any(1).mean() > 0.97
    votes = lambda p: np.bincount([int(c.answer) for c in p.candidates]).argmax() == int(p.answer)
    assert abs(np.mean([votes(p) for p in pool]) - right_PN.mean()) < 0.06
    rows = [tasks.labelled(chain, CFG, p.problem, c.steps, "correctness", "") for p in pool[:100] for c in p.candidates]
    assert 0.1 < tasks.lucky_share(chain, rows) < 0.25


def test_splits_share_no_problem_and_seeds_repeat():
    make = lambda split, seed: tasks.make_problems(chain, CFG, 400, split, seed)
    problems = {split: set(make(split, 0)) for split in tasks.SPLITS}
    for a in tasks.SPLITS:
        assert len(problems[a]) == 400
        assert all(not problems[a] & problems[b] for b in tasks.SPLITS if b != a)
    assert make("test", 1) == make("test", 1) != make("test", 2)
    tiny = dataclasses.replace(CFG, min_operations=1, max_operations=1)
    with pytest.raises(InputError, match=r"^data.task: has only \d+ distinct test problems of 100"):
        tasks.make_problems(chain, tiny, 100, "test", 0)


@pytest.mark.parametrize("preset", ["easy", "hard", "shift", "plain"])
def test_presets_differ_in_named_keys_alone_and_solve(preset):
    base, own = (OmegaConf.load(CONF / f"data/{name}.yaml") for name in ("chain", f"chain_{preset}"))
    own.pop("defaults")
    cfg = parse(OmegaConf.merge(base, own).task, chain.Config, "data.task")
    problem = tasks.make_problems(chain, cfg, 1, "train", 0)[0]
    steps = chain.solve(cfg, problem, np.random.default_rng(0))
    assert "form" not in chain.verdicts(problem, steps)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"slip": 1.5}, "data.task.slip"),
        ({"hard": {"+": 0.1}}, "data.task.hard"),
        ({"operations": CFG.operations | {"+": -1}}, r"data.task.operations.\+"),
        ({"min_operations": 7}, "data.task.min_operations"),
        ({"modulus": 9}, "data.task.modulus: got 9, expected an odd prime"),
        ({"hard_right": 0.8}, "data.task.belief"),
    ],
)
def test_bad_task_settings(change, message):
    with pytest.raises(InputError, match=message):
        parse(dataclasses.asdict(CFG) | change, chain.Config, "data.task")
