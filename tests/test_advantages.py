"""Advantage estimators: the papers' numbers, the invariances that they promise, and what each does to dense
rewards."""

import dataclasses
import inspect
import itertools

import numpy as np
import pytest
from conftest import ROOT

from examples import exact
from prm_jax.rl import advantages
from prm_jax.rl.advantages import ESTIMATORS, EstimatorConfig, Responses, pure


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
    group = np.zeros(len(rewards), int) if group is None else np.array(group)
    return Responses(reward_NT, outcome, step_NL, mask_NL, group)


def at_steps(advantage_NL, arguments):
    """The advantage of each response's steps, which all of a step's tokens have."""
    _, _, step_NL, mask_NL, _ = arguments
    found = []
    for own_L, step_L, mask_L in zip(advantage_NL, step_NL, mask_NL, strict=True):
        steps = [own_L[mask_L & (step_L == t)] for t in range(step_L[mask_L].max() + 1)]
        assert all(np.ptp(own) == 0 for own in steps)
        found.append([own[0] for own in steps])
    return found


def test_process_supervision_has_the_numbers_of_the_paper():
    given = laid_out([1, 0], [1, 1])
    assert np.array(at_steps(ESTIMATORS["grpo_process"].f(given), given)) == pytest.approx(
        np.array([[-1.1547, -1.7321], [1.1547, 0.5774]]), abs=1e-4
    )


def test_min_form_has_the_numbers_of_the_paper():
    reward_NT = np.array([[0.9, 0.2, 0.8]])
    weight_NT = advantages.form_weights(reward_NT, np.ones((1, 3), bool), "min")
    assert weight_NT == pytest.approx(np.array([[0.00091, 0.99662, 0.00247]]), abs=1e-5)
    assert advantages.returns(weight_NT * reward_NT) == pytest.approx(
        np.array([[0.2021, 0.2013, 0.0020]]), abs=1e-4
    )
    given = laid_out([0.9, 0.2, 0.8])
    assert at_steps(pure(given), given)[0] == pytest.approx(
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
    assert ESTIMATORS["grpo"].f(given)[:, 0].tolist() == [1, -1, -1, 1]
    assert ESTIMATORS["grpo"].f(given, normalise=False)[:, 0].tolist() == [0.5, -0.5, -0.5, 0.5]
    assert ESTIMATORS["rloo"].f(given)[:, 0].tolist() == [1, -1, -1, 1]
    assert ESTIMATORS["grpo"].f(given)[1, 2:].tolist() == [0, 0]  # where the mask is off
    alike = laid_out([0], [0], outcome=[1, 1])
    assert all(
        (EstimatorConfig(name, True, "min").estimate(alike) == 0).all() for name in ESTIMATORS
    )  # a zero advantage, not rounding over rounding


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_entry_takes_its_options_from_the_configuration(name):
    estimator, given = ESTIMATORS[name], laid_out([0.9, 0.2], [0.3], [0.4, 0.8], outcome=[1, 0, 1])
    assert {*estimator.options} <= {f.name for f in dataclasses.fields(EstimatorConfig)}
    assert {*estimator.options} <= inspect.signature(estimator.f).parameters.keys()
    one, other = EstimatorConfig(name, True, "min"), EstimatorConfig(name, False, "sum")
    plain = estimator.f(given)
    plain = advantages.whitened(plain, given[3]) if estimator.whitens else plain
    np.testing.assert_array_equal(one.estimate(given), plain)
    varied = {"normalise", "form"} & {*estimator.options}
    assert (other.estimate(given) != one.estimate(given)).any() == bool(varied)


def test_rloo_of_sources_is_its_formula():
    given = laid_out([1, 0, 0], [0.5], outcome=[1, 0])
    # baselines: the other's mean step reward, .5 and 1/3; the outcome: +-1
    expected = [[1 + (0.5 - 0.5 - 0.5), 1 - 1.0, 1 - 0.5], [-1 + 0.5 - 1 / 3]]
    for found, own in zip(at_steps(ESTIMATORS["rloo_sources"].f(given), given), expected, strict=True):
        assert found == pytest.approx(own)


def test_pav_credits_a_step_with_its_own_advantage_alone():
    given = laid_out([0.25, -0.5], [0, 0.125], outcome=[1, 0])
    assert at_steps(ESTIMATORS["pav"].f(given), given) == [[1.25, 0.5], [-1, -0.875]]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_permuting_step_rewards_changes_the_tokens_of_dense_estimators_alone(name):
    """verl's GRPO sums a response's token rewards before it begins; so do the outcome estimators here, and
    they say so."""
    one = laid_out([0.9, 0.1, 0.5], [0.3, 0.6, 0.4])
    other = laid_out([0.1, 0.5, 0.9], [0.3, 0.6, 0.4])
    differs = not np.allclose(ESTIMATORS[name].f(one)[0], ESTIMATORS[name].f(other)[0])
    assert differs == (name not in ("grpo", "rloo"))


UNBIASED = {"grpo, normalise=false", "rloo", "rloo_steps", "reinforce"}


def test_expected_gradients_are_the_true_one_or_off_by_what_the_table_says():
    table = [*exact.table()]
    rows = {name: both for name, *both in table}
    assert {name.split(",")[0] for name in rows} == {*ESTIMATORS}
    off = lambda row: max(1 - row.cosine, abs(row.hidden), row.rest)
    assert {name for name, both in rows.items() if max(map(off, both)) < 1e-9} == UNBIASED
    assert all(max(map(off, both)) > 0.01 for name, both in rows.items() if name not in UNBIASED)
    # exactly a price of each step, minus its mean reward, whose sign is the rewards'
    for k, bad in enumerate((0, -3)):
        r = exact.responses(bad)
        mean = r.chance_N @ (r.step_reward_NT.sum(1) / r.steps_N)
        assert rows["rloo_sources"][k].hidden == pytest.approx(-mean) and rows["rloo_sources"][k].rest < 1e-9
        summed = rows["pure, form=sum"][k]
        assert np.sign(summed.hidden) == -np.sign(mean) and summed.rest < 1e-9
    assert rows["rloo_steps"][0].variance < 0.7 * rows["rloo"][0].variance
    page = (ROOT / "docs" / "lab.md").read_text()
    assert "\n".join(exact.lines(table)) in page, "docs/lab.md: its table is python -m examples.exact"


def test_rloo_of_steps_is_unbiased_because_the_end_has_the_baseline_of_the_step_that_it_forgoes():
    for bad, biased in ((0, 0.963), (-3, 0.954)):
        r = exact.responses(bad)
        row = lambda r, n: exact.exact(
            ESTIMATORS["rloo_steps"], {}, r, r.step_reward_NT.sum(1) + r.outcome_N, n
        )
        for n in (2, 3, 4):
            assert row(r, n).cosine == pytest.approx(1, abs=1e-9) and row(r, n).rest < 1e-9
        of_the_last_step = np.where(r.step_of_token_NL < 0, ~r.step_of_token_NL - 1, r.step_of_token_NL)
        assert row(r._replace(step_of_token_NL=of_the_last_step), 3).cosine == pytest.approx(biased, abs=5e-4)


def test_the_exact_policys_gradient_is_its_finite_difference(monkeypatch):
    r = exact.responses(0.5)
    places = [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1)]  # of the logits in the three constants
    slopes = []
    for which, i in places:
        chances = []
        for h in (1e-4, -1e-4):
            law = [[exact.FIRST_IS_GOOD], [*exact.IS_GOOD], [*exact.ENDS]]
            law[which][i] = 1 / (1 + np.exp(-h) * (1 / law[which][i] - 1))
            with monkeypatch.context() as patch:
                for name, values in zip(
                    ("FIRST_IS_GOOD", "IS_GOOD", "ENDS"), (law[0][0], *law[1:]), strict=True
                ):
                    patch.setattr(exact, name, values)
                chances.append(exact.responses(0.5).chance_N)
        slopes.append((chances[0] - chances[1]) / 2e-4)
    assert r.chance_N.sum() == pytest.approx(1) and len(r.chance_N) == 14
    assert (r.chance_N[:, None] * r.score_NLK.sum(1)).T == pytest.approx(np.array(slopes), abs=1e-8)


def test_rloo_of_steps_is_its_formula():
    given = laid_out([1.0, 2.0], [4.0], [0.5, 0.25, 8.0], outcome=[1, 0, 0])
    given[2][1, 2:4], given[3][1, 2:4] = ~1, True  # the second response's end, of no step
    found = ESTIMATORS["rloo_steps"].f(given)
    outcome = [1, -0.5, -0.5]
    returns = [[3, 2, 0], [4, 0, 0], [8.75, 8.25, 8]]
    for i, t, l in [(0, 0, 0), (0, 1, 2), (1, 0, 0), (1, 1, 2), (2, 0, 0), (2, 1, 2), (2, 2, 4)]:
        others = [own[t] for j, own in enumerate(returns) if j != i]
        assert found[i, l] == pytest.approx(returns[i][t] - sum(others) / 2 + outcome[i])


def first_advantages(f, *rewards, tokens, **more):
    given = laid_out(*rewards, tokens=tokens)
    return np.array([own[0] for own in at_steps(f(given, **more), given)])


def test_joining_two_steps_does_not_change_who_is_better_under_min_form():
    """With other line ends two steps of 3 tokens become one of 6, as good as the worse of them."""
    rng = np.random.default_rng(1)
    changed = {"min": 0, "sum": 0}
    for _ in range(200):
        rewards = rng.choice([-1.0, -0.5, 0.5, 1.0], size=(4, 4))
        joined = [[min(own[:2]), *own[2:]] for own in rewards[:1].tolist()] + rewards[1:].tolist()
        for form in changed:
            before = first_advantages(pure, *rewards, tokens=[[3] * 4] * 4, form=form)
            after = first_advantages(pure, *joined, tokens=[[6, 3, 3]] + [[3] * 4] * 3, form=form)
            clear = [
                (i, j) for i, j in itertools.combinations(range(4), 2) if abs(before[i] - before[j]) > 0.1
            ]
            changed[form] += any((before[i] - before[j]) * (after[i] - after[j]) <= 0 for i, j in clear)
    assert changed["min"] == 0 < changed["sum"]


def test_a_restated_right_step_pays_under_the_sum_form_and_not_under_the_min_form():
    other = [0.5, 0.5]
    plain = lambda form: first_advantages(pure, [0.9, 0.8], other, tokens=[[3, 3], [3, 3]], form=form)[0]
    padded = lambda form: first_advantages(
        pure, [0.9, 0.9, 0.8], other, tokens=[[3, 3, 3], [3, 3]], form=form
    )[0]
    assert padded("min") < plain("min") and padded("sum") > plain("sum")
    given, more = laid_out([0.9, 0.8], other), laid_out([0.9, 0.9, 0.8], other)
    first = [at_steps(ESTIMATORS["grpo_process"].f(x), x)[0][0] for x in (more, given)]
    assert first[0] > first[1]
