"""Trains a verifier on the policy's roll-outs, so that its scores stay valid for what the policy writes.

labels=outcome with a language model is PRIME's verifier (Cui et al. 2025, arXiv 2502.01456; all of PRIME, by
steps, is experiment=prime): an implicit PRM, at first the policy itself, learns by cross-entropy whether
answers are right, and a step's reward is beta log PRM / reference of its tokens (scoring.step_ratios).
labels=steps retrains a PRM on labels of the exact checker, up to the first wrong step. labels=outcome with a
PRM takes a response's outcome as the value of its steps, a Monte-Carlo label with K = 1.

Dimension key: A micro-batches, B rows, L tokens.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import jax

from prm_jax import tasks
from prm_jax.checkpoints.open import open_checkpoint
from prm_jax.checkpoints.verifiers import OpenOptions, needs_folder, open_verifier
from prm_jax.examples import Example, make_example
from prm_jax.generate.sampling import Policy
from prm_jax.launch.config import Count, Natural, Positive, expect
from prm_jax.launch.mesh import shard_batch
from prm_jax.packing import Plan, doubled, make_groups, pack_batch
from prm_jax.rl.rewards import RolloutScores, as_scored
from prm_jax.rl.rollouts import Rollout
from prm_jax.scoring import ModelScorer
from prm_jax.solutions import Solution, relabel_after_error
from prm_jax.training import LossConfig, OptimizerConfig, make_optimizer, train_step, with_reference

ROWS = 16  # packed rows of a micro-batch


@dataclasses.dataclass(frozen=True)
class OnlineConfig:  # conf/rl.yaml says what each key means
    every: Natural
    passes: Count
    labels: Literal["steps", "outcome"]
    lr: Positive
    beta: Positive


def open_prm(name: str, options: OpenOptions, cfg: OnlineConfig):
    """The verifier `name`. A language model that learns online is an implicit PRM with itself as
    reference."""
    if not cfg.every or not needs_folder(name):
        return open_verifier(name, options)
    loaded = open_checkpoint(name, options.which, options.format, options.dtype)
    if loaded.objective == "lm":
        form = {"head": "implicit", "score": "log_ratio", "beta": cfg.beta, "label_kind": "value"}
        fmt = dataclasses.replace(loaded.format, **form)
        loaded = open_checkpoint(name, options.which, fmt, options.dtype, reference=name)
    return loaded.scorer(options.rows, options.tokens)


class Online:
    """A verifier in training, with its optimiser and its loss."""

    def __init__(self, cfg: OnlineConfig, scorer, policy: Policy, row_tokens: int, steps: int):
        has_model = isinstance(scorer, ModelScorer)
        expect(has_model, "online.every", cfg.every, "0: reward.prm_checkpoint has nothing that trains")
        self.is_implicit = scorer.reference is not None
        by_outcome = cfg.labels == "outcome"
        expect(
            by_outcome or not self.is_implicit,
            "online.labels",
            cfg.labels,
            "outcome, as an implicit PRM learns",
        )
        kind = {"value": "outcome", "correctness": "steps"}.get(scorer.label_kind, cfg.labels)
        kind = "outcome" if scorer.objective == "orm" else kind
        expect(cfg.labels == kind, "online.labels", cfg.labels, f"{kind}: what the verifier's scores mean")
        self.cfg, self.scorer, self.policy, self.row_tokens = cfg, scorer, policy, row_tokens
        self.loss = LossConfig(
            "implicit" if self.is_implicit else "prm", "bce", 1.0, 0.0, beta=scorer.format.beta
        )
        optimizer = OptimizerConfig(cfg.lr, 0.0, 1.0, 0.0, 0.9, 0.98, 1.0, "all", "float32")
        self.opt = make_optimizer(scorer.model, optimizer, steps // cfg.every * cfg.passes)

    def learn(self, rollouts: Sequence[Rollout], scores: RolloutScores) -> dict[str, float]:
        """Makes `passes` steps of the verifier's optimiser on these roll-outs."""
        examples, key = self.examples(rollouts, scores), jax.random.key(0)
        share = not self.is_implicit  # each token of an implicit PRM needs one next token
        groups = make_groups(examples, self.row_tokens, share)
        plan = Plan(
            self.row_tokens, self.row_tokens, groups, share
        )  # slots for each response's steps, shared or not
        packs = plan.rows(range(len(groups)))
        packs += [[]] * (doubled(ROWS, len(packs)) - len(packs))
        batch = pack_batch(
            [[examples[i] for i in pack] for pack in packs], self.row_tokens, plan.step_slots, share
        )
        batch = shard_batch(
            {name: x.reshape(-1, ROWS, x.shape[1]) for name, x in batch.items()}, ROWS, axis=1
        )
        for _ in range(self.cfg.passes):
            self.scorer.model, self.opt, metrics = train_step(
                self.scorer.model, self.opt, batch, self.loss, key
            )
        return {f"online_{name}": float(metrics[name]) for name in ("loss", "accuracy")}

    def examples(self, rollouts: Sequence[Rollout], scores: RolloutScores) -> list[Example]:
        """The roll-outs as training examples, with labels of steps or with the outcome at every step."""
        examples, by_steps = [], self.cfg.labels == "steps"
        expect(scores.verdicts or not by_steps, "online.labels", "steps", "outcome: problems of a file")
        for i, (r, right) in enumerate(zip(rollouts, scores.right_N, strict=True)):
            labels = tasks.correctness(scores.verdicts[i]) if by_steps else [float(right)] * len(r.steps)
            solution = Solution(r.problem, r.steps, tuple(labels), outcome=float(right))
            solution = relabel_after_error(solution, "mask") if by_steps else solution
            examples.append(make_example(as_scored(self.policy, r), solution, self.loss.objective, "uniform"))
        if self.is_implicit:
            examples = with_reference(examples, self.scorer.reference, self.row_tokens, ROWS)
        return examples
