"""Softmax attention: its definition, and the kernel of each platform. visibility.py says who sees whom.

The kernels agree with an einsum, gradients too (tests/test_attention.py). cuDNN and splash attention were not
run on a chip. On a mesh each device attends to its own rows and heads (`shard_heads` of launch/sharding.py).

Dimension key: B rows, L queries, S keys, H query heads, G key/value heads, R = H / G, K head size."""

import jax
import jax.numpy as jnp

from prm_jax.kernels import cpu
from prm_jax.kernels.cpu import MASKED, group_queries, soft_cap, ungroup
from prm_jax.launch.sharding import platform
from prm_jax.visibility import visible

SHORT = 128  # rows up to here are one product of all scores: a loop over tiles has nothing to skip
NARROW = 16  # features of a head, up to which a CPU reads a cache feature by feature; wider: not measured
QUERIES = 256  # whose scores against all keys `dense` holds at once


def attend(q_BLHK, k_BSGK, v_BSGK, until_BS, slot_BL=None, cap=None):
    """Softmax attention, o_BLHK. `slot_BL` is each query's place among the keys of a cache.

    Without it the keys are the queries' own tokens (S = L), and every token must see at least itself. `cap`
    bounds the scores (`soft_cap` of kernels/cpu.py); cuDNN has no such bound."""
    arrays = q_BLHK, k_BSGK, v_BSGK, until_BS
    is_short = q_BLHK.shape[1] <= SHORT
    if slot_BL is not None:
        return dense(*arrays, slot_BL, cap)
    if platform() == "cpu":
        return (cpu.one_product if is_short else cpu.tiled)(*arrays, cap)

    from prm_jax.kernels import accelerator

    if platform() == "gpu" and cap is None and accelerator.cudnn_takes(q_BLHK):
        return accelerator.cudnn(*arrays)
    if platform() == "tpu" and not is_short:
        return accelerator.splash(*arrays, cap)
    return dense(*arrays, cap=cap)


def scores(q_BGmK, k_BGSK):
    """The products of queries and keys in float32, score_BGmS."""
    return jnp.einsum("BGmK,BGSK->BGmS", q_BGmK, k_BGSK, preferred_element_type=jnp.float32)


def dense(q_BLHK, k_BSGK, v_BSGK, until_BS, slot_BL=None, cap=None):
    """Attention as it is defined, on any platform: every query against every key, o_BLHK.

    It takes a block of queries at a time, which the backward pass computes again, so
    memory grows with S, not with L x S."""
    B, L, H, K = q_BLHK.shape
    G, n = k_BSGK.shape[2], -(-L // QUERIES)
    if slot_BL is None:
        slot_BL = jnp.broadcast_to(jnp.arange(L), (B, L))
    k_BGSK, v_BGSK = k_BSGK.swapaxes(1, 2), v_BSGK.swapaxes(1, 2)

    def block(queries):
        q_BLHK, slot_BL = queries
        q_BGRLK = group_queries(q_BLHK, G)
        q_BGmK = q_BGRLK.reshape(B, G, -1, K)  # m = R L: the group's queries are rows of one matrix
        is_narrow = platform() == "cpu" and L == 1 and K <= NARROW
        score_BGmS = (cpu.scores_by_feature if is_narrow else scores)(q_BGmK, k_BGSK)
        mask_BGmS = jnp.tile(visible(until_BS, slot_BL), (1, H // G, 1))[:, None]
        p_BGmS = jax.nn.softmax(jnp.where(mask_BGmS, soft_cap(score_BGmS, cap), MASKED), axis=-1)
        o_BGmK = jnp.einsum("BGmS,BGSK->BGmK", p_BGmS.astype(v_BGSK.dtype), v_BGSK)
        return ungroup(o_BGmK.reshape(q_BGRLK.shape)).astype(q_BLHK.dtype)

    if n == 1:
        return block((q_BLHK, slot_BL))

    def in_blocks(x_BLx):
        x_BLx = jnp.pad(x_BLx, [(0, 0), (0, n * QUERIES - L)] + [(0, 0)] * (x_BLx.ndim - 2))
        return x_BLx.reshape(B, n, QUERIES, *x_BLx.shape[2:]).swapaxes(0, 1)

    o_nBLHK = jax.lax.map(jax.checkpoint(block), (in_blocks(q_BLHK), in_blocks(slot_BL)))
    return o_nBLHK.swapaxes(0, 1).reshape(B, n * QUERIES, H, K)[:, :L]
