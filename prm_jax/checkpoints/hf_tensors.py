"""The safetensors files of a Hugging Face checkpoint: one, model.safetensors, or several and their index."""

import json
import math
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from prm_jax import InputError
from prm_jax.launch.run_folder import write_json

DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}
# Bytes of a written file at most, as transformers writes them; a larger tensor has one to itself.
SHARD = 5 * 10**9
INDEX = "model.safetensors.index.json"


def open_tensors(folder: Path) -> dict:
    """{tensor name: its slice}, over model.safetensors or all shards of the index; reads the headers alone.

    A slice has `get_shape()`, `get_dtype()`, and reads what it is indexed by. Not mapped: mapped pages count as memory.
    The library refuses files that are cut, and tensors that overlap or do not fill theirs; nothing is unpickled.
    """
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
        path = folder / file
        stored = open_file(path)
        names = stored.keys()
        for name in sorted((expected or set()) - names):
            raise InputError(f"{index}: tensor {name}: is not in {file}, which the weight_map names for it")
        for name in sorted(names & tensors.keys()):
            raise InputError(f"{path}: tensor {name}: another file of the folder has it too")
        tensors |= stored
    return tensors


def open_file(path: Path) -> dict:
    """The same of one file."""
    if not path.is_file():
        raise InputError(f"{path}: no such file{why_no_weights(path.parent)}")
    try:
        stored = safe_open(path, framework="np", backend="pread")
    except SafetensorError as error:
        raise InputError(f"{path}: not a whole safetensors file ({error})") from error
    return {name: stored.get_slice(name) for name in stored.keys()}  # noqa: SIM118 (no dictionary)


def why_no_weights(folder: Path) -> str:
    """What a folder holds in place of safetensors, and what to do about it."""
    convert = "torch.load(FILE, weights_only=True) and safetensors.torch.save_file(TENSORS, 'model.safetensors')"
    why = "is a pickle, which can run code when it is read, and is not read: where you trust it, convert it once with"
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth"))
    return f"; {pickles[0]} {why} {convert}" if pickles else ""


def write_tensors(folder: Path, parts: list[tuple]):
    """Writes the tensors of a checkpoint in float32, inverse of `open_tensors`; files get names once all are whole.

    A part is (name, array, what of its first axes is meant: (), a layer, of that an expert; stored transposed). Takes the memory of one file
    (5 GB) beside the arrays.
    """
    size = lambda part: 4 * math.prod(part[1].shape[len(part[2]) :])
    shards, free = [], -1
    for part in parts:
        if (free := free - size(part)) < 0:
            shards.append([])
            free = SHARD - size(part)
        shards[-1].append(part)
    n = len(shards)
    files = ["model.safetensors"] if n == 1 else [f"model-{k + 1:05}-of-{n:05}.safetensors" for k in range(n)]
    for file, shard in zip(files, shards, strict=True):
        arrays = {name: np.asarray(x[i], np.float32) for name, x, i, _ in shard}
        arrays |= {name: np.ascontiguousarray(arrays[name].T) for name, *_, transposed in shard if transposed}
        try:
            save_file(arrays, folder / f"{file}.tmp", metadata={"format": "pt"})
        except SafetensorError as error:
            (folder / f"{file}.tmp").unlink(missing_ok=True)
            raise InputError(f"{folder / file}: cannot be written ({error})") from error
    (folder / INDEX).unlink(missing_ok=True)  # read before the one file
    for file in files:
        (folder / f"{file}.tmp").replace(folder / file)
    if n > 1:
        weight_map = {part[0]: file for file, shard in zip(files, shards, strict=True) for part in shard}
        write_json(folder / INDEX, {"metadata": {"total_size": sum(map(size, parts))}, "weight_map": weight_map})
    for old in {path.name for path in folder.glob("model*.safetensors")} - set(files):
        (folder / old).unlink()
