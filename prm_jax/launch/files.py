"""Files that a command leaves and reads again: each is whole or not there, and damage is seen by a checksum."""

import atexit
import contextlib
import functools
import hashlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from prm_jax import InputError
from prm_jax.launch.config import expect, type_name

CHECKSUM = "sha256: "
ROOM = 1 << 20  # bytes that must fit in the cache: a fuller disk would refuse in the middle
AGAIN = "delete it, and its command makes it again (resume=FOLDER where the command has that key)"


@functools.cache
def cache_folder() -> Path:
    """The folder of what later commands read again (compiled programs, samples, verdicts): ~/.cache/prm_jax or, where
    there is no home or it cannot be written, a temporary one, which one line says."""
    try:
        if os.environ.get("HOME") == "":  # Path.home() would be /
            raise RuntimeError("HOME is empty")
        folder = Path.home() / ".cache" / "prm_jax"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(ROOM))
        return folder
    except (OSError, RuntimeError) as error:  # RuntimeError: nobody knows the user's home
        why = getattr(error, "strerror", None) or error
        print(f"cache       ~/.cache/prm_jax: {why}; nothing is kept for later commands", file=sys.stderr)
    temporary = tempfile.TemporaryDirectory(prefix="prm_jax_")
    atexit.register(temporary.cleanup)
    return Path(temporary.name)


def _whole_number(digits: str) -> int:
    if len(digits) > 300:  # fits no float, and from 4,300 digits on Python refuses
        raise ValueError(f"a whole number of {len(digits)} digits, expected at most 300")
    return int(digits)


def _no_constant(name: str):
    raise ValueError(f"{name} is no number")


DECODER = json.JSONDecoder(parse_int=_whole_number)
STRICT = json.JSONDecoder(parse_int=_whole_number, parse_constant=_no_constant)  # of what we write: no NaN


def decode_json(data: bytes, where: str, decode: Callable = DECODER.decode):
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


def sync(file):
    """Waits until an open file's bytes are on the disk; an error names the file."""
    try:
        file.flush()
        os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, file.name) from None


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Gives a path to write to; the file gets its own name once its bytes are on the disk, after a failure never."""
    temporary = path.with_name(f"tmp.{path.name}")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            sync(file)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: dict, checksum: bool = True):
    """Writes a JSON file in one step, with null for NaN and infinities, and a key `checksum` of the others."""
    finite = json.loads(json.dumps(value), parse_constant=lambda _: None)
    finite |= {"checksum": sha256(json.dumps(finite))} if checksum else {}
    with replaced(path) as temporary:
        temporary.write_text(json.dumps(finite, indent=2) + "\n")


def read_json(path: Path, remedy: str = AGAIN, **kinds) -> dict:
    """The object in a JSON file that a command has left, without its checksum. `kinds` are types of its keys, such as
    `int | None` for one that may be missing. InputError, which names the remedy, where it holds anything else."""
    try:
        value = decode_json(path.read_bytes(), str(path))
        expect(isinstance(value, dict), str(path), type_name(type(value)), "an object with named fields")
        if value.pop("checksum", None) not in (
            None,
            sha256(json.dumps(value)),
        ):  # an earlier version wrote none
            raise InputError(
                f"{path}: checksum: is that of other content: the file is damaged, or was edited"
            )
        for key, kind in kinds.items():
            expect(
                isinstance(value.get(key), kind),
                f"{path}: {key}",
                type_name(type(value.get(key))),
                type_name(kind),
            )
    except (InputError, RecursionError) as error:
        why = str(error) if isinstance(error, InputError) else f"{path}: nested too deeply"
        raise InputError(f"{why}; {remedy}") from None
    return value


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def write_yaml(path: Path, value: DictConfig | ListConfig):
    """Writes a YAML file in one step, with its checksum in the first line, a comment."""
    text = OmegaConf.to_yaml(value)
    with replaced(path) as temporary:
        temporary.write_text(f"# {CHECKSUM}{sha256(text)}\n{text}", "utf-8")


def read_yaml(path: Path) -> DictConfig | ListConfig:
    """The content of a YAML file; InputError where it is broken, or its checksum is that of other content."""
    try:
        whole = path.read_text("utf-8")
        first, _, text = whole.partition("\n")
        if not whole or CHECKSUM in first and first != f"# {CHECKSUM}{sha256(text)}":
            raise OSError("it is empty, or has another checksum; without its first line it is taken as it is")
        return OmegaConf.load(io.StringIO(whole))
    except (yaml.YAMLError, OmegaConfBaseException, OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from None


SUMS = b"The first 16 digits of the sha256 of the file up to the end of each line:\n"


def sums_file(path: Path) -> Path:
    """The file of checksums beside a file of kept lines."""
    return Path(f"{path}.sum")


class KeptLines:
    """A JSON Lines file that a command appends to and goes on with. Beside it lies FILE.sum with a checksum for each
    line, of all bytes up to its end, written when the line is on the disk: a changed, lost, doubled or moved line is an
    InputError. Lines that have none yet (a stop came between, an earlier version wrote them, the user has deleted
    FILE.sum) are taken where they are whole. The file is read to its end, then appended to."""

    def __init__(self, path: Path):
        self.path, self.digest, self.number, self.ended = path, hashlib.sha256(), 0, False
        self.file, self.sums = open(path, "a+b"), open(sums_file(path), "a+b")  # noqa: SIM115 (closed by close)
        self.file.seek(0), self.sums.seek(0)
        self.has_sums = (sums := self.sums.read()).startswith(SUMS)
        self.known = sums[len(SUMS) :] if self.has_sums else b""
        self.right = bytearray(SUMS)  # what FILE.sum should hold of the lines that were read

    def read(self) -> dict | None:
        """The next line; None after the last one that is whole, where the file then ends."""
        start, line = self.file.tell(), b"" if self.ended else self.file.readline()
        if not line.endswith(b"\n"):
            return self._end(start)
        where, known = f"{self.path} line {self.number + 1}", self.known[17 * self.number :][:17]
        try:
            row = decode_json(line, where, STRICT.decode)
            expect(isinstance(row, dict), where, type_name(type(row)), "an object with named fields")
            self.right += (new := self._sum(line))
            if len(known) == 17 and new != known:
                raise InputError(f"{where}: found another line than was written there, or before")
        except InputError as error:
            if self.has_sums and len(known) < 17:
                return self._end(start)
            remedy = f"delete the file to make it again, or {self.sums.name} to take its lines as they are"
            raise InputError(f"{error}; {remedy}") from None
        return row

    def append(self, rows: list[dict]):
        """Writes lines behind the last one that was read."""
        if not self.number:
            self.sums.write(SUMS), self.sums.flush()
        lines = [json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows]
        self.file.writelines(lines)
        sync(self.file)
        self.sums.writelines(map(self._sum, lines))
        sync(self.sums)

    def close(self):
        self.file.close(), self.sums.close()

    def _end(self, end: int):
        if self.ended:
            return
        if dropped := os.fstat(self.file.fileno()).st_size - end:
            print(f"kept        {self.path}: its last {dropped:,} bytes, cut off by a stop, are made again")
        self.file.truncate(end), self.file.seek(end)
        self.sums.truncate(0)
        if self.number:  # before the first line there is nothing worth to keep
            self.sums.write(self.right), self.sums.flush()
        self.ended = True

    def _sum(self, line: bytes) -> bytes:
        self.digest.update(line)
        self.number += 1
        return self.digest.hexdigest()[:16].encode() + b"\n"
