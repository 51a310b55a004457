"""Steps after a solution's first error, where labels go on: are corrections seen, and errors that go on?"""

from collections.abc import Sequence

import numpy as np

from prm_jax.metrics import auroc, mean
from prm_jax.solutions import first_error

# {number: what it says}; the first is over all steps after a first error, each other over one kind of them.
SHOWN = {
    "later_auroc": "AUROC",
    "propagation_seen": "errors that go on, called wrong",
    "new_errors_seen": "new errors, called wrong",
    "cessation_seen": "corrections, called right",
}


def later_steps(p: Sequence, labels: Sequence, threshold: float) -> dict:
    """The numbers of SHOWN over the labelled steps after each solution's first error, and `later`, their
    counts; empty where those steps are not both good and bad.

    After Yang et al. (2025, arXiv 2505.14391): a step that builds on an error is wrong (error propagation)
    until one corrects it or goes another way, which is right (error cessation). Here a bad step after a bad
    one (the labelled step before it) is propagation, a bad step after a good one a new error, a good step
    after a bad one cessation. Wrong is P(good) below the threshold.
    """
    rows = []  # (P(good), good, the step before is good)
    for p_T, label_T in zip(p, labels, strict=True):
        error, before_is_good = first_error(label_T), False
        for t in range(error + 1, len(label_T) if error >= 0 else 0):
            if label_T[t] is not None:
                is_good = label_T[t] >= 0.5
                rows.append((p_T[t], is_good, before_is_good))
                before_is_good = is_good
    if len({is_good for _, is_good, _ in rows}) < 2:
        return {}
    p_n, good_n, before_n = map(np.array, zip(*rows))
    kinds = {
        "propagation": ~good_n & ~before_n,
        "new_errors": ~good_n & before_n,
        "cessation": good_n & ~before_n,
    }
    hit_n = (p_n >= threshold) == good_n
    numbers = {f"{kind}_seen": mean(hit_n[kind_n]) for kind, kind_n in kinds.items()}
    counts = {"steps": len(rows), **{kind: int(kind_n.sum()) for kind, kind_n in kinds.items()}}
    return {"later_auroc": auroc(p_n, good_n), **numbers, "later": counts}


def show(numbers: dict):
    print(f"later steps {', '.join(f'{text} {numbers[name]:.4f}' for name, text in SHOWN.items())}")
