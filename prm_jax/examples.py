"""What a solution teaches: tokens, and targets for steps and tokens. Dimension key: L tokens, T steps."""

import dataclasses
import itertools
import math
import pickle
from collections.abc import Iterator

import numpy as np

from prm_jax.encoding import Encoded, encode
from prm_jax.formats import Format
from prm_jax.launch.config import expect
from prm_jax.solutions import Pickled, Solution

CHUNK = 4096  # solutions tokenised at a time


@dataclasses.dataclass(frozen=True)
class Example(Encoded):
    """One tokenised solution and what it teaches; packing.py makes arrays of it."""

    label_T: np.ndarray | float = np.nan  # P(step good) in [0, 1]; NaN: unlabelled
    rating_T: np.ndarray | float = np.nan  # human -1, 0, +1 for the ternary head; NaN: unrated
    is_outcome: bool = False  # the label is of the solution, so that its steps have no depth
    reference_L: np.ndarray | float = 0.0  # log p in nats of each token under an implicit PRM's reference


def make_example(encoded: Encoded, solution: Solution, objective: str, outcome_at="last") -> Example:
    """Adds the objective's targets: labels of the steps that `encoded` has (prm), the outcome at the last
    step or, with outcome_at=tokens, at every token of the solution (orm, implicit; Cobbe et al. 2021), or
    none (lm)."""
    if objective == "orm" and outcome_at == "tokens":
        ends_T = np.arange(encoded.start, len(encoded.ids_L), dtype=np.int32)
        encoded = dataclasses.replace(encoded, step_end_T=ends_T)
    n = len(encoded.step_end_T)
    unlabelled = (None,) * max(n, len(solution.steps))
    labels, ratings = unlabelled, unlabelled
    if objective == "prm":
        labels, ratings = solution.labels or unlabelled, solution.ratings or unlabelled
    elif objective != "lm":
        everywhere = (solution.outcome,) * n
        labels = everywhere if outcome_at == "tokens" else (*unlabelled[1:], solution.outcome)
    label_T, rating_T = (np.array(values, np.float32)[:n] for values in (labels, ratings))  # None: NaN
    return Example(encoded.ids_L, encoded.step_end_T, encoded.start, label_T, rating_T, objective != "prm")


def _pack(e: Example) -> bytes:
    """The bytes of an example that has no reference yet."""
    kind = np.uint16 if e.ids_L.max() < 1 << 16 else np.int32
    # A float32 holds every place below 2^24, far beyond the longest row.
    step_3T = np.stack([e.step_end_T, e.label_T, e.rating_T]).astype(np.float32)
    return pickle.dumps((e.start, e.is_outcome, kind, e.ids_L.astype(kind).tobytes(), step_3T.tobytes()))


def _unpack(row: bytes) -> Example:
    start, is_outcome, kind, ids, steps = pickle.loads(row)
    end_T, label_T, rating_T = np.frombuffer(steps, np.float32).reshape(3, -1)
    ids_L = np.frombuffer(ids, kind).astype(np.int32)
    return Example(ids_L, end_T.astype(np.int32), start, label_T, rating_T, is_outcome)


def encode_all(solutions, fmt: Format, tokenizer, **options) -> Iterator[tuple[Solution, Encoded]]:
    """Yields solutions with their tokens, CHUNK at a time."""
    solutions = iter(solutions)
    while chunk := list(itertools.islice(solutions, CHUNK)):
        rows = [(s.problem, s.steps) for s in chunk]
        yield from zip(chunk, encode(fmt, tokenizer, rows, **options), strict=True)


def row_limit(solutions: Pickled, fmt: Format, tokenizer, positions: int, objective: str) -> int:
    """Tokens that 99 in 100 solutions need, up to a multiple of 128, but at most `positions`, for which the
    model was made; of many solutions CHUNK are measured."""
    some = solutions[:: 1 + len(solutions) // CHUNK]
    lengths = [len(e.ids_L) for _, e in encode_all(some, fmt, tokenizer, end=objective == "lm")]
    return min(128 * math.ceil(np.percentile(lengths, 99) / 128), positions)


def make_examples(
    solutions, fmt: Format, tokenizer, objective: str, limit=None, too_long="error", outcome_at="last"
) -> tuple[Pickled, dict[str, int]]:
    """Tokenises solutions; returns (examples, counts of what was lost). One of more than `limit` tokens
    raises, is dropped, or loses its last steps (`cut`); one without a target is dropped."""
    is_trainable = not fmt.outcome or objective == "lm"
    expect(is_trainable, "format", fmt.name, "one with step marks to train at, such as plain")
    examples = Pickled(pack=_pack, unpack=_unpack)
    counts = dict.fromkeys(("too_long_dropped", "too_long_cut", "steps_cut", "without_target_dropped"), 0)
    for solution, encoded in encode_all(solutions, fmt, tokenizer, end=objective == "lm"):
        n_tokens, n_steps = len(encoded.ids_L), len(encoded.step_end_T)
        is_long = limit is not None and n_tokens > limit
        if is_long:
            expected = f"at most batch.tokens={limit}; raise it, or set batch.too_long=drop or cut"
            expect(too_long != "error", f"{solution.id}: tokens", n_tokens, expected)
            encoded = truncate(encoded, limit) if too_long == "cut" else None
            if encoded is None:
                counts["too_long_dropped"] += 1
                continue
        example = make_example(encoded, solution, objective, outcome_at)
        if objective != "lm" and np.isnan(example.label_T).all():
            counts["too_long_dropped" if is_long else "without_target_dropped"] += 1
            continue
        counts["too_long_cut"] += is_long
        counts["steps_cut"] += n_steps - len(encoded.step_end_T)
        examples.append(example)
    lost = {name: n for name, n in counts.items() if n}
    expect(examples, "data", f"a split that keeps no solution: {lost}", f"targets for objective={objective}")
    return examples, counts


def truncate(encoded: Encoded, limit: int) -> Encoded | None:
    """The sequence up to the last step that ends within `limit` tokens; None if no step does."""
    n = int((encoded.step_end_T < limit).sum())
    if n == 0:
        return None
    return Encoded(encoded.ids_L[: encoded.step_end_T[n - 1] + 1], encoded.step_end_T[:n], encoded.start)
