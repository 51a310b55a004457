"""Reads the weights of Hugging Face checkpoints and writes such folders.

Dimension key: D model, V vocabulary, C head outputs. Hugging Face stores a projection as [out, in]; ours
is [in, out].
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

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


def layer_names(cfg: ModelConfig) -> dict[str, str]:
    if cfg.experts:
        return EXPERTS
    return POST_NORMS if cfg.post_norms else LAYER


def places(name: str, cfg: ModelConfig) -> list[tuple]:
    """The (layer,) or (layer, expert) indices that fill the {} of a tensor's name; [()] without any."""
    return list(np.ndindex((cfg.layers, cfg.experts)[: name.count("{}")]))


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


class Source(NamedTuple):
    """Where a parameter comes from: its dtype there, and read(index, out), which fills `out`."""

    dtype: np.dtype
    read: Callable[[tuple, np.ndarray], None]


def from_array(x: np.ndarray) -> Source:
    return Source(x.dtype, lambda index, out: np.copyto(out, x[index], casting="unsafe"))


class Weights:
    """A folder's tensors as sources of a model's parameters; `used`: the names of those that are read."""

    def __init__(self, folder: Path, cfg: ModelConfig):
        self.folder, self.cfg = folder, cfg
        self.tensors = open_weights(folder)
        self.used: set[str] = set()
        self.prefix = "model." if any(name.startswith("model.") for name in self.tensors) else ""

    def source(self, key: str, pattern: str, shape: tuple[int, ...]) -> Source:
        """The tensors of a pattern, stacked on the first axes."""
        n_stacked, transposed, less_one = pattern.count("{}"), is_transposed(key), is_less_one(key, self.cfg)
        inner = shape[n_stacked:]
        names, dtypes = np.empty(shape[:n_stacked], object), []
        for place in places(pattern, self.cfg):
            names[place] = pattern.format(*place)
            dtype = self.check(names[place], key, inner[::-1] if transposed else inner)
            dtypes.append(np.float32 if less_one else dtype)

        def read(index, out):
            chosen, inner = np.asarray(names[index[:n_stacked]], object), index[n_stacked:]
            for y, name in zip(out.reshape(-1, *out.shape[n_stacked:]), chosen.flat, strict=True):
                x = self.tensors[name][inner[::-1]].T if transposed else self.tensors[name][inner]
                x = x.astype(np.float32) + 1 if less_one else x
                if x.dtype == y.dtype == jnp.bfloat16:  # numpy transposes its own types much faster
                    x, y = x.view(np.uint16), y.view(np.uint16)
                y[...] = x

        return Source(functools.reduce(jnp.promote_types, dtypes), read)

    def check(self, name: str, key: str, shape: tuple[int, ...]) -> np.dtype:
        """The type of the tensor of a parameter; InputError where it is missing, or of another shape."""
        where = f"{self.folder}: tensor {name}"
        if name not in self.tensors:
            raise InputError(f"{where}: missing, it is {key} of this config.json")
        stored, dtype = tuple(self.tensors[name].get_shape()), self.tensors[name].get_dtype()
        expect(stored == shape, f"{where}: shape", stored, f"{shape} ({key})")
        expect(dtype in DTYPES, f"{where}: type", dtype, ", ".join(DTYPES))
        self.used.add(name)
        return DTYPES[dtype]

    def verdict_rows(self, verdicts: tuple[int, int]) -> Source:
        """w_head from two rows of the vocabulary projection."""
        name = self.prefix + TOP["embed"] if self.cfg.tied else HEAD["unembed"]
        self.check(name, "w_head", (self.cfg.vocab, self.cfg.dim))
        row_CD = np.concatenate([self.tensors[name][i : i + 1] for i in verdicts])
        return from_array(self.cfg.logit_scale * row_CD.T)

    def head_source(self, key: str, shape: tuple, layer: str, new_head: bool, seed: int) -> Source:
        """The source of a parameter outside the backbone."""
        name = HEAD[key].format(layer)
        if key == "b_head" and name not in self.tensors:  # of a new head, or of one without a bias
            return from_array(np.zeros(shape, np.float32))
        if key == "unembed" or f"{layer}.weight" in self.tensors:
            return self.source(key, name, shape)
        if not new_head:
            hint = "set model.new_head=true to start one at random"
            raise InputError(f"{self.folder}: has no step head ({name}); {hint}")
        scale = 0 if key == "b_mlp_head" else head_scale(key, shape[0])
        normal = np.random.default_rng([seed, 2]).standard_normal(shape)
        return from_array(scale * normal.astype(np.float32))

    def check_all_used(self):
        """InputError where a tensor has no place in the model, but for the LM head, or any head of an LM."""
        heads = {fmt.layer.split(".")[0] for fmt in all_formats()} if self.cfg.head == "none" else set()
        unused = sorted(self.tensors.keys() - self.used - {"lm_head.weight"})
        unused = [name for name in unused if name.split(".")[0] not in heads]
        unused = [name for name in unused if not name.endswith("rotary_emb.inv_freq")]
        expect(not unused, f"{self.folder}: tensors", unused[:3], f"a place in a {self.cfg.family} PRM")


def load(
    folder: Path,
    cfg: ModelConfig,
    new_head: bool = False,
    seed: int = 0,
    stored: Literal["float32", "compute", "file"] = "float32",
    verdicts: tuple[int, int] | None = None,
) -> PRM:
    """A model of shape `cfg` with the weights of a checkpoint folder; each device reads only its own part.

    stored: the type of arrays: float32, as in the file, or compute, as `model.cast_backbone` stores them.
    new_head, seed: a step head that the folder lacks starts at random.
    verdicts: ids of a bad and of a good token, whose rows of the vocabulary projection are then the binary
        head, as in a PRM that answers in tokens (Math-Shepherd, RLHFlow).
    """
    weights, layer = Weights(folder, cfg), "lm_head"
    if verdicts is None and cfg.head != "none":
        layer = find_head(weights.tensors, str(folder), cfg.head)[1]
        if layer == "lm_head":  # a head still to be made
            layer = HEADS[cfg.head].layer
    model = jax.eval_shape(lambda: cast_backbone(PRM(cfg, rngs=nnx.Rngs(0))))
    state, names = nnx.state(model).to_pure_dict(), TOP | layer_names(cfg)
    check_names(state, cfg)

    def source(key: str, x) -> Source:
        if key in names:
            return weights.source(key, weights.prefix + names[key], x.shape)
        if key == "w_head" and verdicts is not None:
            return weights.verdict_rows(verdicts)
        return weights.head_source(key, x.shape, layer, new_head, seed)

    # The blocks, which are read a layer at a time, come last: a whole tensor's buffers are small beside them.
    blocks = state.pop("blocks")
    sources = {key: source(key, x) for key, x in state.items()}
    sources["blocks"] = {key: source(key, x) for key, x in blocks.items()}
    state["blocks"] = blocks
    weights.check_all_used()
    layout = nnx.state(shardings(model)).to_pure_dict()
    read = functools.partial(read_array, stored=stored)
    nnx.update(model, {key: jax.tree.map(read, x, sources[key], layout[key]) for key, x in state.items()})
    return model


def read_array(x: jax.ShapeDtypeStruct, source: Source, sharding, stored: str) -> jax.Array:
    """The array of a source; devices that hold the same part share one reading."""
    dtype = {"float32": np.dtype(np.float32), "compute": x.dtype, "file": np.dtype(source.dtype)}[stored]
    parts = {}

    def read_part(index):
        if str(index) not in parts:
            shape = tuple(len(range(n)[i]) for n, i in zip(x.shape, index, strict=True))
            parts[str(index)] = np.empty(shape, dtype)
            source.read(index, parts[str(index)])
        return parts[str(index)]

    return jax.block_until_ready(jax.make_array_from_callback(x.shape, sharding, read_part))


def check_names(state: dict, cfg: ModelConfig):
    """InputError where a parameter of the model has no tensor name, so that no file can hold it."""
    unknown = sorted((state | state["blocks"]).keys() - {*TOP, *HEAD, *layer_names(cfg), "blocks"})
    expect(not unknown, "model", unknown, "parameters that have a tensor name (checkpoints/hf.py)")


def save(folder: Path, model: PRM, tokenizer, **notes):
    """Writes the tokenizer, the weights (safetensors, float32) and config.json as transformers does, with
    `notes` (format, label kind, objective, policy tokens) and the head's name under `prm_jax`."""
    cfg, state = model.cfg, nnx.state(model).to_pure_dict()
    config = export_config(cfg, tokenizer) | {"prm_jax": notes | {"head": cfg.head}}
    check_names(state, cfg)
    names = TOP | layer_names(cfg)
    layer = HEADS[cfg.head].layer if cfg.head != "none" else ""
    tensors = {}
    blocks = state.pop("blocks")
    for key, x in (state | blocks).items():
        if key in HEAD:
            tensors[HEAD[key].format(layer)] = x, (), is_transposed(key)
            continue
        x = x - 1 if is_less_one(key, cfg) else x
        for place in places(names[key], cfg):
            tensors[f"model.{names[key].format(*place)}"] = x, place, is_transposed(key)
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder, tensors)
    tokenizer.save_pretrained(folder)
    write_json(folder / "config.json", config)
