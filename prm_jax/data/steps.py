r"""Splits the text of a solution into steps, in linear time.

Only white space at a cut is dropped, so the steps, joined, are the text up to white space.
"""

import itertools
import re
from collections.abc import Sequence

from prm_jax.launch.config import expect

# "Step 3:", "3." or "3)" at a line's start, also as a heading or in bold; not 3.5, "3) = 7" or a nested list.
NUMBERED = re.compile(
    r"^ {0,2}(?:#{1,6} )?\*{0,2}(?:step \d{1,3}\b|\d{1,3}[.)]\*{0,2}[^\S\n](?![=+/^<>]|[*-]\s))",
    re.IGNORECASE | re.MULTILINE,
)
SPLITS = {  # a text is cut before each match
    "line": re.compile("\n"),
    "blank": re.compile(r"\n[^\S\n]*\n\s*"),
    "numbered": NUMBERED,  # what precedes the first number is a step too
    "think": re.compile(r"<think>|(?<=</think>)"),  # what precedes a block, the block, what follows
}


def split_steps(text: str, way: str) -> list[str]:
    """The non-empty steps of a text without outer white space; `way` is a name of SPLITS."""
    expect(way in SPLITS, "split_by", way, ", ".join(SPLITS))
    places = [0, *(match.start() for match in SPLITS[way].finditer(text)), len(text)]
    pieces = [text[start:end].strip() for start, end in itertools.pairwise(places)]
    return [piece for piece in pieces if piece]


def format_steps(fmt, text: str) -> tuple[str, ...]:
    """The non-blank steps of a text in a Format's convention."""
    pieces = [piece for piece in text.split(fmt.separator) if piece.strip()]
    return tuple(piece.strip() if fmt.strip else piece for piece in pieces)


def token_steps(fmt, tokens: Sequence[str]) -> list[int]:
    """The number of steps that ended before each token of a solution, given their texts. One that completes a
    separator ends a step; blank pieces join the step after."""
    step_L = []
    step, text = 0, ""
    for token in tokens:
        step_L.append(step)
        text += token
        if fmt.separator in text:
            step += bool(text.strip())
            text = ""
    return step_L


def step_sums(fmt, tokens: Sequence[str], x_L: Sequence[float], text: str) -> tuple[float, ...] | None:
    """Sums of the tokens' numbers over each step of a text; None where a token is of two steps."""
    T = len(format_steps(fmt, text))
    step_L = token_steps(fmt, [*tokens, fmt.separator, ""])
    sums = [0.0] * max(T, 1)
    if len(x_L) != len(tokens) or step_L[-1] != T:
        return None
    for step, x in zip(step_L, x_L):
        sums[min(step, len(sums) - 1)] += x
    return tuple(sums)
