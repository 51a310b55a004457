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

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from prm_jax import InputError
from prm_jax.rows import wrong

RULES = ("string", "number", "math")
SECONDS = 5  # processor time of one comparison by math; Math-Verify's own default for each of its three parts
MEMORY = (
    4 << 30
)  # bytes of address space of a worker (it needs 0.2 GB): a power tower must not fill the machine
CACHE = Path.home() / ".cache" / "prm_jax" / "answers.jsonl"

BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(?P<bare>[^\s{}$\\]+))")  # MATH also writes \boxed 5
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # `\{` is text, no brace
HASHES = re.compile(r"####[ \t]*([^\n#]*?\s*\Z|[-+$\\ ]*[\d.,/]+\\?%?[ \t]*$)", re.MULTILINE)
ANSWER_IS = re.compile(
    r"(?:\banswer(?:\s+is\b|\**\s*:)|^#+\s*answer\b)[\s:*]*(?:\$\$\s*|\\\[\s*)?(.+)",
    re.IGNORECASE | re.MULTILINE,
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


def same(gold: str | None, answer: str | None, how: str) -> bool:
    """Whether `answer` is the answer `gold` by the rule `how`; never if either is missing."""
    checker = _shared(how)
    return not is_blank(gold) and not is_blank(answer) and checker.verdict(gold, answer) == "same"


def group(answers: Sequence[str | None], how: str, checker: "Checker | None" = None) -> list[int]:
    """Group ids 0, 1, ... in order of first occurrence; -1 is no answer, which is no class of its own.

    An answer joins the first group whose first member takes it, as gold, for the same: `number` and `math` are not
    transitive, so this order is part of the rule.
    """
    checker = checker or _shared(how)
    firsts, ids, known = [], [], {}
    for answer in answers:
        if is_blank(answer):
            ids.append(-1)
            continue
        if normal(answer) not in known:
            takes = (i for i, first in enumerate(firsts) if checker.verdict(first, answer) == "same")
            known[normal(answer)] = next(takes, len(firsts))
            if known[normal(answer)] == len(firsts):
                firsts.append(answer)
        ids.append(known[normal(answer)])
    return ids


def grade_pool(problems: Sequence, how: str, cache: Path | str | None = CACHE, workers: int | None = None):
    """(the pools.Problems with `correct` of every candidate graded anew, counts); a line says the counts.

    Counts: checker; candidates, and how many of them were `same`, `different`, `unparsable` (told apart as texts,
    because one of the two is no number or expression), `timeout`, `crash`, `no_answer`: all but `same` are not correct;
    pairs, the distinct (gold, answer); checked, the pairs that Math-Verify saw now, not in an earlier call (`cache`).
    """
    for problem in problems:
        if is_blank(problem.answer):
            raise InputError(f"problem {problem.id}: {wrong('answer', problem.answer, 'the right answer')}")
    pairs = {(p.answer, c.answer): "no_answer" for p in problems for c in p.candidates}
    asked = [pair for pair in pairs if not is_blank(pair[1])]
    with contextlib.closing(Checker(how, workers or os.cpu_count(), cache)) as checker:
        pairs.update(zip(asked, checker.map(lambda pair: checker.verdict(*pair), asked, "grading", "answer")))
    graded, counts = [], collections.Counter()
    for problem in problems:
        verdicts = [pairs[problem.answer, candidate.answer] for candidate in problem.candidates]
        counts.update(verdicts)
        candidates = tuple(
            dataclasses.replace(candidate, correct=verdict == "same")
            for candidate, verdict in zip(problem.candidates, verdicts, strict=True)
        )
        graded.append(dataclasses.replace(problem, candidates=candidates))
    counts = {"candidates": counts.total()} | {name: counts[name] for name in (*VERDICTS, "no_answer")}
    counts |= {"pairs": len(asked), "checked": checker.checked}
    print(f"graded      {checker.name}: " + ", ".join(f"{n} {name}" for name, n in counts.items()))
    return graded, {"checker": checker.name} | counts


def group_pool(problems: Sequence, how: str, cache: Path | str | None = CACHE, workers: int | None = None):
    """`group` of the candidates' answers of every problem: a list of ids a problem, what the votes take."""
    with contextlib.closing(Checker(how, workers or os.cpu_count(), cache)) as checker:
        one = lambda problem: group([c.answer for c in problem.candidates], how, checker)
        return checker.map(one, problems, "grouping", "problem")


def with_answers(problems: Sequence) -> list:
    """The pools.Problems with the answer that `extract` reads in its steps for every candidate that states none."""
    return [
        dataclasses.replace(
            problem,
            candidates=tuple(
                c if c.answer is not None else dataclasses.replace(c, answer=extract("\n".join(c.steps)))
                for c in problem.candidates
            ),
        )
        for problem in problems
    ]


def is_blank(answer: str | None) -> bool:
    """Whether an answer is none: a blank one can neither win nor be voted for."""
    return answer is None or not normal(answer)


VERDICTS = ("same", "different", "unparsable", "timeout", "crash")


class Checker:
    """Compares by one rule; safe to use from several threads, of which `workers` at a time are served.

    `cache`: a JSON Lines file of what Math-Verify found, kept between runs. Its rows name the checker with its versions
    and limit, so that rows of another one are never taken.
    """

    def __init__(self, how: str, workers: int = 1, cache: Path | str | None = None):
        if how not in RULES:
            raise wrong("how", how, "string, number or math")
        self.how, self.name, self.checked = how, how, 0
        self._known, self._lock, self._workers = {}, threading.Lock(), workers
        self._idle = queue.LifoQueue()  # the last used first: no worker starts while another is idle
        for _ in range(workers):
            self._idle.put(None)  # started when needed
        self.cache = Path(cache).expanduser() if cache is not None and how == "math" else None
        if how == "math":
            version = importlib.metadata.version
            self.name = f"math-verify {version('math-verify')} (sympy {version('sympy')}, {SECONDS} s)"
        if self.cache:
            self._read_cache()

    def _read_cache(self):
        try:
            self.cache.parent.mkdir(parents=True, exist_ok=True)
            with open(self.cache, "a+", encoding="utf-8") as file:
                file.seek(0)
                text = file.read()
                file.write("" if text.endswith("\n") or not text else "\n")  # a kill cut the last line off
        except OSError as error:
            raise InputError(f"cache: {self.cache} cannot be read and written ({error})") from None
        for line in text.splitlines():
            try:
                row = json.loads(line)
                if row["checker"] == self.name:
                    self._known[row["gold"], row["answer"]] = row["verdict"]
            except (ValueError, KeyError, TypeError):
                pass  # a broken line costs one comparison more

    def verdict(self, gold: str, answer: str) -> str:
        """One of VERDICTS; `gold` first."""
        if normal(gold) == normal(answer):
            return "same"
        if self.how == "string":
            return "different"
        if self.how == "number":
            return _compare_numbers(as_number(gold), as_number(answer))
        if (gold, answer) not in self._known:
            worker = self._idle.get()
            try:
                worker, verdict = _ask(worker, gold, answer)
            except BaseException:  # Ctrl-C: the reply still to come would be taken for that of the next pair
                worker = worker and worker.kill()
                raise
            finally:
                self._idle.put(worker)
            with self._lock:
                self.checked += 1
                self._known[gold, answer] = verdict
                if self.cache and verdict != "crash":  # which need not happen again
                    row = {"checker": self.name, "gold": gold, "answer": answer, "verdict": verdict}
                    with open(self.cache, "a", encoding="utf-8") as file:
                        print(json.dumps(row), file=file)
        return self._known[gold, answer]

    def map(self, function, items: Sequence, what: str, unit: str) -> list:
        """function(item) of every item, in order, on as many threads as workers, with a progress bar."""
        from prm_jax import cli  # not above: a worker would wait for Hydra

        pool, values = concurrent.futures.ThreadPoolExecutor(self._workers), []
        try:
            with cli.progress(what, len(items), unit) as bar:
                for value in pool.map(function, items):
                    values.append(value)
                    bar.update()
        finally:
            pool.shutdown(cancel_futures=True)  # an interrupt does not wait for the rest
        return values

    def close(self):
        """Ends the workers."""
        for _ in range(self._workers):
            worker = self._idle.get()
            if worker:
                worker.kill()
                worker.communicate()


@functools.cache
def _shared(how):
    return Checker(how)  # its worker ends with this process, when its input does


def _compare_numbers(gold, answer):
    if gold is None or answer is None:
        return "unparsable"
    if gold.denominator == answer.denominator == 1:
        return "same" if gold == answer else "different"
    close = abs(gold - answer) <= Fraction(1, 10**6) * min(1, max(abs(gold), abs(answer)))
    return "same" if close else "different"


def _start():
    # A fresh interpreter: a fork of a process that holds JAX's threads may hang, a spawn would run the caller's script.
    # In a session of its own, so that Ctrl-C reaches the caller alone and no half-done pair counts as a crash.
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    worker = subprocess.Popen(
        [sys.executable, "-c", f"from prm_jax.answers import _serve; _serve({SECONDS}, {MEMORY})"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,
    )
    if not worker.stdout.readline():
        raise RuntimeError("the worker that runs Math-Verify does not start; its message is above")
    return worker


def _ask(worker, gold, answer):
    worker = worker or _start()
    try:
        print(json.dumps([gold, answer]), file=worker.stdin, flush=True)
        reply = worker.stdout.readline()
    except BrokenPipeError:
        reply = ""
    if reply:
        return worker, reply.strip()
    verdict = "timeout" if worker.wait() == -signal.SIGPROF else "crash"
    with contextlib.suppress(BrokenPipeError):
        worker.communicate()  # closes the pipes
    return None, verdict


def _serve(seconds, memory):
    """A worker's loop: [gold, answer] in, verdict out, a line each, until the input ends."""
    import resource

    from math_verify import parse, verify
    from sympy.core.random import seed

    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    print("ready", file=replies, flush=True)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1), os.dup2(null, 2)  # the parsers print what they cannot read
    resource.setrlimit(resource.RLIMIT_AS, (memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
    for line in sys.stdin:
        # No handler: the signal's default ends the process, whatever it is doing.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        seed(0)
        gold, answer = (parse(rf"\boxed{{{text}}}", parsing_timeout=None) for text in json.loads(line))
        if verify(gold, answer, timeout_seconds=None):
            verdict = "same"
        else:
            is_read = all(any(not isinstance(value, str) for value in values) for values in (gold, answer))
            verdict = "different" if is_read else "unparsable"
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(verdict, file=replies, flush=True)
