"""The products of linear layers, written so that XLA multiplies them fast on CPU too; elsewhere they are what they say.

Dimension key: n rows x tokens, D in, F out.
"""

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from prm_jax.launch.mesh import features_are_split, over_own_rows, platform


def _multiply(x, w, over_x: int, over_w: int):
    """x and w multiplied and summed over one axis each. On CPU sums stay float32: XLA multiplies bfloat16 at twice the speed
    of float32 if they may, and not at all faster if not."""
    sums = jnp.float32 if platform() == "cpu" else None
    return jax.lax.dot_general(x, w, (((over_x,), (over_w,)), ((), ())), preferred_element_type=sums)


@jax.custom_vjp
def matmul(x_nD, w_DF):
    """x @ w, in the dtype of x."""
    return _multiply(x_nD, w_DF, 1, 0).astype(x_nD.dtype)


def _matmul_forward(x_nD, w_DF):
    return matmul(x_nD, w_DF), (x_nD, w_DF)


def _matmul_backward(saved, dy_nF):
    x_nD, w_DF = saved
    dx_nD = _multiply(dy_nF, w_DF, 1, 1)
    if platform() == "cpu" and not features_are_split():
        dw_DF = over_own_rows(_weight_gradient, x_nD, dy_nF)
    else:
        dw_DF = _multiply(x_nD.T, dy_nF, 1, 0)
    return dx_nD.astype(x_nD.dtype), dw_DF.astype(w_DF.dtype)


def _weight_gradient(x_nD, dy_nF):
    """x^T dy. XLA's CPU backend takes twice as long where the sum is over the rows of the left factor, so that one is
    transposed, and held to that layout lest XLA transpose it back. The narrower of the two, and then the result: XLA writes
    transposes element by element, and what makes the wider one (SwiGLU) it would compute in that order too."""
    if x_nD.shape[1] > dy_nF.shape[1]:
        return _transpose(with_layout_constraint(_weight_gradient(dy_nF, x_nD), Layout((0, 1))))
    return _multiply(_transpose(x_nD), dy_nF, 1, 0)


def _transpose(x_nD):
    return with_layout_constraint(x_nD.T, Layout((0, 1)))


matmul.defvjp(_matmul_forward, _matmul_backward)


@jax.custom_vjp
def add_bias(y_nF, b_F):
    """y + b. Its derivative is written out since XLA's CPU backend sums over rows six times slower than it multiplies; a
    product elsewhere, or of the bias itself, would round to what an accelerator multiplies float32 in."""
    return y_nF + b_F


def _add_bias_backward(_, dy_nF):
    if platform() != "cpu":
        return dy_nF, dy_nF.sum(0)
    return dy_nF, _multiply(jnp.ones((1, len(dy_nF)), dy_nF.dtype), dy_nF, 1, 0)[0].astype(dy_nF.dtype)


add_bias.defvjp(lambda y_nF, b_F: (y_nF + b_F, None), _add_bias_backward)
