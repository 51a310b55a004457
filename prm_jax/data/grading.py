r"""Final answers: extracts them from solutions, compares, groups and grades them.

A comparison follows one of three rules, which the results name:
  string  equal `normal` texts: LaTeX spacing, sizes and wrappers do not count, values do (1,000 is not 1000).
  number  `as_number` values differ by at most 1e-6, below 1 by at most 1e-6 of the larger; whole numbers must
          be equal. Thousands separators, currency, units and percent signs (25\% is 25, as in GSM8K and MATH)
          do not count. An answer that is not a number is compared as a string.
  math    equal strings, else Math-Verify (github.com/huggingface/Math-Verify) on `\boxed{answer}` with its
          default settings. It is not symmetric: gold 1 accepts 2x + z = 1, gold 2x + z = 1 does not accept 1.
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
from collections.abc import Iterator, Sequence
from fractions import Fraction

from prm_jax.launch.config import expect
from prm_jax.launch.progress import progress

RULES = ("string", "number", "math")
# unparsable: the texts differ, and one of them is not a number or expression, or is longer than LONGEST.
VERDICTS = ("same", "different", "unparsable", "timeout", "no_answer")
SECONDS = 5  # processor time of one comparison by math; Math-Verify's own default for each of its three parts
LONGEST = 1000  # characters of an answer that is read as a number or an expression

BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(?P<bare>[^\s{}$\\]+))")  # MATH also writes \boxed 5
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # `\{` is text, no brace
# GSM8K's line `#### 1,234`: a number alone behind the marks.
HASHED_NUMBER = re.compile(r"####([-+$\\ \t]*+[\d.,/]+\\?%?[ \t]*)$", re.MULTILINE)
STATES = r"\banswer(?:\s+is\b|\**\s*:)"  # "the answer is", "**Answer**:"
# What follows these words or PRM800K's heading "# Answer", maybe in a formula of its own, up to the line end.
STATED = re.compile(
    rf"(?:{STATES}|^#+\s*answer\b)[\s:*]*(?:\$\$\s*|\\\[\s*)?(.+)", re.IGNORECASE | re.MULTILINE
)
STATED_END = re.compile(r"\.\s|\\[)\]]|(?<=\S)\*\*(?!\w)")  # the sentence, the formula or the bold type ends
# White space, `$`, bold marks, `\[ \]` and `\( \)` around an answer, and the period behind it.
BEFORE = re.compile(r"(?:\s|\$|\*\*|\\[(\[])*+")
AFTER = re.compile(r"(?:\s|(?<!\\)\$|\*\*|\\[)\]]|(?<!\\right)\.)\Z")


def extract(text: str) -> str | None:
    r"""The final answer that a solution states, without `$`, bold marks and final periods, or None.

    The first kind of these that is not empty, and the last of that kind: a closed `\boxed{...}`; GSM8K's
    `#### x` with x the last line or a number alone on its line (not a Markdown heading); "answer is x",
    "Answer: x" or PRM800K's "# Answer" above x, x up to the end of its sentence, formula or line; never a
    mere last number. Takes linear time."""
    for kind in (boxed_answers, hashed_answers, stated_answers):
        for answer in kind(text):
            if bare := bare_answer(answer):
                return bare
    return None


def read_gold(text: str | None) -> str | None:
    """The gold answer in a file's field, also if that is a whole solution: GSM8K's lines and `#### 72`."""
    is_solution = text is not None and ("\n" in text or "####" in text)
    return is_solution and extract(text) or text


def boxed_answers(text: str) -> Iterator[str]:
    """Yields the contents of the boxes, the last to open first; an unclosed box is empty."""
    closing, open_braces = {}, []
    for brace in BRACE.finditer(text):
        if brace[0] == "{":
            open_braces.append(brace.end())
        elif brace[0] == "}" and open_braces:
            closing[open_braces.pop()] = brace.start()
    for match in reversed(list(BOX.finditer(text))):
        yield match["bare"] or text[match.end() : closing.get(match.end(), match.end())]


def hashed_answers(text: str) -> Iterator[str]:
    """Yields what stands behind `####` in the last line, then such numbers of other lines, the last first."""
    _, hashes, answer = text.rstrip().rpartition("\n")[2].rpartition("####")
    if hashes and "#" not in answer:
        yield answer
    yield from (match[1] for match in reversed(list(HASHED_NUMBER.finditer(text))))


def stated_answers(text: str) -> Iterator[str]:
    """Yields the answers that are stated in words, the last first."""
    for match in reversed(list(STATED.finditer(text))):
        answer = STATED_END.split(match[1], 1)[0]
        # Final Answer: The final answer is $5$. I hope it is correct.
        yield re.split(STATES, answer, flags=re.IGNORECASE)[-1] or answer


def bare_answer(answer: str) -> str:
    start, end = BEFORE.match(answer).end(), len(answer)
    while match := AFTER.search(answer[max(start, end - 7) : end]):  # 7: `\right.`
        end -= len(match[0])
    return answer[start:end]


LOOKS = (  # what is replaced, by what
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


# A unit behind a number: ` dollars`, ` miles per hour`, `\text{ cm}^2`.
UNIT = re.compile(
    r"(?<=[\d}%])(?:(?:\s|\\[,;: ]|~)*\\(?:text\w*|mathrm|mbox)\s*\{[^{}\d]*\}(?:\^\{?\d\}?)?"
    r"|\s+[a-zA-Z]{2,}(?:[ /-]+[a-zA-Z]+)*)[\s.]*$"
)
# 2 million, 2 squared and 3 halves are not 2 and 3.
SCALE = re.compile(
    r"(?:hundred|thousand|million|billion|trillion|dozen|pi|half|halves|squared|cubed|plus|minus)\b"
)
DECIMAL = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+(?:\.\d*)?|\.\d+)"  # 1,234.5 or 1234.5 or .5
# A sign, a currency, a whole part before a fraction; then \frac{top}{low}, value/by or value; then a % or the
# like.
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
    if len(text) > LONGEST:
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


def is_blank(answer: str | None) -> bool:
    """Whether there is no answer: a blank one can neither win nor be voted for."""
    return answer is None or not normal(answer)


class Checker:
    """Compares answers by one rule. In a thread, `math` raises ValueError: only the main thread has
    timers."""

    def __init__(self, rule: str):
        expect(rule in RULES, "how", rule, "string, number or math")
        self.rule, self.name = rule, rule
        self.known: dict[tuple[str, str], str] = {}  # verdicts of Math-Verify
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
        if (gold, answer) not in self.known:
            self.known[gold, answer] = compare_math(gold, answer)
        return self.known[gold, answer]

    def grade(self, problem):
        """The pools.Problem with its candidates graded against its answer, if it has one."""
        if problem.answer is None:
            return problem
        return with_verdicts(problem, [self.verdict(problem.answer, c.answer) for c in problem.candidates])

    def group(self, answers: Sequence[str | None]) -> list[int]:
        """Group ids 0, 1, ... in order of first occurrence, -1 for blank answers. An answer joins the first
        group whose first member, as gold, equals it: `number` and `math` are not transitive."""
        firsts, group_of = [], {"": -1}
        keys = ["" if answer is None else normal(answer) for answer in answers]
        for key, answer in zip(keys, answers, strict=True):
            if key not in group_of:
                equal = (i for i, first in enumerate(firsts) if self.verdict(first, answer) == "same")
                group_of[key] = next(equal, len(firsts))
                if group_of[key] == len(firsts):
                    firsts.append(answer)
        return [group_of[key] for key in keys]

    def close(self):
        """Forgets the verdicts of Math-Verify."""
        self.known.clear()


def compare_numbers(gold: Fraction | None, answer: Fraction | None) -> str:
    if gold is None or answer is None:
        return "unparsable"
    are_whole = gold.denominator == answer.denominator == 1
    margin = 0 if are_whole else Fraction(1, 10**6) * min(1, max(abs(gold), abs(answer)))
    return "same" if abs(gold - answer) <= margin else "different"


def compare_math(gold: str, answer: str) -> str:
    """Math-Verify's verdict within SECONDS. Its own limits are off, since they bound each of its parts."""
    from math_verify import parse, verify
    from sympy.core.random import seed

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it would warn that its limits are off
    seed(0)  # SymPy tests some equalities at random points
    printed = io.StringIO()  # the parsers print what they cannot read
    try:
        with time_limit(SECONDS), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            pair = [parse(rf"\boxed{{{text}}}", parsing_timeout=None) for text in (gold, answer)]
            is_same = verify(*pair, timeout_seconds=None)
    except OutOfTime:
        return "timeout"
    if is_same:
        return "same"
    are_read = all(any(not isinstance(value, str) for value in values) for values in pair)
    return "different" if are_read else "unparsable"


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


def with_verdicts(problem, verdicts: Sequence[str]):
    """The pools.Problem with its candidates graded: only `same` is correct."""
    candidates = []
    for c, verdict in zip(problem.candidates, verdicts, strict=True):
        candidates.append(dataclasses.replace(c, correct=verdict == "same"))
    return dataclasses.replace(problem, candidates=tuple(candidates))


def grade_pool(problems: Sequence, rule: str):
    """(the pools.Problems with every candidate's `correct` graded anew, {"checker": name, "candidates":
    number, each of VERDICTS: number}); prints the counts."""
    for problem in problems:
        expected = "the right answer; task=score ranks without"
        expect(not is_blank(problem.answer), f"problem {problem.id}: answer", problem.answer, expected)
    checker, graded = Checker(rule), []
    counts = collections.Counter(dict.fromkeys(("candidates", *VERDICTS), 0))
    for problem in progress("grading", len(problems), "problem", iterable=problems):
        verdicts = [checker.verdict(problem.answer, c.answer) for c in problem.candidates]
        counts.update(candidates=len(verdicts), **collections.Counter(verdicts))
        graded.append(with_verdicts(problem, verdicts))
    print(f"graded      {checker.name}: " + ", ".join(f"{n} {name}" for name, n in counts.items()))
    return graded, {"checker": checker.name} | counts


def group_pool(problems: Sequence, rule: str) -> list[list[int]]:
    """Groups of equal answers of every problem's candidates, as the votes take them: `Checker.group`."""
    checker = Checker(rule)
    bar = progress("grouping", len(problems), "problem", iterable=problems)
    return [checker.group([c.answer for c in problem.candidates]) for problem in bar]


def with_answers(problems: Sequence) -> list:
    """The pools.Problems, with the answer that `extract` reads for every candidate without one."""

    def complete(c):
        return c if c.answer is not None else dataclasses.replace(c, answer=extract("\n".join(c.steps)))

    return [dataclasses.replace(p, candidates=tuple(map(complete, p.candidates))) for p in problems]
