"""Leak checks: how well baselines that were never taught to verify judge a step. A PRM's AUROC must clear
these.

Those that cannot read see the step's own tokens and its position, never the problem, an earlier step or what
follows.
"""

from itertools import chain
from typing import NamedTuple

import numpy as np
from scipy import optimize, sparse

from prm_jax.checkpoints.folders import locate
from prm_jax.checkpoints.tokenizer import load_tokenizer
from prm_jax.data.units import probability
from prm_jax.metrics import auroc, labelled_steps
from prm_jax.scoring import ModelScorer
from prm_jax.solutions import Solution

SMOOTHING_STEPS = 10.0  # pseudo-steps at the base rate: a length seen once in training must not rank first
L2 = 1.0  # against the summed log loss: a unit Gaussian prior on each weight


class StepTable(NamedTuple):
    """Labelled steps, one entry a step."""

    position: np.ndarray  # in its solution, from 0
    token_ids: list[list[int]]  # its own
    is_good: np.ndarray  # label >= 0.5


def measure_baselines(scorer, kind: str, train: list[Solution], test: list[Solution]) -> dict[str, float]:
    """`baseline_aurocs` of two splits with labels of this kind; length is in the scorer's tokens."""
    tokenizer = scorer.tokenizer if isinstance(scorer, ModelScorer) else load_tokenizer(locate("embedded"))

    def table(rows: list[Solution]) -> StepTable:
        steps = [(t, s.steps[t], s.labels[t] >= 0.5) for s in rows for t in labelled_steps(s.labels, kind)[0]]
        position, texts, is_good = zip(*steps) if steps else ((), (), ())
        token_ids = tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []
        return StepTable(np.array(position, int), token_ids, np.array(is_good, bool))

    return baseline_aurocs(table(train), table(test))


def baseline_aurocs(train: StepTable, test: StepTable) -> dict[str, float]:
    """Test AUROC of `position`, `length`, `bag_of_tokens`; positive = good. nan if a class is missing; empty
    without a labelled training step."""
    if not len(train.is_good):
        return {}
    lengths = [np.array([len(ids) for ids in table.token_ids], int) for table in (train, test)]
    scores = {
        "position": frequency_score(train.position, train.is_good, test.position),
        "length": frequency_score(lengths[0], train.is_good, lengths[1]),
        "bag_of_tokens": bag_of_tokens_score(train, test),
    }
    return {name: auroc(x, test.is_good) for name, x in scores.items()}


def likelihood_auroc(policy, kind: str, test: list[Solution]) -> float:
    """AUROC of each step's log p under its policy, a Scorer: confidence, which is to be beaten."""
    pairs = []
    for s, logit_T in zip(test, policy.score([(s.problem, s.steps) for s in test]), strict=True):
        pairs += [(logit_T[t], s.labels[t]) for t in labelled_steps(s.labels, kind)[0]]
    return auroc(*np.transpose(pairs))


def frequency_score(train_key, is_good, test_key) -> np.ndarray:
    """P(good) of each test step: the share of good training steps with its key, shrunk to the base rate.
    (good_k + s * base) / (n_k + s) with s = SMOOTHING_STEPS; a key not seen in training gets the base
    rate."""
    size = int(max(np.max(train_key), np.max(test_key, initial=0))) + 1  # keys are small counts, from 0
    n = np.bincount(train_key, minlength=size)
    n_good = np.bincount(train_key, weights=is_good, minlength=size)
    return ((n_good + SMOOTHING_STEPS * is_good.mean()) / (n + SMOOTHING_STEPS))[test_key]


def bag_of_tokens_score(train: StepTable, test: StepTable) -> np.ndarray:
    """Logit of P(good) of each test step: L2 logistic regression on a constant and log(1 + count) of each of
    the step's own tokens that occurs at least twice in training."""
    seen, count = np.unique(list(chain.from_iterable(train.token_ids)), return_counts=True)
    vocabulary = seen[count >= 2]
    x = token_features(train.token_ids, vocabulary)
    weight = fit_logistic(x, train.is_good.astype(float), L2, np.zeros(x.shape[1]))
    return token_features(test.token_ids, vocabulary) @ weight


def token_features(token_ids: list[list[int]], vocabulary: np.ndarray) -> sparse.csr_array:
    """A sparse row a step: the constant, then log(1 + count) of each token of the vocabulary."""
    token = np.array(list(chain.from_iterable(token_ids)), int)
    row = np.repeat(np.arange(len(token_ids)), list(map(len, token_ids)))
    is_known = np.isin(token, vocabulary)
    places = row[is_known], np.searchsorted(vocabulary, token[is_known])
    count = sparse.coo_array((np.ones(is_known.sum()), places), (len(token_ids), len(vocabulary))).tocsr()
    constant = sparse.csr_array(np.ones((len(token_ids), 1)))
    return sparse.hstack([constant, count.log1p()], format="csr")


def fit_logistic(x: sparse.csr_array | np.ndarray, y: np.ndarray, l2: float, start: np.ndarray) -> np.ndarray:
    """Weights minimising summed log loss + l2 / 2 |w - start|^2 over the rows of x, from `start`."""

    def loss(w):
        return np.logaddexp(0, x @ w).sum() - y @ (x @ w) + l2 / 2 * ((w - start) ** 2).sum()

    def gradient(w):
        return x.T @ (probability(x @ w) - y) + l2 * (w - start)

    def curvature(w, direction):
        q = probability(x @ w)
        return x.T @ (q * (1 - q) * (x @ direction)) + l2 * direction

    method = {"jac": gradient, "hessp": curvature, "method": "Newton-CG", "options": {"xtol": 1e-6}}
    return optimize.minimize(loss, start, **method).x
