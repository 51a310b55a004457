"""The transformer: causality, packing, remat, heads, the KV cache."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY
from flax import nnx

from prm_jax.attention import SHORT
from prm_jax.heads import HEADS
from prm_jax.lora import LoraConfig, attach
from prm_jax.model import PRM, RopeScaling, at_step_ends, cast_backbone, for_decoding, linear, make_cache
from prm_jax.visibility import ALWAYS


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

    grad_LD = jax.jit(jax.grad(hidden_6))(tiny_model.embed[...][ids_BL[0]])
    assert (grad_LD[7:] == 0).all()
    assert (jnp.abs(grad_LD[:7]).sum(-1) > 0).all()


def test_packed_equals_unpacked_and_padding_changes_nothing(tiny_model, rng):
    a, b = rng.integers(1, 64, 7), rng.integers(1, 64, 5)
    ids_BL = np.zeros((1, 16), int)
    ids_BL[0, :7], ids_BL[0, 7:12] = a, b
    pos_BL = np.array([[*range(7), *range(5), 0, 0, 0, 0]])
    visible_until_BL = np.array([[6] * 7 + [11] * 5 + [16] * 4])
    call = jax.jit(PRM.__call__)
    packed = call(tiny_model, ids_BL, pos_BL, visible_until_BL)[0]
    for row, part in ((a, packed[:7]), (b, packed[7:12])):
        n = len(row)
        alone = call(tiny_model, row[None], np.arange(n)[None], np.full((1, n), n - 1))
        np.testing.assert_allclose(part, alone[0], atol=1e-5)
    ids_BL[0, 12:] = 9
    padded = call(tiny_model, ids_BL, pos_BL, visible_until_BL)[0]
    np.testing.assert_array_equal(padded[:12], packed[:12])


@pytest.mark.parametrize(("D", "F"), [(4, 5), (5, 4)])
def test_a_linear_layer_has_the_plain_product_and_gradients(rng, D, F):
    shapes = (2, 3, D), (D, F), (F,), (2, 3, F)
    x_BLD, w_DF, b_F, dy_BLF = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)
    ours, vjp = jax.vjp(lambda x, w, b: linear(x, nnx.Param(w), nnx.Param(b)), x_BLD, w_DF, b_F)
    theirs, plain_vjp = jax.vjp(lambda x, w, b: x @ w + b, x_BLD, w_DF, b_F)
    for mine, plain in zip((ours, *vjp(dy_BLF)), (theirs, *plain_vjp(dy_BLF)), strict=True):
        np.testing.assert_allclose(mine, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("how", "dtype", "L"),
    [("dots", "bfloat16", 2 * SHORT), ("full", "float32", 2 * SHORT), ("full", "bfloat16", 8)],
)
def test_remat_and_jit_change_nothing(rng, how, dtype, L):
    batch = causal(rng, 2, L)

    def loss(model):
        x_BLD = model(*batch)
        return (x_BLD.astype(jnp.float32) ** 2).mean(), x_BLD

    configs = (dataclasses.replace(TINY, dtype=dtype, remat=remat) for remat in ("none", how))
    plain, remat = (PRM(cfg, rngs=nnx.Rngs(0)) for cfg in configs)
    found = [jax.jit(jax.grad(loss, has_aux=True))(model) for model in (plain, remat)]
    for mine, theirs in zip(*(jax.tree.leaves(gradients) for gradients, _ in found), strict=True):
        scale = {"float32": 1e-5, "bfloat16": 0.02}[dtype] * np.abs(theirs).max()
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=scale)
    at = {"float32": 1e-5, "bfloat16": 0.05}[dtype]
    np.testing.assert_allclose(found[0][1], plain(*batch), atol=at)


@pytest.mark.parametrize(("layers", "how"), [(1, "dots"), (3, "none"), (3, "dots"), (3, "full")])
def test_hidden_states_at_step_ends_alone_are_those_of_all_tokens(rng, layers, how):
    """Hidden states and gradients; a mark may stand in two slots, as that of a step which solutions share."""
    model = PRM(dataclasses.replace(TINY, layers=layers, remat=how, window=5), rngs=nnx.Rngs(0))
    batch, step_end_BT = causal(rng, 2, 12), jnp.array([[3, 7, 7], [0, 5, 11]])
    weight_BTD = jnp.asarray(rng.normal(size=(2, 3, TINY.dim)))
    marks_alone = lambda model: model(*batch, step_end_BT)
    all_tokens = lambda model: at_step_ends(model(*batch), step_end_BT)

    def computed(f):
        def loss(model):
            x_BTD = f(model)
            return (x_BTD * weight_BTD).sum(), x_BTD

        return jax.jit(jax.grad(loss, has_aux=True))(model)

    (gradients, x_BTD), (others, other_BTD) = computed(marks_alone), computed(all_tokens)
    np.testing.assert_allclose(x_BTD, other_BTD, atol=1e-6)
    for mine, theirs in zip(*map(jax.tree.leaves, (gradients, others)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


def test_log_odds_of_each_head():
    np.testing.assert_allclose(HEADS["scalar"].log_odds(jnp.array([[[1.5]]])), [[1.5]])
    two = jnp.array([[[0.3, 2.0]]])
    for head in ("binary", "mlp"):
        p_good = jax.nn.sigmoid(HEADS[head].log_odds(two))
        np.testing.assert_allclose(p_good, jax.nn.softmax(two)[..., 1], rtol=1e-6)
    three = jnp.array([[[0.3, 2.0, -1.0]]])
    p = jax.nn.softmax(three)[0, 0]
    p_good = jax.nn.sigmoid(HEADS["ternary"].log_odds(three))
    np.testing.assert_allclose(p_good[0, 0], p[1] + p[2], rtol=1e-6)


@pytest.mark.parametrize("head", HEADS)
def test_a_head_reads_marks_alone_and_dropout_needs_a_key(rng, head):
    model = PRM(dataclasses.replace(TINY, head=head, head_dropout=0.5), rngs=nnx.Rngs(0))
    x_BLD = jnp.asarray(rng.standard_normal((1, 6, 32)), jnp.float32)
    plain_BLC = model.step_logits(x_BLD)
    assert plain_BLC.shape == (1, 6, HEADS[head].outputs)
    read = lambda x: model.step_logits(at_step_ends(x, jnp.array([[1, 4]])))
    score = lambda x: HEADS[head].log_odds(read(x)).sum()
    assert set(np.flatnonzero(np.abs(jax.grad(score)(x_BLD)[0]).sum(-1)).tolist()) == {1, 4}
    np.testing.assert_array_equal(plain_BLC, model.step_logits(x_BLD))
    assert not np.allclose(plain_BLC, model.step_logits(x_BLD, jax.random.key(0)))


def test_vocabulary_logits_are_not_rounded_to_the_compute_dtype(rng):
    """Implicit PRMs subtract two of them: at 15 the spacing of bfloat16 is 1/16."""
    for tied in (True, False):
        low = PRM(dataclasses.replace(TINY, dtype="bfloat16", tied=tied, lm_head=True), rngs=nnx.Rngs(0))
        x_BLD = jnp.asarray(rng.standard_normal((1, 6, TINY.dim)), jnp.bfloat16)
        logit_BLV = low.vocab_logits(x_BLD)
        assert logit_BLV.dtype == jnp.float32
        assert (logit_BLV != logit_BLV.astype(jnp.bfloat16).astype(jnp.float32)).mean() > 0.9
        w_DV = low.embed[...].T if tied else low.unembed[...]
        exact = x_BLD.astype(jnp.float32) @ w_DV.astype(jnp.bfloat16).astype(jnp.float32)
        np.testing.assert_allclose(logit_BLV, exact, rtol=1e-5, atol=1e-6)


LLAMA3 = RopeScaling("llama3", 8.0, 8, 1.0, 4.0)
VARIANTS = {
    "qwen2": {"window": 5, "sliding": (True, False)},
    "qwen3": {"family": "qwen3", "qk_norm": True, "qkv_bias": False},
    "llama": {"family": "llama", "rope_scaling": LLAMA3, "o_bias": True, "mlp_bias": True},
    "mistral": {"family": "mistral", "window": 3, "qkv_bias": False, "tied": False, "lm_head": True},
}


def goes_on(model, ids_BL, start_B, cache, slots):
    """One call with the tokens of the next slots; a row's first one is in slot start_B, padding before it."""
    slot_BL = jnp.broadcast_to(slots, (len(start_B), len(slots)))
    pos_BL = jnp.maximum(slot_BL - start_B[:, None], 0)
    visible_until_BL = jnp.where(slot_BL < start_B[:, None], slot_BL, ALWAYS)
    return model(jnp.take_along_axis(ids_BL, pos_BL, 1), pos_BL, visible_until_BL, cache=cache)


@pytest.mark.parametrize("name", VARIANTS)
def test_with_a_cache_tokens_one_by_one_are_the_whole_forward_pass(rng, name):
    """Rows of 17, 12 and 6 tokens, of which 11, 6 and none are the prompt; once a call of two tokens."""
    model = PRM(dataclasses.replace(TINY, **VARIANTS[name]), rngs=nnx.Rngs(0))
    end_B, start_B = jnp.array([17, 12, 6]), jnp.array([0, 5, 11])
    ids_BL, pos_BL, _ = causal(rng, 3, 17)
    is_real_BL = pos_BL < end_B[:, None]
    whole_BLD = jax.jit(lambda model: model(ids_BL, pos_BL, jnp.where(is_real_BL, 16, 17)))(model)

    call = jax.jit(lambda m, cache, slots: goes_on(m, ids_BL, start_B, cache, slots))
    found, cache = [], make_cache(model.cfg, 3, 20)
    for slots in [jnp.arange(11), *jnp.arange(11, 14)[:, None], jnp.arange(14, 16), jnp.array([16])]:
        x_BLD, cache = call(model, cache, slots)
        found.append(x_BLD)
    assert (cache.length_B == 17).all() and call._cache_size() == 3
    slot_BL = jnp.where(is_real_BL, pos_BL + start_B[:, None], 0)
    found_BLD = jnp.take_along_axis(jnp.concatenate(found, 1), slot_BL[..., None], 1)
    np.testing.assert_allclose(found_BLD[is_real_BL], whole_BLD[is_real_BL], atol=1e-5)
    logits = [model.vocab_logits(x_BLD)[is_real_BL] for x_BLD in (found_BLD, whole_BLD)]
    np.testing.assert_allclose(*logits, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_for_decoding_computes_the_same(rng, dtype):
    """Also one with low-rank updates, which stay apart."""
    model = PRM(dataclasses.replace(TINY, dtype=dtype), rngs=nnx.Rngs(0))
    model = attach(model, LoraConfig(2, 4.0, ["w_q", "w_down"]), 0)
    model.blocks.w_q.b = nnx.LoRAParam(jnp.asarray(rng.normal(size=model.blocks.w_q.b.shape), jnp.float32))
    ids_BL, start_B, cache = causal(rng, 2, 5)[0], jnp.array([0, 1]), make_cache(model.cfg, 2, 5)
    both = [goes_on(m, ids_BL, start_B, cache, jnp.arange(5))[0] for m in (model, for_decoding(model))]
    np.testing.assert_array_equal(*both)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="only XLA's CPU backend copies bfloat16")
def test_a_loop_on_cpu_copies_no_bfloat16_array_as_float32(rng):
    cfg = dataclasses.replace(TINY, layers=3, dtype="bfloat16", lm_head=True)
    model, (ids_BL, pos_BL, until_BL) = cast_backbone(PRM(cfg, rngs=nnx.Rngs(0))), causal(rng, 2, 8)
    compiled = jax.jit(lambda model: model(ids_BL, pos_BL, until_BL)).lower(model).compile().as_text()
    assert f"f32[3,{cfg.dim},{cfg.ffn}]" not in compiled
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(make_cache(cfg, 2, 8).layers))


def test_log_p_in_blocks_is_that_of_all_logits_and_its_gradient_keeps_one_matrix(rng, monkeypatch):
    cfg = dataclasses.replace(TINY, layers=1, lm_head=True)
    model, (B, L) = PRM(cfg, rngs=nnx.Rngs(0)), (3, 200)
    monkeypatch.setattr("prm_jax.model.LOGITS", 3 * 85 * cfg.vocab)  # three blocks, the last of them padded
    ids_BL = rng.integers(0, cfg.vocab, (B, L))
    x_BLD = jnp.asarray(rng.standard_normal((B, L, cfg.dim)), jnp.float32)
    logp_BLV = jax.nn.log_softmax(model.vocab_logits(x_BLD))
    expected = np.take_along_axis(np.asarray(logp_BLV)[:, :-1], ids_BL[:, 1:, None], 2)[..., 0]
    np.testing.assert_allclose(model.next_logprobs(x_BLD, jnp.asarray(ids_BL))[:, :-1], expected, atol=1e-5)

    gradient = jax.grad(lambda model: model.next_logprobs(x_BLD, jnp.asarray(ids_BL)).sum())
    program = jax.jit(gradient).lower(model).as_text()
    assert f"{cfg.dim}x{cfg.vocab}xf32" in program
    assert not re.search(rf"\d+x({cfg.dim}x{cfg.vocab}|{cfg.vocab}x{cfg.dim})xf32", program)
