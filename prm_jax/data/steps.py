r"""Splits the text of a solution into steps: by line, blank line, sentence, numbered step, or around code.

Each way names the places to cut. Only white space at a cut is dropped, so the steps, joined, are the text up to white
space. All ways take time in proportion to the text.
"""

import itertools
import re
from collections.abc import Iterator

from prm_jax.data.rows import require

BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
# "Step 3:", "3." or "3)" that opens a line, also as a heading or in bold; neither 3.5 nor "3) = 7" nor a nested list.
NUMBERED = re.compile(
    r"^ {0,2}(?:#{1,6} )?\*{0,2}(?:step \d{1,3}\b|\d{1,3}[.)]\*{0,2}[^\S\n](?![=+/^<>]|[*-]\s))",
    re.IGNORECASE | re.MULTILINE,
)
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
FORMULA = re.compile(
    r"\\\\|\\\$|(?P<open>\\[\[(]|\\begin\{\w{1,20}\*?\}|\$\$|`{3}|`)|(?P<close>\\[\])]|\\end\{\w{1,20}\*?\})"
    r"|\$(?=\S)[^$\n]*(?<=\S)\$(?!\d)"  # Pandoc's rule, which tells $x$ from $3 and $4
)
ENDS = re.compile(r"[.!?]+(?:[\"'”’)\]*]|\$\$?|\\[\])]){0,3}(?=\s)|\n\s*")
SPACES = re.compile(r"\s*")
NO_START = re.compile(r"[a-z]|[=+/^<>&|,;:]|[*-]\s|\\\[|\$\$|\\begin")  # what goes on with the sentence before
NO_END = re.compile(
    r"(?:(?:^|[\s(])(?:[A-Za-z]|e\.g|i\.e|etc|vs|cf|approx|resp|nos?|figs?|eqs?|thm|mrs?|ms|dr|prof|st|[js]r|u\.s|[ap]\.m)"
    r"|(?:^|\n)[\s#*(]{0,8}(?:step )?\d{1,3})\Z",  # an abbreviation, or the number of an item
    re.IGNORECASE,
)


def split_steps(text: str, how: str) -> list[str]:
    """The steps of a text, without white space around them and without empty ones; `how` is a name of SPLITS."""
    require(how in SPLITS, "split", how, ", ".join(SPLITS))
    cuts = [0, *SPLITS[how](text), len(text)]
    return [step for start, end in itertools.pairwise(cuts) if (step := text[start:end].strip())]


def at_lines(text: str) -> Iterator[int]:
    return (match.start() for match in re.finditer("\n", text))


def at_blank_lines(text: str) -> Iterator[int]:
    return (match.start() for match in BLANK_LINE.finditer(text))


def at_numbers(text: str) -> Iterator[int]:
    """What precedes the first number is a step of its own."""
    return (match.start() for match in NUMBERED.finditer(text))


def at_sentences(text: str) -> Iterator[int]:
    """Where a sentence or a line ends and the next begins; never inside a number, a formula or code."""
    spans = _formulas(text)
    span = next(spans, None)
    for match in ENDS.finditer(text):
        while span and span[1] <= match.start():
            span = next(spans, None)
        if span and span[0] <= match.start() and match.end() != span[1]:
            continue
        cut = match.start() if text[match.start()] == "\n" else match.end()
        start = SPACES.match(text, match.end()).end()
        goes_on = NO_START.match(text, start) and not (text[match.start()] == "\n" and text[start] in "*-")
        if not goes_on and (text[match.start()] != "." or not NO_END.search(text[max(0, cut - 24) : match.start()])):
            yield cut


def _formulas(text):
    """(start, end) of each formula and piece of code; an opening without its closing is none."""
    last, opened, closing = {}, None, None  # last: where each closing stands last
    for match in FORMULA.finditer(text):
        found = match[0]
        if opened is not None:
            if found == closing:
                yield opened, match.end()
                opened = None
        elif match["open"]:
            closing = {r"\[": r"\]", r"\(": r"\)"}.get(found, found.replace("begin", "end"))
            if closing not in last:
                last[closing] = text.rfind(closing)
            opened = match.start() if last[closing] >= match.end() else None
        elif found[0] == "$":
            yield match.span()


def around_code(text: str) -> Iterator[int]:
    """At lines, but a fenced block of code is one step; a fence that is not closed reaches to the end."""
    fence, at = None, 0
    for line in text.splitlines(keepends=True):
        mark = FENCE.match(line)
        if fence is None:
            yield at
            fence = mark and mark[1]
        elif mark and mark[1].startswith(fence) and not line[mark.end() :].strip():
            fence = None
        at += len(line)


SPLITS = {
    "line": at_lines,
    "blank": at_blank_lines,
    "sentence": at_sentences,
    "numbered": at_numbers,
    "code": around_code,
}


def steps_of(fmt, text: str) -> tuple[str, ...]:
    """The steps of a text in a Format's own convention; blank pieces are none."""
    pieces = text.split(fmt.separator)
    return tuple(piece.strip() if fmt.strip else piece for piece in pieces if piece.strip())
