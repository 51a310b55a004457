r"""Whether two answers are equal; grades and groups the answers of pools.

A comparison follows one of three rules, which the results name:
  string  equal `normal` texts: LaTeX spacing, sizes and wrappers do not count, values do (1,000 is not 1000).
  number  `as_number` values differ by at most 1e-6, below 1 by at most 1e-6 of the larger; whole numbers must
          be equal. Thousands separators, currency, units and percent signs (25\% is 25, as in GSM8K and MATH)
          do not count. An answer that is not a number is compared as a string.
  math    equal strings, else Math-Verify (github.com/huggingface/Math-Verify) on `\boxed{answer}` with its
          default settings, after `as_latex`; `are_apart` has a veto. It is not symmetric: gold 1 accepts
          2x + z = 1, gold 2x + z = 1 does not accept 1.
Every rule compares an answer of more than LONGEST characters as a string.
"""

import collections
import contextlib
import dataclasses
import functools
import importlib.metadata
import io
import logging
import re
import signal
from collections.abc import Sequence
from fractions import Fraction

from prm_jax.data.answers import extract
from prm_jax.data.numbers import LONGEST, as_number, normal
from prm_jax.launch.config import expect
from prm_jax.launch.progress import progress

RULES = ("string", "number", "math")
# unparsable: the texts differ, and one of them is not a number or expression, or is longer than LONGEST.
VERDICTS = ("same", "different", "unparsable", "timeout", "no_answer")
SECONDS = 5  # processor time of one comparison by math; Math-Verify's own default for each of its three parts


def is_blank(answer: str | None) -> bool:
    """Whether there is no answer: a blank one can neither win nor be voted for."""
    return answer is None or not normal(answer)


class Checker:
    """Compares answers by one rule; `math` in the main thread alone, since no other one has timers."""

    def __init__(self, rule: str):
        expect(rule in RULES, "rule", rule, "string, number or math")
        self.rule, self.name = rule, rule
        if rule == "math":
            versions = (importlib.metadata.version(name) for name in ("math-verify", "sympy"))
            self.name = "math-verify {} (sympy {}, {} s)".format(*versions, SECONDS)

    def verdict(self, gold: str | None, answer: str | None) -> str:
        """One of VERDICTS; `gold` first."""
        if is_blank(gold) or is_blank(answer):
            return "no_answer"
        if normal(gold) == normal(answer):
            return "same"
        if self.rule == "string":
            return "different"
        if max(len(gold), len(answer)) > LONGEST:
            return "unparsable"
        if self.rule == "number":
            return compare_numbers(as_number(gold), as_number(answer))
        return compare_math(gold, answer)

    def read(self, steps: Sequence[str]) -> str | None:
        """The answer that a solution states, for this rule."""
        return extract("\n".join(steps), numbers=self.rule == "number")

    def grade(self, problem):
        """The pools.Problem, if it has an answer, with graded candidates; an answer that lacks is read from
        steps."""
        if problem.answer is None:
            return problem
        candidates = []
        for c in problem.candidates:
            answer = self.read(c.steps) if c.answer is None else c.answer
            is_same = self.verdict(problem.answer, answer) == "same"
            candidates.append(dataclasses.replace(c, answer=answer, correct=is_same))
        return dataclasses.replace(problem, candidates=tuple(candidates))

    def close(self):
        """Forgets what Math-Verify has read and compared, which is kept."""
        compare_math.cache_clear()
        read_math.cache_clear()

    def group(self, answers: Sequence[str | None]) -> list[int]:
        """Group ids 0, 1, ... in order of first occurrence, -1 for blank answers. An answer joins the first
        group whose first member, as gold, equals it: `number` and `math` are not transitive."""
        firsts = []
        group_of = {"": -1}
        keys = ["" if answer is None else normal(answer) for answer in answers]
        for key, answer in zip(keys, answers, strict=True):
            if key not in group_of:
                equal = (i for i, first in enumerate(firsts) if self.verdict(first, answer) == "same")
                group_of[key] = next(equal, len(firsts))
                if group_of[key] == len(firsts):
                    firsts.append(answer)
        return [group_of[key] for key in keys]


def compare_numbers(gold: Fraction | None, answer: Fraction | None) -> str:
    if gold is None or answer is None:
        return "unparsable"
    are_whole = gold.denominator == answer.denominator == 1
    margin = 0 if are_whole else Fraction(1, 10**6) * min(1, max(abs(gold), abs(answer)))
    return "same" if abs(gold - answer) <= margin else "different"


# Names in plain formulas, and how LaTeX writes these.
NAMES = "pi|theta|alpha|beta|exp|ln|log|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan"
FORMULA = re.compile(rf"(?:[^\\a-zA-Z]|(?<![a-zA-Z])(?:{NAMES}|sqrt|inf|infinity|[a-zA-Z])(?![a-zA-Z]))+")
PLAIN = (  # what is replaced, by what
    (r"(?<![\d.,/])(\d+) +(\d+)/(\d+)(?![\d.,])", r"\1\\frac{\2}{\3}"),  # 3 1/2
    (r"(?<=\d)[eE]([-+]?\d+)", r" \\cdot 10^{\1}"),  # 1e-7
    (r"\*\*", "^"),
    (r"\^\s*(?:\(([^()]*)\)|(-?\d+))", r"^{\1\2}"),  # x^10, 2^(1/3)
    (r"sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
    (rf"(?<![a-zA-Z])({NAMES})(?![a-zA-Z])", r"\\\1"),
)


def as_latex(text: str) -> str:
    r"""An answer as Math-Verify reads it in a box: a plain formula, `3*pi` or `exp(9)`, in LaTeX, 25% as
    25/100, 1\,234 as 1234, and 1.0i as a product, which Math-Verify would read as one name."""
    text = re.sub(r"(?<=\d)\\,\s*(?=\d{3}(?!\d))", "", text)
    if FORMULA.fullmatch(text):
        for pattern, new in PLAIN:
            text = re.sub(pattern, new, text)
    text = re.sub(r"(?<=\d)\s*(?:\\?%|percent\b)", "/100", text)
    return re.sub(r"(?<=\d)i\b", " i", text)


def are_apart(gold, answer) -> bool:
    """Whether SymPy's numbers differ though Math-Verify, which rounds to 6 decimals, takes them for equal:
    fractions that are not the same, other numbers by more than a thousandth of the gold one."""
    from sympy import Expr, S

    if not (isinstance(gold, Expr) and isinstance(answer, Expr)):
        return False
    with contextlib.suppress(Exception):  # what SymPy cannot evaluate stays as Math-Verify sees it
        gold, answer = gold.doit(), answer.doit()
        if gold.is_Rational and answer.is_Rational:
            return gold != answer
        are_numbers = gold.is_number and answer.is_number and gold != answer
        return are_numbers and (abs((gold - answer).evalf()) > 1e-3 * abs(gold.evalf())) is S.true
    return False


@functools.cache
def compare_math(gold: str, answer: str) -> str:
    """Math-Verify's verdict within SECONDS. Its own limits are off, since they bound each of its parts."""
    from math_verify import verify
    from sympy.core.random import seed

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it would warn that its limits are off
    printed = io.StringIO()  # the parsers print what they cannot read
    try:
        with time_limit(SECONDS), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            pair = read_math(gold), read_math(answer)
            seed(0)  # SymPy tests some equalities at random points
            is_same = verify(*pair, timeout_seconds=None) and not are_apart(pair[0][0], pair[1][0])
    except OutOfTime:
        return "timeout"
    if is_same:
        return "same"
    are_read = all(any(not isinstance(value, str) for value in values) for values in pair)
    return "different" if are_read else "unparsable"


@functools.lru_cache(1024)
def read_math(text: str) -> list:
    """What Math-Verify reads in a box of this text, a gold answer's once for all candidates."""
    from math_verify import parse

    return parse(rf"\boxed{{{as_latex(text)}}}", parsing_timeout=None)


class OutOfTime(BaseException):
    """No Exception, since Math-Verify and SymPy go on after these."""


@contextlib.contextmanager
def time_limit(seconds: float):
    """Raises OutOfTime once the block has taken these seconds of the processor, and each second after, in
    case that the block's code has caught it."""

    def stop(*_):
        raise OutOfTime

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def group_pool(problems: Sequence, rule: str) -> list[list[int]] | None:
    """Groups of equal answers of every problem's candidates, as the votes take them: `Checker.group`. None
    where a checker is no rule: then answers are equal as texts."""
    if rule not in RULES:
        return None
    checker = Checker(rule)
    bar = progress("grouping", len(problems), "problem", iterable=problems)
    return [checker.group([c.answer for c in problem.candidates]) for problem in bar]


def count_apart(candidates: Sequence, groups: Sequence[int]) -> int:
    r"""How many groups of a pools.Problem's answers equal another one as numbers (.5, 0.5, \frac{1}{2}) and
    in their verdict: their votes are counted apart."""
    groups_of, verdicts = collections.defaultdict(set), collections.defaultdict(set)
    for c, number in zip(candidates, groups, strict=True):
        value = as_number(c.answer) if c.answer else None
        if value is not None and c.outcome is not None:
            groups_of[value].add(number)
            verdicts[value].add(c.outcome)
    return sum(len(groups_of[value]) - 1 for value in groups_of if len(verdicts[value]) == 1)
