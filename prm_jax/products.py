"""The products of linear layers, written so that XLA multiplies them fast on CPU too; elsewhere they are what they say.

Dimension key: n rows x tokens, D in, F out.
"""

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from prm_jax.sharding import over_own_rows, platform


def _multiply(x, w, over_x: int, over_w: int):
    """x and w multiplied and summed over one axis each, in the dtype of x. Sums are asked for in float32 on CPU, where XLA
    multiplies bfloat16 at twice the speed of float32 with them and not at all faster without."""
    sums = jnp.float32 if platform() == "cpu" else None
    dimensions = (((over_x,), (over_w,)), ((), ()))
    return jax.lax.dot_general(x, w, dimensions, preferred_element_type=sums).astype(x.dtype)


@jax.custom_vjp
def matmul(x_nD, w_DF):
    """x @ w, in the dtype of x."""
    return _multiply(x_nD, w_DF, 1, 0)


def _matmul_forward(x_nD, w_DF):
    return matmul(x_nD, w_DF), (x_nD, w_DF)


def _matmul_backward(saved, dy_nF):
    x_nD, w_DF = saved
    dw_DF = (
        over_own_rows(_weight_gradient, x_nD, dy_nF) if platform() == "cpu" else _multiply(x_nD, dy_nF, 0, 0)
    )
    return _multiply(dy_nF, w_DF, 1, 1), dw_DF


def _weight_gradient(x_nD, dy_nF):
    """x^T dy. XLA's CPU backend takes twice as long where the sum is over the rows of the left factor, so that one is
    transposed, and held to that layout lest XLA transpose it back."""
    x_Dn = with_layout_constraint(x_nD.T, Layout((0, 1)))
    return _multiply(x_Dn, dy_nF, 1, 0)


matmul.defvjp(_matmul_forward, _matmul_backward)


@jax.custom_vjp
def add_bias(y_nF, b_F):
    """y + b. Its derivative is written out since XLA's CPU backend sums over rows six times slower than it multiplies; a
    product elsewhere, or of the bias itself, would round to what an accelerator multiplies float32 in."""
    return y_nF + b_F


def _add_bias_backward(_, dy_nF):
    if platform() != "cpu":
        return dy_nF, dy_nF.sum(0)
    return dy_nF, _multiply(jnp.ones((1, len(dy_nF)), dy_nF.dtype), dy_nF, 1, 0)[0]


add_bias.defvjp(lambda y_nF, b_F: (y_nF + b_F, None), _add_bias_backward)
