"""The mask of every attention kernel, from one integer a key (attention.py says what it means)."""

import jax.numpy as jnp

MASKED = -1e30  # finite, so that a masked score minus a masked maximum is 0 and not NaN


def visible(visible_until_BS, slot_BL=None):
    """Boolean mask_BLS: True where the query may read the key. `slot_BL`: each query's place among the keys; None: S = L."""
    key_S = jnp.arange(visible_until_BS.shape[1])
    query_BL1 = key_S[None, :, None] if slot_BL is None else slot_BL[:, :, None]
    return (key_S <= query_BL1) & (query_BL1 <= visible_until_BS[:, None, :])
