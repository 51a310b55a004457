"""Files that a command leaves and reads again: each is whole or not there."""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from omegaconf import DictConfig, ListConfig, OmegaConf

from prm_jax import InputError
from prm_jax.launch.config import expect, type_name


def cache_folder() -> Path:
    """The folder of what later commands read again: compiled programs, samples."""
    parent = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(parent) / "prm_jax"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def decode_json(data: bytes, where: str, decode: Callable = json.loads):
    """decode(text) of JSON in UTF-8; InputError, which names its place, if it is broken."""
    try:
        value = decode(data.decode("utf-8-sig").rstrip())  # -sig drops a byte order mark
        if b"\\ud" in data.lower():
            json.dumps(value, ensure_ascii=False).encode()  # half of a pair of surrogates has no UTF-8
        return value
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: broken JSON ({error})") from None


def decode_object(data: bytes, where: str) -> dict:
    value = decode_json(data, where)
    expect(isinstance(value, dict), where, type_name(type(value)), "an object with named fields")
    return value


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Gives a path to write to; the file gets its own name once it is written, after a failure never."""
    temporary = path.with_name(f"tmp.{path.name}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: dict):
    """Writes a JSON file in one step, with null for NaN and infinities."""
    finite = json.loads(json.dumps(value), parse_constant=lambda _: None)
    with replaced(path) as temporary:
        temporary.write_text(json.dumps(finite, indent=2) + "\n")


def read_json(path: Path, **kinds) -> dict:
    """The object in a JSON file; `kinds` are types of its keys, `int | None` of one that may be missing."""
    value = decode_object(path.read_bytes(), str(path))
    for key, kind in kinds.items():
        found = value.get(key)
        expect(isinstance(found, kind), f"{path}: {key}", type_name(type(found)), type_name(kind))
    return value


def read_yaml(path: Path) -> DictConfig | ListConfig:
    """The content of a YAML file; InputError where it is broken."""
    try:
        return OmegaConf.load(path)
    except Exception as error:  # noqa: BLE001 (of YAML, OmegaConf or the system)
        raise InputError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from None


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_lines(path: Path, cuts: bool = False) -> Iterator[dict]:
    """The rows of a JSON Lines file; half a last line, which a stop leaves, is none; `cuts` removes it."""
    with path.open("r+b" if cuts else "rb") as file:
        for number, line in enumerate(iter(file.readline, b""), 1):
            if line.endswith(b"\n"):
                yield decode_object(line, f"{path} line {number}")
            elif cuts:
                file.truncate(file.tell() - len(line))


def keep_steps(path: Path, last: int):
    """Leaves the lines of a JSON Lines file whose `step` is at most `last`, from which a run resumes."""
    path.touch()
    kept = [row for row in read_lines(path) if row["step"] <= last]
    with replaced(path) as temporary:  # a kill now loses no line
        temporary.write_text("".join(json.dumps(row) + "\n" for row in kept))


def append_lines(path: Path, rows: list[dict]):
    with path.open("ab") as file:
        file.writelines(json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows)
