r"""Final answers: extract them from a solution, compare them, group the equal ones.

Three rules of comparison (`how`), each named in the results:
  string  `normal` texts are equal: LaTeX spacing, sizes and wrappers do not count, values do (1,000 is not 1000).
  number  `as_number` values differ by at most 1e-6, below 1 by at most 1e-6 of the larger; two whole numbers are equal
          or differ. Thousands separators, currency, units and the percent sign (25\% is 25, as in GSM8K and MATH) do
          not count. An answer that is no number is compared as a string.
  math    equal strings, else Math-Verify (github.com/huggingface/Math-Verify) on `\boxed{answer}`, all its settings as
          they come. It is not symmetric, gold first: gold 1 takes 2x + z = 1, gold 2x + z = 1 does not take 1.

Math-Verify's own time limit is a Python signal handler, which works in the main thread only, and SymPy's results may
depend on the hash and random seeds. So it runs in worker processes with fixed seeds, and the kernel ends a worker that
spends more than SECONDS of processor time on a pair: the limit holds in compiled code and does not depend on the load.
"""

import functools
import re
from fractions import Fraction

BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(?P<bare>[^\s{}$\\]+))")  # MATH also writes \boxed 5
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # `\{` is text, no brace
HASHES = re.compile(r"####[ \t]*([^\n#]*?\s*\Z|[-+$\\ ]*[\d.,/]+\\?%?[ \t]*$)", re.MULTILINE)
ANSWER_IS = re.compile(
    r"(?:\banswer(?:\s+is\b|\**\s*:)|^#+\s*answer\b)[\s:*]*(?:\$\$\s*|\\\[\s*)?(.+)", re.IGNORECASE | re.MULTILINE
)
STATED_END = re.compile(r"\.\s|\\[)\]]|(?<=\S)\*\*(?!\w)")  # the sentence, the formula or the bold type ends
EDGES = re.compile(r"^(?:\s|\$|\*\*|\\[(\[])+|(?:\s|(?<!\\)\$|\*\*|\\[)\]]|(?<!\\right)\.)+$")


def extract(text: str) -> str | None:
    r"""The final answer that a solution states, without `$`, bold marks, final periods and outer white space.

    The first of these that is there and not empty, the last one of its kind: a `\boxed{...}` whose braces close;
    GSM8K's `#### x`, x the last line or a number alone on its line (a Markdown heading is neither); "answer is x",
    "Answer: x" or PRM800K's "# Answer" with x below it, x up to the end of its sentence, formula or line. None if there
    is none: the last number of a text is no stated answer.
    """
    boxes = (_box(text, match) for match in reversed(list(BOX.finditer(text))))
    hashes = (match[1] for match in reversed(list(HASHES.finditer(text))))
    stated = (STATED_END.split(match[1])[0] for match in reversed(list(ANSWER_IS.finditer(text))))
    found = (EDGES.sub("", answer or "") for kind in (boxes, hashes, stated) for answer in kind)
    return next(filter(None, found), None)


def _box(text, match):
    if match["bare"]:
        return match["bare"]
    depth = 1
    for brace in BRACE.finditer(text, match.end()):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[match.end() : brace.start()]
    return None  # cut off inside the box


LOOKS = [
    (re.compile(pattern), new)
    for pattern, new in (
        (r"−", "-"),
        (r"\\!\s*", ""),
        (r"\{,\}|(?<=\d)\\,\s*(?=\d{3}(?!\d))", ","),  # 11{,}000 and 11\,000 are 11,000
        (r"\\[,;: ]|~|\\q?quad(?![a-zA-Z])", " "),
        (r"\\(?:left|right)(?![a-zA-Z])\.?|\\[bB]igg?[lr]?(?![a-zA-Z])|\\displaystyle(?![a-zA-Z])", ""),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\frac\s*(\d)", r"\\frac{\1}"),  # \frac12 is \frac{1}{2}
        (r"(\\frac\{[^{}]*\})\s*(\d)", r"\1{\2}"),
        (r"\\(?:text(?:bf|it|rm|normal)?|mathrm|mathbf|mbox)\s*\{([^{}]*)\}", r"\1"),
        (r"\\?\$", ""),
        (r"\\%", "%"),
        (r"°|\^\s*\{\s*\\circ\s*\}", r"^\\circ"),
        (r"([\^_])\{(\w)\}", r"\1\2"),
        (r"(?<!\d)\s+|\s+(?!\d)", ""),  # but 1 1/2 is not 11/2
    )
]


@functools.lru_cache(1 << 16)
def normal(text: str) -> str:
    """The text without what changes only its looks; equal texts are equal answers to every rule."""
    for pattern, new in LOOKS:
        text = pattern.sub(new, text)
    return text.rstrip(".")


UNIT = re.compile(
    r"(?<=[\d}%])(?:(?:\s|\\[,;: ]|~)*\\(?:text\w*|mathrm|mbox)\s*\{[^{}\d]*\}(?:\^\{?\d\}?)?"
    r"|\s+[a-zA-Z]{2,}(?:[ /-]+[a-zA-Z]+)*)[\s.]*$"
)
SCALE = re.compile(r"(?:hundred|thousand|million|billion|trillion|dozen|pi)\b")  # 2 million is not 2
DECIMAL = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+(?:\.\d*)?|\.\d+)"
NUMBER = re.compile(
    rf"(?P<sign>[-+]?)[€£¥]?(?:(?P<whole>\d+)(?: ?(?=\\frac)| (?=\d+/)))?"
    rf"(?:\\frac\{{(?P<top>-?{DECIMAL})\}}\{{(?P<low>-?{DECIMAL})\}}|(?P<value>{DECIMAL})(?:/(?P<by>{DECIMAL}))?)"
    r"(?:%|\^\\circ|[€£¥])?"
)


@functools.lru_cache(1 << 16)
def as_number(text: str) -> Fraction | None:
    """The exact value of a decimal, fraction or mixed number, None for anything else (also for 1,00 and 1e5)."""
    text = re.sub(r"\\?\$", "", text)
    unit = UNIT.search(text)
    match = NUMBER.fullmatch(normal(text[: unit.start()] if unit and not SCALE.search(unit[0]) else text))
    if not match or len(text) > 1000:  # int() refuses very long texts
        return None
    value = lambda name: Fraction((match[name] or "1").replace(",", ""))
    top, low = (value("top"), value("low")) if match["top"] else (value("value"), value("by"))
    if low == 0:
        return None
    size = (int(match["whole"]) if match["whole"] else 0) + top / low
    return -size if match["sign"] == "-" else size


def is_blank(answer: str | None) -> bool:
    """Whether an answer is none: a blank one can neither win nor be voted for."""
    return answer is None or not normal(answer)
