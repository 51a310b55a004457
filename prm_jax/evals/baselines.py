"""How well can a step be judged by something that cannot read? Leak checks: a PRM's AUROC must clear these.

Each baseline sees the step's own tokens and its position, never the problem, an earlier step or what follows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np

from prm_jax.metrics import auroc

SMOOTHING_STEPS = 10.0  # pseudo-steps at the base rate: a length seen once in training must not rank first
L2 = 1.0  # against the summed log loss: a unit Gaussian prior on each weight
NEWTON_STEPS = 12
CG_STEPS = 20


@dataclass(frozen=True)
class Steps:
    """Labelled steps, one entry a step: 0-based position in its solution, its own token ids, label >= 0.5."""

    position: Sequence[int]
    token_ids: Sequence[Sequence[int]]
    is_good: Sequence[bool]

    def __post_init__(self):
        if not len(self.position) == len(self.token_ids) == len(self.is_good):
            sizes = len(self.position), len(self.token_ids), len(self.is_good)
            raise ValueError(f"position, token_ids and is_good have lengths {sizes}, expected one length")

    @property
    def length(self) -> np.ndarray:
        """Tokens in each step."""
        return np.array([len(ids) for ids in self.token_ids], int)


def baseline_aurocs(train: Steps, test: Steps) -> dict[str, float]:
    """Test AUROC of `position`, `length`, `bag_of_tokens`; positive = good; nan if a class is missing."""
    if not len(train.is_good):
        raise ValueError("the baselines need at least one training step")
    score = {
        "position": frequency_score(train.position, train.is_good, test.position),
        "length": frequency_score(train.length, train.is_good, test.length),
        "bag_of_tokens": bag_of_tokens_score(train, test),
    }
    return {name: auroc(x, test.is_good) for name, x in score.items()}


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

    Features are the tokens that occur at least twice in training, and a constant. The matrix is never dense,
    so memory grows with the number of tokens and not with steps x vocabulary.
    """
    seen, count = np.unique(_flat(train.token_ids), return_counts=True)
    vocabulary = seen[count >= 2]
    y = np.asarray(train.is_good, np.float64)
    weight = fit_logistic(*_features(train, vocabulary), y, 1 + len(vocabulary))
    start, column, value = _features(test, vocabulary)
    return np.add.reduceat(value * weight[column], start) if len(start) else np.zeros(0)


def _flat(token_ids) -> np.ndarray:
    return np.fromiter(chain.from_iterable(token_ids), np.int64)


def _features(steps: Steps, vocabulary: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sparse rows: (first entry of each row, column and value of each entry); column 0 is the constant."""
    token, n_steps = _flat(steps.token_ids), len(steps.is_good)
    row = np.repeat(np.arange(n_steps), steps.length)
    is_known = np.isin(token, vocabulary)
    width = 1 + len(vocabulary)
    key = row[is_known] * width + 1 + np.searchsorted(vocabulary, token[is_known])
    # The constant's column also keeps every row non-empty, without which np.add.reduceat is wrong.
    key, count = np.unique(np.concatenate([np.arange(n_steps) * width, key]), return_counts=True)
    value = np.where(key % width == 0, 1.0, np.log1p(count))
    return np.searchsorted(key, np.arange(n_steps) * width), key % width, value


def fit_logistic(start, column, value, y: np.ndarray, n_columns: int) -> np.ndarray:
    """Weights minimising summed log loss + L2 / 2 |w|^2 over sparse rows (as _features gives them).

    Newton steps, each solved by conjugate gradients and halved until the objective does not rise.
    """
    row = np.repeat(np.arange(len(y)), np.diff(start, append=len(column)))

    def logits(w):
        return np.add.reduceat(value * w[column], start)

    def transposed(x, power=1):
        return np.bincount(column, weights=value**power * x[row], minlength=n_columns)

    def hessian_times(curvature, v):
        return transposed(curvature * logits(v)) + L2 * v

    def objective(w, z):
        return np.sum(np.logaddexp(0, z) - y * z) + L2 / 2 * w @ w

    w, z = np.zeros(n_columns), np.zeros(len(y))
    for _ in range(NEWTON_STEPS):
        p = (1 + np.tanh(z / 2)) / 2
        gradient, curvature = transposed(p - y) + L2 * w, p * (1 - p)
        if np.abs(gradient).max() < 1e-6 * len(y):  # far below what could change a rank
            break
        diagonal = transposed(curvature, power=2) + L2
        step = _conjugate_gradients(partial(hessian_times, curvature), -gradient, diagonal)
        z_step, before = logits(step), objective(w, z)
        while objective(w + step, z + z_step) > before and np.abs(step).max() > 1e-8:
            step, z_step = step / 2, z_step / 2
        w, z = w + step, z + z_step
    return w


def _conjugate_gradients(product, target: np.ndarray, diagonal: np.ndarray) -> np.ndarray:
    """Approximate x with product(x) = target (positive definite), preconditioned by the diagonal."""
    x, residual = np.zeros_like(target), target
    scaled = direction = residual / diagonal
    norm = first_norm = residual @ scaled
    for _ in range(CG_STEPS):
        if norm <= 1e-6 * first_norm:
            break
        image = product(direction)
        rate = norm / (direction @ image)
        x, residual = x + rate * direction, residual - rate * image
        scaled = residual / diagonal
        norm, old_norm = residual @ scaled, norm
        direction = scaled + norm / old_norm * direction
    return x
