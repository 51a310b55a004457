"""Reads and writes the safetensors files of a Hugging Face checkpoint: model.safetensors, or shards and their index."""

import json
import math
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from prm_jax import InputError
from prm_jax.launch.files import replaced, write_json

DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}
SHARD = 5 * 10**9  # bytes of a written file at most, as in transformers; a larger tensor has one to itself
INDEX = "model.safetensors.index.json"


def open_tensors(folder: Path) -> dict:
    """{tensor name: its slice} of model.safetensors or of all shards of the index; reads only the headers. A slice
    has `get_shape()` and `get_dtype()`, and reads what it is indexed by. Files are not mapped, since mapped pages
    count as memory. The library refuses truncated files and overlapping tensors; nothing is unpickled."""
    index = folder / INDEX
    files = {"model.safetensors": None}
    if index.exists():
        try:
            weight_map = json.loads(index.read_text())["weight_map"]
            files = {file: {name for name in weight_map if weight_map[name] == file} for file in weight_map.values()}
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
        write_json(folder / INDEX, {"metadata": split.metadata, "weight_map": split.tensor_to_filename}, checksum=False)
