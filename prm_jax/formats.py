"""Turns a solution into token ids and step marks. One function serves training, scoring, search and RL.

The mark of a step is the token whose hidden state its score is read from. A format is one file of conf/format
with keys of `Format`, which names its source. Released PRMs tokenise in two ways, followed exactly:

apart: every step by itself, then the ids of its separator. The mark cannot fuse with text, as `.` and a
newline do in BPE when TRL's documented inference example tokenises them together (4 points of ProcessBench
F1). together: one text, one call, as the authors' code does. Marks are found by their place in the text,
never by their id; a mark that fused with the text beside it raises."""

import collections
import dataclasses
import functools
import re
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from omegaconf import OmegaConf

from prm_jax import InputError
from prm_jax.data.critiques import CriticFormat, conversation
from prm_jax.data.thoughts import THOUGHT_START
from prm_jax.data.units import UNITS
from prm_jax.launch.config import CONF, expect, one_of, parse, store_defaults


@dataclasses.dataclass(frozen=True)
class Format:
    """A convention. The text of a solution is prefix, step, separator, between, step, separator, ..., suffix.
    {problem} stands for the problem in `prefix`, {n} for the step's number from 1 in `number`, {pad} for the
    padding token in `prefix` and `separator`. With `chat`, `prefix` is the user's message, and the steps are
    the assistant's turn."""

    name: str = "plain"
    separator: str = ""  # text after each step; the last of its tokens is the mark
    tokenized: Literal["apart", "lines", "together"] = "apart"  # lines: apart, and so each line of a step
    mark: str = ""  # together: the one token that ends a separator, if that is not the whole separator
    prefix: str = "{problem}"  # text before the first step
    number: str = ""  # put before each step that does not begin with it
    between: str = ""  # text after a separator, before the next step
    suffix: str = ""  # text after the last separator; no score sees it
    bos: bool = True  # the tokenizer's beginning-of-sequence token, if any, comes first
    # The tokenizer's chat template, or a file's, writes the turns; null: as `policy_format` chooses
    chat: bool | str | None = None
    system: str | None = None  # chat: the system message; null: the template's own
    outcome: bool = False  # an outcome model: one score, at the text's last token, which every step gets
    strip: bool = False  # steps lose white space at both ends
    drop_separator: bool = False  # the model does not see separators, and marks are one token earlier
    shift: int = 0  # tokens by which marks move, where the authors' code reads beside the step's end
    probe: str = ""  # the mark is where a conversation cut after the step and this text would end (Eurus)
    head: str | None = None  # a name of HEADS, or tokens, vocabulary, implicit; null: any
    layer: str = "score"  # last layer of that head in its checkpoints; lm_head: it has none of its own
    good: str | None = None  # head tokens, vocabulary, critic: the good verdict, one token
    bad: str | None = None  # head tokens, critic: the bad verdict, one token
    score: Annotated[str, one_of(UNITS)] = "probability"  # unit of the authors' scores; ours are log-odds
    beta: float = 1.0  # score log_ratio: factor of the log-ratio in nats
    label_kind: Literal["correctness", "value", "advantage", "unknown"] = "unknown"  # what it learned
    auto: bool = True  # format=auto may choose it; false: another format is more common for its head
    changes: dict[str, object] | None = None  # auto: keys that replace those of the chosen format
    critic: CriticFormat | None = None  # of a language model that writes before it judges (data/critiques.py)

    @staticmethod
    def from_keys(keys: dict) -> dict:
        """Keys without null, which is the default; those beside `name: auto` change the chosen format."""
        given = {key: x for key, x in keys.items() if x is not None}
        if keys.get("name") != "auto" or "changes" in given:
            return given
        return {"name": "auto", "changes": {key: x for key, x in given.items() if key != "name"}}

    def __post_init__(self):
        is_read = self.separator or self.probe or self.outcome or self.critic or self.name == "auto"
        expect(is_read, "format.separator", "", "a text such as '\\n' whose last token becomes the mark")
        expected = "line ends, not a backslash and an n; in a shell $'format.separator=\"\\n\\n\"'"
        expect("\\n" not in self.separator, "format.separator", self.separator, expected)
        is_line_end = re.search(r"\\n(?![a-z])", self.prefix)  # not \neq
        expect(not is_line_end, "format.prefix", self.prefix, expected.replace("separator", "prefix"))
        expect("{problem}" in self.prefix, "format.prefix", self.prefix, "a text with {problem} in it")
        if isinstance(self.chat, str):
            is_file = Path(self.chat).is_file()
            expect(is_file, "format.chat", self.chat, "true, false, null or a file with a chat template")
        names = "between", "suffix", "drop_separator", "probe", "shift", "outcome"
        used = [name for name in names if getattr(self, name)]
        is_together = self.tokenized == "together" or self.critic
        expect(is_together or not used, "format.tokenized", self.tokenized, f"together, for {used}")
        verdicts = [text for text in (self.good, self.bad) if text is not None]
        n = 2 if self.critic else {"tokens": 2, "vocabulary": 1}.get(self.head, 0)
        expect(len(verdicts) == n, "format.good", verdicts, f"{n} verdicts (good, bad) with head {self.head}")
        is_ratio = (self.head == "implicit") == (self.score == "log_ratio")
        expect(is_ratio, "format.score", self.score, "'log_ratio' with head 'implicit', and only with it")


@dataclasses.dataclass(frozen=True)
class PolicyFormat:
    """The keys of `Format` that mean something of a language model that solves and brings no format."""

    separator: str = "\n"  # a step ends with any token that holds this text
    # Before the first step, with a chat template the user's message; null: {problem}
    prefix: str | None = None
    number: str = ""
    bos: bool = True
    chat: bool | str | None = None  # null: the model's own chat template, if it has one | true | false | FILE
    system: str | None = None
    strip: bool = False

    def whole(self) -> Format:
        return Format("plain", **{key: x for key, x in vars(self).items() if x is not None})


def read_format(name: str, **changes) -> Format:
    """The format of conf/format/NAME.yaml, with changes of its keys."""
    paths = {path.stem: path for path in sorted(CONF.glob("format/*.yaml"))}
    expect(name in paths, "format", name, ", ".join(paths))
    keys = OmegaConf.load(paths[name])
    keys.pop("defaults", None)  # of Hydra
    return parse(OmegaConf.merge(keys, changes), Format, "format")


# conf/format/judge.yaml and the other critics begin with it.
store_defaults("critic_defaults", CriticFormat)


@functools.cache
def all_formats() -> tuple[Format, ...]:
    """Every format of conf/format without a critic, those with a head of their own first."""
    names = {path.stem for path in (CONF / "format").glob("*.yaml")} - {"auto"}
    formats = (fmt for fmt in map(read_format, names) if not fmt.critic)
    return tuple(sorted(formats, key=lambda fmt: (fmt.head is None, fmt.name)))


def verdicts(fmt: Format, tokenizer) -> tuple[int, ...] | None:
    """Token ids: (bad, good) of head 'tokens' or a critic, (good,) of 'vocabulary', else None."""
    texts = [text for text in (fmt.bad, fmt.good) if text is not None]
    ids = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
    is_one_each = all(len(tokens) == 1 for tokens in ids) and len(set(ids)) == len(ids)
    expect(is_one_each, "format.good", texts[::-1], "a token of this tokenizer each")
    return tuple(token for (token,) in ids) or None


@dataclasses.dataclass(frozen=True)
class Encoded:
    """One tokenised solution."""

    ids_L: np.ndarray
    step_end_T: np.ndarray  # the index of each step's mark in ids_L
    start: int  # that of the solution's first token


def with_pad(fmt: Format, tokenizer) -> Format:
    """The format with the tokenizer's padding token for {pad}."""
    if "{pad}" not in fmt.prefix + fmt.separator:
        return fmt
    expect(tokenizer.pad_token is not None, "tokenizer", None, f"a padding token, for format={fmt.name}")
    pad = {key: getattr(fmt, key).replace("{pad}", tokenizer.pad_token) for key in ("prefix", "separator")}
    return dataclasses.replace(fmt, **pad)


def encode(
    fmt: Format,
    tokenizer,
    rows: Iterable[tuple[str, tuple[str, ...]]],
    end: bool = False,
    unwritten: collections.Counter | None = None,
) -> list[Encoded]:
    """Encodes (problem, steps) rows; `end` appends the token that ends a turn or a text, for language-model
    training. `unwritten` counts as `count_unwritten`. InputError if a step or the separator has no token, a
    mark fused with text, marks and steps differ in number, or, in a text tokenised together, a problem or
    step contains the separator."""
    expect(fmt.name != "auto", "format", "auto", "the name of a convention, unless a checkpoint says it")
    fmt = with_pad(fmt, tokenizer)
    # A chat template writes its own beginning.
    has_bos = fmt.bos and not fmt.chat and tokenizer.bos_token_id is not None
    begin = [tokenizer.bos_token_id] if has_bos else []
    finish = []
    if end:
        finish = sorted(turn_end(fmt, tokenizer)) or [tokenizer.eos_token_id]
    expect(finish != [None], "tokenizer", None, "an end-of-sequence token, which objective=lm needs")
    rows = [(unix_lines(problem), numbered(fmt, tuple(map(unix_lines, steps)))) for problem, steps in rows]
    found = count_unwritten(tokenizer, rows)
    if unwritten is not None:
        unwritten.update(found)
    encode_rows = _encode_together if fmt.tokenized == "together" else _encode_apart
    encoded = []
    for (problem, steps), (ids, marks, start) in zip(rows, encode_rows(fmt, tokenizer, rows), strict=True):
        step_end_T = np.array(marks, np.int32) + len(begin) + fmt.shift
        encoded.append(Encoded(np.array(begin + ids + finish, np.int32), step_end_T, start + len(begin)))
        check_marks(encoded[-1], 1 if fmt.outcome else len(steps), repr(problem[:60]))
    return encoded


def unix_lines(text: str) -> str:
    """The text with line ends as most files have them: a file of Windows gets the same scores."""
    return text.replace("\r\n", "\n")


@functools.lru_cache(maxsize=1 << 16)
def has_token(tokenizer, character: str) -> bool:
    """Whether the tokens of a character, the unknown one aside, say anything of it."""
    ids = tokenizer.encode(character, add_special_tokens=False)
    known = [i for i in ids if i != tokenizer.unk_token_id]
    return character.isspace() or tokenizer.decode(known).strip() != ""


def count_unwritten(tokenizer, rows) -> collections.Counter:
    """How often each character of (problem, steps) rows has no token: it is unknown to the tokenizer, or left
    out; "" counts blank steps. InputError where no character of another step has one."""
    characters = set().union(*(text for problem, steps in rows for text in (problem, *steps)))
    lost, total = {c for c in characters if not has_token(tokenizer, c)}, collections.Counter()

    def lost_of(text: str) -> list[str]:
        return [c for c in text if c in lost] if lost else []

    for problem, steps in rows:
        total.update(lost_of(problem))
        for t, step in enumerate(steps):
            text, unknown = "".join(step.split()), lost_of(step)
            expected = "a text that has a token in this tokenizer"
            expect(not text or len(unknown) < len(text), f"{problem[:60]!r}: steps[{t}]", step, expected)
            total.update(unknown if text else [""])
    return total


def unwritten_note(unwritten: collections.Counter) -> str:
    """What a command says of what `count_unwritten` found."""
    notes = [f"{unwritten['']:,} steps are blank"] if unwritten[""] else []
    lost = [(c, n) for c, n in unwritten.most_common() if c]
    if lost:
        some = " ".join(repr(c) for c, _ in lost[:5])
        notes.append(f"{sum(n for _, n in lost):,} characters have no token: {some}")
    return "; ".join(notes)


def numbered(fmt: Format, steps: tuple[str, ...]) -> tuple[str, ...]:
    """The steps as the format writes them: stripped, and numbered unless they have a number."""
    if fmt.strip:
        steps = tuple(step.strip() for step in steps)
    if fmt.number:
        number = re.compile(re.escape(fmt.number.rstrip()).replace(r"\{n\}", r"\d+"), re.IGNORECASE)
        numbers = (fmt.number.replace("{n}", str(n)) for n in range(1, len(steps) + 1))
        steps = tuple(step if number.match(step) else text + step for text, step in zip(numbers, steps))
    return tuple(step.rstrip(" ") for step in steps) if fmt.strip else steps


def _encode_apart(fmt: Format, tokenizer, rows):
    """Yields (ids, marks, start) of rows, whose prefix and steps are tokenised one by one."""

    def parts(step):
        return step.split(fmt.separator) if fmt.tokenized == "lines" else [step]

    distinct = dict.fromkeys((problem, steps[:1]) for problem, steps in rows)
    head_of = {beginning: opening(fmt, tokenizer, *beginning) for beginning in distinct}
    heads = [head_of[problem, steps[:1]] for problem, steps in rows]
    # Each distinct text is tokenised once, thousands in a call, which takes 100 times the memory of the ids.
    texts = list({*heads, *(part for _, steps in rows for step in steps for part in parts(step))})
    ids_of, size = {}, 4096
    for group in (texts[i : i + size] for i in range(0, len(texts), size)):
        ids = tokenizer(group, add_special_tokens=False, return_attention_mask=False)["input_ids"]
        ids_of |= zip(group, (array("i", ids_L) for ids_L in ids), strict=True)
    separator = tokenizer.encode(fmt.separator, add_special_tokens=False)
    expect(separator, "format.separator", fmt.separator, "a text that has a token in this tokenizer")
    for head, (_, steps) in zip(heads, rows, strict=True):
        ids, marks = [*ids_of[head]], []
        for step in steps:
            for part in parts(step):
                ids += [*ids_of[part], *separator]
            marks.append(len(ids) - 1)
        yield ids, marks, len(ids_of[head])


def _encode_together(fmt: Format, tokenizer, rows):
    """Yields (ids, marks, start) of rows, each tokenised as one text."""
    expect(tokenizer.is_fast, "tokenizer", "a slow one", f"a fast one, with offsets, for format={fmt.name}")
    mark_id = tokenizer.encode(fmt.separator, add_special_tokens=False)[-1:]
    for problem, steps in rows:
        where = f"{problem[:60]!r}"
        if fmt.separator and any(fmt.separator in text for text in (problem, *steps)):
            raise InputError(f"{where}: contains {fmt.separator!r}, which format={fmt.name} reads as a mark")
        text, suffix = fmt.prefix.replace("{problem}", problem), fmt.suffix
        if fmt.outcome:
            yield _encode_outcome(fmt, tokenizer, text, steps)
            continue
        if fmt.chat:
            text, suffix = as_chat(fmt, tokenizer, text, ANSWER).rsplit(ANSWER, 1)
        first, ends = len(text), []
        for t, step in enumerate(steps):
            text += fmt.between if t else ""
            if fmt.strip and not step:  # its separator brings the blank before it
                text = text.rstrip(" ")
                first = min(first, len(text))
            text += step + fmt.separator
            ends.append(len(text))
        encoding = tokenizer(text + suffix, add_special_tokens=False, return_offsets_mapping=True)
        ids, spans = encoding["input_ids"], np.array(encoding["offset_mapping"]).reshape(-1, 2)
        start = int((spans[:, 0] < first).sum())
        if fmt.probe:
            probes = [fmt.probe] * (len(ends) - 1) + [fmt.probe.rstrip()]
            cuts = [text[:end] + probe for end, probe in zip(ends, probes, strict=True)]
            marks = [len(tokenizer.encode(cut, add_special_tokens=False)) - 1 for cut in cuts]
        else:
            marks = [_mark(fmt, mark_id, ids, spans, end, where) for end in ends]
        if fmt.drop_separator:
            dropped = {_mark(fmt, mark_id, ids, spans, first, where), *marks}
            ids = [token for i, token in enumerate(ids) if i not in dropped]
            marks = [mark - 2 - t for t, mark in enumerate(marks)]  # t + 1 separators were before it
            start -= 1
        yield ids, marks, start


ANSWER = "<the answer stands here>"


def as_chat(fmt: Format, tokenizer, question: str, answer: str | None) -> str:
    """The conversation by the chat template; without an answer the assistant's turn begins."""
    turns = {"system": fmt.system, "user": question, "assistant": answer}
    messages = [{"role": role, "content": text} for role, text in turns.items() if text is not None]
    return conversation(fmt, tokenizer, messages, asks=answer is None)


def opening(fmt: Format, tokenizer, problem: str, steps: tuple[str, ...] = ()) -> str:
    """The text before the first step; a thought that the chat template opens is left to steps with it."""
    text = fmt.prefix.replace("{problem}", problem)
    if not fmt.chat:
        return text
    text = as_chat(fmt, tokenizer, text, None)
    thought = opened_thought(text)
    if thought and steps and steps[0].startswith(thought.strip()):
        return text.removesuffix(thought)
    return text


def added_bos(tokenizer) -> str:
    """The beginning-of-sequence token where the tokenizer, and so a server, puts it before any text."""
    is_added = tokenizer.encode("a")[:1] == [tokenizer.bos_token_id]
    return tokenizer.bos_token if is_added else ""


def opened_thought(prompt: str) -> str:
    r"""What opens a thought at the end of a prompt, such as `<think>\n`; nothing at that of most."""
    starts = list(THOUGHT_START.finditer(prompt))
    is_open = starts and not prompt[starts[-1].end() :].strip()
    return prompt[starts[-1].start() :] if is_open else ""


def policy_format(fmt: Format, tokenizer) -> Format:
    """The format of a language model that solves. chat=null becomes true where its tokenizer has a chat
    template, unless `prefix` writes the turns itself, with special tokens."""
    if fmt.chat is not None:
        return fmt
    special = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    is_by_hand = any(token in fmt.prefix for token in special)
    return dataclasses.replace(fmt, chat=bool(tokenizer.chat_template) and not is_by_hand)


def turn_end(fmt: Format, tokenizer) -> set[int]:
    """The special token that the chat template writes behind an assistant's turn, if there is one."""
    if not fmt.chat:
        return set()
    try:
        _, found, after = as_chat(fmt, tokenizer, "?", ANSWER).rpartition(ANSWER)
    except InputError:  # a template that knows only the turns of users
        return set()
    ids = tokenizer.encode(after.lstrip(), add_special_tokens=False)[:1] if found else []
    known = tokenizer.added_tokens_decoder
    return {token for token in ids if token in known and known[token].special}


def _encode_outcome(fmt: Format, tokenizer, prefix: str, steps: tuple[str, ...]):
    """(ids, [index of the last one], start) of a whole solution."""
    answer = fmt.between.join(step + fmt.separator for step in steps)
    text = as_chat(fmt, tokenizer, prefix, answer) if fmt.chat else prefix + answer + fmt.suffix
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    spans = np.array(encoding["offset_mapping"]).reshape(-1, 2)
    start = int((spans[:, 0] < max(text.rfind(answer.strip()), 0)).sum())
    return encoding["input_ids"], [len(spans) - 1], start


def _mark(fmt: Format, mark_id: list[int], ids: list[int], spans, end: int, where: str) -> int:
    """Index of the token that ends at `end`; InputError unless it is the mark and nothing else."""
    i, mark = int(np.searchsorted(spans[:, 1], end, side="right")) - 1, fmt.mark or fmt.separator
    is_whole = ids[i : i + 1] == mark_id and tuple(spans[i]) == (end - len(mark), end)
    if not is_whole or (i + 1 < len(spans) and spans[i + 1, 0] < end):
        raise InputError(f"{where}: the mark {mark!r} of a step is no token of its own (format={fmt.name})")
    return i


def check_marks(encoded: Encoded, n_steps: int, where: str):
    """Raises InputError unless there is exactly one mark a step, in order and inside the row."""
    marks, n_tokens = encoded.step_end_T.tolist(), len(encoded.ids_L)
    if len(marks) != n_steps or (np.diff([-1, *marks, n_tokens]) <= 0).any():
        raise InputError(f"{where}: {len(marks)} step marks {marks} for {n_steps} steps in {n_tokens} tokens")


def train_tokenizer(texts: Iterable[str], vocab: int):
    """Trains a byte-level BPE tokenizer for models without a checkpoint: any text encodes, each digit is a
    token. It is of the class with which transformers reads every `qwen2` folder, whatever its files say."""
    from transformers import Qwen2Tokenizer

    untrained = Qwen2Tokenizer(eos_token="<|endoftext|>", pad_token="<|endoftext|>", unk_token=None)
    return untrained.train_new_from_iterator(texts, vocab, show_progress=False)
