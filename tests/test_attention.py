"""Every formulation of attention against a naive einsum, gradients too: causal, packed, windowed, trees,
padding."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prm_jax import visibility
from prm_jax.attention import QUERIES, dense, scores
from prm_jax.kernels import accelerator, cpu
from prm_jax.visibility import is_causal, visible


def test_visible_is_causal_within_each_solution():
    visible_until_BL = jnp.array([[1, 1, 3, 3, 5]])  # two solutions of two tokens, one token of padding
    expected_LM = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1]]
    np.testing.assert_array_equal(visible(visible_until_BL)[0], np.array(expected_LM, bool))


LAST = {  # what keeps a key visible, by key: name -> visible_until_L of a row of L tokens
    "causal": lambda L: np.full(L, L - 1),
    "packed": lambda L: np.where(np.arange(L) < L // 3, L // 3 - 1, L - 1),
    "window": lambda L: np.minimum(np.arange(L) + 6, L - 1),
    "padded": lambda L: np.where(np.arange(L) < L - 5, L - 6, L),
    # A prompt of 4 tokens that all see, then two branches.
    "tree": lambda L: np.where(np.arange(L) < 4, L - 1, np.where(np.arange(L) < L // 2, L // 2 - 1, L - 1)),
}


def sees_whole_solution(query, query_until, key, key_until):
    """A rule that is not causal: each token of a solution sees all of it."""
    return (key <= query_until) & (query <= key_until)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("formulation", "L", "heads", "kv_heads", "dtype", "cap"),
    [
        (dense, 12, 4, 2, "float32", None),
        (dense, QUERIES + 9, 4, 2, "float32", 1.5),  # two blocks of queries
        (dense, 40, 3, 1, "bfloat16", None),
        (cpu.one_product, 12, 4, 2, "float32", 1.5),
        (cpu.one_product, 40, 3, 1, "bfloat16", None),
        (cpu.one_product, 117, 8, 4, "float32", None),  # a row at a time
        (cpu.tiled, 64, 4, 4, "float32", None),
        (cpu.tiled, 150, 4, 2, "float32", 1.5),  # not a multiple of the tile, and two tiles apart
        (cpu.tiled, 150, 3, 1, "bfloat16", None),
        (accelerator.splash, 300, 4, 2, "float32", None),  # interpreted
        (accelerator.splash, 130, 3, 1, "bfloat16", 1.5),
    ],
)
def test_equals_a_naive_einsum_with_gradients(
    rng, monkeypatch, formulation, L, heads, kv_heads, dtype, cap, causal
):
    rows = {name: last(L) for name, last in LAST.items()}
    if not causal:
        for module in (visibility, cpu):
            monkeypatch.setattr(module, "sees", sees_whole_solution)
        rows = {name: rows[name] for name in ("causal", "packed", "padded")}
    assert is_causal() == causal
    until_BL = jnp.asarray(np.stack(list(rows.values())))
    q_BLHK = jnp.asarray(rng.standard_normal((len(rows), L, heads, 8)), dtype)
    k_BLGK, v_BLGK = jnp.asarray(rng.standard_normal((2, len(rows), L, kv_heads, 8)), dtype)
    is_real_BL11 = (until_BL < L)[..., None, None]
    weight_BLHK = jnp.where(is_real_BL11, rng.standard_normal(q_BLHK.shape), 0.0)
    last_BL = np.where(np.asarray(until_BL) < L, until_BL, np.arange(L))  # padding sees only itself
    mask_BLL = np.arange(L)[:, None] <= last_BL[:, None]
    mask_BLL &= np.arange(L) <= (np.arange(L)[:, None] if causal else last_BL[:, :, None])

    def naive(q_BLHK, k_BLGK, v_BLGK):
        k_BLHK, v_BLHK = (jnp.repeat(x, heads // kv_heads, axis=2) for x in (k_BLGK, v_BLGK))
        score_BHLM = jnp.einsum("BLHK,BMHK->BHLM", q_BLHK, k_BLHK).astype(jnp.float32) / math.sqrt(8)
        score_BHLM = cap * jnp.tanh(score_BHLM / cap) if cap else score_BHLM
        score_BHLM = jnp.where(mask_BLL[:, None], score_BHLM, -jnp.inf)
        return jnp.einsum("BHLM,BMHK->BLHK", jax.nn.softmax(score_BHLM, -1), v_BLHK)

    def value_and_gradients(f):
        def loss(*qkv):
            return (f(*qkv) * weight_BLHK).sum()

        gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(q_BLHK, k_BLGK, v_BLGK)
        return jnp.where(is_real_BL11, jax.jit(f)(q_BLHK, k_BLGK, v_BLGK), 0), *gradients

    ours = value_and_gradients(lambda *qkv: formulation(*qkv, until_BL, cap=cap))
    for mine, theirs in zip(ours, value_and_gradients(naive), strict=True):
        assert mine.dtype == dtype
        mine, theirs = (np.asarray(x, np.float32) for x in (mine, theirs))
        np.testing.assert_allclose(mine, theirs, atol=1e-5 if dtype == "float32" else 0.1)


def test_the_tiles_that_are_visited_are_those_with_a_visible_pair():
    t = cpu.TILE
    visible_until_BL = np.stack([LAST[name](4 * t) for name in ("causal", "packed", "window", "tree")])
    for visible_until_L in visible_until_BL:
        last_N = cpu._last_tile(jnp.asarray(visible_until_L).reshape(4, t))
        visited_NN = [[j <= i <= last_N[j] for j in range(4)] for i in range(4)]
        by_tile_NN = np.asarray(visible(jnp.asarray(visible_until_L)[None])).reshape(4, t, 4, t).any((1, 3))
        np.testing.assert_array_equal(visited_NN, by_tile_NN)


def test_a_long_row_takes_memory_by_the_row_and_not_by_its_square():
    """Peak of a gradient in bytes, against the L x L scores of every head."""
    L, H, K = 4096, 8, 16
    array = jax.ShapeDtypeStruct((1, L, H, K), jnp.float32)
    arrays = array, array, array, jax.ShapeDtypeStruct((1, L), jnp.int32)

    def peak(f):
        gradient = jax.grad(lambda q, k, v, until: f(q, k, v, until).sum(), argnums=(0, 1, 2))
        return jax.jit(gradient).lower(*arrays).compile().memory_analysis().temp_size_in_bytes

    assert peak(dense) < 4 * H * L * L / 3


def test_scores_by_feature_are_the_products(rng):
    q_BGmK, k_BGSK = (jnp.asarray(rng.standard_normal((3, 2, n, 16)), jnp.float32) for n in (2, 9))
    ours, products = (np.asarray(jax.jit(f)(q_BGmK, k_BGSK)) for f in (cpu.scores_by_feature, scores))
    np.testing.assert_allclose(ours, products, rtol=1e-5, atol=1e-6)
