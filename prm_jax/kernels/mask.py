"""The mask of every attention kernel, from one integer per key (see attention.py), and the cap of attention scores."""

import jax.numpy as jnp

MASKED = -1e30  # finite, so that a masked score minus a masked maximum is 0 and not NaN


def visible(visible_until_BS, slot_BL=None):
    """Boolean mask_BLS: whether the query sees the key. `slot_BL` is a query's position among the keys; None: S = L."""
    key_S = jnp.arange(visible_until_BS.shape[1])
    query_BL1 = key_S[None, :, None] if slot_BL is None else slot_BL[:, :, None]
    return (key_S <= query_BL1) & (query_BL1 <= visible_until_BS[:, None, :])


def soft_cap(score, cap: float | None):
    """cap tanh(score / cap), which is between -cap and cap (Gemma 2); the score itself without a cap."""
    return score if cap is None else cap * jnp.tanh(score / cap)


def cap_slope(capped, cap: float | None):
    """The derivative of `soft_cap` where its value is `capped`; 0 where that is MASKED."""
    return 1.0 if cap is None else jnp.maximum(1 - (capped / cap) ** 2, 0)
