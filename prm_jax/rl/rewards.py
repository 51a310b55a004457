"""What a roll-out is rewarded for: a weighted sum of sources, each asked for a whole batch at once, in this process.

A source is f(rollouts, known) -> the step rewards of each roll-out, each of which stays at its step, or one number a
roll-out, outcome_N: arrays or lists. A user's own is a function f(rollouts) of the same results, named by
`reward.own_function=FILE.py:FUNCTION` with the weight `reward.own`.

Dimension key: N roll-outs, T steps, L tokens.
"""

import dataclasses
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from prm_jax import InputError, tasks
from prm_jax.data.formats import Encoded
from prm_jax.data.units import probability
from prm_jax.generate.sampling import Policy
from prm_jax.launch.config import expect, one_of
from prm_jax.rl.rollouts import Rollout, padded
from prm_jax.scoring import ModelScorer


class Known(NamedTuple):
    """What roll-outs are judged by."""

    right_N: np.ndarray  # 1: finished, and the answer is right
    verdicts: list[list[str]] | None  # of each step by itself, by the exact checker of an embedded task
    prm: list[np.ndarray] | None  # log-odds of the PRM
    prm_reward: list[np.ndarray] | None  # and in the form that is asked
    orm: list[np.ndarray] | None  # log-odds of the outcome model after each step
    own: Callable | None  # the user's function
    max_tokens: int


def exact_steps(known: Known) -> list[np.ndarray]:
    """1 for each right or neutral step, 0 for the others."""
    expect(known.verdicts is not None, "reward", "steps", "problems of an embedded task, whose steps can be checked")
    return [np.array([verdict in tasks.RATINGS for verdict in own], float) for own in known.verdicts]


SOURCES = {
    # the outcome: is the answer right
    "answer": lambda rollouts, known: known.right_N,
    # +1 and -1 by the exact checker of steps (VPRM, arXiv 2601.17223)
    "steps": lambda rollouts, known: [2 * right_T - 1 for right_T in exact_steps(known)],
    # the share of right steps where the answer is right, else 0 (Interplay, arXiv 2512.07783)
    "process_accuracy": lambda rollouts, known: known.right_N * [own_T.mean() for own_T in exact_steps(known)],
    "prm": lambda rollouts, known: known.prm_reward,
    # P(the answer is right) after the last step
    "orm": lambda rollouts, known: np.array([probability(own_T[-1]) for own_T in known.orm]),
    # tokens of the longest allowed; a negative weight asks for short responses
    "length": lambda rollouts, known: np.array([len(r.ids_L) / known.max_tokens for r in rollouts]),
    "own": lambda rollouts, known: known.own(rollouts),
}
FORMS = {
    "probability": lambda log_odds_T, before: probability(log_odds_T),
    "signed": lambda log_odds_T, before: 2 * probability(log_odds_T) - 1,  # PURE's P(good) - P(bad)
    "log_odds": lambda log_odds_T, before: log_odds_T,
    # p_t - p_(t-1): of a value model the advantage of the step (PAV)
    "difference": lambda log_odds_T, before: np.diff(probability(log_odds_T), prepend=before),
}


@dataclasses.dataclass(frozen=True)
class RewardConfig:
    """Weights of SOURCES, and the verifiers that two of them ask; conf/rl.yaml says what each means."""

    answer: float
    steps: float
    process_accuracy: float
    prm: float
    orm: float
    length: float
    own: float
    prm_checkpoint: str | None
    prm_form: Annotated[str, one_of(FORMS)]
    orm_checkpoint: str | None
    own_function: str | None

    def __post_init__(self):
        for name, asked in (("prm", "prm_checkpoint"), ("orm", "orm_checkpoint"), ("own", "own_function")):
            found = getattr(self, asked)
            expect(not getattr(self, name) or found, f"reward.{asked}", found, "what to ask")
        expect(bool(self.weights), "reward", 0, "a source with a weight")

    @property
    def weights(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in SOURCES if getattr(self, name)}


@dataclasses.dataclass
class Rewards:
    """The weighted sum, and all that it asks."""

    cfg: RewardConfig
    policy: Policy
    is_right: Callable[[Rollout], bool]
    task: object = None  # an embedded task, whose exact checker knows the problems' steps
    prm: object = None  # a Scorer
    orm: object = None

    def __post_init__(self):
        self.own = self.cfg.own_function and read_function(self.cfg.own_function)

    def __call__(self, rollouts: Sequence[Rollout]) -> tuple[np.ndarray, np.ndarray, Known, dict[str, float]]:
        """(step_reward_NT, outcome_N, what is known, the mean of each source: of step rewards of their sum a response)."""
        known = self.judge(rollouts)
        steps = max(len(r.steps) for r in rollouts)
        step_reward_NT, outcome_N, means = np.zeros((len(rollouts), steps)), np.zeros(len(rollouts)), {}
        for name, weight in self.cfg.weights.items():
            found = as_arrays(name, SOURCES[name](rollouts, known), rollouts)
            of_steps = isinstance(found, list)
            own = padded(found, steps) if of_steps else found
            means[f"reward_{name}"] = float(own.sum(1).mean() if of_steps else own.mean())
            if of_steps:
                step_reward_NT += weight * own
            else:
                outcome_N += weight * own
        return step_reward_NT, outcome_N, known, means

    def judge(self, rollouts: Sequence[Rollout]) -> Known:
        right_N = np.array([r.finished and self.is_right(r) for r in rollouts], float)
        verdicts = [self.task.verdicts(r.problem, r.steps) for r in rollouts] if self.task else None
        prm, orm = (scorer and score(scorer, self.policy, rollouts) for scorer in (self.prm, self.orm))
        before = 1.0 if self.prm and self.prm.label_kind == "correctness" else 0.5  # an empty solution is right
        form = FORMS[self.cfg.prm_form]
        prm_reward = [form(log_odds_T, before) for log_odds_T in prm] if prm else None
        return Known(right_N, verdicts, prm, prm_reward, orm, self.own, self.policy.sampling.max_tokens)


def as_arrays(name: str, found, rollouts: Sequence[Rollout]) -> np.ndarray | list[np.ndarray]:
    """outcome_N, or a list of each roll-out's step rewards, of what a source gives; InputError where it is neither."""
    try:
        rows = [np.asarray(row) for row in found]
    except (TypeError, ValueError):  # None, a number, ragged lists
        rows = []
    shapes, of_steps = [row.shape for row in rows], [(len(r.steps),) for r in rollouts]
    is_right = shapes in ([()] * len(rollouts), of_steps) and all(row.dtype.kind in "biuf" for row in rows)
    told = f"{type(found).__name__} of {len(rows)}, of shapes {shapes[:3]}..."
    expected = f"{len(rollouts)} numbers, or as many rows, of shapes {of_steps[:3]}...: a number for each step"
    expect(is_right, f"reward.{name}", told, expected)
    finite = all(np.isfinite(row).all() for row in rows)
    expect(finite, f"reward.{name}", "a number that is not finite", "numbers")
    return rows if shapes == of_steps else np.array(rows)


def score(scorer, policy: Policy, rollouts: Sequence[Rollout]) -> list[np.ndarray]:
    """Log-odds of the steps. A verifier with the policy's tokenizer and format reads the very ids that were sampled."""
    if isinstance(scorer, ModelScorer):
        of_scores = {name: getattr(policy.format, name) for name in ("head", "score", "beta", "label_kind")}
        is_alike = dataclasses.replace(scorer.format, **of_scores) == policy.format
        if is_alike and scorer.tokenizer.get_vocab() == policy.tokenizer.get_vocab():
            return scorer.score_encoded([as_scored(policy, r) for r in rollouts])
    return scorer.score([(r.problem, r.steps) for r in rollouts])


def as_scored(policy: Policy, r: Rollout) -> Encoded:
    """A roll-out with its separators as marks: without what ends the text, and with the separator that a cut last step lacks."""
    separator = policy.tokenizer.encode(policy.format.separator, add_special_tokens=False)
    n = len(r.ids_L) - int(r.ids_L[-1] in policy.eos_ids)
    ids, step_n = r.ids_L[:n].tolist(), r.step_L[:n].tolist()
    if not ids or not policy.stop_masks["step"][ids[-1]]:
        ids, step_n = [*ids, *separator], [*step_n, *[len(r.steps) - 1] * len(separator)]
    last = {t: at for at, t in enumerate(step_n)}
    start = len(r.prompt_L)
    ids_L = np.concatenate([r.prompt_L, np.array(ids, np.int32)])
    return Encoded(ids_L, np.array([last[t] for t in range(len(r.steps))], np.int32) + start, start)


def read_function(place: str) -> Callable:
    """The function of FILE.py:FUNCTION."""
    path, _, name = place.rpartition(":")
    expect(Path(path).is_file(), "reward.own_function", place, "FILE.py:FUNCTION of a file that exists")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # noqa: BLE001 (anybody's code)
        raise InputError(f"reward.own_function: {path}: {type(error).__name__}: {error}") from None
    expect(callable(getattr(module, name, None)), "reward.own_function", place, f"a function of {path}")
    return getattr(module, name)
