"""One attention function. Which keys a query sees is written as one integer per key.

Key j is visible to query i when j <= i <= visible_until_BL[b, j]: causality, and the last query position that may see the key.
That one array says causal (until = L - 1 everywhere), packed (until = last token of the key's own solution) and prefix
tree (tokens in depth-first order, until = last token of the subtree below the key). A value of L or more is padding.

Which formulation runs where: rows above SHORT tokens on CPU, `tiled`; on TPU, the Pallas kernels of flash.py; a GPU in half
precision, cuDNN's fused kernel; anything else (short rows), `dense`. `tiled`, `dense` and, in interpret mode, flash.py agree
with an einsum (tests/test_attention.py); on GPU and TPU nothing was run. On a mesh each device attends to its own rows and heads (`on_own_heads` in sharding.py): a loop over the
tiles of all rows would gather the rows of all devices.

Dimension key: B rows, L query tokens, M key tokens (= L), H query heads, G key/value heads, R = H / G queries per group,
K head size, N tiles of all rows, t tokens of a tile, m = R t.
"""

import jax
import jax.numpy as jnp

from prm_jax.kernels.remat import save_inside
from prm_jax.launch.mesh import platform

MASKED = -1e30  # finite, so that a masked score minus a masked maximum is 0 and not NaN
SHORT = 128  # rows up to here are one dense product: a loop over tiles has nothing to skip
TILE = 64  # tokens; a tile's scores stay in a core's cache (measured, with gradient: 128 takes 1.2 x as long)


def attend(q_BLHK, k_BLGK, v_BLGK, visible_until_BL):
    """Softmax attention; every token must see at least itself. Returns o_BLHK."""
    _, L, _, K = q_BLHK.shape
    # cuDNN's backward pass with a mask takes rows of even length and heads of a multiple of 8.
    if platform() == "gpu" and q_BLHK.dtype in (jnp.bfloat16, jnp.float16) and L % 2 == 0 and K % 8 == 0:
        mask_B1LM = visible(visible_until_BL)[:, None]
        return jax.nn.dot_product_attention(q_BLHK, k_BLGK, v_BLGK, mask=mask_B1LM, implementation="cudnn")
    if platform() == "tpu" and L > SHORT:
        from prm_jax.kernels.flash import flash  # imports Pallas

        return flash(q_BLHK, k_BLGK, v_BLGK, visible_until_BL)
    if platform() == "cpu" and L > SHORT:
        return tiled(q_BLHK, k_BLGK, v_BLGK, visible_until_BL)
    return dense(q_BLHK, k_BLGK, v_BLGK, visible_until_BL)


def visible(visible_until_BL):
    """Boolean mask_BLM: True where the query (axis L) may read the key (axis M)."""
    i_L = jnp.arange(visible_until_BL.shape[1])
    return (i_L[None, None, :] <= i_L[None, :, None]) & (i_L[None, :, None] <= visible_until_BL[:, None, :])


def multiply(a, b, over_a: int, over_b: int):
    """Matrix products of a and b summed over one axis each, axis 0 a batch, in float32."""
    dimensions = (((over_a,), (over_b,)), ((0,), (0,)))
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


# All scores at once


def dense(q_BLHK, k_BLGK, v_BLGK, visible_until_BL):
    """L x L scores of every row and head. One batch axis (row, group) and two matrix axes, the only layout that XLA's CPU
    backend multiplies at full speed."""
    B, L, H, K = q_BLHK.shape
    G = k_BLGK.shape[2]
    R = H // G
    q_bmK = q_BLHK.reshape(B, L, G, R, K).transpose(0, 2, 3, 1, 4).reshape(B * G, R * L, K) * K**-0.5
    k_bLK = k_BLGK.transpose(0, 2, 1, 3).reshape(B * G, L, K)
    v_bLK = v_BLGK.transpose(0, 2, 1, 3).reshape(B * G, L, K)
    o_bmK = _dense(q_bmK, k_bLK, v_bLK, visible_until_BL)
    return o_bmK.reshape(B, G, R, L, K).transpose(0, 3, 1, 2, 4).reshape(B, L, H, K)


def _scores(q_bmK, k_bLK, visible_until_BL):
    """Masked attention scores in float32, [B * G, R * L, L]."""
    b, m, _ = q_bmK.shape
    B, L = visible_until_BL.shape
    s_BGRLM = multiply(q_bmK, k_bLK, 2, 2).reshape(B, b // B, m // L, L, L)
    return jnp.where(visible(visible_until_BL)[:, None, None], s_BGRLM, MASKED).reshape(b, m, L)


# The derivative is written out because XLA's own recomputes and transposes the probabilities, several times slower on CPU.
@jax.custom_vjp
def _dense(q_bmK, k_bLK, v_bLK, visible_until_BL):
    return _dense_forward(q_bmK, k_bLK, v_bLK, visible_until_BL)[0]


def _dense_forward(q_bmK, k_bLK, v_bLK, visible_until_BL):
    s_bmL = _scores(q_bmK, k_bLK, visible_until_BL)
    top_bm1 = s_bmL.max(-1, keepdims=True)
    p_bmL = jnp.exp(s_bmL - top_bm1)
    sum_bm1 = p_bmL.sum(-1, keepdims=True)
    # Dividing after the product touches K columns in place of L.
    o_bmK = (multiply(p_bmL.astype(v_bLK.dtype), v_bLK, 2, 1) / sum_bm1).astype(q_bmK.dtype)
    o_bmK, lse_bm1 = (save_inside(x, "attention") for x in (o_bmK, top_bm1 + jnp.log(sum_bm1)))
    return o_bmK, (q_bmK, k_bLK, v_bLK, visible_until_BL, o_bmK, lse_bm1)


def _dense_backward(saved, do_bmK):
    q_bmK, k_bLK, v_bLK, visible_until_BL, o_bmK, lse_bm1 = saved
    p_bmL = jnp.exp(_scores(q_bmK, k_bLK, visible_until_BL) - lse_bm1)
    dp_bmL = multiply(do_bmK, v_bLK, 2, 2)
    delta_bm1 = (do_bmK.astype(jnp.float32) * o_bmK.astype(jnp.float32)).sum(-1, keepdims=True)
    dtype = q_bmK.dtype
    ds_bmL, p_bmL = (p_bmL * (dp_bmL - delta_bm1)).astype(dtype), p_bmL.astype(dtype)
    gradients = multiply(ds_bmL, k_bLK, 2, 1), multiply(ds_bmL, q_bmK, 1, 1), multiply(p_bmL, do_bmK, 1, 1)
    return *(x.astype(dtype) for x in gradients), None


_dense.defvjp(_dense_forward, _dense_backward)


# Only the tiles that hold a visible pair (FlashAttention's loop, with its online softmax: 2205.14135, 2307.08691)


def tiled(q_BLHK, k_BLGK, v_BLGK, visible_until_BL):
    """A loop over the pairs (query tile, key tile) in which some query sees some key: cost and memory grow with what is
    visible and not with L x L, so the length of a row is free. All rows are tiles of one long row, in which no token sees
    one of another row."""
    B, L, H, K = q_BLHK.shape
    G, t = k_BLGK.shape[2], TILE
    R, n = H // G, -(-L // t)
    N = B * n
    own_L = jnp.arange(n * t)
    visible_until_BL = jnp.pad(visible_until_BL, ((0, 0), (0, n * t - L)), constant_values=L)
    visible_until_BL = jnp.where(visible_until_BL < L, visible_until_BL, own_L)  # padding sees itself alone
    visible_until_Nt = (visible_until_BL + n * t * jnp.arange(B)[:, None]).reshape(N, t)
    cut = lambda x_BLGx: jnp.pad(x_BLGx, ((0, 0), (0, n * t - L), (0, 0), (0, 0)))
    q_NGmK = cut(q_BLHK * K**-0.5).reshape(N, t, G, R, K).transpose(0, 2, 3, 1, 4).reshape(N, G, R * t, K)
    k_NGtK, v_NGtK = (cut(x).reshape(N, t, G, K).transpose(0, 2, 1, 3) for x in (k_BLGK, v_BLGK))
    o_NGmK = _tiled(q_NGmK, k_NGtK, v_NGtK, visible_until_Nt)
    return o_NGmK.reshape(N, G, R, t, K).transpose(0, 3, 1, 2, 4).reshape(B, n * t, H, K)[:, :L]


def _last_tile(visible_until_Nt):
    """The last query tile that reads each key tile, last_N; all from the key's own to that one do."""
    return visible_until_Nt.max(-1) // visible_until_Nt.shape[1]


def _read(x_N, i):
    return jax.lax.dynamic_index_in_dim(x_N, i, keepdims=False)


def _write(x_N, value, i):
    return jax.lax.dynamic_update_index_in_dim(x_N, value, i, axis=0)


def _is_visible(visible_until_Nt, i, j):
    """Which queries of tile i see which keys of tile j, mask_tt[query, key]."""
    t = visible_until_Nt.shape[1]
    query_t1, key_t = (i * t + jnp.arange(t))[:, None], j * t + jnp.arange(t)
    return (key_t <= query_t1) & (query_t1 <= _read(visible_until_Nt, j))


@jax.custom_vjp
def _tiled(q_NGmK, k_NGtK, v_NGtK, visible_until_Nt):
    return _tiled_forward(q_NGmK, k_NGtK, v_NGtK, visible_until_Nt)[0]


def _tiled_forward(q_NGmK, k_NGtK, v_NGtK, visible_until_Nt):
    R = q_NGmK.shape[2] // visible_until_Nt.shape[1]
    i_N, last_N = jnp.arange(len(visible_until_Nt)), _last_tile(visible_until_Nt)

    def query_tile(i, carry):
        q_GmK = _read(q_NGmK, i)
        is_needed_N = (i_N <= i) & (i <= last_N)
        key_N = jnp.argsort(~is_needed_N)  # the needed key tiles first

        def key_tile(at, carry):
            o_GmK, sum_Gm1, top_Gm1 = carry
            j = key_N[at]
            mask_mt = jnp.tile(_is_visible(visible_until_Nt, i, j), (R, 1))
            s_Gmt = jnp.where(mask_mt, multiply(q_GmK, _read(k_NGtK, j), 2, 2), MASKED)
            new_Gm1 = jnp.maximum(top_Gm1, s_Gmt.max(-1, keepdims=True))
            p_Gmt, shrink_Gm1 = jnp.exp(s_Gmt - new_Gm1), jnp.exp(top_Gm1 - new_Gm1)
            o_GmK = o_GmK * shrink_Gm1 + multiply(p_Gmt.astype(q_GmK.dtype), _read(v_NGtK, j), 2, 1)
            return o_GmK, sum_Gm1 * shrink_Gm1 + p_Gmt.sum(-1, keepdims=True), new_Gm1

        o_GmK, zeros_Gm1 = jnp.zeros(q_GmK.shape), jnp.zeros((*q_GmK.shape[:-1], 1))
        # The running maximum starts above MASKED, so that a tile in which a query sees nothing adds exp(-huge) = 0.
        start = o_GmK, zeros_Gm1, zeros_Gm1 + MASKED / 2
        own = jax.lax.fori_loop(0, is_needed_N.sum(), key_tile, start)
        return tuple(_write(x_N, x, i) for x_N, x in zip(carry, own, strict=True))

    zeros_NGm1 = jnp.zeros((*q_NGmK.shape[:-1], 1))
    start = jnp.zeros(q_NGmK.shape), zeros_NGm1, zeros_NGm1
    o_NGmK, sum_NGm1, top_NGm1 = jax.lax.fori_loop(0, len(last_N), query_tile, start)
    o_NGmK = save_inside((o_NGmK / sum_NGm1).astype(q_NGmK.dtype), "attention")
    lse_NGm = save_inside((top_NGm1 + jnp.log(sum_NGm1))[..., 0], "attention")
    return o_NGmK, (q_NGmK, k_NGtK, v_NGtK, visible_until_Nt, o_NGmK, lse_NGm)


def _tiled_backward(saved, do_NGmK):
    """Scores stand transposed, keys first: then no product has its sum over the rows of its left factor, which XLA's CPU
    backend multiplies at half speed."""
    q_NGmK, k_NGtK, v_NGtK, visible_until_Nt, o_NGmK, lse_NGm = saved
    delta_NGm = (do_NGmK.astype(jnp.float32) * o_NGmK.astype(jnp.float32)).sum(-1)
    dtype, R = q_NGmK.dtype, q_NGmK.shape[2] // visible_until_Nt.shape[1]
    last_N = _last_tile(visible_until_Nt)

    def key_tile(j, carry):
        k_GtK, v_GtK = _read(k_NGtK, j), _read(v_NGtK, j)
        k_GKt = k_GtK.swapaxes(1, 2)

        def query_tile(i, carry):
            dq_NGKm, dk_GtK, dv_GtK = carry
            q_GmK, do_GmK = _read(q_NGmK, i), _read(do_NGmK, i)
            mask_tm = jnp.tile(_is_visible(visible_until_Nt, i, j).T, (1, R))
            s_Gtm = jnp.where(mask_tm, multiply(k_GtK, q_GmK, 2, 2), MASKED)
            p_Gtm = jnp.exp(s_Gtm - _read(lse_NGm, i)[:, None])
            ds_Gtm = p_Gtm * (multiply(v_GtK, do_GmK, 2, 2) - _read(delta_NGm, i)[:, None])
            p_Gtm, ds_Gtm = p_Gtm.astype(dtype), ds_Gtm.astype(dtype)
            dq_GKm = _read(dq_NGKm, i) + multiply(k_GKt, ds_Gtm, 2, 1)
            dk_GtK, dv_GtK = dk_GtK + multiply(ds_Gtm, q_GmK, 2, 1), dv_GtK + multiply(p_Gtm, do_GmK, 2, 1)
            return _write(dq_NGKm, dq_GKm, i), dk_GtK, dv_GtK

        dq_NGKm, dk_NGtK, dv_NGtK = carry
        zeros_GtK = jnp.zeros(k_GtK.shape)
        dq_NGKm, dk_GtK, dv_GtK = jax.lax.fori_loop(j, last_N[j] + 1, query_tile, (dq_NGKm, zeros_GtK, zeros_GtK))
        return dq_NGKm, _write(dk_NGtK, dk_GtK.astype(dtype), j), _write(dv_NGtK, dv_GtK.astype(dtype), j)

    dq_NGKm = jnp.zeros(q_NGmK.swapaxes(2, 3).shape)
    start = dq_NGKm, jnp.zeros_like(k_NGtK), jnp.zeros_like(v_NGtK)
    dq_NGKm, dk_NGtK, dv_NGtK = jax.lax.fori_loop(0, len(last_N), key_tile, start)
    return dq_NGKm.swapaxes(2, 3).astype(dtype), dk_NGtK, dv_NGtK, None


_tiled.defvjp(_tiled_forward, _tiled_backward)
