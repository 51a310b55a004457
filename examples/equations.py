r"""Judges the numeric equations in steps of plain text: labels of steps, and grades, without annotation.

    python -m examples.relabel checker FILE --checker examples/equations.py:labels
    python evaluate.py task=best_of_n input=POOL checkpoint=RUN checker=examples/equations.py:holds

It reads `48/2=24`, `<<48/2=24>>`, `$48 / 2 = $24`, `\frac{48}{2} = 24 \text{ apples}`, but no variables, no
functions, no lists, no percentages, no approximations, no units but the result's. A mismatch that may be no
error has no verdict (other units, a rounded number, a running calculation 2 + 3 = 5 * 4 = 20, a value that is
tried): a false "wrong" is worse than none."""

import ast
import functools
import itertools
import operator
import re
from fractions import Fraction
from typing import NamedTuple

LONGEST = 200  # characters of one side
BITS = 4096  # of a value, so that no power tower hangs
DEPTH = 5  # of fractions in fractions
MIRRORED = str.maketrans("()", ")(")
SAME_SIGNS = str.maketrans("×·∙⋅∗÷−≈≃≅（）＝＋’\u200b", "*****/-≠≠≠()=+' ")
# Each pattern and what replaces it, in this order: LaTeX and Unicode become plain arithmetic.
PLAIN = [
    ("²", "^2"),
    ("³", "^3"),
    (r"\\\\(?=[ \n&]{0,3}=)", " "),
    (r"\\\\|\\[\[\]]|\\begin\b|\\end\b|\\q?quad\b|\\(?:to|implies|[Rr]ightarrow)\b|[→⇒;]|=>", "\n"),
    (r"<=|>=|!=|:=|\\(?:leq?|geq?|neq?|lt|gt|approx)\b|\.\.\.|\\[lc]?dots\b", " ≠ "),
    ("==", "="),
    (r"\\(?:times|cdot|ast)\b", "*"),
    (r"\\div\b", "/"),
    (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|boxed)(?![a-zA-Z])|\\[!()]", ""),
    (r"\\?\$|[€£&~°]|\^(?:\\circ|\{\\circ\})", ""),
    (r"\\[,;: ]", " "),
    (r"\\(?:text\w*|mathrm|mbox) ?\{([^{}\n]*)\}", r" \1 "),
    (r"(?<=\d)\{,\}(?=\d)", ","),
    (r"(?<=\d) ?\\[dtc]?frac", "≠"),  # a mixed number
    (r"\\[dtc]?frac ?(\d) ?([1-9])", r"((\1)/(\2))"),
    (r"\\%| ?percent\b", "%"),
    (r"\*\*(?![\d(])|(?<![\d)])\*\*|^#+ ", ""),  # bold type and headings
    (r"\*\*", "^"),
    (r"^ ?(?:[*•]|-(?= \D)|\(?\w{1,2}[.)]) ", "\n"),  # the bullet of an item
    (r"(?<=\d) ?[xX] ?(?=[\d(])", " * "),
]
FRACTION = re.compile(r"\\[dtc]?frac ?\{([^{}]{1,200})\} ?\{([^{}]{1,200})\}")
ANNOTATION = re.compile(r"<<([^<>\n]*)>>")
# The ends of lines and clauses. A line that begins with = continues; 14, 400 is one number.
CLAUSE = re.compile(r"\n(?! {0,3}=)|(?<![\\ ])[.,:] (?!(?<=\d, )\d{3}(?!\d))")
# Words of a text that tries or denies an equation, or does not count with plain numbers.
DENIED = re.compile(
    r"(?i)\bnot\b|n't\b|contradict|impossible|incorrect|invalid|wrong|mistake|\bfalse\b"
    r"|[?≠]|\\neq?\b|\bif\b"
    r"|suppose|assum|\btry|\btest|\bcheck|becomes|substitut|\bmod\b|modul|\\p?mod|\\equiv|≡|\bbase\b"
    r"|remainder|borrow|\bcarry|clock|\b[ap]\.?m\b|\bbinary\b|\boctal\b|\bhexadecimal\b"
)
MODULAR = re.compile(r"\bmod(?:\b|\d|ulo\b|ular\b|ulus\b)|\\p?mod|\\equiv|≡", re.IGNORECASE)
# Words that may belong to the expression beside them, so that its numbers alone do not give its value.
RISKY = re.compile(
    r"(?i)\b(?:of|twice|half|double|triple|quarter|third|times|plus|minus|by|over|per|than|more|less|and|or"
    r"|to|from|through|choose|sin|cos|tan|cot|sec|csc|log|ln|sqrt|root|squared?|cubed|power|gcd|lcm|max|min"
    r"|det|mod|base|remainder|pi|[ap]m|hundred|thousand|million|billion|trillion|dozens?|pairs?)\b"
)
GLUED = r"(?:[cmk]m|[km]g|ml|ft|lbs?|oz|hrs?|mins?|sec|cents|mph|kmh)\b"  # 5cm, but not 5ab
LEFT = re.compile(r"[-+*/^().,\d ]{1,400}$")
RIGHT = re.compile(r"[-+*/^().,\d ]{1,400}")
# 6/2(3) and -3^2 have two values, to different people; 27/3/4 may mean 27 by 3/4, and 5 (6) no product.
AMBIGUOUS = re.compile(r"/ ?[\d.]+ ?[(/]|(?:^|[(+*/-] ?)- ?[\d.]+ ?\^|\d (?=\()")
OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


class Side(NamedTuple):
    """One side of an equation."""

    text: str  # plain arithmetic, without thousands separators
    value: Fraction
    unit: str  # the word behind it
    doubt: bool  # it may mean another value

    @property
    def is_number(self) -> bool:
        return re.fullmatch(r"[-+(]* ?[\d.]+\)*", self.text) is not None


def evaluate(text: str) -> Fraction:
    """The exact value of plain arithmetic; ValueError for anything else."""
    code = re.sub(r"(?<=[\d)]) ?(?=\()", "*", text.replace("^", "**").strip())

    def read(node) -> Fraction:
        match node:
            case ast.Constant():
                value = Fraction(code[node.col_offset : node.end_col_offset])
            case ast.UnaryOp(op=ast.USub()):
                value = -read(node.operand)
            case ast.BinOp(op=ast.Pow()):
                value, power = read(node.left), read(node.right)
                bits = max(value.numerator.bit_length(), value.denominator.bit_length())
                if power.denominator != 1 or abs(power) * bits > BITS or isinstance(node.right, ast.BinOp):
                    raise ValueError("power")
                value = value ** int(power)
            case ast.BinOp():
                value = OPERATIONS[type(node.op)](read(node.left), read(node.right))
            case _:
                raise ValueError("expression")
        return value

    try:
        return read(ast.parse(code, mode="eval").body)
    except (SyntaxError, KeyError, ZeroDivisionError, RecursionError, MemoryError) as error:
        raise ValueError(text) from error


def make_side(text: str, unit: str = "", doubt: bool = False) -> Side | None:
    """The side of this text, None where it is not an expression of numbers."""
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text).strip(" ,").rstrip(".").strip()
    if len(text) > LONGEST or AMBIGUOUS.search(text):
        return None
    try:
        return Side(text, evaluate(text), unit, doubt or RISKY.search(unit) is not None)
    except ValueError:
        return None


def inside(text: str) -> str:
    """The text from its start up to a parenthesis that closes none of it."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return text[:place]
    return text


def read_right(text: str) -> Side | None:
    """The side that follows an equality sign."""
    match = RIGHT.match(inside(text))
    if not match:
        return None
    rest = text[match.end() :]
    word = re.match(r"[A-Za-z'-]*", rest)[0]
    is_glued = match[0][-1] != " " and not re.match(GLUED, word) if word else rest[:1] in set("_\\|!≠{^%")
    if is_glued or len(word) == 1 or re.match(r"[A-Za-z' ]*[-+*/^]", rest):
        return None
    return make_side(match[0].rstrip(" ("), word, doubt=match[0].rstrip().endswith("("))


def read_left(text: str) -> Side | None:
    """The side before an equality sign: the longest end of the text that is an expression of numbers."""
    text = text.rstrip()
    match = LEFT.search(text)
    if not match:
        return None
    expression = inside(match[0][::-1].translate(MIRRORED))[::-1].translate(MIRRORED)
    before = text[: len(text) - len(expression)].rstrip()
    opens_line = before == "" and expression.lstrip().startswith("- ")  # a dash, not a sign
    expression = expression.lstrip()[2:] if opens_line else expression
    is_glued = re.search(r"[^\w\s,.;('\"]$|_$", before) is not None
    is_glued |= expression[:1] != " " and text[len(before) :] == expression and before[-1:].isalnum()
    words = re.findall(r"[\w'-]+$", before)
    is_variable = bool(words) and (len(words[0]) == 1 or expression.lstrip()[:1] in tuple("+-*/^"))
    side = make_side(expression)
    if is_glued or is_variable or side is None or side.is_number and before not in ("", "("):
        return None
    doubt = opens_line or bool(words) and side.value < 0  # Weeks 1-2
    if words and RISKY.fullmatch(words[0]) and not before.lower().endswith("total of"):
        doubt = True
    return side._replace(doubt=doubt)


def judge(left: Side, right: Side) -> bool | None:
    """Whether left = right; None if a mismatch need not be an error."""
    small, large = sorted((left.value, right.value), key=abs)
    ratio = large / small if small else Fraction(0)
    number = re.search(r"\d+(?:\.\d+)?|\.\d+", right.text)
    in_doubt = (
        left.doubt or right.doubt,
        left.is_number and right.is_number,
        ratio == -1,  # 3 - 5 = 2
        number and Fraction(number[0]) == abs(left.value),  # 2 + 3 = 5 * 4
        abs(ratio) in (100, 1000, 10**6) or right.unit and ratio.denominator == 1,  # 25 cents, 5 thousand
        "." in left.text + right.text and abs(large - small) * 2000 <= abs(large),  # of rounded numbers
    )
    is_equal = agree(left, right)
    return None if is_equal is False and any(in_doubt) else is_equal


def agree(left: Side, right: Side) -> bool | None:
    """Whether left = right to the digits written; None for a number rounded to a whole one."""
    a, b = left.value, right.value
    if abs(a - b) * 10**12 <= abs(a):  # 54.00000000000001 is a float of 54
        return True
    for written, exact in ((left, b), (right, a)):
        if not written.is_number:
            continue
        decimals = len(written.text.rstrip(")").partition(".")[2])
        digit = Fraction(1, 10**decimals) if decimals else Fraction(0)  # one unit of the last one
        is_cut = abs(written.value) <= abs(exact) < abs(written.value) + digit and written.value * exact >= 0
        if abs(a - b) <= digit / 2 or is_cut:
            return True
        if not digit and exact.denominator != 1 and abs(a - b) < 1:  # 20 / 3 = 6 boxes
            return None
    return False


def equations(text: str) -> list[bool | None]:
    """Whether each equation holds whose sides can be read; None: a mismatch is in doubt."""
    if inner := ANNOTATION.findall(text):
        text = "\n".join([ANNOTATION.sub("", text), *inner])
    verdicts, is_tried = [], False
    for clause in CLAUSE.split(plain(text)):
        parts = clause.split("=")
        for left_text, right_text in itertools.pairwise(parts):
            left = read_left(left_text)
            right = read_right(right_text) if left else None
            if right is None:
                continue
            verdicts.append(judge(left, right))
            is_value = left.is_number and right.is_number and not right.unit
            is_tried |= is_value and not verdicts[-1]
    if is_tried or DENIED.search(text):  # 31 = 50: a value was tried, and the text shows that it fails
        return [holds or None for holds in verdicts]
    return verdicts


def plain(text: str) -> str:
    """The text with its formulas as plain arithmetic, in lines."""
    text = re.sub(r"\s+", lambda match: "\n" if "\n" in match[0] else " ", text.translate(SAME_SIGNS))
    for pattern, new in PLAIN:
        text = re.sub(pattern, new, text, flags=re.MULTILINE)
    for _ in range(DEPTH):
        text = FRACTION.sub(r"((\1)/(\2))", text)
    return re.sub(" +", " ", text.translate(str.maketrans("{}", "()")))


@functools.lru_cache(1 << 16)
def verdict(step: str, problem: str = "") -> bool | None:
    """True if all equations of a step hold, False if one is wrong, None without a verdict."""
    verdicts = equations(step) if re.search("[=＝]", step) else []
    if False in verdicts:
        return None if MODULAR.search(problem) else False
    return True if verdicts and None not in verdicts else None


def labels(problem: str, steps, answer) -> list[float | None]:
    """The label of each step: 1 where its equations hold, 0 where one is wrong, None without a verdict."""
    label = {True: 1.0, False: 0.0, None: None}
    return [label[verdict(step, problem)] for step in steps]


def holds(problem: str, steps, answer) -> bool:
    """Whether no step has a wrong equation."""
    return 0.0 not in labels(problem, steps, answer)
