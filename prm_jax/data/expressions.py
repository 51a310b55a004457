r"""Reads arithmetic in running text, without eval: the tokens of a clause and the exact value of a sum of numbers.

It knows decimals with thousands separators, + - * / ^ in ASCII, Unicode and LaTeX, \frac, parentheses, 2(3 + 4),
percent, and words that stand as units behind a number. All sizes are limited, so that no power tower hangs.
"""

import dataclasses
import itertools
import re
from fractions import Fraction

LONGEST, DIGITS, DEPTH, BITS = (
    200,
    40,
    30,
    4096,
)  # tokens of a side, digits of a number, nesting, bits of a value

CHARACTERS = str.maketrans(
    {
        "×": "*",
        "·": "*",
        "∙": "*",
        "⋅": "*",
        "∗": "*",
        "÷": "/",
        "−": "-",
        "²": "^2",
        "³": "^3",
        "€": "$",
        "£": "$",
    }
    | {"’": "'", "≃": "≈", "≅": "≈", "（": "(", "）": ")", "＝": "=", "＋": "+", "\u200b": " "}
)
TOKEN = re.compile(
    r"""(?P<skip>[ &~°\n]|\\[,;:! ]|\\?\$|\\(?:left|right|[bB]igg?[lr]?|displaystyle|boxed)(?![a-zA-Z])|\\[()]
        |\^\\circ|\^\{\\circ\}|\\\\(?=[ \n&]{0,3}=)|\*\*(?![\d(])|(?<![\d)])\*\*|\#+[ ])
    |(?P<w>[A-Za-z]+(?:['-][A-Za-z]+)*(?:/[A-Za-z]{2,})*(?:\^\{?[23]\}?)?)
    |(?P<n>(?:\d{1,3}(?:(?:,|\{,\}|,?\\[,!][ ]?)\d{3}){1,12}|\d+)(?!\d)(?:\.\d+)?|\.\d+)
    |(?P<b>\\\\|\\[][]|[.,:](?=["')$*]|\\(?![a-zA-Z])|\Z)|;|=>|<=|>=|[<>≤≥→⇒]
        |\\(?:leq?|geq?|lt|gt|to|Rightarrow|implies|rightarrow|begin|end|q?quad)(?![a-zA-Z]))
    |(?P<e>==?|≈|\\approx(?![a-zA-Z]))
    |(?P<o>\*\*|[-+^*/]|\\(?:times|cdot|ast|div)(?![a-zA-Z]))
    |(?P<short>\\[dtc]?frac[ ]?\d[ ]?[1-9])
    |(?P<f>\\[dtc]?frac(?![a-zA-Z]))
    |(?P<p>\\?%)
    |(?P<text>\\(?:text\w*|mathrm|mbox)[ ]?\{[^{}\n]*\})
    |(?P<open>[({[])
    |(?P<close>[])}])
    |(?P<x>!=|:=|\\[a-zA-Z]+|\\?.)""",
    re.VERBOSE,
)
OPERATORS = {r"\times": "*", r"\cdot": "*", r"\ast": "*", r"\div": "/", "**": "^"}
GLUED = re.compile(r"(?i:[cmk]m|[km]g|ml|ft|lbs?|oz|hrs?|mins?|sec|cents|mph|kmh)")  # 5cm, but not 5ab
# Words that may belong to the expression beside them, so that its numbers alone do not give its value.
RISKY = re.compile(
    r"of|twice|half|double|triple|quarter|third|times|plus|minus|by|over|per|than|more|less|and|or|to|from|through|choose"
    r"|sin|cos|tan|cot|sec|csc|log|ln|sqrt|root|squared?|cubed|power|gcd|lcm|max|min|det|mod|base|remainder|pi|x|[ap]m"
    r"|hundred|thousand|million|billion|trillion|dozens?|pairs?"
)


class Unreadable(Exception):
    """The tokens are not an expression of numbers, or exceed the limits."""


@dataclasses.dataclass(slots=True)
class Token:
    kind: (
        str  # n number, o operator, ( and ), f \frac, p percent, w words, b break, e equality, x other, $ end
    )
    value: object
    start: int
    end: int
    half: Fraction | int = 0  # half a unit of a decimal's last digit


END = Token("$", "", -1, -1)  # what is before the first token and after the last


def tokenize(clause: str) -> list[Token]:
    tokens = []
    for match in TOKEN.finditer(clause):
        kind, value, (start, end), half = match.lastgroup, match[0], match.span(), 0
        last = tokens[-1] if tokens else END
        is_glued, after_number = last.end == start, last.kind in "n)p"
        match kind:
            case "skip":
                continue
            case "w":
                if value == "percent":
                    kind = "p"
                elif value in "xX" and after_number and clause[end : end + 2].lstrip(" $\\")[:1].isdigit():
                    kind, value = "o", "*"  # 3 x 4
                elif not value[1:2].isalpha() or is_glued and last.kind == "n" and not GLUED.fullmatch(value):
                    kind = "x"  # a variable
            case "n":
                digits = re.sub(r"[^\d.]", "", value)
                whole, _, decimals = digits.partition(".")
                is_time = len(whole) > 1 and whole[0] == "0"  # 0900
                if len(digits) > DIGITS or is_time or is_glued and last.kind in "nw":
                    kind = "x"
                elif decimals:
                    size = 10 ** len(decimals)
                    value, half = Fraction(int(whole + decimals), size), Fraction(1, 2 * size)
                else:
                    value = int(whole)
            case "o":
                value = OPERATORS.get(value, value)
            case "short":  # \frac12
                kind, value = "n", Fraction(*map(int, re.findall(r"\d", value)))
            case "open" | "close":
                kind = "(" if kind == "open" else ")"
            case "text":
                value = value[value.index("{") + 1 : -1].strip()
                if not value or value[0] == "(" and after_number:  # 12 \text{ (pens)}
                    continue
                kind = "x" if value[0] == "(" else "w"
        tokens.append(Token(kind, value, start, end, half))
    return tokens


class Reader:
    """Reads one sum of numbers from the start of `tokens`; `place` is then the first token that does not belong to it,
    `units` are the words behind its numbers, and `doubt` says that the text may mean another value than the one read.
    Each method returns (value, whether it is a percentage), so that 50 - 20% is in doubt."""

    def __init__(self, tokens):
        self.tokens, self.place, self.depth, self.units, self.doubt = tokens, 0, 0, set(), False

    def peek(self, ahead: int = 0) -> Token:
        return self.tokens[self.place + ahead] if self.place + ahead < len(self.tokens) else END

    def take(self, operators: str):
        """Returns and skips the next token if it is one of these operators."""
        token = self.peek()
        if token.kind == "o" and token.value in operators:
            self.place += 1
            return token.value

    def descend(self):
        self.depth += 1
        if self.depth > DEPTH:
            raise Unreadable

    def sum(self):
        self.descend()
        total, is_share = self.product()
        while sign := self.take("+-"):
            value, share = self.product()
            self.doubt |= share != is_share
            total = bounded(total + value if sign == "+" else total - value)
        self.depth -= 1
        return total, is_share

    def product(self):
        total, is_share = self.factor()
        sign = None
        while True:
            before, sign = sign, self.take("*/")
            self.doubt |= before == sign == "/"  # 27/3/4 may mean 27 by three quarters
            token = self.peek()
            if sign == "/" and token.kind == "w":  # 5 / dozen
                self.units.add("/" + token.value)
                self.doubt = True
                self.place += 1
                continue
            if sign is None:
                if token.kind != "(" or token.value not in "([" or self.peek(1).kind in "wxb$":
                    return total, is_share
                if before == "/":
                    raise Unreadable  # 6/2(3) is 9 to some and 1 to others
                self.doubt |= self.tokens[self.place - 1].end != token.start
            value, share = self.factor()
            is_share &= share
            total = bounded(Fraction(total) / value if sign == "/" else total * value)

    def factor(self):
        if sign := self.take("+-"):
            self.descend()
            first, self.doubt = self.place, self.doubt or self.peek().kind == "o"
            value, share = self.factor()
            self.depth -= 1
            if self.tokens[first].kind == "n" and any(
                token.value == "^" for token in self.tokens[first : self.place]
            ):
                raise Unreadable  # -3^2 is -9, and often meant as 9
            return (value if sign == "+" else -value), share
        value, share = self.primary()
        if self.take("^"):
            sign = -1 if self.take("-") else 1
            power = sign * self.primary()[0]
            bits = max(value.numerator.bit_length(), value.denominator.bit_length())
            if (
                power.denominator != 1
                or self.take("^")
                or value == 0
                and power <= 0
                or abs(power) * bits > BITS
            ):
                raise Unreadable
            value = Fraction(value) ** int(power)
        self.unit()
        return value, share

    def primary(self):
        token, share = self.peek(), False
        if token.kind == "(":
            value, share = self.group()
        elif token.kind in "nf":
            self.place += 1
            value = token.value if token.kind == "n" else bounded(Fraction(self.group()[0]) / self.group()[0])
        else:
            raise Unreadable
        if self.peek().kind != "p":
            return value, share
        self.place += 1
        return Fraction(value) / 100, True

    def group(self):
        opening = self.peek()
        if opening.kind != "(":
            raise Unreadable
        self.place += 1
        value = self.sum()
        closing = self.peek()
        if closing.kind != ")" or opening.value + closing.value not in ("()", "[]", "{}"):
            raise Unreadable
        self.place += 1
        return value

    def unit(self):
        """Takes up to three words between a number and an operator, a parenthesis or the end."""
        n = next(n for n in itertools.count() if self.peek(n).kind != "w")
        if 0 < n <= 3 and self.peek(n).kind in "o)$":
            words = " ".join(self.peek(k).value for k in range(n)).lower()
            self.doubt |= " " in words or RISKY.fullmatch(words) is not None
            self.units.add(words.rstrip("s"))
            self.place += n


def bounded(value):
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > BITS:
        raise Unreadable
    return value
