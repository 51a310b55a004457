"""Best-of-N pools: problems with many candidate solutions, whether each is right, and named step scores.

Dimension key: T steps.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from prm_jax import InputError
from prm_jax.data.grading import extract, read_gold
from prm_jax.data.rows import field, is_pool, optional, read_rows, require, row_place, texts, write_rows
from prm_jax.data.steps import split_steps
from prm_jax.data.units import UNITS
from prm_jax.solutions import Solution

# Names of a row's id, problem and gold answer, and of a candidate's answer and step scores.
NATIVE = ("id", "problem", "answer", "answer", "step_scores")
STRICTPRMBENCH = ("problem_id", "question", "gold", "extracted_answer", "prm_step_scores")


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
        require(n > 0, "steps", self.steps, "at least one")
        rows = {f"step_scores.{name}": scores for name, scores in self.step_scores.items()}
        if self.logp is not None:
            rows["logp"] = self.logp
        for name, numbers in rows.items():
            require(len(numbers) == n, name, len(numbers), f"one number for each of {n} steps")
            for index, x in enumerate(numbers):
                is_finite = type(x) in (int, float) and math.isfinite(x)
                require(is_finite, f"{name}[{index}]", x, "a finite number")

    @property
    def outcome(self) -> float | None:
        """1 right, 0 wrong; None if it is ungraded or was cut off, whatever it says last."""
        return None if self.correct is None or not self.finished else float(self.correct)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem with its candidates."""

    id: str
    problem: str
    answer: str | None  # the gold one, if known
    candidates: tuple[Candidate, ...]
    scores_unit: dict[str, str] = dataclasses.field(default_factory=dict)  # {name of step scores: unit}
    task: str | None = None  # the embedded one, if any
    policy_tokens: int | None = None  # what the candidates cost, if a policy of ours drew them

    def __post_init__(self):
        require(len(self.candidates) > 0, "candidates", self.candidates, "at least one")
        for name, unit in self.scores_unit.items():
            require(unit in tuple(UNITS), f"scores_unit.{name}", unit, ", ".join(UNITS))


def read_pool(path, names: Sequence[str] | None = None, as_written=False, split_by=None) -> list[Problem]:
    """`iter_pool` as a list."""
    return list(iter_pool(path, names, as_written, split_by))


def iter_pool(
    path, names: Sequence[str] | None = None, as_written=False, split_by: str | None = None
) -> Iterator[Problem]:
    """Yields the problems of a pool file, with all step scores or only the required `names`. A row is id,
    problem, answer, candidates[steps, answer, correct, finished, step_scores, logp], scores_unit ({name:
    unit}), task; only problem, candidates and steps are needed: a list of steps is a candidate, too.
    StrictPRMBench's rows are read, but not source_is_correct, graded against wrong answers. A gold answer
    that is a whole solution is the one that it states, unless as_written. split_by: how whole texts are cut
    into steps, null: at blank lines. InputError names line and field."""
    place_of = {}
    for number, row in read_rows(path):
        place = row_place(path, number)
        try:
            problem = parse_problem(row, names, as_written, split_by)
            other = place_of.setdefault(problem.id, place)
            require(other is place, "id", problem.id, f"an id not seen before, {other} has it")
        except InputError as error:
            raise InputError(f"{place}: {error}") from None
        yield problem


def as_native(row: dict, split_by: str | None = None) -> dict:
    """A row of search-and-learn's output as a pool's: problem, completions (texts whose steps stand between
    blank lines unless split_by says otherwise), scores (of each a number a step, or they are left out)."""
    solutions, scores = texts(row, "completions"), optional(row, "scores", list) or []
    are_lists = len(scores) <= len(solutions) and all(isinstance(score_T, list) for score_T in scores)
    require(are_lists, "scores", scores, "a list of numbers for each completion")
    candidates = []
    for text, score_T in itertools.zip_longest(solutions, scores, fillvalue=()):
        pieces = split_steps(text, split_by) if split_by else text.split("\n\n")
        steps = [piece for piece in pieces if piece.strip()]
        if len(score_T) == len(pieces):  # some of its verifiers score blank pieces too
            score_T = [score for score, piece in zip(score_T, pieces, strict=True) if piece.strip()]
        stored = {"prm": score_T} if len(score_T) == len(steps) else {}
        candidates.append({"steps": steps or [""], "answer": extract(text), "step_scores": stored})
    name = row.get("unique_id") or row.get("id") or row["problem"]
    return row | {"id": str(name), "candidates": candidates}


def parse_problem(row: dict, names=None, as_written=False, split_by: str | None = None) -> Problem:
    """The problem of a pool file's row; InputError names the field."""
    require(not (split_by and "candidates" in row), "split_by", split_by, "null: the candidates have steps")
    if is_pool(row) and "candidates" not in row:
        row = as_native(row, split_by)
    id_name, problem, gold, answer, scores = STRICTPRMBENCH if "problem_id" in row else NATIVE
    candidates = []
    for index, candidate in enumerate(field(row, "candidates", list)):
        candidate = {"steps": candidate} if isinstance(candidate, list) else candidate
        expected = "an object or a list of steps"
        require(isinstance(candidate, dict), f"candidates[{index}]", candidate, expected)
        try:
            candidates.append(parse_candidate(candidate, names, answer, scores))
        except InputError as error:
            raise InputError(f"candidates[{index}].{error}") from None
    units = optional(row, "scores_unit", dict) or {}
    gold, text = optional(row, gold, str), field(row, problem, str)
    return Problem(
        id=optional(row, id_name, str) or text,
        problem=text,
        answer=gold if as_written else read_gold(gold),
        candidates=tuple(candidates),
        scores_unit={name: unit for name, unit in units.items() if names is None or name in names},
        task=optional(row, "task", str),
        policy_tokens=optional(row, "policy_tokens", int),
    )


def parse_candidate(row: dict, names, answer: str, scores: str) -> Candidate:
    """The candidate of an object of a pool; `answer` and `scores`: the names of these fields."""
    steps, stored, logp = texts(row, "steps"), optional(row, scores, dict) or {}, optional(row, "logp", list)
    return Candidate(
        steps,
        answer=optional(row, answer, str),
        correct=optional(row, "correct", bool),
        finished=optional(row, "finished", bool) is not False,
        step_scores={
            name: tuple(field(stored, name, list, f"{scores}."))
            for name in (stored if names is None else names)
        },
        logp=logp and tuple(logp),
    )


def pool_solutions(p: Problem) -> list[Solution]:
    """A problem's candidates as solutions without labels."""
    rows = ((f"{p.id}/{n}", c) for n, c in enumerate(p.candidates))
    return [
        Solution(p.problem, c.steps, outcome=c.outcome, answer=c.answer, id=i, task=p.task) for i, c in rows
    ]


def write_pool(path, problems: Iterable[Problem]):
    """Writes .jsonl or .jsonl.gz in the native layout; the file appears only when it is complete."""
    write_rows(path, map(dataclasses.asdict, problems))


def candidate_rows(problems: Iterable[Problem]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yields (problem's id / number, problem, steps) of every candidate in the pool's order."""
    for problem in problems:
        for n, candidate in enumerate(problem.candidates):
            yield f"{problem.id}/{n}", problem.problem, candidate.steps


def note_unsplit(rows: Iterable[tuple]):
    """Prints how many of (id, problem, steps) are one step of several lines, perhaps a whole text."""
    is_whole = [len(steps) == 1 and "\n" in steps[0].strip() for *_, steps in rows]
    if any(is_whole):
        share = f"{sum(is_whole):,} of {len(is_whole):,} solutions"
        print(f"note        {share} are one step of several lines; split_by=line cuts whole texts")


def scores_in_unit(problems: Sequence[Problem], name: str, default: str) -> tuple[list[np.ndarray], str]:
    """(score_T of every candidate in order, their unit by the file, or `default`); InputError if the file
    names two units, or a score is outside the range."""
    units = sorted({problem.scores_unit.get(name, default) for problem in problems})
    require(len(units) == 1, f"scores_unit.{name}", " and ".join(units), "one unit in all problems")
    unit, scores = UNITS[units[0]], []
    for p in problems:
        for n, c in enumerate(p.candidates):
            score_T = np.array(c.step_scores[name], np.float64)
            for t in np.flatnonzero((score_T < unit.low) | (score_T > unit.high)):
                raise range_error(p.id, n, name, t, score_T[t], units[0])
            scores.append(score_T)
    return scores, units[0]


def range_error(problem_id: str, n: int, name: str, t: int, score: float, unit: str) -> InputError:
    """The error of a step score outside its unit's range."""
    allowed = f"a {unit} in [{UNITS[unit].low:g}, {UNITS[unit].high:g}]"
    place = f"pool: problem {problem_id}: candidates[{n}].step_scores.{name}[{t}]"
    return InputError(f"{place}: got {score:g}, expected {allowed}; scores_unit=logit takes unbounded scores")


def with_scores(problems: Iterable[Problem], name: str, scores: Iterable, unit="logit") -> Iterator[Problem]:
    """Yields the problems with new step scores `name`, given for all candidates in order. InputError if the
    name is taken or a candidate's count is wrong, ValueError if there are too many or too few."""
    scores = iter(scores)
    for problem in problems:
        candidates = []
        rows = list(itertools.islice(scores, len(problem.candidates)))
        for candidate, score_T in zip(problem.candidates, rows, strict=True):
            is_new = name not in candidate.step_scores
            require(is_new, "scores", name, f"a new name, problem {problem.id} has scores of this one")
            new = candidate.step_scores | {name: tuple(map(float, score_T))}
            candidates.append(dataclasses.replace(candidate, step_scores=new))
        units = problem.scores_unit | {name: unit}
        yield dataclasses.replace(problem, candidates=tuple(candidates), scores_unit=units)
    if next(scores, None) is not None:
        raise ValueError("more scores than candidates")
