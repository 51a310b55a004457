"""How a solution becomes token ids and step marks. One function serves training, scoring, search and RL.

The mark of a step is the token whose hidden state the step head reads. Every step is tokenised apart and its separator is
appended as ids: tokenised together, BPE fuses `.` and a newline into one token and the mark is gone (TRL's documented
inference example; 4 points of ProcessBench F1).
"""

import dataclasses
from collections.abc import Iterable

import numpy as np

from prm_jax import InputError


@dataclasses.dataclass(frozen=True)
class Format:
    """`plain` is TRL's PRMTrainer: [BOS] problem, then each step and its separator; nothing between problem and step 1."""

    name: str
    separator: str  # text after each step; the last of its tokens is the mark

    def __post_init__(self):
        if self.name != "plain":
            raise InputError(f"format.name: got {self.name!r}, expected plain")
        if not self.separator:
            raise InputError(
                "format.separator: is empty, expected a text such as '\\n' whose last token becomes the mark"
            )


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Token ids of one solution, the index of every step's mark in them, and where the solution starts."""

    ids_L: np.ndarray
    mark_T: np.ndarray
    start: int


def encode(
    fmt: Format, tokenizer, rows: Iterable[tuple[str, tuple[str, ...]]], end: bool = False
) -> list[Encoded]:
    """Encodes (problem, steps) rows; `end` appends the end-of-sequence token, for language-model training.

    Raises InputError when the separator has no token or when marks and steps differ in number.
    """
    rows = list(rows)
    texts = list({text for problem, steps in rows for text in (problem, *steps)})
    # Steps repeat a lot within a pool, so each distinct text is tokenised once, all in one call.
    ids_of = (
        dict(zip(texts, tokenizer(texts, add_special_tokens=False)["input_ids"], strict=True))
        if texts
        else {}
    )
    separator = tokenizer.encode(fmt.separator, add_special_tokens=False)
    if not separator:
        raise InputError(
            f"format.separator: {fmt.separator!r} has no token in this tokenizer, so no step can be marked"
        )
    begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    finish = [tokenizer.eos_token_id] if end else []
    if finish == [None]:
        raise InputError("tokenizer: has no end-of-sequence token, which objective=lm needs")
    return [_encode_one(ids_of, separator, begin, finish, problem, steps) for problem, steps in rows]


def _encode_one(ids_of, separator, begin, finish, problem, steps) -> Encoded:
    ids = [*begin, *ids_of[problem]]
    start, marks = len(ids), []
    for step in steps:
        ids += [*ids_of[step], *separator]
        marks.append(len(ids) - 1)
    encoded = Encoded(np.array(ids + finish, np.int32), np.array(marks, np.int32), start)
    check_marks(encoded, len(steps), repr(problem[:60]))
    return encoded


def check_marks(encoded: Encoded, n_steps: int, where: str):
    """Raises InputError unless there is exactly one mark a step, in order and inside the row."""
    mark_T = encoded.mark_T
    if (
        len(mark_T) != n_steps
        or (np.diff(mark_T) <= 0).any()
        or (len(mark_T) and mark_T[-1] >= len(encoded.ids_L))
    ):
        raise InputError(
            f"{where}: {len(mark_T)} step marks {mark_T.tolist()} for {n_steps} steps in {len(encoded.ids_L)} tokens"
        )


def train_tokenizer(texts: Iterable[str], vocab: int):
    """A byte-level BPE tokenizer for models trained from nothing: any text encodes, every digit is a token of its own.

    Splits words as Qwen2's tokenizer does, because transformers reads the tokenizer of every `qwen2` folder with that
    class, whatever its files say: another split would change silently when the model is saved and loaded.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    words = Regex(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|endoftext|>", pad_token="<|endoftext|>")
