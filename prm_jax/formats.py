"""Conventions of text: how a problem and steps are written, and what the scores of a model mean.

A format is one file of conf/format with keys of `Format`, which names its source; encoding.py makes ids of
it."""

import dataclasses
import functools
import re
from pathlib import Path
from typing import Annotated, Literal

from omegaconf import OmegaConf

from prm_jax import InputError
from prm_jax.data.thoughts import THOUGHT_START
from prm_jax.data.units import UNITS
from prm_jax.launch.config import CONF, expect, one_of, parse


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
    critic: object = None  # keys of CriticFormat (critics/prompts.py): of a model that writes and then judges

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


def read_format(name: str, **changes) -> Format:
    """The format of conf/format/NAME.yaml, with changes of its keys."""
    paths = {path.stem: path for path in sorted(CONF.glob("format/*.yaml"))}
    expect(name in paths, "format", name, ", ".join(paths))
    keys = OmegaConf.load(paths[name])
    keys.pop("defaults", None)  # of Hydra
    return parse(OmegaConf.merge(keys, changes), Format, "format")


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


def with_pad(fmt: Format, tokenizer) -> Format:
    """The format with the tokenizer's padding token for {pad}."""
    if "{pad}" not in fmt.prefix + fmt.separator:
        return fmt
    expect(tokenizer.pad_token is not None, "tokenizer", None, f"a padding token, for format={fmt.name}")
    pad = {key: getattr(fmt, key).replace("{pad}", tokenizer.pad_token) for key in ("prefix", "separator")}
    return dataclasses.replace(fmt, **pad)


# Chat templates

ANSWER = "<the answer stands here>"


def as_chat(fmt: Format, tokenizer, question: str, answer: str | None) -> str:
    """The conversation by the chat template; without an answer the assistant's turn begins."""
    turns = {"system": fmt.system, "user": question, "assistant": answer}
    messages = [{"role": role, "content": text} for role, text in turns.items() if text is not None]
    return conversation(fmt, tokenizer, messages, asks=answer is None)


def conversation(fmt, tokenizer, turns: list[dict], asks: bool) -> str:
    """The turns by the tokenizer's chat template, or by that in a file; `asks`: the assistant's next turn
    begins."""
    template = Path(fmt.chat).read_text() if isinstance(fmt.chat, str) else None
    try:
        return tokenizer.apply_chat_template(
            turns, chat_template=template, tokenize=False, add_generation_prompt=asks
        )
    except Exception as error:  # no template, one that cannot be read, or one that raises at a role
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        hint = "format.chat=false does without, format.chat=FILE.jinja names another"
        raise InputError(f"format={fmt.name}: the chat template fails ({reason}); {hint}") from error


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
