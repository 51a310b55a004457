"""Checkpoints in and out: float32 parity with transformers' PyTorch Qwen2, shards, heads, clear errors."""

import copy
import dataclasses
import json
import math
import os
import re
import shutil
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ROOT, TINY
from flax import nnx
from omegaconf import OmegaConf

from prm_jax import InputError
from prm_jax.checkpoints import folders, hf, hf_config
from prm_jax.checkpoints.card import model_card, serving, step_tag
from prm_jax.checkpoints.folders import open_tensors
from prm_jax.checkpoints.open import open_checkpoint
from prm_jax.checkpoints.released import TwoTokenHead
from prm_jax.formats import Format, train_tokenizer
from prm_jax.heads import good_logit
from prm_jax.launch.config import parse
from prm_jax.model import PRM, RopeScaling, at_step_ends, make_cache
from prm_jax.visibility import ALWAYS


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["7 + 5 = 2"], 280)


def torch_model(head=0, family="qwen2", **changes):
    """A tiny random model of transformers; every weight is random, biases and norms too."""
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification

    shape = {
        "vocab_size": 96, "hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 50_000.0, "rms_norm_eps": 1e-5,
        "num_labels": head or 2, "tie_word_embeddings": False, "attn_implementation": "eager",
    }  # fmt: skip
    config = AutoConfig.for_model(family, **copy.deepcopy(shape | changes))  # which writes into them
    torch.manual_seed(0)
    model = (AutoModelForTokenClassification if head else AutoModelForCausalLM).from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.2)
    return model.eval()


def run(model, ids):
    L = ids.shape[1]
    return model(jnp.asarray(ids), jnp.tile(jnp.arange(L), (len(ids), 1)), jnp.full(ids.shape, L - 1))


# Old length 64 puts the frequencies of 8 pairs on both sides of, and between, the two bounds of Llama 3.1's rule.
LLAMA31 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
# Of 4 pairs the first keeps its frequency, two are blended, and the last is divided.
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
BACKBONES = {
    "qwen2": {},
    "qwen2 tied, one group": {"tie_word_embeddings": True, "num_key_value_heads": 1},
    "qwen3": {"head_dim": 16},
    "qwen3 tied, biases": {"tie_word_embeddings": True, "attention_bias": True, "head_dim": 8},
    "qwen3_moe": {
        "head_dim": 8,
        "num_experts": 5,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 16,
        "norm_topk_prob": True,
        "tie_word_embeddings": True,
    },
    "llama 3.1": {"rope_scaling": LLAMA31, "num_attention_heads": 2},
    "llama biases": {"attention_bias": True, "mlp_bias": True, "head_dim": 12, "num_key_value_heads": 4},
    "mistral window": {"sliding_window": 4, "head_dim": 16},
    "qwen2 yarn": {"rope_scaling": YARN},
    "llama yarn": {
        "rope_scaling": YARN | {"attention_factor": 1.3, "beta_fast": 5.0, "truncate": False},
        "head_dim": 32,
    },
    "qwen3 linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "head_dim": 8},
    "qwen2 upper layers slide": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2},
    "qwen3 one layer slides": {
        "use_sliding_window": True,
        "sliding_window": 3,
        "head_dim": 8,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
    "granite": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.7,
        "logits_scaling": 8.0,
        "attention_bias": True,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "mistral full": {"sliding_window": None, "tie_word_embeddings": True},
    # Windows shorter than two of the three rows, longer than the third.
    "gemma2": {
        "sliding_window": 8,
        "head_dim": 16,
        "query_pre_attn_scalar": 24,
        "attention_bias": True,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 5.0,
        "tie_word_embeddings": True,
    },
    "gemma3_text": {
        "sliding_window": 8,
        "sliding_window_pattern": 2,
        "head_dim": 16,
        "query_pre_attn_scalar": 24,
        "rope_local_base_freq": 500.0,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
        "tie_word_embeddings": True,
    },
}


@pytest.mark.parametrize("name", BACKBONES)
def test_backbones_equal_pytorch_whatever_the_padding_packed_and_unpacked(tmp_path, rng, name):
    import torch

    theirs = torch_model(family=name.split()[0], **BACKBONES[name])
    theirs.save_pretrained(tmp_path)
    cfg = hf_config.model_config(hf_config.read_config(tmp_path), lm_head=True)
    ours = hf.load(tmp_path, cfg)
    lengths = (11, 6, 9)
    rows = [rng.integers(1, 96, n) for n in lengths]

    def theirs_padded(side):
        ids, mask = np.zeros((3, 12), int), np.zeros((3, 12), int)
        for b, row in enumerate(rows):
            at = 12 - len(row) if side == "left" else 0
            ids[b, at : at + len(row)], mask[b, at : at + len(row)] = row, 1
        with torch.no_grad():
            out = theirs(
                torch.tensor(ids),
                attention_mask=torch.tensor(mask),
                position_ids=torch.tensor(np.maximum(mask.cumsum(1) - 1, 0)),
                output_hidden_states=True,
            )
        return [x.numpy()[mask == 1] for x in (out.hidden_states[-1], out.logits)]

    ids, pos, until = np.zeros((4, 32), int), np.zeros((4, 32), int), np.full((4, 32), 32)
    places = [(0, 0), (1, 0), (2, 0), (3, 0), (3, 11), (3, 17)]  # alone in rows 0 to 2, packed in row 3
    for (b, at), row in zip(places, rows * 2, strict=True):
        here = np.s_[b, at : at + len(row)]
        ids[here], pos[here], until[here] = row, np.arange(len(row)), at + len(row) - 1
    x_BLD = ours(*map(jnp.asarray, (ids, pos, until)))
    logit_BLV = ours.vocab_logits(x_BLD)
    for side in ("left", "right"):
        for found, expected in zip((x_BLD, logit_BLV), theirs_padded(side), strict=True):
            scale = np.abs(expected).max()
            for chosen in (places[:3], places[3:]):
                mine = np.concatenate(
                    [found[b, at : at + n] for (b, at), n in zip(chosen, lengths, strict=True)]
                )
                np.testing.assert_allclose(mine, expected, atol=1e-4 * scale, rtol=0)


@pytest.mark.parametrize("name", ["gemma2", "gemma3_text", "qwen3_moe"])
def test_the_gradient_of_every_weight_is_pytorchs_and_so_is_what_goes_on_with_a_cache(tmp_path, rng, name):
    import torch

    theirs = torch_model(
        family=name,
        **BACKBONES[name] | {"num_hidden_layers": 2, "sliding_window": 4, "norm_topk_prob": False},
    )
    theirs.save_pretrained(tmp_path)
    cfg = hf_config.model_config(hf_config.read_config(tmp_path), lm_head=True)
    ids, weight_BLV = rng.integers(1, 96, (2, 9)), rng.standard_normal((2, 9, 96)).astype(np.float32)
    logit_BLV, ours = theirs(torch.tensor(ids)).logits, hf.load(tmp_path, cfg)
    (logit_BLV * torch.tensor(weight_BLV)).sum().backward()
    logit_BLV = logit_BLV.detach().numpy()

    @jax.jit
    def calls(model):
        cache, found = make_cache(cfg, 2, 9), []
        for some in (np.arange(6), np.arange(6, 9)):
            pos = jnp.tile(jnp.asarray(some), (2, 1))
            x_BLD, cache = model(jnp.asarray(ids[:, some]), pos, jnp.full(pos.shape, ALWAYS), cache=cache)
            found.append(model.vocab_logits(x_BLD))
        return jnp.concatenate(found, axis=1)

    np.testing.assert_allclose(calls(ours), logit_BLV, atol=1e-4 * np.abs(logit_BLV).max(), rtol=0)
    loss = lambda model: (model.vocab_logits(run(model, ids)) * weight_BLV).sum()
    found = nnx.state(jax.jit(jax.grad(loss))(ours)).to_pure_dict()
    expected = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    for where in [name.removesuffix("gate_up_proj") for name in expected if name.endswith("gate_up_proj")]:
        gate, up = np.split(expected.pop(f"{where}gate_up_proj"), 2, axis=1)  # of all experts at once
        for part, grad_E in (("gate", gate), ("up", up), ("down", expected.pop(f"{where}down_proj"))):
            expected |= {f"{where}{e}.{part}_proj.weight": grad for e, grad in enumerate(grad_E)}
    pairs = []
    for key, grad in (found | found.pop("blocks")).items():
        name, transposed = (hf.TOP | hf.layer_names(cfg))[key]
        each = [(grad[i], expected[f"model.{name.format(*i)}"]) for i in hf.places(name, cfg)]
        pairs += [(mine.T, theirs) if transposed else (mine, theirs) for mine, theirs in each]
    assert len(pairs) == len(expected)
    for mine, theirs in pairs:
        np.testing.assert_allclose(mine, theirs, atol=1e-4 * np.abs(theirs).max(), rtol=0)


HEADS = {
    "scalar": {"v_head.summary.weight": (1, 32), "v_head.summary.bias": (1,)},
    "binary": {"score.weight": (2, 32), "score.bias": (2,)},
    "mlp": {"score.0.weight": (32, 32), "score.0.bias": (32,), "score.2.weight": (2, 32), "score.2.bias": (2,)},
    "ternary": {"score_head.weight": (3, 32)},
    "tokens": {},
}  # fmt: skip


@pytest.mark.parametrize("name", BACKBONES)
def test_every_head_on_every_backbone_equals_pytorch(tmp_path, rng, name):
    import torch
    from safetensors.torch import load_file, save_file

    theirs = torch_model(family=name.split()[0], **BACKBONES[name])
    theirs.save_pretrained(tmp_path)
    config, path = hf_config.read_config(tmp_path), tmp_path / "model.safetensors"
    backbone, marks = load_file(path), np.array([[2, 8], [4, 5]])
    ids = rng.integers(1, 96, (2, 9))
    with torch.no_grad():
        out = theirs(torch.tensor(ids), output_hidden_states=True)
    of_marks = lambda x_BLD: x_BLD.numpy()[np.arange(2)[:, None], marks]
    x_BTD, x_BLD = of_marks(out.hidden_states[-1]), None
    for head, shapes in HEADS.items():
        new = {
            k: torch.tensor(rng.standard_normal(shape), dtype=torch.float32) for k, shape in shapes.items()
        }
        save_file(backbone | new, path)
        kind, _ = hf.find_head(open_tensors(tmp_path), "x")
        assert kind == ("none" if head == "tokens" else head)
        verdicts = (7, 5) if head == "tokens" else None
        cfg = hf_config.model_config(config, head="binary" if verdicts else kind)
        if verdicts and cfg.final_logit_softcap:  # capped, they are no linear head
            ours = TwoTokenHead(
                hf.load(tmp_path, dataclasses.replace(cfg, head="none", lm_head=True)), *verdicts
            )
        else:
            ours = hf.load(tmp_path, cfg, verdicts=verdicts)
        x_BLD = run(ours, ids) if x_BLD is None else x_BLD  # the same for all heads
        if verdicts:
            expected = of_marks(out.logits)[..., verdicts]
        else:
            h_BTD, (*first, (w, _)) = x_BTD, [(k, v) for k, v in new.items() if k.endswith("weight")]
            for k, v in first:
                h_BTD = np.maximum(h_BTD @ v.numpy().T + new[k.replace("weight", "bias")].numpy(), 0)
            bias = new.get(w.replace("weight", "bias"), torch.zeros(1)).numpy()
            expected = h_BTD @ new[w].numpy().T + bias
        found = ours.step_logits(at_step_ends(x_BLD, jnp.asarray(marks)))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


def test_two_verdicts_whose_logits_are_capped_are_read_as_such(tmp_path, rng, tokenizer):
    cfg = dataclasses.replace(TINY, vocab=320, head="none", family="gemma2", final_logit_softcap=0.3, **GEMMA)
    hf.save(tmp_path, PRM(cfg, rngs=nnx.Rngs(0)), tokenizer)
    fmt = Format("said", "\n", head="tokens", good="+", bad="-")
    loaded = open_checkpoint(tmp_path, "best", fmt, "float32")
    x_BLD, pair = (
        jnp.asarray(3 * rng.standard_normal((1, 5, 32)), jnp.float32),
        [tokenizer.encode(c)[0] for c in "-+"],
    )
    logit_BLC = 0.3 * jnp.tanh(x_BLD @ loaded.model.model.embed[...][jnp.array(pair)].T / 0.3)
    assert np.abs(logit_BLC).max() > 0.25 and loaded.scorer(1, 64)
    np.testing.assert_allclose(loaded.model.step_logits(x_BLD), logit_BLC, atol=1e-6)


def test_both_layouts_of_the_rotary_settings_read_alike():
    old = {
        "model_type": "llama", "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 4, "intermediate_size": 8, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    new = old | {"rope_parameters": LLAMA31 | {"rope_theta": 5e5}}
    old |= {"rope_theta": 5e5, "rope_scaling": LLAMA31}
    assert hf_config.model_config(old) == hf_config.model_config(new)
    assert hf_config.model_config(old).rope_scaling == RopeScaling("llama3", 8.0, 64, 1.0, 4.0)
    assert hf_config.model_config(old | {"rope_scaling": None}).rope_theta == 5e5
    new = old | {"model_type": "gemma3_text", "rope_scaling": None, "rope_theta": 1.0, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5}, "sliding_attention": {"rope_theta": 7.0}
    }}  # fmt: skip
    linear = {"type": "linear", "factor": 8.0}
    released = old | {"model_type": "gemma3_text", "rope_local_base_freq": 7.0, "rope_scaling": linear}
    assert hf_config.model_config(released) == hf_config.model_config(new)
    # The language model's config of gemma-3-4b says no more than this.
    sparse = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
              "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}  # fmt: skip
    pytest.importorskip("torch")
    from transformers import Gemma3TextConfig

    assert hf_config.model_config(sparse) == hf_config.model_config(
        Gemma3TextConfig(**copy.deepcopy(sparse)).to_dict()
    )
    moe = {
        "model_type": "qwen3_moe",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
    }
    assert hf_config.model_config(old | moe).experts == 4
    for changes, pattern in (
        (
            moe | {"num_experts": 10**9},
            "num_experts: got 1000000000, expected a whole number above 0, at most 10,000",
        ),
        (moe | {"num_experts_per_tok": 5}, "num_experts_per_tok: got 5, expected 1 to 4"),
        (moe | {"mlp_only_layers": [0]}, r"mlp_only_layers: got \[0\], expected none"),
        (moe | {"decoder_sparse_step": 2}, "decoder_sparse_step: got 2, expected 1"),
        (moe | {"moe_intermediate_size": None}, "moe_intermediate_size: missing"),
        (
            {"model_type": "gemma3_text", "attn_logit_softcapping": 5.0},
            "attn_logit_softcapping: got 5.0, expected null",
        ),
        (
            {"model_type": "gemma2", "use_bidirectional_attention": True},
            "use_bidirectional_attention: got True",
        ),
        ({"model_type": "gemma2", "query_pre_attn_scalar": 0}, "a field of the wrong type"),
        (
            {"model_type": "gemma2", "final_logit_softcapping": -1},
            "final_logit_softcap: got -1.0, expected a number above 0",
        ),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
            "'dynamic', with which a score depends on the longest",
        ),
        (
            {"rope_scaling": {"type": "longrope"}},
            "rope_type: got 'longrope'; expected default, linear, llama3, yarn",
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "'original_max_position_embeddings' is missing"),
        ({"rope_scaling": YARN | {"mscale": 0.7}}, "mscale is not supported with rope_type 'yarn'"),
        ({"rope_scaling": {"full_attention": {"rope_type": "yarn"}}}, "full_attention is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "'factor' is missing, which rope_type 'linear' needs"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 4.0}},
            "is missing, which rope_type 'llama3' needs",
        ),
        ({"rope_scaling": "yarn"}, "a field of the wrong type"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: got 0.5"),
        ({"hidden_act": "gelu"}, "hidden_act: got 'gelu', expected silu or gelu_pytorch_tanh"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: got"),
        ({"layer_types": ["sliding_attention"]}, "names sliding layers, but the config gives llama no"),
        ({"layer_types": ["chunked_attention"]}, "layer_types: got .*'chunked_attention'"),
        ({"model_type": "qwen2", "layer_types": ["sliding_attention"]}, "gives qwen2 no sliding_window"),
        (
            {
                "model_type": "qwen2",
                "use_sliding_window": True,
                "layer_types": ["full_attention", "sliding_attention"],
            },
            "layer_types: has 2 layers, expected 1",
        ),
        ({"vocab_size": None}, "config.json: vocab_size: missing"),
        ({"vocab_size": "many"}, "vocab_size: got 'many', expected a whole number above 0"),
        (
            {"num_hidden_layers": 10**9},
            "num_hidden_layers: got 1000000000, expected a whole number above 0, at most 10,000",
        ),
        ({"vocab_size": 10**30}, "vocab_size: got 10000000000000000000, expected a whole number"),
        ({"intermediate_size": 0}, "intermediate_size: got 0, expected a whole number"),
        ({"head_dim": 7}, "head_dim: 7 is odd"),
        ({"rms_norm_eps": "small"}, "a field of the wrong type"),
        ({"rms_norm_eps": float("nan")}, "norm_eps: got nan, expected a number above 0"),
        (
            {"rope_theta": float("nan"), "rope_scaling": None},
            "rope_theta: got nan, expected a number above 0",
        ),
        (
            {"rope_theta": float("inf"), "rope_scaling": None},
            "rope_theta: got inf, expected a number above 0",
        ),
        ({"rope_theta": 0, "rope_scaling": None}, "rope_theta: got 0.0, expected a number above 0"),
        ({"num_key_value_heads": 3}, "is no multiple of kv_heads 3"),
    ):
        with pytest.raises(InputError, match=pattern):
            hf_config.model_config(old | changes)


def test_window_hides_what_is_farther_back(rng):
    """Token 9 of a window of 4 reads tokens 6 to 9 in one layer: earlier ones have exactly no influence."""
    model = PRM(dataclasses.replace(TINY, layers=1, window=4), rngs=nnx.Rngs(0))
    L = 12

    def hidden(embed_LD):
        copy = jax.tree.map(lambda x: x, model)
        copy.embed = nnx.Param(embed_LD)
        return copy(jnp.arange(L)[None], jnp.arange(L)[None], jnp.full((1, L), L - 1))[0, 9].sum()

    grad_L = jnp.abs(jax.grad(hidden)(model.embed[...][:L])).sum(-1)
    assert np.flatnonzero(grad_L).tolist() == [6, 7, 8, 9]


def test_shards_read_as_one_file(tmp_path):
    theirs = torch_model()
    theirs.save_pretrained(tmp_path / "one")
    theirs.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    assert (tmp_path / "many" / "model.safetensors.index.json").exists()
    cfg = hf_config.model_config(hf_config.read_config(tmp_path / "one"), lm_head=True)
    models = [hf.load(tmp_path / name, cfg) for name in ("one", "many")]
    for a, b in zip(*(jax.tree.leaves(nnx.state(m)) for m in models), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "head, family",
    [("scalar", "qwen2"), ("ternary", "qwen2")]
    + [("binary", f) for f in ("qwen2", "qwen3", "llama", "mistral", "gemma2", "qwen3_moe")],
)
def test_step_logits_equal_pytorch_and_export_is_read_back_by_it(tmp_path, rng, head, family, tokenizer):
    import torch
    from transformers import AutoModelForTokenClassification

    size = {"scalar": 1, "binary": 2, "ternary": 3}[head]
    changes = {
        "llama": {"rope_scaling": LLAMA31},
        "mistral": {"sliding_window": 4},
        "qwen3_moe": BACKBONES["qwen3_moe"],
    }
    changes = changes.get(family, {})
    theirs = torch_model(size, family, **changes)
    theirs.save_pretrained(tmp_path)
    assert hf.find_head(open_tensors(tmp_path), "x") == (head, "score")
    ours = hf.load(tmp_path, hf_config.model_config(hf_config.read_config(tmp_path), head=head))
    ids, marks = rng.integers(0, 96, (2, 9)), np.array([[2, 8], [4, 5]])
    with torch.no_grad():
        logit_BLC = theirs(torch.tensor(ids)).logits.numpy()
    mine = ours.step_logits(at_step_ends(run(ours, ids), jnp.asarray(marks)))
    expected = np.take_along_axis(logit_BLC, marks[..., None], axis=1)
    np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())

    hf.save(tmp_path / "out", ours, tokenizer)
    again = AutoModelForTokenClassification.from_pretrained(tmp_path / "out").eval()
    assert type(again) is type(theirs) and again.config.id2label == dict(enumerate(LABELS[head]))
    with torch.no_grad():
        np.testing.assert_allclose(again(torch.tensor(ids)).logits.numpy(), logit_BLC, atol=1e-4)


def test_of_a_gemma_3_that_sees_the_language_model_is_read_and_exported(tmp_path, rng, tokenizer, capsys):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, Gemma3Config, Gemma3ForConditionalGeneration

    sees = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "image_size": 16, "patch_size": 8}  # fmt: skip
    text = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 3, "num_attention_heads": 4,
            "num_key_value_heads": 2, "pad_token_id": 0} | BACKBONES["gemma3_text"]  # fmt: skip
    config = Gemma3Config(
        text_config=copy.deepcopy(text), vision_config=sees, mm_tokens_per_image=1, image_token_index=95
    )
    torch.manual_seed(0)
    theirs = Gemma3ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for p in theirs.parameters():
            p.normal_(0, 0.2)
    theirs.save_pretrained(tmp_path)
    cfg = hf_config.model_config(hf_config.read_config(tmp_path), lm_head=True)
    assert "only the language model of this multimodal gemma3 is read" in capsys.readouterr().out
    ours, ids = hf.load(tmp_path, cfg), rng.integers(1, 90, (2, 9))
    hf.save(tmp_path / "out", ours, tokenizer)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        expected, exported = (model(torch.tensor(ids)).logits.numpy() for model in (theirs, again))
    np.testing.assert_allclose(
        ours.vocab_logits(run(ours, ids)), expected, atol=1e-4 * np.abs(expected).max()
    )
    np.testing.assert_allclose(exported, expected, atol=1e-4 * np.abs(expected).max())


LABELS = {"scalar": ["good"], "binary": ["bad", "good"], "ternary": ["bad", "neutral", "good"]}


def test_export_of_the_mlp_head_has_the_layout_of_the_qwen_prms(tmp_path, rng, tokenizer):
    """Qwen's own class: Qwen2Model and score = Linear, ReLU, Linear, every tensor of the file in its place."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig, Qwen2Model

    ours = PRM(dataclasses.replace(TINY, head="mlp", tied=False), rngs=nnx.Rngs(0))
    ours.w_mlp_head[...] = ours.w_mlp_head[...] * 20
    hf.save(tmp_path, ours, tokenizer)
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.architectures == ["Qwen2ForProcessRewardModel"]

    class QwenPRM(torch.nn.Module):
        def __init__(self):
            super().__init__()
            D = config.hidden_size
            self.model = Qwen2Model(config)
            self.score = torch.nn.Sequential(torch.nn.Linear(D, D), torch.nn.ReLU(), torch.nn.Linear(D, 2))

    theirs = QwenPRM().eval()
    theirs.load_state_dict(load_file(tmp_path / "model.safetensors"))
    ids = rng.integers(0, 64, (2, 9))
    with torch.no_grad():
        expected = theirs.score(theirs.model(torch.tensor(ids)).last_hidden_state).softmax(-1)[..., 1]
    logit_BTC = ours.step_logits(run(ours, ids))
    found = jax.nn.sigmoid(good_logit(logit_BTC, "mlp"))
    assert np.ptp(found) > 0.02
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    "family, head, kind, said",
    [
        ("qwen2", "mlp", "Qwen2ForProcessRewardModel", '"step_tag_id": 198'),
        ("qwen2", "mlp_scalar", "Qwen2ForRewardModel", '"step_tag_id": 198'),
        ("llama", "mlp", "LlamaModel", "class for this head on Llama: `AutoModel` loads the backbone"),
        (
            "qwen3",
            "binary",
            "Qwen3ForTokenClassification",
            "class 1 is `good`; .*LABEL_1.*\n.*--hf-overrides",
        ),
        ("llama", "none", "LlamaForCausalLM", None),
        ("gemma3_text", "none", "Gemma3ForCausalLM", None),
        ("gemma3_text", "mlp", "Gemma3TextModel", None),
    ],
)
def test_exports_name_a_class_that_exists_and_how_to_serve_it(tokenizer, family, head, kind, said):
    cfg = dataclasses.replace(TINY, family=family, head=head)
    assert hf_config.hf_config(cfg, tokenizer)["architectures"] == [kind]
    if said:
        assert re.search(said, serving(cfg, 198)) and "token id 198" in serving(cfg, 198)


LINEAR = {
    "rope_scaling": RopeScaling("linear", 8.0),
    "final_logit_softcap": 20.0,
    "tied": False,
    "lm_head": True,
    "head": "none",
}
GEMMA = {
    "qkv_bias": False, "window": 5, "sliding": (True, False), "post_norms": True, "activation": "gelu",
    "embed_scale": 32**0.5, "query_scale": (8 / 24) ** 0.5,
}  # fmt: skip


def test_round_trip_is_exact(tmp_path, tokenizer):
    no_bias = {"qkv_bias": False, "tied": False}
    for changes in (
        {},
        {"tied": False, "lm_head": True, "head": "none"},
        {"family": "qwen3", "qk_norm": True, "head": "mlp", **no_bias},
        {
            "family": "qwen3_moe",
            "qk_norm": True,
            "experts": 3,
            "experts_per_token": 2,
            "norm_topk_prob": True,
            **no_bias,
        },
        {
            "family": "llama",
            "o_bias": True,
            "mlp_bias": True,
            "rope_scaling": RopeScaling("llama3", 8.0, 64, 1.0, 4.0),
        },
        {"rope_scaling": RopeScaling("yarn", 4.0, 64, attention=1.2, truncate=False)},
        {"rope_scaling": RopeScaling("linear", 2.0), "window": 3},
        {"window": 5, "sliding": (False, True), "max_positions": 131_072},
        {"family": "mistral", "window": 7, "head": "ternary", **no_bias},
        {"family": "mistral", "window": None, "head": "binary", **no_bias},
        {"family": "mistral", "window": 5, "sliding": (False, True), **no_bias},
        {
            "family": "granite",
            "embed_scale": 12.0,
            "residual_scale": 0.22,
            "query_scale": 0.5,
            "head_dim": 16,
            "logit_scale": 0.125,
            **no_bias,
        },
        {
            "family": "gemma2",
            "attn_logit_softcap": 50.0,
            "final_logit_softcap": 30.0,
            "max_positions": 8192,
            **GEMMA,
        },
        {"family": "gemma3_text", "qk_norm": True, "local_rope_theta": 500.0, **GEMMA},
        {
            "family": "gemma3_text",
            "qk_norm": True,
            "local_rope_theta": 500.0,
            **LINEAR,
            **GEMMA,
            "sliding": None,
        },
        {"family": "gemma2", "o_bias": True, **GEMMA, "window": None, "sliding": None, "qkv_bias": True},
    ):
        cfg = dataclasses.replace(TINY, **changes)
        model = PRM(cfg, rngs=nnx.Rngs(0))
        hf.save(tmp_path, model, tokenizer)
        read = hf_config.model_config(hf_config.read_config(tmp_path), head=cfg.head, lm_head=cfg.lm_head)
        assert read == cfg
        for a, b in zip(
            *(jax.tree.leaves(nnx.state(m)) for m in (model, hf.load(tmp_path, read))), strict=True
        ):
            np.testing.assert_array_equal(a, b)


def test_a_large_export_is_sharded_as_transformers_reads_it(tmp_path, rng, tokenizer, monkeypatch):
    """At most 20,000 bytes a file but for one larger tensor; the one file of before is gone, and comes back."""
    import torch
    from transformers import AutoModelForTokenClassification

    model = PRM(TINY, rngs=nnx.Rngs(0))
    hf.save(tmp_path, model, tokenizer)
    whole = AutoModelForTokenClassification.from_pretrained(tmp_path).eval()
    largest = max(4 * math.prod(x.get_shape()) for x in open_tensors(tmp_path).values())
    monkeypatch.setattr(folders, "SHARD", 20_000)
    hf.save(tmp_path, model, tokenizer)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 2 and files[0].name == f"model-00001-of-{len(files):05}.safetensors"
    assert all(path.stat().st_size < max(20_000, largest) + 4_000 for path in files)
    parts = AutoModelForTokenClassification.from_pretrained(tmp_path).eval()
    ids = torch.tensor(rng.integers(0, 64, (2, 9)))
    with torch.no_grad():
        assert torch.equal(whole(ids).logits, parts(ids).logits)
    again = hf.load(tmp_path, TINY)
    for a, b in zip(*(jax.tree.leaves(nnx.state(m)) for m in (model, again)), strict=True):
        np.testing.assert_array_equal(a, b)
    monkeypatch.undo()
    hf.save(tmp_path, model, tokenizer)
    assert [path.name for path in tmp_path.glob("*.safetensors*")] == ["model.safetensors"]


def test_missing_head_raises_unless_a_new_one_is_asked_for(tmp_path, tokenizer):
    hf.save(tmp_path, PRM(dataclasses.replace(TINY, head="none"), rngs=nnx.Rngs(0)), tokenizer)
    with pytest.raises(InputError, match="no step head.*model.new_head=true"):
        hf.load(tmp_path, TINY)
    model = hf.load(tmp_path, TINY, new_head=True, seed=1)
    assert 0 < np.abs(model.w_head[...]).max() < 0.2 and (model.b_head[...] == 0).all()
    other = hf.load(tmp_path, TINY, new_head=True, seed=2)
    assert not np.array_equal(model.w_head[...], other.w_head[...])


def test_bad_checkpoints_give_one_clear_line(tmp_path, tokenizer):
    def refuses(
        pattern,
        do=lambda: hf.load(tmp_path, hf_config.model_config(hf_config.read_config(tmp_path), head="scalar")),
    ):
        with pytest.raises(InputError, match=pattern) as caught:
            do()
        assert "\n" not in str(caught.value)

    refuses("config.json: no such file")
    hf.save(tmp_path, PRM(TINY, rngs=nnx.Rngs(0)), tokenizer)
    config = json.loads((tmp_path / "config.json").read_text())
    write = lambda **changes: (tmp_path / "config.json").write_text(json.dumps(config | changes))
    write(hidden_size=40)
    refuses("has shape .* expected")
    write(num_hidden_layers=3)
    refuses("tensor model.layers.2.* is missing")
    write(num_hidden_layers=1)
    refuses("tensors have no place")
    write(model_type="gpt2")
    refuses("model_type: got 'gpt2', expected qwen2, qwen3")
    (tmp_path / "config.json").write_text("{")
    refuses("config.json: broken JSON .Expecting property name .* at line 1 column 2")
    write()
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    refuses("not a whole safetensors file")
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    refuses("pytorch_model.bin is a pickle, which can run code.*convert it")
    (tmp_path / "pytorch_model.bin").rename(tmp_path / "adapter_config.json")
    refuses("adapter_config.json: broken JSON .*; expected the settings of a PEFT adapter")
    (tmp_path / "adapter_config.json").unlink()
    refuses("no such folder", lambda: hf.locate("./nowhere"))
    refuses("no such folder", lambda: hf.locate("~nobody_of_this_name/model"))
    write(model_type="reward", auto_map={"AutoModel": "modeling.Reward"})
    refuses("model_type: got 'reward', expected .* own Python code, auto_map, is never run")
    write(model_type=["qwen2"], vocab_size="many")
    refuses("model_type: got")
    (tmp_path / "config.json").write_text("[]")
    refuses("expected an object")
    write(prm_jax=3)
    refuses("config.json: prm_jax: got 'an integer', expected an object or null")
    (tmp_path / "config.json").write_bytes(b"\xff\xfe")
    refuses("config.json: broken JSON")


def test_bad_tokenizers_give_one_clear_line(tmp_path, tokenizer):
    def refuses(pattern, **files):
        for stem, text in files.items():
            (tmp_path / f"{stem}.json").write_text(text)
        with pytest.raises(InputError, match=pattern) as caught:
            hf.load_tokenizer(tmp_path)
        assert "\n" not in str(caught.value)

    refuses("has no tokenizer.json", config='{"model_type": "qwen2"}')
    (tmp_path / "tokenizer.model").touch()
    pytest.importorskip("sentencepiece")
    refuses("tokenizer.model: not a SentencePiece model")
    for text in ("{", "{}", "[]"):
        refuses("no tokenizer that transformers can read", tokenizer=text)
    tokenizer.save_pretrained(tmp_path)
    refuses("no tokenizer that transformers can read", tokenizer_config="{")
    refuses("model_max_length: got 'x', expected a number", tokenizer_config='{"model_max_length": "x"}')
    refuses(
        "auto_map: the tokenizer is Python code",
        tokenizer_config='{"auto_map": {"AutoTokenizer": ["x.T", null]}}',
    )


def test_bad_safetensors_give_one_clear_line(tmp_path, tokenizer):
    cfg = dataclasses.replace(TINY, head="none")
    hf.save(tmp_path, PRM(cfg, rngs=nnx.Rngs(0)), tokenizer)
    weights, index = tmp_path / "model.safetensors", tmp_path / "model.safetensors.index.json"
    whole = weights.read_bytes()
    n = int.from_bytes(whole[:8], "little")
    table = json.loads(whole[8 : 8 + n])

    def refuses(pattern, more=b"", **changes):
        text = json.dumps(table | changes).encode()
        weights.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + n :] + more)
        with pytest.raises(InputError, match=pattern) as caught:
            hf.load(tmp_path, cfg)
        assert "\n" not in str(caught.value)

    norm = table["model.norm.weight"]
    begin, end = norm["data_offsets"]
    last = len(whole) - 8 - n
    for wrong in (
        norm | {"shape": [31]},
        norm | {"data_offsets": [begin + 10**6, end + 10**6]},
        norm | {"data_offsets": [-8, end - begin - 8]},
        norm
        | {"data_offsets": [0, end - begin]},  # which another tensor has: it was scored with wrong weights
        norm | {"data_offsets": [float(begin), float(end)]},
        {"dtype": "F32"},
        5,
    ):
        refuses("not a whole safetensors file", **{"model.norm.weight": wrong})
    refuses("not a whole safetensors file", surprise=norm)  # overlaps
    refuses("not a whole safetensors file", more=b"1234")
    refuses("has type I32, expected F64, F32", **{"model.norm.weight": norm | {"dtype": "I32"}})
    surprise = {"dtype": "F32", "shape": [1], "data_offsets": [last, last + 4]}
    refuses("no place in a qwen2 PRM: surprise", more=b"1234", surprise=surprise)
    for wrong in (
        b"",
        whole[:5],
        (10**9).to_bytes(8, "little") + whole[8:],
        whole[: 8 + n + 100],
        whole[:-1],
    ):
        weights.write_bytes(wrong)
        with pytest.raises(InputError, match="not a whole safetensors file"):
            hf.load(tmp_path, cfg)
    deep = b"[" * 100_000
    weights.write_bytes(len(deep).to_bytes(8, "little") + deep)
    with pytest.raises(InputError, match="not a whole safetensors file"):
        hf.load(tmp_path, cfg)
    weights.write_bytes(whole)
    for content, pattern in (
        ('{"weight_map": {"a": "absent.safetensors"}}', "absent.safetensors: no such file"),
        ('{"weight_map": {"a": "../other/model.safetensors"}}', "weight_map: expected names of files beside"),
        ('{"weight_map": {}}', "weight_map: expected names of files"),
        (
            '{"weight_map": {"absent": "model.safetensors"}}',
            "tensor absent: is not in model.safetensors, which",
        ),
        ('{"weight_map": 3}', "expected JSON with a weight_map"),
        ("{", "expected JSON with a weight_map"),
    ):
        index.write_text(content)
        with pytest.raises(InputError, match=pattern):
            hf.load(tmp_path, cfg)


def test_a_tensor_in_two_files_is_refused(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(folders, "SHARD", 20_000)
    hf.save(tmp_path, PRM(TINY, rngs=nnx.Rngs(0)), tokenizer)
    first, second, *_ = sorted(tmp_path.glob("*.safetensors"))
    second.write_bytes(first.read_bytes())
    index = tmp_path / "model.safetensors.index.json"
    names = [name for name, file in json.loads(index.read_text())["weight_map"].items() if file == first.name]
    index.write_text(
        json.dumps({"weight_map": {name: (first, second)[i % 2].name for i, name in enumerate(names)}})
    )
    with pytest.raises(InputError, match="another file of the folder has it too"):
        hf.load(tmp_path, TINY)


def test_a_hostile_config_is_refused_before_anything_large_is_made(tmp_path, tokenizer):
    hf.save(tmp_path, PRM(TINY, rngs=nnx.Rngs(0)), tokenizer)
    for changes, pattern in (
        (
            {"layers": 9_999},
            "model.layers.9998.input_layernorm.weight is missing: config.json says 9999 layers",
        ),
        ({"vocab": 10**9}, "embed_tokens.weight: has shape .64, 32., expected .1000000000, 32."),
        ({"ffn": 10**9}, "has shape .48, 32., expected .1000000000, 32."),
        ({"dim": 10**9}, "has shape .64, 32., expected .64, 1000000000."),
    ):
        with pytest.raises(InputError, match=pattern):
            hf.load(tmp_path, dataclasses.replace(TINY, **changes))
    path = tmp_path / "config.json"
    for text in ("[" * 100_000, '{"vocab_size": ' + "1" * 5_001 + "}"):
        path.write_text(text)
        with pytest.raises(InputError, match="config.json: broken JSON") as caught:
            hf_config.read_config(tmp_path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"), [("objective", ["orm"]), ("objective", "rm"), ("label_kind", {}), ("label_kind", "x")]
)
def test_what_an_export_says_of_itself_is_checked(key, value, tmp_path):
    for file in hf.SHIPPED["embedded_orm"].iterdir():
        shutil.copy(file, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["prm_jax"][key] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        InputError, match=f"config.json: prm_jax.{key}: got {re.escape(repr(value))}, expected "
    ):
        open_checkpoint(tmp_path, "best", None, "float32")


def test_a_write_that_fails_leaves_the_earlier_export_as_it_was(tmp_path, tokenizer, monkeypatch):
    hf.save(tmp_path, PRM(TINY, rngs=nnx.Rngs(0)), tokenizer)
    before = (tmp_path / "model.safetensors").read_bytes()

    def full(arrays, path, **_):
        path.write_bytes(b"half")
        raise folders.SafetensorError("No space left on device")

    monkeypatch.setattr(folders, "save_file", full)
    with pytest.raises(InputError, match="model.safetensors: cannot be written .No space left"):
        hf.save(tmp_path, PRM(TINY, rngs=nnx.Rngs(1)), tokenizer)
    assert (tmp_path / "model.safetensors").read_bytes() == before and not list(tmp_path.glob("*.tmp"))


def test_an_export_refuses_what_a_config_json_cannot_say(tmp_path, tokenizer):
    for changes, field in (
        ({"qk_norm": True}, "model.qk_norm=True"),
        ({"qkv_bias": False}, "model.qkv_bias=False"),
        ({"family": "llama", "o_bias": False}, "model.o_bias=False"),
        ({"family": "mistral", "o_bias": True, "qkv_bias": False}, "model.o_bias=True"),
        ({"family": "llama", "o_bias": True, "window": 4}, "model.window=4"),
    ):
        with pytest.raises(InputError, match=f"export: {field} has no place in a .* config.json"):
            hf.save(tmp_path, PRM(dataclasses.replace(TINY, **changes), rngs=nnx.Rngs(0)), tokenizer)
    assert not list(tmp_path.iterdir())


def test_own_exports_name_their_head(tmp_path, tokenizer, monkeypatch):
    """A second head of two outputs is told apart by its name alone; one entry of HEADS makes it known everywhere."""
    from prm_jax import model as model_file

    margin = dataclasses.replace(model_file.HEADS["binary"], labels=("worse", "better"))
    monkeypatch.setitem(model_file.HEADS, "margin", margin)
    hf.save(tmp_path, PRM(dataclasses.replace(TINY, head="margin", vocab=320), rngs=nnx.Rngs(0)), tokenizer)
    config = hf_config.read_config(tmp_path)
    assert config["id2label"] == {"0": "worse", "1": "better"} and config["prm_jax"]["head"] == "margin"
    assert hf.find_head(open_tensors(tmp_path), "x") == ("binary", "score")
    assert hf.find_head(open_tensors(tmp_path), "x", "margin") == ("margin", "score")
    with pytest.raises(
        InputError,
        match="x: score.weight: has 2 outputs, expected the head 'lost'; its own is model.head=binary",
    ):
        hf.find_head(open_tensors(tmp_path), "x", "lost")
    loaded = open_checkpoint(tmp_path, "best", Format("plain", "\n"), "float32")
    assert loaded.model.cfg.head == "margin"


CHOICE = {"head": "binary", "new_head": True, "dtype": "float32"}


def test_the_model_section_overrides_any_field_of_the_model(tokenizer, monkeypatch):
    config = hf_config.hf_config(TINY, tokenizer)
    choose = lambda **changes: hf_config.resolve_model(
        parse(CHOICE | changes, hf_config.ModelChoice, "model"), config, "c", lm_head=True
    )
    cfg, changed = choose()
    assert cfg == dataclasses.replace(TINY, head="binary", lm_head=True) and changed == {}
    cfg, changed = choose(
        window=3, sliding=[False, True], rope_scaling={"kind": "linear", "factor": 2}, norm_eps=1
    )
    assert cfg == dataclasses.replace(
        TINY,
        head="binary", lm_head=True, window=3, sliding=(False, True), rope_scaling=RopeScaling("linear", 2.0), norm_eps=1.0,
    )  # fmt: skip
    assert changed["window"] == (3, None) and changed["norm_eps"] == (1.0, 1e-6)
    assert choose(dim=48)[1] == {"dim": (48, 32)} and choose(dim=32)[1] == {}
    # A variant that no config.json knows differs from what its weights were made for, too.
    shape_of = hf_config.shape_of
    without = lambda *args: {name: x for name, x in shape_of(*args).items() if name != "o_bias"}
    monkeypatch.setattr(hf_config, "shape_of", without)
    assert choose(o_bias=True)[1] == {"o_bias": (True, False)}
    for changes, pattern in (
        ({"dmi": 3}, r"model.dmi: unknown key; did you mean model.dim\?"),
        ({"window": "wide"}, "model.window: got 'wide', expected an integer or null"),
        ({"sliding": [1]}, r"model.sliding\[0\]: got 1, expected true or false"),
        (
            {"rope_scaling": {"kind": "odd", "factor": 1}},
            "model.rope_scaling.kind: got 'odd', expected linear",
        ),
        ({"rope_scaling": {"knd": "yarn", "factor": 1}}, "model.rope_scaling.knd: unknown key; did you mean"),
        ({"layers": 0}, "model.layers: got 0, expected at least 1"),
        ({"head": "two"}, "model.head: got 'two', expected scalar, binary, mlp, mlp_scalar.* ternary"),
        ({"remat": "some"}, "model.remat: got 'some', expected auto, none, dots or full"),
        ({"heads": 3}, "c: heads: 3 is no multiple"),
    ):
        with pytest.raises(InputError, match=pattern):
            choose(**changes)


def test_a_stored_dtype_is_kept_and_means_the_same(tmp_path, rng, tokenizer):
    """bfloat16 weights stay bfloat16 and compute in float32 exactly as their float32 copies do."""
    import torch
    from safetensors.torch import load_file, save_file

    hf.save(tmp_path, PRM(TINY, rngs=nnx.Rngs(0)), tokenizer)
    low = {k: v.to(torch.bfloat16) for k, v in load_file(tmp_path / "model.safetensors").items()}
    save_file(low, tmp_path / "model.safetensors")
    kept, wide = (hf.load(tmp_path, TINY, dtype=dtype) for dtype in (None, np.float32))
    assert {x.dtype for x in jax.tree.leaves(nnx.state(kept))} == {jnp.dtype("bfloat16")}
    ids = rng.integers(0, 64, (1, 6))
    np.testing.assert_array_equal(run(kept, ids), run(wide, ids))
    np.testing.assert_array_equal(
        wide.blocks.w_q[...][0], low["model.layers.0.self_attn.q_proj.weight"].float().T
    )


MEASURE = """
import json, sys, time
from pathlib import Path
import jax
import numpy as np
from prm_jax.checkpoints import hf, hf_config

status = lambda key: next(
    int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key)
)
folder = Path(sys.argv[1])
jax.block_until_ready(jax.numpy.zeros(8) + 1)
Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
before, start = status("VmRSS"), time.perf_counter()
model = hf.load(folder, hf_config.model_config(hf_config.read_config(folder), head="binary"), dtype=None)
seconds = time.perf_counter() - start
dtypes = sorted({str(x.dtype) for x in jax.tree.leaves(model)})
size = sum(x.nbytes for x in jax.tree.leaves(model))
print(json.dumps([size, (status("VmHWM") - before) * 1024, seconds, dtypes]))
"""


@pytest.mark.slow
def test_a_quarter_of_a_billion_parameters_load_in_little_memory(tmp_path):
    """A bfloat16 checkpoint of the shape of a third of Qwen2.5-0.5B in 3 shards: its dtype kept, the peak hardly above its size."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the peak of a process's memory can be measured on Linux only")
    config = {
        "model_type": "qwen2", "vocab_size": 151_936, "hidden_size": 896, "num_hidden_layers": 8,
        "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    cfg = hf_config.model_config(config, head="binary")
    shapes = nnx.state(jax.eval_shape(lambda: PRM(cfg, rngs=nnx.Rngs(0)))).to_pure_dict()
    names = {"model." + name: shapes[key].shape for key, (name, _) in hf.TOP.items()}
    for key, x in shapes["blocks"].items():
        name, transposed = hf.LAYER[key]
        shape = x.shape[:0:-1] if transposed else x.shape[1:]
        names |= {"model." + name.format(i): shape for i in range(8)}
    names |= {"score.weight": (2, 896), "score.bias": (2,)}
    noise = torch.randn(1_000_003).to(torch.bfloat16)
    shards = [f"model-{i}-of-3.safetensors" for i in (1, 2, 3)]
    weight_map = {name: shards[i % 3] for i, name in enumerate(names)}
    for shard in shards:
        chosen = {name: names[name] for name in names if weight_map[name] == shard}
        save_file(
            {
                name: noise.repeat(-(-math.prod(shape) // len(noise)))[: math.prod(shape)].reshape(shape)
                for name, shape in chosen.items()
            },
            tmp_path / shard,
        )
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    done = subprocess.run(  # noqa: PLW1510
        [sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    assert done.returncode == 0, done.stderr
    size, peak, seconds, dtypes = json.loads(done.stdout)
    print(f"{size / 2**20:.0f} MiB, peak {peak / size:.3f} of it, {seconds:.1f} s")
    assert size == sum(map(math.prod, names.values())) * 2 > 0.5e9 and dtypes == ["bfloat16"]
    assert peak < 1.1 * size


def test_a_card_reads_the_token_that_pads():
    tokenizer = types.SimpleNamespace(
        pad_token="<pad>", encode=lambda text, add_special_tokens: [7, len(text)]
    )
    assert step_tag(Format("padded", separator="{pad}"), tokenizer) == len("<pad>")


def test_a_card_names_files_of_data_without_their_folders():
    data = {"path": ["/home/ann/a.jsonl", "rows/b.jsonl"], "test_path": "/home/ann/t.jsonl", "hub": "me/rows"}
    run = OmegaConf.create({"objective": "lm", "init": "embedded", "format": {"name": "plain"}, "data": data})
    card = model_card("x", 1, types.SimpleNamespace(head="none"), run, {"finished": True}, None)
    assert "ann" not in card
    assert all(f'"{name}"' in card for name in ("a.jsonl", "rows/b.jsonl", "t.jsonl", "me/rows"))
