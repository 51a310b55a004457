"""Scorers that need no model of their own: the exact checker, one with known faults, noise, ensembles.

Each keeps the protocol Scorer (protocols.py). Dimension key: T steps, E members of an ensemble."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from prm_jax.data.units import CERTAIN, UNITS
from prm_jax.launch.config import expect
from prm_jax.protocols import Rows


class ModelFree:  # what these scorers say of their scores
    unit, objective = "logit", "prm"


@dataclasses.dataclass(frozen=True)
class CheckerScorer(ModelFree):
    """An exact checker as a verifier: log-odds of step_labels(problem, steps), within +-CERTAIN."""

    step_labels: Callable
    name: str = "checker"
    label_kind: str = "correctness"

    def score(self, rows: Rows) -> list[np.ndarray]:
        labels = (np.asarray(self.step_labels(problem, steps), np.float64) for problem, steps in rows)
        log_odds = UNITS["probability"].log_odds
        return [np.clip(log_odds(label_T), -CERTAIN, CERTAIN).astype(np.float32) for label_T in labels]


@dataclasses.dataclass(frozen=True)
class NoisyChecker(ModelFree):
    """An exact checker with known faults, so that a verifier's quality is a dial.

    `judge(problem, steps)` says of each step by itself whether it is right (1, 0; or its value, with
    label_kind=value). A share `missed` of the wrong steps, the same for equal texts, passes for right.
    Correctness labels are cumulative. A Gaussian observer of sensitivity d' then scores: log-odds d' x, x
    normal, mean +-d'/2, variance 1."""

    judge: Callable
    missed: float
    d_prime: float
    seed: int
    name: str
    label_kind: str = "correctness"

    def score(self, rows: Rows) -> list[np.ndarray]:
        scores = []
        for row in rows:
            draws = [(rng.random(), rng.standard_normal()) for rng in prefix_rngs(self.seed, *row)]
            uniform_T, normal_T = np.array(draws).reshape(-1, 2).T
            seen_T = np.where(uniform_T < self.missed, 1.0, np.asarray(self.judge(*row), float))
            if self.label_kind == "correctness":
                seen_T = np.minimum.accumulate(seen_T)
            x_T = self.d_prime / 2 * (2 * seen_T - 1) + normal_T
            scores.append((self.d_prime * x_T).astype(np.float32))
        return scores


@dataclasses.dataclass(frozen=True)
class RandomScorer(ModelFree):
    """A verifier that knows nothing: standard normal log-odds, a pure function of seed, problem and steps."""

    seed: int
    name, label_kind = "random", "unknown"

    def score(self, rows: Rows) -> list[np.ndarray]:
        draws = ([rng.standard_normal() for rng in prefix_rngs(self.seed, *row)] for row in rows)
        return [np.array(draw_T, np.float32) for draw_T in draws]


def vote(log_odds_ET: np.ndarray) -> np.ndarray:
    """Log-odds of the share of members that call a step good, with half a vote of each kind added."""
    return np.log((log_odds_ET > 0).sum(0) + 0.5) - np.log((log_odds_ET <= 0).sum(0) + 0.5)


# name -> f(log_odds_ET of the members) -> score_T
ENSEMBLES = {
    "mean": lambda log_odds_ET: log_odds_ET.mean(0),
    "min": lambda log_odds_ET: log_odds_ET.min(0),
    "vote": vote,
}


class EnsembleScorer:
    """Verifiers of one meaning as one (Coste et al. 2024, 2310.02743): ENSEMBLES make a score of theirs."""

    def __init__(self, name: str, combine: str, members: Sequence):
        self.name, self.combine, self.members = name, combine, members
        for key in ("unit", "label_kind", "objective"):
            values = {member.name: getattr(member, key) for member in members}
            expect(len(set(values.values())) == 1, "checkpoint", values, f"one {key} for all of {combine}")
            setattr(self, key, getattr(members[0], key))

    @property
    def about(self) -> dict:
        return {"members": [{"verifier": x.name, **getattr(x, "about", {})} for x in self.members]}

    def score(self, rows: Rows) -> list[np.ndarray]:
        combine = ENSEMBLES[self.combine]
        by_member = [member.score(rows) for member in self.members]
        return [combine(np.stack(log_odds)).astype(np.float32) for log_odds in zip(*by_member, strict=True)]


def prefix_rngs(seed: int, problem: str, steps: Sequence[str]) -> Iterator[np.random.Generator]:
    """Yields a random generator for each step, a pure function of seed, problem and steps so far."""
    text = hashlib.sha256(json.dumps([seed, problem]).encode())
    for step in steps:
        text.update(json.dumps(step).encode())
        yield np.random.default_rng(int.from_bytes(text.digest()[:8], "little"))
