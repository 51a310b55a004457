"""Finds the folder of a checkpoint by its name; reads its safetensors files (model.safetensors, or shards
and their index), merging a PEFT adapter into its base model, and writes them.

Dimension key: O out, I in, as PyTorch stores a projection; r rank.
"""

import dataclasses
import math
import os
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from prm_jax import InputError
from prm_jax.launch.config import expect
from prm_jax.launch.files import read_json, write_json

EMBEDDED = Path(__file__).parents[1] / "assets" / "base"
# The default task's policy, from which runs are fine-tuned, a PRM (the default run) and an outcome model.
SHIPPED = {
    "embedded": EMBEDDED,
    "embedded_prm": EMBEDDED.with_name("prm"),
    "embedded_orm": EMBEDDED.with_name("orm"),
}
ADAPTER = "adapter_config.json"
DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}
SHARD = 5 * 10**9  # bytes of a written file at most, as in transformers; a larger tensor has one to itself
INDEX = "model.safetensors.index.json"


def training_tokens(name: str) -> int | None:
    """Policy tokens of the samples that a model was trained on, by its run or its export, if known."""
    folder = SHIPPED.get(name) or Path(name)
    for file, key in (("summary.json", "counts"), ("config.json", "prm_jax")):
        if (folder / file).exists():
            return (read_json(folder / file).get(key) or {}).get("policy_tokens")
    return None


def locate(name: str) -> Path:
    """The folder of a checkpoint: a name of SHIPPED, a folder, or a hub name (downloaded once)."""
    if name in SHIPPED:
        return SHIPPED[name]
    folder = Path(os.path.expanduser(name))  # Path.expanduser raises where there is no such user
    if folder.is_dir():
        return folder
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise InputError(f"{name}: no such folder")
    from huggingface_hub import snapshot_download

    files = ["*.json", "*.safetensors", "*.txt", "*.jinja", "tokenizer.model"]
    try:
        return Path(snapshot_download(name, allow_patterns=files))
    except Exception as error:  # a dozen kinds, all of which mean that the name cannot be loaded
        reason = str(error).splitlines()[0]
        raise InputError(f"{name}: neither a folder nor a model that the hub gives ({reason})") from error


def adapter_settings(folder: Path) -> dict | None:
    """The adapter_config.json of a folder with a LoRA adapter, None of one with a model."""
    path = folder / ADAPTER
    if not path.is_file() or any(folder.glob("model*.safetensors")):
        return None
    settings = read_json(path, base_model_name_or_path=str)
    kind = settings.get("peft_type")
    expect(kind == "LORA", f"{path}: peft_type", kind, "'LORA'")
    for key in ("use_dora", "fan_in_fan_out", "lora_bias", "layer_replication", "alora_invocation_tokens"):
        expect(not settings.get(key), f"{path}: {key}", settings.get(key), "false or null, plain LoRA")
    for key in settings.get("alpha_pattern") or {}:
        # PEFT runs them as regular expressions, which from a file might never end.
        expected = "the end of a module's name, such as q_proj; other regular expressions are not run"
        expect(re.fullmatch(r"\^?(\w|-|\\?\.)+", key), f"{path}: alpha_pattern", key, expected)
    return settings


def base_of(folder: Path) -> Path | None:
    """The folder of an adapter's base model, relative to the adapter or to here; None for other folders."""
    if (settings := adapter_settings(folder)) is None:
        return None
    name = settings["base_model_name_or_path"]
    base = folder / name if (folder / name / "config.json").is_file() else locate(name)
    is_other = base.resolve() != folder.resolve()
    expect(is_other, f"{folder / ADAPTER}: base_model_name_or_path", name, "another folder")
    return base


@dataclasses.dataclass(frozen=True)
class Updated:
    """A slice of W + scale B A in float32, since rounding to the dtype of W would lose the update."""

    base: object  # slice of W [O, I]
    b_Or: np.ndarray  # times the scale
    a_rI: np.ndarray

    def get_shape(self):
        return self.base.get_shape()

    def get_dtype(self):
        return "F32"

    def __getitem__(self, index):
        return (self.base[...].astype(np.float32) + self.b_Or @ self.a_rI)[index]


def open_weights(folder: Path) -> dict:
    """{tensor name: its slice} of a checkpoint, or of an adapter's base model with the updates added.

    An update is alpha / r B A (Hu et al. 2021), with rsLoRA alpha / sqrt(r) B A (Kalajdzievski 2023),
    transposed for an embedding. Tensors that the adapter holds whole (a step head) replace the base's.
    InputError where an update fits no tensor.
    """
    if (base := base_of(folder)) is None:
        return without_wrapper(open_tensors(folder))
    settings, path = adapter_settings(folder), folder / "adapter_model.safetensors"
    tensors, updates = without_wrapper(open_tensors(base)), {}
    for key, stored in open_file(path).items():
        name = key.removeprefix("base_model.model.").replace(".base_layer.", ".")
        name = name.replace(".modules_to_save.", ".")
        module, is_update, part = name.partition(".lora_")
        if is_update:
            updates.setdefault(module, {})[part.removesuffix(".weight")] = stored[...].astype(np.float32)
        else:
            tensors[name] = stored
    for module, parts in updates.items():
        names = (f"{module}.weight", f"{module.removeprefix('model.')}.weight", f"model.{module}.weight")
        name = next((name for name in names if name in tensors), None)
        if parts.keys() == {"embedding_A", "embedding_B"}:
            parts = {"A": parts["embedding_B"].T, "B": parts["embedding_A"].T}
        shape = [len(parts["B"]), parts["A"].shape[-1]] if parts.keys() == {"A", "B"} else None
        if name is None or shape != list(tensors[name].get_shape()):
            raise InputError(f"{path}: {module}: updates no matrix of the base model {base}")
        scale = np.float32(lora_scale(settings, module, len(parts["A"])))
        tensors[name] = Updated(tensors[name], scale * parts["B"], parts["A"])
    return tensors


def lora_scale(settings: dict, module: str, r: int) -> float:
    """The factor of an update: its alpha, or that of the pattern that ends its module's name, over r or
    root r."""
    alpha = settings["lora_alpha"]
    for key, other in reversed((settings.get("alpha_pattern") or {}).items()):
        key = key.replace("\\.", ".")
        if key == f"^{module}" or f".{module}".endswith(f".{key}"):
            alpha = other
    return alpha / (r**0.5 if settings.get("use_rslora") else r)


def without_wrapper(tensors: dict) -> dict:
    """The tensors of the language model inside TRL's value-head class (PQM) or beside a vision tower
    (Gemma 3), without `pretrained_model.` and `language_model.` in their names."""
    wrapper = re.compile(r"^pretrained_model\.|^language_model\.|(?<=^model\.)language_model\.")
    vision = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\.")
    return {wrapper.sub("", name): x for name, x in tensors.items() if not vision.match(name)}


def open_tensors(folder: Path) -> dict:
    """{tensor name: its slice} of model.safetensors or of all shards of the index; reads only the headers.
    A slice has `get_shape()` and `get_dtype()`, and reads what it is indexed by. Files are not mapped,
    since mapped pages count as memory. The library refuses truncated files and overlapping tensors;
    nothing is unpickled."""
    index, files = folder / INDEX, {"model.safetensors"}
    if index.exists():
        files = {*read_json(index, weight_map=dict)["weight_map"].values()}
        are_beside = files and all(isinstance(file, str) and Path(file).name == file for file in files)
        expect(are_beside, f"{index}: weight_map", sorted(map(str, files)), "names of files beside it")
    return {name: x for file in sorted(files) for name, x in open_file(folder / file).items()}


def open_file(path: Path) -> dict:
    """{tensor name: its slice} of one file."""
    if not path.is_file():
        pickles = [other.name for other in path.parent.glob("*.bin")]
        why = f"; {pickles[0]} is a pickle, which can run code: convert it to safetensors" if pickles else ""
        raise InputError(f"{path}: no such file{why}")
    try:
        stored = safe_open(path, framework="np", backend="pread")
    except SafetensorError as error:
        raise InputError(f"{path}: not a whole safetensors file ({error})") from error
    return {name: stored.get_slice(name) for name in stored.keys()}  # noqa: SIM118 (no dictionary)


def write_tensors(folder: Path, tensors: dict[str, tuple]):
    """Writes the tensors of a checkpoint in float32, inverse of `open_tensors`: {name: (array, index into
    its first axes: (), a layer, or a layer and an expert; stored transposed)}. Needs the memory of one
    file (5 GB) beside them."""
    from huggingface_hub import split_state_dict_into_shards_factory

    sizes = {name: 4 * math.prod(x.shape[len(index) :]) for name, (x, index, _) in tensors.items()}
    options = {"filename_pattern": "model{suffix}.safetensors", "max_shard_size": SHARD}
    split = split_state_dict_into_shards_factory(sizes, get_storage_size=int, **options)
    for old in folder.glob("model*.safetensors*"):  # another number of shards, perhaps
        old.unlink()
    for file, names in split.filename_to_tensors.items():
        arrays = {}
        for name in names:
            x, index, transposed = tensors[name]
            x = np.asarray(x[index], np.float32)
            arrays[name] = np.ascontiguousarray(x.T) if transposed else x
        try:
            save_file(arrays, folder / file, metadata={"format": "pt"})
        except SafetensorError as error:
            raise InputError(f"{folder / file}: cannot be written ({error})") from error
    if split.is_sharded:
        about = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        write_json(folder / INDEX, about)
