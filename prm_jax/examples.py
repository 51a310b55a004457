"""What a solution teaches: tokens, and targets for steps and tokens. Dimension key: L tokens, T steps."""

import dataclasses
import functools
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
# Targets of each step and of each token; the value where no example stands.
STEP_TARGETS = {"label": np.nan, "rating": np.nan, "weight": 0.0, "depth": 0.0}
TOKEN_TARGETS = {"token_weight": 0.0, "reference": 0.0}


@dataclasses.dataclass(frozen=True)
class Example(Encoded):
    """One tokenised solution and its targets, float32 arrays by the names of STEP_TARGETS and TOKEN_TARGETS.
    label: P(step good) in [0, 1]; rating: human -1, 0, +1 for the ternary head; both NaN if unlabelled.
    weight: of the step's loss, 0 without a label. depth: of the step, from 0; 0 for outcomes. token_weight:
    of the loss of predicting the token. reference: log p of the token under the reference of an implicit PRM,
    in nats."""

    targets: dict[str, np.ndarray]


def make_example(encoded: Encoded, solution: Solution, objective: str, outcome_at="last") -> Example:
    """Adds the objective's targets: labels of the steps that `encoded` has (prm), the outcome at the last
    step or, with outcome_at=tokens, at every token of the solution (orm, implicit; Cobbe et al. 2021), or
    none (lm), and next-token targets for the solution's tokens."""
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
    return with_targets(encoded, label_T, rating_T, objective)


def with_targets(encoded: Encoded, label_T, rating_T, objective: str) -> Example:
    token_weight_L = np.zeros(len(encoded.ids_L), np.float32)
    token_weight_L[max(encoded.start, 1) :] = 1  # nothing comes before the first token to predict it from
    targets = {
        "label": label_T,
        "rating": rating_T,
        "weight": (~np.isnan(label_T)).astype(np.float32),
        "depth": np.arange(len(label_T)) * (objective == "prm"),
        "token_weight": token_weight_L,
    }
    return Example(encoded.ids_L, encoded.step_end_T, encoded.start, targets)


def _pack(e: Example) -> bytes:
    """The bytes of an example without what `with_targets` adds."""
    kind = np.uint16 if e.ids_L.max() < 1 << 16 else np.int32
    # A float32 holds every place below 2^24, far beyond the longest row.
    step_3T = np.stack([e.step_end_T, e.targets["label"], e.targets["rating"]])
    return pickle.dumps((e.start, kind, e.ids_L.astype(kind).tobytes(), step_3T.astype(np.float32).tobytes()))


def _unpack(row: bytes, objective: str) -> Example:
    start, kind, ids, steps = pickle.loads(row)
    end_T, label_T, rating_T = np.frombuffer(steps, np.float32).reshape(3, -1)
    encoded = Encoded(np.frombuffer(ids, kind).astype(np.int32), end_T.astype(np.int32), start)
    return with_targets(encoded, label_T, rating_T, objective)


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
    examples = Pickled(pack=_pack, unpack=functools.partial(_unpack, objective=objective))
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
        if objective != "lm" and not example.targets["weight"].any():
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
