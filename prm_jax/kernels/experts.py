"""A mixture of experts without dropped tokens (Shazeer et al. 2017; Qwen3-MoE): pairs (token, expert) are
sorted by expert, so that each expert's matrix multiplies consecutive rows. On a mesh XLA gathers all devices'
tokens to sort them; on CPU it multiplies every expert's matrix with every row.

Dimension key: n tokens, E experts, j experts per token, m = n j pairs, D model, F features in or out."""

import jax
import jax.numpy as jnp

from prm_jax.kernels.cpu import save_for_backward


def mixture(x_BLD, logit_BLE, taken: int, to_one: bool, layer):
    """The outputs of each token's `taken` experts of highest logit, weighted by the softmax; with `to_one`
    weights sum to 1. `layer(x_mD, dot)` computes an expert's output by dot(x_mF, w_EFF, None)."""
    p_nE = jax.nn.softmax(logit_BLE.astype(jnp.float32).reshape(-1, logit_BLE.shape[-1]))
    share_nj, expert_nj = jax.lax.top_k(p_nE, taken)
    if to_one:
        share_nj /= share_nj.sum(-1, keepdims=True)
    order_m = jnp.argsort(expert_nj.reshape(-1))
    size_E = jnp.bincount(expert_nj.reshape(-1), length=p_nE.shape[-1])

    def dot(x_mF, w_EFF, no_bias):
        return save_for_backward(jax.lax.ragged_dot(x_mF, w_EFF[...].astype(x_mF.dtype), size_E), "linear")

    x_mD = jnp.repeat(x_BLD.reshape(-1, x_BLD.shape[-1]), taken, axis=0)[order_m]
    y_njD = layer(x_mD, dot)[jnp.argsort(order_m)].reshape(*share_nj.shape, -1)
    return jnp.einsum("njD,nj->nD", y_njD, share_nj.astype(y_njD.dtype)).reshape(x_BLD.shape)
