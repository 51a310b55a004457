"""Reads rows of data files (JSON Lines, JSON, Parquet, the hub); errors name file, line and field.

datasets would force one type on all values of a column: PRM800K's and TRL's labels mix booleans and nulls.
"""

import contextlib
import gzip
import hashlib
import json
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

from prm_jax import InputError
from prm_jax.launch.config import expect
from prm_jax.launch.files import decode_json
from prm_jax.solutions import is_probability

KIND_WORDS = {str: "a text", dict: "an object", list: "a list", bool: "true or false", int: "a whole number"}
PROBLEM, TEXT = ("problem", "question", "prompt"), ("completion", "response", "solution")  # names of columns
SCORES = ("step_scores", "prm_step_scores", "scores")
# Readers take one column of each.
SYNONYMS = (PROBLEM, (*TEXT, "text"), ("completions", "steps"), ("gold", "answer"), ("label", "value"))
SYNONYMS += (("id", "problem_id", "unique_id"), SCORES)
# Columns that are read of a row of a pool, also of one of a sample.
POOL = (*PROBLEM, *TEXT, *SCORES, "id", "problem_id", "unique_id", "gold", "answer", "task", "candidates")
POOL += ("completions", "answers", "steps", "extracted_answer", "correct", "finished", "logp")
POOL += ("scores_unit", "policy_tokens")
READER_OF = {  # what reads rows with a column, for errors
    "conversations": "data.name=conversations",
    "process": "data.name=math_shepherd",
    "input": "data.name=math_shepherd",
    **dict.fromkeys(TEXT, "data.name=text, or split_by= beside input=,"),
}
VERDICTS = {"true": 1.0, "false": 0.0, "+": 1.0, "-": 0.0, "1": 1.0, "0": 0.0}  # texts of labels and verdicts


@contextlib.contextmanager
def placed(place, between: str = ": "):
    """Puts a place before the message of an InputError."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}{between}{error}") from None


def rename(row: dict, columns: dict[str, str] | None = None) -> dict:
    """The row under native names: `columns` is {native name: the file's}, where a.b is b of the object a, and
    counts in place of its synonyms. NaN, which pandas writes for what is missing, is None."""
    row = {name: None if isinstance(x, float) and math.isnan(x) else x for name, x in row.items()}
    if not columns:
        return row
    replaced = set(columns.values())
    replaced.update(*(names for names in SYNONYMS if columns.keys() & set(names)))
    renamed = {name: x for name, x in row.items() if name not in replaced}
    for name, column in columns.items():
        value = row
        for part in [column] if column in row else column.split("."):
            is_known = isinstance(value, dict) and part in value
            expect(is_known, f"columns.{name}", column, f"one of {', '.join(map(str, row))}")
            value = value[part]
        renamed[name] = value
    return renamed


def first_name(row: dict, names: str | tuple[str, ...]) -> str:
    """The first of these fields that the row has; without any the first name."""
    names = (names,) if isinstance(names, str) else names
    return next((name for name in names if row.get(name) is not None), names[0])


def field(row: dict, names: str | tuple[str, ...], kind: type, inside: str = "", *, null: bool = False):
    """The value of a required field of this type, of several names the first that the row has; a bool is not
    an int. inside: a part's place and "."."""
    expect(isinstance(row, dict), inside.removesuffix("."), row, "an object")
    name = first_name(row, names)
    if name not in row:
        message = f"{inside}{name}: missing, expected {KIND_WORDS[kind]}; found {', '.join(map(str, row))}"
        if not inside:
            message += f"; data.columns='{{{name}: COLUMN}}' (beside input=: columns) says which column it is"
        told = [f"; {reader} reads rows with {found}" for found, reader in READER_OF.items() if found in row]
        raise InputError("".join([message, *told[:1]]))
    value = row[name]
    is_kind = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    expect(is_kind or (null and value is None), inside + name, value, KIND_WORDS[kind])
    return value


def optional(row: dict, names: str | tuple[str, ...], kind: type, inside: str = ""):
    """Like `field`, but None where the field is missing or null."""
    is_there = first_name(row, names) in row
    return field(row, names, kind, inside, null=True) if is_there else None


def short_text(row: dict, names: str | tuple[str, ...]) -> str | None:
    """An answer or id as text, None where it is missing or null; the number 12.0 is 12."""
    name = first_name(row, names)
    value = row.get(name)
    is_number = type(value) is int or (type(value) is float and math.isfinite(value))
    expect(is_number or value is None or isinstance(value, str), name, value, "a text, a number or null")
    if isinstance(value, float):  # 0.00005, not 5e-05
        value = int(value) if value.is_integer() else format(Decimal(repr(value)), "f")
    return None if value is None else str(value)


def verdict(row: dict, name: str) -> bool | None:
    """A verdict of true and false, 1 and 0, or "true" and "false"; None where it is missing or null."""
    value = as_label(row.get(name))
    expect(value in (None, 0, 1), name, value, 'true or false, 1 or 0, "true" or "false", or null')
    return None if value is None else bool(value)


def as_label(value):
    """A label as a float, of a text such as "+" or "true", too; who stores it refuses what is none."""
    value = VERDICTS.get(value.strip().lower(), value) if isinstance(value, str) else value
    return float(value) if is_probability(value) else value


def texts(row: dict, names: str | tuple[str, ...]) -> tuple[str, ...]:
    """A field that holds a list of at least one text."""
    name = first_name(row, names)
    values = field(row, name, list)
    expect(values, name, "no steps", "at least one")
    for index, value in enumerate(values):
        expect(isinstance(value, str), f"{name}[{index}]", value, "a text")
    return tuple(values)


class Place(NamedTuple):
    """Where a row stands: its line in JSON Lines, its rank in other files, both from 1."""

    path: str | Path
    number: int

    def __str__(self) -> str:
        is_lines = str(self.path).removesuffix(".gz").endswith(".jsonl")
        return f"{self.path} {'line' if is_lines else 'row'} {self.number}"


def read_rows(
    path, columns: dict[str, str] | None = None, split: str | None = None, known: Sequence[str] = ()
) -> Iterator[tuple[Place, dict]]:
    """Yields (Place, row as of `rename`) of a file, or of the split of a Hugging Face data set. InputError if
    it is missing, empty or broken, a row is not an object, or `columns` has a name that is not `known`."""
    for name, column in (columns or {}).items():
        expect(not known or name in known, f"columns.{name}", column, f"one of {', '.join(known)}")
    for number, row in load_hub(path, split) if split else file_rows(Path(path)):
        place = Place(path, number)
        expect(isinstance(row, dict), str(place), row, "an object with named fields")
        with placed(place):
            row = rename(row, columns)
        yield place, row


def file_rows(path: Path) -> Iterator[tuple[int, dict]]:
    """Yields (number, row) of a .jsonl, .json (either with .gz) or .parquet file. A .json file is a list of
    objects, or objects one after another; blank lines do not count."""
    number = 0
    readers = {".jsonl": json_lines, ".json": json_values, ".parquet": parquet_rows}
    suffix = Path(path.name.removesuffix(".gz")).suffix
    if not path.is_file() or suffix not in readers:
        found = "another kind of file" if path.is_file() else "no such file"
        raise InputError(f"{path}: {found}, expected .jsonl, .json (or .gz of these) or .parquet")
    try:
        for number, row in readers[suffix](path):
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
    """Whether a file's row is a problem with candidates, or with whole texts as search-and-learn writes
    it."""
    of_steps = {"labels", "ratings", "outcome"}  # such completions are the steps of one solution
    is_texts = {"problem", "completions"} <= row.keys() and not of_steps & row.keys()
    return "candidates" in row or is_texts


def is_sample(row: dict) -> bool:
    """Whether a file's row is one sample of a pool, as a table has them: a text, or steps with a verdict."""
    has_problem = row.get(first_name(row, PROBLEM)) is not None and not is_pool(row)
    has_text = isinstance(row.get(first_name(row, TEXT)), str) and "completions" not in row
    return has_problem and (has_text or {"steps", "correct"} <= row.keys())


def load_hub(name: str, split: str) -> Iterator[tuple[int, dict]]:
    """Yields (number from 1, row) of one split of a Hugging Face data set, such as trl-lib/math_shepherd."""
    import datasets

    try:
        rows = datasets.load_dataset(name, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise InputError(f"{name} split {split}: cannot be loaded ({str(error).splitlines()[0]})") from None
    yield from enumerate(rows, 1)


def file_fingerprint(path) -> str:
    """sha256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
