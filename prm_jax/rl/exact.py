"""Prints the expected gradient of every estimator, exactly: over all groups of three responses of a small
policy.

python -m prm_jax.rl.exact    the table of docs/lab.md

The policy writes one, two or three steps, each good or bad; after a step, and before the third, it may draw
the end of sequence in place of the next one. Its five logits decide whether the first step, one after a bad
and one after a good step is good, and whether it ends after a bad and after a good one. The outcome is 1
where the last step is good. A step is two tokens, of which the second is its separator, and then the end or
the next step is drawn.

Dimension key: N responses, T steps, L tokens, K logits.
"""

import itertools
import math
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from prm_jax.rl.advantages import ESTIMATORS, Estimator, form_weights

STEPS, LOGITS = 3, 5
FIRST_IS_GOOD, IS_GOOD, ENDS = 0.6, (0.4, 0.7), (0.3, 0.5)  # the latter two after a bad and after a good step
OPTIONS = {
    "normalise": (True, False),
    "form": ("min", "sum", "mean"),
    "discount": (1.0,),
}  # every value gets a row
OPTIONS["first_step"] = "reward", "group"


class Responses(NamedTuple):
    """All responses that the policy can give."""

    chance_N: np.ndarray
    step_reward_NT: np.ndarray
    outcome_N: np.ndarray
    step_of_token_NL: np.ndarray
    mask_NL: np.ndarray
    score_NLK: np.ndarray  # the gradient of each token's log p

    @property
    def steps_N(self) -> np.ndarray:
        return self.step_of_token_NL.max(1) + 1


class Row(NamedTuple):
    """An estimator's expected gradient g beside the true one, that of E[goal]."""

    cosine: float
    hidden: float  # c of the best g = scale x gradient of E[goal + c x number of steps]
    rest: float  # what is left of g then, as a share of its length
    variance: float  # of a group's gradient, in squared lengths of g's part along the true gradient


def responses(bad: float) -> Responses:
    """The responses; a good step is rewarded 1, a bad one `bad`."""
    rows = []
    for is_good_T in itertools.chain(*(itertools.product((0, 1), repeat=n) for n in range(1, STEPS + 1))):
        T, chance, score_LK = len(is_good_T), 1.0, np.zeros((2 * STEPS + 1, LOGITS))
        for t, good in enumerate(is_good_T):
            k, p = (0, FIRST_IS_GOOD) if t == 0 else (1 + is_good_T[t - 1], IS_GOOD[is_good_T[t - 1]])
            chance *= p if good else 1 - p
            score_LK[2 * t, k] = good - p
            if t + 1 < STEPS:  # the next token is the end or of the next step
                ends, p = t + 1 == T, ENDS[good]
                chance *= p if ends else 1 - p
                score_LK[2 * t + 2, 3 + good] = ends - p
        reward_T = [1.0 if good else bad for good in is_good_T]
        step_L, behind = [*np.repeat(np.arange(T), 2), ~T], STEPS - T
        rows.append((chance, reward_T + [0.0] * behind, is_good_T[-1], step_L + [0, 0] * behind, score_LK))
        rows[-1] += ([True] * (2 * T + 1) + [False, False] * behind,)
    chance_N, step_reward_NT, outcome_N, step_NL, score_NLK, mask_NL = map(np.array, zip(*rows, strict=True))
    return Responses(chance_N, step_reward_NT, outcome_N, step_NL, mask_NL, score_NLK)


def exact(estimator: Estimator, options: dict, r: Responses, goal_N, n: int = 3) -> Row:
    """The mean of the gradients of all groups of n responses, which are one batch here; for an estimator that
    `whitens` the mean of the advantages is that of an infinite one."""
    members_Gn = np.array([*itertools.combinations_with_replacement(range(len(r.chance_N)), n)])
    orders_G = [math.factorial(n) / math.prod(map(math.factorial, np.bincount(own))) for own in members_Gn]
    chance_G = orders_G * r.chance_N[members_Gn].prod(1)
    batch = (x[members_Gn].reshape(-1, *x.shape[1:]) for x in r[1:5])
    advantage_NL = estimator.f(*batch, np.arange(members_Gn.size) // n, **options)
    advantage_GnL = advantage_NL.reshape(*members_Gn.shape, -1)
    learns_GnL = estimator.learns(r.step_of_token_NL, r.mask_NL)[members_Gn]
    if estimator.whitens:
        weight_GnL = chance_G[:, None, None] * learns_GnL
        advantage_GnL = advantage_GnL - (weight_GnL * advantage_GnL).sum() / weight_GnL.sum()
    gradient_GK = np.einsum("gnl,gnlk->gk", advantage_GnL * learns_GnL, r.score_NLK[members_Gn]) / n
    true_K, of_steps_K = (
        np.einsum("n,n,nlk->k", r.chance_N, x_N, r.score_NLK) for x_N in (goal_N, r.steps_N)
    )
    expected_K = chance_G @ gradient_GK
    scale, scaled_hidden = np.linalg.lstsq(np.stack([true_K, of_steps_K], 1), expected_K)[0]
    length, rest_K = np.linalg.norm(expected_K), expected_K - scale * true_K - scaled_hidden * of_steps_K
    along = expected_K @ true_K / np.linalg.norm(true_K)
    variance = chance_G @ (gradient_GK**2).sum(1) - length**2
    return Row(along / length, scaled_hidden / scale, np.linalg.norm(rest_K) / length, variance / along**2)


def table() -> Iterator[tuple[str, Row, Row]]:
    """(name and options, its row where a bad step is rewarded 0, and -3) for all values of all options."""
    for name, estimator in ESTIMATORS.items():
        for values in itertools.product(*(OPTIONS[option] for option in estimator.options)):
            options, rows = dict(zip(estimator.options, values, strict=True)), []
            for bad in (0.0, -3.0):
                r = responses(bad)
                is_step_NT = np.arange(STEPS) < r.steps_N[:, None]
                weight_NT = form_weights(r.step_reward_NT, is_step_NT, options.get("form", "sum"))
                goal_N = (weight_NT * r.step_reward_NT).sum(1) + r.outcome_N
                rows.append(exact(estimator, options, r, goal_N))
            named = (f", {key}={str(x).lower()}" for key, x in options.items() if len(OPTIONS[key]) > 1)
            yield "".join([name, *named]), *rows


def lines(rows) -> Iterator[str]:
    """The table's rows in Markdown."""
    columns = "cosine", "hidden reward a step", "variance"
    yield f"| estimator | {' | '.join(columns)} | {' | '.join(f'{name} (-3)' for name in columns)} |"
    yield "|---" * 7 + "|"
    for name, *both in rows:
        shown = [f"{round(x, 3) + 0.0:.3f}" for row in both for x in (row.cosine, row.hidden, row.variance)]
        yield re.sub(r"\b0\.", ".", f"| {name} | {' | '.join(shown)} |")


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(f"error: {sys.argv[1]}: no such key, prm_jax.rl.exact has none")
    print(*lines(table()), sep="\n")
