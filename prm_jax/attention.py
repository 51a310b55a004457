"""One attention function. Which keys a query sees is written as one integer per key.

Key j is visible to query i when j <= i <= until_BL[b, j]: causality, and the last query position that may see the key.
That one array says causal (until = L - 1 everywhere), packed (until = last token of the key's own solution) and prefix
tree (tokens in depth-first order, until = last token of the subtree below the key). A value of L or more is padding.

Which formulation runs where: on CPU and rows above SHORT tokens, `tiled`; a GPU in half precision, cuDNN's fused kernel;
anything else (short rows, TPU), `dense`. `tiled` and `dense` agree with an einsum (tests/test_attention.py); on GPU and TPU
nothing was run. On a mesh each device attends to its own rows and heads (`on_own_heads` in sharding.py): a loop over the
tiles of all rows would gather the rows of all devices.

Dimension key: B rows, L query tokens, M key tokens (= L), H query heads, G key/value heads, R = H / G queries per group,
K head size, n tiles of a row, t tokens of a tile.
"""

import jax
import jax.numpy as jnp

MASKED = -1e30  # finite, so that a masked score minus a masked maximum is 0 and not NaN
SHORT = 128  # rows up to here are one dense product: a loop over tiles has nothing to skip
TILE = 64  # tokens; a tile's scores stay in a core's cache (measured, with gradient: 128 takes 1.2 x as long)


def attend(q_BLHK, k_BLGK, v_BLGK, until_BL):
    """Softmax attention; every token must see at least itself. Returns o_BLHK."""
    platform = jax.default_backend()
    if platform == "gpu" and q_BLHK.dtype in (jnp.bfloat16, jnp.float16):
        mask_B1LM = visible(until_BL)[:, None]
        return jax.nn.dot_product_attention(q_BLHK, k_BLGK, v_BLGK, mask=mask_B1LM, implementation="cudnn")
    if platform == "cpu" and q_BLHK.shape[1] > SHORT:
        return tiled(q_BLHK, k_BLGK, v_BLGK, until_BL)
    return dense(q_BLHK, k_BLGK, v_BLGK, until_BL)


def visible(until_BL):
    """Boolean mask_BLM: True where the query (axis L) may read the key (axis M)."""
    i_L = jnp.arange(until_BL.shape[1])
    return (i_L[None, None, :] <= i_L[None, :, None]) & (i_L[None, :, None] <= until_BL[:, None, :])


def multiply(a, b, over_a: int, over_b: int):
    """Matrix products of a and b summed over one axis each, axis 0 a batch, in float32."""
    dimensions = (((over_a,), (over_b,)), ((0,), (0,)))
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


# All scores at once


def dense(q_BLHK, k_BLGK, v_BLGK, until_BL):
    """L x L scores of every row and head. One batch axis (row, group) and two matrix axes, the only layout that XLA's CPU
    backend multiplies at full speed."""
    B, L, H, K = q_BLHK.shape
    G = k_BLGK.shape[2]
    R = H // G
    q_bmK = q_BLHK.reshape(B, L, G, R, K).transpose(0, 2, 3, 1, 4).reshape(B * G, R * L, K) * K**-0.5
    k_bLK = k_BLGK.transpose(0, 2, 1, 3).reshape(B * G, L, K)
    v_bLK = v_BLGK.transpose(0, 2, 1, 3).reshape(B * G, L, K)
    o_bmK = _dense(q_bmK, k_bLK, v_bLK, until_BL)
    return o_bmK.reshape(B, G, R, L, K).transpose(0, 3, 1, 2, 4).reshape(B, L, H, K)


def _scores(q_bmK, k_bLK, until_BL):
    """Masked attention scores in float32, [B * G, R * L, L]."""
    b, m, _ = q_bmK.shape
    B, L = until_BL.shape
    s_BGRLM = multiply(q_bmK, k_bLK, 2, 2).reshape(B, b // B, m // L, L, L)
    return jnp.where(visible(until_BL)[:, None, None], s_BGRLM, MASKED).reshape(b, m, L)


# The derivative is written out because XLA's own recomputes and transposes the probabilities, several times slower on CPU.
@jax.custom_vjp
def _dense(q_bmK, k_bLK, v_bLK, until_BL):
    return _dense_forward(q_bmK, k_bLK, v_bLK, until_BL)[0]


def _dense_forward(q_bmK, k_bLK, v_bLK, until_BL):
    s_bmL = _scores(q_bmK, k_bLK, until_BL)
    top_bm1 = s_bmL.max(-1, keepdims=True)
    p_bmL = jnp.exp(s_bmL - top_bm1)
    sum_bm1 = p_bmL.sum(-1, keepdims=True)
    # Dividing after the product touches K columns in place of L.
    o_bmK = (multiply(p_bmL.astype(v_bLK.dtype), v_bLK, 2, 1) / sum_bm1).astype(q_bmK.dtype)
    return o_bmK, (q_bmK, k_bLK, v_bLK, until_BL, o_bmK, top_bm1 + jnp.log(sum_bm1))


def _dense_backward(saved, do_bmK):
    q_bmK, k_bLK, v_bLK, until_BL, o_bmK, lse_bm1 = saved
    p_bmL = jnp.exp(_scores(q_bmK, k_bLK, until_BL) - lse_bm1)
    dp_bmL = multiply(do_bmK, v_bLK, 2, 2)
    delta_bm1 = (do_bmK.astype(jnp.float32) * o_bmK.astype(jnp.float32)).sum(-1, keepdims=True)
    dtype = q_bmK.dtype
    ds_bmL, p_bmL = (p_bmL * (dp_bmL - delta_bm1)).astype(dtype), p_bmL.astype(dtype)
    gradients = multiply(ds_bmL, k_bLK, 2, 1), multiply(ds_bmL, q_bmK, 1, 1), multiply(p_bmL, do_bmK, 1, 1)
    return *(x.astype(dtype) for x in gradients), None


_dense.defvjp(_dense_forward, _dense_backward)


# Only the tiles that hold a visible pair (FlashAttention's loop, with its online softmax: 2205.14135, 2307.08691)


def tiled(q_BLHK, k_BLGK, v_BLGK, until_BL):
    """A loop over the pairs (query tile, key tile) in which some query sees some key: cost and memory grow with what is
    visible and not with L x L, so the length of a row is free."""
    B, L, H, K = q_BLHK.shape
    G, t = k_BLGK.shape[2], TILE
    R, n = H // G, -(-L // t)
    own_L = jnp.arange(n * t)
    until_BL = jnp.pad(until_BL, ((0, 0), (0, n * t - L)), constant_values=L)
    until_Bnt = jnp.where(until_BL < L, until_BL, own_L).reshape(B, n, t)  # padding sees itself alone
    cut = lambda x_BLGx: jnp.pad(x_BLGx, ((0, 0), (0, n * t - L), (0, 0), (0, 0)))
    q_BnGmK = (
        cut(q_BLHK * K**-0.5).reshape(B, n, t, G, R, K).transpose(0, 1, 3, 4, 2, 5).reshape(B, n, G, R * t, K)
    )
    k_BnGtK, v_BnGtK = (cut(x).reshape(B, n, t, G, K).transpose(0, 1, 3, 2, 4) for x in (k_BLGK, v_BLGK))
    o_BnGmK = _tiled(q_BnGmK, k_BnGtK, v_BnGtK, until_Bnt)
    return o_BnGmK.reshape(B, n, G, R, t, K).transpose(0, 1, 4, 2, 3, 5).reshape(B, n * t, H, K)[:, :L]


def _pairs(until_Bnt):
    """Arrays row, query tile, key tile of the pairs to visit, and their number (the arrays are longer)."""
    B, n, t = until_Bnt.shape
    i_n = jnp.arange(n)
    is_needed_Bij = (i_n <= i_n[:, None]) & (until_Bnt.max(-1)[:, None, :] >= i_n[:, None] * t)
    return *jnp.nonzero(is_needed_Bij, size=B * n * (n + 1) // 2), is_needed_Bij.sum()


def _read(x_Bn, b, i):
    return jax.lax.dynamic_slice(x_Bn, (b, i, *(0,) * (x_Bn.ndim - 2)), (1, 1, *x_Bn.shape[2:]))[0, 0]


def _write(x_Bn, value, b, i):
    return jax.lax.dynamic_update_slice(x_Bn, value[None, None], (b, i, *(0,) * (x_Bn.ndim - 2)))


def _tile_scores(q_GmK, k_GtK, until_t, i, j):
    """Masked scores of one pair in float32, s_Gmt; m = R * t."""
    t = until_t.shape[0]
    query_t1, key_t = (i * t + jnp.arange(t))[:, None], j * t + jnp.arange(t)
    mask_tt = (key_t <= query_t1) & (query_t1 <= until_t)
    return jnp.where(jnp.tile(mask_tt, (q_GmK.shape[1] // t, 1)), multiply(q_GmK, k_GtK, 2, 2), MASKED)


@jax.custom_vjp
def _tiled(q_BnGmK, k_BnGtK, v_BnGtK, until_Bnt):
    return _tiled_forward(q_BnGmK, k_BnGtK, v_BnGtK, until_Bnt)[0]


def _tiled_forward(q_BnGmK, k_BnGtK, v_BnGtK, until_Bnt):
    row, query, key, count = _pairs(until_Bnt)

    def visit(at, carry):
        o_BnGmK, sum_BnGm1, top_BnGm1 = carry
        b, i, j = row[at], query[at], key[at]
        s_Gmt = _tile_scores(_read(q_BnGmK, b, i), _read(k_BnGtK, b, j), _read(until_Bnt, b, j), i, j)
        old_Gm1 = _read(top_BnGm1, b, i)
        top_Gm1 = jnp.maximum(old_Gm1, s_Gmt.max(-1, keepdims=True))
        p_Gmt, shrink_Gm1 = jnp.exp(s_Gmt - top_Gm1), jnp.exp(old_Gm1 - top_Gm1)
        v_GtK = _read(v_BnGtK, b, j)
        o_GmK = _read(o_BnGmK, b, i) * shrink_Gm1 + multiply(p_Gmt.astype(v_GtK.dtype), v_GtK, 2, 1)
        sum_Gm1 = _read(sum_BnGm1, b, i) * shrink_Gm1 + p_Gmt.sum(-1, keepdims=True)
        return (
            _write(o_BnGmK, o_GmK, b, i),
            _write(sum_BnGm1, sum_Gm1, b, i),
            _write(top_BnGm1, top_Gm1, b, i),
        )

    o_BnGmK = jnp.zeros(q_BnGmK.shape, jnp.float32)
    sum_BnGm1 = jnp.zeros((*q_BnGmK.shape[:-1], 1))
    # The running maximum starts above MASKED, so that a tile in which a query sees nothing adds exp(-huge) = 0.
    start = o_BnGmK, sum_BnGm1, jnp.full_like(sum_BnGm1, MASKED / 2)
    o_BnGmK, sum_BnGm1, top_BnGm1 = jax.lax.fori_loop(0, count, visit, start)
    o_BnGmK = (o_BnGmK / sum_BnGm1).astype(q_BnGmK.dtype)
    return o_BnGmK, (q_BnGmK, k_BnGtK, v_BnGtK, until_Bnt, o_BnGmK, top_BnGm1 + jnp.log(sum_BnGm1))


def _tiled_backward(saved, do_BnGmK):
    q_BnGmK, k_BnGtK, v_BnGtK, until_Bnt, o_BnGmK, lse_BnGm1 = saved
    row, query, key, count = _pairs(until_Bnt)
    delta_BnGm1 = (do_BnGmK.astype(jnp.float32) * o_BnGmK.astype(jnp.float32)).sum(-1, keepdims=True)
    dtype = q_BnGmK.dtype

    def visit(at, carry):
        dq_BnGmK, dk_BnGtK, dv_BnGtK = carry
        b, i, j = row[at], query[at], key[at]
        q_GmK, do_GmK = _read(q_BnGmK, b, i), _read(do_BnGmK, b, i)
        k_GtK, v_GtK = _read(k_BnGtK, b, j), _read(v_BnGtK, b, j)
        p_Gmt = jnp.exp(_tile_scores(q_GmK, k_GtK, _read(until_Bnt, b, j), i, j) - _read(lse_BnGm1, b, i))
        ds_Gmt = (p_Gmt * (multiply(do_GmK, v_GtK, 2, 2) - _read(delta_BnGm1, b, i))).astype(dtype)
        dq_GmK = _read(dq_BnGmK, b, i) + multiply(ds_Gmt, k_GtK, 2, 1)
        dk_GtK = _read(dk_BnGtK, b, j) + multiply(ds_Gmt, q_GmK, 1, 1)
        dv_GtK = _read(dv_BnGtK, b, j) + multiply(p_Gmt.astype(dtype), do_GmK, 1, 1)
        return _write(dq_BnGmK, dq_GmK, b, i), _write(dk_BnGtK, dk_GtK, b, j), _write(dv_BnGtK, dv_GtK, b, j)

    zeros = tuple(jnp.zeros(x.shape, jnp.float32) for x in (q_BnGmK, k_BnGtK, v_BnGtK))
    gradients = jax.lax.fori_loop(0, count, visit, zeros)
    return *(x.astype(dtype) for x in gradients), None


_tiled.defvjp(_tiled_forward, _tiled_backward)
