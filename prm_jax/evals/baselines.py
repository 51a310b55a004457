"""Leak checks: how well baselines that cannot read judge a step. A PRM's AUROC must clear these.

Each baseline sees the step's own tokens and its position, never the problem, an earlier step or what follows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import jax
import jax.numpy as jnp
import numpy as np
import optax

from prm_jax.metrics import auroc

SMOOTHING_STEPS = 10.0  # pseudo-steps at the base rate: a length seen once in training must not rank first
L2 = 1.0  # against the summed log loss: a unit Gaussian prior on each weight
LBFGS_STEPS = 200


@dataclass(frozen=True)
class Steps:
    """Labelled steps, one entry a step."""

    position: Sequence[int]  # in its solution, from 0
    token_ids: Sequence[Sequence[int]]  # its own
    is_good: Sequence[bool]  # label >= 0.5

    @property
    def length(self) -> np.ndarray:
        """Tokens in each step."""
        return np.array([len(ids) for ids in self.token_ids], int)


def baseline_aurocs(train: Steps, test: Steps) -> dict[str, float]:
    """Test AUROC of `position`, `length`, `bag_of_tokens`; positive = good; nan if a class is missing."""
    if not len(train.is_good):
        raise ValueError("the baselines need at least one training step")
    position = frequency_score(train.position, train.is_good, test.position)
    length = frequency_score(train.length, train.is_good, test.length)
    scores = {"position": position, "length": length, "bag_of_tokens": bag_of_tokens_score(train, test)}
    return {name: auroc(x, test.is_good) for name, x in scores.items()}


def frequency_score(train_key, is_good, test_key) -> np.ndarray:
    """P(good) of each test step: the share of good training steps with its key, shrunk to the base rate.

    (good_k + s * base) / (n_k + s) with s = SMOOTHING_STEPS; a key not seen in training gets the base rate.
    """
    is_good = np.asarray(is_good, bool)
    size = int(max(np.max(train_key), np.max(test_key, initial=0))) + 1  # keys are small counts, from 0
    n = np.bincount(train_key, minlength=size)
    n_good = np.bincount(train_key, weights=is_good, minlength=size)
    p = (n_good + SMOOTHING_STEPS * is_good.mean()) / (n + SMOOTHING_STEPS)
    return p[np.asarray(test_key, int)]


def bag_of_tokens_score(train: Steps, test: Steps) -> np.ndarray:
    """Logit of P(good) of each test step: L2 logistic regression on log(1 + count) of the step's own tokens.

    Features are the tokens that occur at least twice in training, and a constant. The matrix is sparse, so memory
    grows with the number of tokens and not with steps x vocabulary.
    """
    seen, count = np.unique(_flat(train.token_ids), return_counts=True)
    vocabulary = seen[count >= 2]
    y = np.asarray(train.is_good, np.float64)
    weight = np.asarray(fit_logistic(*_features(train, vocabulary), y, 1 + len(vocabulary)), np.float64)
    start, column, value = _features(test, vocabulary)
    return np.add.reduceat(value * weight[column], start) if len(start) else np.zeros(0)


def _flat(token_ids) -> np.ndarray:
    return np.fromiter(chain.from_iterable(token_ids), np.int64)


def _features(steps: Steps, vocabulary: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sparse rows: (first entry of each row, column and value of each entry); column 0 is the constant."""
    token, width = _flat(steps.token_ids), 1 + len(vocabulary)
    first = np.arange(len(steps.is_good)) * width  # the constant keeps every row non-empty: np.add.reduceat needs that
    is_known = np.isin(token, vocabulary)
    key = np.repeat(first, steps.length)[is_known] + 1 + np.searchsorted(vocabulary, token[is_known])
    key, count = np.unique(np.concatenate([first, key]), return_counts=True)
    value = np.where(key % width == 0, 1.0, np.log1p(count))
    return np.searchsorted(key, first), key % width, value


@partial(jax.jit, static_argnames="n_columns")
def fit_logistic(start, column, value, y, n_columns: int):
    """Weights, float32, minimising summed log loss + L2 / 2 |w|^2 over sparse rows (as _features gives them)."""
    value, y = jnp.asarray(value, jnp.float32), jnp.asarray(y, jnp.float32)
    row = jnp.searchsorted(start, jnp.arange(len(column)), side="right") - 1

    def loss(w):  # a mean: a sum of many would lose the small differences in float32
        logit = jax.ops.segment_sum(value * w[column], row, len(y), indices_are_sorted=True)
        return jnp.mean(jax.nn.softplus(logit) - y * logit) + L2 / 2 / len(y) * w @ w

    solver, value_and_grad = optax.lbfgs(), optax.value_and_grad_from_state(loss)

    def step(carry):
        n, w, state = carry
        loss_now, gradient = value_and_grad(w, state=state)
        change, state = solver.update(gradient, state, w, value=loss_now, grad=gradient, value_fn=loss)
        return n + 1, w + change, state

    def is_open(carry):
        n, _, state = carry
        gradient = optax.tree.get(state, "grad")
        return (n == 0) | ((n < LBFGS_STEPS) & (jnp.abs(gradient).max() > 1e-6))  # far below what could change a rank

    w = jnp.zeros(n_columns, jnp.float32)
    return jax.lax.while_loop(is_open, step, (0, w, solver.init(w)))[1]
