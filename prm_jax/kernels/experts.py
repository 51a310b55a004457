"""A layer of many experts, of which each token takes a few (Shazeer et al. 2017; Qwen3-MoE): no token is dropped.

The pairs (token, expert) are sorted by expert, so that each expert's matrix multiplies one run of rows. Experts are not
divided among devices; on a mesh XLA brings the tokens of all devices together to sort them. On CPU XLA multiplies every
expert's matrix with every row.

Dimension key: n tokens, E experts, j of them a token takes, m = n j pairs, D model, F features in or out.
"""

import jax
import jax.numpy as jnp

from prm_jax.kernels.remat import save_for_backward


def mixture(x_BLD, logit_BLE, taken: int, to_one: bool, layer):
    """The sum over the `taken` experts of highest logit of softmax x expert's output; `to_one`: their shares sum to 1.

    `layer(x_mD, dot)` is that output, with dot(x_mF, w_EFF, None) in place of a linear layer.
    """
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
