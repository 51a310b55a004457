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
from prm_jax.launch.mesh import constrain
from prm_jax.losses import next_token_loss
from prm_jax.model import PRM


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


def surrogate(log_ratio, advantage, cfg: UpdateConfig):
    """(-min(rho A, clip(rho) A), whether the clip holds the token back), rho = policy / the policy that wrote it (PPO)."""
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - cfg.clip_low, 1 + cfg.clip_high)
    return -jnp.minimum(ratio * advantage, clipped * advantage), ratio * advantage > clipped * advantage


def policy_loss(model: PRM, batch, cfg: UpdateConfig):
    """The loss of one micro-batch [B, L], `weight` already its share of the whole, and sums to be logged."""
    is_written_BL = (batch["weight"] > 0).astype(jnp.float32)
    logit_BLV = model.vocab_logits(model(batch["ids"], batch["pos"], batch["visible_until"]))
    logp_BL = -jnp.roll(next_token_loss(logit_BLV, batch["ids"], is_written_BL), 1, axis=1)
    change_BL, from_reference_BL = (is_written_BL * (logp_BL - batch[name]) for name in ("old", "reference"))
    loss_BL, is_clipped_BL = surrogate(change_BL, batch["advantage"], cfg)
    if cfg.kl > 0 and cfg.kl_as == "loss":
        loss_BL += cfg.kl * kl(from_reference_BL, cfg.kl_estimator)
    log_p_BLV = jax.nn.log_softmax(jax.lax.stop_gradient(logit_BLV))
    entropy_BL = jnp.roll(-(jnp.exp(log_p_BLV) * log_p_BLV).sum(-1), 1, axis=1)
    sums = {
        "n_tokens": is_written_BL.sum(),
        "clipped": (is_written_BL * is_clipped_BL).sum(),
        "entropy": (is_written_BL * entropy_BL).sum(),
        "kl_reference": kl(from_reference_BL, "k3").sum(),
        "kl_change": kl(change_BL, "k3").sum(),
    }
    return (batch["weight"] * loss_BL).sum(), sums


@functools.partial(jax.jit, static_argnames="cfg", donate_argnames=("model", "opt"))
def update(model: PRM, opt: nnx.Optimizer, batch, cfg: UpdateConfig):
    """One step of the optimiser on A micro-batches, arrays [A, B, L]; returns (model, opt, metrics)."""
    graph, trained, frozen = nnx.split(model, opt.wrt, ...)

    def accumulate(total, micro):
        loss = lambda trained: policy_loss(nnx.merge(graph, trained, frozen), micro, cfg)
        (loss, sums), grads = jax.value_and_grad(loss, has_aux=True)(trained)
        return jax.tree.map(jnp.add, total, (constrain(grads), sums | {"loss": loss})), None

    names = ("n_tokens", "clipped", "entropy", "kl_reference", "kl_change", "loss")
    zeros = jax.tree.map(jnp.zeros_like, trained), dict.fromkeys(names, jnp.zeros(()))
    (grads, sums), _ = jax.lax.scan(accumulate, zeros, batch)
    opt.update(model, grads)
    loss, n_tokens = sums.pop("loss"), sums.pop("n_tokens")
    metrics = {f"{name}": x / jnp.maximum(n_tokens, 1) for name, x in sums.items()}
    model, opt = constrain((model, opt))
    return model, opt, metrics | {"loss": loss, "grad_norm": optax.tree.norm(grads)}
