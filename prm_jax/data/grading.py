"""Grade and group final answers by a rule (answers.py): Math-Verify in worker processes with a limit of processor time.

Math-Verify's own limit is a Python signal handler, which works in the main thread only, and SymPy's results may depend on
the hash and random seeds. So it runs in workers with fixed seeds, and the kernel ends one that spends more than SECONDS of
processor time on a pair: the limit holds in compiled code and does not depend on the load.
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
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from prm_jax import InputError
from prm_jax.data.answers import LONGEST, as_number, extract, is_blank, normal
from prm_jax.data.rows import field_error, require

RULES = ("string", "number", "math")
# unparsable: told apart as texts, because one of the two is no number or expression, or longer than LONGEST.
VERDICTS = ("same", "different", "unparsable", "timeout", "crash", "no_answer")
SECONDS = 5  # processor time of one comparison by math; Math-Verify's own default for each of its three parts
MEMORY = 4 << 30  # bytes of address space of a worker (it needs 0.2 GB): a power tower must not fill the machine
CACHE = Path.home() / ".cache" / "prm_jax" / "answers.jsonl"


def group(answers: Sequence[str | None], checker: "Checker") -> list[int]:
    """Group ids 0, 1, ... in order of first occurrence; -1 is no answer, which is no class of its own.

    An answer joins the first group whose first member takes it, as gold, for the same: `number` and `math` are not
    transitive, so this order is part of the rule.
    """
    firsts, known = [], {"": -1}
    keys = ["" if answer is None else normal(answer) for answer in answers]
    for key, answer in zip(keys, answers, strict=True):
        if key not in known:
            takes = (i for i, first in enumerate(firsts) if checker.verdict(first, answer) == "same")
            known[key] = next(takes, len(firsts))
            if known[key] == len(firsts):
                firsts.append(answer)
    return [known[key] for key in keys]


def grade_pool(problems: Sequence, how: str, cache: Path | str | None = CACHE, workers: int | None = None):
    """(the pools.Problems with `correct` of every candidate graded anew, counts); a line says the counts.

    Counts: checker; candidates, and how many of them have each of VERDICTS, of which `same` alone is correct; pairs, the
    distinct (gold, answer); checked, the pairs that Math-Verify saw now, not in an earlier call (`cache`).
    """
    for problem in problems:
        if is_blank(problem.answer):
            raise InputError(f"problem {problem.id}: {field_error('answer', problem.answer, 'the right answer')}")
    n_of = collections.Counter((p.answer, c.answer) for p in problems for c in p.candidates)
    with contextlib.closing(Checker(how, workers or os.cpu_count(), cache)) as checker:
        found = checker.map(lambda pair: checker.verdict(*pair), list(n_of), "grading", "answer")
    verdicts, counts = dict(zip(n_of, found, strict=True)), {"candidates": n_of.total()}
    counts |= {name: sum(n_of[pair] for pair in n_of if verdicts[pair] == name) for name in VERDICTS}
    counts |= {"pairs": len(found) - found.count("no_answer"), "checked": checker.checked}
    grade = lambda gold: lambda c: dataclasses.replace(c, correct=verdicts[gold, c.answer] == "same")
    graded = [_of_candidates(problem, grade(problem.answer)) for problem in problems]
    print(f"graded      {checker.name}: " + ", ".join(f"{n} {name}" for name, n in counts.items()))
    return graded, {"checker": checker.name} | counts


def group_pool(problems: Sequence, how: str, cache: Path | str | None = CACHE, workers: int | None = None):
    """`group` of the candidates' answers of every problem: a list of ids a problem, what the votes take."""
    with contextlib.closing(Checker(how, workers or os.cpu_count(), cache)) as checker:
        one = lambda problem: group([c.answer for c in problem.candidates], checker)
        return checker.map(one, problems, "grouping", "problem")


def with_answers(problems: Sequence) -> list:
    """The pools.Problems with the answer that `extract` reads in its steps for every candidate that states none."""
    stated = lambda c: c if c.answer is not None else dataclasses.replace(c, answer=extract("\n".join(c.steps)))
    return [_of_candidates(problem, stated) for problem in problems]


def _of_candidates(problem, change):
    return dataclasses.replace(problem, candidates=tuple(map(change, problem.candidates)))


class Checker:
    """Compares by one rule; safe to use from several threads, of which `workers` at a time are served.

    `cache`: a JSON Lines file of what Math-Verify found. Its rows name the checker with its versions and limit, so that rows
    of another one are never taken.
    """

    def __init__(self, how: str, workers: int = 1, cache: Path | str | None = None):
        require(how in RULES, "how", how, "string, number or math")
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
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a broken line costs one comparison more
                row = json.loads(line)
                if row["checker"] == self.name:
                    self._known[row["gold"], row["answer"]] = row["verdict"]

    def verdict(self, gold: str | None, answer: str | None) -> str:
        """One of VERDICTS; `gold` first."""
        if is_blank(gold) or is_blank(answer):
            return "no_answer"
        if normal(gold) == normal(answer):
            return "same"
        if self.how == "string":
            return "different"
        if max(len(gold), len(answer)) > LONGEST:
            return "unparsable"
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
    # A fresh interpreter: a fork of a process that holds JAX's threads may hang, a spawn would run the caller's script.
    # In a session of its own, so that Ctrl-C reaches the caller alone and no half-done pair counts as a crash.
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
        are_read = all(any(not isinstance(value, str) for value in values) for values in (gold, answer))
        verdict = "different" if are_read else "unparsable"
        if verify(gold, answer, timeout_seconds=None):
            verdict = "same"
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(verdict, file=replies, flush=True)
