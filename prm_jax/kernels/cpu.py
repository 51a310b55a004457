"""Linear layers and attention, written so that XLA's CPU backend runs them fast. `one_product` and `tiled`
are for CPU; the rest are plain operations on other backends. Who sees whom says visibility.py.

Dimension key: n rows x tokens, D in, F out; attention: B rows, L tokens, H query heads, G key/value heads, R
= H / G queries per group, K head size; b = B G, N tiles of all rows, t tokens of a tile, m = R times a row's
or tile's tokens."""

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.layout import Layout, with_layout_constraint

from prm_jax.launch.sharding import features_are_split, map_rows, platform
from prm_jax.visibility import is_causal, sees, visible

TILE = 64  # tokens; a tile's scores fit in a core's cache (measured with gradient: 128 takes 1.2 x as long)
SCORES = 1 << 18  # scores of short rows that are computed at a time: 1 MB, half of a core's cache
MASKED = -1e30  # finite, so that a masked score minus a masked maximum is 0 and not NaN


def flatten_tokens(f):
    """Decorates f(x_nD, ...) of single tokens to accept and return any leading axes (x_BLD, x_BLHK). XLA's
    CPU backend takes 20 times as long for a norm and its derivative in [1, L, D] as in [L, D]."""

    @functools.wraps(f)
    def call(x, *args, **options):
        flat = [y.reshape(-1, y.shape[-1]) if getattr(y, "ndim", 0) > 2 else y for y in (x, *args)]
        y_nF = f(*flat, **options)
        return y_nF.reshape(*x.shape[:-1], y_nF.shape[-1])

    return call


def as_bits(x):
    """bfloat16 as its bits on CPU, where XLA would make a float32 copy of all that a loop reads or writes a
    part of, such as the weights and what the backward pass keeps of all layers."""
    is_copied = x.dtype == jnp.bfloat16 and platform() == "cpu"
    return jax.lax.bitcast_convert_type(x, jnp.uint16) if is_copied else x


def from_bits(x):
    """The inverse of `as_bits`."""
    return jax.lax.bitcast_convert_type(x, jnp.bfloat16) if x.dtype == jnp.uint16 else x


# What the backward pass keeps (`model.remat`)


def save_inside(x, name: str):
    """`save_for_backward` inside a hand-written forward pass."""
    return from_bits(checkpoint_name(as_bits(x), name))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def save_for_backward(x, name: str):
    """x, which is saved for the backward pass under a policy with its name."""
    return save_inside(x, name)


@save_for_backward.defjvp
def _keep_derivative(name, x, dx):
    return save_inside(*x, name), *dx


# Linear layers: with plain products training takes 1.07 of the CPU time in float32, 1.5 in bfloat16


def _multiply(x, w, over_x: int, over_w: int, sums=None):
    """The product of x and w, contracted over one axis each and accumulated in `sums` (None: the dtype of x).
    On CPU it accumulates in float32: only then does XLA multiply bfloat16 at twice the speed of float32."""
    sums = jnp.float32 if platform() == "cpu" else sums
    return jax.lax.dot_general(x, w, (((over_x,), (over_w,)), ((), ())), preferred_element_type=sums)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(x_nD, w_DF, dtype=None):
    """x @ w in `dtype`: float32, or None for that of x."""
    dtype = dtype or x_nD.dtype
    return _multiply(x_nD, w_DF, 1, 0, dtype).astype(dtype)


def _matmul_backward(_, saved, dy_nF):
    x_nD, w_DF = saved
    dy_nF = dy_nF.astype(saved[0].dtype)
    dx_nD = _multiply(dy_nF, w_DF, 1, 1)
    if platform() == "cpu" and not features_are_split():
        dw_DF, _ = map_rows(lambda _, *rows: (_weight_gradient(*rows), ()), (), x_nD, dy_nF)
    else:
        dw_DF = _multiply(x_nD.T, dy_nF, 1, 0)
    return dx_nD.astype(x_nD.dtype), dw_DF.astype(w_DF.dtype)


def _weight_gradient(x_nD, dy_nF):
    """x^T dy. XLA's CPU backend takes twice as long for sums over the rows of the left factor, so this writes
    out the transpose of the narrower factor, in a layout that XLA may not change, and of the result."""
    if x_nD.shape[1] > dy_nF.shape[1]:
        return _transpose(with_layout_constraint(_weight_gradient(dy_nF, x_nD), Layout((0, 1))))
    return _multiply(_transpose(x_nD), dy_nF, 1, 0)


def _transpose(x_nD):
    return with_layout_constraint(x_nD.T, Layout((0, 1)))


matmul.defvjp(lambda x_nD, w_DF, dtype: (matmul(x_nD, w_DF, dtype), (x_nD, w_DF)), _matmul_backward)


@jax.custom_vjp
def add_bias(y_nF, b_F):
    """y + b, whose derivative is on CPU a product: XLA's CPU backend sums over rows six times slower."""
    return y_nF + b_F


def _add_bias_backward(_, dy_nF):
    if platform() != "cpu":
        return dy_nF, dy_nF.sum(0)
    return dy_nF, _multiply(jnp.ones((1, len(dy_nF)), dy_nF.dtype), dy_nF, 1, 0)[0].astype(dy_nF.dtype)


add_bias.defvjp(lambda y_nF, b_F: (y_nF + b_F, None), _add_bias_backward)


# Attention


def soft_cap(score, cap: float | None):
    """cap tanh(score / cap), which is between -cap and cap (Gemma 2); the score itself without a cap."""
    return score if cap is None else cap * jnp.tanh(score / cap)


def cap_slope(capped, cap: float | None):
    """The derivative of `soft_cap` where its value is `capped`; 0 where that is MASKED."""
    return 1.0 if cap is None else jnp.maximum(1 - (capped / cap) ** 2, 0)


def group_queries(q_BLHK, G: int):
    """The queries over the square root of K, by the group that reads the same keys: q_BGRLK."""
    B, L, H, K = q_BLHK.shape
    return (q_BLHK * K**-0.5).reshape(B, L, G, H // G, K).transpose(0, 2, 3, 1, 4)


def ungroup(o_BGRLK):
    """The inverse of `group_queries`: o_BLHK."""
    B, G, R, L, K = o_BGRLK.shape
    return o_BGRLK.transpose(0, 3, 1, 2, 4).reshape(B, L, G * R, K)


def scores_by_feature(q_BGmK, k_BGSK):
    """`scores` of attention.py, one feature of a head after the other: attention of one query to a cache
    takes .6 of the time. The order of `+` matters: LLVM then rounds a product and its sum at once, as XLA's
    product of matrices does (jax 0.10: the same bits). The barrier keeps softmax from computing all twice."""
    score_BGmS = q_BGmK[..., 0, None] * k_BGSK[:, :, None, :, 0]
    for i in range(1, q_BGmK.shape[-1]):
        score_BGmS = q_BGmK[..., i, None] * k_BGSK[:, :, None, :, i] + score_BGmS
    return jax.lax.optimization_barrier(score_BGmS)


# Attention: all scores of a row at once


def _batch_multiply(a, b, over_a: int, over_b: int):
    """Matrix products of a and b over the batch axis 0, contracted over one axis each, in float32."""
    dimensions = (((over_a,), (over_b,)), ((0,), (0,)))
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


def one_product(q_BLHK, k_BLGK, v_BLGK, visible_until_BL, cap=None):
    """Softmax attention of short rows, whose scores are computed at once, for so many rows at a time that the
    scores stay in a core's cache. A causal model's first queries see the first half of the keys at most (.8
    of the time). XLA's CPU backend multiplies at full speed with one batch axis (row, group) alone."""
    B, L, H, K = q_BLHK.shape
    G = k_BLGK.shape[2]
    half = L // 2 if is_causal() else 0
    r = max(n for n in range(1, B + 1) if B % n == 0 and (n == 1 or n * H * L * L <= SCORES))

    def few_rows(arrays):
        q_rLHK, k_rLGK, v_rLGK, visible_until_rL = arrays
        q_rGRLK = group_queries(q_rLHK, G)
        k_bLK, v_bLK = (x.swapaxes(1, 2).reshape(r * G, L, K) for x in (k_rLGK, v_rLGK))
        mask_rLL = visible(visible_until_rL)

        def queries(first, end):
            q_bmK = q_rGRLK[:, :, :, first:end].reshape(r * G, -1, K)
            o_bmK = _one_product(q_bmK, k_bLK[:, :end], v_bLK[:, :end], mask_rLL[:, first:end, :end], cap)
            return o_bmK.reshape(r, G, H // G, end - first, K)

        halves = [queries(first, end) for first, end in ((0, half), (half, L)) if end]
        return ungroup(jnp.concatenate(halves, 3))

    arrays = (x.reshape(B // r, r, *x.shape[1:]) for x in (q_BLHK, k_BLGK, v_BLGK, visible_until_BL))
    return jax.lax.map(few_rows, tuple(arrays)).reshape(B, L, H, K)


def _scores(q_bmK, k_bSK, mask_BLS, cap):
    """Capped and masked attention scores in float32, [B * G, R * L, S]."""
    (b, m, _), (B, L, S) = q_bmK.shape, mask_BLS.shape
    s_BGRLS = soft_cap(_batch_multiply(q_bmK, k_bSK, 2, 2), cap).reshape(B, b // B, m // L, L, S)
    return jnp.where(mask_BLS[:, None, None], s_BGRLS, MASKED).reshape(b, m, S)


# The derivative by hand: XLA's own is several times slower on CPU.
@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _one_product(q_bmK, k_bSK, v_bSK, mask_BLS, cap):
    return _one_product_forward(q_bmK, k_bSK, v_bSK, mask_BLS, cap)[0]


def _one_product_forward(q_bmK, k_bSK, v_bSK, mask_BLS, cap):
    s_bmS = _scores(q_bmK, k_bSK, mask_BLS, cap)
    top_bm1 = s_bmS.max(-1, keepdims=True)
    p_bmS = jnp.exp(s_bmS - top_bm1)
    sum_bm1 = p_bmS.sum(-1, keepdims=True)
    # Dividing after the product touches K columns instead of S.
    o_bmK = (_batch_multiply(p_bmS.astype(v_bSK.dtype), v_bSK, 2, 1) / sum_bm1).astype(q_bmK.dtype)
    o_bmK, lse_bm1 = (save_inside(x, "attention") for x in (o_bmK, top_bm1 + jnp.log(sum_bm1)))
    return o_bmK, (q_bmK, k_bSK, v_bSK, mask_BLS, o_bmK, lse_bm1)


def _one_product_backward(cap, saved, do_bmK):
    q_bmK, k_bSK, v_bSK, mask_BLS, o_bmK, lse_bm1 = saved
    s_bmS = _scores(q_bmK, k_bSK, mask_BLS, cap)
    p_bmS = jnp.exp(s_bmS - lse_bm1)
    dp_bmS = _batch_multiply(do_bmK, v_bSK, 2, 2)
    delta_bm1 = (do_bmK.astype(jnp.float32) * o_bmK.astype(jnp.float32)).sum(-1, keepdims=True)
    dtype = q_bmK.dtype
    ds_bmS = (p_bmS * (dp_bmS - delta_bm1) * cap_slope(s_bmS, cap)).astype(dtype)
    dq_bmK = _batch_multiply(ds_bmS, k_bSK, 2, 1).astype(dtype)
    dk_bSK = _batch_multiply(ds_bmS, q_bmK, 1, 1).astype(dtype)
    dv_bSK = _batch_multiply(p_bmS.astype(dtype), do_bmK, 1, 1).astype(dtype)
    return dq_bmK, dk_bSK, dv_bSK, None


_one_product.defvjp(_one_product_forward, _one_product_backward)


# Attention: only tiles with a visible pair (FlashAttention's online softmax: 2205.14135, 2307.08691)


def tiled(q_BLHK, k_BLGK, v_BLGK, visible_until_BL, cap=None):
    """Softmax attention in a loop over the pairs (query tile, key tile) in which some query sees some key.
    All rows are tiles of one long row, in which no token sees one of another row."""
    B, L, H, K = q_BLHK.shape
    G, t = k_BLGK.shape[2], TILE
    more = -L % t
    N = B * (L + more) // t
    places = jnp.arange(L + more)
    visible_until_BL = jnp.pad(visible_until_BL, ((0, 0), (0, more)), constant_values=L)
    visible_until_BL = jnp.where(visible_until_BL < L, visible_until_BL, places)  # padding sees only itself
    visible_until_Nt = (visible_until_BL + len(places) * jnp.arange(B)[:, None]).reshape(N, t)

    def tiles(x_BLHK):
        return jnp.pad(x_BLHK, ((0, 0), (0, more), (0, 0), (0, 0))).reshape(N, t, -1, K)

    q_NGRtK = group_queries(tiles(q_BLHK), G)
    k_NGtK, v_NGtK = (tiles(x).swapaxes(1, 2) for x in (k_BLGK, v_BLGK))
    o_NGmK = _tiled(q_NGRtK.reshape(N, G, -1, K), k_NGtK, v_NGtK, visible_until_Nt, cap)
    return ungroup(o_NGmK.reshape(q_NGRtK.shape)).reshape(B, -1, H, K)[:, :L]


def _last_tile(visible_until_Nt):
    """last_N: the last query tile that may see each key tile. `sees` asks with it of tiles as of tokens."""
    return visible_until_Nt.max(-1) // visible_until_Nt.shape[1]


def _loop_where(is_needed_N, f, carry):
    """carry = f(i, carry) for each i of is_needed_N."""
    needed_N = jnp.argsort(~is_needed_N)  # the needed ones first
    return jax.lax.fori_loop(0, is_needed_N.sum(), lambda n, carry: f(needed_N[n], carry), carry)


def _read(x_N, i):
    """x_N[i]; of bfloat16 its bits are read."""
    return from_bits(jax.lax.dynamic_index_in_dim(as_bits(x_N), i, keepdims=False))


def _write(x_N, value, i):
    return jax.lax.dynamic_update_index_in_dim(x_N, value, i, axis=0)


def _tile_mask(visible_until_Nt, i, j):
    """mask_tt[query, key]: whether a query of tile i sees a key of tile j."""
    place_t = jnp.arange(visible_until_Nt.shape[1])
    query_t1, key_t = (i * len(place_t) + place_t)[:, None], j * len(place_t) + place_t
    return sees(query_t1, _read(visible_until_Nt, i)[:, None], key_t, _read(visible_until_Nt, j))


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _tiled(q_NGmK, k_NGtK, v_NGtK, visible_until_Nt, cap):
    return _tiled_forward(q_NGmK, k_NGtK, v_NGtK, visible_until_Nt, cap)[0]


def _tiled_forward(q_NGmK, k_NGtK, v_NGtK, visible_until_Nt, cap):
    R = q_NGmK.shape[2] // visible_until_Nt.shape[1]
    i_N, last_N = jnp.arange(len(visible_until_Nt)), _last_tile(visible_until_Nt)

    def query_tile(i, carry):
        q_GmK = _read(q_NGmK, i)

        def key_tile(j, carry):
            o_GmK, sum_Gm1, top_Gm1 = carry
            mask_mt = jnp.tile(_tile_mask(visible_until_Nt, i, j), (R, 1))
            s_Gmt = soft_cap(_batch_multiply(q_GmK, _read(k_NGtK, j), 2, 2), cap)
            s_Gmt = jnp.where(mask_mt, s_Gmt, MASKED)
            new_Gm1 = jnp.maximum(top_Gm1, s_Gmt.max(-1, keepdims=True))
            p_Gmt = jnp.exp(s_Gmt - new_Gm1)
            shrink_Gm1 = jnp.exp(top_Gm1 - new_Gm1)
            o_GmK = o_GmK * shrink_Gm1 + _batch_multiply(p_Gmt.astype(q_GmK.dtype), _read(v_NGtK, j), 2, 1)
            return o_GmK, sum_Gm1 * shrink_Gm1 + p_Gmt.sum(-1, keepdims=True), new_Gm1

        o_GmK, zeros_Gm1 = jnp.zeros(q_GmK.shape), jnp.zeros((*q_GmK.shape[:-1], 1))
        # The maximum starts above MASKED: a tile in which a query sees nothing adds exp(-huge) = 0.
        start = o_GmK, zeros_Gm1, zeros_Gm1 + MASKED / 2
        sums = _loop_where(sees(i, last_N[i], i_N, last_N), key_tile, start)
        return tuple(_write(x_N, x, i) for x_N, x in zip(carry, sums, strict=True))

    zeros_NGm1 = jnp.zeros((*q_NGmK.shape[:-1], 1))
    start = jnp.zeros(q_NGmK.shape), zeros_NGm1, zeros_NGm1
    o_NGmK, sum_NGm1, top_NGm1 = jax.lax.fori_loop(0, len(last_N), query_tile, start)
    o_NGmK = save_inside((o_NGmK / sum_NGm1).astype(q_NGmK.dtype), "attention")
    lse_NGm = save_inside((top_NGm1 + jnp.log(sum_NGm1))[..., 0], "attention")
    return o_NGmK, (q_NGmK, k_NGtK, v_NGtK, visible_until_Nt, o_NGmK, lse_NGm)


def _tiled_backward(cap, saved, do_NGmK):
    """The gradients, tile by tile. With scores s = q k^T, weights p = exp(s - lse) and o = p v:

      dv = p^T do,    dp = do v^T,    ds = p (dp - delta),    dq = ds k,    dk = ds^T q,

    where delta, a number a query, is the sum of do o over K: the softmax's derivative takes from dp its mean
    under p. All scores are transposed (keys first): then no product sums over the rows of its left factor,
    which is half as fast in XLA's CPU backend."""
    q_NGmK, k_NGtK, v_NGtK, visible_until_Nt, o_NGmK, lse_NGm = saved
    delta_NGm = (do_NGmK.astype(jnp.float32) * o_NGmK.astype(jnp.float32)).sum(-1)
    dtype = q_NGmK.dtype
    R = q_NGmK.shape[2] // visible_until_Nt.shape[1]
    i_N, last_N = jnp.arange(len(visible_until_Nt)), _last_tile(visible_until_Nt)

    def key_tile(j, carry):
        k_GtK, v_GtK = _read(k_NGtK, j), _read(v_NGtK, j)
        k_GKt = k_GtK.swapaxes(1, 2)

        def query_tile(i, carry):
            dq_NGKm, dk_GtK, dv_GtK = carry
            q_GmK, do_GmK = _read(q_NGmK, i), _read(do_NGmK, i)
            mask_tm = jnp.tile(_tile_mask(visible_until_Nt, i, j).T, (1, R))
            s_Gtm = jnp.where(mask_tm, soft_cap(_batch_multiply(k_GtK, q_GmK, 2, 2), cap), MASKED)
            p_Gtm = jnp.exp(s_Gtm - _read(lse_NGm, i)[:, None])
            ds_Gtm = p_Gtm * (_batch_multiply(v_GtK, do_GmK, 2, 2) - _read(delta_NGm, i)[:, None])
            p_Gtm, ds_Gtm = p_Gtm.astype(dtype), (ds_Gtm * cap_slope(s_Gtm, cap)).astype(dtype)
            dq_GKm = _read(dq_NGKm, i) + _batch_multiply(k_GKt, ds_Gtm, 2, 1)
            dk_GtK += _batch_multiply(ds_Gtm, q_GmK, 2, 1)
            dv_GtK += _batch_multiply(p_Gtm, do_GmK, 2, 1)
            return _write(dq_NGKm, dq_GKm, i), dk_GtK, dv_GtK

        dq_NGKm, dk_NGtK, dv_NGtK = carry
        start = dq_NGKm, jnp.zeros(k_GtK.shape), jnp.zeros(k_GtK.shape)
        dq_NGKm, dk_GtK, dv_GtK = _loop_where(sees(i_N, last_N, j, last_N[j]), query_tile, start)
        return dq_NGKm, _write(dk_NGtK, dk_GtK, j), _write(dv_NGtK, dv_GtK, j)

    # All in float32: XLA would convert a whole bfloat16 array to write one tile.
    start = jnp.zeros(q_NGmK.swapaxes(2, 3).shape), jnp.zeros(k_NGtK.shape), jnp.zeros(k_NGtK.shape)
    dq_NGKm, dk_NGtK, dv_NGtK = jax.lax.fori_loop(0, len(last_N), key_tile, start)
    return dq_NGKm.swapaxes(2, 3).astype(dtype), dk_NGtK.astype(dtype), dv_NGtK.astype(dtype), None


_tiled.defvjp(_tiled_forward, _tiled_backward)
