"""The units of step scores, with their ranges and log-odds; every probability comes from here.

Models give and files keep log-odds: float32 P(good) is 1.0 above a logit of 17, where log-odds still differ.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

CERTAIN = 20.0  # log-odds that stand for a certain verdict: P(good) is 1 - 2e-9


def _log_odds(p):
    """log p / (1 - p), infinite at 0 and 1."""
    with np.errstate(divide="ignore"):
        return np.log(p) - np.log1p(-p)


class Unit(NamedTuple):
    low: float  # range of a score, both ends included
    high: float
    log_odds: Callable  # score -> log-odds that the step is good, float64
    from_log_odds: Callable  # its inverse


UNITS = {
    "logit": Unit(-math.inf, math.inf, lambda x: x, lambda x: x),
    "probability": Unit(0.0, 1.0, _log_odds, lambda x: np.exp(-np.logaddexp(0.0, -x))),
    # P(good) - P(bad), as PURE's scores; also an advantage A, which labels give as (1 + A) / 2.
    "difference": Unit(-1.0, 1.0, lambda x: _log_odds((x + 1) / 2), lambda x: np.tanh(x / 2)),
    # beta * (log policy - log reference), unbounded; ImplicitPRM reads it as log-odds.
    "log_ratio": Unit(-math.inf, math.inf, lambda x: x, lambda x: x),
}


def log_p_to_log_odds(logp) -> np.ndarray:
    """Log-odds of log-probabilities, float64, at most CERTAIN, which stands for a probability of 1."""
    logp = np.asarray(logp, np.float64)
    with np.errstate(divide="ignore"):
        return np.minimum(logp - np.log(-np.expm1(np.minimum(logp, 0.0))), CERTAIN)


def probability(log_odds) -> np.ndarray:
    """P(step good), float64, of log-odds."""
    return UNITS["probability"].from_log_odds(np.asarray(log_odds, np.float64))


def as_probability(score, unit: str) -> np.ndarray:
    """P(step good), float64, of scores in a unit; probabilities stay as stored, bit for bit."""
    score = np.asarray(score, np.float64)
    return score if unit == "probability" else probability(UNITS[unit].log_odds(score))
