"""Grades and groups final answers by a rule of answers.py; Math-Verify runs in worker processes.

Math-Verify's own time limit is a Python signal handler, which works in the main thread only, and SymPy's results may
depend on the hash and random seeds. So its workers have fixed seeds, and the kernel ends one that spends more than
SECONDS of processor time on a pair: this holds in compiled code and does not depend on the load.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import importlib.metadata
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

from prm_jax import InputError
from prm_jax.data.answers import LONGEST, as_number, extract, is_blank, normal
from prm_jax.data.rows import field_error, require

RULES = ("string", "number", "math")
# unparsable: the texts differ, and one of them is not a number or expression, or is longer than LONGEST.
VERDICTS = ("same", "different", "unparsable", "timeout", "crash", "no_answer")
SECONDS = 5  # processor time of one comparison by math; Math-Verify's own default for each of its three parts
MEMORY = 4 << 30  # bytes of address space of a worker (it needs 0.2 GB): a power tower must not fill the machine
CACHE = Path.home() / ".cache" / "prm_jax" / "answers.jsonl"


def group(answers: Sequence[str | None], checker: "Checker") -> list[int]:
    """Group ids 0, 1, ... in order of first occurrence, -1 for blank answers.

    An answer joins the first group whose first member, as gold, equals it: `number` and `math` are not transitive.
    """
    firsts, group_of = [], {"": -1}
    keys = ["" if answer is None else normal(answer) for answer in answers]
    for key, answer in zip(keys, answers, strict=True):
        if key not in group_of:
            equal = (i for i, first in enumerate(firsts) if checker.verdict(first, answer) == "same")
            group_of[key] = next(equal, len(firsts))
            if group_of[key] == len(firsts):
                firsts.append(answer)
    return [group_of[key] for key in keys]


def grade_pool(problems: Sequence, rule: str, cache: Path | str | None = CACHE, workers: int | None = None):
    """(the pools.Problems with every candidate's `correct` graded anew, counts); prints the counts.

    Counts: checker; candidates, in all and by VERDICTS, of which only `same` is correct; pairs: the distinct (gold,
    answer); checked: those that Math-Verify saw now, not in an earlier call (`cache`).
    """
    for problem in problems:
        if is_blank(problem.answer):
            raise InputError(f"problem {problem.id}: {field_error('answer', problem.answer, 'the right answer')}")
    n_of = collections.Counter((p.answer, c.answer) for p in problems for c in p.candidates)
    with contextlib.closing(Checker(rule, workers or os.cpu_count(), cache)) as checker:
        verdicts = checker.map(lambda pair: checker.verdict(*pair), list(n_of), "grading", "answer")
    verdict_of = dict(zip(n_of, verdicts, strict=True))
    counts = {
        "candidates": n_of.total(),
        **{name: sum(n for pair, n in n_of.items() if verdict_of[pair] == name) for name in VERDICTS},
        "pairs": len(verdicts) - verdicts.count("no_answer"),
        "checked": checker.checked,
    }
    print(f"graded      {checker.name}: " + ", ".join(f"{n} {name}" for name, n in counts.items()))
    graded = [_with_grades(problem, lambda *pair: verdict_of[pair]) for problem in problems]
    return graded, {"checker": checker.name} | counts


def grader(checker: "Checker") -> Callable:
    """A function that grades a pools.Problem's candidates against its answer; one without an answer stays as it is."""
    return lambda problem: problem if problem.answer is None else _with_grades(problem, checker.verdict)


def _with_grades(problem, verdict: Callable):
    gold = problem.answer
    candidates = (dataclasses.replace(c, correct=verdict(gold, c.answer) == "same") for c in problem.candidates)
    return dataclasses.replace(problem, candidates=tuple(candidates))


def group_pool(problems: Sequence, rule: str, cache: Path | str | None = CACHE, workers: int | None = None):
    """`group` of every problem's candidates, as the votes take it: a list of ids per problem."""
    with contextlib.closing(Checker(rule, workers or os.cpu_count(), cache)) as checker:
        answers = [[c.answer for c in problem.candidates] for problem in problems]
        return checker.map(lambda of_problem: group(of_problem, checker), answers, "grouping", "problem")


def with_answers(problems: Sequence) -> list:
    """The pools.Problems, with the answer that `extract` reads in its steps for every candidate without one."""

    def complete(c):
        return c if c.answer is not None else dataclasses.replace(c, answer=extract("\n".join(c.steps)))

    return [dataclasses.replace(p, candidates=tuple(map(complete, p.candidates))) for p in problems]


class Checker:
    """Compares answers by one rule; safe to use from several threads, of which it serves `workers` at a time.

    `cache`: a JSON Lines file of Math-Verify's verdicts; rows of other versions or limits are ignored.
    """

    def __init__(self, rule: str, workers: int = 1, cache: Path | str | None = None):
        require(rule in RULES, "how", rule, "string, number or math")
        self.rule, self.name, self.checked = rule, rule, 0
        self._known, self._lock, self._workers = {}, threading.Lock(), workers
        self._idle = queue.LifoQueue()  # last used first: no worker starts while another is idle
        for _ in range(workers):
            self._idle.put(None)  # started when needed
        self.cache = Path(cache).expanduser() if cache is not None and rule == "math" else None
        if rule == "math":
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
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a broken line only costs a comparison
                row = json.loads(line)
                if row["checker"] == self.name:
                    self._known[row["gold"], row["answer"]] = row["verdict"]

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
            return _compare_numbers(as_number(gold), as_number(answer))
        if (gold, answer) not in self._known:
            worker = self._idle.get()
            try:
                worker, verdict = _ask(worker, gold, answer)
            except BaseException:  # Ctrl-C: the pending reply would be taken for the next pair's
                worker = worker and worker.kill()
                raise
            finally:
                self._idle.put(worker)
            with self._lock:
                self.checked += 1
                self._known[gold, answer] = verdict
                if self.cache and verdict != "crash":  # a crash need not happen again
                    row = {"checker": self.name, "gold": gold, "answer": answer, "verdict": verdict}
                    with open(self.cache, "a", encoding="utf-8") as file:
                        print(json.dumps(row), file=file)
        return self._known[gold, answer]

    def map(self, function, items: Sequence, what: str, unit: str) -> list:
        """function(item) of every item in order, on one thread per worker, with a progress bar."""
        from prm_jax.launch import cli  # not above: a worker would wait for Hydra

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
            if worker := self._idle.get():
                worker.kill()
                worker.communicate()


def _compare_numbers(gold, answer):
    if gold is None or answer is None:
        return "unparsable"
    are_whole = gold.denominator == answer.denominator == 1
    margin = 0 if are_whole else Fraction(1, 10**6) * min(1, max(abs(gold), abs(answer)))
    return "same" if abs(gold - answer) <= margin else "different"


def _start():
    # A fresh interpreter: a fork of a process with JAX's threads may hang, a spawn would run the caller's script. Its
    # own session: Ctrl-C then reaches the caller alone, and no half-done pair counts as a crash.
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    worker = subprocess.Popen(
        [sys.executable, "-c", f"from prm_jax.data.grading import _serve; _serve({SECONDS}, {MEMORY})"],
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
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps([gold, answer]), file=worker.stdin, flush=True)
        if reply := worker.stdout.readline():
            return worker, reply.strip()
    verdict = "timeout" if worker.wait() == -signal.SIGPROF else "crash"
    with contextlib.suppress(BrokenPipeError):
        worker.communicate()  # closes the pipes
    return None, verdict


def _serve(seconds, memory):
    """A worker's loop: reads [gold, answer], writes a verdict, one a line, until the input ends."""
    import resource

    from math_verify import parse, verify
    from sympy.core.random import seed

    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    print("ready", file=replies, flush=True)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1), os.dup2(null, 2)  # the parsers print what they cannot read
    resource.setrlimit(resource.RLIMIT_AS, (memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
    for line in sys.stdin:
        # Without a handler the signal ends the process, whatever it is doing.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        seed(0)
        gold, answer = (parse(rf"\boxed{{{text}}}", parsing_timeout=None) for text in json.loads(line))
        are_read = all(any(not isinstance(value, str) for value in values) for values in (gold, answer))
        verdict = "different" if are_read else "unparsable"
        if verify(gold, answer, timeout_seconds=None):
            verdict = "same"
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(verdict, file=replies, flush=True)
