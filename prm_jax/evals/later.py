"""Steps after a solution's first error, where labels go on: are corrections seen, and errors that go on?"""

from collections.abc import Sequence

import numpy as np

from prm_jax.evals.tables import interval_of, plus_minus
from prm_jax.metrics import auroc, mean
from prm_jax.solutions import first_error

# {number: what it says}; the first is over all steps after a first error, each other over one kind of them.
SHOWN = {
    "later_auroc": "AUROC",
    "propagation_seen": "errors that go on, called wrong",
    "new_errors_seen": "new errors, called wrong",
    "cessation_seen": "corrections, called right",
}


def later_steps(p: Sequence, labels: Sequence, problems: Sequence, threshold: float, seed: int) -> dict:
    """The numbers of SHOWN over the labelled steps after each solution's first error, and `later`, their counts and 95 %
    bootstrap intervals over problems; empty where those steps are not both good and bad.

    After Yang et al. (2025, arXiv 2505.14391): a step that builds on an error is wrong (error propagation) until one
    corrects it or goes another way, which is right (error cessation). Here a bad step after a bad one (the labelled step
    before it) is propagation, a bad step after a good one a new error, a good step after a bad one cessation. Wrong is
    P(good) below the threshold.
    """
    rows = []  # (P(good), good, the step before is good, problem)
    for p_T, label_T, problem in zip(p, labels, problems, strict=True):
        error, before = first_error(label_T), False
        for t in range(error + 1, len(label_T) if error >= 0 else 0):
            if label_T[t] is not None:
                rows.append((p_T[t], label_T[t] >= 0.5, before, problem))
                before = rows[-1][1]
    if len({good for _, good, *_ in rows}) < 2:
        return {}
    p_n, good_n, before_n, problem_n = map(np.array, zip(*rows))
    wrong_n = p_n < threshold
    kinds = {
        "propagation": ~good_n & ~before_n,
        "new_errors": ~good_n & before_n,
        "cessation": good_n & ~before_n,
    }
    numbers, intervals = {"later_auroc": auroc(p_n, good_n)}, {}
    intervals["later_auroc"] = interval_of(auroc, problem_n, seed, p_n, good_n)
    for kind, kind_n in kinds.items():
        hit_n = wrong_n[kind_n] != good_n[kind_n]
        numbers[f"{kind}_seen"] = mean(hit_n)
        intervals[f"{kind}_seen"] = (
            interval_of(mean, problem_n[kind_n], seed, hit_n) if kind_n.any() else None
        )
    counts = {"steps": len(rows), **{kind: int(kind_n.sum()) for kind, kind_n in kinds.items()}}
    return numbers | {"later": {"counts": counts, "intervals": intervals}}


def show(numbers: dict):
    print(f"later steps {', '.join(f'{text} {numbers[name]:.4f}' for name, text in SHOWN.items())}")


def detail(run: dict):
    counts, intervals = run["later"]["counts"], run["later"]["intervals"]
    listed = ", ".join(f"{n} {kind}" for kind, n in counts.items())
    print(f"later steps after a first error: {listed}; {run['verifier']}")
    for name in [name for name in SHOWN if intervals[name] is not None]:
        print(f"  {name:<21}{run[name]:.4f} {plus_minus(intervals[name])}")
