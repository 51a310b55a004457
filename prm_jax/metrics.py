"""How good are step scores? Step metrics, calibration, first errors, within-problem ranking.

Pure functions of numpy arrays with one entry a step or a solution, so without shape suffixes. A score is
P(step good); a NaN score raises ValueError. A number that the data do not define is nan."""

import math
from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from prm_jax.solutions import first_error

TAIL_SCORE = 0.9  # a wrong step scored above this is one that best-of-N will find and pick ("tail miss")


def problem_numbers(problems: Iterable[Hashable]) -> np.ndarray:
    """Each row's problem as a number: 0, 1, ... in the order of first appearance."""
    number = {}
    return np.fromiter((number.setdefault(problem, len(number)) for problem in problems), np.int64)


def mean(x) -> float:
    """The mean; nan if empty."""
    return float(np.mean(x)) if len(x) else math.nan


def _checked(score, other) -> tuple[np.ndarray, np.ndarray]:
    score, other = np.asarray(score, np.float64), np.asarray(other)
    if score.ndim != 1 or score.shape != other.shape or np.isnan(score).any():
        raise ValueError(f"expected two arrays of one length without NaN, got {score} and {other}")
    return score, other


def auroc(score, is_positive) -> float:
    """P(a random positive scores above a random negative), ties counting 1/2; nan if a class is missing.

    `is_positive` may be p, each prefix's chance of a right completion: it counts p times as a positive and 1
    - p times as a negative. Then even score = p stays below 1."""
    score, p = _checked(score, np.asarray(is_positive, np.float64))
    _, block = np.unique(score, return_inverse=True)
    positive, negative = np.bincount(block, p), np.bincount(block, 1 - p)  # of each score, lowest first
    wins = positive @ (np.cumsum(negative) - negative / 2)
    n_pairs = positive.sum() * negative.sum()
    return float(wins / n_pairs) if n_pairs else math.nan


def f1(is_positive, predicted_positive) -> float:
    """Harmonic mean of precision and recall, in [0, 1]: 2 TP / (2 TP + FP + FN), with 0/0 = 0."""
    is_positive, predicted = np.asarray(is_positive, bool), np.asarray(predicted_positive, bool)
    total = int(is_positive.sum() + predicted.sum())
    return 2 * int((is_positive & predicted).sum()) / total if total else 0.0


def prm_score(is_good, predicted_good) -> float:
    """PRMBench's PRMScore (2501.03124): mean F1 of good and of bad steps; without bad ones, that of good."""
    is_good, predicted_good = np.asarray(is_good, bool), np.asarray(predicted_good, bool)
    f1_good = f1(is_good, predicted_good)
    return f1_good if is_good.all() else (f1_good + f1(~is_good, ~predicted_good)) / 2


def harmonic_mean(a: float, b: float) -> float:
    """2 ab / (a + b), with 0/0 = 0."""
    return 0.0 if a + b == 0 else float(2 * a * b / (a + b))


def mcc(is_positive, predicted_positive) -> float:
    """Matthews' correlation of two binary labels, in [-1, 1]; 0 where one of them is constant."""
    y, predicted = np.asarray(is_positive, float), np.asarray(predicted_positive, float)
    return float(np.corrcoef(y, predicted)[0, 1]) if y.std() * predicted.std() else 0.0


def reliability(p, y, bins: int = 15) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(mean p, mean y, count) in each bin [k/bins, (k+1)/bins) of [0, 1], the last one closed."""
    p, y = _checked(p, np.asarray(y, np.float64))
    bin_n = np.minimum((p * bins).astype(int), bins - 1)
    count = np.bincount(bin_n, minlength=bins)
    with np.errstate(invalid="ignore"):
        mean_p, mean_y = (np.bincount(bin_n, x, minlength=bins) / count for x in (p, y))
    return mean_p, mean_y, count


def ece(p, y, bins: int = 15) -> float:
    """Expected calibration error of P(good), sum_b (n_b / n) |mean p - mean y| (Guo et al. 2017)."""
    mean_p, mean_y, count = reliability(p, y, bins)
    return float(np.nansum(count * np.abs(mean_p - mean_y)) / count.sum()) if count.any() else math.nan


def first_error_f1(predicted, label) -> dict[str, float]:
    """ProcessBench's numbers of one split (arXiv 2412.06559): accuracy_error, accuracy_clean and f1, their
    `harmonic_mean`; nan without an erroneous, or a clean, solution."""
    predicted, label = _checked(predicted, label)
    is_hit = predicted == label
    a, b = mean(is_hit[label != -1]), mean(is_hit[label == -1])
    return {"accuracy_error": a, "accuracy_clean": b, "f1": harmonic_mean(a, b)}


def within_problem_auroc(solution_score, is_sound, problem_ids) -> float:
    """Mean AUROC over the problems with sound and unsound solutions: what best-of-N uses."""
    score, is_sound = _checked(solution_score, np.asarray(is_sound, bool))
    problem, _ = _checked(problem_numbers(problem_ids), score)
    order = np.argsort(problem, kind="stable")
    cuts = np.flatnonzero(np.diff(problem[order])) + 1
    aurocs = [auroc(score[rows], is_sound[rows]) for rows in np.split(order, cuts)]
    return mean([x for x in aurocs if not math.isnan(x)])


def labelled_steps(labels: Sequence[float | None] | None, label_kind="correctness") -> list[int]:
    """Indices of labelled steps up to and including the first error.

    A step is bad if its label is below 0.5. After the first error each data set fills correctness labels in
    its own way, so those do not count. Values and advantages know no first error: all count."""
    labels = labels or ()
    error = first_error(labels) if label_kind == "correctness" else -1
    counted = labels if error == -1 else labels[: error + 1]
    return [index for index, label in enumerate(counted) if label is not None]


def step_metrics(scores, labels, problem_ids, threshold=0.5, label_kind="correctness") -> dict:
    """Every number about step scores in [0, 1], from score_T, labels (or None) and problem of each solution.

    Step numbers are over each solution's `labelled_steps`: step_auroc takes good steps (label >= 0.5) as
    positives, Brier and ECE use soft labels, and tail_miss_rate is the share of wrong steps scored above 0.9.
    First-error numbers follow ProcessBench: the prediction is the first step below `threshold` among *all*
    steps. Within-problem AUROC ranks solutions by their lowest step score; one is sound if no labelled step
    is bad. Of value and advantage labels, first errors and soundness are nan."""
    steps, whole, n_solutions = [], [], 0
    for row, (score, label, problem) in enumerate(zip(scores, labels, problem_ids, strict=True)):
        indices = labelled_steps(label, label_kind)
        if not indices:
            continue
        score = np.asarray(score, np.float64)
        if len(score) != len(label) or not np.all((score >= 0) & (score <= 1)):
            raise ValueError(f"solution {row}: expected {len(label)} step scores in [0, 1], found {score}")
        n_solutions += 1
        steps += [(score[index], label[index]) for index in indices]
        if label_kind == "correctness":
            whole.append((first_error(score, threshold), first_error(label), score.min(), problem))
    p, y = np.array(steps, np.float64).reshape(-1, 2).T
    predicted, error, lowest, ids = zip(*whole) if whole else ((), (), (), ())
    error = np.array(error, int)
    is_good, predicted_good = y >= 0.5, p >= threshold
    processbench = first_error_f1(predicted, error)
    return {
        "step_auroc": auroc(p, is_good),
        "step_accuracy": mean(predicted_good == is_good),
        "bad_step_f1": f1(~is_good, ~predicted_good),
        "base_rate_bad": mean(~is_good),
        "tail_miss_rate": mean(p[~is_good] > TAIL_SCORE),
        "brier": mean((p - y) ** 2),
        "ece": ece(p, y),
        "first_error_accuracy": mean(np.equal(predicted, error)),
        **{f"first_error_{name}": x for name, x in processbench.items()},
        "within_problem_auroc": within_problem_auroc(lowest, error == -1, ids),
        "n_steps": len(p),
        "n_solutions": n_solutions,
    }
