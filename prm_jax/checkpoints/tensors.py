"""safetensors files: what is in them, read piece by piece, written piece by piece; nothing is unpickled.

A checkpoint folder holds one, model.safetensors, or several shards and their index.
"""

import dataclasses
import json
import math
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from prm_jax import InputError

STORED = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(jnp.bfloat16),
}
PIECE = 2**24  # bytes of a file that are mapped at a time
# Bytes of a written file at most, as transformers writes them; a tensor of more has one to itself.
SHARD = 5 * 10**9
INDEX = "model.safetensors.index.json"


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies in a safetensors file. Mapped only a piece at a time, while that is copied: mapped pages count as
    memory, and the embedding can be a quarter of a model."""

    path: Path
    name: str
    kind: str  # the format's name of the type, such as BF16
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file

    @property
    def dtype(self) -> np.dtype:
        if self.kind not in STORED:
            raise InputError(f"{self.path}: tensor {self.name}: has type {self.kind}, expected {', '.join(STORED)}")
        return STORED[self.kind]

    def read(self, index) -> np.ndarray:
        """The part at an index (a number, a tuple of slices), mapped: no more of the file is read than is used of it."""
        return np.memmap(self.path, self.dtype, "r", self.offset, self.shape)[index]

    def copy(self, index: tuple[slice, ...], out: np.ndarray):
        """Copies the part at an index into `out`, which may be a transposed view and of another type."""
        start, stop, _ = index[0].indices(self.shape[0])
        piece = max(1, PIECE // (math.prod(self.shape[1:]) * self.dtype.itemsize))
        if self.dtype == out.dtype == jnp.bfloat16:  # numpy transposes its own types much faster
            out = out.view(np.uint16)
        for at in range(start, stop, piece):
            x = self.read((slice(at, min(at + piece, stop)), *index[1:]))
            out[at - start : at - start + len(x)] = x.view(out.dtype) if out.dtype == np.uint16 else x


def open_tensors(folder: Path) -> dict[str, StoredTensor]:
    """{tensor name: where it lies}, over model.safetensors or all shards of the index; reads the headers alone."""
    index = folder / INDEX
    names, weight_map = ["model.safetensors"], {}
    if index.exists():
        try:
            weight_map = json.loads(index.read_text())["weight_map"]
            names = sorted(set(weight_map.values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{index}: expected JSON with a weight_map ({error})") from error
        if not names or any(not isinstance(name, str) or Path(name).name != name for name in names):
            raise InputError(f"{index}: weight_map: expected names of files beside it")
    tensors = {}
    for name in names:
        path = folder / name
        if not path.is_file():
            raise InputError(f"{path}: no such file{why_no_weights(folder)}")
        tensors |= read_header(path)
    for name, file in weight_map.items():
        if name not in tensors or tensors[name].path.name != file:
            raise InputError(f"{index}: tensor {name}: is not in {file}, which the weight_map names for it")
    return tensors


def why_no_weights(folder: Path) -> str:
    """What a folder holds in place of safetensors, and what to do about it."""
    if (folder / "adapter_config.json").exists():
        return "; the folder holds an adapter (LoRA): merge it into its base model and save that"
    pickles = sorted(p.name for kind in ("*.bin", "*.pt", "*.pth") for p in folder.glob(kind))
    if pickles or (folder / "pytorch_model.bin.index.json").exists():
        return (
            f"; {pickles[0] if pickles else 'its weights'} is a pickle, which can run code when it is read, and is "
            "not read: where you trust it, convert it once with torch.load(FILE, weights_only=True) and "
            "safetensors.torch.save_file(TENSORS, 'model.safetensors')"
        )
    return ""


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The table at the start of a safetensors file: 8 bytes of its length, JSON, then the data."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if 8 + length <= size else b""
    try:
        table = json.loads(text)
        table.pop("__metadata__", None)
        found = {
            name: StoredTensor(path, name, x["dtype"], tuple(x["shape"]), 8 + length + x["data_offsets"][0])
            for name, x in table.items()
        }
        end = 8 + length + max((x["data_offsets"][1] for x in table.values()), default=0)
        for x in found.values():
            begin, stop = table[x.name]["data_offsets"]
            if not 0 <= begin <= stop:
                raise ValueError(f"tensor {x.name} begins at {begin} and ends at {stop}")
            if x.kind in STORED and stop - begin != math.prod(x.shape) * x.dtype.itemsize:
                raise ValueError(f"tensor {x.name} takes {stop - begin} bytes for shape {x.shape}")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(f"{path}: not a whole safetensors file ({error})") from error
    if end > size:
        raise InputError(f"{path}: not a whole safetensors file (has {size} bytes, its tensors need {end})")
    return found


def write_tensors(folder: Path, parts: list[tuple]):
    """Writes the tensors of a checkpoint, in float32; inverse of `open_tensors`.

    A part is (name, array, the layer of it or ... for everything, stored transposed).
    More than SHARD bytes go into several files with an index; old files that it does not name are left lying. Takes the memory
    of one tensor beside the arrays.
    """
    for name in ("model.safetensors", INDEX):  # either would be read before the other
        (folder / name).unlink(missing_ok=True)
    shards, free = [[]], SHARD
    for part in parts:
        size = n_bytes(*part[1:3])
        if shards[-1] and size > free:
            shards.append([])
            free = SHARD
        shards[-1].append(part)
        free -= size
    names = [f"model-{k:05}-of-{len(shards):05}.safetensors" for k in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = ["model.safetensors"]
    for name, shard in zip(names, shards, strict=True):
        write_file(folder / name, shard)
    if len(shards) > 1:
        weight_map = {part[0]: name for name, shard in zip(names, shards, strict=True) for part in shard}
        total = sum(n_bytes(*part[1:3]) for part in parts)
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def write_file(path: Path, parts):
    """A safetensors file of float32 tensors, inverse of `read_header` and `StoredTensor.read`; one is in memory at a time."""
    table, at = {"__metadata__": {"format": "pt"}}, 0
    for name, x, index, transposed in parts:
        shape = x.shape if index is ... else x.shape[1:]
        offsets = [at, at := at + n_bytes(x, index)]
        table[name] = {"dtype": "F32", "shape": shape[::-1] if transposed else shape, "data_offsets": offsets}
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, x, index, transposed in parts:
            x = np.asarray(x[index], "<f4")
            file.write(np.ascontiguousarray(x.T if transposed else x))


def n_bytes(x, index) -> int:
    """Bytes of the part of an array, in float32."""
    return 4 * math.prod(x.shape if index is ... else x.shape[1:])
