"""Converts the config.json of a Hugging Face checkpoint to our ModelConfig, and back."""

import dataclasses
import math
import typing
from pathlib import Path
from typing import Annotated

from prm_jax import InputError
from prm_jax.checkpoints.folders import base_of
from prm_jax.heads import HEADS
from prm_jax.launch.config import BelowOne, Count, Positive, expect, one_of
from prm_jax.launch.files import read_json
from prm_jax.model import FAMILIES, REMAT, ModelConfig, RopeScaling, choose_dtype, choose_remat

# Field of ModelConfig -> key of a config.json.
SIZES = {
    "vocab": "vocab_size",
    "dim": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
}
SIZES |= {"ffn": "intermediate_size"}
OTHERS = {"kv_heads": "num_key_value_heads", "head_dim": "head_dim", "norm_eps": "rms_norm_eps"}
OTHERS |= {
    "rope_theta": "rope_theta",
    "max_positions": "max_position_embeddings",
    "tied": "tie_word_embeddings",
}
EXPERTS = {
    "ffn": "moe_intermediate_size",
    "experts": "num_experts",
    "experts_per_token": "num_experts_per_tok",
}
# Granite's scales; ours of the query is relative to K^-1/2, and ours of the logits is the inverse.
GRANITE = {"embed_scale": "embedding_multiplier", "residual_scale": "residual_multiplier"}
GRANITE |= {"query_scale": "attention_multiplier", "logit_scale": "logits_scaling"}
ACTIVATIONS = {
    "silu": "silu",
    "gelu": "gelu_pytorch_tanh",
}  # activation of a ModelConfig -> its name in a config.json
# Defaults of transformers' classes for keys that a Gemma's config.json leaves out.
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "rms_norm_eps": 1e-6}
GEMMA |= {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256}
GEMMA2 = GEMMA | {
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "sliding_window_pattern": 2,
}
GEMMA3 = GEMMA | {
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "sliding_window_pattern": 6,
}
GEMMA3 |= {
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
}
GEMMAS = {"gemma2": GEMMA2, "gemma3_text": GEMMA3}
GEMMA_CAPS = {
    "attn_logit_softcap": "attn_logit_softcapping",
    "final_logit_softcap": "final_logit_softcapping",
}


def read_config(folder: Path) -> dict:
    """The parsed config.json of a checkpoint folder, or of an adapter's base model."""
    path = (base_of(folder) or folder) / "config.json"
    if not path.is_file():
        raise InputError(f"{path}: no such file, expected a Hugging Face checkpoint folder")
    config = read_json(path, prm_jax=dict | None)
    if config.get("model_type") == "gemma3" and isinstance(config.get("text_config"), dict):
        print(f"model       {path}: only the language model of this multimodal gemma3 is read")
        config = config["text_config"] | config | {"model_type": "gemma3_text"}
    code = " (its own Python code, auto_map, is never run)" if "auto_map" in config else ""
    expect(
        (family := config.get("model_type")) in FAMILIES,
        f"{path}: model_type",
        family,
        ", ".join(FAMILIES) + code,
    )
    return config


def model_config(config: dict, where: str = "config.json", **changes) -> ModelConfig:
    """The ModelConfig of a Hugging Face config, with `changes`; InputError where model.py cannot compute it."""
    try:
        return ModelConfig(**shape_of(config, where) | changes)
    except AssertionError as error:
        raise InputError(f"{where}: {error}") from error


def shape_of(config: dict, where: str) -> dict:
    """The fields of ModelConfig that a Hugging Face config fixes."""

    def need(key):
        if config.get(key) is None:
            raise InputError(f"{where}: {key}: missing")
        return config[key]

    def size(key, default=None, most=10**9):
        value = need(key) if default is None else config.get(key) or default
        if type(value) is not int or not 1 <= value <= most:
            expected = f"a whole number above 0, at most {most:,}"
            raise InputError(f"{where}: {key}: got {repr(value)[:20]}, expected {expected}")
        return value

    family = need("model_type")
    config = GEMMAS.get(family, {}) | config
    config.setdefault("num_experts", config.get("num_local_experts"))  # transformers 4, 5
    for key in ("quantization_config", "use_bidirectional_attention"):
        expect(not config.get(key), f"{where}: {key}", config.get(key), "null")
    activations = {name: ours for ours, name in ACTIVATIONS.items()}
    activation = str(config.get(key := "hidden_activation" if family in GEMMAS else "hidden_act", "silu"))
    expect(activation in activations, f"{where}: {key}", activation, " or ".join(activations))
    biased = bool(config.get("attention_bias", False)) and family not in ("qwen2", "mistral")
    try:
        rope, local_rope_theta = rope_settings(config, where)
        limits = {"layers": 10_000, "experts": 10_000}
        keys = SIZES | (EXPERTS if family == "qwen3_moe" else {})
        sizes = {field: size(key, most=limits.get(field, 10**9)) for field, key in keys.items()}
        others = {
            "family": family,
            "kv_heads": size("num_key_value_heads", sizes["heads"]),
            "head_dim": size("head_dim", sizes["dim"] // sizes["heads"]),
            "rope_theta": float(rope.get("rope_theta", config.get("rope_theta", 10_000.0))),
            "rope_scaling": rope_scaling(config, rope, where),
            "local_rope_theta": local_rope_theta,
            "norm_eps": float(need("rms_norm_eps")),
            "qkv_bias": family == "qwen2" or biased,
            "o_bias": biased,
            "mlp_bias": family in ("llama", "granite") and bool(config.get("mlp_bias", False)),
            "qk_norm": family in ("qwen3", "qwen3_moe", "gemma3_text"),
            "activation": activations[activation],
            "tied": bool(config.get("tie_word_embeddings", False)),
            "max_positions": size("max_position_embeddings", ModelConfig.max_positions),
        }
        if family == "qwen3_moe":
            others["norm_topk_prob"] = bool(config.get("norm_topk_prob", False))
            for key in ("mlp_only_layers", "use_sliding_window"):
                expect(not config.get(key), f"{where}: {key}", config.get(key), "none")
            expect(
                (step := config.get("decoder_sparse_step", 1)) == 1,
                f"{where}: decoder_sparse_step",
                step,
                "1",
            )
        if family == "granite":
            scales = {field: float(config.get(key, 1.0)) for field, key in GRANITE.items()}
            attention, logit = scales["query_scale"] * others["head_dim"] ** 0.5, 1 / scales["logit_scale"]
            others |= scales | {"query_scale": attention, "logit_scale": logit}
        if family == "gemma3_text":  # transformers' Gemma 3 ignores it
            expect(config[key := "attn_logit_softcapping"] is None, f"{where}: {key}", config[key], "null")
        if family in GEMMAS:
            caps = {
                name: None if config[key] is None else float(config[key]) for name, key in GEMMA_CAPS.items()
            }
            scale = math.sqrt(others["head_dim"] / config["query_pre_attn_scalar"])
            others |= caps | {"post_norms": True, "embed_scale": sizes["dim"] ** 0.5, "query_scale": scale}
        return sizes | others | sliding_window(config, where)
    except InputError:
        raise
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InputError(f"{where}: a field of the wrong type ({error})") from error


LENGTH = "original_max_position_embeddings"
# rope_type -> {field of RopeScaling: key of a config.json}
ROPE = {
    "linear": {"factor": "factor"},
    "llama3": {"factor": "factor", "slow": "low_freq_factor", "fast": "high_freq_factor", "length": LENGTH},
    "yarn": {"factor": "factor", "slow": "beta_slow", "fast": "beta_fast", "length": LENGTH}
    | {"attention": "attention_factor", "truncate": "truncate"},
}


def rope_settings(config: dict, where: str) -> tuple[dict, float | None]:
    """(rotary settings, rope_theta of the sliding layers or None where all layers share one). transformers 5 writes
    rope_parameters, for Gemma 3 by kind of layer; earlier ones wrote rope_theta, rope_local_base_freq, rope_scaling."""
    rope, scaling = config.get("rope_parameters") or {}, config.get("rope_scaling") or {}
    if config["model_type"] != "gemma3_text":
        return rope or scaling, None
    local = rope.get("sliding_attention") or {}
    kind = local.get("rope_type", "default")
    expect(kind == "default", f"{where}: rope_parameters.sliding_attention.rope_type", kind, "'default'")
    local_rope_theta = float(local.get("rope_theta", config["rope_local_base_freq"]))
    return (rope.get("full_attention") or {}) | scaling, local_rope_theta


def rope_scaling(config: dict, rope: dict, where: str) -> RopeScaling | None:
    """The scaling of rotary frequencies in a config, with transformers' defaults; None without scaling."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default" and kind not in ROPE:
        why = ", with which a score depends on the longest row of its batch" if kind == "dynamic" else ""
        raise InputError(f"{where}: rope_type: got {kind!r}{why}; expected default, {', '.join(ROPE)}")
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    expect(share == 1, f"{where}: partial_rotary_factor", share, "1.0")
    names = ROPE.get(kind, {})
    neutral = {"rope_type", "type", "rope_theta", "partial_rotary_factor", LENGTH}
    if unknown := sorted(rope.keys() - neutral - set(names.values())):
        raise InputError(f"{where}: rope_parameters: {unknown[0]} is not supported with rope_type {kind!r}")
    if kind == "default":
        return None
    length = config.get(LENGTH) or rope.get(LENGTH) or config.get("max_position_embeddings")
    values = {field: value for field, key in names.items() if (value := rope.get(key)) is not None}
    if "length" in names and length is not None:
        values["length"] = length
    for field in names if kind == "llama3" else names.keys() & {"factor", "length"}:
        if field not in values:
            raise InputError(
                f"{where}: rope_parameters: {names[field]!r} is missing, which rope_type {kind!r} needs"
            )
    if kind == "yarn":  # equation 22 of the paper
        values = {"attention": 0.1 * math.log(max(1, values["factor"])) + 1} | values
    types = {"length": int, "truncate": bool}
    return RopeScaling(kind, **{field: types.get(field, float)(value) for field, value in values.items()})


def sliding_window(config: dict, where: str) -> dict:
    """`window` and `sliding` of a ModelConfig; without layer_types all layers of a Mistral, the upper ones of a Qwen,
    and all but each second (Gemma 2) or sixth (Gemma 3) slide."""
    family, layers = config["model_type"], config.get("num_hidden_layers")
    always = family in ("mistral", *GEMMAS)
    kinds, slides = config.get("layer_types"), always or config.get("use_sliding_window")
    window = config.get("sliding_window", 4096) if slides else None
    if not kinds:
        first = 0 if always else config.get("max_window_layers", 28)
        period = config["sliding_window_pattern"] if family in GEMMAS else layers + 1
        slides = [window and i >= first and (i + 1) % period for i in range(layers)]
        kinds = ["sliding_attention" if slide else "full_attention" for slide in slides]
    is_known = set(kinds) <= {"sliding_attention", "full_attention"}
    expect(is_known, f"{where}: layer_types", sorted(set(kinds)), "full_attention or sliding_attention")
    sliding = tuple(kind == "sliding_attention" for kind in kinds)
    if any(sliding) and (family in ("llama", "granite") or window is None):
        raise InputError(
            f"{where}: layer_types: names sliding layers, but the config gives {family} no sliding_window"
        )
    return {
        "window": window if any(sliding) else None,
        "sliding": sliding if len(set(sliding)) == 2 else None,
    }


FROM_RUN = ("head", "head_dropout", "dtype", "remat", "lm_head")  # fields that no config.json holds
HINTS = typing.get_type_hints(ModelConfig)
FIELDS = {
    name: Count if hint in (int, int | None) else hint for name, hint in HINTS.items() if name != "lm_head"
}
FIELDS |= dict.fromkeys(("rope_theta", "norm_eps"), Positive)
FIELDS |= {"head": Annotated[str, one_of(HEADS)], "head_dropout": BelowOne}
FIELDS["remat"] = Annotated[str, one_of(("auto", "none", *REMAT))]
# The model section of a run (conf/model): any field of ModelConfig; null or absent means as in config.json.
choices = [(name, hint | None, None) for name, hint in FIELDS.items()]
ModelChoice = dataclasses.make_dataclass("ModelChoice", [*choices, ("new_head", bool, True)], frozen=True)


def resolve_model(choice: ModelChoice, config: dict, where: str, **uses) -> tuple[ModelConfig, dict]:
    """(ModelConfig of a Hugging Face config with the chosen fields, {field: (chosen, in config)} where these
    differ). `uses` are further fields that the objective decides, such as lm_head."""
    chosen = {name: value for name in FIELDS if (value := getattr(choice, name)) is not None}
    chosen["dtype"] = choose_dtype(chosen.get("dtype", "auto"))
    chosen["remat"] = choose_remat(chosen.get("remat", "none"))
    original = model_config(config, where)
    shape = {name: value for name, value in chosen.items() if name not in FROM_RUN}
    changed = {name: (value, x) for name, value in shape.items() if value != (x := getattr(original, name))}
    return model_config(config, where, **chosen | uses), changed


def export_config(cfg: ModelConfig, tokenizer) -> dict:
    """`hf_config`; InputError names a field that a config.json cannot hold: it would be read as another model."""
    config = hf_config(cfg, tokenizer)
    again = model_config(config, "export", **{name: getattr(cfg, name) for name in FROM_RUN})
    for name, value in vars(cfg).items():
        other = getattr(again, name)
        if other != value and not (isinstance(value, float) and math.isclose(other, value, rel_tol=1e-12)):
            where = f"a {cfg.family} config.json, which would be read as {other}"
            raise InputError(
                f"export: model.{name}={value} has no place in {where}: this model cannot be exported"
            )
    return config


# Family -> prefix of its classes in transformers.
CLASSES = {name: name.title().replace("_Text", "").replace("_", "") for name in FAMILIES}
HEADLESS = ("granite", "gemma3_text")  # families without a class ForTokenClassification


def architecture(cfg: ModelConfig) -> str:
    """Name of the class that reads an export. Qwen's own, code beside its checkpoints, have a hidden layer in the head.
    For other families no class has one; transformers' classes would initialise it at random, silently."""
    kind, head = "ForCausalLM", HEADS.get(cfg.head)
    if head is not None and not head.hidden:
        kind = "ForTokenClassification"
    elif head is not None and cfg.family == "qwen2":
        kind = "ForProcessRewardModel" if head.outputs == 2 else "ForRewardModel"
    elif head is not None:
        kind = "TextModel" if cfg.family == "gemma3_text" else "Model"
    return CLASSES[cfg.family] + kind


def hf_config(cfg: ModelConfig, tokenizer) -> dict:
    """The config.json of our model, inverse of `model_config`."""
    rope = {"rope_type": "default"}
    if scaling := cfg.rope_scaling:
        rope = {"rope_type": scaling.kind} | {
            key: getattr(scaling, field) for field, key in ROPE[scaling.kind].items()
        }
    config = {
        **{key: getattr(cfg, field) for field, key in (SIZES | OTHERS).items()},
        "architectures": [architecture(cfg)],
        "model_type": cfg.family,
        "hidden_act": ACTIVATIONS[cfg.activation],
        "rope_parameters": rope | {"rope_theta": cfg.rope_theta},
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "dtype": "float32",
        **{key: getattr(tokenizer, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
        **family_fields(cfg, rope),
    }
    if scaling:
        config["rope_scaling"] = rope  # for transformers 4
    if cfg.head in HEADS:
        config["id2label"] = {str(i): label for i, label in enumerate(HEADS[cfg.head].labels)}
    return config


def family_fields(cfg: ModelConfig, rope: dict) -> dict:
    family, fields = (
        cfg.family,
        {} if cfg.family in ("qwen2", "mistral") else {"attention_bias": cfg.qkv_bias},
    )
    sliding = cfg.sliding or (cfg.window is not None,) * cfg.layers
    layer_types = ["sliding_attention" if slides else "full_attention" for slides in sliding]
    if family in ("llama", "granite"):
        fields["mlp_bias"] = cfg.mlp_bias
    if family == "mistral":
        fields["sliding_window"] = cfg.window
        if (
            cfg.sliding
        ):  # transformers reads a Mistral with layer_types as a Ministral, which differs in nothing else
            fields["layer_types"] = layer_types
    if family in ("qwen2", "qwen3"):
        fields["use_sliding_window"] = cfg.window is not None
        if cfg.window is not None:  # max_window_layers: for transformers 4
            first = [*sliding, True].index(True)
            fields |= {"sliding_window": cfg.window, "layer_types": layer_types, "max_window_layers": first}
    if family == "qwen3_moe":
        fields |= {key: getattr(cfg, field) for field, key in EXPERTS.items()}
        fields |= {"norm_topk_prob": cfg.norm_topk_prob, "decoder_sparse_step": 1}
        fields |= {"mlp_only_layers": [], "use_sliding_window": False}
    if family == "granite":
        fields |= {key: getattr(cfg, field) for field, key in GRANITE.items()}
        fields["attention_multiplier"] = cfg.query_scale * cfg.head_dim**-0.5
        fields["logits_scaling"] = 1 / cfg.logit_scale
    if family in GEMMAS:
        fields |= {
            "hidden_activation": ACTIVATIONS[cfg.activation],
            "final_logit_softcapping": cfg.final_logit_softcap,
        }
        fields["query_pre_attn_scalar"] = round(cfg.head_dim / (cfg.query_scale or 1) ** 2)
        fields |= {"sliding_window": cfg.window, "layer_types": layer_types}
    if family == "gemma2":
        fields["attn_logit_softcapping"] = cfg.attn_logit_softcap
    if family == "gemma3_text":
        local = {"rope_type": "default", "rope_theta": cfg.local_rope_theta}
        layers = {"full_attention": rope | {"rope_theta": cfg.rope_theta}, "sliding_attention": local}
        fields |= {"rope_local_base_freq": cfg.local_rope_theta, "rope_parameters": layers}
    return fields
