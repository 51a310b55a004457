"""Hugging Face checkpoints in and out: config.json, safetensors (one file or sharded), tokenizer. Nothing is unpickled.

Dimension key: D model, V vocabulary, C head outputs. Hugging Face stores a projection as [out, in]; ours is [in, out].

As a command, exports a run: python -m prm_jax.hf checkpoint=RUN to=FOLDER
"""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from prm_jax import InputError, cli
from prm_jax.model import HEADS, PRM, REMAT, ModelConfig, choose_dtype, thin
from prm_jax.sharding import layout

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
    "w_o": ("layers.{}.self_attn.o_proj.weight", True),
    "norm_ffn": ("layers.{}.post_attention_layernorm.weight", False),
    "w_gate": ("layers.{}.mlp.gate_proj.weight", True),
    "w_up": ("layers.{}.mlp.up_proj.weight", True),
    "w_down": ("layers.{}.mlp.down_proj.weight", True),
}
# Outside the backbone, never prefixed. `score` is TRL's and transformers' token-classification head.
HEAD = {
    "unembed": ("lm_head.weight", True),
    "w_head": ("score.weight", True),
    "b_head": ("score.bias", False),
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
    if not path.exists():
        raise InputError(f"{path}: no such file, expected a Hugging Face checkpoint folder")
    try:
        config = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: line {error.lineno}: not JSON ({error.msg})") from error
    if config.get("model_type") != "qwen2":
        raise InputError(f"{path}: model_type: got {config.get('model_type')!r}, expected 'qwen2'")
    if config.get("use_sliding_window"):
        raise InputError(
            f"{path}: use_sliding_window: got true, expected false (sliding windows are not supported)"
        )
    return config


def model_config(config: dict, where: str = "config.json", **changes) -> ModelConfig:
    """Our ModelConfig of a Hugging Face config; `changes` sets the fields that the config does not fix."""

    def need(key):
        if key not in config:
            raise InputError(f"{where}: {key}: missing")
        return config[key]

    rope = config.get("rope_parameters") or {
        "rope_theta": config.get("rope_theta", 10_000.0)
    }  # moved in transformers 5
    if rope.get("rope_type", "default") != "default" or config.get("rope_scaling"):
        raise InputError(f"{where}: rope_parameters: got {rope}, expected rope_type 'default'")
    shape = {
        "vocab": need("vocab_size"),
        "dim": need("hidden_size"),
        "layers": need("num_hidden_layers"),
        "heads": need("num_attention_heads"),
        "kv_heads": config.get("num_key_value_heads") or need("num_attention_heads"),
        "head_dim": config.get("head_dim") or need("hidden_size") // need("num_attention_heads"),
        "ffn": need("intermediate_size"),
        "rope_theta": float(rope["rope_theta"]),
        "norm_eps": float(need("rms_norm_eps")),
        "qkv_bias": True,
        "tied": bool(config.get("tie_word_embeddings", False)),
    }
    try:
        return ModelConfig(**(shape | changes))
    except AssertionError as error:
        raise InputError(f"{where}: {error}") from error


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
    architecture = "Qwen2ForCausalLM" if cfg.head == "none" else "Qwen2ForTokenClassification"
    labels = {
        "scalar": ["good"],
        "binary": ["bad", "good"],
        "ternary": ["bad", "neutral", "good"],
        "none": [],
    }[cfg.head]
    return {
        "architectures": [architecture],
        "model_type": "qwen2",
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
        "rope_parameters": {"rope_type": "default", "rope_theta": cfg.rope_theta},
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": cfg.tied,
        "use_sliding_window": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "dtype": "float32",
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    } | ({"id2label": {str(i): label for i, label in enumerate(labels)}} if labels else {})


def open_tensors(folder: Path):
    """{tensor name: slice of a safetensors file, of which any part can be read}, over model.safetensors or all shards."""
    from safetensors import SafetensorError, safe_open

    index = folder / "model.safetensors.index.json"
    if index.exists():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (json.JSONDecodeError, KeyError) as error:
            raise InputError(f"{index}: expected JSON with a weight_map ({error})") from error
    else:
        names = ["model.safetensors"]
    tensors = {}
    for name in names:
        path = folder / name
        if not path.exists():
            pickles = [p.name for p in (*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth"))]
            hint = f"; {pickles[0]} is a pickle and is not read: convert it to safetensors" if pickles else ""
            raise InputError(f"{path}: no such file{hint}")
        try:
            file = safe_open(path, framework="numpy")
        except SafetensorError as error:
            raise InputError(f"{path}: not a whole safetensors file ({error})") from error
        tensors |= {key: file.get_slice(key) for key in file.offset_keys()}
    return tensors


def detect_head(tensors, where: str) -> str:
    """The step head of a checkpoint by its tensors: `score.weight` of 1, 2 or 3 rows, else none."""
    if "score.weight" not in tensors:
        return "none"
    C = tensors["score.weight"].get_shape()[0]
    heads = {size: head for head, size in HEADS.items() if size}
    if C not in heads:
        raise InputError(
            f"{where}: score.weight: has {C} outputs, expected 1 (scalar), 2 (binary) or 3 (ternary)"
        )
    return heads[C]


def load(folder: Path, cfg: ModelConfig, new_head: bool = False, seed: int = 0, thinned: bool = False) -> PRM:
    """A model of shape `cfg` with the weights of a checkpoint folder, each device's part read and placed on its own.

    Arrays are float32; with `thinned`, as `model.thin` stores them. A step head that the checkpoint lacks is started at
    random only where `new_head` says so. Missing, wrongly shaped and unknown tensors raise; the language-model head may
    go unused, nothing else.
    """
    tensors = open_tensors(folder)
    prefix = "model." if any(name.startswith("model.") for name in tensors) else ""
    unused = set(tensors) - {"lm_head.weight"}

    def part(name, transposed, shape, key):
        """A function that reads the part of our parameter at an index (a tuple of slices)."""
        if name not in tensors:
            raise InputError(f"{folder}: tensor {name} is missing ({key})")
        unused.discard(name)
        x = tensors[name]
        found = tuple(x.get_shape()[:: -1 if transposed else 1])
        if found != shape:
            raise InputError(f"{folder}: tensor {name}: has shape {found}, expected {shape} ({key})")
        return lambda index: x[index[::-1]].T if transposed else x[index]

    def stacked(parts):
        return lambda index: np.stack([parts[i](index[1:]) for i in range(cfg.layers)[index[0]]])

    abstract = jax.eval_shape(lambda: (thin if thinned else lambda m: m)(PRM(cfg, rngs=nnx.Rngs(0))))
    state = nnx.state(abstract).to_pure_dict()
    parts = {key: part(prefix + TOP[key][0], TOP[key][1], state[key].shape, key) for key in TOP}
    parts["blocks"] = {
        key: stacked(
            [
                part(prefix + LAYER[key][0].format(i), LAYER[key][1], x.shape[1:], key)
                for i in range(cfg.layers)
            ]
        )
        for key, x in state["blocks"].items()
    }
    for key in HEAD.keys() & state.keys():
        name, transposed = HEAD[key]
        if key in ("w_head", "b_head") and new_head and "score.weight" not in tensors:
            parts[key] = new_parameter(key, state[key].shape, seed).__getitem__
        elif key == "w_head" and name not in tensors:
            raise InputError(
                f"{folder}: has no step head ({name}); set model.new_head=true to start one at random"
            )
        elif key == "b_head" and name not in tensors:  # transformers' classification heads have no bias
            parts[key] = np.zeros(state[key].shape).__getitem__
        else:
            parts[key] = part(name, transposed, state[key].shape, key)
    if cfg.head == "none":
        unused -= {"score.weight", "score.bias"}
    if unused:
        listed = ", ".join(sorted(unused)[:3])
        raise InputError(f"{folder}: {len(unused)} tensors have no place in a Qwen2 PRM: {listed} ...")

    def place(x, read, sharding):
        seen = {}  # devices that hold the same part share one reading

        def once(index):
            if str(index) not in seen:
                seen[str(index)] = np.ascontiguousarray(read(index).astype(x.dtype))
            return seen[str(index)]

        return jax.make_array_from_callback(x.shape, sharding, once)

    nnx.update(abstract, jax.tree.map(place, state, parts, layout(state)))
    return abstract


def new_parameter(key: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """A fresh step-head parameter, distributed as in `PRM.__init__`."""
    if key == "b_head":
        return np.zeros(shape, np.float32)
    return 0.02 * np.random.default_rng([seed, 2]).standard_normal(shape).astype(np.float32)


def save(folder: Path, model: PRM, tokenizer, **notes):
    """Writes config.json, model.safetensors (float32) and the tokenizer, as transformers' own classes read them.

    `notes` (format, label kind, objective) go into config.json under `prm_jax`, which transformers leaves alone.
    """
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    state = nnx.state(model).to_pure_dict()
    tensors = {}

    def put(name, transposed, x):
        tensors[name] = np.ascontiguousarray(
            np.asarray(x, np.float32).T if transposed else np.asarray(x, np.float32)
        )

    for key, (name, transposed) in TOP.items():
        put(f"model.{name}", transposed, state[key])
    for key, (name, transposed) in LAYER.items():
        for i, x in enumerate(state["blocks"].get(key, [])):
            put("model." + name.format(i), transposed, x)
    for key, (name, transposed) in HEAD.items():
        if key in state:
            put(name, transposed, state[key])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(
        json.dumps(hf_config(model.cfg, tokenizer) | {"prm_jax": notes}, indent=2) + "\n"
    )
    tokenizer.save_pretrained(folder)


def load_tokenizer(folder: str | Path):
    """The tokenizer of a checkpoint folder; never runs code that came with it."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder}: no tokenizer that transformers can read ({str(error).splitlines()[0]})"
        ) from error


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """conf/hf.yaml says what each key means."""

    checkpoint: str | None
    to: str
    which: str


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
    size = sum(path.stat().st_size for path in Path(cfg.to).iterdir())
    print(f"exported    step {step} of {run} to {cfg.to}, {size / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
