"""The transformer: parity with PyTorch, causality, packing, remat, heads."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY
from flax import nnx
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, use_abstract_mesh

from prm_jax.attention import SHORT
from prm_jax.model import PRM, at_marks, good_logit, linear


def causal(rng, B, L, vocab=64):
    ids_BL = jnp.asarray(rng.integers(1, vocab, (B, L)))
    return ids_BL, jnp.tile(jnp.arange(L), (B, 1)), jnp.full((B, L), L - 1)


def test_causality_by_gradient(tiny_model, rng):
    """The hidden state of token 6 must not depend on any later token, exactly."""
    ids_BL, pos_BL, visible_until_BL = causal(rng, 1, 10)

    def hidden_6(embed_LD):
        model = jax.tree.map(lambda x: x, tiny_model)
        model.embed = nnx.Param(embed_LD)
        return model(jnp.arange(10)[None], pos_BL, visible_until_BL)[0, 6].sum()

    grad_LD = jax.grad(hidden_6)(tiny_model.embed[...][ids_BL[0]])
    assert (grad_LD[7:] == 0).all()
    assert (jnp.abs(grad_LD[:7]).sum(-1) > 0).all()


def test_packed_equals_unpacked_and_padding_changes_nothing(tiny_model, rng):
    a, b = rng.integers(1, 64, 7), rng.integers(1, 64, 5)
    ids_BL = np.zeros((1, 16), int)
    ids_BL[0, :7], ids_BL[0, 7:12] = a, b
    pos_BL = np.array([[*range(7), *range(5), 0, 0, 0, 0]])
    visible_until_BL = np.array([[6] * 7 + [11] * 5 + [16] * 4])
    packed = tiny_model(*map(jnp.asarray, (ids_BL, pos_BL, visible_until_BL)))[0]
    for row, part in ((a, packed[:7]), (b, packed[7:12])):
        alone = tiny_model(jnp.asarray(row)[None], jnp.arange(len(row))[None], jnp.full((1, len(row)), len(row) - 1))
        np.testing.assert_allclose(part, alone[0], atol=1e-5)
    ids_BL[0, 12:] = 9
    np.testing.assert_array_equal(
        tiny_model(*map(jnp.asarray, (ids_BL, pos_BL, visible_until_BL)))[0, :12], packed[:12]
    )


@pytest.mark.parametrize(("D", "F"), [(4, 5), (5, 4)])
def test_a_linear_layer_has_the_plain_product_and_gradients(rng, D, F):
    x_BLD, w_DF, b_F, dy_BLF = (
        jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((2, 3, D), (D, F), (F,), (2, 3, F))
    )
    ours, vjp = jax.vjp(lambda x, w, b: linear(x, nnx.Param(w), nnx.Param(b)), x_BLD, w_DF, b_F)
    theirs, plain_vjp = jax.vjp(lambda x, w, b: x @ w + b, x_BLD, w_DF, b_F)
    for mine, plain in zip((ours, *vjp(dy_BLF)), (theirs, *plain_vjp(dy_BLF)), strict=True):
        np.testing.assert_allclose(mine, plain, rtol=1e-5, atol=1e-5)


def test_on_a_mesh_a_layout_is_asked_for_device_by_device():
    """XLA would gather the activations of all rows on every device to give them one; where features are split, nothing is asked."""

    def primitives(*sizes):
        gradient = jax.grad(lambda w: linear(jnp.ones((2, 3)), nnx.Param(w)).sum())
        cpu = AbstractDevice("cpu", None, "cpu")
        names, kinds = ("data", "fsdp", "tensor"), (AxisType.Auto,) * 3
        with use_abstract_mesh(AbstractMesh(sizes, names, kinds, abstract_device=cpu)):
            text = str(jax.make_jaxpr(gradient)(jnp.ones((3, 4))))
        return [name in text for name in ("layout_constraint", "shard_map", "psum")]

    assert primitives(1, 1, 1) == [True, False, False]
    assert primitives(2, 1, 1) == primitives(1, 2, 1) == [True, True, True]
    assert primitives(1, 1, 2) == [False, False, False]


@pytest.mark.parametrize("L", [8, 2 * SHORT])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("how", ["dots", "full"])
def test_remat_and_jit_change_nothing(rng, how, dtype, L):
    batch = causal(rng, 2, L)
    loss = lambda model: (model(*batch).astype(jnp.float32) ** 2).mean()
    plain, remat = (
        PRM(dataclasses.replace(TINY, dtype=dtype, remat=remat), rngs=nnx.Rngs(0)) for remat in ("none", how)
    )
    for mine, theirs in zip(*(jax.tree.leaves(jax.grad(loss)(m)) for m in (plain, remat)), strict=True):
        scale = {"float32": 1e-5, "bfloat16": 0.02}[dtype] * np.abs(theirs).max()
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=scale)
    at = {"float32": 1e-5, "bfloat16": 0.05}[dtype]
    np.testing.assert_allclose(jax.jit(lambda m: m(*batch))(plain), plain(*batch), atol=at)


@pytest.mark.parametrize("qk_norm", [False, True])
def test_dots_keeps_each_of_its_values_once_and_in_bfloat16(rng, qk_norm):
    """On CPU as bits: XLA would else convert what all layers have kept to float32 before the backward pass."""
    L = 2 * SHORT + 3
    cfg = dataclasses.replace(TINY, layers=3, remat="dots", dtype="bfloat16", qk_norm=qk_norm)
    model = PRM(cfg, rngs=nnx.Rngs(0))
    batch = causal(rng, 1, L)
    gradient = jax.jit(jax.grad(lambda model: model(*batch).astype(jnp.float32).sum()))
    kept = re.findall(rf"u16\[{cfg.layers},(?:1,)?{L},([\d,]+)\]", str(gradient.trace(model).jaxpr))
    q, k, v, o, gate_up = ("32", "16", "16", "32", "48") if qk_norm else ("4,8", "2,8", "16", "32", "48")
    assert sorted(kept) == sorted([q, k, v, o, gate_up, gate_up])
    assert f"f32[{cfg.layers},{L},{cfg.ffn}]" not in gradient.lower(model).compile().as_text()


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("how", ["none", "dots", "full"])
def test_hidden_states_at_step_ends_alone_are_those_of_all_tokens(rng, layers, how):
    """Hidden states and gradients; a mark may stand in two slots, as that of a step which solutions share."""
    model = PRM(dataclasses.replace(TINY, layers=layers, remat=how, window=5), rngs=nnx.Rngs(0))
    batch, step_end_BT = causal(rng, 2, 12), jnp.array([[3, 7, 7], [0, 5, 11]])
    weight_BTD = jnp.asarray(rng.normal(size=(2, 3, TINY.dim)))
    marks_alone = lambda model: model(*batch, step_end_BT)
    all_tokens = lambda model: at_marks(model(*batch), step_end_BT)
    np.testing.assert_allclose(marks_alone(model), all_tokens(model), atol=1e-6)
    gradients = [jax.grad(lambda m, f=f: (f(m) * weight_BTD).sum())(model) for f in (marks_alone, all_tokens)]
    for mine, theirs in zip(*map(jax.tree.leaves, gradients), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


def test_each_layer_starts_differently(tiny_model):
    deep = PRM(dataclasses.replace(TINY, layers=3), rngs=nnx.Rngs(0))
    w_q = deep.blocks.w_q[...]
    assert len(w_q) == 3 and not any(np.allclose(w_q[i], w_q[i - 1]) for i in range(3))
    np.testing.assert_allclose(w_q.std(), TINY.dim**-0.5, rtol=0.1)


def test_good_logit_of_each_head():
    np.testing.assert_allclose(good_logit(jnp.array([[[1.5]]]), "scalar"), [[1.5]])
    two = jnp.array([[[0.3, 2.0]]])
    np.testing.assert_allclose(jax.nn.sigmoid(good_logit(two, "binary")), jax.nn.softmax(two)[..., 1], rtol=1e-6)
    three = jnp.array([[[0.3, 2.0, -1.0]]])
    p = jax.nn.softmax(three)[0, 0]
    np.testing.assert_allclose(jax.nn.sigmoid(good_logit(three, "ternary"))[0, 0], p[1] + p[2], rtol=1e-6)


def test_step_head_reads_marks_only_and_dropout_needs_a_key(rng):
    model = PRM(dataclasses.replace(TINY, head_dropout=0.5), rngs=nnx.Rngs(0))
    x_BLD = jnp.asarray(rng.standard_normal((1, 6, 32)), jnp.float32)
    step_end_BT = jnp.array([[1, 4]])
    grad_BLD = jax.grad(lambda x: model.step_logits(at_marks(x, step_end_BT)).sum())(x_BLD)
    assert {int(i) for i in np.flatnonzero(np.abs(grad_BLD[0]).sum(-1))} == {1, 4}
    plain = model.step_logits(x_BLD)
    np.testing.assert_array_equal(plain, model.step_logits(x_BLD))
    assert not np.allclose(plain, model.step_logits(x_BLD, jax.random.key(0)))


def test_bfloat16_stays_close_and_returns_float32_logits(tiny_model, rng):
    batch = causal(rng, 2, 8)
    low = PRM(dataclasses.replace(TINY, dtype="bfloat16"), rngs=nnx.Rngs(0))
    step_end_BT = jnp.array([[3, 7]] * 2)
    a, b = (m.step_logits(m(*batch, step_end_BT)) for m in (tiny_model, low))
    assert b.dtype == jnp.float32
    np.testing.assert_allclose(a, b, atol=0.02)
