"""A verifier that learns while the policy does, from the policy's own roll-outs, so that its scores keep a meaning for them.

labels=outcome with a language model: PRIME (Cui et al. 2025, arXiv 2502.01456). An implicit PRM, at first the policy itself, learns
by cross-entropy on whether answers are right, and a step's reward is beta log PRM / reference of its tokens (scoring.step_ratios).
labels=steps with a PRM: periodic retraining on fresh labels of the exact checker, up to the first wrong step. labels=outcome with
a PRM: a response is one roll-out from each of its steps, so its outcome is their value, as Monte-Carlo labels with K = 1.

Dimension key: A micro-batches, B rows, L tokens.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import jax

from prm_jax import tasks
from prm_jax.checkpoints.open import open_checkpoint
from prm_jax.checkpoints.verifiers import BUILT_IN, Opening, open_verifier
from prm_jax.data.examples import Example, make_example
from prm_jax.data.packing import Plan, doubled, make_groups, pack_batch
from prm_jax.data.solutions import Solution, relabel_after_error
from prm_jax.generate.sampling import Policy
from prm_jax.launch.config import Count, Natural, Positive, expect
from prm_jax.launch.mesh import shard_batch
from prm_jax.rl.rewards import Known, as_scored
from prm_jax.rl.rollouts import Rollout
from prm_jax.scoring import ModelScorer
from prm_jax.training import LossConfig, OptimizerConfig, make_optimizer, train_step, with_reference

ROWS = 16  # packed rows of a micro-batch


@dataclasses.dataclass(frozen=True)
class OnlineConfig:
    """conf/rl.yaml says what each key means."""

    every: Natural
    passes: Count
    labels: Literal["steps", "outcome"]
    lr: Positive
    beta: Positive


def open_prm(name: str, how: Opening, cfg: OnlineConfig):
    """The verifier `name`; of a language model that learns online the implicit PRM that it is, measured against itself."""
    if not cfg.every or BUILT_IN.fullmatch(name):
        return open_verifier(name, how)
    loaded, second = (open_checkpoint(name, how.which, how.format, how.dtype) for _ in range(2))
    if loaded.objective == "lm":
        of_ratio = {"head": "implicit", "score": "log_ratio", "beta": cfg.beta, "label_kind": "value"}
        fmt = dataclasses.replace(loaded.format, **of_ratio)
        loaded = dataclasses.replace(
            loaded, format=fmt, objective="prm", label_kind="value", reference=second.model, config=None
        )
    return loaded.scorer(how.rows, how.tokens)


class Online:
    """The verifier's optimiser, and what it learns from."""

    def __init__(self, cfg: OnlineConfig, scorer, policy: Policy, row_tokens: int, steps: int):
        trains = isinstance(scorer, ModelScorer)
        expect(trains, "online.every", cfg.every, "0: reward.prm_checkpoint has nothing that trains")
        self.is_implicit = scorer.reference is not None
        by_outcome = cfg.labels == "outcome"
        expect(by_outcome or not self.is_implicit, "online.labels", cfg.labels, "outcome, as an implicit PRM learns")
        kind = {"value": "outcome", "correctness": "steps"}.get(scorer.label_kind, cfg.labels)
        kind = "outcome" if scorer.objective == "orm" else kind
        expect(cfg.labels == kind, "online.labels", cfg.labels, f"{kind}: what the verifier's scores mean")
        self.cfg, self.scorer, self.policy, self.row_tokens = cfg, scorer, policy, row_tokens
        objective = "implicit" if self.is_implicit else "prm"
        self.loss = LossConfig(objective, "bce", 1.0, 0.0, beta=scorer.format.beta)
        plain = OptimizerConfig(cfg.lr, 0.0, 1.0, 0.0, 0.9, 0.98, 1.0, "all", "float32")
        self.opt = make_optimizer(scorer.model, plain, steps // cfg.every * cfg.passes)

    def learn(self, rollouts: Sequence[Rollout], known: Known) -> dict[str, float]:
        """`passes` steps of the verifier's optimiser on these roll-outs."""
        examples = self.examples(rollouts, known)
        share = not self.is_implicit  # whose tokens each have one that is next
        groups = make_groups(examples, self.row_tokens, share)
        plan = Plan(self.row_tokens, self.row_tokens, groups, share)  # each response's own slots, for shared steps, too
        packs = plan.rows(range(len(groups)))
        packs += [[]] * (doubled(ROWS, len(packs)) - len(packs))
        batch = pack_batch([[examples[i] for i in pack] for pack in packs], self.row_tokens, plan.step_slots, share)
        batch = shard_batch({name: x.reshape(-1, ROWS, x.shape[1]) for name, x in batch.items()}, ROWS, axis=1)
        for _ in range(self.cfg.passes):
            self.scorer.model, self.opt, told = train_step(
                self.scorer.model, self.opt, batch, self.loss, jax.random.key(0)
            )
        return {f"online_{name}": float(told[name]) for name in ("loss", "accuracy")}

    def examples(self, rollouts: Sequence[Rollout], known: Known) -> list[Example]:
        expect(
            known.verdicts is not None or self.cfg.labels == "outcome",
            "online.labels",
            "steps",
            "outcome: problems of a file",
        )
        found = []
        for i, (r, right) in enumerate(zip(rollouts, known.right_N, strict=True)):
            by_steps = self.cfg.labels == "steps"
            labels = tasks.correctness(known.verdicts[i]) if by_steps else [float(right)] * len(r.steps)
            solution = Solution(r.problem, r.steps, tuple(labels), outcome=float(right))
            solution = relabel_after_error(solution, "mask") if by_steps else solution
            found.append(make_example(as_scored(self.policy, r), solution, self.loss.objective, "uniform"))
        if self.is_implicit:
            found = with_reference(found, self.scorer.reference, self.row_tokens, ROWS)
        return found
