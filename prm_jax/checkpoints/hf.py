"""Reads and writes Hugging Face checkpoints: a model's safetensors files, its config.json and its tokenizer.

Dimension key: D model, V vocabulary, C head outputs. Hugging Face stores a projection as [out, in]; ours is [in, out].
"""

import functools
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from prm_jax import InputError
from prm_jax.checkpoints.folders import (  # noqa: F401
    DTYPES,
    EMBEDDED,
    SHIPPED,
    base_of,
    locate,
    open_weights,
    write_tensors,
)
from prm_jax.checkpoints.hf_config import GEMMAS, export_config
from prm_jax.checkpoints.sentencepiece_file import write_tokenizer
from prm_jax.formats import all_formats
from prm_jax.heads import HEADS
from prm_jax.launch.files import write_json
from prm_jax.launch.mesh import shardings
from prm_jax.model import PRM, ModelConfig, cast_backbone, head_scale

UNFINISHED = "unfinished_export"  # a folder in one that is being written
# Our parameter -> (tensor name without `model.`, stored transposed); {} stands for the layer, then the expert.
TOP = {"embed": ("embed_tokens.weight", False), "norm_out": ("norm.weight", False)}
NORMS = {"norm_attn": "input_layernorm", "norm_ffn": "post_attention_layernorm"}
NORMS |= {f"norm_{x}": f"self_attn.{x}_norm" for x in "qk"}
LINEAR = {x: f"self_attn.{x}_proj" for x in "qkvo"} | {x: f"mlp.{x}_proj" for x in ("down", "gate", "up")}
LAYER = {key: (f"layers.{{}}.{name}.weight", False) for key, name in NORMS.items()}
LAYER |= {f"w_{key}": (f"layers.{{}}.{name}.weight", True) for key, name in LINEAR.items()}
LAYER |= {f"b_{key}": (f"layers.{{}}.{name}.bias", False) for key, name in LINEAR.items()}
# With norms after attention and FFN, too, the norm before the FFN has another name.
AROUND = {
    "norm_attn_out": "post_attention",
    "norm_ffn": "pre_feedforward",
    "norm_ffn_out": "post_feedforward",
}
AROUND = LAYER | {key: (f"layers.{{}}.{name}_layernorm.weight", False) for key, name in AROUND.items()}
# The router comes first: its shape says how many experts there are.
EXPERTS = {f"w_{x}": (f"layers.{{}}.mlp.experts.{{}}.{x}_proj.weight", True) for x in ("down", "gate", "up")}
EXPERTS = {"w_router": ("layers.{}.mlp.gate.weight", True)} | LAYER | EXPERTS
# Parameters outside the backbone, never prefixed; {} is the name of the step head's last layer.
HEAD = {"unembed": ("lm_head.weight", True), "w_head": ("{}.weight", True), "b_head": ("{}.bias", False)}
HEAD |= {"w_mlp_head": ("score.0.weight", True), "b_mlp_head": ("score.0.bias", False)}


def layer_names(cfg: ModelConfig) -> dict:
    return EXPERTS if cfg.experts else AROUND if cfg.post_norms else LAYER


def places(name: str, cfg: ModelConfig) -> list[tuple]:
    """The (layer,) or (layer, expert) indices that fill the {} of a tensor's name; [()] for a name without."""
    return list(np.ndindex((cfg.layers, cfg.experts)[: name.count("{}")]))


def is_less_one(key: str, cfg: ModelConfig) -> bool:
    """Whether the family's files store this parameter minus 1, as Gemma's do the gains of norms."""
    return cfg.family in GEMMAS and key.startswith("norm")


def find_head(tensors, where: str, named: str | None = None) -> tuple[str, str]:
    """(step head, name of its last layer) of a checkpoint by its tensors; ("none", "lm_head") without one. Of
    several heads with this number of outputs it is the one that our export `named`, else the first of HEADS. Raises
    InputError on several heads, on a part of one, and on a head that no known system uses."""
    layers = dict.fromkeys(fmt.layer for fmt in all_formats() if fmt.layer != "lm_head")
    present = [layer for layer in layers if f"{layer}.weight" in tensors]
    if len(present) > 1:
        raise InputError(f"{where}: has several step heads, {' and '.join(present)}; expected one")
    if not present:
        backbone = ("model.", "lm_head.", *(top.split(".")[0] + "." for top, _ in TOP.values()), "layers.")
        if others := sorted(name for name in tensors if not name.startswith(backbone)):
            known = f"({', '.join(others[:3])}); known: {', '.join(f'{layer}.weight' for layer in layers)}"
            raise InputError(f"{where}: its step head is incomplete or unknown {known}")
        return "none", "lm_head"
    (layer,) = present
    if layer.endswith("nn_out"):
        return "ensemble", layer
    C, heads = tensors[f"{layer}.weight"].get_shape()[0], {}
    for name, head in HEADS.items():
        if head.hidden == (layer == "score.2") and named in (None, name):
            heads.setdefault(head.outputs, name)
    if C not in heads:
        known = " or ".join(f"{C} ({name})" for C, name in heads.items()) or f"the head {named!r}"
        hint = f"its own is model.head={find_head(tensors, where)[0]}" if named else "an outcome model?"
        raise InputError(f"{where}: {layer}.weight: has {C} outputs, expected {known}; {hint}")
    return heads[C], layer


class Source(
    NamedTuple
):  # where a parameter comes from: its dtype there, and read(index, out), which fills `out`
    dtype: np.dtype
    read: Callable[[tuple, np.ndarray], None]


def from_array(x: np.ndarray) -> Source:
    return Source(x.dtype, lambda index, out: np.copyto(out, x[index], casting="unsafe"))


class Weights:
    """A checkpoint folder's tensors as sources of a model's parameters; `used` collects the names of those read."""

    def __init__(self, folder: Path, cfg: ModelConfig):
        self.folder, self.cfg, self.tensors, self.used = folder, cfg, open_weights(folder), set()
        self.prefix = "model." if any(name.startswith("model.") for name in self.tensors) else ""
        last = self.prefix + LAYER["norm_attn"][0].format(cfg.layers - 1)
        if last not in self.tensors:  # checked before a name is made for each of the claimed layers
            raise InputError(f"{folder}: tensor {last} is missing: config.json says {cfg.layers} layers")

    def source(self, key: str, pattern: str, transposed: bool, shape: tuple[int, ...]) -> Source:
        """The tensors of a pattern, stacked on the first axes; InputError where one is missing or does not fit."""
        n_stacked = pattern.count("{}")
        names = [pattern.format(*place) for place in places(pattern, self.cfg)]
        names = np.array(names, object).reshape(shape[:n_stacked])
        less_one, dtypes = is_less_one(key, self.cfg), []
        for name in names.flat:
            if name not in self.tensors:
                why = f": config.json says {self.cfg.layers} layers" if n_stacked else ""
                raise InputError(f"{self.folder}: tensor {name} is missing{why} ({key})")
            stored, dtype = tuple(self.tensors[name].get_shape()), self.tensors[name].get_dtype()
            stored, expected = stored[::-1] if transposed else stored, shape[n_stacked:]
            if stored != expected:
                raise InputError(
                    f"{self.folder}: tensor {name}: has shape {stored}, expected {expected} ({key})"
                )
            if dtype not in DTYPES:
                raise InputError(
                    f"{self.folder}: tensor {name}: has type {dtype}, expected {', '.join(DTYPES)}"
                )
            dtypes.append(np.float32 if less_one else DTYPES[dtype])
            self.used.add(name)

        def read(index, out):
            chosen, inner = np.asarray(names[index[:n_stacked]], object), index[n_stacked:]
            for y, name in zip(out.reshape(-1, *out.shape[n_stacked:]), chosen.flat, strict=True):
                x = self.tensors[name][inner[::-1]].T if transposed else self.tensors[name][inner]
                x = x.astype(np.float32) + 1 if less_one else x
                if x.dtype == y.dtype == jnp.bfloat16:  # numpy transposes its own types much faster
                    x, y = x.view(np.uint16), y.view(np.uint16)
                y[...] = x

        return Source(functools.reduce(jnp.promote_types, dtypes), read)

    def head_source(
        self, key: str, shape: tuple[int, ...], layer: str, new_head: bool, seed: int, verdicts
    ) -> Source:
        """The source of a parameter outside the backbone."""
        cfg, (name, transposed), has_head = self.cfg, HEAD[key], f"{layer}.weight" in self.tensors
        name = name.format(layer)
        if key == "w_head" and verdicts is not None:
            rows = self.prefix + TOP["embed"][0] if cfg.tied else "lm_head.weight"
            self.source(key, rows, False, (cfg.vocab, cfg.dim))
            return from_array(
                cfg.logit_scale * np.concatenate([self.tensors[rows][i : i + 1] for i in verdicts]).T
            )
        if key != "unembed" and new_head and not has_head:
            scale = 0 if key.startswith("b_") else head_scale(key, shape[0])
            return from_array(
                scale * np.random.default_rng([seed, 2]).standard_normal(shape).astype(np.float32)
            )
        if key == "w_head" and not has_head:
            hint = "set model.new_head=true to start one at random"
            raise InputError(f"{self.folder}: has no step head ({name}); {hint}")
        if key == "b_head" and name not in self.tensors:  # a classification head may have none
            return from_array(
                np.zeros(shape, DTYPES[self.tensors[self.prefix + TOP["embed"][0]].get_dtype()])
            )
        return self.source(key, name, transposed, shape)

    def check_all_used(self):
        """InputError where a tensor has no place in the model; the LM head, or any head of an LM, may go unused."""
        heads = {fmt.layer.split(".")[0] for fmt in all_formats()} if self.cfg.head == "none" else set()
        unused = sorted(self.tensors.keys() - self.used - {"lm_head.weight"})
        unused = [name for name in unused if name.split(".")[0] not in heads]
        if unused := [name for name in unused if not name.endswith("rotary_emb.inv_freq")]:
            model, listed = f"{self.cfg.family} PRM", ", ".join(unused[:3])
            raise InputError(f"{self.folder}: {len(unused)} tensors have no place in a {model}: {listed} ...")


def load(
    folder: Path, cfg: ModelConfig, new_head=False, seed: int = 0, dtype=np.float32, verdicts=None
) -> PRM:
    """A model of shape `cfg` with the weights of a checkpoint folder; each device reads only its own part. Arrays are
    of `dtype`; None: as stored; "compute": as `model.cast_backbone` stores them. A step head that the folder lacks is
    initialised at random only with `new_head`. With `verdicts`, the ids of a bad and of a good token, the binary head
    consists of these two rows of the vocabulary projection: their softmax is the score of a PRM that answers in tokens
    (Math-Shepherd, RLHFlow). Missing, wrongly shaped and unknown tensors raise InputError."""
    weights, layer = Weights(folder, cfg), "lm_head"
    if verdicts is not None:
        assert cfg.final_logit_softcap is None, (
            "capped logits of two tokens are no linear head: released.TwoTokenHead"
        )
    elif cfg.head != "none":
        layer = find_head(weights.tensors, str(folder), cfg.head)[1]
        layer = HEADS[cfg.head].layer if layer == "lm_head" else layer  # of a head still to be made
    model = jax.eval_shape(lambda: cast_backbone(PRM(cfg, rngs=nnx.Rngs(0))))
    state, names = nnx.state(model).to_pure_dict(), layer_names(cfg)
    blocks = state["blocks"]
    if unnamed := sorted(blocks.keys() - names.keys()):
        raise InputError(
            f"{folder}: has no tensors for {unnamed[0]} of a block, which only init=random can start"
        )
    prefixed = {key: (weights.prefix + name, transposed) for key, (name, transposed) in (TOP | names).items()}
    sources = {key: weights.source(key, *prefixed[key], state[key].shape) for key in TOP}
    for key in HEAD:
        if key in state:
            sources[key] = weights.head_source(key, state[key].shape, layer, new_head, seed, verdicts)
    sources["blocks"] = {
        key: weights.source(key, *prefixed[key], blocks[key].shape) for key in names if key in blocks
    }
    weights.check_all_used()

    def place(x, source, sharding):
        stored = x.dtype if dtype == "compute" else np.dtype(dtype or source.dtype)
        parts = {}  # devices that hold the same part share one reading

        def read_part(index):
            if str(index) not in parts:
                shape = tuple(len(range(n)[i]) for n, i in zip(x.shape, index, strict=True))
                parts[str(index)] = aligned(shape, stored)
                source.read(index, parts[str(index)])
            return parts[str(index)]

        return jax.block_until_ready(jax.make_array_from_callback(x.shape, sharding, read_part))

    # The blocks, which are read a layer at a time, come last: a whole tensor's buffers are small beside them.
    order, layout = sorted(state, key="blocks".__eq__), nnx.state(shardings(model)).to_pure_dict()
    nnx.update(model, {key: jax.tree.map(place, state[key], sources[key], layout[key]) for key in order})
    return model


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An empty array at a multiple of 64 bytes, which JAX on CPU adopts without a copy."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def save(folder: Path, model: PRM, tokenizer, **notes):
    """Writes the tokenizer, the weights (safetensors, float32) and config.json as transformers does, with `notes`
    (format, label kind, objective, policy tokens) and the head's name under `prm_jax`. InputError where no config.json
    fits it. All is written into a folder UNFINISHED of it first; config.json, without which nothing is a model, is moved
    last."""
    config = export_config(model.cfg, tokenizer) | {"prm_jax": notes | {"head": model.cfg.head}}
    shutil.rmtree(new := folder / UNFINISHED, ignore_errors=True)  # of a call that was killed
    try:
        save_weights(new, model)
        tokenizer.save_pretrained(new)
        write_json(new / "config.json", config)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    for old in (folder / "config.json", *folder.glob("model*.safetensors*")):
        old.unlink(missing_ok=True)
    for file in sorted(new.iterdir(), key=lambda path: path.name == "config.json"):
        os.replace(file, folder / file.name)
    new.rmdir()


def save_weights(folder: Path, model: PRM):
    """Writes the tensors of `load`."""
    folder.mkdir(parents=True, exist_ok=True)
    cfg, state, tensors = model.cfg, nnx.state(model).to_pure_dict(), {}
    names = TOP | layer_names(cfg)
    for key, x in ({key: state[key] for key in TOP} | state["blocks"]).items():
        name, transposed = names[key]
        x = x - 1 if is_less_one(key, cfg) else x
        tensors |= {f"model.{name.format(*place)}": (x, place, transposed) for place in places(name, cfg)}
    layer = HEADS[cfg.head].layer if cfg.head != "none" else ""
    tensors |= {HEAD[key][0].format(layer): (state[key], (), HEAD[key][1]) for key in HEAD if key in state}
    write_tensors(folder, tensors)


def load_tokenizer(folder: str | Path):
    """The tokenizer of a checkpoint folder; code in the folder is never run."""
    from transformers import AutoTokenizer

    folder = Path(folder)
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json")):
        if base := base_of(folder):
            return load_tokenizer(base)
        if not (folder / "tokenizer.model").is_file():  # transformers would return an empty tokenizer
            raise InputError(
                f"{folder}: has no tokenizer.json, vocab.json or tokenizer.model: copy its base model's"
            )
        with tempfile.TemporaryDirectory() as converted:
            write_tokenizer(folder, Path(converted))
            return load_tokenizer(converted)
    path = folder / "tokenizer_config.json"
    try:
        if not path.exists() or "auto_map" not in json.loads(path.read_text()):
            tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
            if isinstance(tokenizer.model_max_length, int | float):
                return tokenizer
            raise ValueError(f"model_max_length: got {tokenizer.model_max_length!r}, expected a number")
    except Exception as error:  # of many kinds, even the KeyError of a missing field
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        raise InputError(f"{folder}: no tokenizer that transformers can read ({reason})") from error
    raise InputError(f"{path}: auto_map: the tokenizer is Python code of its own, which is never run")
