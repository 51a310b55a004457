r"""Arithmetic in running text: tokens of a clause, and the exact value of a sum of numbers. No eval.

Read are decimals with thousands separators, + - * / ^ in ASCII, Unicode and LaTeX, \frac, parentheses, 2(3 + 4), percent,
and words that stand as units behind a number. All sizes have limits, so that no power tower hangs.
"""

import dataclasses
import re
from fractions import Fraction

LONGEST, DIGITS, DEPTH, BITS = 200, 40, 30, 4096  # tokens of a side, digits of a number, nesting, bits of a value

CHARACTERS = str.maketrans(
    {"×": "*", "·": "*", "∙": "*", "⋅": "*", "∗": "*", "÷": "/", "−": "-", "²": "^2", "³": "^3", "€": "$", "£": "$"}
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
# Words that may belong to the expression beside them, so that it does not mean what its numbers say.
RISKY = re.compile(
    r"of|twice|half|double|triple|quarter|third|times|plus|minus|by|over|per|than|more|less|and|or|to|from|through|choose"
    r"|sin|cos|tan|cot|sec|csc|log|ln|sqrt|root|squared?|cubed|power|gcd|lcm|max|min|det|mod|base|remainder|pi|x|[ap]m"
    r"|hundred|thousand|million|billion|trillion|dozens?|pairs?"
)


class Unreadable(Exception):
    """No expression of numbers, or one beyond the limits."""


@dataclasses.dataclass(slots=True)
class Token:
    kind: str  # n number, o operator, ( and ), f \frac, p percent, w words, b break, e equality, x anything else
    value: object
    start: int
    end: int
    half: Fraction | int = 0  # of a decimal: half a unit of its last digit


def tokenize(clause: str) -> list[Token]:
    tokens = []
    for match in TOKEN.finditer(clause):
        kind, value, (start, end), half = match.lastgroup, match[0], match.span(), 0
        last = tokens[-1] if tokens else None
        is_glued, after_number = last is not None and last.end == start, last is not None and last.kind in "n)p"
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
                kind, value = "w", value[value.index("{") + 1 : -1].strip()
                is_remark = value[:1] == "("  # 12 \text{ (pens)}
                if not value or is_remark and after_number:
                    continue
                kind = "x" if is_remark else kind
        tokens.append(Token(kind, value, start, end, half))
    return tokens


class Reader:
    """Reads one sum of numbers from the first of `tokens`; `at` is then the first token that does not belong to it.

    `units` are the words behind its numbers, `doubt` says that the text may mean another value than was read. A value
    comes with whether it is a percentage, so that 50 - 20% is in doubt.
    """

    def __init__(self, tokens):
        self.tokens, self.at, self.depth, self.units, self.doubt = tokens, 0, 0, set(), False

    def peek(self):
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self, operators: str):
        """The next token if it is one of these operators."""
        token = self.peek()
        if token is not None and token.kind == "o" and token.value in operators:
            self.at += 1
            return token.value
        return None

    def sum(self):
        self.depth += 1
        if self.depth > DEPTH:
            raise Unreadable
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
            if sign == "/" and token is not None and token.kind == "w":  # 5 / dozen
                self.units.add("/" + token.value)
                self.doubt = True
                self.at += 1
                continue
            if sign is None:
                is_group = token is not None and token.kind == "(" and token.value in "(["
                if not is_group or self.at + 1 == len(self.tokens) or self.tokens[self.at + 1].kind in "wxb":
                    return total, is_share
                if before == "/":
                    raise Unreadable  # 6/2(3) is 9 to some and 1 to others
                self.doubt |= self.tokens[self.at - 1].end != token.start
            value, share = self.factor()
            is_share &= share
            total = bounded(divide(total, value) if sign == "/" else total * value)

    def factor(self):
        if sign := self.take("+-"):
            self.depth += 1
            if self.depth > DEPTH:
                raise Unreadable
            first, self.doubt = self.at, self.doubt or self.peek() is not None and self.peek().kind == "o"
            value, share = self.factor()
            self.depth -= 1
            if self.tokens[first].kind == "n" and any(token.value == "^" for token in self.tokens[first : self.at]):
                raise Unreadable  # -3^2 is -9, and often meant as 9
            return (value if sign == "+" else -value), share
        value, share = self.primary()
        if self.take("^"):
            sign = -1 if self.take("-") else 1
            power = sign * self.primary()[0]
            bits = max(value.numerator.bit_length(), value.denominator.bit_length())
            if power.denominator != 1 or self.take("^") or value == 0 and power <= 0 or abs(power) * bits > BITS:
                raise Unreadable
            value = Fraction(value) ** int(power)
        self.unit()
        return value, share

    def primary(self):
        token, share = self.peek(), False
        if token is None or token.kind not in "n(f":
            raise Unreadable
        if token.kind == "(":
            value, share = self.group()
        else:
            self.at += 1
            value = token.value if token.kind == "n" else bounded(divide(self.group()[0], self.group()[0]))
        token = self.peek()
        if token is not None and token.kind == "p":
            self.at += 1
            return divide(value, 100), True
        return value, share

    def group(self):
        opening = self.peek()
        if opening is None or opening.kind != "(":
            raise Unreadable
        self.at += 1
        value = self.sum()
        closing = self.peek()
        if closing is None or closing.kind != ")" or opening.value + closing.value not in ("()", "[]", "{}"):
            raise Unreadable
        self.at += 1
        return value

    def unit(self):
        """Up to three words between a number and an operator, a parenthesis or the end."""
        at = self.at
        while at < len(self.tokens) and self.tokens[at].kind == "w":
            at += 1
        if self.at < at <= self.at + 3 and (at == len(self.tokens) or self.tokens[at].kind in "o)"):
            words = " ".join(token.value for token in self.tokens[self.at : at]).lower()
            self.doubt |= " " in words or RISKY.fullmatch(words) is not None
            self.units.add(words.rstrip("s"))
            self.at = at


def divide(top, low) -> Fraction:
    if not low:
        raise Unreadable
    return Fraction(top) / low


def bounded(value):
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > BITS:
        raise Unreadable
    return value
