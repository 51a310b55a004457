"""Hugging Face checkpoints in and out: config.json, names and layouts of tensors (tensors.py has the files), tokenizer.

Dimension key: D model, V vocabulary, C head outputs. Hugging Face stores a projection as [out, in]; ours is [in, out].

As a command, exports a run: python -m prm_jax.hf checkpoint=RUN to=FOLDER
"""

import dataclasses
import functools
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from omegaconf import OmegaConf

from prm_jax import InputError, cli
from prm_jax.model import (
    FAMILIES,
    HEADS,
    PRM,
    ModelConfig,
    RopeScaling,
    choose_dtype,
    head_scale,
    thin,
)
from prm_jax.remat import REMAT
from prm_jax.sharding import layout
from prm_jax.tensors import open_tensors, write_tensors

EMBEDDED = Path(__file__).parent / "assets" / "base"

# our parameter -> (tensor name without the `model.` prefix, stored transposed); {} is the layer
TOP = {"embed": ("embed_tokens.weight", False), "norm_out": ("norm.weight", False)}
LAYER = {
    "norm_attn": ("layers.{}.input_layernorm.weight", False),
    "w_q": ("layers.{}.self_attn.q_proj.weight", True),
    "w_k": ("layers.{}.self_attn.k_proj.weight", True),
    "w_v": ("layers.{}.self_attn.v_proj.weight", True),
    "b_q": ("layers.{}.self_attn.q_proj.bias", False),
    "b_k": ("layers.{}.self_attn.k_proj.bias", False),
    "b_v": ("layers.{}.self_attn.v_proj.bias", False),
    "norm_q": ("layers.{}.self_attn.q_norm.weight", False),
    "norm_k": ("layers.{}.self_attn.k_norm.weight", False),
    "w_o": ("layers.{}.self_attn.o_proj.weight", True),
    "b_o": ("layers.{}.self_attn.o_proj.bias", False),
    "norm_ffn": ("layers.{}.post_attention_layernorm.weight", False),
    "w_gate": ("layers.{}.mlp.gate_proj.weight", True),
    "w_up": ("layers.{}.mlp.up_proj.weight", True),
    "w_down": ("layers.{}.mlp.down_proj.weight", True),
    "b_gate": ("layers.{}.mlp.gate_proj.bias", False),
    "b_up": ("layers.{}.mlp.up_proj.bias", False),
    "b_down": ("layers.{}.mlp.down_proj.bias", False),
}
# Outside the backbone, never prefixed; {} is the name of the step head's last layer, one of the keys below.
HEAD = {
    "unembed": ("lm_head.weight", True),
    "w_mlp_head": ("score.0.weight", True),
    "b_mlp_head": ("score.0.bias", False),
    "w_head": ("{}.weight", True),
    "b_head": ("{}.bias", False),
}
# The last layer of a step head -> the formats of the systems that keep it there. `score` is also transformers' own
# token-classification head. Without any of the others the vocabulary projection may be the head, or may be none.
FORMATS = {
    "score": ("trl", "pure", "plain"),
    "score.2": ("qwen_prm",),
    "v_head.summary": ("skywork",),
    "score_head": ("reasoneval",),
    "lm_head": ("math_shepherd", "rlhflow", "openr_psa", "eurus_implicit"),
}


def locate(name: str) -> Path:
    """The folder of a checkpoint: `embedded`, a local folder, or a hub name `owner/model` (downloaded once)."""
    if name == "embedded":
        return EMBEDDED
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise InputError(f"{name}: no such folder")
    from huggingface_hub import snapshot_download

    try:
        patterns = ["*.json", "*.safetensors", "*.txt", "tokenizer.model"]
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # the hub client raises a dozen kinds; all mean that the name cannot be loaded
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{name}: neither a folder here nor a model that the hub gives ({reason})"
        ) from error


def read_config(folder: Path) -> dict:
    """config.json of a checkpoint folder, as the dictionary that it is."""
    path = folder / "config.json"
    if not path.is_file():
        raise InputError(f"{path}: no such file, expected a Hugging Face checkpoint folder")
    try:
        config = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: line {error.lineno}: not JSON ({error.msg})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not text ({error})") from error
    if not isinstance(config, dict) or not isinstance(config.get("prm_jax", {}), dict):
        raise InputError(f"{path}: expected an object with named fields")
    if config.get("model_type") not in FAMILIES:
        code = " (its own Python code, auto_map, is never run)" if "auto_map" in config else ""
        raise InputError(
            f"{path}: model_type: got {config.get('model_type')!r}, expected {', '.join(FAMILIES)}{code}"
        )
    return config


def model_config(config: dict, where: str = "config.json", **changes) -> ModelConfig:
    """Our ModelConfig of a Hugging Face config; `changes` sets the fields that the config does not fix.

    Raises InputError where the config asks for something that the transformer of model.py does not compute.
    """

    def need(key):
        if config.get(key) is None:
            raise InputError(f"{where}: {key}: missing")
        return config[key]

    def size(key, default=None):
        value = need(key) if default is None else config.get(key) or default
        if type(value) is not int or value < 1:
            raise InputError(f"{where}: {key}: got {value!r}, expected a whole number above 0")
        return value

    def only(key, allowed, found):
        if found != allowed:
            raise InputError(f"{where}: {key}: got {found!r}, expected {allowed!r}")

    family = need("model_type")
    only("hidden_act", "silu", config.get("hidden_act", "silu"))
    only("quantization_config", None, config.get("quantization_config"))
    # transformers 5 keeps under rope_parameters what earlier versions wrote as rope_theta and rope_scaling.
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    biased = bool(config.get("attention_bias", False)) and family in ("llama", "qwen3")
    try:
        shape = {
            "family": family,
            "vocab": size("vocab_size"),
            "dim": size("hidden_size"),
            "layers": size("num_hidden_layers"),
            "heads": size("num_attention_heads"),
            "kv_heads": size("num_key_value_heads", size("num_attention_heads")),
            "head_dim": size("head_dim", size("hidden_size") // size("num_attention_heads")),
            "ffn": size("intermediate_size"),
            "rope_theta": float(rope.get("rope_theta", config.get("rope_theta", 10_000.0))),
            "rope_scaling": rope_scaling(config, rope, where),
            "norm_eps": float(need("rms_norm_eps")),
            "qkv_bias": family == "qwen2" or biased,
            "o_bias": biased,
            "mlp_bias": family == "llama" and bool(config.get("mlp_bias", False)),
            "qk_norm": family == "qwen3",
            "tied": bool(config.get("tie_word_embeddings", False)),
            "positions": size("max_position_embeddings", ModelConfig.positions),
        } | sliding_window(config, where)
        return ModelConfig(**(shape | changes))
    except InputError:
        raise
    except AssertionError as error:
        raise InputError(f"{where}: {error}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{where}: a field of the wrong type ({error})") from error


LENGTH = "original_max_position_embeddings"
# rope_type -> {field of RopeScaling: key of a config.json}
ROPE = {
    "linear": {"factor": "factor"},
    "llama3": {"factor": "factor", "slow": "low_freq_factor", "fast": "high_freq_factor", "length": LENGTH},
    "yarn": {
        "factor": "factor",
        "slow": "beta_slow",
        "fast": "beta_fast",
        "length": LENGTH,
        "attention": "attention_factor",
        "truncate": "truncate",
    },
}


def rope_scaling(config: dict, rope: dict, where: str) -> RopeScaling | None:
    """The scaling of rotary frequencies that a config asks for, with the defaults of transformers; None for none."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default" and kind not in ROPE:
        why = ", with which a score depends on the longest row of its batch" if kind == "dynamic" else ""
        raise InputError(f"{where}: rope_type: got {kind!r}{why}; expected default, {', '.join(ROPE)}")
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if share != 1.0:
        raise InputError(f"{where}: partial_rotary_factor: got {share!r}, expected 1.0")
    names = ROPE.get(kind, {})
    neutral = {"rope_type", "type", "rope_theta", "partial_rotary_factor", LENGTH}
    if unknown := sorted(rope.keys() - neutral - set(names.values())):
        raise InputError(f"{where}: rope_parameters: {unknown[0]} is not supported with rope_type {kind!r}")
    if kind == "default":
        return None
    length = config.get(LENGTH) or rope.get(LENGTH) or config.get("max_position_embeddings")
    given = {field: value for field, key in names.items() if (value := rope.get(key)) is not None}
    if "length" in names and length is not None:
        given["length"] = length
    for field in names if kind == "llama3" else names.keys() & {"factor", "length"}:
        if field not in given:
            raise InputError(
                f"{where}: rope_parameters: {names[field]!r} is missing, which rope_type {kind!r} needs"
            )
    if kind == "yarn":  # equation 22 of the paper
        given = {"attention": 0.1 * math.log(max(1, given["factor"])) + 1} | given
    types = {"length": int, "truncate": bool}
    return RopeScaling(kind, **{field: types.get(field, float)(value) for field, value in given.items()})


def sliding_window(config: dict, where: str) -> dict:
    """The fields `window` and `sliding` of a ModelConfig: the layers that a config names slide; without names all of Mistral,
    of Qwen the upper ones."""
    family, layers = config["model_type"], config.get("num_hidden_layers")
    kinds, slides = config.get("layer_types"), family == "mistral" or config.get("use_sliding_window")
    window = config.get("sliding_window", 4096) if slides else None
    if not kinds:
        first = 0 if family == "mistral" else config.get("max_window_layers", 28)
        kinds = ["sliding_attention" if window and i >= first else "full_attention" for i in range(layers)]
    if not set(kinds) <= {"sliding_attention", "full_attention"}:
        raise InputError(
            f"{where}: layer_types: got {sorted(set(kinds))}, expected full_ or sliding_attention"
        )
    sliding = tuple(kind == "sliding_attention" for kind in kinds)
    if any(sliding) and (family == "llama" or window is None):
        raise InputError(
            f"{where}: layer_types: names sliding layers, but the config gives {family} no sliding_window"
        )
    return {
        "window": window if any(sliding) else None,
        "sliding": None if all(sliding) or not any(sliding) else sliding,
    }


@dataclasses.dataclass(frozen=True)
class ModelChoice:
    """The model section of a config. Null shape keys are as in a config.json; conf/model/checkpoint.yaml says the rest."""

    vocab: int | None
    dim: int | None
    layers: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    ffn: int | None
    rope_theta: float | None
    tied: bool | None
    head: str
    new_head: bool
    head_dropout: float
    dtype: str
    remat: str

    def resolve(self, config: dict, where: str, **uses) -> tuple[ModelConfig, dict]:
        """(the ModelConfig of `config` with the asked shape, {shape key: (asked, in config)} where they differ)."""
        if self.head not in HEADS or self.head == "none":
            raise InputError(
                f"model.head: got {self.head!r}, expected {', '.join(h for h in HEADS if h != 'none')}"
            )
        if not 0 <= self.head_dropout < 1:
            raise InputError(f"model.head_dropout: got {self.head_dropout}, expected a number in [0, 1)")
        if self.remat not in ("none", *REMAT):
            raise InputError(f"model.remat: got {self.remat!r}, expected none, dots or full")
        base = model_config(config, where)
        names = ("vocab", "dim", "layers", "heads", "kv_heads", "head_dim", "ffn", "rope_theta", "tied")
        for name in names[:-2]:
            if (getattr(self, name) or 1) < 1 or getattr(self, name) == 0:
                raise InputError(f"model.{name}: got {getattr(self, name)}, expected at least 1")
        asked = {name: value for name in names if (value := getattr(self, name)) is not None}
        changed = {
            name: (value, getattr(base, name))
            for name, value in asked.items()
            if value != getattr(base, name)
        }
        settings = {"head_dropout": self.head_dropout, "dtype": choose_dtype(self.dtype), "remat": self.remat}
        return model_config(config, where, **asked, **settings, **uses), changed


def hf_config(cfg: ModelConfig, tokenizer) -> dict:
    """The config.json of a model of ours, inverse of `model_config`."""
    family = {"qwen2": "Qwen2", "qwen3": "Qwen3", "llama": "Llama", "mistral": "Mistral"}[cfg.family]
    # Qwen's own PRM class is code beside its checkpoints; its tensor names and this config are what loads there.
    kind = {"none": "CausalLM", "mlp": "ProcessRewardModel"}.get(cfg.head, "TokenClassification")
    labels = {
        "scalar": ["good"],
        "binary": ["bad", "good"],
        "mlp": ["bad", "good"],
        "ternary": ["bad", "neutral", "good"],
        "none": [],
    }[cfg.head]
    rope, how = {"rope_type": "default"}, cfg.rope_scaling
    if how is not None:
        rope = {"rope_type": how.kind} | {key: getattr(how, field) for field, key in ROPE[how.kind].items()}
    slides = {"use_sliding_window": False}
    sliding = cfg.sliding or (True,) * cfg.layers
    kinds = ["sliding_attention" if slide else "full_attention" for slide in sliding]
    if cfg.window is not None:
        slides = {"use_sliding_window": True, "sliding_window": cfg.window, "layer_types": kinds}
        slides["max_window_layers"] = sliding.index(True)  # for transformers 4
    own = {  # what only this family's config has
        "qwen2": slides,
        "qwen3": slides | {"attention_bias": cfg.qkv_bias},
        "llama": {"attention_bias": cfg.qkv_bias, "mlp_bias": cfg.mlp_bias},
        # transformers takes a Mistral with layer_types for a Ministral, which is the same but for them.
        "mistral": {"sliding_window": cfg.window} | ({"layer_types": kinds} if cfg.sliding else {}),
    }[cfg.family]
    return (
        {
            "architectures": [f"{family}For{kind}"],
            "model_type": cfg.family,
            "vocab_size": cfg.vocab,
            "hidden_size": cfg.dim,
            "num_hidden_layers": cfg.layers,
            "num_attention_heads": cfg.heads,
            "num_key_value_heads": cfg.kv_heads,
            "head_dim": cfg.head_dim,
            "intermediate_size": cfg.ffn,
            "hidden_act": "silu",
            "rms_norm_eps": cfg.norm_eps,
            "rope_theta": cfg.rope_theta,
            "rope_parameters": rope | {"rope_theta": cfg.rope_theta},
            "max_position_embeddings": cfg.positions,
            "tie_word_embeddings": cfg.tied,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "dtype": "float32",
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        }
        | own
        | ({"rope_scaling": rope} if how is not None else {})  # for transformers 4
        | ({"id2label": {str(i): label for i, label in enumerate(labels)}} if labels else {})
    )


def find_head(tensors, where: str) -> tuple[str, str]:
    """(kind of step head, name of its last layer) of a checkpoint by its tensors; ("none", "lm_head") without one.

    Raises InputError on several heads, on a part of one, and on a head that no known system uses.
    """
    found = [name for name in FORMATS if name != "lm_head" and f"{name}.weight" in tensors]
    if len(found) > 1:
        raise InputError(f"{where}: has several step heads, {' and '.join(found)}; expected one")
    backbone = ("model.", "lm_head.", *(top.split(".")[0] + "." for top, _ in TOP.values()), "layers.")
    if not found:
        others = sorted(name for name in tensors if not name.startswith(backbone))
        if others:
            known = ", ".join(f"{name}.weight" for name in FORMATS)
            raise InputError(
                f"{where}: its step head is incomplete or unknown ({', '.join(others[:3])}); known: {known}"
            )
        return "none", "lm_head"
    (layer,) = found
    C = tensors[f"{layer}.weight"].shape[0]
    if layer == "score.2":
        if C != 2:
            raise InputError(
                f"{where}: score.2.weight: has {C} outputs, expected 2 (bad, good): an outcome model?"
            )
        return "mlp", layer
    heads = {1: "scalar", 2: "binary", 3: "ternary"}
    if C not in heads:
        raise InputError(
            f"{where}: {layer}.weight: has {C} outputs, expected 1 (scalar), 2 (binary) or 3 (ternary)"
        )
    return heads[C], layer


def load(
    folder: Path,
    cfg: ModelConfig,
    new_head: bool = False,
    seed: int = 0,
    dtype=np.float32,
    verdicts: tuple[int, int] | None = None,
) -> PRM:
    """A model of shape `cfg` with the weights of a checkpoint folder, each device's part read and placed on its own.

    Arrays are of `dtype`; None: as they are stored; "thin": as `model.thin` stores them. A step head that the checkpoint
    lacks is started at random only where `new_head` says so. With `verdicts`, the ids of a bad and of a good token, the
    binary head is these two rows of the vocabulary projection: their softmax is the score of a PRM that answers in tokens
    (Math-Shepherd, RLHFlow). Missing, wrongly shaped and unknown tensors raise; the language-model head may go unused,
    nothing else. Needs little more memory than the model.
    """
    tensors = open_tensors(folder)
    prefix = "model." if any(name.startswith("model.") for name in tensors) else ""
    unused = {
        name for name in tensors if name != "lm_head.weight" and not name.endswith("rotary_emb.inv_freq")
    }
    layer = find_head(tensors, str(folder))[1] if cfg.head != "none" and verdicts is None else "score"
    layer = {"lm_head": "score.2" if cfg.head == "mlp" else "score"}.get(
        layer, layer
    )  # of a head still to be started

    def part(names, transposed, shape, key):
        """(dtype, what reads the part at an index into an array) of a tensor, or of a list of them, one a layer, as one array."""
        stacked, names = not isinstance(names, str), [names] if isinstance(names, str) else names
        expected = shape[1:] if stacked else shape
        for name in names:
            if name not in tensors:
                raise InputError(f"{folder}: tensor {name} is missing ({key})")
            unused.discard(name)
            found = tensors[name].shape[::-1] if transposed else tensors[name].shape
            if found != expected:
                raise InputError(f"{folder}: tensor {name}: has shape {found}, expected {expected} ({key})")

        def read(index, out):
            layers, own = (index[0], index[1:]) if stacked else (slice(None), index)
            for y, name in zip(out if stacked else out[None], names[layers], strict=True):
                tensors[name].copy(own[::-1] if transposed else own, y.T if transposed else y)

        # A model of one layer stacks none.
        dtypes = [tensors[name].dtype for name in names] or [np.dtype(np.float32)]
        return functools.reduce(jnp.promote_types, dtypes), read

    def made(x):
        """The same of an array that is in no file."""
        return x.dtype, lambda index, out: np.copyto(out, x[index], casting="unsafe")

    abstract = jax.eval_shape(lambda: thin(PRM(cfg, rngs=nnx.Rngs(0))))
    state = nnx.state(abstract).to_pure_dict()
    parts = {key: part(prefix + TOP[key][0], TOP[key][1], state[key].shape, key) for key in TOP}
    for key in HEAD.keys() & state.keys():
        name, transposed = HEAD[key][0].format(layer), HEAD[key][1]
        is_head, has_head = key != "unembed", f"{layer}.weight" in tensors
        if key == "w_head" and verdicts is not None:
            rows = tensors.get(f"{prefix}embed_tokens.weight" if cfg.tied else "lm_head.weight")
            if rows is None or rows.shape != (cfg.vocab, cfg.dim):
                raise InputError(f"{folder}: tensor lm_head.weight: expected shape {(cfg.vocab, cfg.dim)}")
            parts[key] = made(np.stack([rows.read(i) for i in verdicts], 1))
        elif is_head and new_head and not has_head:
            parts[key] = made(new_parameter(key, state[key].shape, seed))
        elif key == "w_head" and not has_head:
            raise InputError(
                f"{folder}: has no step head ({name}); set model.new_head=true to start one at random"
            )
        elif key == "b_head" and name not in tensors:  # a classification head may have none
            parts[key] = made(np.zeros(state[key].shape, parts["embed"][0]))
        else:
            parts[key] = part(name, transposed, state[key].shape, key)
    last, of_layer = cfg.layers - 1, lambda key, i: prefix + LAYER[key][0].format(i)
    parts["blocks"] = {
        key: part([of_layer(key, i) for i in range(last)], LAYER[key][1], x.shape, key)
        for key, x in state["blocks"].items()
    }
    parts["last"] = {
        key: part(of_layer(key, last), LAYER[key][1], x.shape, key) for key, x in state["last"].items()
    }
    if cfg.head == "none":
        unused = {name for name in unused if not name.startswith(tuple(f"{head}." for head in FORMATS))}
    if unused:
        listed = ", ".join(sorted(unused)[:3])
        raise InputError(f"{folder}: {len(unused)} tensors have no place in a {cfg.family} PRM: {listed} ...")

    def place(x, part, sharding):
        stored, read = part
        kept = x.dtype if dtype == "thin" else np.dtype(dtype or stored)
        seen = {}  # devices that hold the same part share one reading

        def once(index):
            if str(index) not in seen:
                out = aligned(tuple(len(range(n)[i]) for n, i in zip(x.shape, index, strict=True)), kept)
                read(index, out)
                seen[str(index)] = out
            return seen[str(index)]

        return jax.block_until_ready(jax.make_array_from_callback(x.shape, sharding, once))

    nnx.update(abstract, jax.tree.map(place, state, parts, layout(state)))
    return abstract


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An empty array that begins at a multiple of 64 bytes: JAX on CPU takes it over without a copy."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + 64, np.uint8)
    at = -raw.ctypes.data % 64
    return raw[at : at + size].view(dtype).reshape(shape)


def new_parameter(key: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """A fresh step-head parameter."""
    if key.startswith("b_"):
        return np.zeros(shape, np.float32)
    noise = np.random.default_rng([seed, 2]).standard_normal(shape).astype(np.float32)
    return head_scale(key, shape[0]) * noise


def save(folder: Path, model: PRM, tokenizer, **notes):
    """Writes config.json, weights (safetensors, float32) and the tokenizer, as transformers' own classes read them.

    Takes the memory of one tensor beside the model. `notes` (format, label kind, objective) go into config.json under
    `prm_jax`, which transformers leaves alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state, head = nnx.state(model).to_pure_dict(), "score.2" if model.cfg.head == "mlp" else "score"
    parts = [(f"model.{name}", state[key], ..., transposed) for key, (name, transposed) in TOP.items()]
    last_layer = model.cfg.layers - 1
    for key, x in state["last"].items():
        name, transposed = LAYER[key]
        parts += [(f"model.{name.format(i)}", state["blocks"][key], i, transposed) for i in range(last_layer)]
        parts.append((f"model.{name.format(last_layer)}", x, ..., transposed))
    parts += [(name.format(head), state[key], ..., t) for key, (name, t) in HEAD.items() if key in state]
    write_tensors(folder, parts)
    (folder / "config.json").write_text(
        json.dumps(hf_config(model.cfg, tokenizer) | {"prm_jax": notes}, indent=2) + "\n"
    )
    tokenizer.save_pretrained(folder)


def load_tokenizer(folder: str | Path):
    """The tokenizer of a checkpoint folder; never runs code that came with it."""
    from transformers import AutoTokenizer

    folder = Path(folder)
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json")):
        if (folder / "tokenizer.model").exists():
            raise InputError(  # without its rule for leading blanks, so that even Math-Shepherd's mark is another token
                f"{folder}: has tokenizer.model but no tokenizer.json, and transformers 5 reads other ids from the former: "
                "save the tokenizer once with AutoTokenizer of transformers 4"
            )
        raise InputError(f"{folder}: has no tokenizer.json")  # transformers would make up an empty tokenizer
    path = folder / "tokenizer_config.json"
    try:
        if path.exists() and "auto_map" in json.loads(path.read_text()):
            raise InputError(f"{path}: auto_map: the tokenizer is Python code of its own, which is never run")
        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except InputError:
        raise
    except Exception as error:  # of many kinds, down to the KeyError of a field that it misses
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"{folder}: no tokenizer that transformers can read ({reason})") from error


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """conf/hf.yaml says what each key means."""

    checkpoint: str | None
    to: str
    which: str


def model_card(name: str, step: int, cfg: ModelConfig, config, summary: dict) -> str:
    """README.md of an exported run: what it scores and how, the data, the numbers, and the code that made them."""
    section = lambda node: "```yaml\n" + OmegaConf.to_yaml(node, resolve=True).strip() + "\n```"
    use = (
        "`AutoModelForTokenClassification.from_pretrained` of transformers loads it; read the logits at the marks."
        if cfg.head != "mlp"
        else "It has the layout of Qwen2.5-Math-PRM (`Qwen2ForProcessRewardModel`: score.0, ReLU, score.2)."
    )
    if config.objective == "lm":
        use = "A language model without a step head; `AutoModelForCausalLM.from_pretrained` loads it."
    meaning = {
        "correctness": "the step, and all before it, are right",
        "value": "the completer that made the labels would reach the right answer from here",
    }[config.data.label_kind]
    numbers = {k: v for k, v in summary.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    metrics = "\n".join(f"| {k} | {v:.6g} |" for k, v in numbers.items())
    versions = "\n".join(f"- {k}: {v}" for k, v in summary.get("versions", cli.versions()).items())
    base = (
        f"base_model: {config.init}\n"
        if config.init.count("/") == 1 and not Path(config.init).exists()
        else ""
    )
    return f"""---
library_name: transformers
pipeline_tag: {"text-generation" if config.objective == "lm" else "token-classification"}
tags: [process-reward-model, prm_jax]
{base}---
# {name}

A process reward model (objective {config.objective}, step head {cfg.head}), trained with prm_jax. {use}

A label says: {meaning} ({config.data.label_kind} labels).

## Format of its input

{section(config.format)}

## Data

{section(config.data)}

## Metrics

Of the run, on its validation split where the name begins with eval; this is step {step}.
{"" if summary.get("finished") else "The run had not finished."}

| number | value |
|---|---|
{metrics}

## Made with

{versions}
"""


@cli.command("hf")
def main(cfg):
    """Export a run of train.py to the Hugging Face layout, which transformers loads."""
    from prm_jax.checkpoint import load_run  # which itself reads the layouts of this file

    given, cfg = cfg, cli.parse(cfg, ExportConfig)
    cli.claim(cli.output_dir(), given)
    run = Path(cfg.checkpoint) if cfg.checkpoint else cli.newest_run()
    model, tokenizer, config, step = load_run(run, cfg.which, "float32")
    notes = {
        "format": dict(config.format),
        "label_kind": config.data.label_kind,
        "objective": config.objective,
    }
    save(Path(cfg.to), model, tokenizer, **notes)
    path = run / "summary.json"
    summary = json.loads(path.read_text()) if path.exists() else {}
    card = model_card(Path(cfg.to).name, step, model.cfg, config, summary)
    (Path(cfg.to) / "README.md").write_text(card)
    size = sum(path.stat().st_size for path in Path(cfg.to).iterdir())
    print(f"exported    step {step} of {run} to {cfg.to}, {size / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
