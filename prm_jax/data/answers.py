r"""Extracts the final answer of a solution and normalises it for comparison.

grading.py compares by one of three rules, which the results name:
  string  equal `normal` texts: LaTeX spacing, sizes and wrappers do not count, values do (1,000 is not 1000).
  number  `as_number` values differ by at most 1e-6, below 1 by at most 1e-6 of the larger; whole numbers must be equal.
          Thousands separators, currency, units and percent signs (25\% is 25, as in GSM8K and MATH) do not count.
          An answer that is not a number is compared as a string.
  math    equal strings, else Math-Verify (github.com/huggingface/Math-Verify) on `\boxed{answer}` with its default
          settings. It is not symmetric, gold first: gold 1 accepts 2x + z = 1, gold 2x + z = 1 does not accept 1.
Every rule compares an answer of more than LONGEST characters as a string.
"""

import functools
import re
from fractions import Fraction

LONGEST = 1000  # characters of an answer that is read as a number or an expression
BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(?P<bare>[^\s{}$\\]+))")  # MATH also writes \boxed 5
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # `\{` is text, no brace
HASHES = re.compile(r"####([-+$\\ \t]*+[\d.,/]+\\?%?[ \t]*)$", re.MULTILINE)
ANSWER_IS = re.compile(
    r"(?:\banswer(?:\s+is\b|\**\s*:)|^#+\s*answer\b)[\s:*]*(?:\$\$\s*|\\\[\s*)?(.+)", re.IGNORECASE | re.MULTILINE
)
STATED_END = re.compile(r"\.\s|\\[)\]]|(?<=\S)\*\*(?!\w)")  # the sentence, the formula or the bold type ends
BEFORE = re.compile(r"(?:\s|\$|\*\*|\\[(\[])*+")
AFTER = re.compile(r"(?:\s|(?<!\\)\$|\*\*|\\[)\]]|(?<!\\right)\.)\Z")


def extract(text: str) -> str | None:
    r"""The final answer that a solution states, without `$`, bold marks, final periods and outer white space; None if
    there is none (the last number of a text is not a stated answer).

    The first kind of these that is not empty, and the last of that kind: a closed `\boxed{...}`; GSM8K's `#### x` with
    x the last line or a number alone on its line (not a Markdown heading); "answer is x", "Answer: x" or PRM800K's "#
    Answer" above x, x up to the end of its sentence, formula or line. Takes linear time.
    """
    answers = (_bare(answer) for kind in (_boxes, _hashes, _stated) for answer in kind(text))
    return next(filter(None, answers), None)


def read_gold(text: str | None) -> str | None:
    """The gold answer in a file's field, also if that is a whole solution: GSM8K's lines and `#### 72`."""
    is_solution = text is not None and ("\n" in text or "####" in text)
    return is_solution and extract(text) or text


def _boxes(text):
    """Yields the contents of the boxes, the last to open first; an unclosed box is empty."""
    closing, open_braces = {}, []
    for brace in BRACE.finditer(text):
        if brace[0] == "{":
            open_braces.append(brace.end())
        elif brace[0] == "}" and open_braces:
            closing[open_braces.pop()] = brace.start()
    for match in reversed(list(BOX.finditer(text))):
        yield match["bare"] or text[match.end() : closing.get(match.end(), match.end())]


def _hashes(text):
    last_line = text.rstrip().rpartition("\n")[2]
    if "#" not in (last := last_line.rpartition("####"))[2] and last[1]:
        yield last[2]
    yield from (match[1] for match in reversed(list(HASHES.finditer(text))))


def _stated(text):
    return (STATED_END.split(match[1], 1)[0] for match in reversed(list(ANSWER_IS.finditer(text))))


def _bare(answer):
    start, end = BEFORE.match(answer).end(), len(answer)
    while match := AFTER.search(answer[max(start, end - 7) : end]):  # 7: `\right.`
        end -= len(match[0])
    return answer[start:end]


LOOKS = (
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
    (r"\s+", " "),
    (r"(?<!\d) | (?!\d)", ""),  # but 1 1/2 is not 11/2
)


@functools.lru_cache(1 << 16)
def normal(text: str) -> str:
    """The text without what only changes its looks; equal results are equal answers by every rule."""
    for pattern, new in LOOKS:
        text = re.sub(pattern, new, text)
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
    """The exact value of a decimal, fraction or mixed number, None for anything else (1,00 and 1e5 too)."""
    text = re.sub(r"\\?\$", "", text)
    if len(text) > LONGEST:
        return None
    unit = UNIT.search(text)
    match = NUMBER.fullmatch(normal(text[: unit.start()] if unit and not SCALE.search(unit[0]) else text))
    if not match:
        return None
    parts = (match["top"], match["low"]) if match["top"] else (match["value"], match["by"])
    top, low = (Fraction((part or "1").replace(",", "")) for part in parts)
    if low == 0:
        return None
    size = (int(match["whole"]) if match["whole"] else 0) + top / low
    return -size if match["sign"] == "-" else size


def is_blank(answer: str | None) -> bool:
    """Whether there is no answer: a blank one can neither win nor be voted for."""
    return answer is None or not normal(answer)
