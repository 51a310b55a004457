"""Reads and writes Hugging Face checkpoints: a model's safetensors files, its config.json and its tokenizer.

Dimension key: D model, V vocabulary, C head outputs. Hugging Face stores a projection as [out, in]; ours
is [in, out].
"""

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from prm_jax import InputError
from prm_jax.checkpoints.folders import DTYPES, base_of, open_weights, write_tensors
from prm_jax.checkpoints.hf_config import GEMMAS, export_config
from prm_jax.formats import all_formats
from prm_jax.heads import HEADS
from prm_jax.launch.config import expect
from prm_jax.launch.files import read_json, write_json
from prm_jax.launch.mesh import shardings
from prm_jax.model import PRM, ModelConfig, cast_backbone, head_scale

# Our parameter -> (tensor name without `model.`, stored transposed); {} is the layer, then the expert.
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
    """The tensor names of a layer's parameters."""
    if cfg.experts:
        return EXPERTS
    return AROUND if cfg.post_norms else LAYER


def places(name: str, cfg: ModelConfig) -> list[tuple]:
    """The (layer,) or (layer, expert) indices that fill the {} of a tensor's name; [()] without any."""
    return list(np.ndindex((cfg.layers, cfg.experts)[: name.count("{}")]))


def is_less_one(key: str, cfg: ModelConfig) -> bool:
    """Whether the family's files store this parameter minus 1, as Gemma's do the gains of norms."""
    return cfg.family in GEMMAS and key.startswith("norm")


def find_head(tensors, where: str, named: str | None = None) -> tuple[str, str]:
    """(step head, name of its last layer) of a checkpoint by its tensors; ("none", "lm_head") without one.

    Of several heads with this number of outputs it is the one that our export `named`, else the first of
    HEADS. InputError on several heads, on a part of one, and on a head that no known system uses.
    """
    layers = dict.fromkeys(fmt.layer for fmt in all_formats() if fmt.layer != "lm_head")
    present = [layer for layer in layers if f"{layer}.weight" in tensors]
    expect(len(present) < 2, f"{where}: step heads", present, "one")
    if not present:
        backbone = ("model.", "lm_head.", "embed_tokens.", "norm.", "layers.")
        others = sorted(name for name in tensors if not name.startswith(backbone))
        expect(not others, f"{where}: its step head", others[:3], f"the tensors of {', '.join(layers)}")
        return "none", "lm_head"
    (layer,) = present
    if layer.endswith("nn_out"):
        return "ensemble", layer
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
        self.folder, self.cfg, self.tensors, self.used = folder, cfg, open_weights(folder), set()
        self.prefix = "model." if any(name.startswith("model.") for name in self.tensors) else ""

    def source(self, key: str, pattern: str, transposed: bool, shape: tuple[int, ...]) -> Source:
        """The tensors of a pattern, stacked on the first axes."""
        n_stacked, less_one, dtypes = pattern.count("{}"), is_less_one(key, self.cfg), []
        names = np.empty(shape[:n_stacked], object)
        for place in places(pattern, self.cfg):
            name = names[place] = pattern.format(*place)
            if name not in self.tensors:
                raise InputError(f"{self.folder}: tensor {name}: missing, it is {key} of this config.json")
            stored, dtype = tuple(self.tensors[name].get_shape()), self.tensors[name].get_dtype()
            expected = shape[n_stacked:][::-1] if transposed else shape[n_stacked:]
            expect(stored == expected, f"{self.folder}: tensor {name}: shape", stored, f"{expected} ({key})")
            expect(dtype in DTYPES, f"{self.folder}: tensor {name}: type", dtype, ", ".join(DTYPES))
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

    def head_source(self, key: str, shape: tuple, layer: str, new_head: bool, seed: int, verdicts) -> Source:
        """The source of a parameter outside the backbone."""
        cfg, (name, transposed), has_head = self.cfg, HEAD[key], f"{layer}.weight" in self.tensors
        name = name.format(layer)
        if key == "w_head" and verdicts is not None:
            rows = self.prefix + TOP["embed"][0] if cfg.tied else "lm_head.weight"
            self.source(key, rows, False, (cfg.vocab, cfg.dim))
            row_CD = np.concatenate([self.tensors[rows][i : i + 1] for i in verdicts])
            return from_array(cfg.logit_scale * row_CD.T)
        if key != "unembed" and new_head and not has_head:
            scale = 0 if key.startswith("b_") else head_scale(key, shape[0])
            normal = np.random.default_rng([seed, 2]).standard_normal(shape)
            return from_array(scale * normal.astype(np.float32))
        if key == "w_head" and not has_head:
            hint = "set model.new_head=true to start one at random"
            raise InputError(f"{self.folder}: has no step head ({name}); {hint}")
        if key == "b_head" and name not in self.tensors:  # a classification head may have none
            dtype = self.tensors[self.prefix + TOP["embed"][0]].get_dtype()
            return from_array(np.zeros(shape, DTYPES[dtype]))
        return self.source(key, name, transposed, shape)

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
    new_head, seed: a step head that the folder lacks starts at random; an InputError without new_head.
    verdicts: ids of a bad and of a good token. The binary head then consists of these two rows of the
        vocabulary projection, as in a PRM that answers in tokens (Math-Shepherd, RLHFlow).
    InputError where a tensor is missing, of another shape, or unknown.
    """
    weights, layer = Weights(folder, cfg), "lm_head"
    if verdicts is None and cfg.head != "none":
        layer = find_head(weights.tensors, str(folder), cfg.head)[1]
        layer = HEADS[cfg.head].layer if layer == "lm_head" else layer  # of a head still to be made
    model = jax.eval_shape(lambda: cast_backbone(PRM(cfg, rngs=nnx.Rngs(0))))
    state, names = nnx.state(model).to_pure_dict(), layer_names(cfg)
    check_names(state, cfg)
    prefixed = {key: (weights.prefix + name, transposed) for key, (name, transposed) in (TOP | names).items()}
    sources = {key: weights.source(key, *prefixed[key], state[key].shape) for key in TOP}
    blocks = {key: state["blocks"][key] for key in names if key in state["blocks"]}  # in the order of names
    sources["blocks"] = {key: weights.source(key, *prefixed[key], x.shape) for key, x in blocks.items()}
    for key in [key for key in HEAD if key in state]:
        sources[key] = weights.head_source(key, state[key].shape, layer, new_head, seed, verdicts)
    weights.check_all_used()

    def place(x, source, sharding):
        dtype = {"float32": np.dtype(np.float32), "compute": x.dtype, "file": np.dtype(source.dtype)}[stored]
        parts = {}  # devices that hold the same part share one reading

        def read_part(index):
            if str(index) not in parts:
                shape = tuple(len(range(n)[i]) for n, i in zip(x.shape, index, strict=True))
                parts[str(index)] = aligned(shape, dtype)
                source.read(index, parts[str(index)])
            return parts[str(index)]

        return jax.block_until_ready(jax.make_array_from_callback(x.shape, sharding, read_part))

    # The blocks, which are read a layer at a time, come last: a whole tensor's buffers are small beside them.
    order, layout = sorted(state, key="blocks".__eq__), nnx.state(shardings(model)).to_pure_dict()
    nnx.update(model, {key: jax.tree.map(place, state[key], sources[key], layout[key]) for key in order})
    return model


def check_names(state: dict, cfg: ModelConfig):
    """InputError where a parameter of the model has no tensor name, so that no file can hold it."""
    blocks = state["blocks"].keys() - layer_names(cfg).keys()
    unknown = sorted(blocks | state.keys() - {*TOP, *HEAD, "blocks"})
    expect(not unknown, "model", unknown, "parameters that have a tensor name (checkpoints/hf.py)")


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An empty array at a multiple of 64 bytes, which JAX on CPU adopts without a copy."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def save(folder: Path, model: PRM, tokenizer, **notes):
    """Writes the tokenizer, the weights (safetensors, float32) and config.json as transformers does, with
    `notes` (format, label kind, objective, policy tokens) and the head's name under `prm_jax`. InputError
    where a file cannot hold a field or a parameter of the model."""
    cfg, state, tensors = model.cfg, nnx.state(model).to_pure_dict(), {}
    config = export_config(cfg, tokenizer) | {"prm_jax": notes | {"head": cfg.head}}
    check_names(state, cfg)
    names = TOP | layer_names(cfg)
    for key, x in ({key: state[key] for key in TOP} | state["blocks"]).items():
        name, transposed = names[key]
        x = x - 1 if is_less_one(key, cfg) else x
        tensors |= {f"model.{name.format(*place)}": (x, place, transposed) for place in places(name, cfg)}
    layer = HEADS[cfg.head].layer if cfg.head != "none" else ""
    tensors |= {HEAD[key][0].format(layer): (state[key], (), HEAD[key][1]) for key in HEAD if key in state}
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder, tensors)
    tokenizer.save_pretrained(folder)
    write_json(folder / "config.json", config)


# Text on which transformers' reading of a tokenizer.model must agree with SentencePiece's own.
PROBE = "Café  №7:\n\tx² ≤ 3.5, so ки + -  naïve 数学 $\\boxed{12}$ "


def load_tokenizer(folder: str | Path):
    """The tokenizer of a checkpoint folder; code in the folder is never run."""
    from transformers import AutoTokenizer

    folder = Path(folder)
    pieces, settings = folder / "tokenizer.model", folder / "tokenizer_config.json"
    has_json = (folder / "tokenizer.json").is_file() or (folder / "vocab.json").is_file()
    if not has_json and (base := base_of(folder)):
        return load_tokenizer(base)
    if not has_json and not pieces.is_file():  # transformers would return an empty one
        raise InputError(f"{folder}: has no tokenizer.json, vocab.json or tokenizer.model")
    is_code = settings.exists() and "auto_map" in read_json(settings)
    expect(not is_code, f"{settings}: auto_map", "Python code, which is never run", "none")
    expected = None
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
        if not has_json:
            from sentencepiece import SentencePieceProcessor

            expected = SentencePieceProcessor(model_file=str(pieces)).encode(PROBE)
    except Exception as error:  # of many kinds, even the KeyError of a missing field
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        raise InputError(f"{folder}: no tokenizer that transformers can read ({reason})") from error
    # transformers splits double blanks otherwise in a Llama.
    is_right = expected is None or tokenizer.encode(PROBE, add_special_tokens=False) == expected
    expect(is_right, str(pieces), "ids other than SentencePiece's", "a tokenizer.json beside it")
    return tokenizer
