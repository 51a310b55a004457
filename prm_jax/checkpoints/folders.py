"""Finds the folder of a checkpoint by its name; reads its safetensors files (model.safetensors, or shards and their
index), merging a PEFT adapter into its base model, and writes them.

Dimension key: O out, I in, as PyTorch stores a projection; r rank.
"""

import dataclasses
import json
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
from prm_jax.launch.files import read_json, replaced, write_json

EMBEDDED = Path(__file__).parents[1] / "assets" / "base"
# The default task's policy, from which runs are fine-tuned; a PRM (the default run) and an outcome model of its samples.
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
    """Policy tokens of the samples that a model was trained on, by its run's summary or its export's notes, if known."""
    folder = SHIPPED.get(name) or Path(name)
    for file, key in (("summary.json", "counts"), ("config.json", "prm_jax")):
        if (folder / file).exists():
            return (read_json(folder / file).get(key) or {}).get("policy_tokens")
    return None


def locate(name: str) -> Path:
    """The folder of a checkpoint: a name of SHIPPED, a local folder, or a hub name `owner/model` (downloaded once)."""
    if name in SHIPPED:
        return SHIPPED[name]
    folder = Path(os.path.expanduser(name))  # Path.expanduser raises where there is no such user
    if folder.is_dir():
        return folder
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise InputError(
            f"{name}: {'is a file, expected its folder' if folder.is_file() else 'no such folder'}"
        )
    from huggingface_hub import snapshot_download

    files = ["*.json", "*.safetensors", "*.txt", "*.jinja", "tokenizer.model"]
    try:
        return Path(snapshot_download(name, allow_patterns=files))
    except Exception as error:  # a dozen kinds, all of which mean that the name cannot be loaded
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{name}: neither a folder here nor a model that the hub gives ({reason})"
        ) from error


def adapter_settings(folder: Path) -> dict | None:
    """The adapter_config.json of a folder with an adapter and no model, else None; InputError if no plain LoRA."""
    path = folder / ADAPTER
    if not path.is_file() or any(folder.glob("model*.safetensors")):
        return None
    settings = read_json(path)
    kind, base = settings.get("peft_type"), settings.get("base_model_name_or_path")
    expect(kind == "LORA", f"{path}: peft_type", kind, "'LORA'")
    expect(isinstance(base, str), f"{path}: base_model_name_or_path", base, "a folder or a hub name")
    for key in ("use_dora", "fan_in_fan_out", "lora_bias", "layer_replication", "alora_invocation_tokens"):
        expect(
            not settings.get(key),
            f"{path}: {key}",
            settings.get(key),
            "false or null: only plain LoRA is merged",
        )
    patterns = settings.get("alpha_pattern") or {}
    expect(isinstance(patterns, dict), f"{path}: alpha_pattern", patterns, "an object")
    for key, alpha in {"lora_alpha": settings.get("lora_alpha"), **patterns}.items():
        # PEFT runs keys as regular expressions, which from a file might never end: only those that mean themselves.
        expected = "the end of a module's name, such as q_proj; other regular expressions are not run"
        expect(re.fullmatch(r"\^?(\w|-|\\?\.)+", key), f"{path}: alpha_pattern", key, expected)
        expect(
            type(alpha) in (int, float) and abs(alpha) < 1e9, f"{path}: {key}", alpha, "a number below 1e9"
        )
    return settings


def base_of(folder: Path) -> Path | None:
    """The folder of an adapter's base model, relative to the adapter or the working folder; None for other folders."""
    if (settings := adapter_settings(folder)) is None:
        return None
    name = settings["base_model_name_or_path"]
    try:
        base = folder / name if (folder / name / "config.json").is_file() else locate(name)
    except InputError as error:
        raise InputError(f"{folder / ADAPTER}: base_model_name_or_path: {error}") from error
    expect(
        base.resolve() != folder.resolve(),
        f"{folder / ADAPTER}: base_model_name_or_path",
        name,
        "another folder",
    )
    return base


@dataclasses.dataclass(frozen=True)
class Updated:
    """A slice of W + scale B A in float32, since rounding to the dtype of W would lose the update."""

    base: object  # slice of W [O, I]
    b_Or: np.ndarray
    a_rI: np.ndarray  # times the scale

    def get_shape(self):
        return self.base.get_shape()

    def get_dtype(self):
        return "F32"

    def __getitem__(self, index):
        rows, columns = (*index, slice(None))[:2] if isinstance(index, tuple) else (index, slice(None))
        return self.base[rows, columns].astype(np.float32) + self.b_Or[rows] @ self.a_rI[:, columns]


def open_weights(folder: Path) -> dict:
    """{tensor name: its slice} of a checkpoint, or of an adapter's base model with the updates added. An update is
    alpha / r B A (Hu et al. 2021), with rsLoRA alpha / sqrt(r) B A (Kalajdzievski 2023), transposed for an embedding.
    Tensors that the adapter holds whole (a step head) replace the base's. InputError where an update fits no tensor."""
    if (base := base_of(folder)) is None:
        return without_wrapper(open_tensors(folder))
    settings, path = adapter_settings(folder), folder / "adapter_model.safetensors"
    tensors, stored = without_wrapper(open_tensors(base)), open_file(path)
    updates: dict[str, dict] = {}
    for key in sorted(stored):
        name = (
            key.removeprefix("base_model.model.")
            .replace(".base_layer.", ".")
            .replace(".modules_to_save.", ".")
        )
        if "lora_" not in name:
            tensors[name] = stored[key]
            continue
        module, part = name.split(".lora_", 1)
        expect(0 not in stored[key].get_shape(), f"{path}: {key}", "an empty matrix", "a rank of at least 1")
        updates.setdefault(module, {})[part.removesuffix(".weight")] = stored[key][...].astype(np.float32)
    for module, parts in updates.items():
        names = (f"{module}.weight", f"{module.removeprefix('model.')}.weight", f"model.{module}.weight")
        name = next((name for name in names if name in tensors), None)
        if name is None or parts.keys() not in ({"A", "B"}, {"embedding_A", "embedding_B"}):
            raise InputError(
                f"{path}: {module}: {', '.join(sorted(parts))} updates no matrix of the base model {base}"
            )
        b_Or, a_rI = (
            (parts["B"], parts["A"]) if "A" in parts else (parts["embedding_A"].T, parts["embedding_B"].T)
        )
        shape, expected = (b_Or.shape[0], a_rI.shape[-1]), tuple(tensors[name].get_shape())
        if b_Or.ndim != 2 or a_rI.ndim != 2 or b_Or.shape[1] != len(a_rI) or shape != expected:
            shapes = f"{b_Or.shape} and {a_rI.shape}"
            raise InputError(f"{path}: {module}: shapes {shapes} do not update {name} of shape {expected}")
        r, patterns = len(a_rI), settings.get("alpha_pattern") or {}
        literal = ((key.replace("\\.", "."), alpha) for key, alpha in patterns.items())
        alphas = (alpha for key, alpha in literal if key == f"^{module}" or f".{module}".endswith(f".{key}"))
        scale = next(alphas, settings["lora_alpha"]) / (r**0.5 if settings.get("use_rslora") else r)
        tensors[name] = Updated(tensors[name], b_Or, np.float32(scale) * a_rI)
    return tensors


def without_wrapper(tensors: dict) -> dict:
    """The tensors of the language model inside TRL's value-head class (PQM) or beside a vision tower (Gemma 3), without
    `pretrained_model.` and `language_model.` in their names."""
    wrapper = re.compile(r"^pretrained_model\.|^language_model\.|(?<=^model\.)language_model\.")
    vision = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\.")
    return {wrapper.sub("", name): x for name, x in tensors.items() if not vision.match(name)}


def open_tensors(folder: Path) -> dict:
    """{tensor name: its slice} of model.safetensors or of all shards of the index; reads only the headers. A slice
    has `get_shape()` and `get_dtype()`, and reads what it is indexed by. Files are not mapped, since mapped pages
    count as memory. The library refuses truncated files and overlapping tensors; nothing is unpickled."""
    index = folder / INDEX
    files = {"model.safetensors": None}
    if index.exists():
        try:
            weight_map = json.loads(index.read_text())["weight_map"]
            files = {
                file: {name for name in weight_map if weight_map[name] == file}
                for file in weight_map.values()
            }
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"{index}: expected JSON with a weight_map ({error})") from error
        if not files or any(not isinstance(file, str) or Path(file).name != file for file in files):
            raise InputError(f"{index}: weight_map: expected names of files beside it")
    tensors = {}
    for file, expected in sorted(files.items()):
        stored = open_file(folder / file)
        for name in sorted((expected or set()) - stored.keys()):
            raise InputError(f"{index}: tensor {name}: is not in {file}, which the weight_map names for it")
        for name in sorted(stored.keys() & tensors.keys()):
            raise InputError(f"{folder / file}: tensor {name}: another file of the folder has it too")
        tensors |= stored
    return tensors


def open_file(path: Path) -> dict:
    """{tensor name: its slice} of one file."""
    if not path.is_file():
        why = "is a pickle, which can run code when it is read, and is not read: where you trust it, convert it once"
        steps = "with torch.load(FILE, weights_only=True) and safetensors.torch.save_file(TENSORS, 'model.safetensors')"
        pickles = sorted(p.name for p in path.parent.iterdir() if p.suffix in (".bin", ".pt", ".pth"))
        raise InputError(f"{path}: no such file" + (f"; {pickles[0]} {why} {steps}" if pickles else ""))
    try:
        stored = safe_open(path, framework="np", backend="pread")
    except SafetensorError as error:
        raise InputError(f"{path}: not a whole safetensors file ({error})") from error
    return {name: stored.get_slice(name) for name in stored.keys()}  # noqa: SIM118 (no dictionary)


def write_tensors(folder: Path, tensors: dict[str, tuple]):
    """Writes the tensors of a checkpoint in float32, inverse of `open_tensors`: {name: (array, index into its first
    axes: (), a layer, or a layer and an expert; stored transposed)}. Needs the memory of one file (5 GB) beside them."""
    from huggingface_hub import split_state_dict_into_shards_factory

    sizes = {name: 4 * math.prod(x.shape[len(index) :]) for name, (x, index, _) in tensors.items()}
    options = {"filename_pattern": "model{suffix}.safetensors", "max_shard_size": SHARD}
    split = split_state_dict_into_shards_factory(sizes, get_storage_size=int, **options)
    for file, names in split.filename_to_tensors.items():
        arrays = {name: np.asarray(tensors[name][0][tensors[name][1]], np.float32) for name in names}
        arrays |= {name: np.ascontiguousarray(x.T) for name, x in arrays.items() if tensors[name][2]}
        try:
            with replaced(folder / file) as temporary:
                save_file(arrays, temporary, metadata={"format": "pt"})
        except SafetensorError as error:
            raise InputError(f"{folder / file}: cannot be written ({error})") from error
    if split.is_sharded:
        write_json(folder / INDEX, {"metadata": split.metadata, "weight_map": split.tensor_to_filename})
