"""Bounds of a value: the conformal shift, coverage, and best of n with N a problem."""

import dataclasses

import numpy as np
import pytest
from conftest import TINY
from flax import nnx

from prm_jax import rerank, training
from prm_jax.data.pools import Candidate, Problem
from prm_jax.evals import bounds, pool_metrics
from prm_jax.evals.pool_arrays import pool_arrays
from prm_jax.model import PRM
from prm_jax.stats import conformal_quantile


@pytest.mark.parametrize(
    "n, level, chance", [(9, 0.9, 0.9), (9, 0.85, 0.9), (19, 0.95, 0.95), (9, 0.95, 0.9), (4, 0.2, 0.2)]
)
def test_a_new_draw_is_at_most_the_conformal_quantile_as_often_as_it_says(n, level, chance):
    """Brute force: each of n + 1 exchangeable numbers is the new one once."""
    numbers = np.arange(n + 1.0)
    held = [numbers[i] <= conformal_quantile(np.delete(numbers, i), level) for i in range(n + 1)]
    assert np.mean(held) == pytest.approx(chance)


def test_moved_bounds_hold_the_labels_that_they_were_fitted_on():
    rng = np.random.default_rng(0)
    z_n = rng.normal(size=999)
    label_n = 1 / (1 + np.exp(-z_n - rng.normal(size=999)))
    label_n[::10] = np.nan
    shift = bounds.shifts(z_n - 0.1, z_n + 0.1, label_n)
    low_n, high_n = z_n - 0.1 - shift["eval_shift_lower"], z_n + 0.1 + shift["eval_shift_upper"]
    y_n = np.log(label_n / (1 - label_n))[~np.isnan(label_n)]
    inside = [(low_n[~np.isnan(label_n)] <= y_n).mean(), (y_n <= high_n[~np.isnan(label_n)]).mean()]
    assert inside == pytest.approx([0.95, 0.95], abs=0.002) and shift["eval_shift_lower"] > 1


def test_a_bound_near_the_end_holds_the_end():
    numbers = [np.array(x) for x in ([0.005, 0.2, 0.2], [0.5, 0.5, 0.5], [0.6, 0.6, 0.995], [0.0, 0.7, 1.0])]
    table = bounds.coverage(*numbers, np.array([0, 0, 1]), np.array([1, 2, 1]), 0)
    assert table["all"]["coverage"] == pytest.approx(2 / 3) and table["all"]["above"] == pytest.approx(1 / 3)
    assert table["depths"]["2"]["coverage"] == 0 and table["depths"]["1"]["n"] == 2


def pool_of(lower, right, tokens=(None, None), n=8):
    """Two problems of n candidates: each problem's lower bound, the places (by score, best first) of its right ones."""
    problems = []
    for p in range(2):
        scores = [{"low": (lower[p],), "s": (0.9 - 0.1 * i,)} for i in range(n)]
        candidates = tuple(Candidate(("1",), "1", i in right[p], step_scores=x) for i, x in enumerate(scores))
        problems.append(Problem(str(p), f"problem {p}", "1", candidates, policy_tokens=tokens[p]))
    return pool_arrays(problems)


def adaptive(pool):
    score_PN = pool.scores["s"].reshape(2, 8)
    lower_PN = bounds.first_bounds(pool, "low", "probability")
    values, targets = bounds.adaptive_best_of_n(pool, score_PN, lower_PN, [2, 4, 5, 8], 4000, 0)
    return values, targets, np.asarray(rerank.best_of_n(score_PN, pool.right_PN))


def test_pools_too_small_to_choose_n_say_so(capsys):
    """A table without numbers was a traceback, of every verifier with a quantile head too."""
    rules = pool_metrics.Rules("probability", "prod", "share", 5)
    for n, said in ((3, "note        low: pools of 3 are too small to choose N a problem\n"), (8, "")):
        pool = pool_of([0.3, 0.3], [{0, 2}, {1}], n=n)
        results = pool_metrics.pool_results(pool, ["s"], rules, 0, lower_bounds=["low"])
        assert capsys.readouterr().out == said
        assert ("adaptive_by_low" in results["scorers"]["s"]["prod"]) == (n == 8)


def test_equal_bounds_give_all_problems_the_same_n():
    values, _, exact_Pn = adaptive(pool_of([0.3, 0.3], [{0, 5}, {2, 3, 7}]))
    assert list(values) == [4, 5]  # those above the two that choose N, and below all
    for n, value_P in values.items():
        assert value_P == pytest.approx(exact_Pn[:, n - 1], abs=0.03)


def test_a_sure_problem_gives_its_samples_to_the_other():
    values, targets, exact_Pn = adaptive(pool_of([0.999, 0.05], [{0, 5}, {2, 3, 7}]))
    assert values[4] == pytest.approx(
        [exact_Pn[0, 1], exact_Pn[1, 5]], abs=0.03
    )  # 2 and 6 samples, 4 in the mean
    assert 1 - 0.95**5 < targets[4] <= 1 - 0.95**6 + 1e-9
    # Candidates of the second problem cost three times as much: 4 for both cost what 2 and 14 / 3 do.
    costly = pool_of([0.999, 0.05], [{0, 5}, {2, 3, 7}], tokens=(8, 24))
    assert costly.cost_P.tolist() == [1.0, 3.0]
    expected = [exact_Pn[0, 1], (exact_Pn[1, 3] + 2 * exact_Pn[1, 4]) / 3]
    assert adaptive(costly)[0][4] == pytest.approx(expected, abs=0.03)


def test_the_shift_goes_into_the_bias_of_the_bounds_alone():
    model = PRM(dataclasses.replace(TINY, head="quantile"), rngs=nnx.Rngs(0))
    moved = training.with_shifted_bounds(model, {"eval_shift_lower": 0.5, "eval_shift_upper": 0.25})
    np.testing.assert_allclose(moved.b_head[...] - model.b_head[...], [-0.5, 0.0, 0.25], atol=1e-6)
    assert training.with_shifted_bounds(model, {}) is model
