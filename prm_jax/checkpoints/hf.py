"""Reads the weights of Hugging Face checkpoints and writes such folders.

Dimension key: D model, V vocabulary, C head outputs. Hugging Face stores a projection as [out, in]; ours
is [in, out].
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from prm_jax import InputError
from prm_jax.checkpoints.folders import DTYPES, open_weights, write_tensors
from prm_jax.checkpoints.hf_config import GEMMAS, export_config
from prm_jax.formats import all_formats
from prm_jax.heads import HEADS
from prm_jax.launch.config import expect
from prm_jax.launch.files import write_json
from prm_jax.launch.mesh import shardings
from prm_jax.model import PRM, ModelConfig, cast_backbone, head_scale

# Our parameter -> its tensor without `model.`; {} is the layer, then the expert.
TOP = {"embed": "embed_tokens.weight", "norm_out": "norm.weight"}
LAYER = {
    "norm_attn": "layers.{}.input_layernorm.weight",
    "norm_ffn": "layers.{}.post_attention_layernorm.weight",
    "norm_q": "layers.{}.self_attn.q_norm.weight",
    "norm_k": "layers.{}.self_attn.k_norm.weight",
}
for name in ("q", "k", "v", "o"):
    LAYER[f"w_{name}"] = f"layers.{{}}.self_attn.{name}_proj.weight"
    LAYER[f"b_{name}"] = f"layers.{{}}.self_attn.{name}_proj.bias"
for name in ("gate", "up", "down"):
    LAYER[f"w_{name}"] = f"layers.{{}}.mlp.{name}_proj.weight"
    LAYER[f"b_{name}"] = f"layers.{{}}.mlp.{name}_proj.bias"
# With norms after attention and FFN, too, the norm before the FFN has another name.
POST_NORMS = LAYER | {
    "norm_attn_out": "layers.{}.post_attention_layernorm.weight",
    "norm_ffn": "layers.{}.pre_feedforward_layernorm.weight",
    "norm_ffn_out": "layers.{}.post_feedforward_layernorm.weight",
}
EXPERTS = LAYER | {"w_router": "layers.{}.mlp.gate.weight"}
EXPERTS |= {
    f"w_{name}": f"layers.{{}}.mlp.experts.{{}}.{name}_proj.weight" for name in ("gate", "up", "down")
}
# Parameters outside the backbone, never prefixed; {} is the name of the step head's last layer.
HEAD = {
    "unembed": "lm_head.weight",
    "w_head": "{}.weight",
    "b_head": "{}.bias",
    "w_mlp_head": "score.0.weight",
    "b_mlp_head": "score.0.bias",
}


def tensor_names(key: str, cfg: ModelConfig, layer: str) -> np.ndarray:
    """The tensors of a parameter, without `model.`: one, one a layer, or one a layer and expert. `layer`: the
    step head's last one."""
    if key in HEAD:
        return np.array(HEAD[key].format(layer), object)
    of_layers = POST_NORMS if cfg.post_norms else LAYER
    patterns = TOP | (EXPERTS if cfg.experts else of_layers)
    expect(key in patterns, f"model.{key}", "a parameter", f"one with a tensor name: {', '.join(patterns)}")
    pattern = patterns[key]
    names = np.empty((cfg.layers, cfg.experts)[: pattern.count("{}")], object)
    for place in np.ndindex(names.shape):
        names[place] = pattern.format(*place)
    return names


def is_transposed(key: str) -> bool:
    """Whether files store this parameter as [out, in]."""
    return key.startswith("w_") or key == "unembed"


def is_less_one(key: str, cfg: ModelConfig) -> bool:
    """Whether the family's files store this parameter minus 1, as Gemma's do the gains of norms."""
    return cfg.family in GEMMAS and key.startswith("norm")


def find_head(tensors, where: str, named: str | None = None) -> tuple[str, str]:
    """(step head, name of its last layer) of a checkpoint by its tensors; ("none", "lm_head") without one. Of
    several heads with this number of outputs it is the one that our export `named`, else the first of
    HEADS."""
    layers = dict.fromkeys(fmt.layer for fmt in all_formats() if fmt.layer != "lm_head")
    present = [layer for layer in layers if f"{layer}.weight" in tensors]
    expect(len(present) < 2, f"{where}: step heads", present, "one")
    if not present:
        backbone = ("model.", "lm_head.", "embed_tokens.", "norm.", "layers.")
        others = sorted(name for name in tensors if not name.startswith(backbone))
        expect(not others, f"{where}: its step head", others[:3], f"the tensors of {', '.join(layers)}")
        return "none", "lm_head"
    (layer,) = present
    C = tensors[f"{layer}.weight"].get_shape()[0]
    for name, head in HEADS.items():
        is_like = head.hidden == (layer == "score.2") and head.outputs == C
        if is_like and named in (None, name):
            return name, layer
    raise InputError(f"{where}: {layer}.weight: has {C} outputs, which no step head of ours or {named} has")


def read_part(tensors: dict, names: np.ndarray, shape, dtype, transposed: bool, less_one: bool, index):
    """The part at `index`, slices, of a parameter of this shape, as `dtype`, read a tensor at a time.
    `names`: of its tensors: one, or one a layer, or one a layer and expert."""
    n = names.ndim
    chosen = np.asarray(names[index[:n]], object)
    inner = index[n:]
    out = np.empty([len(range(size)[i]) for size, i in zip(shape, index, strict=True)], dtype)
    for place in np.ndindex(chosen.shape):
        x, y = tensors[chosen[place]], out[place]
        x = x[inner[::-1]].T if transposed else x[inner]
        if less_one:
            x = x.astype(np.float32) + 1
        if x.dtype == y.dtype == jnp.bfloat16:  # numpy transposes its own types much faster
            x, y = x.view(np.uint16), y.view(np.uint16)
        y[...] = x
    return out


def load(
    folder: Path,
    cfg: ModelConfig,
    new_head: bool = False,
    seed: int = 0,
    stored: Literal["float32", "compute", "file"] = "float32",
) -> PRM:
    """A model of shape `cfg` with the weights of a checkpoint folder; each device reads only its own part.

    stored: the type of arrays: float32, as in the file, or compute, as `model.cast_backbone` stores them.
    new_head, seed: a step head that the folder lacks starts at random."""
    tensors = {name.removeprefix("model."): x for name, x in open_weights(folder).items()}
    if cfg.tied and cfg.lm_head and "lm_head.weight" in tensors:  # an adapter's own, or a copy
        lm_head, embed = (tensors[name][...] for name in ("lm_head.weight", TOP["embed"]))
        cfg = dataclasses.replace(cfg, tied=np.array_equal(lm_head, embed))  # transformers ties equal ones
    layer = "lm_head"
    if cfg.head != "none":
        layer = find_head(tensors, str(folder), cfg.head)[1]
        if layer == "lm_head":  # a head still to be made
            layer = HEADS[cfg.head].layer
    model = jax.eval_shape(lambda: cast_backbone(PRM(cfg, rngs=nnx.Rngs(0))))
    state, layout = nnx.state(model).to_pure_dict(), nnx.state(shardings(model)).to_pure_dict()
    # The blocks, which are read a layer at a time, come last: a whole tensor's buffers are small beside them.
    blocks = state.pop("blocks")
    where = layout | layout["blocks"]
    made = make_head(tensors, state, layer, cfg, new_head, seed, folder)
    used = set()

    def reader(key: str, x) -> Callable:
        names = tensor_names(key, cfg, layer)
        transposed = is_transposed(key)
        less_one = is_less_one(key, cfg)
        inner = x.shape[names.ndim :]
        in_file = inner[::-1] if transposed else inner
        dtypes = [check(tensors, name, in_file, folder) for name in names.flat]
        used.update(names.flat)
        in_files = np.float32 if less_one else functools.reduce(jnp.promote_types, dtypes)
        dtype = {"float32": np.float32, "compute": x.dtype, "file": in_files}[stored]
        return functools.partial(read_part, tensors, names, x.shape, np.dtype(dtype), transposed, less_one)

    shaped = state | blocks
    readers = {key: made[key].__getitem__ if key in made else reader(key, x) for key, x in shaped.items()}
    check_unused(tensors.keys() - used, cfg, folder)
    arrays = {}
    for key, read in readers.items():
        array = jax.make_array_from_callback(shaped[key].shape, where[key], read)
        arrays[key] = jax.block_until_ready(array)
    nnx.update(model, {key: arrays[key] for key in state} | {"blocks": {key: arrays[key] for key in blocks}})
    return model


def check(tensors, name: str, shape: tuple[int, ...], folder: Path) -> np.dtype:
    """The type of a tensor; InputError where it is missing, or of another shape than config.json says."""
    if name not in tensors:
        raise InputError(f"{folder}: tensor {name}: missing, expected by its config.json")
    stored = tuple(tensors[name].get_shape())
    dtype = tensors[name].get_dtype()
    expect(stored == shape, f"{folder}: tensor {name}: shape", stored, f"{shape}, by its config.json")
    expect(dtype in DTYPES, f"{folder}: tensor {name}: type", dtype, ", ".join(DTYPES))
    return DTYPES[dtype]


def make_head(tensors, state, layer, cfg: ModelConfig, new_head: bool, seed: int, folder: Path) -> dict:
    """{parameter: its array} of the step head's that no file holds: a bias of zeros, or random weights."""
    made = {}
    if "b_head" in state and f"{layer}.bias" not in tensors:
        made["b_head"] = np.zeros(state["b_head"].shape, np.float32)
    if cfg.head == "none" or f"{layer}.weight" in tensors:
        return made
    hint = "set model.new_head=true to start one at random"
    if not new_head:
        raise InputError(f"{folder}: has no step head ({layer}.weight); {hint}")
    rng = np.random.default_rng([seed, 2])
    for key in ("w_head", "w_mlp_head", "b_mlp_head"):
        if key in state:
            shape = state[key].shape
            scale = 0 if key == "b_mlp_head" else head_scale(key, shape[0])
            made[key] = scale * rng.standard_normal(shape).astype(np.float32)
    return made


def check_unused(unused: set[str], cfg: ModelConfig, folder: Path):
    """InputError where a tensor has no place in the model, but for the LM head, or any head of an LM."""
    ignored = ["lm_head.weight"]
    if cfg.head == "none":
        ignored += [fmt.layer.split(".")[0] for fmt in all_formats()]
    lost = [name for name in sorted(unused) if not name.startswith(tuple(ignored))]
    lost = [name for name in lost if not name.endswith("rotary_emb.inv_freq")]
    expect(not lost, f"{folder}: tensors", lost[:3], f"those of a {cfg.family} PRM alone")


def save(folder: Path, model: PRM, tokenizer, **notes):
    """Writes the tokenizer, the weights (safetensors, float32) and config.json as transformers does, with
    `notes` (format, label kind, objective, policy tokens) and the head's name under `prm_jax`."""
    cfg = model.cfg
    state = nnx.state(model).to_pure_dict()
    config = export_config(cfg, tokenizer) | {"prm_jax": notes | {"head": cfg.head}}
    layer = HEADS[cfg.head].layer if cfg.head != "none" else ""
    tensors = {}
    blocks = state.pop("blocks")
    for key, x in (state | blocks).items():
        names = tensor_names(key, cfg, layer)
        prefix = "" if key in HEAD else "model."
        x = x - 1 if is_less_one(key, cfg) else x
        for place in np.ndindex(names.shape):
            tensors[prefix + names[place]] = x, place, is_transposed(key)
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder, tensors)
    tokenizer.save_pretrained(folder)
    write_json(folder / "config.json", config)
