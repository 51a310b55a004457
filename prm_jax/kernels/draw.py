"""Draws from many distributions over a vocabulary at once, and what is left of them by top-k and top-p, without a sort.

Dimension key: B rows, V vocabulary; n blocks of b tokens.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np


def most_likely(p_BV, weight_BV, target_B):
    """p_BV without all but the fewest of its largest entries whose weights sum to the target; equal entries stay together.

    A bisection of the smallest entry to keep over the bits of a float, in whose order the floats are, takes 31 sums where a
    sort of the vocabulary would cost more than the model.
    """
    bits_BV, top = jax.lax.bitcast_convert_type(p_BV, jnp.int32), np.float32(1).view(np.int32) + 1  # p is at most 1

    def halve(_, bounds):
        low_B1, high_B1 = bounds
        middle_B1 = (low_B1 + high_B1) // 2
        enough_B1 = jnp.where(bits_BV >= middle_B1, weight_BV, 0).sum(-1, keepdims=True) >= target_B[:, None]
        return jnp.where(enough_B1, middle_B1, low_B1), jnp.where(enough_B1, high_B1, middle_B1)

    zeros_B1 = jnp.zeros((len(p_BV), 1), jnp.int32)
    low_B1, _ = jax.lax.fori_loop(0, 31, halve, (zeros_B1, zeros_B1 + top))
    return jnp.where(bits_BV >= low_B1, p_BV, 0)


def inverse_cdf(p_BV, uniform_B):
    """The token of each row at which the sum of p first exceeds uniform_B times the whole, id_B.

    The inverse of the cumulative distribution takes one random number a row. The Gumbel maximum takes V, which cost as much
    as a small model, and is no more exact. Blocks of about sqrt(V) tokens come first, then the tokens of one.
    """
    b = math.isqrt(p_BV.shape[1] - 1) + 1
    p_Bnb = jnp.pad(p_BV, ((0, 0), (0, -p_BV.shape[1] % b))).reshape(len(p_BV), -1, b)
    p_Bn = p_Bnb.sum(-1)
    block_B, rest_B = first_exceeding(p_Bn, uniform_B * p_Bn.sum(-1))
    p_Bb = jnp.take_along_axis(p_Bnb, block_B[:, None, None], 1)[:, 0]
    return block_B * b + first_exceeding(p_Bb, rest_B)[0]


def first_exceeding(p_Bn, at_B):
    """The first entry of each row with which the sum exceeds `at_B`, and how far into that entry this is. Never one of 0."""
    n = p_Bn.shape[1]
    sum_Bn = jnp.matmul(p_Bn, np.triu(np.ones((n, n), np.float32)), precision=jax.lax.Precision.HIGHEST)
    at_B1 = jnp.minimum(
        at_B[:, None], jnp.nextafter(sum_Bn[:, -1:], jnp.zeros(()))
    )  # rounding may lead beyond the last
    i_B = (sum_Bn <= at_B1).sum(-1, dtype=jnp.int32)
    before_B1 = jnp.take_along_axis(sum_Bn - p_Bn, i_B[:, None], 1)
    return i_B, (at_B1 - before_B1)[:, 0]
