"""Converts the config.json of a Hugging Face checkpoint to our ModelConfig, and back.

transformers' AutoConfig reads it: what a family takes where a key is missing, both layouts of rotary
settings, and the types are its own. It gets the parsed file, so it never asks the hub, and code beside a
checkpoint is never run.
"""

import copy
import dataclasses
import functools
import math
from pathlib import Path

from prm_jax import InputError
from prm_jax.checkpoints.folders import base_of, locate, no_checkpoint
from prm_jax.heads import HEADS
from prm_jax.launch.config import expect, parse
from prm_jax.launch.files import read_json
from prm_jax.model import FAMILIES, ModelConfig, RopeScaling

# Field of ModelConfig -> key of a config.json with the same value, in the families whose class knows the key.
KEYS = {
    "family": "model_type",
    "vocab": "vocab_size",
    "dim": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "norm_eps": "rms_norm_eps",
    "tied": "tie_word_embeddings",
    "max_positions": "max_position_embeddings",
    "window": "sliding_window",
    "qkv_bias": "attention_bias",
    "o_bias": "attention_bias",
    "mlp_bias": "mlp_bias",
    "experts": "num_experts",
    "experts_per_token": "num_experts_per_tok",
    "norm_topk_prob": "norm_topk_prob",
    "embed_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attn_logit_softcap": "attn_logit_softcapping",
    "final_logit_softcap": "final_logit_softcapping",
}
WIDE = 256  # features of a token, from which on bfloat16 pays, and one device with all cores of a CPU
# Fields that a config.json needs not say: tensors and notes do, or they only say how to compute.
ELSEWHERE = ("head", "lm_head", "head_dropout", "dtype", "remat")
# What the classes of a family always do, which no key says.
ALWAYS = {
    "qwen2": {"qkv_bias": True},
    "mistral": {"qkv_bias": False},
    "qwen3": {"qk_norm": True},
    "qwen3_moe": {"qk_norm": True},
    "gemma2": {"post_norms": True},
    "gemma3_text": {"post_norms": True, "qk_norm": True, "attn_logit_softcap": None},
}
GEMMAS = ("gemma2", "gemma3_text")
ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu"}  # in a config.json -> in a ModelConfig


def read_config(folder: Path) -> dict:
    """The parsed config.json of a checkpoint folder, or of an adapter's base model."""
    path = (base_of(folder) or folder) / "config.json"
    if not path.is_file():
        raise no_checkpoint(path.parent)
    config = read_json(path, prm_jax=dict | None)
    for key in ("quantization_config", "quantization"):  # the latter is MLX's
        method = config.get(key) or None
        if isinstance(method, dict):
            method = method.get("quant_method", "MLX")
        expect(method is None, f"{path}: {key}", method, "none: take the model that it was quantised from")
    code = " (its own Python code, auto_map, is never run)" if "auto_map" in config else ""
    family = config.get("model_type")
    expect(family in FAMILIES, f"{path}: model_type", family, ", ".join(FAMILIES) + code)
    return config


def is_wide(name: str) -> bool:
    """Whether the model that `name` means gains by bfloat16, and by one device with all cores of a CPU."""
    folder = locate(name)
    return model_config(read_config(folder), str(folder / "config.json")).dim >= WIDE


def model_config(config: dict, where: str = "config.json", **changes) -> ModelConfig:
    """The ModelConfig of a Hugging Face config, with `changes`; InputError if model.py cannot compute it."""
    try:
        return ModelConfig(**shape_of(config, where) | changes)
    except InputError:
        raise
    except Exception as error:  # transformers' checks raise a dozen kinds
        raise InputError(f"{where}: {' '.join(str(error).split())[:300]}") from error


@functools.cache
def defaults(family: str):
    """The configuration of transformers' class of a family, all keys at their defaults."""
    from transformers import AutoConfig

    return AutoConfig.for_model(family)


def keys_of(family: str) -> dict[str, str]:
    """KEYS of a family: those that its class knows."""
    keys = {field: key for field, key in KEYS.items() if hasattr(defaults(family), key)}
    if "experts" in keys:
        keys["ffn"] = "moe_intermediate_size"
    return keys


def shape_of(config: dict, where: str) -> dict:
    """The fields of ModelConfig that a Hugging Face config fixes."""
    from transformers import AutoConfig

    key = "use_bidirectional_attention"
    expect(not config.get(key), f"{where}: {key}", config.get(key), "null")
    settings = AutoConfig.for_model(**copy.deepcopy(config))  # which writes into its rotary settings
    settings.standardize_rope_params()  # as its model's rotary functions do
    family = settings.model_type
    fields = {field: getattr(settings, key) for field, key in keys_of(family).items()}
    fields |= ALWAYS.get(family, {})
    K = getattr(settings, "head_dim", None) or settings.hidden_size // settings.num_attention_heads
    fields["head_dim"] = K
    activation = getattr(settings, "hidden_activation", None) or settings.hidden_act
    expect(activation in ACTIVATIONS, f"{where}: hidden_act", activation, " or ".join(ACTIVATIONS))
    fields["activation"] = ACTIVATIONS[activation]
    # Our scale of queries is relative to K^-1/2, and ours of logits is the inverse.
    if family == "granite":
        fields["query_scale"] = settings.attention_multiplier * K**0.5
        fields["logit_scale"] = 1 / settings.logits_scaling
    if family in GEMMAS:
        fields["embed_scale"] = settings.hidden_size**0.5
        fields["query_scale"] = math.sqrt(K / settings.query_pre_attn_scalar)
    return fields | rotations(settings, where) | windows(settings, fields.get("window"), where)


def rotations(settings, where: str) -> dict:
    """rope_theta, its scaling, and the rope_theta of sliding layers where they have their own (Gemma 3)."""
    rope = settings.rope_parameters
    where = f"{where}: rope_parameters"
    scaling, local_theta = None, None
    if settings.model_type == "gemma3_text":
        rope, local = rope["full_attention"], rope["sliding_attention"]
        kind = local.get("rope_type", "default")
        local_theta = float(local["rope_theta"])
        expect(kind == "default", f"{where}.sliding_attention.rope_type", kind, "'default'")
    values = {key: x for key, x in rope.items() if x is not None and key not in ("rope_theta", "type")}
    # Refused is dynamic scaling, by which a score would depend on the longest row of its batch.
    if values != {"rope_type": "default"}:
        scaling = parse(values, RopeScaling, where)
    return {"rope_theta": float(rope["rope_theta"]), "rope_scaling": scaling, "local_rope_theta": local_theta}


def windows(settings, window: int | None, where: str) -> dict:
    """`window` and `sliding` of a ModelConfig."""
    kind_of_all = "sliding_attention" if window else "full_attention"
    kinds = getattr(settings, "layer_types", None) or [kind_of_all] * settings.num_hidden_layers
    sliding = tuple(kind == "sliding_attention" for kind in kinds)
    is_right = {*kinds} <= {"full_attention", "sliding_attention"} and (window or not any(sliding))
    expected = "full_attention, or sliding_attention where the family has a sliding_window"
    expect(is_right, f"{where}: layer_types", sorted({*kinds}), expected)
    is_mixed = any(sliding) and not all(sliding)
    return {"window": window if any(sliding) else None, "sliding": sliding if is_mixed else None}


def export_config(cfg: ModelConfig, tokenizer) -> dict:
    """`hf_config`; InputError names a field that it cannot carry: it would be read as another model."""
    config = hf_config(cfg, tokenizer)
    again = model_config(config, "export")
    for field in dataclasses.fields(cfg):
        x, y = getattr(cfg, field.name), getattr(again, field.name)
        is_same = x == y or isinstance(x, float) and isinstance(y, float) and math.isclose(x, y)
        if field.name not in ELSEWHERE and not is_same:
            where = f"a {cfg.family} config.json, which would be read as {y}"
            raise InputError(f"export: model.{field.name}={x} has no place in {where}: it cannot be exported")
    return config


def architecture(cfg: ModelConfig) -> str:
    """Name of the class that an export is laid out for; of Granite and Gemma 3 a step head has one in vLLM
    alone. Of heads with a hidden layer only Qwen has a class, code beside its checkpoints; transformers' own
    classes would start such a head at random, silently."""
    head = HEADS.get(cfg.head)
    if head is None:
        kind = "ForCausalLM"
    elif not head.hidden:
        kind = "ForTokenClassification"
    elif cfg.family == "qwen2":
        kind = "ForProcessRewardModel" if head.outputs == 2 else "ForRewardModel"
    else:
        kind = "TextModel" if cfg.family == "gemma3_text" else "Model"
    return cfg.family.title().replace("_Text", "").replace("_", "") + kind


def hf_config(cfg: ModelConfig, tokenizer) -> dict:
    """The config.json of our model, inverse of `model_config`."""
    family = cfg.family
    rope = {"rope_type": "default"}
    if cfg.rope_scaling:
        rope = {key: x for key, x in vars(cfg.rope_scaling).items() if x is not None}
    with_theta = rope | {"rope_theta": cfg.rope_theta}
    config = {key: getattr(cfg, field) for field, key in keys_of(family).items()}
    config |= {
        "architectures": [architecture(cfg)],
        "head_dim": cfg.head_dim,
        "rope_theta": cfg.rope_theta,  # for transformers 4, which reads no rope_parameters
        "rope_parameters": with_theta,
        "dtype": "float32",
        **{key: getattr(tokenizer, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    }
    if cfg.rope_scaling:
        config["rope_scaling"] = rope  # for transformers 4
    activations = {ours: name for name, ours in ACTIVATIONS.items()}
    key = "hidden_activation" if family in GEMMAS else "hidden_act"
    config[key] = activations.get(cfg.activation, cfg.activation)
    if hasattr(defaults(family), "use_sliding_window"):
        config["use_sliding_window"] = cfg.window is not None
    if hasattr(defaults(family), "layer_types"):
        slides = cfg.sliding or (cfg.window is not None,) * cfg.layers
        config["layer_types"] = ["sliding_attention" if slide else "full_attention" for slide in slides]
    if cfg.head in HEADS:
        config["id2label"] = {str(i): label for i, label in enumerate(HEADS[cfg.head].labels)}
    if family == "granite":
        config["attention_multiplier"] = cfg.query_scale * cfg.head_dim**-0.5
        config["logits_scaling"] = 1 / cfg.logit_scale
    if family in GEMMAS:
        config["query_pre_attn_scalar"] = round(cfg.head_dim / cfg.query_scale**2)
    if family == "gemma3_text":
        local = {"rope_type": "default", "rope_theta": cfg.local_rope_theta}
        config["rope_local_base_freq"] = cfg.local_rope_theta
        config["rope_parameters"] = {"full_attention": with_theta, "sliding_attention": local}
    return config
