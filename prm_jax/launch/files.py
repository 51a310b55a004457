"""Files that a command leaves and reads again: each is whole or not there."""

import contextlib
import functools
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from prm_jax import InputError
from prm_jax.launch.config import expect, type_name


@functools.cache
def cache_folder() -> Path:
    """The folder of what later commands read again (compiled programs, samples, verdicts): ~/.cache/prm_jax, or one in
    the system's temporary folder where there is no home that can be written."""
    for parent in ("~/.cache", tempfile.gettempdir()):
        folder = Path(os.path.expanduser(parent)) / "prm_jax"
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
            break
    return folder


def decode_json(data: bytes, where: str, decode: Callable = json.loads):
    """decode(text) of JSON in UTF-8, with one-line errors."""
    try:
        value = decode(data.decode("utf-8-sig").rstrip())  # -sig drops a byte order mark
        if b"\\ud" in data.lower():
            json.dumps(value, ensure_ascii=False).encode()  # half of a pair of surrogates has no UTF-8
        return value
    except json.JSONDecodeError as error:
        line = "" if re.search(r" line \d+$", where) else f"line {error.lineno} "
        problem = f"{error.msg} at {line}column {error.colno}"
    except (ValueError, RecursionError) as error:
        problem = str(error)
    raise InputError(f"{where}: broken JSON ({problem})")


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Gives a path to write to; the file gets its own name once its bytes are on the disk, after a failure never."""
    temporary = path.with_name(f"tmp.{path.name}")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: dict):
    """Writes a JSON file in one step, with null for NaN and infinities."""
    finite = json.loads(json.dumps(value), parse_constant=lambda _: None)
    with replaced(path) as temporary:
        temporary.write_text(json.dumps(finite, indent=2) + "\n")


def read_json(path: Path, **kinds) -> dict:
    """The object in a JSON file. `kinds` are types of its keys, such as `int | None` for one that may be missing.
    InputError where the file holds anything else."""
    value = decode_json(path.read_bytes(), str(path))
    expect(isinstance(value, dict), str(path), type_name(type(value)), "an object with named fields")
    for key, kind in kinds.items():
        is_right = isinstance(value.get(key), kind)
        expect(is_right, f"{path}: {key}", type_name(type(value.get(key))), type_name(kind))
    return value


def write_yaml(path: Path, value: DictConfig | ListConfig):
    """Writes a YAML file in one step."""
    with replaced(path) as temporary:
        OmegaConf.save(value, temporary)


def read_yaml(path: Path) -> DictConfig | ListConfig:
    """The content of a YAML file; InputError where it is broken."""
    try:
        return OmegaConf.load(path)
    except (yaml.YAMLError, OmegaConfBaseException, OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from None


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class KeptLines:
    """A JSON Lines file that a command appends to and goes on with: it is read to its end, then appended to. Half a
    last line, which a stop has left, is dropped; any other broken line is an InputError."""

    def __init__(self, path: Path):
        self.path, self.number = path, 0
        self.file = open(path, "a+b")  # noqa: SIM115 (closed by close)
        self.file.seek(0)

    def read(self) -> dict | None:
        """The next line; None after the last whole one, where the file then ends."""
        start = self.file.tell()
        line = self.file.readline()
        if not line.endswith(b"\n"):
            self.file.truncate(start)
            return None
        self.number += 1
        where = f"{self.path} line {self.number}"
        row = decode_json(line, where)
        expect(isinstance(row, dict), where, type_name(type(row)), "an object with named fields")
        return row

    def append(self, rows: list[dict]):
        """Writes lines behind the last one that was read."""
        self.file.writelines(json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows)
        self.file.flush()
        os.fsync(self.file.fileno())

    def close(self):
        self.file.close()
