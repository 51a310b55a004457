"""Trace error and selective prediction (evals/trace_error.py) on a pool that is small enough to do
by hand."""

import numpy as np
import pytest

import examples.papers.trace_error
from prm_jax.data.pools import Candidate, Problem
from prm_jax.evals import pool_metrics, trace_error
from prm_jax.evals.pool_arrays import pool_arrays


def candidate(steps, scores, answer, correct, finished=True):
    return Candidate(tuple(steps), answer, correct, finished, {"prm": tuple(scores)})


POOL = [  # products .81 .95 .3 .2 and .6 .5 .4 .99, of which the last was cut and cannot win
    Problem("p", "one", "1", (candidate("ab", (0.9, 0.9), "1", True), candidate("c", (0.95,), "1", True),
                              candidate("d", (0.3,), "2", False), candidate("e", (0.2,), "2", False))),
    Problem("q", "two", "5", (candidate("f", (0.6,), "5", True), candidate("g", (0.5,), "4", False),
                              candidate("h", (0.4,), "4", False), candidate("i", (0.99,), "5", True, False))),
]  # fmt: skip
BAD = {"c", "d", "e", "g", "h"}  # c: a right answer by luck
LABELS = {
    (p.problem, c.steps): [float(step not in BAD) for step in c.steps] for p in POOL for c in p.candidates
}
RULES = pool_metrics.Rules("probability", "prod", "share", 4, 0.5)


def measured():
    return pool_metrics.pool_results(pool_arrays(POOL, step_labels=LABELS), ["prm"], RULES, 0)


def test_errors_of_the_chosen_by_hand():
    results = measured()
    chosen = results["chosen"]
    found = {rule: (row["final_error"], row["trace_error"]) for rule, row in chosen["rules"].items()}
    assert found == {
        "mean": pytest.approx(
            (5 / 8, 1 / 3)
        ),  # a, c of one and f of two: i was cut, so it is no right answer
        "majority": pytest.approx((0.75, 0.5)),  # one: a tie; two: 4 outvotes the only 5 that is finished
        "prm.best_of_n": pytest.approx((0, 0.5)),  # c, which is lucky, and f
        "prm.weighted_vote": pytest.approx(
            (0.5, 1.0)
        ),  # of the answer 1 its best candidate, c; 4 by .9 against .6
    }
    table = results["scorers"]["prm"]["prod"]
    best = chosen["rules"]["prm.best_of_n"]
    assert 1 - table["best_of_n"]["4"] == pytest.approx(best["final_error"], abs=1e-6)
    assert 1 - table["trace"]["4"] / table["best_of_n"]["4"] == pytest.approx(best["trace_error"])


@pytest.mark.parametrize("ties", ["share", "first"])
def test_a_vote_is_shown_by_the_best_candidate_of_the_winning_answer(ties):
    rules = pool_metrics.Rules("probability", "prod", ties, 4, 0.5)
    answer_PN = np.array([[0, 0, 1], [0, 0, 1]])
    score_PN = np.array([[-2.0, -1.0, -0.9], [-1.0, -1.0, -3.0]])
    weight_PN = trace_error.vote_weights(answer_PN, score_PN, rules)
    np.testing.assert_allclose(weight_PN, [[0, 1, 0], [0.5, 0.5, 0]], atol=1e-6)


def test_abstaining_keeps_the_problems_with_the_highest_scores():
    errors = examples.papers.trace_error.abstaining(pool_arrays(POOL), {"prm": "prod"})
    half = examples.papers.trace_error.SHARE_X.tolist().index(0.5)
    assert {rule: (error[0], error[half]) for rule, error in errors.items()} == {
        "majority": pytest.approx((0.75, 1.0)),  # 2/3 of the votes in two, 1/2 in one
        "prm.best_of_n": pytest.approx((0, 0)),
        "prm.weighted_vote": pytest.approx((0.5, 0.0), abs=1e-6),
    }
    assert examples.papers.trace_error.selective([1.0] * 4, [1, 0, 0, 1])[half] == 0.5  # equal: any two
