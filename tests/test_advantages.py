"""Advantage estimators: the papers' numbers, the invariances that they promise, and what each does to dense rewards."""

import dataclasses
import inspect
import itertools

import numpy as np
import pytest

from prm_jax.rl import advantages
from prm_jax.rl.advantages import ESTIMATORS, EstimatorConfig, pure


def laid_out(*rewards, tokens=None, outcome=None, group=None):
    """Arguments of an estimator: step rewards of responses, and how many tokens each step has (2)."""
    tokens = tokens or [[2] * len(own) for own in rewards]
    T, L = max(map(len, rewards)), max(sum(own) for own in tokens)
    reward_NT, step_NL = np.zeros((len(rewards), T)), np.zeros((len(rewards), L), int)
    mask_NL = np.zeros((len(rewards), L), bool)
    for i, (own, sizes) in enumerate(zip(rewards, tokens, strict=True)):
        reward_NT[i, : len(own)] = own
        step_NL[i, : sum(sizes)] = np.repeat(np.arange(len(own)), sizes)
        mask_NL[i, : sum(sizes)] = True
    outcome = np.zeros(len(rewards)) if outcome is None else np.array(outcome, float)
    return reward_NT, outcome, step_NL, mask_NL, np.zeros(len(rewards), int) if group is None else np.array(group)


def at_steps(advantage_NL, arguments):
    """The advantage of each response's steps: that of their first tokens; all of a step's tokens have the same."""
    _, _, step_NL, mask_NL, _ = arguments
    found = []
    for own_L, step_L, mask_L in zip(advantage_NL, step_NL, mask_NL, strict=True):
        steps = [own_L[mask_L & (step_L == t)] for t in range(step_L[mask_L].max() + 1)]
        assert all(np.ptp(own) == 0 for own in steps)
        found.append([own[0] for own in steps])
    return found


def test_process_supervision_has_the_numbers_of_the_paper():
    given = laid_out([1, 0], [1, 1])
    assert np.array(at_steps(ESTIMATORS["grpo_process"].f(*given), given)) == pytest.approx(
        np.array([[-1.1547, -1.7321], [1.1547, 0.5774]]), abs=1e-4
    )


def test_min_form_has_the_numbers_of_the_paper():
    reward_NT = np.array([[0.9, 0.2, 0.8]])
    weight_NT = advantages.min_weights(reward_NT, np.ones((1, 3), bool), 0.1)
    assert weight_NT == pytest.approx(np.array([[0.00091, 0.99662, 0.00247]]), abs=1e-5)
    assert advantages.returns(weight_NT * reward_NT) == pytest.approx(np.array([[0.2021, 0.2013, 0.0020]]), abs=1e-4)
    given = laid_out([0.9, 0.2, 0.8])
    assert at_steps(pure(*given), given)[0] == pytest.approx(
        [0.2021, 0.2013, 0.0020], abs=1e-4
    )  # no others: no baseline


def test_leave_one_out_sums_to_zero_over_a_group_and_is_its_formula():
    rng = np.random.default_rng(0)
    x_N, group_N = rng.normal(size=12), np.array([0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2])
    found_N = advantages.leave_one_out(x_N, group_N)
    for group in range(3):
        own = x_N[group_N == group]
        by_hand = [x - np.delete(own, i).mean() for i, x in enumerate(own)]
        assert found_N[group_N == group] == pytest.approx(by_hand) and sum(by_hand) == pytest.approx(0)
    assert advantages.leave_one_out(np.array([3.0]), np.array([7])).tolist() == [0.0]


def test_outcome_estimators_are_their_formulas():
    given = laid_out([0, 0], [0], [0], [0], outcome=[1, 0, 0, 1], group=[0, 0, 1, 1])
    assert ESTIMATORS["grpo"].f(*given)[:, 0].tolist() == [1, -1, -1, 1]
    assert ESTIMATORS["grpo"].f(*given, normalise=False)[:, 0].tolist() == [0.5, -0.5, -0.5, 0.5]
    assert ESTIMATORS["rloo"].f(*given)[:, 0].tolist() == [1, -1, -1, 1]
    assert ESTIMATORS["grpo"].f(*given)[1, 2:].tolist() == [0, 0]  # where the mask is off
    alike = laid_out([0], [0], outcome=[1, 1])
    assert all(
        (estimator.f(*alike) == 0).all() for estimator in ESTIMATORS.values()
    )  # a zero advantage, not rounding over rounding


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_entry_takes_its_options_from_the_configuration(name):
    estimator, given = ESTIMATORS[name], laid_out([0.9, 0.2], [0.3], [0.4, 0.8], outcome=[1, 0, 1])
    assert {*estimator.options} <= {f.name for f in dataclasses.fields(EstimatorConfig)}
    assert {*estimator.options} <= inspect.signature(estimator.f).parameters.keys()
    one, other = EstimatorConfig(name, True, "min", 1.0), EstimatorConfig(name, False, "sum", 0.5)
    np.testing.assert_array_equal(one.estimate(*given), estimator.f(*given))
    varied = {"normalise", "form", "discount"} & {*estimator.options}
    assert (other.estimate(*given) != one.estimate(*given)).any() == bool(varied)


def test_rloo_of_sources_is_its_formula():
    given = laid_out([1, 0, 0], [0.5], outcome=[1, 0])
    # baselines: the other's mean step reward, .5 and 1/3; the outcome: +-1
    expected = [[1 + (0.5 - 0.5 - 0.5), 1 - 1.0, 1 - 0.5], [-1 + 0.5 - 1 / 3]]
    for found, own in zip(at_steps(ESTIMATORS["rloo_sources"].f(*given), given), expected, strict=True):
        assert found == pytest.approx(own)


def test_pav_credits_a_step_with_its_own_advantage_alone():
    given = laid_out([0.25, -0.5], [0, 0.125], outcome=[1, 0])
    assert at_steps(ESTIMATORS["pav"].f(*given), given) == [[1.25, 0.5], [-1, -0.875]]


def test_reinforce_discounts_and_normalises_over_the_batch():
    given = laid_out([1.0, 0.0], [0.0], tokens=[[1, 2], [2]], outcome=[2, 0], group=[0, 1])
    return_n = np.array([1 + 0.25 * 2, 0.5 * 2, 2, 0, 0])
    found = ESTIMATORS["reinforce"].f(*given, discount=0.5)
    assert found[given[3]] == pytest.approx((return_n - return_n.mean()) / return_n.std())


@pytest.mark.parametrize("name", ESTIMATORS)
def test_permuting_step_rewards_changes_the_tokens_of_dense_estimators_alone(name):
    """verl's GRPO sums a response's token rewards before it begins; so do the outcome estimators here, and they say so."""
    one = laid_out([0.9, 0.1, 0.5], [0.3, 0.6, 0.4])
    other = laid_out([0.1, 0.5, 0.9], [0.3, 0.6, 0.4])
    differs = not np.allclose(ESTIMATORS[name].f(*one)[0], ESTIMATORS[name].f(*other)[0])
    assert differs != ESTIMATORS[name].sums_steps


@pytest.mark.parametrize("bad, mean", [(0, 0.6), (-3, -0.6)])
def test_a_baseline_of_each_step_prices_a_step_at_its_mean_reward(bad, mean):
    """The expected gradient of a tabular policy, exactly: that of reward - price x number of steps, over all pairs of responses.

    A step is good with probability .6 and rewarded 1 or `bad`; after the first of at most two the policy stops with probability .4.
    """
    p, q, responses = 0.6, 0.4, []
    for good in [(1,), (0,), *itertools.product((1, 0), repeat=2)]:
        chance = np.prod([p if g else 1 - p for g in good]) * (q if len(good) == 1 else 1 - q)
        score_TK = np.zeros((2, 3))  # d log p of each step: goodness of the first and of the second step, stopping
        for t, g in enumerate(good):
            score_TK[t, t] = g - p
        score_TK[0, 2] = (len(good) == 1) - q
        responses.append(([1 if g else bad for g in good], chance, score_TK))
    gradient = lambda f: sum(chance * f(reward) * score_TK.sum(0) for reward, chance, score_TK in responses)
    of_sum_K, of_steps_K = gradient(sum), gradient(len)
    for name, options, price in (
        ("grpo", {"normalise": False}, 0), ("rloo", {}, 0), ("rloo_sources", {}, mean), ("pure", {"form": "sum"}, mean),
        ("grpo_process", {"normalise": False}, mean),
    ):  # fmt: skip
        found_K = np.zeros(3)
        for pair in itertools.product(responses, repeat=2):
            given = laid_out(*(reward for reward, *_ in pair), tokens=[[1] * len(reward) for reward, *_ in pair])
            advantage_NL = ESTIMATORS[name].f(*given, **options)
            for (_, _, score_TK), own_L in zip(pair, advantage_NL, strict=True):
                found_K += pair[0][1] * pair[1][1] * own_L @ score_TK[: len(own_L)] / 2
        scale, minus_price = np.linalg.lstsq(np.stack([of_sum_K, of_steps_K], 1), found_K)[0]
        assert minus_price / scale == pytest.approx(-price, abs=1e-9 if name != "grpo_process" else 0.05), name


def first_advantages(f, *rewards, tokens, **more):
    given = laid_out(*rewards, tokens=tokens)
    return np.array([own[0] for own in at_steps(f(*given, **more), given)])


def test_joining_two_steps_does_not_change_who_is_better_under_min_form():
    """The same text with other line ends: two steps of 3 tokens become one of 6, as good as the worse of them."""
    rng = np.random.default_rng(1)
    changed = {"min": 0, "sum": 0}
    for _ in range(200):
        rewards = rng.choice([-1.0, -0.5, 0.5, 1.0], size=(4, 4))
        joined = [[min(own[:2]), *own[2:]] for own in rewards[:1].tolist()] + rewards[1:].tolist()
        for form in changed:
            before = first_advantages(pure, *rewards, tokens=[[3] * 4] * 4, form=form)
            after = first_advantages(pure, *joined, tokens=[[6, 3, 3]] + [[3] * 4] * 3, form=form)
            clear = [(i, j) for i, j in itertools.combinations(range(4), 2) if abs(before[i] - before[j]) > 0.1]
            changed[form] += any((before[i] - before[j]) * (after[i] - after[j]) <= 0 for i, j in clear)
    assert changed["min"] == 0 < changed["sum"]


def test_a_restated_right_step_pays_under_the_sum_form_and_not_under_the_min_form():
    other = [0.5, 0.5]
    plain = lambda form: first_advantages(pure, [0.9, 0.8], other, tokens=[[3, 3], [3, 3]], form=form)[0]
    padded = lambda form: first_advantages(pure, [0.9, 0.9, 0.8], other, tokens=[[3, 3, 3], [3, 3]], form=form)[0]
    assert padded("min") < plain("min") and padded("sum") > plain("sum")
    given, more = laid_out([0.9, 0.8], other), laid_out([0.9, 0.9, 0.8], other)
    assert (
        at_steps(ESTIMATORS["grpo_process"].f(*more), more)[0][0]
        > at_steps(ESTIMATORS["grpo_process"].f(*given), given)[0][0]
    )


def test_shared_steps_are_counted_within_their_group():
    prefixes = [("a", "b"), ("a", "c"), ("a", "b", "d"), ("a",)]
    assert advantages.shared_by(prefixes, [0, 0, 0, 1], 3).tolist() == [[3, 2, 1], [3, 1, 1], [3, 2, 1], [1, 1, 1]]


def test_filters_keep_what_they_say():
    group_N = np.repeat([0, 1], 4)
    right_N = np.array([1, 1, 1, 0, 0, 0, 0, 0])
    assert advantages.keep_mixed(right_N, group_N).tolist() == [True] * 4 + [False] * 4
    assert advantages.keep_mixed([0, 0.5, 1, 0.5, 1, 1, 1, 1], group_N).tolist() == [True] * 4 + [False] * 4
    mean_N = np.array([0.9, 0.2, 0.8, 0.5, 0.1, 0.9, 0.3, 0.4])
    kept = advantages.keep_prof(mean_N, right_N, group_N)
    # one right (the best steps) and the only wrong one; of the wrong group the two with the worst steps
    assert kept.tolist() == [True, False, False, True, True, False, True, False]
