"""metrics.py by hand and against brute force; each baseline finds its own leak."""

import json

import numpy as np
import pytest

from prm_jax import metrics
from prm_jax.evals.baselines import rule_scores, step_auroc
from prm_jax.solutions import Solution, first_error

NAN = float("nan")


@pytest.mark.parametrize(
    "score, is_positive, expected",
    [
        ([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], 0.75),
        ([1, 2, 3, 4], [0, 0, 1, 1], 1.0),
        ([0.5, 0.5, 0.5], [1, 0, 0], 0.5),
        ([0.5, 0.5, 0.7], [0, 1, 1], 0.75),
        ([-np.inf, np.inf, -np.inf], [0, 1, 1], 0.75),
        ([0.2, 0.3], [1, 1], NAN),
        ([], [], NAN),
    ],
)
def test_auroc_by_hand(score, is_positive, expected):
    assert metrics.auroc(score, is_positive) == pytest.approx(expected, nan_ok=True)


def test_auroc_of_chances_is_that_over_the_outcomes_that_chances_stand_for(rng):
    score = rng.integers(0, 5, 40) / 4  # ties
    p = rng.integers(0, 5, 40) / 4
    ones = (4 * p).astype(int)
    is_right_n4 = np.arange(4) < ones[:, None]  # 4 outcomes each
    expected = metrics.auroc(np.repeat(score, 4), is_right_n4.ravel())
    assert metrics.auroc(score, p) == pytest.approx(expected)
    assert metrics.auroc([0.2, 0.8], [0.25, 0.75]) == 0.75
    assert np.isnan(metrics.auroc([0.2, 0.8], [1.0, 1.0]))


def test_reliability_and_ece_by_hand():
    p, y = [0.0, 0.2, 0.5, 0.6, 1.0], [0, 1, 1, 0.5, 1]
    mean_p, mean_y, count = metrics.reliability(p, y, bins=4)
    np.testing.assert_array_equal(count, [2, 0, 2, 1])  # 0.5 opens the third bin, 1.0 closes the last
    np.testing.assert_allclose(mean_p, [0.1, NAN, 0.55, 1.0])
    np.testing.assert_allclose(mean_y, [0.5, NAN, 0.75, 1.0])
    assert metrics.ece(p, y, bins=4) == pytest.approx((2 * 0.4 + 2 * 0.2 + 0) / 5)
    assert np.isnan(metrics.ece([], []))


@pytest.mark.parametrize(
    "predicted, label, accuracy_error, accuracy_clean, f1",
    [
        ([0, 2, -1, -1, 1], [0, 1, 3, -1, -1], 1 / 3, 1 / 2, 0.4),
        ([-1, -1, -1], [2, 0, -1], 0.0, 1.0, 0.0),  # everything is called clean
        ([1, 1, 1], [0, 2, -1], 0.0, 0.0, 0.0),  # all wrong: 0/0
        ([2, 0, 5], [2, 0, -1], 1.0, 0.0, 0.0),  # an accuracy of zero
        ([2, 1], [2, 0], 0.5, NAN, NAN),  # no clean solution in the split
        ([-1, 1], [-1, -1], NAN, 0.5, NAN),
        ([], [], NAN, NAN, NAN),
    ],
)
def test_first_error_f1_of_processbench(predicted, label, accuracy_error, accuracy_clean, f1):
    """Acceptance check E17."""
    expected = {"accuracy_error": accuracy_error, "accuracy_clean": accuracy_clean, "f1": f1}
    assert metrics.first_error_f1(predicted, label) == pytest.approx(expected, nan_ok=True)


def test_within_problem_auroc_by_hand():
    # a: 1 of 1 pairs. b: one unsound solution at .5 against sound ones at .9, .5, .1. c: not mixed.
    problem_ids = ["b", "a", "c", "b", "b", "b", "c", "a"]
    score = [0.9, 0.2, 0.7, 0.5, 0.5, 0.1, 0.3, 0.1]
    is_sound = [1, 1, 0, 0, 1, 1, 0, 0]
    assert metrics.within_problem_auroc(score, is_sound, problem_ids) == pytest.approx((1 + 0.5) / 2)


def test_labelled_steps_masks_none_and_stops_at_the_first_error():
    assert metrics.labelled_steps([1, None, 0.2, 0, 1]) == [0, 2] and first_error([1, None, 0.2, 0, 1]) == 2
    assert metrics.labelled_steps([True, 0.5, None]) == [0, 1] and first_error([True, 0.5, None]) == -1
    assert metrics.labelled_steps([None, None]) == [] and first_error([None, None]) == -1
    assert metrics.labelled_steps(None) == []
    # Values know no first error.
    assert metrics.labelled_steps([0.4, None, 0.7], "value") == [0, 2]
    result = metrics.step_metrics([[0.3, 0.5, 0.8]], [[0.4, None, 0.7]], ["a"], label_kind="value")
    assert result["n_steps"] == 2 and result["brier"] == pytest.approx(0.01)
    assert all(np.isnan(result[name]) for name in ("first_error_accuracy", "within_problem_auroc"))


SCORES = [
    [0.9, 0.4, 0.3],  # first error found; the last step is after it
    [0.8, 0.95],  # first error missed, in the tail
    [0.7, 0.6, 0.2],  # sound as far as labelled; the alarm is at an unlabelled step
    [0.99],  # sound
    [0.1, 0.1],  # no labels
]
LABELS = [[1, 0, 1], [1, 0.25], [1, 0.75, None], [1], [None, None]]
PROBLEMS = ["a", "a", "a", "b", "b"]


def test_step_metrics_by_hand():
    result = metrics.step_metrics(SCORES, LABELS, PROBLEMS)
    # Population: good .9 .8 .7 .6 .99, bad .4 .95.
    expected = {
        "step_auroc": 6 / 10,
        "step_accuracy": 6 / 7,
        "bad_step_f1": 2 / 3,
        "base_rate_bad": 2 / 7,
        "tail_miss_rate": 0.5,
        "brier": (0.1**2 + 0.4**2 + 0.2**2 + 0.7**2 + 0.3**2 + 0.15**2 + 0.01**2) / 7,
        # 15 bins: .9 (13), .4 (6), .8 (12), .95 and .99 (14), .7 (10), .6 (9)
        "ece": (0.1 + 0.4 + 0.2 + abs(1.94 - 1.25) + 0.3 + 0.15) / 7,
        "first_error_accuracy": 2 / 4,
        "first_error_accuracy_error": 1 / 2,
        "first_error_accuracy_clean": 1 / 2,
        "first_error_f1": 0.5,
        "within_problem_auroc": 0.0,  # problem a: lowest scores .3, .8 unsound, .2 sound
        "n_steps": 7,
        "n_solutions": 4,
    }
    assert result == pytest.approx(expected)
    json.dumps(result)  # plain Python numbers only


def test_step_metrics_read_no_score_after_the_first_error_in_step_numbers():
    changed = [list(score) for score in SCORES]
    changed[0][2] = 0.99
    before = metrics.step_metrics(SCORES, LABELS, PROBLEMS)
    after = metrics.step_metrics(changed, LABELS, PROBLEMS)
    for name in ("step_auroc", "step_accuracy", "bad_step_f1", "brier", "ece", "tail_miss_rate", "n_steps"):
        assert before[name] == after[name]
    relabelled = [[1, 0, 0], *LABELS[1:]]  # how the steps after the first error are labelled is a convention
    np.testing.assert_equal(metrics.step_metrics(SCORES, relabelled, PROBLEMS), before)


def test_step_metrics_at_one_half_and_the_lowest_step():
    tie = metrics.step_metrics([[0.5, 0.4]], [[0.5, 0]], ["a"])  # label .5 is good, score .5 predicts good
    assert (tie["step_accuracy"], tie["base_rate_bad"], tie["first_error_accuracy"]) == (1.0, 0.5, 1.0)
    sagging, flat = [0.9, 0.1, 0.8], [0.6, 0.6, 0.6]  # ranked by the minimum: not the last, not the mean
    assert metrics.step_metrics([sagging, flat], [[1, 0, 0], [1, 1, 1]], "aa")["within_problem_auroc"] == 1.0
    with pytest.raises(ValueError, match="solution 1"):
        metrics.step_metrics([[0.5], [NAN]], [[1], [1]], ["a", "a"])


def test_rules_that_are_fitted_to_nothing():
    solutions = [Solution("p", ("aa", "b", "ccc", "d"), (1.0, 1.0, 0.0, 1.0)), Solution("q", ("a",), (None,))]
    found = {name: step_auroc(score, solutions) for name, score in rule_scores(solutions).items()}
    assert found == {"position": 1.0, "length": 1.0}  # the step behind the first wrong one does not count
    assert np.isnan(step_auroc([np.zeros(1)], solutions[1:]))
