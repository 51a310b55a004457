"""Finds the folder of a checkpoint by its name; reads its safetensors files (model.safetensors, or shards
and their index), merging a PEFT adapter into its base model, and writes them.

Dimension key: O out, I in, as PyTorch stores a projection; r rank.
"""

import dataclasses
import math
import os
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
# Weights that are not read: other layouts, pickles, which can run code, and archives.
OTHERS = (".gguf", ".onnx", ".npz", ".bin", ".pth", ".pt", ".ckpt", ".zip", ".tar", ".tar.gz", ".tgz")


def is_run(folder: str | Path) -> bool:
    return (Path(folder) / "checkpoints").is_dir()


def locate(name: str, weights: bool = True) -> Path:
    """The folder of a checkpoint's config.json and tokenizer: of a name of SHIPPED, a run, a Hugging Face
    folder, or a hub name, which is downloaded once."""
    if name in SHIPPED:
        return SHIPPED[name]
    folder = Path(os.path.expanduser(name))  # Path.expanduser raises where there is no such user
    if folder.is_dir():
        return folder / "model" if is_run(folder) else folder
    if folder.is_file():
        raise no_checkpoint(folder)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise InputError(f"{name}: no such folder, expected a run, a Hugging Face folder or OWNER/NAME")
    from huggingface_hub import snapshot_download

    files = ["*.json", "*.txt", "*.jinja", "tokenizer.model"]
    files += ["*.safetensors"] if weights else []
    try:
        return Path(snapshot_download(name, allow_patterns=files))
    except Exception as error:  # a dozen kinds, all of which mean that the name cannot be loaded
        reason = str(error).splitlines()[0]
        raise InputError(f"{name}: neither a folder nor a model that the hub gives ({reason})") from error


def no_checkpoint(path: Path, missing: str = "config.json") -> InputError:
    """The error of a file, or of a folder without `missing`, that names what is there in its place."""
    files = [path] if path.is_file() else sorted([*path.iterdir(), *path.glob("onnx/*")])
    for file in files:
        if file.name.lower().endswith(OTHERS):
            hint = "expected a folder with safetensors; examples/real/smollm2.py makes them of GGUF"
            return InputError(f"{file}: is not read, {hint}")
    found = "is a file" if path.is_file() else f"has no {missing}"
    expected = "a run's folder, or a Hugging Face folder of config.json, safetensors and a tokenizer"
    return InputError(f"{path}: {found}, expected {expected}")


def base_of(folder: Path) -> Path | None:
    """The folder of the base model of a plain LoRA adapter, relative to the adapter or to here; None for
    other folders."""
    path = folder / ADAPTER
    if not path.is_file() or any(folder.glob("model*.safetensors")):
        return None
    settings = read_json(path, base_model_name_or_path=str)
    kind = settings.get("peft_type")
    name = settings["base_model_name_or_path"]
    expect(kind == "LORA", f"{path}: peft_type", kind, "'LORA'")
    for key in ("use_dora", "fan_in_fan_out", "lora_bias", "layer_replication", "alpha_pattern"):
        expect(not settings.get(key), f"{path}: {key}", settings.get(key), "false or null, plain LoRA")
    init = settings.get("init_lora_weights")  # PiSSA, OLoRA and others train beside another base
    keeps_base = init in (None, True, False, "gaussian", "eva", "orthogonal")
    expect(keeps_base, f"{path}: init_lora_weights", init, "true, for the base as it was released")
    if (folder / name / "config.json").is_file():
        return folder / name
    try:
        return locate(name)
    except InputError as error:
        raise InputError(f"{folder}: is a LoRA adapter without its base model: {error}") from error


def end_ids(folder: Path) -> set[int]:
    """The ids that end a text, by generation_config.json or else config.json of a Hugging Face folder, or of
    an adapter's base model."""
    folder = base_of(folder) or folder
    for name in ("generation_config.json", "config.json"):
        ids = read_json(folder / name).get("eos_token_id") if (folder / name).exists() else None
        if ids is not None:
            return set(ids if isinstance(ids, list) else [ids])
    return set()


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
    """{tensor name: its slice} of a checkpoint, or of an adapter's base model with the updates added:
    alpha / r B A (Hu et al. 2021), with rsLoRA alpha / sqrt(r) B A (Kalajdzievski 2023). Tensors that the
    adapter holds whole (a step head) replace the base's."""
    if (base := base_of(folder)) is None:
        return open_tensors(folder)
    settings = read_json(folder / ADAPTER)
    path = folder / "adapter_model.safetensors"
    tensors = open_tensors(base)
    updates = {}
    for key, stored in open_file(path).items():
        name = key.removeprefix("base_model.model.").replace(".base_layer.", ".")
        module, is_update, part = name.partition(".lora_")
        if is_update:
            updates.setdefault(module, {})[part] = stored[...].astype(np.float32)
        else:
            tensors[name.replace(".modules_to_save.", ".")] = stored
    for module, parts in updates.items():
        name = f"{module}.weight"
        b_Or, a_rI = parts.get("B.weight"), parts.get("A.weight")
        shape = None if b_Or is None or a_rI is None else [len(b_Or), a_rI.shape[1]]
        if name not in tensors or shape != list(tensors[name].get_shape()):
            raise InputError(f"{path}: {module}: updates no matrix of {base}; is that its base model?")
        r = len(a_rI)
        scale = settings["lora_alpha"] / (r**0.5 if settings.get("use_rslora") else r)
        tensors[name] = Updated(tensors[name], np.float32(scale) * b_Or, a_rI)
    return tensors


def open_tensors(folder: Path) -> dict:
    """{tensor name: its slice} of model.safetensors or of all shards of the index. A slice has `get_shape()`
    and `get_dtype()`, and reads what it is indexed by. Names lose the prefix of TRL's value head (PQM)."""
    index = folder / INDEX
    files = {"model.safetensors"}
    if index.exists() and not (folder / "model.safetensors").exists():
        files = {*read_json(index, weight_map=dict)["weight_map"].values()}
        are_beside = files and all(isinstance(file, str) and Path(file).name == file for file in files)
        expect(are_beside, f"{index}: weight_map", sorted(map(str, files)), "names of files beside it")
    tensors = {}
    for file in sorted(files):
        for name, x in open_file(folder / file).items():
            tensors[name.removeprefix("pretrained_model.")] = x
    return tensors


def open_file(path: Path) -> dict:
    """{tensor name: its slice} of one file, not mapped, since mapped pages count as memory."""
    if not path.is_file():
        raise no_checkpoint(path.parent, path.name)
    try:
        stored = safe_open(path, framework="np", backend="pread")
    except SafetensorError as error:
        raise InputError(f"{path}: not a whole safetensors file ({error}); download it again") from error
    return {name: stored.get_slice(name) for name in stored.keys()}  # noqa: SIM118 (no dictionary)


def write_tensors(folder: Path, tensors: dict[str, tuple]):
    """Writes the tensors of a checkpoint in float32, inverse of `open_tensors`: {name: (array, index into
    its first axes: (), a layer, or a layer and an expert; stored transposed)}."""
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
            (folder / file).chmod(folder.stat().st_mode & 0o666)  # safetensors 0.8 leaves 0600
        except SafetensorError as error:
            raise InputError(f"{folder / file}: cannot be written ({error})") from error
    if split.is_sharded:
        write_json(folder / INDEX, {"metadata": split.metadata, "weight_map": split.tensor_to_filename})
