"""Rotary position embedding (Su et al. 2021), and how it is stretched for longer rows.

Dimension key: B rows, L tokens, H heads, K head size, k = K / 2 pairs of features."""

import dataclasses
import math
from typing import Literal

import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How frequencies shrink, by the turns that a pair of features makes over the first length: below `slow`
    turns its frequency is divided by `factor`, above `fast` it is kept, and between the two it is blended."""

    kind: Literal["linear", "llama3", "yarn"]  # rope_type of a config.json; linear: all are divided
    factor: float
    length: int = 0  # tokens that the model was first trained at
    slow: float = 1.0
    fast: float = 32.0
    attention: float = 1.0  # yarn: factor of cosine and sine, so that scores grow by its square
    truncate: bool = True  # yarn: the bounds of the blend are whole pairs


def frequencies(head_dim: int, theta: float, scaling: RopeScaling | None):
    """Radians a position for each pair of features, freq_k.

    Llama 3.1 blends by the number of turns a pair makes over the first length, YaRN (Peng et al. 2023,
    section 3.2) by the number of the pair, between those that make `fast` and `slow` turns."""
    freq_k = theta ** (-jnp.arange(0, head_dim, 2) / head_dim)
    if scaling is None:
        return freq_k
    keep_k = 0.0
    if scaling.kind == "llama3":
        turns_k = scaling.length * freq_k / (2 * jnp.pi)
        keep_k = jnp.clip((turns_k - scaling.slow) / (scaling.fast - scaling.slow), 0, 1)
    if scaling.kind == "yarn":
        pairs = head_dim / 2 / math.log(theta)
        low, high = (
            pairs * math.log(scaling.length / (2 * math.pi * turns)) for turns in (scaling.fast, scaling.slow)
        )
        if scaling.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        keep_k = 1 - jnp.clip((jnp.arange(len(freq_k)) - low) / max(high - low, 0.001), 0, 1)
    return freq_k * (keep_k + (1 - keep_k) / scaling.factor)


def rotations(pos_BL, head_dim: int, theta: float, scaling: RopeScaling | None):
    """(cos_BL1k, sin_BL1k) of the angles that tokens at these positions are rotated by."""
    angle_BL1k = pos_BL[:, :, None, None] * frequencies(head_dim, theta, scaling)
    stretch = 1.0 if scaling is None else scaling.attention
    return stretch * jnp.cos(angle_BL1k), stretch * jnp.sin(angle_BL1k)


def rotate(x_BLHK, cos_BL1k, sin_BL1k):
    """Feature j is rotated with feature j + K/2, as in the Hugging Face checkpoints."""
    a_BLHk, b_BLHk = jnp.split(x_BLHK.astype(jnp.float32), 2, -1)
    halves = a_BLHk * cos_BL1k - b_BLHk * sin_BL1k, b_BLHk * cos_BL1k + a_BLHk * sin_BL1k
    return jnp.concatenate(halves, -1).astype(x_BLHK.dtype)
