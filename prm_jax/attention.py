"""One attention function. Which keys a query sees is written as one integer per key.

Dimension key: B rows, L query tokens, M key tokens (= L), H query heads, G key/value heads, R = H / G queries per group,
K head size.

Key j is visible to query i when j <= i <= until_BL[b, j]: causality, and the last query position that may see the key.
That one array says causal (until = L - 1 everywhere) and packed (until = last token of the key's own solution).
"""

import jax
import jax.numpy as jnp

MASKED = -1e30  # finite, so that a masked score minus a masked maximum is 0 and not NaN


def attend(q_BLHK, k_BLGK, v_BLGK, until_BL):
    """Softmax attention of packed causal rows; every token must see at least itself. Returns o_BLHK."""
    B, L, H, K = q_BLHK.shape
    G = k_BLGK.shape[2]
    R = H // G
    # One batch axis (row, group) and two matrix axes: the only layout that XLA's CPU backend multiplies at full speed.
    q_bmK = q_BLHK.reshape(B, L, G, R, K).transpose(0, 2, 3, 1, 4).reshape(B * G, R * L, K) * K**-0.5
    k_bLK = k_BLGK.transpose(0, 2, 1, 3).reshape(B * G, L, K)
    v_bLK = v_BLGK.transpose(0, 2, 1, 3).reshape(B * G, L, K)
    o_bmK = _attend_flat(q_bmK, k_bLK, v_bLK, until_BL)
    return o_bmK.reshape(B, G, R, L, K).transpose(0, 3, 1, 2, 4).reshape(B, L, H, K)


def visible(until_BL):
    """Boolean mask_BLM: True where the query (axis L) may read the key (axis M)."""
    i_L = jnp.arange(until_BL.shape[1])
    return (i_L[None, None, :] <= i_L[None, :, None]) & (i_L[None, :, None] <= until_BL[:, None, :])


def _scores(q_bmK, k_bLK, until_BL):
    """Masked attention scores in float32, [B * G, R * L, L]."""
    b, m, _ = q_bmK.shape
    B, L = until_BL.shape
    s_bmL = jax.lax.dot_general(
        q_bmK, k_bLK, (((2,), (2,)), ((0,), (0,))), preferred_element_type=jnp.float32
    )
    s_BGRLM = s_bmL.reshape(B, b // B, m // L, L, L)
    return jnp.where(visible(until_BL)[:, None, None], s_BGRLM, MASKED).reshape(b, m, L)


# The derivative is written out because XLA's own recomputes and transposes the probabilities, several times slower on CPU.
@jax.custom_vjp
def _attend_flat(q_bmK, k_bLK, v_bLK, until_BL):
    return _forward(q_bmK, k_bLK, v_bLK, until_BL)[0]


def _forward(q_bmK, k_bLK, v_bLK, until_BL):
    s_bmL = _scores(q_bmK, k_bLK, until_BL)
    top_bm1 = s_bmL.max(-1, keepdims=True)
    p_bmL = jnp.exp(s_bmL - top_bm1)
    sum_bm1 = p_bmL.sum(-1, keepdims=True)
    # Dividing after the product touches K columns in place of L.
    o_bmK = jnp.matmul(p_bmL.astype(v_bLK.dtype), v_bLK, preferred_element_type=jnp.float32) / sum_bm1
    o_bmK = o_bmK.astype(q_bmK.dtype)
    return o_bmK, (q_bmK, k_bLK, v_bLK, until_BL, o_bmK, top_bm1 + jnp.log(sum_bm1))


def _backward(saved, do_bmK):
    q_bmK, k_bLK, v_bLK, until_BL, o_bmK, lse_bm1 = saved
    p_bmL = jnp.exp(_scores(q_bmK, k_bLK, until_BL) - lse_bm1)
    dp_bmL = jax.lax.dot_general(
        do_bmK, v_bLK, (((2,), (2,)), ((0,), (0,))), preferred_element_type=jnp.float32
    )
    delta_bm1 = (do_bmK.astype(jnp.float32) * o_bmK.astype(jnp.float32)).sum(-1, keepdims=True)
    ds_bmL = (p_bmL * (dp_bmL - delta_bm1)).astype(q_bmK.dtype)
    p_bmL = p_bmL.astype(q_bmK.dtype)
    dq_bmK = jnp.matmul(ds_bmL, k_bLK)
    over_m = (((1,), (1,)), ((0,), (0,)))
    dk_bLK = jax.lax.dot_general(ds_bmL, q_bmK, over_m)
    dv_bLK = jax.lax.dot_general(p_bmL, do_bmK, over_m)
    return dq_bmK, dk_bLK, dv_bLK, None


_attend_flat.defvjp(_forward, _backward)
