"""Who sees whom: the one rule that every attention kernel, the packing and the scoring ask.

Each key carries one integer, `until`: the last place of its row whose query may see it. With S keys in a row
it describes a causal mask (S - 1 for all), packing (the last token of the key's own solution), a sliding
window (j + window - 1), a prefix tree with tokens in depth-first order (the last token of the subtree below
the key), a slot that is not filled yet (-1), padding after all tokens (S or more) and padding before them
(its own place).

Change `sees`, and all kernels follow; where the model is no longer causal, prefixes are not shared and
lm_weight is 0 by default. A kernel asks it of whole tiles too, so it must be made of comparisons of these
four by <= alone.

Dimension key: B rows, L queries, S keys."""

import jax.numpy as jnp

ALWAYS = 1 << 30  # `until` of a token that all later ones see


def sees(query, query_until, key, key_until):
    """Whether the query in place `query` sees the key in place `key`: itself and what stands before it, up to
    the key's `until`. Each token must see itself."""
    return (key <= query) & (query <= key_until)


def is_causal() -> bool:
    """Whether no token sees a later one."""
    return not sees(0, ALWAYS, 1, ALWAYS)


def visible(until_BS, slot_BL=None):
    """Boolean mask_BLS. slot_BL: a query's place among the keys; None: S = L."""
    place_S = jnp.arange(until_BS.shape[1])
    if slot_BL is None:
        query_BL1, query_until_BL1 = place_S[None, :, None], until_BS[:, :, None]
    else:
        query_BL1 = slot_BL[:, :, None]
        query_until_BL1 = jnp.take_along_axis(until_BS, slot_BL, axis=1)[:, :, None]
    return sees(query_BL1, query_until_BL1, place_S, until_BS[:, None, :])
