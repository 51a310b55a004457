"""Draws from many distributions over a vocabulary at once, and truncates them by top-k and top-p without a
sort.

Dimension key: B rows, V vocabulary; n blocks of b tokens."""

import math

import jax
import jax.numpy as jnp
import numpy as np


def most_likely(p_BV, weight_BV, target_B):
    """p_BV with zeros but for the fewest largest entries whose weights sum to the target; equal entries stay
    together. The smallest of them is bisected over the bits of a float, which order as floats do: 31 sums,
    where a sort of the vocabulary would cost more than the model."""
    bits_BV = jax.lax.bitcast_convert_type(p_BV, jnp.int32)
    top = np.float32(1).view(np.int32) + 1  # p is at most 1

    def halve(_, bounds):
        low_B1, high_B1 = bounds
        middle_B1 = (low_B1 + high_B1) // 2
        enough_B1 = jnp.where(bits_BV >= middle_B1, weight_BV, 0).sum(-1, keepdims=True) >= target_B[:, None]
        return jnp.where(enough_B1, middle_B1, low_B1), jnp.where(enough_B1, high_B1, middle_B1)

    zeros_B1 = jnp.zeros((len(p_BV), 1), jnp.int32)
    low_B1, _ = jax.lax.fori_loop(0, 31, halve, (zeros_B1, zeros_B1 + top))
    return jnp.where(bits_BV >= low_B1, p_BV, 0)


def inverse_cdf(p_BV, uniform_B):
    """id_B: the token of each row at which the cumulative sum of p first exceeds uniform_B times the total,
    found among blocks of about sqrt(V) tokens, then in one. It takes one random number a row, where the
    Gumbel maximum takes V, which cost as much as a small model."""
    b = math.isqrt(p_BV.shape[1] - 1) + 1
    p_Bnb = jnp.pad(p_BV, ((0, 0), (0, -p_BV.shape[1] % b))).reshape(len(p_BV), -1, b)
    p_Bn = p_Bnb.sum(-1)
    block_B, rest_B = first_exceeding(p_Bn, uniform_B * p_Bn.sum(-1))
    p_Bb = jnp.take_along_axis(p_Bnb, block_B[:, None, None], 1)[:, 0]
    return block_B * b + first_exceeding(p_Bb, rest_B)[0]


def first_exceeding(p_Bn, target_B):
    """(i_B, rest_B): the first entry whose sum exceeds the target, and the target less the sum before."""
    n = p_Bn.shape[1]
    sum_Bn = jnp.matmul(p_Bn, np.triu(np.ones((n, n), np.float32)), precision=jax.lax.Precision.HIGHEST)
    below_total_B1 = jnp.nextafter(sum_Bn[:, -1:], jnp.zeros(()))  # rounding may lead beyond the last entry
    target_B1 = jnp.minimum(target_B[:, None], below_total_B1)
    i_B = (sum_Bn <= target_B1).sum(-1, dtype=jnp.int32)
    before_B1 = jnp.take_along_axis(sum_Bn - p_Bn, i_B[:, None], 1)
    return i_B, jnp.maximum(target_B1 - before_B1, 0)[:, 0]  # below 0 by rounding it would be any token
