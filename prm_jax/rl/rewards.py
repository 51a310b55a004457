"""Rewards of roll-outs: a weighted sum of sources, each computed for a whole batch at once, in this process.

A source is f(rollouts, scores) -> a row of step rewards for each roll-out, which stay at their steps, or one
number for each roll-out, outcome_N; arrays or lists. A user's own is a function f(rollouts) with the same
results, named by `reward.own_function=FILE.py:FUNCTION` with the weight `reward.own`.

Dimension key: N roll-outs, T steps, L tokens."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np

from prm_jax import tasks
from prm_jax.data.units import probability
from prm_jax.formats import Encoded, opening
from prm_jax.generate.sampling import Policy
from prm_jax.launch.config import Finite, expect, one_of
from prm_jax.launch.own import read_function
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


def exact_steps(rollouts, scores: RolloutScores) -> list[np.ndarray]:
    """+1 for each right or neutral step, -1 for the others (VPRM, arXiv 2601.17223)."""
    expected = "problems of an embedded task, whose steps can be checked"
    expect(scores.verdicts is not None, "reward", "steps", expected)
    return [np.array([1.0 if v in tasks.RATINGS else -1.0 for v in row]) for row in scores.verdicts]


def orm_last(rollouts, scores: RolloutScores) -> np.ndarray:
    """P(the answer is right) after the last step."""
    return np.array([probability(log_odds_T[-1]) for log_odds_T in scores.orm])


SOURCES = {
    "answer": lambda rollouts, scores: scores.right_N,
    "steps": exact_steps,
    "prm": lambda rollouts, scores: scores.prm_reward,
    "orm": orm_last,
    "own": lambda rollouts, scores: scores.custom(rollouts),
}
NEEDS = {"prm": "prm_checkpoint", "orm": "orm_checkpoint", "own": "own_function"}
# reward.prm_form -> f(log_odds_T, P(good) before the first step) -> reward_T
FORMS = {
    "probability": lambda log_odds_T, before: probability(log_odds_T),
    "signed": lambda log_odds_T, before: 2 * probability(log_odds_T) - 1,  # PURE's P(good) - P(bad)
    "log_odds": lambda log_odds_T, before: log_odds_T,
    # p_t - p_(t-1): of a value model the advantage of the step (PAV)
    "difference": lambda log_odds_T, before: np.diff(probability(log_odds_T), prepend=before),
}


@dataclasses.dataclass(frozen=True)
class RewardConfig:  # weights of SOURCES, and what some of them ask; conf/rl.yaml says what each key means
    answer: Finite
    steps: Finite
    prm: Finite
    orm: Finite
    own: Finite
    prm_checkpoint: str | None
    prm_form: Annotated[str, one_of(FORMS)]
    prm_where: Literal["all", "right"]
    orm_checkpoint: str | None
    own_function: str | None

    def __post_init__(self):
        for name, key in NEEDS.items():
            asked = getattr(self, key)
            expect(not getattr(self, name) or asked, f"reward.{key}", asked, f"what reward.{name} asks")
        expect(bool(self.weights), "reward", 0, "a source with a weight")

    @property
    def weights(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in SOURCES if getattr(self, name)}


class Reward(NamedTuple):
    """The rewards of a batch of roll-outs."""

    step_NT: np.ndarray  # of each step, 0 where a response has no such step
    outcome_N: np.ndarray  # of the whole response
    scores: RolloutScores
    means: dict[str, float]  # the mean reward a response of each source

    @property
    def total_N(self) -> np.ndarray:
        return self.step_NT.sum(1) + self.outcome_N


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

    def __call__(self, rollouts: Sequence[Rollout]) -> Reward:
        scores = self.judge(rollouts)
        step_NT = padded([np.zeros(len(r.steps)) for r in rollouts])
        outcome_N = np.zeros(len(rollouts))
        means = {}
        for name, weight in self.cfg.weights.items():
            reward = as_arrays(f"reward.{name}", SOURCES[name](rollouts, scores), rollouts)
            if isinstance(reward, list):
                source_NT = padded(reward)
                step_NT += weight * source_NT
                reward = source_NT.sum(1)
            else:
                outcome_N += weight * reward
            means[f"reward_{name}"] = float(reward.mean())
        return Reward(step_NT, outcome_N, scores, means)

    def right(self, rollouts: Sequence[Rollout]) -> np.ndarray:
        """1 for each roll-out that is finished and has the right answer, right_N."""
        return np.array([r.finished and self.is_right(r) for r in rollouts], float)

    def judge(self, rollouts: Sequence[Rollout]) -> RolloutScores:
        right_N = self.right(rollouts)
        prm = self.prm and score(self.prm, self.policy, rollouts)
        return RolloutScores(
            right_N=right_N,
            verdicts=[self.task.verdicts(r.problem, r.steps) for r in rollouts] if self.task else None,
            prm=prm,
            prm_reward=self.prm_rewards(prm, right_N) if prm else None,
            orm=self.orm and score(self.orm, self.policy, rollouts),
            custom=self.custom,
        )

    def prm_rewards(self, log_odds: list[np.ndarray], right_N: np.ndarray) -> list[np.ndarray]:
        """The PRM's log-odds as step rewards: reward.prm_form, then prm_where."""
        before = 1.0 if self.prm.label_kind == "correctness" else 0.5  # an empty solution is right
        rows = [FORMS[self.cfg.prm_form](log_odds_T, before) for log_odds_T in log_odds]
        if self.cfg.prm_where == "right":
            rows = [right * row for right, row in zip(right_N, rows, strict=True)]
        return rows


def as_arrays(where: str, reward, rollouts: Sequence[Rollout]) -> np.ndarray | list[np.ndarray]:
    """A source's result as outcome_N or as a list of step rewards; InputError where it is neither."""
    try:
        rows = [np.asarray(row) for row in reward]
    except (TypeError, ValueError):  # None, a number, ragged lists
        rows = []
    shapes = [row.shape for row in rows]
    step_shapes = [(len(r.steps),) for r in rollouts]
    is_valid = shapes in ([()] * len(rollouts), step_shapes) and all(row.dtype.kind in "biuf" for row in rows)
    found = f"{type(reward).__name__} of {len(rows)}, of shapes {shapes[:3]}..."
    expect(is_valid, where, found, f"{len(rollouts)} numbers, or as many rows with a number for each step")
    is_finite = all(np.isfinite(row).all() for row in rows)
    expect(is_finite, where, "a number that is nan or infinite", "finite numbers")
    return rows if shapes == step_shapes else np.array(rows)


def score(scorer, policy: Policy, rollouts: Sequence[Rollout]) -> list[np.ndarray]:
    """Log-odds of the steps: of the sampled ids where the verifier makes the same of the texts."""
    if isinstance(scorer, ModelScorer) and reads_alike(scorer, policy):
        return scorer.score_encoded([as_scored(policy, r) for r in rollouts])
    return scorer.score([(r.problem, r.steps) for r in rollouts])


def reads_alike(scorer: ModelScorer, policy: Policy) -> bool:
    """Whether a verifier makes the policy's ids of a text: tokenizer, prompt and format are alike."""
    ours, theirs = dataclasses.asdict(policy.format), dataclasses.asdict(scorer.format)
    differing = {key for key in ours if ours[key] != theirs[key]}
    prompts = {opening(reader.format, reader.tokenizer, "?") for reader in (policy, scorer)}
    is_one_text = differing <= {"head", "score", "beta", "label_kind", "chat"} and len(prompts) == 1
    return is_one_text and scorer.tokenizer.get_vocab() == policy.tokenizer.get_vocab()


def as_scored(policy: Policy, r: Rollout) -> Encoded:
    """A roll-out as a verifier reads it: without end of sequence, with a separator after each step."""
    separator = policy.tokenizer.encode(policy.format.separator, add_special_tokens=False)
    n = len(r.ids_L) - int(r.ids_L[-1] in policy.eos_ids)
    ids = r.ids_L[:n].tolist()
    step_n = r.step_L[:n].tolist()
    if not ids or not policy.stop_masks["step"][ids[-1]]:
        ids += separator
        step_n += [len(r.steps) - 1] * len(separator)
    start = len(r.prompt_L)
    end_T = np.searchsorted(step_n, np.arange(len(r.steps)), side="right") - 1
    whole_L = np.concatenate([r.prompt_L, np.array(ids, np.int32)])
    return Encoded(whole_L, (start + end_T).astype(np.int32), start)
