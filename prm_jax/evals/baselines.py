"""How well what was never taught to verify judges a step: position and length, which see neither the problem
nor what a step says, and the policy's likelihood. A verifier is worth its cost above these alone."""

from typing import NamedTuple

import numpy as np

from prm_jax.checkpoints.folders import locate
from prm_jax.checkpoints.tokenizer import load_tokenizer
from prm_jax.metrics import auroc, labelled_steps
from prm_jax.scoring import ModelScorer
from prm_jax.solutions import Solution

SMOOTHING_STEPS = 10.0  # pseudo-steps at the base rate: a length seen once in training must not rank first


class StepTable(NamedTuple):
    """Labelled steps, one entry a step."""

    position: np.ndarray  # in its solution, from 0
    length: np.ndarray  # in tokens
    is_good: np.ndarray  # label >= 0.5


def measure_baselines(scorer, kind: str, train: list[Solution], test: list[Solution]) -> dict[str, float]:
    """Test AUROC of `position` and `length` in the scorer's tokens, fitted on the training split; by
    `rule_scores` where that has no labelled step."""
    tokenizer = scorer.tokenizer if isinstance(scorer, ModelScorer) else load_tokenizer(locate("embedded"))

    def table(rows: list[Solution]) -> StepTable:
        steps = [(s, t) for s in rows for t in labelled_steps(s.labels, kind)[0]]
        texts = [s.steps[t] for s, t in steps]
        token_ids = tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
        return StepTable(
            position=np.array([t for _, t in steps], int),
            length=np.array([len(ids) for ids in token_ids], int),
            is_good=np.array([s.labels[t] >= 0.5 for s, t in steps], bool),
        )

    known = table(train)
    if not len(known.is_good):  # a file that is measured whole leaves no rows to fit on
        return {name: step_auroc(score, test, kind) for name, score in rule_scores(test).items()}
    return baseline_aurocs(known, table(test))


def baseline_aurocs(train: StepTable, test: StepTable) -> dict[str, float]:
    """Test AUROC of `position` and `length`; positive = good. nan if a class is missing."""
    scores = {
        "position": frequency_score(train.position, train.is_good, test.position),
        "length": frequency_score(train.length, train.is_good, test.length),
    }
    return {name: auroc(score, test.is_good) for name, score in scores.items()}


def rule_scores(solutions: list[Solution]) -> dict[str, list[np.ndarray]]:
    """{rule: score_T of each solution}: a later step, or one of more characters, is worse."""
    return {
        "position": [-np.arange(len(s.steps), dtype=float) for s in solutions],
        "length": [-np.array([len(step) for step in s.steps], float) for s in solutions],
    }


def step_auroc(score: list[np.ndarray], solutions: list[Solution], kind: str = "correctness") -> float:
    """AUROC of step scores; positive = good."""
    pairs = []
    for s, score_T in zip(solutions, score, strict=True):
        pairs += [(score_T[t], s.labels[t] >= 0.5) for t in labelled_steps(s.labels, kind)[0]]
    return auroc(*np.transpose(pairs)) if pairs else float("nan")


def frequency_score(train_key, is_good, test_key) -> np.ndarray:
    """P(good) of each test step by the training steps with its key: (good_k + s * base) / (n_k + s) with
    s = SMOOTHING_STEPS."""
    size = int(max(np.max(train_key), np.max(test_key, initial=0))) + 1  # keys are small counts, from 0
    n = np.bincount(train_key, minlength=size)
    n_good = np.bincount(train_key, weights=is_good, minlength=size)
    return ((n_good + SMOOTHING_STEPS * is_good.mean()) / (n + SMOOTHING_STEPS))[test_key]
