"""A script that prints the expected gradient of every advantage estimator, exactly: over all groups of
three responses of a small policy.

    python -m examples.exact                 # the table of docs/lab.md, in a second

The policy writes one, two or three steps, each good or bad, and may end after the first and the second. Its
five logits decide whether the first step, one after a bad and one after a good step is good, and whether it
ends after a bad and after a good one. The outcome is 1 where the last step is good. A step is two tokens, of
which the second is its separator.

Dimension key: N responses, T steps, L tokens, K logits, G groups of n responses."""

import itertools
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from prm_jax.rl.advantages import ESTIMATORS, Estimator, Responses, form_weights

STEPS, LOGITS = 3, 5
FIRST_IS_GOOD, IS_GOOD, ENDS = 0.6, (0.4, 0.7), (0.3, 0.5)  # the latter two after a bad and after a good step
OPTIONS = {"normalise": (True, False), "form": ("min", "sum")}  # of the estimators; every value gets a row


class Policy(NamedTuple):
    """All responses that the policy can give."""

    chance_N: np.ndarray
    step_reward_NT: np.ndarray
    outcome_N: np.ndarray
    step_of_token_NL: np.ndarray
    mask_NL: np.ndarray
    score_NLK: np.ndarray  # the gradient of each token's log p
    steps_N: np.ndarray  # number of steps


class Row(NamedTuple):
    """An estimator's expected gradient g beside the true one, that of E[goal]."""

    cosine: float
    hidden: float  # c of the best g = scale x gradient of E[goal + c x number of steps]
    rest: float  # what is left of g then, as a share of its length
    variance: float  # of a group's gradient, in squared lengths of g's part along the true gradient


def responses(bad: float) -> Policy:
    """The responses; a good step is rewarded 1, a bad one `bad`."""
    every = [is_good_T for n in range(1, STEPS + 1) for is_good_T in itertools.product((0, 1), repeat=n)]
    N, L = len(every), 2 * STEPS + 1
    chance_N = np.ones(N)
    outcome_N = np.array([is_good_T[-1] for is_good_T in every])
    step_reward_NT = np.zeros((N, STEPS))
    score_NLK = np.zeros((N, L, LOGITS))
    step_of_token_NL = np.zeros((N, L), int)
    mask_NL = np.zeros((N, L), bool)
    for i, is_good_T in enumerate(every):
        T = len(is_good_T)
        step_reward_NT[i, :T] = np.where(is_good_T, 1.0, bad)
        step_of_token_NL[i, : 2 * T + 1] = [*np.repeat(np.arange(T), 2), ~T]
        mask_NL[i, : 2 * T + 1] = True
        for t, good in enumerate(is_good_T):
            k, p = (0, FIRST_IS_GOOD) if t == 0 else (1 + is_good_T[t - 1], IS_GOOD[is_good_T[t - 1]])
            chance_N[i] *= p if good else 1 - p
            score_NLK[i, 2 * t, k] = good - p
            if t + 1 < STEPS:  # the next token is the end or of the next step
                ends, p = t + 1 == T, ENDS[good]
                chance_N[i] *= p if ends else 1 - p
                score_NLK[i, 2 * t + 2, 3 + good] = ends - p
    steps_N = step_of_token_NL.max(1) + 1
    return Policy(chance_N, step_reward_NT, outcome_N, step_of_token_NL, mask_NL, score_NLK, steps_N)


def exact(estimator: Estimator, options: dict, r: Policy, goal_N, n: int = 3) -> Row:
    """The mean of the gradients of all groups of n responses, which are one batch here; for an estimator that
    `whitens` the mean of the advantages is that of an infinite one."""
    members_Gn = np.array([*itertools.combinations_with_replacement(range(len(r.chance_N)), n)])
    orders_G = [math.factorial(n) / math.prod(map(math.factorial, np.bincount(own))) for own in members_Gn]
    chance_G = orders_G * r.chance_N[members_Gn].prod(1)
    drawn_n = members_Gn.ravel()
    given = [x[drawn_n] for x in (r.step_reward_NT, r.outcome_N, r.step_of_token_NL, r.mask_NL)]
    batch = Responses(*given, group_N=np.arange(drawn_n.size) // n)
    advantage_GnL = estimator.f(batch, **options).reshape(*members_Gn.shape, -1)
    mask_GnL = r.mask_NL[members_Gn]
    if estimator.whitens:
        weight_GnL = chance_G[:, None, None] * mask_GnL
        advantage_GnL = advantage_GnL - (weight_GnL * advantage_GnL).sum() / weight_GnL.sum()
    gradient_GK = np.einsum("gnl,gnlk->gk", advantage_GnL * mask_GnL, r.score_NLK[members_Gn]) / n
    expected_K = chance_G @ gradient_GK
    true_K = np.einsum("n,n,nlk->k", r.chance_N, goal_N, r.score_NLK)
    of_steps_K = np.einsum("n,n,nlk->k", r.chance_N, r.steps_N, r.score_NLK)
    scale, scaled_hidden = np.linalg.lstsq(np.stack([true_K, of_steps_K], 1), expected_K)[0]
    rest_K = expected_K - scale * true_K - scaled_hidden * of_steps_K
    length = np.linalg.norm(expected_K)
    along = expected_K @ true_K / np.linalg.norm(true_K)
    variance = chance_G @ (gradient_GK**2).sum(1) - length**2
    return Row(along / length, scaled_hidden / scale, np.linalg.norm(rest_K) / length, variance / along**2)


def table() -> Iterator[tuple[str, Row, Row]]:
    """(name and options, its row where a bad step is rewarded 0, and -3) for all values of all options."""
    for name, estimator in ESTIMATORS.items():
        for values in itertools.product(*(OPTIONS[option] for option in estimator.options)):
            options = dict(zip(estimator.options, values, strict=True))
            rows = []
            for bad in (0.0, -3.0):
                r = responses(bad)
                is_step_NT = np.arange(STEPS) < r.steps_N[:, None]
                weight_NT = form_weights(r.step_reward_NT, is_step_NT, options.get("form", "sum"))
                goal_N = (weight_NT * r.step_reward_NT).sum(1) + r.outcome_N
                rows.append(exact(estimator, options, r, goal_N))
            named = (f", {key}={str(x).lower()}" for key, x in options.items())
            yield "".join([name, *named]), *rows


def lines(rows) -> Iterator[str]:
    """The table's rows in Markdown."""
    columns = "cosine", "hidden reward a step", "variance", "cosine (-3)", "hidden reward a step (-3)"
    yield f"| estimator | {' | '.join(columns)} |"
    yield "|---" * 6 + "|"
    for name, row, harsh in rows:
        numbers = row.cosine, row.hidden, row.variance, harsh.cosine, harsh.hidden
        shown = [f"{round(x, 3) + 0.0:.3f}" for x in numbers]
        yield re.sub(r"\b0\.", ".", f"| {name} | {' | '.join(shown)} |")


if __name__ == "__main__":
    print(*lines(table()), sep="\n")
