"""What is known of one chain of reasoning: a `Solution`."""

import dataclasses
import pickle
from collections.abc import Iterable, Sequence

from prm_jax.launch.config import expect

PROBABILITY = "a number in [0, 1] or null"


@dataclasses.dataclass(frozen=True)
class Solution:
    """One chain of reasoning; InputError if lengths differ or a value is out of range."""

    problem: str
    steps: tuple[str, ...]
    labels: tuple[float | None, ...] | None = None  # P(step is good); None masks a step
    # PRM800K's human -1, 0, 1 (for the ternary head); None masks a step
    ratings: tuple[int | None, ...] | None = None
    outcome: float | None = None  # P(final answer is right)
    answer: str | None = None
    id: str | None = None
    # The embedded task of the problem, not in the repr, which fingerprints hub data.
    task: str | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self):
        expect(self.steps, "steps", "none", "at least one")
        for name, values in (("ratings", self.ratings), ("labels", self.labels)):
            is_one_each = values is None or len(values) == len(self.steps)
            expect(is_one_each, name, values, f"one for each of {len(self.steps)} steps")
        for index, label in enumerate(self.labels or ()):
            # A boolean column turns -100 into true: masked steps train as good ones (huggingface/trl#2127).
            hint = "; a step is masked with null" if label == -100 else ""
            expect(label is None or is_probability(label), f"labels[{index}]", label, PROBABILITY + hint)
        for index, rating in enumerate(self.ratings or ()):
            is_rating = rating in (-1, 0, 1, None) and not isinstance(rating, bool)
            expect(is_rating, f"ratings[{index}]", rating, "-1, 0, 1 or null")
        expect(self.outcome is None or is_probability(self.outcome), "outcome", self.outcome, PROBABILITY)


class Pickled(Sequence):
    """A list that keeps its items as bytes, a fraction of the objects' memory; an access makes one anew."""

    def __init__(self, rows: Iterable[bytes] = (), pack=pickle.dumps, unpack=pickle.loads):
        self.rows, self.pack, self.unpack = list(rows), pack, unpack

    def append(self, item):
        self.rows.append(self.pack(item))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        if isinstance(i, slice):
            return Pickled(self.rows[i], self.pack, self.unpack)
        return self.unpack(self.rows[i])

    def __add__(self, other):
        return Pickled(self.rows + other.rows, self.pack, self.unpack)

    def __eq__(self, other):
        return list(self) == list(other)


def pickled_solutions(solutions: Iterable[Solution] = ()) -> Pickled:
    return Pickled(map(pickle.dumps, solutions))


def is_probability(value) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1


def first_error(labels: Sequence[float | None], threshold: float = 0.5) -> int:
    """Index of the first bad step (label or score below the threshold), -1 if there is none."""
    return next((index for index, label in enumerate(labels) if label is not None and label < threshold), -1)


def relabel_after_error(solution: Solution, after_first_error: str) -> Solution:
    """The solution with labels and ratings after its first bad step: `mask`, `bad`, or `keep`."""
    error = first_error(solution.labels or ())
    if error == -1 or after_first_error == "keep":
        return solution
    label, rating = (0.0, -1) if after_first_error == "bad" else (None, None)
    rest = len(solution.steps) - error - 1
    labels = solution.labels[: error + 1] + (label,) * rest
    ratings = solution.ratings and solution.ratings[: error + 1] + (rating,) * rest
    return dataclasses.replace(solution, labels=labels, ratings=ratings)
