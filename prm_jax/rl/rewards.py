"""Rewards of roll-outs: a weighted sum of sources, each computed for a whole batch at once, in this process.

A source is f(rollouts, scores) -> a row of step rewards for each roll-out, which stay at their steps, or one number for
each roll-out, outcome_N; arrays or lists. A user's own is a function f(rollouts) with the same results, named by
`reward.own_function=FILE.py:FUNCTION` with the weight `reward.own`.

Dimension key: N roll-outs, T steps, L tokens.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np

from prm_jax import tasks
from prm_jax.data.units import probability
from prm_jax.formats import Encoded
from prm_jax.generate.sampling import Policy
from prm_jax.launch.config import Finite, expect, one_of
from prm_jax.launch.own import read_function
from prm_jax.rl.advantages import returns
from prm_jax.rl.rollouts import Rollout, padded
from prm_jax.scoring import ModelScorer


class RolloutScores(NamedTuple):
    """What checkers and verifiers say of roll-outs."""

    right_N: np.ndarray  # 1: finished, and the answer is right
    verdicts: list[list[str]] | None  # on each step by itself, by an embedded task's exact checker
    prm: list[np.ndarray] | None  # log-odds of the PRM
    prm_reward: list[np.ndarray] | None  # the same in the form reward.prm_form
    orm: list[np.ndarray] | None  # log-odds of the outcome model after each step
    custom: Callable | None  # the user's function
    max_tokens: int


def exact_steps(scores: RolloutScores) -> list[np.ndarray]:
    """1 for each right or neutral step, 0 for the others."""
    expect(
        scores.verdicts is not None,
        "reward",
        "steps",
        "problems of an embedded task, whose steps can be checked",
    )
    return [
        np.array([verdict in tasks.RATINGS for verdict in verdicts], float) for verdicts in scores.verdicts
    ]


def has_drop(log_odds_T: np.ndarray, share: float = 0.3) -> bool:
    """Whether P(good) falls by more than this share of it from one step to the next (URSA's drop-moment)."""
    p_T = probability(log_odds_T)
    return bool((p_T[1:] < (1 - share) * p_T[:-1]).any())


def over_largest_return(rows: list[np.ndarray]) -> list[np.ndarray]:
    """Step rewards divided by the largest absolute sum from a step on of the batch (PRIME-RL/PRIME at 18ad596,
    prime_norm=batch_norm in verl/workers/actor/dp_prime.py). What they are multiplied by, as beta, cancels."""
    largest = np.abs(returns(padded(rows))).max()
    return [row / (largest + 1e-6) for row in rows]


SOURCES = {
    "answer": lambda rollouts, scores: scores.right_N,  # 1 where the answer is right
    # +1 and -1 by the exact checker of steps (VPRM, arXiv 2601.17223)
    "steps": lambda rollouts, scores: [2 * right_T - 1 for right_T in exact_steps(scores)],
    # the share of right steps where the answer is right, else 0 (Interplay, arXiv 2512.07783)
    "process_accuracy": lambda rollouts, scores: (
        scores.right_N * [right_T.mean() for right_T in exact_steps(scores)]
    ),
    "prm": lambda rollouts, scores: scores.prm_reward,
    # PS-GRPO (URSA, arXiv 2501.04686, eq. 6): 1 where the answer is right, .5 where the PRM's P(good) falls on the way
    "psgrpo": lambda rollouts, scores: scores.right_N * [1 - 0.5 * has_drop(x) for x in scores.prm],
    # P(the answer is right) after the last step
    "orm": lambda rollouts, scores: np.array([probability(logit_T[-1]) for logit_T in scores.orm]),
    # tokens as a share of max_tokens; a negative weight asks for short responses
    "length": lambda rollouts, scores: np.array([len(r.ids_L) / scores.max_tokens for r in rollouts]),
    "own": lambda rollouts, scores: scores.custom(rollouts),
}
LARGEST = 1e9  # of a reward: squares of more do not fit float32
FORMS = {
    "probability": lambda log_odds_T, before: probability(log_odds_T),
    "signed": lambda log_odds_T, before: 2 * probability(log_odds_T) - 1,  # PURE's P(good) - P(bad)
    "log_odds": lambda log_odds_T, before: log_odds_T,
    # p_t - p_(t-1): of a value model the advantage of the step (PAV)
    "difference": lambda log_odds_T, before: np.diff(probability(log_odds_T), prepend=before),
}


@dataclasses.dataclass(frozen=True)
class RewardConfig:  # weights of SOURCES, and what three of them ask; conf/rl.yaml says what each key means
    answer: Finite
    steps: Finite
    process_accuracy: Finite
    prm: Finite
    orm: Finite
    length: Finite
    own: Finite
    prm_checkpoint: str | None
    prm_form: Annotated[str, one_of(FORMS)]
    orm_checkpoint: str | None
    own_function: str | None
    psgrpo: Finite = 0.0
    prm_where: Literal["all", "right"] = "all"
    prm_norm: Literal["none", "return"] = "none"

    def __post_init__(self):
        needs = ("prm", "prm_checkpoint"), ("psgrpo", "prm_checkpoint"), ("orm", "orm_checkpoint")
        for name, key in (*needs, ("own", "own_function")):
            source = getattr(self, key)
            expect(not getattr(self, name) or source, f"reward.{key}", source, "what to ask")
        expect(bool(self.weights), "reward", 0, "a source with a weight")

    @property
    def weights(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in SOURCES if getattr(self, name)}


@dataclasses.dataclass
class Rewards:
    """The weighted sum of sources, with the checkers and verifiers that they ask."""

    cfg: RewardConfig
    policy: Policy
    is_right: Callable[[Rollout], bool]
    task: object = None  # the embedded task whose exact checker judges the steps
    prm: object = None  # a Scorer
    orm: object = None

    def __post_init__(self):
        place = self.cfg.own_function
        self.custom = place and read_function("reward.own_function", place, as_arrays)

    def __call__(
        self, rollouts: Sequence[Rollout]
    ) -> tuple[np.ndarray, np.ndarray, RolloutScores, dict[str, float]]:
        """(step_reward_NT, outcome_N, scores, the mean reward a response of each source)."""
        scores, outcome_N, means = self.judge(rollouts), np.zeros(len(rollouts)), {}
        step_reward_NT = padded([np.zeros(len(r.steps)) for r in rollouts])
        for name, weight in self.cfg.weights.items():
            reward = as_arrays(f"reward.{name}", SOURCES[name](rollouts, scores), rollouts)
            if isinstance(reward, list):
                step_reward_NT += weight * (reward_NT := padded(reward))
                reward = reward_NT.sum(1)
            else:
                outcome_N += weight * reward
            means[f"reward_{name}"] = float(reward.mean())
        return step_reward_NT, outcome_N, scores, means

    def right(self, rollouts: Sequence[Rollout]) -> np.ndarray:
        """1 for each roll-out that is finished and has the right answer, right_N."""
        return np.array([r.finished and self.is_right(r) for r in rollouts], float)

    def judge(self, rollouts: Sequence[Rollout]) -> RolloutScores:
        right_N = self.right(rollouts)
        verdicts = [self.task.verdicts(r.problem, r.steps) for r in rollouts] if self.task else None
        prm, orm = (scorer and score(scorer, self.policy, rollouts) for scorer in (self.prm, self.orm))
        before = (
            1.0 if self.prm and self.prm.label_kind == "correctness" else 0.5
        )  # an empty solution is right
        form = FORMS[self.cfg.prm_form]
        prm_reward = [form(logit_T, before) for logit_T in prm] if prm else None
        if prm and self.cfg.prm_where == "right":
            prm_reward = [right * row for right, row in zip(right_N, prm_reward, strict=True)]
        prm_reward = over_largest_return(prm_reward) if prm and self.cfg.prm_norm == "return" else prm_reward
        return RolloutScores(
            right_N, verdicts, prm, prm_reward, orm, self.custom, self.policy.sampling.max_tokens
        )


def as_arrays(where: str, reward, rollouts: Sequence[Rollout]) -> np.ndarray | list[np.ndarray]:
    """A source's result as outcome_N or as a list of each roll-out's step rewards; InputError where it is neither."""
    try:
        rows = [np.asarray(row) for row in itertools.islice(reward, len(rollouts) + 1)]  # it may be endless
    except (TypeError, ValueError):  # None, a number, ragged lists
        rows = []
    shapes, step_shapes = [row.shape for row in rows], [(len(r.steps),) for r in rollouts]
    is_right = shapes in ([()] * len(rollouts), step_shapes) and all(row.dtype.kind in "biuf" for row in rows)
    description = f"{type(reward).__name__} of {len(rows)}, of shapes {shapes[:3]}..."
    expected = (
        f"{len(rollouts)} numbers, or as many rows, of shapes {step_shapes[:3]}...: a number for each step"
    )
    expect(is_right, where, description, expected)
    finite = all((np.abs(row.astype(float)) <= LARGEST).all() for row in rows)
    expect(finite, where, "one that is none, or too large", f"numbers of at most {LARGEST:g}")
    return rows if shapes == step_shapes else np.array(rows)


def score(scorer, policy: Policy, rollouts: Sequence[Rollout]) -> list[np.ndarray]:
    """Log-odds of the steps. A verifier with the policy's tokenizer and format reads the sampled ids themselves."""
    if isinstance(scorer, ModelScorer):
        of_scores = {name: getattr(policy.format, name) for name in ("head", "score", "beta", "label_kind")}
        same_format = dataclasses.replace(scorer.format, **of_scores) == policy.format
        if same_format and scorer.tokenizer.get_vocab() == policy.tokenizer.get_vocab():
            return scorer.score_encoded([as_scored(policy, r) for r in rollouts])
    return scorer.score([(r.problem, r.steps) for r in rollouts])


def as_scored(policy: Policy, r: Rollout) -> Encoded:
    """A roll-out as a verifier reads it: without end of sequence, with the separator that a cut last step lacks."""
    separator = policy.tokenizer.encode(policy.format.separator, add_special_tokens=False)
    n = len(r.ids_L) - int(r.ids_L[-1] in policy.eos_ids)
    ids, step_n = r.ids_L[:n].tolist(), r.step_L[:n].tolist()
    if not ids or not policy.stop_masks["step"][ids[-1]]:
        ids, step_n = [*ids, *separator], [*step_n, *[len(r.steps) - 1] * len(separator)]
    start, end_T = len(r.prompt_L), np.searchsorted(step_n, np.arange(len(r.steps)), side="right") - 1
    return Encoded(
        np.concatenate([r.prompt_L, np.array(ids, np.int32)]), (start + end_T).astype(np.int32), start
    )
