"""task=best_of_n: all reported numbers against brute force, the reference table of real pools, bad pools."""

import dataclasses
import itertools
import json
import re

import numpy as np
import pytest
from conftest import printed, real_data

import evaluate
from prm_jax import InputError, rerank, witness
from prm_jax.data.pools import Candidate, Problem, read_pool, write_pool
from prm_jax.evals import best_of_n as best_of_n_task
from prm_jax.evals import pool_metrics as best_of_n
from prm_jax.evals.pool_arrays import pool_arrays
from prm_jax.figures import best_of_n as best_of_n_figure
from prm_jax.figures.witness import witness_phases


def rules(vote_draws=50, unit="probability", aggregator="prod", ties="share"):
    return best_of_n.Rules(unit, aggregator, ties, vote_draws, policy_weight=0.5)


RULES = rules()


def candidate(scores, answer, correct, **more):
    steps = tuple(f"step {t}" for t in range(len(scores)))
    return Candidate(steps, answer, correct, step_scores={"a": tuple(scores)}, **more)


def problem(name, text, gold, *rows):
    return Problem(name, text, gold, tuple(candidate(*row) for row in rows))


ONE = ([0.9, 0.9], "1", True), ([0.8, 0.9], "2", False), ([0.95], "2", False), ([0.2, 1.0], "1", True)
TWO = ([0.5], "5", True), ([0.5], "4", False), ([0.5, 0.5], "5", True), ([0.9], "3", False)
# Two problems, four candidates; products .81 .72 .95 .2 and .5 .5 .25 .9.
POOL = [problem("p", "one", "1", *ONE), problem("q", "two", "5", *TWO)]


def measured(pool=POOL, by=RULES, labels=None, scorers=("a",)):
    return best_of_n.pool_results(pool_arrays(pool, step_labels=labels), list(scorers), by, 0)


def mean_over_subsets(pool, n, won):
    return np.mean(
        [np.mean([won(list(chosen)) for chosen in itertools.combinations(p.candidates, n)]) for p in pool]
    )


def share_right(winners):
    return np.mean([c.correct for c in winners])


def by_product(chosen):
    best = max(np.prod(c.step_scores["a"]) for c in chosen)
    return share_right([c for c in chosen if np.isclose(np.prod(c.step_scores["a"]), best)])


def by_least(chosen, size):
    least = min(size(c.steps) for c in chosen)
    return share_right([c for c in chosen if size(c.steps) == least])


def by_vote(chosen, weight):
    total = {a: sum(weight(c) for c in chosen if c.answer == a) for a in {c.answer for c in chosen}}
    tops = [a for a in total if np.isclose(total[a], max(total.values()))]
    return np.mean([share_right([c for c in chosen if c.answer == a]) for a in tops])


def test_every_rule_equals_brute_force_over_all_subsets():
    result = measured(by=rules(3000))
    assert (result["n_problems"], result["n_candidates"], result["mean"]) == (2, 4, 0.5)
    numbers = result["scorers"]["a"]["prod"]
    assert list(numbers["best_of_n"]) == ["1", "2", "4"]
    for n in (1, 2, 4):
        curves = {
            "best": (numbers["best_of_n"], by_product),
            "majority": (result["majority"], lambda chosen: by_vote(chosen, lambda c: 1)),
            "oracle": (result["oracle"], lambda chosen: max(c.correct for c in chosen)),
            "fewest": (result["fewest_steps"], lambda chosen: by_least(chosen, len)),
            "shortest": (result["shortest"], lambda chosen: by_least(chosen, lambda x: len("".join(x)))),
        }
        for name, (curve, won) in curves.items():
            assert curve[str(n)] == pytest.approx(mean_over_subsets(POOL, n, won), abs=1e-6), (name, n)
    lead, alone = result["lead"], [result[x]["4"] for x in ("fewest_steps", "shortest", "majority")]
    assert lead["verifier"] == "a.prod.best_of_n"
    assert lead["difference"] == pytest.approx(numbers["best_of_n"]["4"] - max(alone))
    for n in (1, 2, 4):
        vote = mean_over_subsets(
            POOL, n, lambda chosen: by_vote(chosen, lambda c: np.prod(c.step_scores["a"]))
        )
        assert numbers["weighted_vote"][str(n)] == pytest.approx(vote, abs=0.03), n  # 3,000 draws, 2 problems
        low, high = numbers["interval"][str(n)]
        assert low <= numbers["best_of_n"][str(n)] <= high


@pytest.mark.parametrize("correct", [True, False])
def test_a_pool_of_one_kind_and_of_one_candidate(correct):
    for n in (1, 3):
        rows = [candidate([0.1 * i + 0.1], "1", correct) for i in range(n)]
        result = measured([Problem("p", "x", "1", tuple(rows)), Problem("q", "y", "1", tuple(rows))])
        assert result["mean"] == result["scorers"]["a"]["prod"]["best_of_n"][str(n)] == correct
        assert result["lead"]["difference"] == 0 and np.isnan(result["outcome_auroc_within"]["a"])


def test_of_rules_that_are_equal_but_for_rounding_the_first_leads():
    rules = {"majority": np.full((14, 1), 8 / 14), "shortest": np.full((14, 1), np.nextafter(8 / 14, 1))}
    assert best_of_n.lead({"a.prod.best_of_n": np.zeros((14, 1))}, rules, 0)["rule"] == "majority"


def test_what_was_cut_is_right_in_no_number_and_has_no_outcome():
    cut = candidate([0.9, 0.8], "1", True, finished=False)
    ended = candidate([0.6], "1", True), candidate([0.7], None, True), candidate([0.3, 0.4], "2", False)
    pool = [Problem("p", "x", "1", (cut, *ended)), Problem("q", "y", "1", (cut,))]
    labels = {(p.problem, c.steps): [1.0] * len(c.steps) for p in pool for c in p.candidates}
    result = measured(pool, labels=labels)
    assert result["mean"] == result["oracle"]["1"] == pytest.approx(1 / 8)
    assert [c.outcome for c in (cut, *ended)] == [None, 1, 1, 0]


def test_ragged_ineligible_and_tied_candidates_against_brute_force():
    unfinished = candidate([0.2], "3", False, finished=False)
    pool = [
        problem("p", "x", "1", ([0.9], "1", True), ([0.9], "2", False), ([0.95], None, True)),
        Problem("q", "y", "1", (candidate([0.1], "1", True), unfinished)),
        Problem("r", "z", "1", (unfinished,)),
    ]

    def mean(n, won):
        shares = []
        for p in pool:
            subsets = itertools.combinations(p.candidates, min(n, len(p.candidates)))
            able = [[c for c in subset if c.finished and c.answer is not None] for subset in subsets]
            shares.append(np.mean([won(subset) if subset else 0 for subset in able]))
        return pytest.approx(np.mean(shares), abs=1e-6)

    result = measured(pool)
    for n in (1, 2, 3):
        assert result["scorers"]["a"]["prod"]["best_of_n"][str(n)] == mean(n, by_product)
        assert result["majority"][str(n)] == mean(n, lambda subset: by_vote(subset, lambda c: 1))
        assert result["oracle"][str(n)] == mean(n, lambda subset: any(c.correct for c in subset))
    assert result["dropped"] == {"missing": 3, "unfinished": 2, "without_answer": 1}


def test_stored_log_odds_are_told_apart_where_probabilities_are_one():
    """float32 P(good) is 1.0 above a logit of 16.6, and so are sums of its logs."""
    for low, high in ((17.0, 30.0), (14.0, 14.05)):
        pair = (candidate([low], "2", False), candidate([high], "1", True))
        pool = [Problem("p", "x", "1", pair, {"a": "logit"})]
        result = measured(pool)  # the pool's own word for the unit, against the rules' probability
        for how in ("min", "prod", "last", "mean", "softmin"):
            assert result["scorers"]["a"][how]["best_of_n"]["2"] == 1, (low, how)
    mixed = [pool[0], Problem("q", "y", "1", pool[0].candidates)]
    with pytest.raises(InputError, match="scores_unit.a"):
        measured(mixed)


def test_what_a_winning_group_counts():
    """Two of one answer, graded apart, the first wrong; a third right one in other words."""
    rows = ([0.5], "1", False), ([0.5], "1", True), ([0.9], "2", False), ([0.9], "2.0", True)
    pool = [problem("p", "x", "1", *rows)]
    for ties, right in (("share", 0.5), ("first", 0)):
        result = measured(pool, rules(20, ties=ties))
        assert result["majority"]["4"] == pytest.approx(right)
    halves = problem("p", "x", "1/2", ([0.5], ".5", True), ([0.5], "1/2", True), ([0.5], "3", False))
    assert measured([halves])["votes_apart"] == 1 and measured(pool)["votes_apart"] == 0


# solved at 32 by min, last, prod, mean of qwen_prm, ties shared
SHARED = {"gsm8k": (0.9653, 0.9637, 0.9730, 0.9730), "math500": (0.8172, 0.7850, 0.8251, 0.7937)}


@pytest.mark.parametrize(("name", "majority"), [("gsm8k", 0.9499), ("math500", 0.7668)])
def test_the_real_pools(name, majority):
    """Counted once by a plain loop over the stored scores."""
    pool = read_pool(real_data(f"bon_strictprmbench/{name}_qwen2.5-7b-instruct_n32.jsonl.gz"))
    result = measured(pool, rules(1), scorers=("qwen_prm",))
    for how, share in zip(("min", "last", "prod", "mean"), SHARED[name], strict=True):
        assert result["scorers"]["qwen_prm"][how]["best_of_n"]["32"] == pytest.approx(share, abs=6e-5), how
    assert result["majority"]["32"] == pytest.approx(majority, abs=1e-4)


def drawable(result):
    """As results.json holds it: nan is null, keys are texts."""
    about = {
        "pool": "p.jsonl",
        "grading": {"checker": "as stored"},
        "verifiers": {},
        "over_seeds": [],
        "versions": {"commit": "0" * 40 + "+"},
    }
    return json.loads(json.dumps(result | about), parse_constant=lambda _: None)


def test_seeds_of_one_setting_are_summed_up_and_other_verifiers_are_not(capsys):
    """Scores and their opposites: each picks what the other passes over."""

    def three(c):
        prm = c.step_scores["a"]
        other = tuple(1 - x for x in prm)
        return dataclasses.replace(c, step_scores={"prm": prm, "prm_1": other, "orm": prm})

    pool = [dataclasses.replace(p, candidates=tuple(map(three, p.candidates))) for p in POOL]
    results = drawable(measured(pool, scorers=("prm", "prm_1", "orm")))
    assert results["headline"] == {"prm": "prod", "prm_1": "prod", "orm": "last"}  # an outcome model, by name
    settings = {"prm": {"lr": 1}, "prm_1": {"lr": 1}, "orm": {"verifier": "embedded_orm"}}
    results["verifiers"] = {name: {"verifier": name, "settings": x} for name, x in settings.items()}
    (group,) = results["over_seeds"] = best_of_n_task.seeds_of_one_setting(results)
    assert (group["setting"], group["scorers"]) == ({}, ["prm", "prm_1"])
    a, b = (results["scorers"][scorer]["prod"]["best_of_n"]["4"] for scorer in group["scorers"])
    assert group["spread"]["best_of_4"]["mean"] == pytest.approx((a + b) / 2)
    assert group["spread"]["best_of_4"]["sd"] == pytest.approx(abs(a - b) / 2**0.5)
    best_of_n_task.BestOfN().show(results)
    assert "over seeds  2 of prm" in capsys.readouterr().out
    styles = best_of_n_figure.scorer_styles(results)
    assert styles["prm"][0] == styles["prm_1"][0] != styles["orm"][0]  # one look a setting


def test_an_aggregator_is_one_entry(monkeypatch, tmp_path):
    """It is measured and drawn everywhere, and the witness's page leaves out what it has no formula of."""
    harmonic = lambda x: -rerank.jnp.log(rerank.jnp.sum(rerank.jnp.exp(-x.logp_PTN), -2, where=x.mask_PTN))
    monkeypatch.setitem(rerank.AGGREGATORS, "harmonic", rerank.Aggregator(harmonic, True))
    result = measured(by=rules(20, aggregator="harmonic"))
    assert result["scorers"]["a"]["harmonic"]["best_of_n"]["1"] == 0.5
    assert len(best_of_n_figure.draw(drawable(result), tmp_path)) == 1
    found = witness.results("harmonic")
    plane = witness.grid(3, 2)
    assert len(plane["by_aggregator"]) == len(rerank.AGGREGATORS)
    witness_phases(found | {"plane": plane})


def test_traces_count_winners_without_a_wrong_step():
    labels = {(p.problem, c.steps): [1.0] * len(c.steps) for p in POOL for c in p.candidates}
    clean = measured(labels=labels)["scorers"]["a"]["prod"]
    assert clean["trace"] == clean["best_of_n"]
    # Of `one`, every two-step solution has a wrong first step: its right ones are lucky.
    labels |= {("one", ("step 0", "step 1")): [0.0, None]}
    lucky = measured(labels=labels)["scorers"]["a"]["prod"]["trace"]
    assert lucky["4"] == pytest.approx(0) and lucky["1"] == pytest.approx(0.25)


def test_problems_that_a_verifier_was_trained_on_are_measured_apart():
    about = {"a": {"known_problems": [False, True]}}
    pool = pool_arrays(POOL)
    found = best_of_n.pool_results(pool, ["a"], rules(aggregator="last"), 0, about)
    assert found["scorers"]["a"]["last"]["best_of_n"]["4"] == 0.5  # `one` by its fourth candidate
    assert found["unseen"] == {"a": {"n_problems": 1, "solved": 1.0}} and "unseen" not in measured()


def test_bad_pools_name_the_place():
    ungraded = [Problem("p", "x", "1", (candidate([0.5], "1", None),))]
    with pytest.raises(InputError, match=r"problem p: candidates\[0\].correct"):
        pool_arrays(ungraded)
    outside = [Problem("p", "x", "1", (candidate([0.5, -2.0], "1", True),))]
    with pytest.raises(InputError, match="scores_unit.a"):
        measured(outside)


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
    result, out = task(monkeypatch, tmp_path, f"input={path}", "ties=first", "vote_draws=2")
    count = lambda share: pytest.approx(share * 259, abs=1e-3)
    assert result["n_problems"] == 259 and result["mean"] * 8288 == pytest.approx(7682)
    assert count(result["majority"]["32"]) == 245 and count(result["oracle"]["32"]) == 253
    for scorer, right in RIGHT.items():
        table = result["scorers"][scorer]
        for how, expected in zip(("min", "last", "prod", "mean"), right, strict=True):
            assert count(table[how]["best_of_n"]["32"]) == expected, (scorer, how)
    names = "rlhflow_prm.prod.best_of_n", "skywork_prm.prod.best_of_n"
    (pair,) = [d for d in result["differences"] if (d["a"], d["b"]) == names]
    assert pair["difference"] == pytest.approx(-2 / 259) and pair["n_differ"] == 8
    assert re.search(r"^  qwen_prm +prod +0\.9730 +\[0\.9\d+, 0\.9\d+\] +\+0\.0270 ", out, re.MULTILINE)
    assert (tmp_path / "out/figures/best_of_n.png").stat().st_size > 10_000


def test_a_checker_grades_again_and_groups_the_votes(monkeypatch, tmp_path):
    steps = lambda text, correct: Candidate((text,), None, correct, step_scores={"a": (0.5,)})
    found = [steps(r"so \boxed{0.5}", None), steps(r"so \boxed{1/2}", None), steps(r"\boxed{2}", None)]
    write_pool(tmp_path / "pool.jsonl", [Problem("p", "x", "1/2", tuple(found))])
    result, _ = task(monkeypatch, tmp_path, "input=pool.jsonl", "checker=number")
    assert result["mean"] == pytest.approx(2 / 3) and result["majority"]["3"] == pytest.approx(1)
    assert result["grading"]["same"] == 2 and result["grading"]["checker"] == "number"
