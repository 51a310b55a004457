"""Hugging Face checkpoints in and out: safetensors files to a model and back, and the tokenizer beside them.

Dimension key: D model, V vocabulary, C head outputs. Hugging Face stores a projection as [out, in]; ours is [in, out].
"""

import functools
import json
import math
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from prm_jax import InputError
from prm_jax.checkpoints.folders import EMBEDDED, SHIPPED, base_of, locate, open_weights  # noqa: F401
from prm_jax.checkpoints.hf_config import GEMMAS, export_config
from prm_jax.checkpoints.hf_tensors import DTYPES, write_tensors
from prm_jax.checkpoints.sentencepiece_file import write_tokenizer
from prm_jax.data.formats import all_formats
from prm_jax.heads import HEADS
from prm_jax.launch.mesh import shardings
from prm_jax.launch.run_folder import write_json
from prm_jax.model import PRM, ModelConfig, cast_backbone, head_scale

# our parameter -> (tensor name without the `model.` prefix, stored transposed); {} is the layer, and then the expert
TOP = {"embed": ("embed_tokens.weight", False), "norm_out": ("norm.weight", False)}
NORMS = {"norm_attn": "input_layernorm", "norm_ffn": "post_attention_layernorm"}
NORMS |= {f"norm_{x}": f"self_attn.{x}_norm" for x in "qk"}
LINEAR = {x: f"self_attn.{x}_proj" for x in "qkvo"} | {x: f"mlp.{x}_proj" for x in ("down", "gate", "up")}
LAYER = {key: (f"layers.{{}}.{name}.weight", False) for key, name in NORMS.items()}
LAYER |= {f"w_{key}": (f"layers.{{}}.{name}.weight", True) for key, name in LINEAR.items()}
LAYER |= {f"b_{key}": (f"layers.{{}}.{name}.bias", False) for key, name in LINEAR.items()}
# Where what a layer gives is normed too, the norm before the second has another name.
AROUND = {"norm_attn_out": "post_attention", "norm_ffn": "pre_feedforward", "norm_ffn_out": "post_feedforward"}
AROUND = LAYER | {key: (f"layers.{{}}.{name}_layernorm.weight", False) for key, name in AROUND.items()}
# Of many experts, the router first: its shape says how many there are.
EXPERTS = {f"w_{x}": (f"layers.{{}}.mlp.experts.{{}}.{x}_proj.weight", True) for x in ("down", "gate", "up")}
EXPERTS = {"w_router": ("layers.{}.mlp.gate.weight", True)} | LAYER | EXPERTS
# Outside the backbone, never prefixed; {} is the name of the step head's last layer.
HEAD = {
    "unembed": ("lm_head.weight", True),
    "w_mlp_head": ("score.0.weight", True),
    "b_mlp_head": ("score.0.bias", False),
    "w_head": ("{}.weight", True),
    "b_head": ("{}.bias", False),
}


def layer_names(cfg: ModelConfig) -> dict:
    return EXPERTS if cfg.experts else AROUND if cfg.post_norms else LAYER


def places(name: str, cfg: ModelConfig) -> list[tuple]:
    """The layers, or (layer, expert)s, that tensors of such a name are of; [()] for one of none."""
    return list(np.ndindex((cfg.layers, cfg.experts)[: name.count("{}")]))


def is_less_one(key: str, cfg: ModelConfig) -> bool:
    """Whether the family's files hold this parameter less 1, as Gemma's do the gains of norms."""
    return cfg.family in GEMMAS and key.startswith("norm")


def find_head(tensors, where: str, named: str | None = None) -> tuple[str, str]:
    """(step head, name of its last layer) of a checkpoint by its tensors; ("none", "lm_head") without one.

    Of several heads with as many outputs the first of model.HEADS, or the one that our exports `named`. Raises
    InputError on several heads, on a part of one, and on a head that no known system uses.
    """
    layers = dict.fromkeys(fmt.layer for fmt in all_formats() if fmt.layer != "lm_head")
    found = [layer for layer in layers if f"{layer}.weight" in tensors]
    if len(found) > 1:
        raise InputError(f"{where}: has several step heads, {' and '.join(found)}; expected one")
    if not found:
        backbone = ("model.", "lm_head.", *(top.split(".")[0] + "." for top, _ in TOP.values()), "layers.")
        if others := sorted(name for name in tensors if not name.startswith(backbone)):
            known = f"({', '.join(others[:3])}); known: {', '.join(f'{layer}.weight' for layer in layers)}"
            raise InputError(f"{where}: its step head is incomplete or unknown {known}")
        return "none", "lm_head"
    (layer,) = found
    if layer.endswith("nn_out"):
        return "ensemble", layer
    C, heads = tensors[f"{layer}.weight"].get_shape()[0], {}
    for name, head in HEADS.items():
        if head.hidden == (layer == "score.2") and named in (None, name):
            heads.setdefault(head.outputs, name)
    if C not in heads:
        known = " or ".join(f"{C} ({name})" for C, name in heads.items()) or f"the head {named!r}"
        raise InputError(f"{where}: {layer}.weight: has {C} outputs, expected {known}; an outcome model?")
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

    Arrays are of `dtype`; None: as they are stored; "compute": as `model.cast_backbone` stores them. A step head that the
    checkpoint lacks is started at random only where `new_head` says so. With `verdicts`, the ids of a bad and of a good
    token, the binary head is these two rows of the vocabulary projection: their softmax is the score of a PRM that
    answers in tokens (Math-Shepherd, RLHFlow). Missing, wrongly shaped and unknown tensors raise; the language-model
    head may go unused, and all heads where cfg has none. Needs little more memory than the model.
    """
    tensors = open_weights(folder)
    prefix = "model." if any(name.startswith("model.") for name in tensors) else ""
    if (last := prefix + LAYER["norm_attn"][0].format(cfg.layers - 1)) not in tensors:  # before a name is made for each
        raise InputError(f"{folder}: tensor {last} is missing: config.json says {cfg.layers} layers")
    unused = {name for name in tensors if name != "lm_head.weight" and not name.endswith("rotary_emb.inv_freq")}
    layer = "lm_head"
    if cfg.head == "none":
        heads = {fmt.layer.split(".")[0] for fmt in all_formats()}
        unused = {name for name in unused if name.split(".")[0] not in heads}
    elif verdicts is not None:
        assert cfg.final_logit_softcap is None, "capped logits of two tokens are no linear head: released.TwoTokenHead"
    else:
        layer = find_head(tensors, str(folder), cfg.head)[1]
        layer = HEADS[cfg.head].layer if layer == "lm_head" else layer  # of a head still to be started

    def part(key, pattern, transposed, shape):
        """(dtype, what reads the part at an index into an array) of the tensors of this pattern, stacked on the first axes."""
        first = pattern.count("{}")  # of its axes are layers and experts
        names = np.array([pattern.format(*place) for place in places(pattern, cfg)], object).reshape(shape[:first])
        expected, kinds = shape[first:], []
        for name in names.flat:
            if name not in tensors:
                why = f": config.json says {cfg.layers} layers" if first else ""
                raise InputError(f"{folder}: tensor {name} is missing{why} ({key})")
            found, kind = tuple(tensors[name].get_shape()), tensors[name].get_dtype()
            found = found[::-1] if transposed else found
            if found != expected:
                raise InputError(f"{folder}: tensor {name}: has shape {found}, expected {expected} ({key})")
            if kind not in DTYPES:
                raise InputError(f"{folder}: tensor {name}: has type {kind}, expected {', '.join(DTYPES)}")
            kinds.append(np.float32 if is_less_one(key, cfg) else DTYPES[kind])
            unused.discard(name)

        def read(index, out):
            chosen, own = np.asarray(names[index[:first]], object), index[first:]
            for y, name in zip(out.reshape(-1, *out.shape[first:]), chosen.flat, strict=True):
                x = tensors[name][own[::-1]].T if transposed else tensors[name][own]
                x = x.astype(np.float32) + 1 if is_less_one(key, cfg) else x
                if x.dtype == y.dtype == jnp.bfloat16:  # numpy transposes its own types much faster
                    x, y = x.view(np.uint16), y.view(np.uint16)
                y[...] = x

        return functools.reduce(jnp.promote_types, kinds), read

    def made(x):
        """The same of an array that is in no file."""
        return x.dtype, lambda index, out: np.copyto(out, x[index], casting="unsafe")

    abstract = jax.eval_shape(lambda: cast_backbone(PRM(cfg, rngs=nnx.Rngs(0))))
    state = nnx.state(abstract).to_pure_dict()
    parts = {key: part(key, prefix + name, transposed, state[key].shape) for key, (name, transposed) in TOP.items()}
    has_head = f"{layer}.weight" in tensors
    for key, (name, transposed) in HEAD.items():
        name = name.format(layer)
        if key not in state:
            continue
        if key == "w_head" and verdicts is not None:
            rows = prefix + TOP["embed"][0] if cfg.tied else "lm_head.weight"
            part(key, rows, False, (cfg.vocab, cfg.dim))
            parts[key] = made(cfg.logit_scale * np.concatenate([tensors[rows][i : i + 1] for i in verdicts]).T)
        elif key != "unembed" and new_head and not has_head:
            parts[key] = made(new_parameter(key, state[key].shape, seed))
        elif key == "w_head" and not has_head:
            raise InputError(f"{folder}: has no step head ({name}); set model.new_head=true to start one at random")
        elif key == "b_head" and name not in tensors:  # a classification head may have none
            parts[key] = made(np.zeros(state[key].shape, parts["embed"][0]))
        else:
            parts[key] = part(key, name, transposed, state[key].shape)
    blocks, parts["blocks"] = state["blocks"], {}
    if unnamed := sorted(blocks.keys() - layer_names(cfg).keys()):
        raise InputError(f"{folder}: has no tensors for {unnamed[0]} of a block, which only init=random can start")
    for key, (name, transposed) in layer_names(cfg).items():
        if key in blocks:
            parts["blocks"][key] = part(key, prefix + name, transposed, blocks[key].shape)
    if unused:
        listed = ", ".join(sorted(unused)[:3])
        raise InputError(f"{folder}: {len(unused)} tensors have no place in a {cfg.family} PRM: {listed} ...")

    def place(x, part, sharding):
        stored, read = part
        kept = x.dtype if dtype == "compute" else np.dtype(dtype or stored)
        seen = {}  # devices that hold the same part share one reading

        def once(index):
            if str(index) not in seen:
                shape = tuple(len(range(n)[i]) for n, i in zip(x.shape, index, strict=True))
                seen[str(index)] = out = aligned(shape, kept)
                read(index, out)
            return seen[str(index)]

        return jax.block_until_ready(jax.make_array_from_callback(x.shape, sharding, once))

    # The stack of blocks, read a layer at a time, comes last: what a whole tensor takes on its way is small beside it.
    order, where = sorted(state, key="blocks".__eq__), nnx.state(shardings(abstract)).to_pure_dict()
    nnx.update(abstract, {key: jax.tree.map(place, state[key], parts[key], where[key]) for key in order})
    return abstract


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An empty array that begins at a multiple of 64 bytes: JAX on CPU takes it over without a copy."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + 64, np.uint8)
    at = -raw.ctypes.data % 64
    return raw[at : at + size].view(dtype).reshape(shape)


def new_parameter(key: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """A fresh step-head parameter."""
    scale = 0 if key.startswith("b_") else head_scale(key, shape[0])
    return scale * np.random.default_rng([seed, 2]).standard_normal(shape).astype(np.float32)


def save(folder: Path, model: PRM, tokenizer, **notes):
    """Writes config.json, weights (safetensors, float32) and the tokenizer, as transformers' own classes read them.

    InputError where a config.json cannot say what the model is. `notes` (format, label kind, objective) and the head's
    name go into config.json under `prm_jax`, which transformers leaves alone.
    """
    config = export_config(model.cfg, tokenizer) | {"prm_jax": notes | {"head": model.cfg.head}}
    save_weights(folder, model)
    write_json(folder / "config.json", config)
    tokenizer.save_pretrained(folder)


def save_weights(folder: Path, model: PRM):
    """Writes the tensors of `load`."""
    folder.mkdir(parents=True, exist_ok=True)
    state = nnx.state(model).to_pure_dict()
    stored = lambda key, x: x - 1 if is_less_one(key, model.cfg) else x
    names, parts = TOP | layer_names(model.cfg), []
    for key, x in ({key: state[key] for key in TOP} | state["blocks"]).items():
        name, t = names[key]
        parts += [(f"model.{name.format(*i)}", stored(key, x), i, t) for i in places(name, model.cfg)]
    layer = HEADS[model.cfg.head].layer if model.cfg.head != "none" else ""
    parts += [(name.format(layer), state[key], (), t) for key, (name, t) in HEAD.items() if key in state]
    write_tensors(folder, parts)


def load_tokenizer(folder: str | Path):
    """The tokenizer of a checkpoint folder; never runs code that came with it."""
    from transformers import AutoTokenizer

    folder = Path(folder)
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json")):
        if base := base_of(folder):
            return load_tokenizer(base)
        if not (folder / "tokenizer.model").is_file():  # transformers would make up an empty tokenizer
            raise InputError(f"{folder}: has no tokenizer.json")
        with tempfile.TemporaryDirectory() as made:
            write_tokenizer(folder, Path(made))
            return load_tokenizer(made)
    path = folder / "tokenizer_config.json"
    try:
        if not path.exists() or "auto_map" not in json.loads(path.read_text()):
            return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except Exception as error:  # of many kinds, down to the KeyError of a field that it misses
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"{folder}: no tokenizer that transformers can read ({reason})") from error
    raise InputError(f"{path}: auto_map: the tokenizer is Python code of its own, which is never run")
