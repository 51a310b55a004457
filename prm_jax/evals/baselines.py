"""Leak checks: how well baselines that were never taught to verify judge a step. A PRM's AUROC must clear
these.

Those that cannot read see the step's own tokens and its position, never the problem, an earlier step or what
follows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from scipy import optimize, sparse

from prm_jax.checkpoints.folders import locate
from prm_jax.checkpoints.hf import load_tokenizer
from prm_jax.data.units import probability
from prm_jax.metrics import auroc, labelled_steps, soft_auroc
from prm_jax.scoring import ModelScorer
from prm_jax.solutions import Solution

SMOOTHING_STEPS = 10.0  # pseudo-steps at the base rate: a length seen once in training must not rank first
L2 = 1.0  # against the summed log loss: a unit Gaussian prior on each weight


@dataclass(frozen=True)
class StepTable:
    """Labelled steps, one entry a step."""

    position: Sequence[int]  # in its solution, from 0
    token_ids: Sequence[Sequence[int]]  # its own
    is_good: Sequence[bool]  # label >= 0.5

    @property
    def length(self) -> np.ndarray:
        """Tokens in each step."""
        return np.array([len(ids) for ids in self.token_ids], int)


def step_table(rows: list[Solution], tokenizer, kind: str) -> StepTable:
    steps = [(t, s.steps[t], s.labels[t] >= 0.5) for s in rows for t in labelled_steps(s.labels, kind)[0]]
    texts = list({text for _, text, _ in steps})
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
    ids_of = dict(zip(texts, ids, strict=True))
    return StepTable(
        [t for t, *_ in steps], [ids_of[text] for _, text, _ in steps], [good for *_, good in steps]
    )


def measure_baselines(scorer, kind: str, train: list[Solution], test: list[Solution]) -> dict[str, float]:
    """`baseline_aurocs` of two splits with labels of this kind; length is in the scorer's tokens."""
    tokenizer = scorer.tokenizer if isinstance(scorer, ModelScorer) else load_tokenizer(locate("embedded"))
    return baseline_aurocs(step_table(train, tokenizer, kind), step_table(test, tokenizer, kind))


def baseline_aurocs(train: StepTable, test: StepTable) -> dict[str, float]:
    """Test AUROC of `position`, `length`, `bag_of_tokens`; positive = good. nan if a class is missing; empty
    without a labelled training step."""
    if not len(train.is_good):
        return {}
    scores = {
        "position": frequency_score(train.position, train.is_good, test.position),
        "length": frequency_score(train.length, train.is_good, test.length),
        "bag_of_tokens": bag_of_tokens_score(train, test),
    }
    return {name: auroc(x, test.is_good) for name, x in scores.items()}


def likelihood_auroc(policy, kind: str, test: list[Solution]) -> float:
    """AUROC of each step's log p under its policy, a Scorer: confidence, which is to be beaten."""
    pairs = []
    for s, logit_T in zip(test, policy.score([(s.problem, s.steps) for s in test]), strict=True):
        pairs += [(logit_T[t], s.labels[t]) for t in labelled_steps(s.labels, kind)[0]]
    return soft_auroc(*np.transpose(pairs))


def frequency_score(train_key, is_good, test_key) -> np.ndarray:
    """P(good) of each test step: the share of good training steps with its key, shrunk to the base rate.
    (good_k + s * base) / (n_k + s) with s = SMOOTHING_STEPS; a key not seen in training gets the base
    rate."""
    is_good = np.asarray(is_good, bool)
    size = int(max(np.max(train_key), np.max(test_key, initial=0))) + 1  # keys are small counts, from 0
    n = np.bincount(train_key, minlength=size)
    n_good = np.bincount(train_key, weights=is_good, minlength=size)
    p = (n_good + SMOOTHING_STEPS * is_good.mean()) / (n + SMOOTHING_STEPS)
    return p[np.asarray(test_key, int)]


def bag_of_tokens_score(train: StepTable, test: StepTable) -> np.ndarray:
    """Logit of P(good) of each test step: L2 logistic regression on a constant and log(1 + count) of each of
    the step's own tokens that occurs at least twice in training. The matrix is sparse: its memory grows with
    the tokens alone."""
    seen, count = np.unique(_flat(train.token_ids), return_counts=True)
    vocabulary = seen[count >= 2]
    x = _features(train, vocabulary)
    weight = fit_logistic(x, np.asarray(train.is_good, np.float64), L2, np.zeros(x.shape[1]))
    return _features(test, vocabulary) @ weight


def _flat(token_ids) -> np.ndarray:
    return np.fromiter(chain.from_iterable(token_ids), np.int64)


def _features(steps: StepTable, vocabulary: np.ndarray) -> sparse.csr_array:
    """A sparse row a step: the constant, then log(1 + count) of each token of the vocabulary."""
    token, every = _flat(steps.token_ids), np.arange(len(steps.is_good))
    is_known = np.isin(token, vocabulary)
    row = np.concatenate([every, np.repeat(every, steps.length)[is_known]])
    column = np.concatenate([np.zeros_like(every), 1 + np.searchsorted(vocabulary, token[is_known])])
    shape = len(every), 1 + len(vocabulary)
    x = sparse.coo_array((np.ones(len(row)), (row, column)), shape).tocsr()  # adds repeats
    x.data[x.indices > 0] = np.log1p(x.data[x.indices > 0])
    return x


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
