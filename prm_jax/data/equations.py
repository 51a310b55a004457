r"""Judges the numeric equations of a text, to label steps without annotation.

`48/2=24`, GSM8K's `<<48/2=24>>`, `$48 / 2 = $24`, `\frac{48}{2} = 24 \text{ apples}`. Only equations of numbers are
judged: a side with a variable, a function, a list or words inside is not read. There is no verdict on a mismatch that
may be no error (a conversion of units, a number rounded before, a lost sign, a running calculation 2 + 3 = 5 * 4 = 20,
a value that is only tried): a false "wrong" is worse than none. "Right" refers to the arithmetic alone.
"""

import dataclasses
import functools
import re
from fractions import Fraction

from prm_jax.data.expressions import CHARACTERS, END, LONGEST, RISKY, Reader, Token, Unreadable, tokenize

EQUALITY = re.compile(r"[=≈]|\\approx")
ANNOTATION = re.compile(r"<<([^<>\n]*)>>")
BULLET = re.compile(r"^ ?(?:[*•]|-(?= \D)|\(?\w{1,2}[.)])(?= )", re.MULTILINE)
# The ends of lines and clauses, which no equation crosses; a line that begins with = continues. 14, 400 is one number.
CLAUSE = re.compile(r"(\n(?![ &]{0,3}=)|(?<![\\ ])[.,:;] (?!(?<=\d, )\d{3}(?!\d)))")
# Words of a text that tries or denies an equation, or does not count with plain numbers.
DENIED = re.compile(
    r"\bnot\b|n't\b|contradict|impossible|incorrect|invalid|wrong|mistake|\bfalse\b|[?≠]|\\neq?\b|\bif\b|suppose|assum|\btry"
    r"|\btest|\bcheck|becomes|substitut|\bmod\b|modul|\\p?mod|\\equiv|≡|\bbase\b|remainder|borrow|\bcarry|clock|\b[ap]\.?m\b"
    r"|\bbinary\b|\boctal\b|\bhexadecimal\b",
    re.IGNORECASE,
)
COINS = re.compile(r"\b(?:cent|penny|pennie|nickel|dime|quarter)s?\b", re.IGNORECASE)
MODULAR = re.compile(r"\bmod(?:\b|\d|ulo\b|ular\b|ulus\b)|\\p?mod|\\equiv|≡", re.IGNORECASE)
# Ratios of common units: 0.5 = 30 minutes.
FACTORS = {
    2,
    3,
    4,
    5,
    7,
    8,
    10,
    12,
    14,
    16,
    20,
    24,
    25,
    30,
    36,
    52,
    60,
    100,
    144,
    168,
    365,
    1000,
    1440,
    1760,
    2000,
}
FACTORS |= {3600, 5280, 10_000, 86_400, 10**6, 10**9}
MOST_DECIMALS = 10  # in a side whose rounding is followed


@dataclasses.dataclass(slots=True)
class Side:
    """One side of an equation; `units`: the words behind its numbers; `doubt`: it may mean another value."""

    value: Fraction | int
    tokens: list[Token]
    units: set[str]
    doubt: bool
    is_share: bool  # a percentage

    @property
    def literal(self) -> Token | None:
        """The number of a side that is one number, with or without a sign."""
        parts = [token for token in self.tokens if token.kind in "nof"]
        parts = parts[1:] if len(parts) == 2 and parts[0].value == "-" else parts
        return parts[0] if len(parts) == 1 and parts[0].kind == "n" else None

    @property
    def in_thousands(self) -> Fraction | int:
        """The value if 1.500 means 1,500."""
        tokens = [
            dataclasses.replace(t, value=1000 * t.value)
            if t.half == Fraction(1, 2000) and 1 <= t.value < 1000
            else t
            for t in self.tokens
        ]
        return (read_side(tokens) or self).value

    def slack(self) -> Fraction | None:
        """How far the value may move if each decimal is a rounded number; None if there are very many."""
        decimals, total = [i for i, token in enumerate(self.tokens) if token.half], Fraction(0)
        if len(decimals) > MOST_DECIMALS:
            return None
        for i in decimals:
            shifted = dataclasses.replace(self.tokens[i], value=self.tokens[i].value + self.tokens[i].half)
            side = read_side([*self.tokens[:i], shifted, *self.tokens[i + 1 :]])
            if side is None:
                return None
            total += abs(side.value - self.value)
        return total


def read_side(tokens: list[Token]) -> Side | None:
    """The longest sum of numbers that `tokens` begin with, None if they begin with none."""
    reader = Reader(tokens)
    try:
        value, is_share = reader.sum()
    except (Unreadable, ZeroDivisionError):
        return None
    return Side(value, tokens[: reader.place], reader.units, reader.doubt, is_share)


def equations(text: str) -> list[tuple[str, bool | None]]:
    """(equation, holds) of each equation whose two sides can be read; holds is None if a mismatch is in doubt."""
    text = text.translate(CHARACTERS)
    if not EQUALITY.search(text):
        return []
    if inner := ANNOTATION.findall(text):
        text = "\n".join([ANNOTATION.sub("", text), *inner])
    text = re.sub(r"\s+", lambda match: "\n" if "\n" in match[0] else " ", text)
    parts, judged = ["\n", *CLAUSE.split(BULLET.sub(";", text))], []
    for opening, clause in zip(parts[::2], parts[1::2], strict=True):
        if EQUALITY.search(clause):
            judged += _judge_clause(clause, opening)
    if not any(holds is False for *_, holds in judged):
        return [(equation, holds) for equation, _, holds in judged]
    # 31 = 50: a value was tried, and the text shows that it fails
    is_denied = any(is_tried for _, is_tried, _ in judged) or DENIED.search(text)
    is_cut = len(re.findall(r"\\[\[(]", text)) > len(
        re.findall(r"\\[\])]", text)
    )  # its last number may lack digits
    return [
        (equation, holds or None if is_denied or is_cut and i == len(judged) else holds)
        for i, (equation, _, holds) in enumerate(judged, 1)
    ]


@functools.lru_cache(1 << 16)
def verdict(text: str, problem: str = "") -> bool | None:
    """True if all equations hold, False if one is wrong (unless the problem is modular), None without a verdict."""
    verdicts = {holds for _, holds in equations(text)}
    if False in verdicts:
        return None if MODULAR.search(problem) else False
    return None if None in verdicts or not verdicts else True


def _judge_clause(clause, opening):
    """Yields (equation, whether it equates two unequal bare numbers, holds); `opening` ended the clause before."""
    tokens = [Token("b", opening[0], 0, 0), *tokenize(clause)]
    signs = [i for i, token in enumerate(tokens) if token.kind == "e"]
    for before, i, after in zip([-1, *signs], signs, [*signs[1:], len(tokens)]):
        if (left := _left_side(tokens[before + 1 : i])) and (right := _right_side(tokens[i + 1 : after])):
            are_bare = left.literal and right.literal and not left.units | right.units
            holds = judge(left, right, is_rough=tokens[i].value[0] != "=")
            if holds is False and "$" in clause and COINS.search(clause):  # 25 cents + $5 = $5.25
                holds = None
            yield clause[left.tokens[0].start : right.tokens[-1].end], are_bare and not holds, holds


def _right_side(tokens) -> Side | None:
    """The side that follows an equality sign, None if it is not an expression of numbers."""
    if (side := read_side(tokens[:LONGEST])) is None:
        return None
    rest = tokens[len(side.tokens) :]
    if not rest or len(side.tokens) == LONGEST:
        return None if rest else side
    stop = rest[0]
    if stop.kind == "w":  # = 5 apples
        follows = next((token.kind for token in rest if token.kind != "w"), "b")
        side.units.add(stop.value.lower().rstrip("s"))
        side.doubt |= RISKY.fullmatch(stop.value.lower().split()[0]) is not None
        return side if follows != "o" else None
    side.doubt |= stop.kind == "("  # = 5 (since
    return side if stop.kind in "b)(" else None


def _left_side(tokens) -> Side | None:
    """The side that precedes an equality sign: the longest end of `tokens` that looks like an expression of numbers."""
    start, depth = len(tokens), 0
    while start and len(tokens) - start <= LONGEST:
        kind, first = tokens[start - 1].kind, start - 1
        if kind == "w":  # a unit, if it lies between a number and an operator
            while first and tokens[first - 1].kind == "w" and start - first <= 3:
                first -= 1
            before = tokens[first - 1] if first else END
            is_unit = start == len(tokens) or tokens[start].kind in "o)"
            if not is_unit or before.kind not in "n)p" and before.value != "/":
                break
        elif kind == "(" and depth == 0 or kind not in "nofp()":
            break
        depth += (kind == ")") - (kind == "(")
        start = first
    expression, stop = tokens[start:], tokens[start - 1] if start else END
    if depth or not expression or len(expression) > LONGEST or stop.kind == "x":
        return None
    doubt, after_word = expression[-1].kind == "w", stop.kind == "w"
    if expression[0].kind == "o":
        if after_word or len(expression) < 2:
            return None
        if expression[1].start > expression[0].end and stop.kind in "b$":
            expression, doubt = expression[1:], True  # a dash that opens a line
    is_clear = stop.value in (
        "\n",
        ";",
        ".",
        "(",
        r"\[",
        r"\\",
        "",
    )  # not in: half of 10 = 5, the numbers 3, 4 = ...
    side = read_side(expression)
    if side is None or len(side.tokens) != len(expression) or side.literal and not is_clear:
        return None
    side.doubt |= doubt
    if after_word:
        before, *words = tokens[start - 2] if start > 1 else END, *stop.value.lower().split()
        is_total = words[-1] == "of" and before.value == "total"
        side.doubt |= bool(RISKY.fullmatch(words[-1])) and not is_total or before.kind in "n)p"
        side.doubt |= len(expression) == 3 and expression[1].value == "-" and side.value < 0  # Weeks 1-2
        side.doubt |= expression[0].kind == "(" and stop.end == expression[0].start  # max(3 + 4)
    return side


def judge(left: Side, right: Side, is_rough: bool) -> bool | None:
    """Whether left = right, or approximately (`is_rough`); None if a mismatch need not be an error."""
    has_percent = any(token.kind == "p" for token in (*left.tokens, *right.tokens))
    scales = (1, 100, Fraction(1, 100)) if has_percent else (1,)  # 10 / 20 * 100 = 50%
    agrees = [_agree(left, right, scale, is_rough) for scale in scales]
    if any(agrees) or None in agrees:
        return True if any(agrees) else None
    numbers, units = [token for token in right.tokens if token.kind in "nf"], left.units | right.units
    small, large = sorted((left.value, right.value), key=abs)
    gap, ratio = abs(large - small), Fraction(large) / small if small else 0
    reasons = (
        left.doubt or right.doubt,
        left.literal and right.literal,
        ratio == -1,  # 3 - 5 = 2
        numbers[0].value == abs(left.value),  # 2 + 3 = 5 * 4
        len(units) > 1,
        left.in_thousands == right.in_thousands,
        abs(ratio) in (100, 1000, 10**6) or units and ratio in FACTORS,  # 25 cents, 5 thousand
        left.is_share != right.is_share and (right if left.is_share else left).literal,  # 48 = 100% + 20%
        is_rough and gap * 10 < abs(left.value),
    )
    if any(reasons) or None in (slack := [left.slack(), right.slack()]) or gap <= sum(slack):
        return None
    return False


def _agree(left, right, scale, is_rough):
    """Whether left = scale * right to the digits written; None for a whole number that was rounded either way."""
    a, b = left.value, right.value * scale
    if abs(a - b) * 10**12 <= abs(a):  # 54.00000000000001 is a float of 54
        return True
    for written, exact, number in ((a, b, left.literal), (b, a, right.literal)):
        if number is None:
            continue
        one = abs(Fraction(written) / number.value) if number.value else 1  # .01 of a percentage
        unit = 2 * number.half * one
        is_cut = abs(written) <= abs(exact) < abs(written) + unit and written * exact >= 0
        if abs(a - b) <= unit / 2 or is_cut:
            return True
        if not unit and exact.denominator != 1 and abs(a - b) < one:  # 20 / 3 = 6 boxes
            return True if is_rough and abs(a - b) * 2 <= one else None
    return False
