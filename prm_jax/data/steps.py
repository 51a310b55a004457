r"""Splits the text of a solution into steps, in linear time.

Only white space at a cut is dropped, so the steps, joined, are the text up to white space.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from prm_jax.launch.config import expect

# "Step 3:", "3." or "3)" at a line's start, also as a heading or in bold; not 3.5, "3) = 7" or a nested list.
NUMBERED = re.compile(
    r"^ {0,2}(?:#{1,6} )?\*{0,2}(?:step \d{1,3}\b|\d{1,3}[.)]\*{0,2}[^\S\n](?![=+/^<>]|[*-]\s))",
    re.IGNORECASE | re.MULTILINE,
)
FORMULA = re.compile(
    r"\\\\|\\\$|(?P<open>\\[\[(]|\\begin\{\w{1,20}\*?\}|\$\$|`{3}|`)|(?P<close>\\[\])]|\\end\{\w{1,20}\*?\})"
    r"|\$(?=\S)[^$\n]*(?<=\S)\$(?!\d)"  # Pandoc's rule, which tells $x$ from $3 and $4
)
ENDS = re.compile(r"[.!?]+(?:[\"'”’)\]*]|\$\$?|\\[\])]){0,3}(?=\s)|\n\s*")
SPACES = re.compile(r"\s*")
NO_START = re.compile(r"[a-z]|[=+/^<>&|,;:]|[*-]\s|\\\[|\$\$|\\begin")  # continues the sentence before
# An abbreviation, or the number of an item.
NO_END = re.compile(
    r"(?:(?:^|[\s(])(?:[A-Za-z]|e\.g|i\.e|etc|vs|cf|approx|resp|nos?|figs?|eqs?|thm|mrs?|ms"
    r"|dr|prof|st|[js]r|u\.s|[ap]\.m)"
    r"|(?:^|\n)[\s#*(]{0,8}(?:step )?\d{1,3})\Z",
    re.IGNORECASE,
)


def split_steps(text: str, way: str) -> list[str]:
    """The non-empty steps of a text without outer white space; `way` is a name of SPLITS."""
    expect(way in SPLITS, "split_by", way, ", ".join(SPLITS))
    return cut(text, SPLITS[way](text))


def cut(text: str, places: Iterable[int]) -> list[str]:
    """The non-empty pieces between these places, without outer white space."""
    pieces = [text[start:end].strip() for start, end in itertools.pairwise([0, *places, len(text)])]
    return [piece for piece in pieces if piece]


def cut_before(pattern: str | re.Pattern) -> Callable[[str], Iterator[int]]:
    """Cuts before each match."""
    return lambda text: (match.start() for match in re.finditer(pattern, text))


def sentence_cuts(text: str) -> Iterator[int]:
    """Cuts where a sentence or line ends and the next begins, never inside a number, a formula or code."""
    spans = formulas(text)
    span = next(spans, None)
    for match in ENDS.finditer(text):
        while span and span[1] <= match.start():
            span = next(spans, None)
        if span and span[0] <= match.start() and match.end() != span[1]:
            continue
        is_line_end = text[match.start()] == "\n"
        start = SPACES.match(text, match.end()).end()
        is_item = is_line_end and text[start : start + 1] in ("*", "-")
        if NO_START.match(text, start) and not is_item:
            continue
        if text[match.start()] == "." and NO_END.search(text[max(0, match.start() - 24) : match.start()]):
            continue
        yield match.start() if is_line_end else match.end()


def formulas(text: str) -> Iterator[tuple[int, int]]:
    """Yields (start, end) of each closed formula and piece of code."""
    last, start, closing = {}, None, None  # last: the last place of each closing
    for match in FORMULA.finditer(text):
        if start is not None:
            if match[0] == closing:
                yield start, match.end()
                start = None
        elif match["open"]:
            closing = {r"\[": r"\]", r"\(": r"\)"}.get(match[0], match[0].replace("begin", "end"))
            if closing not in last:
                last[closing] = text.rfind(closing)
            start = match.start() if last[closing] >= match.end() else None
        elif match[0][0] == "$":
            yield match.span()


SPLITS = {
    "line": cut_before("\n"),
    "blank": cut_before(r"\n[^\S\n]*\n\s*"),
    "sentence": sentence_cuts,
    "numbered": cut_before(NUMBERED),  # what precedes the first number is a step too
    "think": cut_before(r"<think>|(?<=</think>)"),  # what precedes a block, the block, what follows
}


def format_steps(fmt, text: str) -> tuple[str, ...]:
    """The non-blank steps of a text in a Format's convention."""
    pieces = [piece for piece in text.split(fmt.separator) if piece.strip()]
    return tuple(piece.strip() if fmt.strip else piece for piece in pieces)


def token_steps(fmt, tokens: Sequence[str]) -> list[int]:
    """The number of steps that ended before each token of a solution, given their texts. One with the
    separator ends a step; blank pieces join the step after."""
    piece_L, texts = [], [""]
    for token in tokens:
        piece_L.append(len(texts) - 1)
        texts[-1] += token
        if fmt.separator in token:
            texts.append("")
    n_before = list(itertools.accumulate((bool(text.strip()) for text in texts), initial=0))
    return [n_before[piece] for piece in piece_L]


def step_sums(fmt, tokens: Sequence[str], x_L: Sequence[float], text: str) -> tuple[float, ...] | None:
    """Sums of the tokens' numbers over each step of a text; None where a token is of two steps."""
    T = len(format_steps(fmt, text))
    step_L, sums = token_steps(fmt, [*tokens, fmt.separator, ""]), [0.0] * max(T, 1)
    if len(x_L) != len(tokens) or step_L[-1] != T:
        return None
    for step, x in zip(step_L, x_L):
        sums[min(step, len(sums) - 1)] += float(x)
    return tuple(sums)
