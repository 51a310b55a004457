"""Best-of-N pools: problems with many candidate solutions, whether each is right, and named step scores.

Dimension key: T steps.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator

from prm_jax.data import rows
from prm_jax.data.answers import extract, read_gold
from prm_jax.data.steps import split_steps
from prm_jax.data.units import UNITS
from prm_jax.data.writing import write_rows
from prm_jax.launch.config import expect
from prm_jax.solutions import Solution


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One sampled solution. `correct`: is its answer right, None: ungraded; `finished`: False if cut off."""

    steps: tuple[str, ...]
    answer: str | None = None
    correct: bool | None = None
    finished: bool = True
    step_scores: dict[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    # Of each step's tokens under the policy that drew it, in nats, at temperature 1; the last with its end.
    logp: tuple[float, ...] | None = None

    def __post_init__(self):
        n = len(self.steps)
        expect(n > 0, "steps", self.steps, "at least one")
        numbers_of = {f"step_scores.{name}": scores for name, scores in self.step_scores.items()}
        if self.logp is not None:
            numbers_of["logp"] = self.logp
        for name, numbers in numbers_of.items():
            expect(len(numbers) == n, name, len(numbers), f"one number for each of {n} steps")
            for index, x in enumerate(numbers):
                is_finite = type(x) in (int, float) and math.isfinite(x)
                expect(is_finite, f"{name}[{index}]", x, "a finite number")
                is_log_p = name != "logp" or x < 0.01  # 0 up to rounding; -log p would choose the unlikely
                expect(is_log_p, f"logp[{index}]", x, "log p, at most 0")

    @property
    def outcome(self) -> float | None:
        """1 right, 0 wrong; None if it is ungraded or was cut off, whatever it says last."""
        return None if self.correct is None or not self.finished else float(self.correct)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem with its candidates; without any it is still to be solved."""

    id: str
    problem: str
    answer: str | None = None  # the gold one, if known
    candidates: tuple[Candidate, ...] = ()
    scores_unit: dict[str, str] = dataclasses.field(default_factory=dict)  # {name of step scores: unit}
    task: str | None = None  # the embedded one, if any
    policy_tokens: int | None = None  # what the candidates cost, if a policy of ours drew them

    def __post_init__(self):
        for name, unit in self.scores_unit.items():
            expect(unit in tuple(UNITS), f"scores_unit.{name}", unit, ", ".join(UNITS))


def read_pool(path, **options) -> list[Problem]:
    """`iter_pool` as a list."""
    return list(iter_pool(path, **options))


def iter_pool(
    path, as_written=False, split_by: str | None = None, columns: dict[str, str] | None = None
) -> Iterator[Problem]:
    """Yields the problems of a pool file.

    A row is id, problem, answer, candidates[steps, answer, correct, finished, step_scores, logp], scores_unit
    ({name: unit}), task; problem and candidates are enough, a candidate may be a list of steps. Its steps may
    be a whole text (completion, response or solution), cut by `split_by` or else at blank lines;
    `completions` may be the texts, `scores` theirs. Rows of one sample each are joined by problem_id or else
    problem, and come last. StrictPRMBench's names are read, but not source_is_correct, graded against wrong
    answers. A gold answer that is a whole solution is the one that it states, unless as_written. `columns`
    are as in rows.rename. InputError names line and field."""
    place_of, samples = {}, {}
    for place, row in rows.read_rows(path, columns, known=rows.POOL):
        with rows.placed(place):
            problem = parse_problem(row, as_written, split_by)
            if rows.is_sample(row):
                join_sample(samples, problem)
                continue
            first = place_of.setdefault(problem.id, place)
            expect(first is place, "id", problem.id, f"an id not seen before, {first} has it")
        yield problem
    for problem, candidates in samples.values():
        yield dataclasses.replace(problem, candidates=tuple(candidates))


def join_sample(samples: dict[str, tuple[Problem, list]], sample: Problem):
    """Adds a problem with one candidate to the others of this problem; its answer is read where none stands
    beside its steps."""
    (candidate,) = sample.candidates
    if candidate.answer is None:
        candidate = dataclasses.replace(candidate, answer=extract("\n".join(candidate.steps)))
    problem, candidates = samples.setdefault(" ".join(sample.id.split()), (sample, []))
    is_same = sample.problem.split() == problem.problem.split()
    expect(is_same, "problem", sample.problem, f"{problem.problem!r}, which has this problem_id")
    expected = f"{problem.answer!r} as before; the answer that a sample states is extracted_answer"
    expect(sample.answer == problem.answer, "answer", sample.answer, expected)
    unit = problem.scores_unit
    expect(sample.scores_unit == unit, "scores_unit", sample.scores_unit, f"{unit}, as before")
    candidates.append(candidate)


def parse_problem(row: dict, as_written=False, split_by: str | None = None) -> Problem:
    """The problem of a pool file's row; InputError names the field."""
    ids = "id", "problem_id", "unique_id"
    if rows.is_sample(row):
        ids = "problem_id"
        candidates = [row | {"answer": None}]  # which is the problem's
    elif rows.is_pool(row) and "candidates" not in row:
        candidates = whole_texts(row)
    else:
        candidates = rows.field(row, "candidates", list)
    expect(candidates, "candidates", candidates, "at least one")
    parsed = []
    for index, candidate in enumerate(candidates):
        is_known = isinstance(candidate, dict | list)
        expect(is_known, f"candidates[{index}]", candidate, "an object or a list of steps")
        with rows.placed(f"candidates[{index}].", ""):
            parsed.append(parse_candidate(candidate, split_by))
    text = rows.field(row, rows.PROBLEM, str)
    gold = rows.short_text(row, ("gold", "answer"))
    return Problem(
        id=rows.short_text(row, ids) or text,
        problem=text,
        answer=gold if as_written else read_gold(gold),
        candidates=tuple(parsed),
        scores_unit=rows.optional(row, "scores_unit", dict) or {},
        task=rows.optional(row, "task", str),
        policy_tokens=rows.optional(row, "policy_tokens", int),
    )


def whole_texts(row: dict) -> list[dict]:
    """The candidates of a row with texts under completions, as search-and-learn writes it; lists beside it
    have a value of each: scores (of its steps; rows.SCORES), correct, answers."""
    candidates = [{"response": text} for text in rows.texts(row, "completions")]
    scores_name = rows.first_name(row, rows.SCORES)
    for name, part in {scores_name: "step_scores", "correct": "correct", "answers": "answer"}.items():
        values = rows.optional(row, name, list) or [None] * len(candidates)
        expect(len(values) == len(candidates), name, len(values), f"{len(candidates)}, one a completion")
        for candidate, value in zip(candidates, values, strict=True):
            candidate[part] = value
    return candidates


def parse_candidate(row: dict | list, split_by: str | None) -> Candidate:
    """The candidate of an object of a pool, or of a list of steps."""
    row = {"steps": row} if isinstance(row, list) else rows.rename(row)
    answer = rows.short_text(row, ("extracted_answer", "answer"))
    scores_name = rows.first_name(row, rows.SCORES)
    if isinstance(row.get(scores_name), list):
        row = row | {scores_name: {"prm": row[scores_name]}}
    stored = rows.optional(row, scores_name, dict) or {}
    names = [name for name, score_T in stored.items() if score_T is not None]
    step_scores = {name: tuple(rows.field(stored, name, list, f"{scores_name}.")) for name in names}
    if row.get("steps") is not None:
        expect(not split_by, "split_by", split_by, "null: the candidates have steps")
        steps = rows.texts(row, "steps")
    else:
        text = row.get(rows.first_name(row, rows.TEXT))
        expected = f"a list of steps, or a text under {', '.join(rows.TEXT)}"
        expect(isinstance(text, str), "steps", text, expected)
        steps, step_scores = cut_text(text, split_by, step_scores)
        answer = extract(text) if answer is None else answer
    logp = rows.optional(row, "logp", list)
    return Candidate(
        steps,
        answer=answer,
        correct=rows.verdict(row, "correct"),
        finished=rows.verdict(row, "finished") is not False,
        step_scores=step_scores,
        logp=logp and tuple(logp),
    )


def cut_text(text: str, split_by: str | None, step_scores: dict[str, tuple]) -> tuple[tuple[str, ...], dict]:
    """(steps, step scores) of a whole text. Some verifiers score the blank pieces of a text, too; scores that
    fit neither these nor the steps were made for other steps, and are left out."""
    found = split_steps(text, split_by) if split_by else re.split(r"\r?\n\r?\n", text)
    pieces = [piece.strip() for piece in found] or [""]
    kept = [i for i, piece in enumerate(pieces) if piece] or [0]
    places = {len(pieces): kept, len(kept): range(len(kept))}
    fitting = {name: x for name, x in step_scores.items() if len(x) in places}
    steps = tuple(pieces[i] for i in kept)
    return steps, {name: tuple(x[i] for i in places[len(x)]) for name, x in fitting.items()}


def pool_solutions(problems: Iterable[Problem]) -> Iterator[Solution]:
    """Yields every candidate as a solution without labels; its id is its problem's / its number."""
    for p in problems:
        for n, c in enumerate(p.candidates):
            i = f"{p.id}/{n}"
            yield Solution(p.problem, c.steps, outcome=c.outcome, answer=c.answer, id=i, task=p.task)


def write_pool(path, problems: Iterable[Problem]):
    """Writes .jsonl or .jsonl.gz in the native layout; the file appears only when it is complete."""
    write_rows(path, map(dataclasses.asdict, problems))


def note_unsplit(solutions: Iterable[Solution]):
    """Prints how many solutions are one step of several lines, perhaps a whole text."""
    is_whole = [len(s.steps) == 1 and "\n" in s.steps[0].strip() for s in solutions]
    if any(is_whole):
        share = f"{sum(is_whole):,} of {len(is_whole):,} solutions"
        print(f"note        {share} are one step of several lines; split_by=line cuts whole texts")


def with_scores(problems: Iterable[Problem], name: str, scores: Iterable, unit="logit") -> Iterator[Problem]:
    """Yields the problems with new step scores `name`, given for all candidates in order."""
    scores = iter(scores)
    for problem in problems:
        candidates = []
        for candidate in problem.candidates:
            new = candidate.step_scores | {name: tuple(map(float, next(scores)))}
            candidates.append(dataclasses.replace(candidate, step_scores=new))
        units = problem.scores_unit | {name: unit}
        yield dataclasses.replace(problem, candidates=tuple(candidates), scores_unit=units)
