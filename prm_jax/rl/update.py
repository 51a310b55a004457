"""One update of a policy: the clipped objective over the tokens that it wrote, and its distance from a reference.

Dimension key: A micro-batches, B rows, L tokens, V vocabulary.
"""

import dataclasses
import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from prm_jax.launch.config import Count, NotNegative, Positive
from prm_jax.launch.mesh import constrain, replicate
from prm_jax.model import PRM

SUMS = ("n_tokens", "kl_change", "held", "pull", "loss")  # of micro-batches


@dataclasses.dataclass(frozen=True)
class UpdateConfig:
    """conf/rl.yaml says what each key means."""

    passes: Count
    clip_low: Positive
    clip_high: Positive
    loss_norm: Literal["response", "token", "constant"]
    kl: NotNegative
    kl_estimator: Literal["k1", "k2", "k3"]
    kl_as: Literal["loss", "reward"]

    @property
    def has_kl_loss(self) -> bool:
        return self.kl > 0 and self.kl_as == "loss"


def kl(log_ratio, estimator: str):
    """An estimate of KL(policy || reference) from log policy - log reference of what the policy wrote (Schulman 2020).

    k1 = log ratio: unbiased, may be negative. k2 = its square over 2: biased, little variance. k3 = exp(-log ratio) - 1 + log ratio:
    unbiased, never negative. As a loss to differentiate, k2 has the gradient of the KL; k1 has none in expectation, and k3's is
    that of KL(reference || policy).
    """
    if estimator == "k1":
        return log_ratio
    return log_ratio**2 / 2 if estimator == "k2" else jnp.expm1(-log_ratio) + log_ratio


def token_weights(mask_NL: np.ndarray, norm: str, max_tokens: int) -> np.ndarray:
    """What each token counts in the loss, weight_NL. response: the mean over responses of the mean over their tokens (GRPO);
    token: the mean over all tokens (DAPO); constant: the sum over all tokens / (responses x max_tokens) (Dr. GRPO)."""
    N, n_N = len(mask_NL), mask_NL.sum(1, keepdims=True)
    size = {"response": N * n_N, "token": mask_NL.sum(), "constant": N * max_tokens}[norm]
    return np.where(mask_NL, 1 / np.maximum(size, 1), 0.0)


def learned(layout, weight_NL, advantage_NL, old_NL, reference_NL, mask_NL) -> dict[str, np.ndarray]:
    """What `policy_loss` reads of the tokens of a rollouts.Layout, {name: x_ABL}."""
    put, gain_NL = layout.put, weight_NL * advantage_NL
    count_ABL = put(mask_NL)
    sums = {"up": put(np.maximum(gain_NL, 0)), "down": put(np.minimum(gain_NL, 0)), "weight": put(weight_NL)}
    mean = lambda x_NL: put(x_NL * mask_NL) / np.maximum(count_ABL, 1)
    return sums | {"count": count_ABL, "old": mean(old_NL), "reference": mean(reference_NL)}


def surrogate(log_ratio, up, down, cfg: UpdateConfig):
    """(the clipped objective's loss, how much of it the clip holds back), rho = policy / the policy that wrote it (PPO).

    -min(rho A, clip(rho) A) is linear in A on either side of 0. So a token that many responses share needs only two sums over
    them, up = sum w max(A, 0) and down = sum w min(A, 0): the loss is -(up min(rho, clip rho) + down max(rho, clip rho)).
    """
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - cfg.clip_low, 1 + cfg.clip_high)
    held = up * (ratio > clipped) - down * (ratio < clipped)
    return -(up * jnp.minimum(ratio, clipped) + down * jnp.maximum(ratio, clipped)), held


def written_logits(model: PRM, batch):
    """What the policy said where each token was written, logit_BLV: its hidden state is that of the token before."""
    x_BLD = model(batch["ids"], batch["pos"], batch["visible_until"])
    return model.vocab_logits(jnp.take_along_axis(x_BLD, batch["before"][:, :, None], axis=1))


def logps(logit_BLV, ids_BL):
    """log p of each token, in nats."""
    own_BL = jnp.take_along_axis(logit_BLV, ids_BL[:, :, None], axis=2)[..., 0]
    return own_BL - jax.nn.logsumexp(logit_BLV, axis=-1)


@jax.jit
def written_logps(model: PRM, batch, used: int):
    """log p of the written tokens of the first `used` micro-batches of a layout, logp_ABL; elsewhere it means nothing."""

    def one(a, logp_ABL):
        micro = {name: x[a] for name, x in batch.items()}
        return logp_ABL.at[a].set(logps(written_logits(model, micro), micro["ids"]))

    return replicate(jax.lax.fori_loop(0, used, one, jnp.zeros(batch["ids"].shape)))


def policy_loss(model: PRM, batch, cfg: UpdateConfig):
    """The loss of one micro-batch [B, L], and sums over its tokens to be logged.

    batch: up, down and weight, whose weights are shares of the whole; count: how many responses have the token; old and
    (with a KL loss) reference: log p by the policy that wrote it and by the one that it began as.
    """
    count_BL, is_written_BL = batch["count"], (batch["count"] > 0).astype(jnp.float32)
    logp_BL = logps(written_logits(model, batch), batch["ids"])
    change_BL = is_written_BL * (logp_BL - batch["old"])
    loss_BL, held_BL = surrogate(change_BL, batch["up"], batch["down"], cfg)
    if cfg.has_kl_loss:
        loss_BL += cfg.kl * batch["weight"] * kl(is_written_BL * (logp_BL - batch["reference"]), cfg.kl_estimator)
    sums = {"n_tokens": count_BL.sum(), "kl_change": (count_BL * kl(change_BL, "k3")).sum()}
    return loss_BL.sum(), sums | {"held": held_BL.sum(), "pull": (batch["up"] - batch["down"]).sum()}


@functools.partial(jax.jit, static_argnames="cfg", donate_argnames=("model", "opt"))
def update(model: PRM, opt: nnx.Optimizer, batch, used: int, cfg: UpdateConfig):
    """One step of the optimiser on the first `used` micro-batches of arrays [A, B, L]; returns (model, opt, metrics): means over
    written tokens, and the share of the absolute advantage that the clip holds back."""
    graph, trained, frozen = nnx.split(model, opt.wrt, ...)

    def accumulate(a, total):
        micro = {name: x[a] for name, x in batch.items()}
        loss = lambda trained: policy_loss(nnx.merge(graph, trained, frozen), micro, cfg)
        (loss, sums), grads = jax.value_and_grad(loss, has_aux=True)(trained)
        return jax.tree.map(jnp.add, total, (constrain(grads), sums | {"loss": loss}))

    zeros = jax.tree.map(jnp.zeros_like, trained), dict.fromkeys(SUMS, jnp.zeros(()))
    grads, sums = jax.lax.fori_loop(0, used, accumulate, zeros)
    opt.update(model, grads)
    metrics = {"kl_change": sums["kl_change"] / jnp.maximum(sums["n_tokens"], 1), "loss": sums["loss"]}
    metrics |= {"clipped": sums["held"] / jnp.maximum(sums["pull"], 1e-12), "grad_norm": optax.tree.norm(grads)}
    model, opt = constrain((model, opt))
    return model, opt, metrics
