"""Reads and writes rows of data files (JSON Lines, JSON, Parquet, the hub); errors name file, line and field.

datasets would force one type on all values of a column: PRM800K's and TRL's labels mix booleans and nulls.
"""

import gzip
import hashlib
import itertools
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from prm_jax import InputError
from prm_jax.launch.config import expect
from prm_jax.launch.files import append_lines, decode_json, read_lines, replaced

KIND_WORDS = {str: "text", dict: "an object", list: "a list", bool: "true or false", int: "a whole number"}


def field_error(name: str, value, expected: str) -> InputError:
    """The one-line error of a field."""
    text = "null" if value is None else repr(value)
    return InputError(f"{name}: found {text if len(text) <= 60 else text[:57] + '...'}, expected {expected}")


def require(is_right: bool, name: str, value, expected: str):
    """Raises `field_error` unless `is_right`."""
    if not is_right:
        raise field_error(name, value, expected)


def field(row: dict, name: str, kind: type, inside: str = "", *, null: bool = False):
    """The value of a required field of this type; a bool is not an int. inside: a part's place and "."."""
    require(isinstance(row, dict), inside.removesuffix("."), row, "an object")
    if name not in row:
        found = ", ".join(map(str, row))
        raise InputError(f"{inside}{name}: missing, expected {KIND_WORDS[kind]}; found {found}")
    value = row[name]
    is_kind = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if not is_kind and not (null and value is None):
        raise field_error(inside + name, value, KIND_WORDS[kind])
    return value


def optional(row: dict, name: str, kind: type, inside: str = ""):
    """Like `field`, but None where the field is missing or null."""
    return field(row, name, kind, inside, null=True) if name in row else None


def texts(row: dict, name: str) -> tuple[str, ...]:
    """A field that holds a list of at least one text."""
    values = field(row, name, list)
    if not values:
        raise InputError(f"{name}: found no steps, expected at least one")
    for index, value in enumerate(values):
        if not isinstance(value, str):
            raise field_error(f"{name}[{index}]", value, "text")
    return tuple(values)


def writable(text: str) -> str:
    """The text with U+FFFD for half a pair of surrogates, which JSON may name and no file can hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def row_place(path, number: int) -> str:
    """A row's place in an error: its line in JSON Lines, its rank in other files, both from 1."""
    return f"{path} {'line' if str(path).removesuffix('.gz').endswith('.jsonl') else 'row'} {number}"


def read_rows(path) -> Iterator[tuple[int, dict]]:
    """Yields (number as in `row_place`, row) of a .jsonl, .json (either with .gz) or .parquet file. A .json
    file is a list of objects, or objects one after another; blank lines do not count. Raises InputError if
    the file is missing, empty or broken, or a row is not an object."""
    path, number = Path(path), 0
    readers = {".jsonl": json_lines, ".json": json_values, ".parquet": parquet_rows}
    suffix = Path(path.name.removesuffix(".gz")).suffix
    if not path.is_file() or suffix not in readers:
        raise InputError(f"{path}: expected a file .jsonl, .json (or .gz of these) or .parquet")
    try:
        for number, row in readers[suffix](path):
            require(isinstance(row, dict), row_place(path, number), row, "an object with named fields")
            yield number, row
    except InputError:
        raise
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from None
    if number == 0:
        raise InputError(f"{path}: is empty, expected at least one row")


def open_file(path: Path, mode: str):
    return gzip.open(path, mode) if path.name.endswith(".gz") else open(path, mode)


def json_lines(path: Path) -> Iterator[tuple[int, dict]]:
    """Yields (number from 1, value) of the lines that are not blank."""
    with open_file(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.removeprefix(b"\xef\xbb\xbf").strip():
                yield number, decode_json(line, f"{path} line {number}")


def json_values(path: Path) -> Iterator[tuple[int, dict]]:
    with open_file(path, "rb") as file:
        return enumerate(decode_json(file.read(), str(path), decode_values), 1)


def decode_values(text: str) -> list:
    """The objects of a list, or of values one after another."""
    blank, end, rows = re.compile(r"\s*"), 0, []
    while end < len(text):
        value, end = json.JSONDecoder().raw_decode(text, blank.match(text, end).end())
        rows += value if isinstance(value, list) else [value]
    return rows


def parquet_rows(path: Path) -> Iterator[tuple[int, dict]]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        yield from enumerate((row for batch in file.iter_batches() for row in batch.to_pylist()), 1)


def is_pool(row: dict) -> bool:
    """Whether a file's row is one of a pool: it has candidates, or is as search-and-learn writes it."""
    is_texts = {"problem", "completions"} <= row.keys() and not {"labels", "outcome"} & row.keys()
    return "candidates" in row or is_texts


def load_hub(name: str, split: str) -> Iterator[tuple[int, dict]]:
    """Yields (number from 1, row) of one split of a Hugging Face data set, such as trl-lib/math_shepherd."""
    import datasets

    try:
        rows = datasets.load_dataset(name, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise InputError(f"{name} split {split}: cannot be loaded ({str(error).splitlines()[0]})") from None
    yield from enumerate(rows, 1)


def write_rows(path, rows: Iterable[dict]):
    """Writes .jsonl or .jsonl.gz; the file appears only when it is complete."""
    path = Path(path)
    if not path.name.endswith((".jsonl", ".jsonl.gz")):
        raise InputError(f"{path}: unknown type of file to write, expected .jsonl or .jsonl.gz")
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as temporary, open_file(temporary, "wb") as file:
        file.writelines(json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows)


def require_same(row: dict, **wanted):
    """Raises InputError where a kept row has other values than those of its item."""
    for name, value in wanted.items():
        expect(row.get(name) == value, name, row.get(name), f"{value!r}: it was made from other input")


def append_rows(path, items: Iterable, size: int | None, check: Callable, make: Callable) -> Iterator[tuple]:
    """Completes a JSON Lines file with one row per item; yields (the rows of `size` items, how many of them
    it had). make(items, number of the first, how many have a row) gives the other rows; where it makes them
    in fixed chunks, the file becomes byte for byte that of an undisturbed call. size=None: `items` are the
    chunks, lists. InputError if a line is broken or check(row, item) raises."""
    items, number, path, hint = iter(items), 0, Path(path), "delete the file to make it again"
    chunks = items if size is None else iter(lambda: list(itertools.islice(items, size)), [])
    path.touch()
    kept = read_lines(path, cuts=True)
    for chunk in chunks:
        rows = list(itertools.islice(kept, len(chunk)))
        for i, (row, item) in enumerate(zip(rows, chunk, strict=False), number + 1):
            try:
                check(row, item)
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise InputError(f"{path} line {i}: {error}; {hint}") from None
        old = len(rows)
        if old < len(chunk):  # so the file has been read to its end
            new = make(chunk, number, old)
            append_lines(path, new)
            rows += new
        number += len(chunk)
        yield rows, old
    if next(kept, None) is not None:
        raise InputError(f"{path} line {number + 1}: it was made from other input; {hint}")


def file_fingerprint(path) -> str:
    """sha256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
