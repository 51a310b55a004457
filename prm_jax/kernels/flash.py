"""Attention on TPU: FlashAttention (2205.14135, 2307.08691) as Pallas kernels, for the masks of attention.py.

A kernel runs once for each (row, head, tile, other tile), the last of them fastest, and keeps its sums in scratch memory
from one other tile to the next. A pair of tiles in which no query sees a key is not computed, and nothing is fetched for it but a first tile. Compiled by
TPU's compiler and run in interpret mode (tests/test_attention.py); on a TPU nothing was run.

Dimension key: as in attention.py; N tiles of t tokens to a row. In kernels: t queries and s keys of a pair of tiles.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from prm_jax.attention import MASKED
from prm_jax.kernels.remat import save_inside
from prm_jax.launch.mesh import platform

TILE = 512  # tokens; fewer where rows are shorter
LANES = 128  # of a TPU's vector register: tiles are multiples of it


def flash(q_BLHK, k_BLGK, v_BLGK, visible_until_BL):
    """Softmax attention, o_BLHK; every token must see at least itself."""
    B, L, _, K = q_BLHK.shape
    t = min(TILE, -(-L // LANES) * LANES)
    padded = -(-L // t) * t
    visible_until_BL = jnp.where(visible_until_BL < L, visible_until_BL, jnp.arange(L))  # padding sees itself alone
    more = jnp.broadcast_to(jnp.arange(L, padded), (B, padded - L))
    visible_until_B1L = jnp.concatenate([visible_until_BL, more], 1)[:, None].astype(jnp.int32)
    cut = lambda x_BLHK: jnp.pad(x_BLHK, ((0, 0), (0, padded - L), (0, 0), (0, 0))).swapaxes(1, 2)
    o_BHLK = _flash(cut(q_BLHK * K**-0.5), cut(k_BLGK), cut(v_BLGK), visible_until_B1L)
    return o_BHLK.swapaxes(1, 2)[:, :L]


def _product(a, b, over_a: int, over_b: int):
    return jax.lax.dot_general(a, b, (((over_a,), (over_b,)), ((), ())), preferred_element_type=jnp.float32)


def _column(x_1t):
    """x_t1: a row of a tile as a column."""
    return jnp.broadcast_to(x_1t, (LANES, x_1t.shape[1])).T[:, :1]


def _row(x_t1):
    return jnp.broadcast_to(x_t1, (x_t1.shape[0], LANES)).T[:1]


def _is_needed(last_BN, b, query, key):
    """Does some query of a tile see some key of the other? last_BN: the last tile that sees each tile of keys."""
    return (key <= query) & (query <= last_BN[b, key])


def _scores(query, key, q_ref, k_ref, visible_until_ref):
    """Masked scores s_ts of a tile of queries and one of keys."""
    t = q_ref.shape[2]
    query_ts = query * t + jax.lax.broadcasted_iota(jnp.int32, (t, t), 0)
    key_ts = key * t + jax.lax.broadcasted_iota(jnp.int32, (t, t), 1)
    mask_ts = (key_ts <= query_ts) & (query_ts <= visible_until_ref[0])
    return jnp.where(mask_ts, _product(q_ref[0, 0], k_ref[0, 0], 1, 1), MASKED)


def _forward_kernel(last_BN, q_ref, k_ref, v_ref, visible_until_ref, o_ref, lse_ref, o_tK, sum_t1, top_t1):
    b, query, key = pl.program_id(0), pl.program_id(2), pl.program_id(3)

    @pl.when(key == 0)
    def start():
        o_tK[...], sum_t1[...] = jnp.zeros_like(o_tK), jnp.zeros_like(sum_t1)
        top_t1[...] = jnp.full_like(top_t1, MASKED / 2)  # above MASKED: a tile that a query sees nothing of adds 0

    @pl.when(_is_needed(last_BN, b, query, key))
    def add():
        s_ts = _scores(query, key, q_ref, k_ref, visible_until_ref)
        new_t1 = jnp.maximum(top_t1[...], s_ts.max(1, keepdims=True))
        p_ts, shrink_t1 = jnp.exp(s_ts - new_t1), jnp.exp(top_t1[...] - new_t1)
        o_tK[...] = o_tK[...] * shrink_t1 + _product(p_ts.astype(v_ref.dtype), v_ref[0, 0], 1, 0)
        sum_t1[...] = sum_t1[...] * shrink_t1 + p_ts.sum(1, keepdims=True)
        top_t1[...] = new_t1

    @pl.when(key == pl.num_programs(3) - 1)
    def end():
        o_ref[0, 0] = (o_tK[...] / sum_t1[...]).astype(o_ref.dtype)
        lse_ref[0, 0] = _row(top_t1[...] + jnp.log(sum_t1[...]))


def _query_gradient_kernel(
    last_BN, q_ref, k_ref, v_ref, visible_until_ref, do_ref, lse_ref, delta_ref, dq_ref, dq_tK, lse_t1, delta_t1
):
    b, query, key = pl.program_id(0), pl.program_id(2), pl.program_id(3)

    @pl.when(key == 0)
    def start():
        dq_tK[...] = jnp.zeros_like(dq_tK)
        lse_t1[...], delta_t1[...] = _column(lse_ref[0, 0]), _column(delta_ref[0, 0])

    @pl.when(_is_needed(last_BN, b, query, key))
    def add():
        s_ts = _scores(query, key, q_ref, k_ref, visible_until_ref)
        ds_ts = jnp.exp(s_ts - lse_t1[...]) * (_product(do_ref[0, 0], v_ref[0, 0], 1, 1) - delta_t1[...])
        dq_tK[...] += _product(ds_ts.astype(k_ref.dtype), k_ref[0, 0], 1, 0)

    @pl.when(key == pl.num_programs(3) - 1)
    def end():
        dq_ref[0, 0] = dq_tK[...].astype(dq_ref.dtype)


def _key_gradient_kernel(
    last_BN,
    q_ref,
    k_ref,
    v_ref,
    visible_until_ref,
    do_ref,
    lse_ref,
    delta_ref,
    dk_ref,
    dv_ref,
    dk_sK,
    dv_sK,
    visible_until_s1,
):
    """Scores stand transposed, keys first, so that no product is of a transposed factor."""
    b, key, query = pl.program_id(0), pl.program_id(2), pl.program_id(3)
    t = q_ref.shape[2]

    @pl.when(query == 0)
    def start():
        dk_sK[...], dv_sK[...] = jnp.zeros_like(dk_sK), jnp.zeros_like(dv_sK)
        visible_until_s1[...] = _column(visible_until_ref[0])

    @pl.when(_is_needed(last_BN, b, query, key))
    def add():
        key_st = key * t + jax.lax.broadcasted_iota(jnp.int32, (t, t), 0)
        query_st = query * t + jax.lax.broadcasted_iota(jnp.int32, (t, t), 1)
        mask_st = (key_st <= query_st) & (query_st <= visible_until_s1[...])
        s_st = jnp.where(mask_st, _product(k_ref[0, 0], q_ref[0, 0], 1, 1), MASKED)
        p_st = jnp.exp(s_st - lse_ref[0, 0])
        ds_st = p_st * (_product(v_ref[0, 0], do_ref[0, 0], 1, 1) - delta_ref[0, 0])
        dk_sK[...] += _product(ds_st.astype(q_ref.dtype), q_ref[0, 0], 1, 0)
        dv_sK[...] += _product(p_st.astype(do_ref.dtype), do_ref[0, 0], 1, 0)

    @pl.when(query == pl.num_programs(3) - 1)
    def end():
        dk_ref[0, 0], dv_ref[0, 0] = dk_sK[...].astype(dk_ref.dtype), dv_sK[...].astype(dv_ref.dtype)


def _call(kernel, keys_first: bool, results, scratch, q_BHLK, k_BGLK, v_BGLK, visible_until_B1L, *more_BHxx):
    """A kernel over all pairs of tiles. `more_BHxx`: arrays of the queries' tiles, [B, H, L, K] or [B, H, 1, L].

    results: which of the queries' or keys' tiles each output has, "query" or "key", and its kind of shape, "LK" or "1L".
    """
    B, H, L, K = q_BHLK.shape
    R = H // k_BGLK.shape[1]
    t = min(TILE, L)
    N = L // t
    last_BN = (visible_until_B1L.reshape(B, N, t).max(-1) // t).astype(jnp.int32)

    def place(b, i, j, last_BN):
        """(tile of queries, tile of keys) to fetch; the moving one stays put at tile 0 where the pair is not needed."""
        query, key = (j, i) if keys_first else (i, j)
        is_needed = _is_needed(last_BN, b, query, key)
        return (jnp.where(is_needed, query, 0), key) if keys_first else (query, jnp.where(is_needed, key, 0))

    def spec(of: str, shape: str, shares: int = 1):
        def index(b, h, i, j, last_BN):
            tile = place(b, i, j, last_BN)[of == "key"]
            return (b, h // shares, tile, 0) if shape == "LK" else (b, h // shares, 0, tile)

        return pl.BlockSpec((1, 1, t, K) if shape == "LK" else (1, 1, 1, t), index)

    until = pl.BlockSpec((1, 1, t), lambda b, h, i, j, last_BN: (b, 0, place(b, i, j, last_BN)[1]))
    ins = [spec("query", "LK"), spec("key", "LK", R), spec("key", "LK", R), until]
    ins += [spec("query", "LK" if x.shape[2] == L else "1L") for x in more_BHxx]
    dtype = {"LK": q_BHLK.dtype, "1L": jnp.float32}
    shapes = {"LK": (B, H, L, K), "1L": (B, H, 1, L)}
    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(B, H, N, N),
            in_specs=ins,
            out_specs=[spec(*result) for result in results],
            scratch_shapes=[pltpu.VMEM((t, size), kind) for size, kind in scratch],
        ),
        out_shape=[jax.ShapeDtypeStruct(shapes[shape], dtype[shape]) for _, shape in results],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")),
        interpret=platform() != "tpu",
    )(last_BN, q_BHLK, k_BGLK, v_BGLK, visible_until_B1L, *more_BHxx)


@jax.custom_vjp
def _flash(q_BHLK, k_BGLK, v_BGLK, visible_until_B1L):
    return _flash_forward(q_BHLK, k_BGLK, v_BGLK, visible_until_B1L)[0]


def _flash_forward(q_BHLK, k_BGLK, v_BGLK, visible_until_B1L):
    K, f32 = q_BHLK.shape[-1], jnp.float32
    arrays = q_BHLK, k_BGLK, v_BGLK, visible_until_B1L
    results = [("query", "LK"), ("query", "1L")]
    o_BHLK, lse_BH1L = _call(_forward_kernel, False, results, [(K, f32), (1, f32), (1, f32)], *arrays)
    o_BHLK, lse_BH1L = (save_inside(x, "attention") for x in (o_BHLK, lse_BH1L))
    return o_BHLK, (*arrays, o_BHLK, lse_BH1L)


def _flash_backward(saved, do_BHLK):
    *arrays, o_BHLK, lse_BH1L = saved
    (B, H, L, K), G, f32 = do_BHLK.shape, arrays[1].shape[1], jnp.float32
    delta_BH1L = (do_BHLK.astype(f32) * o_BHLK.astype(f32)).sum(-1)[:, :, None]
    arrays += do_BHLK, lse_BH1L, delta_BH1L
    scratch = [(K, f32), (1, f32), (1, f32)]
    (dq_BHLK,) = _call(_query_gradient_kernel, False, [("query", "LK")], scratch, *arrays)
    scratch = [(K, f32), (K, f32), (1, jnp.int32)]
    gradients = _call(_key_gradient_kernel, True, [("key", "LK")] * 2, scratch, *arrays)
    # Of each query head; those that share a key/value head add up.
    dk_BGLK, dv_BGLK = (x.reshape(B, G, H // G, L, K).astype(f32).sum(2).astype(x.dtype) for x in gradients)
    return dq_BHLK, dk_BGLK, dv_BGLK, None


_flash.defvjp(_flash_forward, _flash_backward)
