"""What the backward pass finds kept from the forward pass, and what it computes again (`model.remat`).

Chen et al. 2016 (1604.06174): a block keeps its input and its named values, and its backward pass runs the rest once more.
"""

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from prm_jax.launch.mesh import platform

# `dots` keeps what linear layers give and what attention takes and gives (on a GPU not the latter: cuDNN's kernel, which
# names nothing, runs again); `full` only each block's input.
REMAT = {"dots": jax.checkpoint_policies.save_only_these_names("linear", "attention"), "full": None}


def save_inside(x, name: str):
    """`save_for_backward` for a hand-written forward pass, whose derivative is not taken again.

    On CPU bfloat16 is kept as its bits: XLA's CPU backend would make float32 of what a loop over layers has kept, all
    layers at once, before the backward pass reads it (a tenth of a training step, and twice the memory). It still does so
    with the blocks' inputs, which jax.lax.scan keeps.
    """
    if x.dtype != jnp.bfloat16 or platform() != "cpu":
        return checkpoint_name(x, name)
    bits = checkpoint_name(jax.lax.bitcast_convert_type(x, jnp.uint16), name)
    return jax.lax.bitcast_convert_type(bits, x.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def save_for_backward(x, name: str):
    """x itself, kept for the backward pass under a policy that has its name."""
    return save_inside(x, name)


@save_for_backward.defjvp
def _keep_derivative(name, x, dx):
    return save_inside(*x, name), *dx


def remat(layer, how: str):
    """The body of a loop over layers with its backward pass as asked: none, or a key of REMAT."""
    return layer if how == "none" else jax.checkpoint(layer, policy=REMAT[how])
