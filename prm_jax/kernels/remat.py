"""Rematerialisation (`model.remat`; Chen et al. 2016, 1604.06174).

A block saves its input and its named values, and its backward pass computes the rest again.
"""

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from prm_jax.launch.mesh import platform

# `dots` saves the outputs of linear layers, and attention's inputs and outputs (on GPU not the outputs, since cuDNN's
# kernel names nothing and runs again); `full` saves only each block's input.
REMAT = {"dots": jax.checkpoint_policies.save_only_these_names("linear", "attention"), "full": None}


def save_inside(x, name: str):
    """`save_for_backward` inside a hand-written forward pass.

    On CPU bfloat16 is saved as its bits. XLA's CPU backend would convert what a loop over layers has saved to float32,
    all layers at once, before the backward pass reads it (a tenth of a training step, and twice the memory). It still
    does so with the blocks' inputs, which jax.lax.scan saves.
    """
    if x.dtype != jnp.bfloat16 or platform() != "cpu":
        return checkpoint_name(x, name)
    bits = checkpoint_name(jax.lax.bitcast_convert_type(x, jnp.uint16), name)
    return jax.lax.bitcast_convert_type(bits, x.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def save_for_backward(x, name: str):
    """x, which is saved for the backward pass under a policy with its name."""
    return save_inside(x, name)


@save_for_backward.defjvp
def _keep_derivative(name, x, dx):
    return save_inside(*x, name), *dx


def remat(layer, policy: str):
    """The body of a loop over layers, rematerialised by a policy of REMAT or "none"."""
    return layer if policy == "none" else jax.checkpoint(layer, policy=REMAT[policy])
