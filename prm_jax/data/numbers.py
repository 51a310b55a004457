"""The normal form of an answer's text, and its value if it is a number."""

import functools
import re
from fractions import Fraction

LONGEST = 1000  # characters of an answer that is read as a number or an expression

DIGITS = (  # what is replaced, by what, in numbers within a text, too
    (r"−", "-"),
    (r"\\!\s*", ""),
    (r"\{,\}|(?<=\d)\\,\s*(?=\d{3}(?!\d))", ","),  # 11{,}000 and 11\,000 are 11,000
)
LOOKS = (
    *DIGITS,
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


# A unit behind a number: ` dollars`, ` miles per hour`, `\text{ cm}^2`.
UNIT = re.compile(
    r"(?<=[\d}%])(?:(?:\s|\\[,;: ]|~)*\\(?:text\w*|mathrm|mbox)\s*\{[^{}\d]*\}(?:\^\{?\d\}?)?"
    r"|\s+[a-zA-Z]{2,}(?:[ /-]+[a-zA-Z]+)*)[\s.]*$"
)
# 2 million, 2 squared and 3 halves are not 2 and 3.
SCALE = re.compile(
    r"(?:(?:hundred|thousand|million|billion|trillion|dozen|lakh|crore|third|fourth|fifth|sixth|seventh"
    r"|eighth|ninth|tenth|hundredth|thousandth)s?|bn|pi|half|halves|squared|cubed|factorial|plus|minus)\b"
)
LIST = re.compile(r"\d,(?:\s|~|\\[,;: ])")  # 81, 256 is not 81,256
DECIMAL = r"(?:[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?|\d+(?:\.\d*)?|\.\d+)"  # 1,234.5 or 1234.5 or .5
# A sign, a currency, a whole part before a fraction; \frac{top}{low}, value/by or value; a % or the like.
NUMBER = re.compile(
    rf"(?P<sign>[-+]?)[€£¥]?(?:(?P<whole>\d+)(?: ?(?=\\frac)| (?=\d+/)))?"
    rf"(?:\\frac\{{(?P<top>-?{DECIMAL})\}}\{{(?P<low>-?{DECIMAL})\}}"
    rf"|(?P<value>{DECIMAL})(?:/(?P<by>{DECIMAL}))?)"
    r"(?:%|\^\\circ|[€£¥])?"
)


@functools.lru_cache(1 << 16)
def as_number(text: str) -> Fraction | None:
    """The exact value of a decimal, fraction or mixed number, None for anything else (1,00 and 1e5 too)."""
    text = re.sub(r"\\?\$", "", text)
    if len(text) > LONGEST or LIST.search(text):
        return None
    unit = UNIT.search(text)
    if unit and not SCALE.search(unit[0]):
        text = text[: unit.start()]
    match = NUMBER.fullmatch(normal(text))
    if not match:
        return None
    parts = (match["top"], match["low"]) if match["top"] else (match["value"], match["by"])
    top, low = (Fraction((part or "1").replace(",", "")) for part in parts)
    if low == 0:
        return None
    size = int(match["whole"] or 0) + top / low
    return -size if match["sign"] == "-" else size
