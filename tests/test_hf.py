"""Checkpoints in and out: float32 parity with transformers' PyTorch Qwen2, shards, heads, clear errors."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY
from flax import nnx

from prm_jax import InputError, hf
from prm_jax.formats import train_tokenizer
from prm_jax.model import PRM


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["7 + 5 = 2"], 280)


def torch_model(folder, head, **changes):
    """A tiny random Qwen2 saved by transformers; every weight is random, biases and norms too."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, Qwen2Config

    config = Qwen2Config(
        vocab_size=96, hidden_size=32, intermediate_size=56, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, rope_theta=50_000.0, rms_norm_eps=1e-5, num_labels=head or 2, **changes,
    )  # fmt: skip
    torch.manual_seed(0)
    model = (AutoModelForTokenClassification if head else AutoModelForCausalLM).from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.2)
    return model.eval()


def run(model, ids):
    L = ids.shape[1]
    return model(jnp.asarray(ids), jnp.tile(jnp.arange(L), (len(ids), 1)), jnp.full(ids.shape, L - 1))


@pytest.mark.parametrize("tied, shard", [(True, "5GB"), (False, "5GB"), (False, "20KB")])
def test_hidden_states_and_next_token_logits_equal_pytorch(tmp_path, rng, tied, shard):
    import torch

    theirs = torch_model(tmp_path, 0, tie_word_embeddings=tied)
    theirs.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard == "20KB")
    cfg = hf.model_config(hf.read_config(tmp_path), lm_head=True)
    ours = hf.load(tmp_path, cfg)
    ids = rng.integers(0, 96, (2, 11))
    with torch.no_grad():
        out = theirs(torch.tensor(ids), output_hidden_states=True)
    x_BLD = run(ours, ids)
    np.testing.assert_allclose(x_BLD, out.hidden_states[-1], rtol=1e-4, atol=1e-4)
    logit_BLV = out.logits.numpy()
    np.testing.assert_allclose(ours.vocab_logits(x_BLD), logit_BLV, atol=1e-4 * np.abs(logit_BLV).max())


@pytest.mark.parametrize("head", ["scalar", "binary", "ternary"])
def test_step_logits_equal_pytorch_and_export_is_read_back_by_it(tmp_path, rng, head, tokenizer):
    import torch
    from transformers import AutoModelForTokenClassification

    size = {"scalar": 1, "binary": 2, "ternary": 3}[head]
    theirs = torch_model(tmp_path, size)
    theirs.save_pretrained(tmp_path)
    assert hf.detect_head(hf.open_tensors(tmp_path), "x") == head
    ours = hf.load(tmp_path, hf.model_config(hf.read_config(tmp_path), head=head))
    ids, marks = rng.integers(0, 96, (2, 9)), np.array([[2, 8], [4, 5]])
    with torch.no_grad():
        logit_BLC = theirs(torch.tensor(ids)).logits.numpy()
    mine = ours.step_logits(run(ours, ids), jnp.asarray(marks))
    expected = np.take_along_axis(logit_BLC, marks[..., None], axis=1)
    np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())

    hf.save(tmp_path / "out", ours, tokenizer)
    again = AutoModelForTokenClassification.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        np.testing.assert_allclose(again(torch.tensor(ids)).logits.numpy(), logit_BLC, atol=1e-4)


def test_round_trip_is_exact(tmp_path, tokenizer):
    for cfg in (TINY, dataclasses.replace(TINY, tied=False, lm_head=True, head="none")):
        model = PRM(cfg, rngs=nnx.Rngs(0))
        hf.save(tmp_path, model, tokenizer)
        read = hf.model_config(hf.read_config(tmp_path), head=cfg.head, lm_head=cfg.lm_head)
        assert read == cfg
        for a, b in zip(
            *(jax.tree.leaves(nnx.state(m)) for m in (model, hf.load(tmp_path, read))), strict=True
        ):
            np.testing.assert_array_equal(a, b)


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
        pattern, do=lambda: hf.load(tmp_path, hf.model_config(hf.read_config(tmp_path), head="scalar"))
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
    refuses("model_type: got 'gpt2', expected 'qwen2'")
    (tmp_path / "config.json").write_text("{")
    refuses("config.json: line 1: not JSON")
    write()
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    refuses("not a whole safetensors file")
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    refuses("pytorch_model.bin is a pickle and is not read")
    refuses("no such folder", lambda: hf.locate("./nowhere"))
