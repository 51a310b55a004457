"""One update of a policy: the clipped objective over the sampled tokens, and the KL divergence from a
reference.

Dimension key: A micro-batches, B rows, L tokens, N responses, D model."""

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

SUMS = ("n_tokens", "kl_change", "clipped_mass", "total_mass", "loss")  # of `policy_loss`, over micro-batches


@dataclasses.dataclass(frozen=True)
class UpdateConfig:  # conf/rl.yaml says what each key means
    passes: Count
    clip_low: Positive
    clip_high: Positive
    loss_norm: Literal["response", "token", "constant"]
    kl: NotNegative
    # ppo: the ratio of each token is clipped; gspo: that of its response (geometric mean); cispo: a constant.
    surrogate: Literal["ppo", "gspo", "cispo"] = "ppo"


def kl(log_ratio):
    """Estimates KL(policy || reference) in nats from log policy - log reference of the policy's samples, by
    Schulman's k3 (2020): exp(-log ratio) - 1 + log ratio, unbiased and never negative. As a loss its expected
    gradient is that of KL(reference || policy)."""
    return jnp.expm1(-log_ratio) + log_ratio


def token_weights(mask_NL: np.ndarray, norm: str, max_tokens: int) -> np.ndarray:
    """The weight of each token in the loss. response: mean over responses of the mean over tokens (GRPO);
    token: mean over all (DAPO); constant: sum / (responses x max_tokens) (Dr. GRPO)."""
    N = len(mask_NL)
    n_N1 = mask_NL.sum(1, keepdims=True)
    size = {"response": N * n_N1, "token": mask_NL.sum(), "constant": N * max_tokens}[norm]
    return np.where(mask_NL, 1 / np.maximum(size, 1), 0.0)


def loss_inputs(layout, weight_NL, advantage_NL, old_NL, mask_NL) -> dict[str, np.ndarray]:
    """The inputs of `policy_loss` besides the ids, {name: x_ABL} at the places of a RolloutLayout."""
    gain_NL = weight_NL * advantage_NL
    sums = {"up": np.maximum(gain_NL, 0), "down": np.minimum(gain_NL, 0)}
    sums |= {"weight": weight_NL, "count": mask_NL}
    sums = {name: layout.scatter(x_NL) for name, x_NL in sums.items()}
    mean_ABL = layout.scatter(old_NL * mask_NL) / np.maximum(sums["count"], 1)  # of those that share a token
    return sums | {"old": mean_ABL}


def surrogate(log_ratio, up, down, cfg: UpdateConfig):
    """(the clipped objective's loss, the weighted |A| that the clip cuts off), ratio = policy / sampling
    policy (PPO). -min(ratio A, clip(ratio) A) is linear in A on either side of 0. So a shared token needs
    only two sums, up = sum w max(A, 0) and down = sum w min(A, 0). CISPO (MiniMax 2025, arXiv 2506.13585):
    the clipped ratio is a constant weight of log p, so that every token keeps a gradient."""
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - cfg.clip_low, 1 + cfg.clip_high)
    if cfg.surrogate == "cispo":
        loss = -(up + down) * jax.lax.stop_gradient(clipped) * log_ratio
        return loss, (up - down) * (ratio != clipped)
    clipped_mass = up * (ratio > clipped) - down * (ratio < clipped)
    return -(up * jnp.minimum(ratio, clipped) + down * jnp.maximum(ratio, clipped)), clipped_mass


def of_sequence(log_ratio_BL, start_BL, is_written_BL):
    """The mean log ratio of each token's response, which starts at start_BL of its row, with the gradient of
    the token's own (GSPO-token, Zheng et al. 2025, arXiv 2507.18071, eq. 14: an advantage of each token)."""

    def mean(ratio_L, start_L, is_written_L):
        sum_L, n_L = (jax.ops.segment_sum(x_L, start_L, len(start_L)) for x_L in (ratio_L, is_written_L))
        return (sum_L / jnp.maximum(n_L, 1))[start_L]

    mean_BL = jax.vmap(mean)(log_ratio_BL, start_BL, is_written_BL)
    return log_ratio_BL + jax.lax.stop_gradient(mean_BL - log_ratio_BL)


def sampled_logps(model: PRM, batch):
    """log p of each token in nats, logp_BL, by the logits of the token before it."""
    x_BLD = model(batch["ids"], batch["pos"], batch["visible_until"])
    return model.logprobs(jnp.take_along_axis(x_BLD, batch["before"][:, :, None], axis=1), batch["ids"])


@jax.jit
def written_logps(model: PRM, batch, used: int):
    """log p of the sampled tokens in the first `used` micro-batches, logp_ABL; undefined elsewhere."""

    def add(a, logp_ABL):
        return logp_ABL.at[a].set(sampled_logps(model, {name: x[a] for name, x in batch.items()}))

    return replicate(jax.lax.fori_loop(0, used, add, jnp.zeros(batch["ids"].shape)))


def policy_loss(model: PRM, batch, cfg: UpdateConfig):
    """The loss of one micro-batch [B, L], and SUMS over its tokens to be logged. batch: all arrays of
    rollouts.lay_out; up, down and weight, in shares of the whole batch; count: the number of responses with
    the token; old and (with a KL loss) reference: log p under the policy that sampled it and under the one
    that the run began with."""
    count_BL = batch["count"]
    is_written_BL = (count_BL > 0).astype(jnp.float32)
    logp_BL = sampled_logps(model, batch)
    change_BL = is_written_BL * (logp_BL - batch["old"])
    ratio_BL = of_sequence(change_BL, batch["start"], is_written_BL) if cfg.surrogate == "gspo" else change_BL
    loss_BL, clipped_mass_BL = surrogate(ratio_BL, batch["up"], batch["down"], cfg)
    if cfg.kl:
        away_BL = is_written_BL * (logp_BL - batch["reference"])
        loss_BL += cfg.kl * batch["weight"] * kl(away_BL)
    sums = {"n_tokens": count_BL.sum(), "kl_change": (count_BL * kl(change_BL)).sum()}
    sums |= {"clipped_mass": clipped_mass_BL.sum(), "total_mass": (batch["up"] - batch["down"]).sum()}
    return loss_BL.sum(), sums


@functools.partial(jax.jit, static_argnames="cfg", donate_argnames=("model", "opt"))
def update(model: PRM, opt: nnx.Optimizer, batch, used: int, cfg: UpdateConfig):
    """Makes one optimiser step on the first `used` micro-batches of arrays [A, B, L]; returns (model, opt,
    metrics): means over sampled tokens, and the share of the absolute advantage that the clip cuts off."""
    graph, trained, frozen = nnx.split(model, opt.wrt, ...)

    def loss_and_sums(trained, micro):
        return policy_loss(nnx.merge(graph, trained, frozen), micro, cfg)

    def accumulate(a, total):
        micro = {name: x[a] for name, x in batch.items()}
        (loss, sums), grads = jax.value_and_grad(loss_and_sums, has_aux=True)(trained, micro)
        return jax.tree.map(jnp.add, total, (constrain(grads), sums | {"loss": loss}))

    zeros = jax.tree.map(jnp.zeros_like, trained), dict.fromkeys(SUMS, jnp.zeros(()))
    grads, sums = jax.lax.fori_loop(0, used, accumulate, zeros)
    opt.update(model, grads)
    metrics = {"kl_change": sums["kl_change"] / jnp.maximum(sums["n_tokens"], 1), "loss": sums["loss"]}
    metrics["clipped"] = sums["clipped_mass"] / jnp.maximum(sums["total_mass"], 1e-12)
    return *constrain((model, opt)), metrics | {"grad_norm": optax.tree.norm(grads)}
