"""Rewards of roll-outs: a weighted sum of sources, each computed for a whole batch at once, in this process.

A source gives a row of step rewards for each roll-out, which stay at their steps, or one number for each,
outcome_N. A user's own is a function f(rollouts) with such a result, named by
`reward.own_function=FILE.py:FUNCTION` with the weight `reward.own`.

Dimension key: N roll-outs, T steps."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np

from prm_jax import tasks
from prm_jax.data.units import probability
from prm_jax.launch.config import Finite, expect, one_of
from prm_jax.launch.own import read_function
from prm_jax.metrics import step_metrics
from prm_jax.rl.rollouts import Rollout, padded

# reward.prm_form -> f(log_odds_T, P(good) before the first step) -> reward_T
FORMS = {
    "signed": lambda log_odds_T, before: 2 * probability(log_odds_T) - 1,  # PURE's P(good) - P(bad)
    "log_odds": lambda log_odds_T, before: log_odds_T,
    # p_t - p_(t-1): of a value model the advantage of the step (PAV)
    "difference": lambda log_odds_T, before: np.diff(probability(log_odds_T), prepend=before),
}


@dataclasses.dataclass(frozen=True)
class RewardConfig:  # weights of the sources, and what some ask; conf/rl.yaml says what each key means
    answer: Finite
    prm: Finite
    own: Finite
    prm_checkpoint: str | None
    prm_form: Annotated[str, one_of(FORMS)]
    prm_where: Literal["all", "right"]
    own_function: str | None

    def __post_init__(self):
        for name, key in (("prm", "prm_checkpoint"), ("own", "own_function")):
            asked = getattr(self, key)
            is_given = not getattr(self, name) or asked
            expect(is_given, f"reward.{key}", asked, f"one, for reward.{name} has a weight")
        has_source = any((self.answer, self.prm, self.own))
        expect(has_source, "reward", 0, "a source with a weight")


class Reward(NamedTuple):
    """The rewards of a batch of roll-outs, and what checkers and the PRM say of them."""

    step_NT: np.ndarray  # of each step, 0 where a response has no such step
    outcome_N: np.ndarray  # of the whole response
    means: dict[str, float]  # the mean reward a response of each source
    right_N: np.ndarray  # 1: finished, and the answer is right
    ratings: list[list[int]] | None  # of each step by itself (1, 0, -1), by an embedded task's exact checker
    prm: list[np.ndarray] | None  # log-odds of the PRM

    @property
    def total_N(self) -> np.ndarray:
        return self.step_NT.sum(1) + self.outcome_N


@dataclasses.dataclass
class Rewards:
    """The weighted sum of sources, with the checkers and the verifier that they ask."""

    cfg: RewardConfig
    is_right: Callable[[Rollout], bool]
    task: tasks.EmbeddedTask | None = None  # whose exact checker judges the steps
    prm: object = None  # a Scorer

    def __post_init__(self):
        place = self.cfg.own_function
        self.own = place and read_function("reward.own_function", place, as_arrays)

    def __call__(self, rollouts: Sequence[Rollout], right_N: np.ndarray | None = None) -> Reward:
        """The rewards of roll-outs; right_N: what `right` has said of them, where it has."""
        cfg = self.cfg
        right_N = self.right(rollouts) if right_N is None else right_N
        rows = [(r.problem, r.steps) for r in rollouts]
        ratings = self.task and [self.task.ratings(*row) for row in rows]
        log_odds = self.prm and self.prm.score(rows)
        sources = {}
        if cfg.answer:
            sources["answer"] = right_N
        if cfg.prm:
            sources["prm"] = self.prm_rewards(log_odds, right_N)
        if cfg.own:
            sources["own"] = self.own(rollouts)

        step_NT = padded([np.zeros(len(r.steps)) for r in rollouts])
        outcome_N = np.zeros(len(rollouts))
        means = {}
        for name, reward in sources.items():
            weight = getattr(cfg, name)
            if isinstance(reward, list):
                source_NT = padded(reward)
                step_NT += weight * source_NT
                reward = source_NT.sum(1)
            else:
                outcome_N += weight * reward
            means[f"reward_{name}"] = float(reward.mean())
        return Reward(step_NT, outcome_N, means, right_N, ratings, log_odds)

    def right(self, rollouts: Sequence[Rollout]) -> np.ndarray:
        """1 for each roll-out that is finished and has the right answer, right_N."""
        return np.array([r.finished and self.is_right(r) for r in rollouts], float)

    def prm_rewards(self, log_odds: list[np.ndarray], right_N: np.ndarray) -> list[np.ndarray]:
        """The PRM's log-odds as step rewards: reward.prm_form, then prm_where."""
        before = 1.0 if self.prm.label_kind == "correctness" else 0.5  # an empty solution is right
        rows = [FORMS[self.cfg.prm_form](log_odds_T, before) for log_odds_T in log_odds]
        if self.cfg.prm_where == "right":
            rows = [right * reward_T for right, reward_T in zip(right_N, rows, strict=True)]
        return rows


def as_arrays(where: str, reward, rollouts: Sequence[Rollout]) -> np.ndarray | list[np.ndarray]:
    """A user's result as outcome_N or as a list of step rewards; InputError where it is neither."""
    try:
        rows = [np.asarray(row, float) for row in reward]
    except (TypeError, ValueError):  # None, a number, ragged lists
        rows = []
    shapes = [row.shape for row in rows]
    is_outcome = shapes == [()] * len(rollouts)
    is_valid = is_outcome or shapes == [(len(r.steps),) for r in rollouts]
    is_finite = all(np.isfinite(row).all() for row in rows)
    expected = f"{len(rollouts)} finite numbers, or as many rows with a finite number for each step"
    expect(is_valid and is_finite, where, reward, expected)
    return np.array(rows) if is_outcome else rows


def diagnose(rollouts: Sequence[Rollout], reward: Reward) -> dict[str, float]:
    """Gold beside proxy, lengths, the share of restated steps, the PRM's quality."""
    repeats = [step == before for r in rollouts for step, before in zip(r.steps, ("", *r.steps))]
    numbers = {
        "entropy": -np.concatenate([r.logp_L for r in rollouts]).mean(),  # of the sampled distribution
        "right": reward.right_N.mean(),
        "cut": np.mean([not r.finished for r in rollouts]),
        "steps_a_solution": np.mean([len(r.steps) for r in rollouts]),
        "restated": np.mean(repeats),
    }
    if reward.ratings is None:
        return numbers
    does_nothing = [rating == 0 for rating_T in reward.ratings for rating in rating_T]
    numbers["restated"] = np.logical_or(repeats, does_nothing).mean()
    labels = [tasks.correctness(rating_T) for rating_T in reward.ratings]
    has_right_steps_N = np.array([label_T[-1] > 0 for label_T in labels])
    numbers["sound"] = np.mean((reward.right_N > 0) & has_right_steps_N)
    if reward.prm is not None:
        p_good = [probability(log_odds_T) for log_odds_T in reward.prm]
        auroc = step_metrics(p_good, labels, [r.group for r in rollouts])["step_auroc"]
        if np.isfinite(auroc):
            numbers["prm_step_auroc"] = auroc
    return numbers
