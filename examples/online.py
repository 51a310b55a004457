"""A Hydra command with the keys of `python -m prm_jax.rl`: PRIME, RL in which the verifier learns from the
policy's roll-outs (Cui et al. 2025, arXiv 2502.01456).

    python -m examples.online algorithm=prime

reward.prm_checkpoint is a language model, at first the policy itself. It becomes an implicit PRM, which
learns by cross-entropy whether answers are right; a step's reward is beta log PRM / reference of its tokens.
Edit the constants below."""

import dataclasses

import jax
from flax import nnx

from prm_jax import training
from prm_jax.checkpoints.open import open_checkpoint
from prm_jax.encoding import encode
from prm_jax.examples import make_example
from prm_jax.formats import policy_format
from prm_jax.launch import cli
from prm_jax.launch.config import expect
from prm_jax.launch.mesh import shard_batch
from prm_jax.packing import Plan, doubled, make_groups, pack_batch
from prm_jax.rl.__main__ import Trainer, train_policy
from prm_jax.solutions import Solution

OPTIMIZER = {"lr": 1e-3, "warmup": 0.0, "final_lr": 1.0, "weight_decay": 0.0, "clip": 1.0}
OPTIMIZER |= {"b1": 0.9, "b2": 0.98, "trainable": "all", "mu_dtype": "float32"}
BETA = 0.05  # of an implicit PRM: log-odds per nat
ROWS = 16  # packed rows of a micro-batch


class OnlineTrainer(Trainer):
    def __init__(self, cfg, problems):
        super().__init__(cfg, problems)
        expect(cfg.reward.prm_checkpoint, "reward.prm_checkpoint", None, "a language model")
        self.verifier = self.rewards.prm
        self.verifier.model = training.in_float32(self.verifier.model)
        self.loss = training.LossConfig("implicit", "bce", pos_weight=1.0, lm_weight=0.0, beta=BETA)
        settings = training.OptimizerConfig(**OPTIMIZER)
        self.verifier_opt = training.make_optimizer(self.verifier.model, settings, cfg.steps)

    def open_verifier(self, name):
        """A language model as an implicit PRM with itself as reference."""
        loaded = open_checkpoint(name, "best", None, self.cfg.dtype)
        expect(loaded.objective == "lm", "reward.prm_checkpoint", name, "a language model")
        form = {"head": "implicit", "score": "log_ratio", "beta": BETA, "label_kind": "value"}
        fmt = policy_format(loaded.format or self.cfg.format.whole(), loaded.tokenizer)
        fmt = dataclasses.replace(fmt, **form)
        implicit = open_checkpoint(name, "best", fmt, self.cfg.dtype, reference=name)
        return implicit.scorer(32, self.cfg.batch.tokens)

    def learners(self):
        return nnx.Dict(opt=self.opt, verifier=self.verifier.model, verifier_opt=self.verifier_opt)

    def learn_beside(self, step, rollouts, reward):
        """Makes one step of the verifier's optimiser on the roll-outs."""
        rows = [(r.problem, r.steps) for r in rollouts]
        encoded = encode(self.verifier.format, self.verifier.tokenizer, rows)
        width = doubled(self.cfg.batch.tokens, max(len(e.ids_L) for e in encoded))
        examples = []
        for e, (problem, steps), outcome in zip(encoded, rows, reward.right_N, strict=True):
            solution = Solution(problem, steps, outcome=float(outcome))
            examples.append(make_example(e, solution, self.loss.objective))
        examples = training.add_reference(examples, self.verifier.reference, width, ROWS)
        groups = make_groups(examples, width, share=False)  # each token needs one next token
        plan = Plan(width, width, groups, share=False)
        packs = plan.rows(range(len(groups)))
        packs += [[]] * (doubled(ROWS, len(packs)) - len(packs))
        packed = [[examples[i] for i in pack] for pack in packs]
        batch = pack_batch(packed, width, plan.step_slots, share=False)
        batch = shard_batch({k: x.reshape(-1, ROWS, x.shape[1]) for k, x in batch.items()}, ROWS, axis=1)
        new = training.train_step(self.verifier.model, self.verifier_opt, batch, self.loss, jax.random.key(0))
        self.verifier.model, self.verifier_opt, metrics = new
        return {f"online_{name}": metrics[name] for name in ("loss", "accuracy")}


@cli.command("rl")
def main(cfg):
    """Train a policy and its verifier together."""
    return train_policy(cfg, trainer=OnlineTrainer)


if __name__ == "__main__":
    main()
