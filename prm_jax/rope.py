"""Rotary position embedding (Su et al. 2021), and how it is stretched for longer rows.

Dimension key: B rows, L tokens, H heads, K head size, k = K / 2 pairs of features."""

import dataclasses
import math
from typing import Literal

import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How frequencies shrink, with the names of a config.json. linear: all are divided by `factor`. Others go
    by the turns that a pair of features makes over the length that the model was first trained at: below
    low_freq_factor (llama3) or beta_slow (yarn) its frequency is divided, above high_freq_factor or beta_fast
    it is kept, and between the two it is blended."""

    rope_type: Literal["linear", "llama3", "yarn"]
    factor: float
    original_max_position_embeddings: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_slow: float | None = None  # None: 1
    beta_fast: float | None = None  # None: 32
    # yarn: factor of cosine and sine, so that scores grow by its square; None: equation 22 of the paper
    attention_factor: float | None = None
    truncate: bool | None = None  # yarn: the bounds of the blend are whole pairs; None: true


def frequencies(head_dim: int, theta: float, scaling: RopeScaling | None):
    """Radians a position for each pair of features, freq_k.

    Llama 3.1 blends by the number of turns a pair makes over the first length, YaRN (Peng et al. 2023,
    section 3.2) by the number of the pair, between those that make `fast` and `slow` turns."""
    freq_k = theta ** (-jnp.arange(0, head_dim, 2) / head_dim)
    if scaling is None:
        return freq_k
    keep_k, length = 0.0, scaling.original_max_position_embeddings
    if scaling.rope_type == "llama3":
        turns_k = length * freq_k / (2 * jnp.pi)
        slow, fast = scaling.low_freq_factor, scaling.high_freq_factor
        keep_k = jnp.clip((turns_k - slow) / (fast - slow), 0, 1)
    if scaling.rope_type == "yarn":
        pairs = head_dim / 2 / math.log(theta)
        bounds = scaling.beta_fast or 32.0, scaling.beta_slow or 1.0
        low, high = (pairs * math.log(length / (2 * math.pi * turns)) for turns in bounds)
        if scaling.truncate is not False:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        keep_k = 1 - jnp.clip((jnp.arange(len(freq_k)) - low) / max(high - low, 0.001), 0, 1)
    return freq_k * (keep_k + (1 - keep_k) / scaling.factor)


def rotations(pos_BL, head_dim: int, theta: float, scaling: RopeScaling | None):
    """(cos_BL1k, sin_BL1k) of the angles that tokens at these positions are rotated by."""
    angle_BL1k = pos_BL[:, :, None, None] * frequencies(head_dim, theta, scaling)
    stretch = 1.0
    if scaling is not None and scaling.rope_type == "yarn":
        stretch = scaling.attention_factor or 0.1 * math.log(max(1, scaling.factor)) + 1
    return stretch * jnp.cos(angle_BL1k), stretch * jnp.sin(angle_BL1k)


def rotate(x_BLHK, cos_BL1k, sin_BL1k):
    """Feature j is rotated with feature j + K/2, as in the Hugging Face checkpoints."""
    a_BLHk, b_BLHk = jnp.split(x_BLHK.astype(jnp.float32), 2, -1)
    halves = a_BLHk * cos_BL1k - b_BLHk * sin_BL1k, b_BLHk * cos_BL1k + a_BLHk * sin_BL1k
    return jnp.concatenate(halves, -1).astype(x_BLHK.dtype)
