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
import concurrent.futures
import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

from prm_jax.launch.config import expect
from prm_jax.launch.progress import progress

RULES = ("string", "number", "math")
# unparsable: the texts differ, and one of them is not a number or expression, or is longer than LONGEST.
VERDICTS = ("same", "different", "unparsable", "timeout", "crash", "no_answer")
SECONDS = 5  # processor time of one comparison by math; Math-Verify's own default for each of its three parts
MEMORY = 4 << 30  # bytes of address space of its process, which needs 0.2 GB
LONGEST = 1000  # characters of an answer that is read as a number or an expression
BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(?P<bare>[^\s{}$\\]+))")  # MATH also writes \boxed 5
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # `\{` is text, no brace
HASHES = re.compile(r"####([-+$\\ \t]*+[\d.,/]+\\?%?[ \t]*)$", re.MULTILINE)
ANSWER_IS = re.compile(
    r"(?:\banswer(?:\s+is\b|\**\s*:)|^#+\s*answer\b)[\s:*]*(?:\$\$\s*|\\\[\s*)?(.+)",
    re.IGNORECASE | re.MULTILINE,
)
AGAIN = re.compile(r"\banswer(?:\s+is\b|\**\s*:)", re.IGNORECASE)
STATED_END = re.compile(r"\.\s|\\[)\]]|(?<=\S)\*\*(?!\w)")  # the sentence, the formula or the bold type ends
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
    _, hashes, answer = text.rstrip().rpartition("\n")[2].rpartition("####")
    if hashes and "#" not in answer:
        yield answer
    yield from (match[1] for match in reversed(list(HASHES.finditer(text))))


def stated_answers(text: str) -> Iterator[str]:
    for match in reversed(list(ANSWER_IS.finditer(text))):
        answer = STATED_END.split(match[1], 1)[0]
        # Final Answer: The final answer is $5$. I hope it is correct.
        yield AGAIN.split(answer)[-1] or answer


def bare_answer(answer: str) -> str:
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
# 2 million, 2 squared and 3 halves are not 2 and 3.
SCALE = re.compile(
    r"(?:hundred|thousand|million|billion|trillion|dozen|pi|half|halves|squared|cubed|plus|minus)\b"
)
DECIMAL = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+(?:\.\d*)?|\.\d+)"
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


def group(answers: Sequence[str | None], checker: "Checker") -> list[int]:
    """Group ids 0, 1, ... in order of first occurrence, -1 for blank answers. An answer joins the first group
    whose first member, as gold, equals it: `number` and `math` are not transitive."""
    firsts, group_of = [], {"": -1}
    keys = ["" if answer is None else normal(answer) for answer in answers]
    for key, answer in zip(keys, answers, strict=True):
        if key not in group_of:
            equal = (i for i, first in enumerate(firsts) if checker.verdict(first, answer) == "same")
            group_of[key] = next(equal, len(firsts))
            if group_of[key] == len(firsts):
                firsts.append(answer)
    return [group_of[key] for key in keys]


def grade_pool(problems: Sequence, rule: str):
    """(the pools.Problems with every candidate's `correct` graded anew, counts); prints the counts: the
    checker; candidates, in all and by VERDICTS, of which only `same` is correct; pairs: the distinct (gold,
    answer); checked: those that Math-Verify saw."""
    for problem in problems:
        expected = "the right answer; task=score ranks without"
        expect(not is_blank(problem.answer), f"problem {problem.id}: answer", problem.answer, expected)
    n_of = collections.Counter((p.answer, c.answer) for p in problems for c in p.candidates)
    with contextlib.closing(Checker(rule)) as checker:
        verdicts = checker.map(lambda pair: checker.verdict(*pair), list(n_of), "grading", "answer")
        graded = [checker.grade(problem) for problem in problems]
    counts = {"candidates": n_of.total()} | dict.fromkeys(VERDICTS, 0)
    for n, verdict in zip(n_of.values(), verdicts, strict=True):
        counts[verdict] += n
    counts |= {"pairs": len(verdicts) - verdicts.count("no_answer"), "checked": len(checker.known)}
    print(f"graded      {checker.name}: " + ", ".join(f"{n} {name}" for name, n in counts.items()))
    return graded, {"checker": checker.name} | counts


def group_pool(problems: Sequence, rule: str) -> list[list[int]]:
    """`group` of every problem's candidates, as the votes take it: a list of ids per problem."""
    answers = [[c.answer for c in problem.candidates] for problem in problems]
    with contextlib.closing(Checker(rule)) as checker:
        return checker.map(lambda row: group(row, checker), answers, "grouping", "problem")


def with_answers(problems: Sequence) -> list:
    """The pools.Problems, with the answer that `extract` reads for every candidate without one."""

    def complete(c):
        return c if c.answer is not None else dataclasses.replace(c, answer=extract("\n".join(c.steps)))

    return [dataclasses.replace(p, candidates=tuple(map(complete, p.candidates))) for p in problems]


class Checker:
    """Compares answers by one rule; safe to use from several threads, each with a Math-Verify of its own."""

    def __init__(self, rule: str):
        expect(rule in RULES, "how", rule, "string, number or math")
        self.rule, self.name = rule, rule
        self.known: dict[tuple[str, str], str] = {}  # Math-Verify's verdicts
        self.idle: list[subprocess.Popen] = []  # its processes that wait; last used first
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
            self.known[gold, answer] = self.ask_math(gold, answer)
        return self.known[gold, answer]

    def ask_math(self, gold: str, answer: str) -> str:
        """Math-Verify's verdict; a process goes back to `idle` only with its reply read, so not after
        Ctrl-C."""
        try:
            process = self.idle.pop()
        except IndexError:
            process = start_math()
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps([gold, answer]), file=process.stdin, flush=True)
        if reply := process.stdout.readline().strip():
            self.idle.append(process)
            return reply
        process.communicate()  # closes the pipes, waits for its end
        return "timeout" if process.returncode == -signal.SIGPROF else "crash"

    def grade(self, problem):
        """The pools.Problem with its candidates graded against its answer, if it has one."""
        if problem.answer is None:
            return problem
        candidates = []
        for c in problem.candidates:
            correct = self.verdict(problem.answer, c.answer) == "same"
            candidates.append(dataclasses.replace(c, correct=correct))
        return dataclasses.replace(problem, candidates=tuple(candidates))

    def map(self, function, items: Sequence, what: str, unit: str) -> list:
        """function(item) of every item in order, on a thread per processor, with a progress bar."""
        pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
        try:
            return list(progress(what, len(items), unit, iterable=pool.map(function, items)))
        finally:
            pool.shutdown(cancel_futures=True)  # an interrupt does not wait for the rest

    def close(self):
        for process in self.idle:
            process.kill()
            process.communicate()
        self.idle.clear()


def compare_numbers(gold: Fraction | None, answer: Fraction | None) -> str:
    if gold is None or answer is None:
        return "unparsable"
    are_whole = gold.denominator == answer.denominator == 1
    margin = 0 if are_whole else Fraction(1, 10**6) * min(1, max(abs(gold), abs(answer)))
    return "same" if abs(gold - answer) <= margin else "different"


def start_math() -> subprocess.Popen:
    """A process of math_worker.py. A fresh interpreter: a fork of a process with JAX's threads may hang, a
    spawn would run the caller's script. In its own session, Ctrl-C reaches the caller alone."""
    command = [sys.executable, str(Path(__file__).with_name("math_worker.py")), str(SECONDS), str(MEMORY)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8"}
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    process = subprocess.Popen(command, **pipes, env=environment, start_new_session=True)
    if not process.stdout.readline():
        raise RuntimeError("the process that runs Math-Verify does not start; its message is above")
    return process
