"""Trace error and selective prediction on a pool that is small enough to do by hand."""

import pytest

from examples.papers import trace_error
from prm_jax.data.pools import Candidate, Problem
from prm_jax.evals import pool_metrics
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


def test_errors_by_hand():
    pool = pool_arrays(POOL, step_labels=LABELS)
    table = pool_metrics.pool_results(pool, ["prm"], RULES, 0)["scorers"]["prm"]["prod"]
    assert table["best_of_n"]["1"] == pytest.approx(3 / 8)  # a, c of one and f of two, since i was cut
    assert table["trace"]["1"] == pytest.approx(2 / 8)
    assert table["best_of_n"]["4"] == pytest.approx(1)  # c, which is lucky, and f
    assert table["trace"]["4"] == pytest.approx(0.5)


def test_abstaining_keeps_the_problems_with_the_highest_scores():
    errors = trace_error.abstaining(pool_arrays(POOL), "prm", "prod")
    half = trace_error.SHARE_X.tolist().index(0.5)
    assert {rule: (error[0], error[half]) for rule, error in errors.items()} == {
        "best of n": pytest.approx((0, 0)),
        "weighted vote": pytest.approx((0.5, 0.0), abs=1e-6),
    }
    assert trace_error.selective([1.0] * 4, [1, 0, 0, 1])[half] == 0.5  # equal: any two
