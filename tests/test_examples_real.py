"""examples/real/: a GGUF file becomes the folder that transformers would have written."""

import re

import gguf
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from conftest import real_model
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import prm_jax
from examples.real import smollm2
from prm_jax import InputError

HEADS = {"attn_q": 4, "attn_k": 2}
TEXT = "Tom has 48 pens, and 12 books.\n\nHow many? √2"


def largest_difference(folder, texts) -> float:
    """Of our logits from those of transformers on the same folder."""
    ours = prm_jax.load(f"policy:{folder}").scorer
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = []
    for text in texts:
        ids = ours.tokenizer(text)["input_ids"]
        L = len(ids)
        x_1LD = ours.model(jnp.array([ids]), jnp.arange(L)[None], jnp.full((1, L), L))
        with torch.no_grad():
            expected_LV = theirs(torch.tensor([ids])).logits[0].numpy()
        found.append(np.abs(np.asarray(ours.model.vocab_logits(x_1LD[0])) - expected_LV).max())
    return max(found)


def write_gguf(path, model, pre="smollm"):
    """A GGUF file of a model, as llama.cpp writes it: the queries and keys of a head in RoPE's pairs."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(ByteLevel.alphabet()), "an", "Ġan"]
    writer = gguf.GGUFWriter(path, "llama")
    sizes = {"block_count": 2, "embedding_length": 32, "feed_forward_length": 64, "context_length": 64}
    sizes |= {f"attention.{name}": n for name, n in (("head_count", 4), ("head_count_kv", 2))}
    for name, n in sizes.items():
        writer.add_uint32(f"llama.{name}", n)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100.0)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a n", "Ġ an"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}!")
    ours = {their: own for own, their in smollm2.WEIGHTS.items()}
    for name, x in model.state_dict().items():
        layer = re.match(r"model\.layers\.(\d)\.", name)
        part = ours.get(name.removeprefix(layer[0] if layer else "").removesuffix(".weight"))
        if part is None:  # the output is the embedding
            continue
        x = x.numpy()
        if part in HEADS:
            x = x.reshape(HEADS[part], 2, -1, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
        kind = gguf.GGMLQuantizationType.Q8_0 if part == "token_embd" else gguf.GGMLQuantizationType.F32
        place = f"blk.{layer[1]}.{part}" if layer else part
        writer.add_tensor(f"{place}.weight", gguf.quants.quantize(x, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def tiny():
    torch.manual_seed(0)
    sizes = {"vocab_size": 261, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, initializer_range=0.5))


def test_a_gguf_file_becomes_a_folder_of_the_same_model(tmp_path, tiny):
    write_gguf(tmp_path / "model.gguf", tiny)
    smollm2.convert(tmp_path / "model.gguf", tmp_path / "made")
    made = AutoModelForCausalLM.from_pretrained(tmp_path / "made")
    for name, x in tiny.state_dict().items():
        atol = 0.01 if name in ("model.embed_tokens.weight", "lm_head.weight") else 0  # of 8 bits
        np.testing.assert_allclose(made.state_dict()[name], x, rtol=0, atol=atol, err_msg=name)
    assert (made.config.max_position_embeddings, made.generation_config.eos_token_id) == (64, 2)
    assert largest_difference(tmp_path / "made", [TEXT]) < 1e-3

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "made")
    assert tokenizer.tokenize("an an 48<|im_end|>") == ["an", "Ġan", "Ġ", "4", "8", "<|im_end|>"]
    assert tokenizer.decode(tokenizer(TEXT)["input_ids"]) == TEXT
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token_id) == (
        "<|im_start|>",
        "<|im_end|>",
        2,
    )
    assert tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False) == "Hi!"


def test_another_file_is_refused(tmp_path, tiny):
    (tmp_path / "other.gguf").write_text("no model, and long enough to have a magic number")
    write_gguf(tmp_path / "llama3.gguf", tiny, pre="llama-bpe")
    for name in ("other.gguf", "llama3.gguf"):
        with pytest.raises(InputError, match=name):
            smollm2.convert(tmp_path / name, tmp_path / "made")
    assert not (tmp_path / "made").exists()


@pytest.mark.slow
def test_smollm2_has_the_logits_of_transformers():
    assert (
        largest_difference(real_model("smollm2"), [TEXT, "<|im_start|>user\nHi<|im_end|>\n", "1 + 1 = "])
        < 1e-3
    )
