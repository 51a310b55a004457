"""task=best_of_n: every reported number against brute force, the reference table of the real pools, bad pools."""

import itertools
import json

import numpy as np
import pytest
from conftest import call, printed, real_data

import evaluate
from prm_jax import InputError
from prm_jax.data.pools import Candidate, Problem, write_pool
from prm_jax.evals import pool_metrics as best_of_n

RULES = best_of_n.Rules("probability", "prod", "share", 50)


def candidate(scores, answer, correct, **more):
    steps = tuple(f"step {t}" for t in range(len(scores)))
    return Candidate(steps, answer, correct, step_scores={"a": tuple(scores)}, **more)


POOL = [  # two problems, four candidates; products .81 .72 .95 .2 and .5 .5 .25 .9
    Problem(
        "p",
        "one",
        "1",
        (
            candidate([0.9, 0.9], "1", True),
            candidate([0.8, 0.9], "2", False),
            candidate([0.95], "2", False),
            candidate([0.2, 1.0], "1", True),
        ),
    ),
    Problem(
        "q",
        "two",
        "5",
        (
            candidate([0.5], "5", True),
            candidate([0.5], "4", False),
            candidate([0.5, 0.5], "5", True),
            candidate([0.9], "3", False),
        ),
    ),
]


def measured(pool=POOL, rules=RULES, labels=None):
    return best_of_n.measure(pool, best_of_n.pool_arrays(pool), ["a"], rules, 0, labels)


def mean_over_subsets(pool, n, won):
    return np.mean([np.mean([won(list(chosen)) for chosen in itertools.combinations(p.candidates, n)]) for p in pool])


def share_right(winners):
    return np.mean([c.correct for c in winners])


def by_product(chosen):
    best = max(np.prod(c.step_scores["a"]) for c in chosen)
    return share_right([c for c in chosen if np.isclose(np.prod(c.step_scores["a"]), best)])


def by_vote(chosen, weight):
    total = {a: sum(weight(c) for c in chosen if c.answer == a) for a in {c.answer for c in chosen}}
    tops = [a for a in total if np.isclose(total[a], max(total.values()))]
    return np.mean([share_right([c for c in chosen if c.answer == a]) for a in tops])


def test_every_rule_equals_brute_force_over_all_subsets():
    result = measured(rules=best_of_n.Rules("probability", "prod", "share", 3000))
    assert (result["n_problems"], result["n_candidates"], result["mean"]) == (2, 4, 0.5)
    numbers = result["scorers"]["a"]["prod"]
    assert list(numbers["best_of_n"]) == ["1", "2", "4"] and len(numbers["curve"]) == 4
    for n in (1, 2, 3, 4):
        curves = {
            "best": (numbers["curve"], by_product),
            "majority": (result["majority_curve"], lambda chosen: by_vote(chosen, lambda c: 1)),
            "oracle": (result["oracle_curve"], lambda chosen: max(c.correct for c in chosen)),
        }
        for name, (curve, won) in curves.items():
            assert curve[n - 1] == pytest.approx(mean_over_subsets(POOL, n, won), abs=1e-6), (name, n)
    for n in (1, 2, 4):
        assert numbers["best_of_n"][str(n)] == pytest.approx(numbers["curve"][n - 1], abs=1e-6)
        vote = mean_over_subsets(POOL, n, lambda chosen: by_vote(chosen, lambda c: np.prod(c.step_scores["a"])))
        assert numbers["weighted_vote"][str(n)] == pytest.approx(vote, abs=0.03), n  # 3,000 draws, 2 problems
        low, high = numbers["interval"][str(n)]
        assert low <= numbers["best_of_n"][str(n)] <= high
    e_p = [mean_over_subsets([p], 2, by_product) for p in POOL]
    assert numbers["band"]["2"] == pytest.approx(np.sqrt(sum(e * (1 - e) for e in e_p)) / 2, abs=1e-6)
    only_N = result["scorers"]["a"]["mean"]["weighted_vote"]
    assert only_N == {
        "4": pytest.approx(
            mean_over_subsets(POOL, 4, lambda chosen: by_vote(chosen, lambda c: np.mean(c.step_scores["a"])))
        )
    }


def test_ties_first_takes_the_lowest_index():
    tied = [
        Problem("p", "x", "1", (candidate([0.5], "2", False), candidate([0.5], "1", True))),
        Problem("q", "y", "1", (candidate([0.5], "1", True), candidate([0.5], "2", False))),
    ]
    at_2 = lambda ties: measured(tied, best_of_n.Rules("probability", "min", ties, 20))
    for ties in ("share", "first"):
        result = at_2(ties)
        assert result["scorers"]["a"]["min"]["best_of_n"]["2"] == pytest.approx(0.5)
        assert result["majority"]["2"] == pytest.approx(0.5)
    one = measured(tied[:1], best_of_n.Rules("probability", "min", "first", 20))
    assert one["scorers"]["a"]["min"]["best_of_n"]["2"] == one["majority"]["2"] == 0


def test_differences_are_paired_and_equal_rules_differ_by_nothing():
    result = measured()
    by_pair = {(d["a"], d["b"]): d for d in result["differences"]}
    same = by_pair["a.gmean.best_of_n", "a.prod.best_of_n"]  # here both pick the same candidates at n = 4
    assert (same["difference"], same["interval"], same["p"]) == (0, [0, 0], 1)
    against = by_pair["a.prod.best_of_n", "majority"]
    N = "4"
    expected = result["scorers"]["a"]["prod"]["best_of_n"][N] - result["majority"][N]
    assert against["difference"] == pytest.approx(expected, abs=1e-6)


def test_who_cannot_win_is_counted_and_never_wins():
    pool = [
        Problem(
            "p",
            "x",
            "1",
            (candidate([1.0], "2", False, finished=False), candidate([0.9], None, False), candidate([0.1], "1", True)),
        ),
        Problem("q", "y", "1", (candidate([0.1], "1", True),)),
    ]
    result = measured(pool)
    assert result["dropped"] == {"missing": 2, "unfinished": 1, "without_answer": 1}
    numbers = result["scorers"]["a"]["prod"]["best_of_n"]
    assert numbers["3"] == pytest.approx(1) and numbers["1"] == pytest.approx(1 / 3)
    assert result["majority"]["3"] == pytest.approx(1) and result["mean"] == 0.5


def test_a_blank_answer_is_none():
    candidates = tuple(Candidate(("a",), answer, False, True, {}) for answer in ("", " ", "", "7"))
    pool = best_of_n.pool_arrays([Problem("i", "p", "7", candidates)])
    assert pool.eligible_PN.tolist() == [[False, False, False, True]] and pool.dropped["without_answer"] == 3
    assert pool.answer_PN[0, :3].tolist() == [-1, -1, -1]


def test_a_pool_without_answers_has_no_votes():
    pool = [Problem("p", "x", None, (candidate([0.9], None, True), candidate([0.1], None, False)))]
    result = measured(pool)
    assert "majority" not in result and "weighted_vote" not in result["scorers"]["a"]["prod"]
    assert result["scorers"]["a"]["prod"]["best_of_n"]["2"] == 1 and result["dropped"]["without_answer"] == 0


def test_traces_count_winners_without_a_wrong_step():
    labels = {(p.problem, c.steps): [1.0] * len(c.steps) for p in POOL for c in p.candidates}
    clean = measured(labels=labels)["scorers"]["a"]["prod"]
    assert clean["trace"] == clean["best_of_n"]
    # Of `one`, every two-step solution has a wrong first step: its right ones are lucky.
    labels |= {("one", ("step 0", "step 1")): [0.0, None]}
    lucky = measured(labels=labels)["scorers"]["a"]["prod"]["trace"]
    assert lucky["4"] == pytest.approx(0) and lucky["1"] == pytest.approx(0.25)


def test_reward_rises_with_kl_from_the_reference_to_the_arg_max():
    tilt = measured()["reward_kl"]["a"]["reweighted"]
    assert tilt["beta"][0] == 0 and tilt["beta"][-1] == np.inf
    assert tilt["kl"][-1] == 0 and tilt["accuracy"][-1] == 0.5
    products = [[0.81, 0.72, 0.95, 0.2], [0.5, 0.5, 0.25, 0.9]]
    assert tilt["score"][-1] == pytest.approx(np.log(products).mean(), abs=1e-5)
    assert tilt["score"][0] == pytest.approx(np.log([0.95, 0.9]).mean(), abs=1e-5) and tilt["kl"][0] == pytest.approx(
        np.log(4)
    )
    assert (np.diff(tilt["kl"]) <= 1e-6).all() and (np.diff(tilt["score"]) <= 1e-6).all()
    law = measured()["reward_kl"]["a"]["best_of_n"]
    assert law["n"] == [1, 2, 4] and law["kl"][0] == pytest.approx(0, abs=1e-6)
    assert all(kl <= bound + 1e-6 for kl, bound in zip(law["kl"], law["kl_bound"], strict=True))


def test_calibration_against_outcomes_and_exact_labels():
    numbers = measured()["calibration"]["a"]
    assert "sum_logit" not in numbers["solutions"] and numbers["step_label"] == "outcome"
    p = [np.prod(c.step_scores["a"]) for problem in POOL for c in problem.candidates]
    y = [c.correct for problem in POOL for c in problem.candidates]
    assert numbers["solutions"]["prod"]["brier"] == pytest.approx(np.mean((np.array(p) - y) ** 2), abs=1e-6)
    steps = [(s, c.correct) for problem in POOL for c in problem.candidates for s in c.step_scores["a"]]
    assert numbers["steps"]["brier"] == pytest.approx(np.mean([(s - y) ** 2 for s, y in steps]), abs=1e-6)


def test_bad_pools_name_the_place():
    ungraded = [Problem("p", "x", "1", (candidate([0.5], "1", None),))]
    with pytest.raises(InputError, match=r"problem p: candidates\[0\].correct: nobody graded it"):
        best_of_n.pool_arrays(ungraded)
    outside = [Problem("p", "x", "1", (candidate([0.5, -2.0], "1", True),))]
    with pytest.raises(InputError, match=r"problem p: candidates\[0\].step_scores.a\[1\]: got -2, expected a prob"):
        measured(outside)
    logits = measured(outside, best_of_n.Rules("logit", "prod", "share", 5))
    assert "steps" not in logits["calibration"]["a"]
    with pytest.raises(InputError, match="aggregator: got 'median', expected min, prod"):
        best_of_n.Rules("probability", "median", "share", 5)


def task(monkeypatch, tmp_path, *overrides):
    """(results.json, what was printed) of one command."""
    out = printed(evaluate.main, monkeypatch, "task=best_of_n", "hydra.run.dir=out", *overrides, cwd=tmp_path)
    return json.loads((tmp_path / "out/results.json").read_text()), out


RIGHT = {  # of 259 problems, by min, last, prod, mean with ties=first: the data's README, section 3
    "qwen_prm": (250, 247, 252, 252),
    "skywork_prm": (249, 251, 249, 252),
    "skywork_prm_1_5b": (243, 246, 243, 247),
    "rlhflow_prm": (247, 245, 247, 247),
    "math_shepherd": (246, 246, 246, 247),
    "internlm2_7b_reward": (236, 248, 239, 240),
    "internlm2_1_8b_reward": (241, 244, 242, 240),
}


def test_the_reference_counts_of_all_scorers_in_one_run(monkeypatch, tmp_path):
    path = real_data("bon_strictprmbench/gsm8k_qwen2.5-7b-instruct_n32.jsonl.gz")
    result, out = task(monkeypatch, tmp_path, f"pool={path}", "ties=first", "vote_draws=2")
    count = lambda share: pytest.approx(share * 259, abs=1e-3)
    assert result["n_problems"] == 259 and result["mean"] * 8288 == pytest.approx(7682)
    assert count(result["majority"]["32"]) == 245 and count(result["oracle"]["32"]) == 253
    for scorer, right in RIGHT.items():
        table = result["scorers"][scorer]
        for how, expected in zip(("min", "last", "prod", "mean"), right, strict=True):
            assert count(table[how]["best_of_n"]["32"]) == expected, (scorer, how)
    assert "rlhflow_prm.prod.best_of_n - skywork_prm.prod.best_of_n: -0.0077 [" in out
    for name in ("best_of_n", "aggregators", "reward_kl", "calibration"):
        assert (tmp_path / f"out/figures/{name}.png").stat().st_size > 20_000


def test_a_checker_grades_again_and_groups_the_votes(monkeypatch, tmp_path):
    steps = lambda text, correct: Candidate((text,), None, correct, step_scores={"a": (0.5,)})
    found = [steps(r"so \boxed{0.5}", None), steps(r"so \boxed{1/2}", None), steps(r"\boxed{2}", None)]
    write_pool(tmp_path / "pool.jsonl", [Problem("p", "x", "1/2", tuple(found))])
    result, _ = task(monkeypatch, tmp_path, "pool=pool.jsonl", "checker=number")
    assert result["mean"] == pytest.approx(2 / 3) and result["majority"]["3"] == pytest.approx(1)
    assert result["grading"]["same"] == 2 and result["grading"]["checker"] == "number"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["scores=b"], "scores: got 'b', expected step scores that every candidate has: a"),
        (["ties=last"], "ties: got 'last', expected share, first"),
        (["checker=llm"], "checker: got 'llm', expected null, string, number, math"),
        (["pool=nowhere.jsonl"], "nowhere.jsonl"),
        (["fresh.candidates=0"], "fresh.candidates: got 0, expected at least 1"),
        (["vote_draws=0"], "vote_draws: got 0, expected at least 1"),
    ],
)
def test_bad_overrides_are_one_line(overrides, message, monkeypatch, tmp_path):
    write_pool(tmp_path / "pool.jsonl", POOL)
    monkeypatch.chdir(tmp_path)
    error = call(evaluate.main, monkeypatch, "evaluate.py", "task=best_of_n", "pool=pool.jsonl", *overrides)
    assert message in error and "\n" not in error


def test_rounding_is_no_difference():
    a_P, b_P = np.array([1, 0.5, 0.2], np.float32), np.array([1 - 6e-8, 0.4, 0.2 + 2e-8], np.float32)
    np.testing.assert_allclose(best_of_n.paired_difference(a_P, b_P), [0, 0.1, 0], atol=1e-7)
