"""Reads problems to be solved and turns their sampled solutions into candidates and counts of a pool."""

import collections
from collections.abc import Iterator
from pathlib import Path

from prm_jax.data.answers import extract, read_gold
from prm_jax.data.pools import Candidate, Problem
from prm_jax.data.rows import PROBLEM, field, placed, read_rows, short_text
from prm_jax.data.steps import format_steps
from prm_jax.formats import Format
from prm_jax.launch.config import expect
from prm_jax.protocols import Continuation


def read_questions(path: str | Path, as_written=False, columns=None) -> Iterator[Problem]:
    """Yields problems to be solved, of rows with problem, prompt or question, and optionally id (else their
    number) and gold or answer. The answer of a whole solution is the one that it states, unless as_written.
    columns: as in rows.rename."""
    place_of = {}
    for place, row in read_rows(path, columns, known=(*PROBLEM, "gold", "answer", "id", "problem_id")):
        with placed(place):
            problem = field(row, PROBLEM, str)
            answer = short_text(row, ("gold", "answer"))
            expect(problem, "problem", problem, "a text")
            name = short_text(row, ("id", "problem_id")) or str(place.number)
            first = place_of.setdefault(name, place)
            expect(first is place, "id", name, f"an id not seen before, {first} has it")
        yield Problem(name, problem, answer if as_written else read_gold(answer))


def make_candidate(fmt: Format, sample: Continuation, before: tuple[str, ...] = ()) -> Candidate:
    """The solution that a sample makes of the steps `before` it, with the answer it states; without steps it
    is one empty step, unfinished. Steps before it have no log p, and then none is kept."""
    steps = (*before, *format_steps(fmt, sample.text))
    is_whole = sample.finish_reason == "eos" and bool(steps)
    logp = None if before else sample.logp_T
    return Candidate(steps or ("",), extract("\n".join(steps)), finished=is_whole, logp=logp)


COUNTS = ("problems", "resumed", "candidates", "policy_tokens", "finished", "cut", "empty", "unanswered")
COUNTS += ("right", "wrong", "ungraded")


def count_line(line: dict) -> collections.Counter:
    """The counts of one line of a pool. A candidate that was cut off is neither right nor wrong."""
    candidates = line["candidates"]
    tokens = field(line, "policy_tokens", int)
    counts = collections.Counter(problems=1, candidates=len(candidates), policy_tokens=tokens)
    for c in candidates:
        is_empty = list(c["steps"]) == [""]
        counts["empty" if is_empty else "finished" if c["finished"] else "cut"] += 1
        counts["unanswered"] += c["answer"] is None
        if c["finished"] or c["correct"] is None:
            counts[{True: "right", False: "wrong", None: "ungraded"}[c["correct"]]] += 1
    return counts
