"""Turns solutions into token ids and step marks, as a format says. One function serves training, scoring,
search and RL.

The mark of a step is the token whose hidden state its score is read from. Released PRMs tokenise in two ways,
which are followed exactly:

apart: every step by itself, then the ids of its separator. The mark cannot fuse with text, as `.` and a
newline do in BPE when TRL's documented inference example tokenises them together (4 points of ProcessBench
F1).
together: one text, one call, as the authors' code does. Marks are found by their place in the text, never by
their id; a mark that fused with the text beside it raises."""

import dataclasses
import re
from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from prm_jax import InputError
from prm_jax.formats import ANSWER, Format, as_chat, opening, turn_end, with_pad
from prm_jax.launch.config import expect
from prm_jax.protocols import Prefix

TEXTS = 4096  # that are tokenised in a call, which takes 100 times the memory of their ids


@dataclasses.dataclass(frozen=True)
class Encoded:
    """One tokenised solution."""

    ids_L: np.ndarray
    step_end_T: np.ndarray  # the index of each step's mark in ids_L
    start: int  # that of the solution's first token


def encode(fmt: Format, tokenizer, rows: Iterable[Prefix], end=False) -> list[Encoded]:
    """Encodes (problem, steps) rows; `end` appends the token that ends a turn or a text, for language-model
    training. InputError if the separator has no token, a mark fused with text, marks and steps differ in
    number, or, in a text tokenised together, a problem or step contains the separator."""
    expect(fmt.name != "auto", "format", "auto", "the name of a convention, unless a checkpoint says it")
    fmt = with_pad(fmt, tokenizer)
    # A chat template writes its own beginning.
    has_bos = fmt.bos and not fmt.chat and tokenizer.bos_token_id is not None
    begin = [tokenizer.bos_token_id] if has_bos else []
    finish = (sorted(turn_end(fmt, tokenizer)) or [tokenizer.eos_token_id]) if end else []
    expect(finish != [None], "tokenizer", None, "an end-of-sequence token, which objective=lm needs")
    rows = [(unix_lines(problem), numbered(fmt, tuple(map(unix_lines, steps)))) for problem, steps in rows]
    encode_rows = encode_together if fmt.tokenized == "together" else encode_apart
    encoded = []
    for (problem, steps), tokens in zip(rows, encode_rows(fmt, tokenizer, rows), strict=True):
        ids_L = np.array(begin + tokens.ids + finish, np.int32)
        step_end_T = np.array(tokens.marks, np.int32) + len(begin) + fmt.shift
        encoded.append(Encoded(ids_L, step_end_T, tokens.start + len(begin)))
        check_marks(encoded[-1], 1 if fmt.outcome else len(steps), repr(problem[:60]))
    return encoded


def check_marks(encoded: Encoded, n_steps: int, where: str):
    """Raises InputError unless there is exactly one mark a step, in order and inside the row."""
    marks = encoded.step_end_T.tolist()
    n_tokens = len(encoded.ids_L)
    if len(marks) != n_steps or (np.diff([-1, *marks, n_tokens]) <= 0).any():
        raise InputError(f"{where}: {len(marks)} step marks {marks} for {n_steps} steps in {n_tokens} tokens")


def unix_lines(text: str) -> str:
    """The text with line ends as most files have them: a file of Windows gets the same scores."""
    return text.replace("\r\n", "\n")


def numbered(fmt: Format, steps: tuple[str, ...]) -> tuple[str, ...]:
    """The steps as the format writes them: stripped, and numbered unless they have a number."""
    if fmt.strip:
        steps = tuple(step.strip() for step in steps)
    if fmt.number:
        number = re.compile(re.escape(fmt.number.rstrip()).replace(r"\{n\}", r"\d+"), re.IGNORECASE)
        numbers = (fmt.number.replace("{n}", str(n)) for n in range(1, len(steps) + 1))
        steps = tuple(step if number.match(step) else text + step for text, step in zip(numbers, steps))
    return tuple(step.rstrip(" ") for step in steps) if fmt.strip else steps


class Tokens(NamedTuple):
    """A solution's ids before what begins and ends every row."""

    ids: list[int]
    marks: list[int]  # places in ids
    start: int


def encode_apart(fmt: Format, tokenizer, rows: list[Prefix]) -> Iterator[Tokens]:
    """Yields the tokens of rows, whose prefix and steps are tokenised one by one, each distinct text once."""

    def parts(step):
        return step.split(fmt.separator) if fmt.tokenized == "lines" else [step]

    beginnings = dict.fromkeys((problem, steps[:1]) for problem, steps in rows)
    opening_of = {beginning: opening(fmt, tokenizer, *beginning) for beginning in beginnings}
    written = (part for _, steps in rows for step in steps for part in parts(step))
    texts = list({*opening_of.values(), *written})
    ids_of = {}
    for group in (texts[i : i + TEXTS] for i in range(0, len(texts), TEXTS)):
        ids = tokenizer(group, add_special_tokens=False, return_attention_mask=False)["input_ids"]
        ids_of |= zip(group, (array("i", ids_L) for ids_L in ids), strict=True)
    separator = tokenizer.encode(fmt.separator, add_special_tokens=False)
    expect(separator, "format.separator", fmt.separator, "a text that has a token in this tokenizer")
    for problem, steps in rows:
        ids = [*ids_of[opening_of[problem, steps[:1]]]]
        start = len(ids)
        marks = []
        for step in steps:
            for part in parts(step):
                ids += [*ids_of[part], *separator]
            marks.append(len(ids) - 1)
        yield Tokens(ids, marks, start)


def encode_together(fmt: Format, tokenizer, rows: list[Prefix]) -> Iterator[Tokens]:
    """Yields the tokens of rows, each tokenised as one text."""
    expect(tokenizer.is_fast, "tokenizer", "a slow one", f"a fast one, with offsets, for format={fmt.name}")
    mark_id = tokenizer.encode(fmt.separator, add_special_tokens=False)[-1:]
    for problem, steps in rows:
        where = f"{problem[:60]!r}"
        if fmt.separator and any(fmt.separator in text for text in (problem, *steps)):
            raise InputError(f"{where}: contains {fmt.separator!r}, which format={fmt.name} reads as a mark")
        prefix = fmt.prefix.replace("{problem}", problem)
        if fmt.outcome:
            yield encode_outcome(fmt, tokenizer, prefix, steps)
            continue
        yield encode_text(fmt, tokenizer, prefix, steps, mark_id, where)


def encode_text(fmt: Format, tokenizer, text: str, steps: tuple[str, ...], mark_id, where: str) -> Tokens:
    """The tokens of a prefix and steps, with a mark at the end of each step."""
    suffix = fmt.suffix
    if fmt.chat:
        text, suffix = as_chat(fmt, tokenizer, text, ANSWER).rsplit(ANSWER, 1)
    first = len(text)
    ends = []
    for t, step in enumerate(steps):
        text += fmt.between if t else ""
        if fmt.strip and not step:  # its separator brings the blank before it
            text = text.rstrip(" ")
            first = min(first, len(text))
        text += step + fmt.separator
        ends.append(len(text))
    ids, spans = ids_and_spans(tokenizer, text + suffix)
    start = int((spans[:, 0] < first).sum())
    if fmt.probe:
        probes = [fmt.probe] * (len(ends) - 1) + [fmt.probe.rstrip()]
        cuts = [text[:end] + probe for end, probe in zip(ends, probes, strict=True)]
        marks = [len(tokenizer.encode(cut, add_special_tokens=False)) - 1 for cut in cuts]
    else:
        marks = [find_mark(fmt, mark_id, ids, spans, end, where) for end in ends]
    if fmt.drop_separator:
        dropped = {find_mark(fmt, mark_id, ids, spans, first, where), *marks}
        ids = [token for i, token in enumerate(ids) if i not in dropped]
        marks = [mark - 2 - t for t, mark in enumerate(marks)]  # t + 1 separators were before it
        start -= 1
    return Tokens(ids, marks, start)


def encode_outcome(fmt: Format, tokenizer, prefix: str, steps: tuple[str, ...]) -> Tokens:
    """The tokens of a whole solution, with one mark at its last token."""
    answer = fmt.between.join(step + fmt.separator for step in steps)
    text = as_chat(fmt, tokenizer, prefix, answer) if fmt.chat else prefix + answer + fmt.suffix
    ids, spans = ids_and_spans(tokenizer, text)
    while len(ids) > 1 and ids[-1] == tokenizer.pad_token_id:  # which the class of such models passes over
        ids.pop()
    start = int((spans[:, 0] < max(text.rfind(answer.strip()), 0)).sum())
    return Tokens(ids, [len(ids) - 1], start)


def ids_and_spans(tokenizer, text: str) -> tuple[list[int], np.ndarray]:
    """A text's ids, and the first place of each in the text and the one behind it, [n, 2]."""
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return encoding["input_ids"], np.array(encoding["offset_mapping"]).reshape(-1, 2)


def find_mark(fmt: Format, mark_id: list[int], ids: list[int], spans, end: int, where: str) -> int:
    """Index of the token that ends at `end`; InputError unless it is the mark and nothing else."""
    mark = fmt.mark or fmt.separator
    i = int(np.searchsorted(spans[:, 1], end, side="right")) - 1
    is_whole = ids[i : i + 1] == mark_id and tuple(spans[i]) == (end - len(mark), end)
    if not is_whole or (i + 1 < len(spans) and spans[i + 1, 0] < end):
        raise InputError(f"{where}: the mark {mark!r} of a step is no token of its own (format={fmt.name})")
    return i
