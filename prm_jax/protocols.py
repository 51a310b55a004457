"""The protocols that everything above the model is written against: Scorer and Policy.

A class needs no base class: it is a Scorer or a Policy if it has these members. This file imports nothing of
ours.

Dimension key: L tokens, T steps."""

import dataclasses
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np

Prefix = tuple[str, tuple[str, ...]]  # a problem and the first steps of a solution
Rows = Sequence[Prefix]  # whole solutions, or first steps of them


class Scorer(Protocol):
    """Scores every step of a solution: a PRM, an outcome model, a critic, an exact checker, a server."""

    name: str  # in results and figures
    unit: Literal["logit", "log_ratio"]  # of the scores (data/units.py)
    label_kind: str  # the meaning of "good": correctness, value, advantage, unknown
    objective: Literal["prm", "orm"]  # orm: an outcome model, whose last step's score is the solution's

    def score(self, rows: Rows) -> list[np.ndarray]:
        """One float32 array a row, score_T: log-odds that each step is good."""


@dataclasses.dataclass(frozen=True)
class Continuation:
    """The text that a policy wrote after a prefix."""

    ids_L: np.ndarray  # generated ids, with the one that stopped it
    logp_L: np.ndarray  # log p of each in nats, float32, under the model itself: temperature 1, all tokens
    text: str  # without the end-of-sequence token
    finish_reason: Literal["eos", "stop", "length"]  # end of sequence, end of a step, or cut by max_tokens
    # log p of each step's tokens; None: not known, or a token is of two steps
    logp_T: tuple[float, ...] | None = None


class Policy(Protocol):
    """Continues solutions: our sampler, or a server behind the OpenAI completions protocol. A dataclass, of
    which a search makes a greedy copy."""

    name: str
    format: object  # the Format that turns problem and steps into text
    sampling: object  # the distribution that tokens are drawn from (generate/policies.py)

    def extend(self, prefixes: Rows, n: int, stop: str, key, numbers=None) -> list[list[Continuation]]:
        """n continuations of each prefix, to the end of a step (stop="step") or solution (stop="end").

        Prefix i draws with fold_in(key, numbers[i]), or fold_in(key, i) without numbers, so that a draw does
        not depend on the others in the call."""
