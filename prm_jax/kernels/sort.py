"""Sorts and ranks on CPU: with `jnp.argsort` best_of_n takes twice as long, and vote_curve six times."""

import jax
import jax.numpy as jnp


def best_first(score_PN):
    """Indices of rounded scores (`rerank.round_score`), the best first, of equal ones the lower index."""
    N = score_PN.shape[-1]
    index_bits = max(N - 1, 1).bit_length()
    half_bits = 13
    if index_bits + half_bits > 32:
        raise ValueError(f"{N} candidates, expected at most {2 ** (32 - half_bits)}")
    bits_PN = jax.lax.bitcast_convert_type(score_PN.astype(jnp.float32), jnp.int32)
    # These integers order as the floats do; rounding left the 7 lowest bits empty. ~: the best first.
    key_PN = ~(jnp.where(bits_PN < 0, bits_PN ^ 0x7FFFFFFF, bits_PN) >> 7) + (1 << 24)
    key_PN = key_PN.astype(jnp.uint32)
    index_N = jnp.arange(N, dtype=jnp.uint32)

    def sort_by(half_PN):
        return (jnp.sort(half_PN << index_bits | index_N, -1) & ((1 << index_bits) - 1)).astype(jnp.int32)

    by_low_PN = sort_by(key_PN & ((1 << half_bits) - 1))
    by_high_PN = sort_by(jnp.take_along_axis(key_PN >> half_bits, by_low_PN, -1))
    return jnp.take_along_axis(by_low_PN, by_high_PN, -1)


def ranks(key_PN):
    """How many integers of its row are smaller than each, rank_PN; their lowest bits are their index."""
    N = key_PN.shape[-1]
    if N <= 128:
        return sum((key_PN[:, n, None] < key_PN).astype(jnp.int32) for n in range(N))
    order_PN = (jnp.sort(key_PN, -1) & ((1 << (N - 1).bit_length()) - 1)).astype(jnp.int32)
    return jnp.zeros_like(order_PN).at[jnp.arange(len(order_PN))[:, None], order_PN].set(jnp.arange(N))
