"""The next-token loss of a large vocabulary, of which no array has all tokens' logits, in the backward pass
either.

Dimension key: B rows, L tokens, b places of a block, D model, V vocabulary."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from prm_jax.launch.sharding import map_rows
from prm_jax.losses import next_token_sums
from prm_jax.model import LOGITS


def vocabulary_sums(read: Callable, w_DV, x_BLD, target_BL, weight_BL):
    """`next_token_sums` of the logits read(w_DV, x_BLD)."""
    if target_BL.size * w_DV.shape[1] <= LOGITS:
        return next_token_sums(read(w_DV, x_BLD), target_BL, weight_BL)
    return sums_in_blocks(read, w_DV, x_BLD, target_BL, weight_BL)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def sums_in_blocks(read: Callable, w_DV, x_BLD, target_BL, weight_BL):
    """`vocabulary_sums` of blocks of places, of those alone that have a weight. XLA drops the gradients."""
    return _sums_forward(read, w_DV, x_BLD, target_BL, weight_BL)[0]


def _sums_forward(read, w_DV, x_BLD, target_BL, weight_BL):
    """Computes the gradients as well, which are those of a sum, so that no logits are computed again."""

    def add(carry, w_DV, place_Bb, x_BbD, *block):
        (loss, right), dw_DV, dx_BLD = carry

        def sums(w_DV, x_BbD):
            return next_token_sums(read(w_DV, x_BbD), *block)

        more, pull, more_right = jax.vjp(sums, w_DV, x_BbD, has_aux=True)
        more_DV, dx_BbD = pull(jnp.ones_like(more))
        row_B1 = jnp.arange(len(place_Bb))[:, None]
        dx_BLD = dx_BLD.at[row_B1, place_Bb].add(dx_BbD)
        return (loss + more, right + more_right), dw_DV + more_DV, dx_BLD

    def own(w_DV, x_BLD, *rows):
        start = (jnp.zeros(()), 0), jnp.zeros(w_DV.shape), jnp.zeros(x_BLD.shape)
        sums, dw_DV, dx_BLD = over_blocks(add, start, w_DV, x_BLD, *rows)
        return (sums, dw_DV), dx_BLD

    (sums, dw_DV), dx_BLD = map_rows(own, w_DV, x_BLD, target_BL, weight_BL)
    return sums, (dw_DV.astype(w_DV.dtype), dx_BLD.astype(x_BLD.dtype))


def _sums_backward(_, gradients, d_sums):
    return *(d_sums[0].astype(dy.dtype) * dy for dy in gradients), None, None


sums_in_blocks.defvjp(_sums_forward, _sums_backward)


def over_blocks(add: Callable, carry, w_DV, x_BLD, target_BL, weight_BL):
    """carry = add(carry, w_DV, place_Bb, x_BbD, target_Bb, weight_Bb) for blocks of a row's places, those
    with a weight first; blocks without one are left out."""
    B, L = weight_BL.shape
    b = min(L, max(1, LOGITS // (B * w_DV.shape[1])))
    place_BL = jnp.argsort(weight_BL == 0, axis=1)
    n_B = (weight_BL != 0).sum(1)

    def block(i, carry):
        first = jnp.minimum(i * b, L - b)  # the last block may begin in the one before it
        place_Bb = jax.lax.dynamic_slice_in_dim(place_BL, first, b, axis=1)
        x_BbD = jnp.take_along_axis(x_BLD, place_Bb[:, :, None], axis=1)
        target_Bb, weight_Bb = (
            jnp.take_along_axis(x_BL, place_Bb, axis=1) for x_BL in (target_BL, weight_BL)
        )
        weight_Bb = jnp.where(first + jnp.arange(b) >= i * b, weight_Bb, 0.0)
        return add(carry, w_DV, place_Bb, x_BbD, target_Bb, weight_Bb)

    return jax.lax.fori_loop(0, -(-n_B.max() // b), block, carry)
