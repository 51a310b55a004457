"""From labelled solutions to packed batches: whole solutions share a row, and the position in the data is one integer.

Dimension key: B rows, L tokens, T step marks (of one solution, or the slots of one row).
"""

import dataclasses

import grain
import numpy as np

from prm_jax import InputError
from prm_jax.formats import Format, encode
from prm_jax.solutions import Solution


@dataclasses.dataclass(frozen=True)
class Example:
    """One tokenised solution and its targets; a target of NaN is unlabelled."""

    ids_L: np.ndarray
    mark_T: np.ndarray
    label_T: np.ndarray  # P(step good) in [0, 1]
    rating_T: np.ndarray  # human rating -1, 0, +1 for the ternary head
    start: int  # first token of the solution


def targets(solution: Solution, objective: str) -> np.ndarray:
    """label_T for the objective: the step labels (prm), the outcome at the last mark (orm), or nothing (lm)."""
    label_T = np.full(len(solution.steps), np.nan, np.float32)
    if objective == "prm" and solution.labels is not None:
        label_T[:] = [np.nan if label is None else label for label in solution.labels]
    if objective == "orm" and solution.outcome is not None:
        label_T[-1] = solution.outcome
    return label_T


def make_examples(
    solutions: list[Solution], fmt: Format, tokenizer, objective: str, limit: int, too_long: str
):
    """Tokenises solutions for an objective; returns (examples, counts of everything dropped or cut).

    A solution of more than `limit` tokens raises (`too_long=error`), is dropped, or loses its last steps (`cut`: whole
    steps only, so that every label kept still has its mark). A solution without a target is dropped and counted.
    """
    if too_long not in ("error", "drop", "cut"):
        raise InputError(f"batch.too_long: got {too_long!r}, expected error, drop or cut")
    examples = []
    counts = dict.fromkeys(("too_long_dropped", "too_long_cut", "steps_cut", "without_target_dropped"), 0)
    encoded = encode(fmt, tokenizer, [(s.problem, s.steps) for s in solutions], end=objective == "lm")
    for solution, row in zip(solutions, encoded, strict=True):
        label_T = targets(solution, objective)
        ratings = (solution.ratings if objective == "prm" else None) or [None] * len(solution.steps)
        rating_T = np.array([np.nan if r is None else r for r in ratings], np.float32)
        example = Example(row.ids_L, row.mark_T, label_T, rating_T, row.start)
        if len(row.ids_L) > limit:
            if too_long == "error":
                raise InputError(
                    f"{solution.id}: has {len(row.ids_L)} tokens, more than batch.tokens={limit}; "
                    "raise it, or set batch.too_long=drop or cut"
                )
            example = cut(example, limit) if too_long == "cut" else None
            if example is None:
                counts["too_long_dropped"] += 1
                continue
            counts["too_long_cut"] += 1
            counts["steps_cut"] += len(row.mark_T) - len(example.mark_T)
        if objective != "lm" and np.isnan(example.label_T).all():
            counts["without_target_dropped"] += 1
            continue
        examples.append(example)
    return examples, counts


def cut(example: Example, limit: int) -> Example | None:
    """The example up to the last step that ends within `limit` tokens; None if not even the first does."""
    n = int((example.mark_T < limit).sum())
    if n == 0:
        return None
    end = example.mark_T[n - 1] + 1
    return Example(
        example.ids_L[:end], example.mark_T[:n], example.label_T[:n], example.rating_T[:n], example.start
    )


def plan_packs(
    token_counts, mark_counts, order, row_tokens: int, row_marks: int, open_packs: int = 64
) -> list[list[int]]:
    """First-fit packing in the given order: lists of example indices that share a row.

    Only the last `open_packs` unfinished rows are tried, so that planning stays linear in the number of examples.
    """
    packs, free_tokens, free_marks = [], np.zeros(0, int), np.zeros(0, int)
    for i in order:
        recent = slice(max(0, len(packs) - open_packs), None)
        fits = np.flatnonzero(
            (free_tokens[recent] >= token_counts[i]) & (free_marks[recent] >= mark_counts[i])
        )
        if len(fits):
            k = recent.start + fits[0]
        else:
            k = len(packs)
            packs.append([])
            free_tokens, free_marks = np.append(free_tokens, row_tokens), np.append(free_marks, row_marks)
        packs[k].append(int(i))
        free_tokens[k] -= token_counts[i]
        free_marks[k] -= mark_counts[i]
    return packs


def step_weights(n: int, scheme: str) -> np.ndarray:
    """Loss weights of the n labelled steps of a solution, mean 1. `later`: proportional to the position, 2t / (n + 1)."""
    match scheme:
        case "uniform":
            return np.ones(n, np.float32)
        case "later":
            return (2 * np.arange(1, n + 1) / (n + 1)).astype(np.float32)
    raise InputError(f"loss.step_weights: got {scheme!r}, expected uniform or later")


def pack_row(examples: list[Example], row_tokens: int, row_marks: int, scheme: str) -> dict[str, np.ndarray]:
    """One packed row of static shape.

    ids_L, pos_L (restarts in each solution), until_L (last position that may see the token: the end of its solution),
    next_L (the next token belongs to the same solution's steps: a language-model target), mark_T (position of each step
    mark), label_T, rating_T (NaN = unlabelled) and weight_T (0 = no step here or no label).
    """
    row = {
        "ids": np.zeros(row_tokens, np.int32),
        "pos": np.zeros(row_tokens, np.int32),
        "until": np.full(
            row_tokens, row_tokens, np.int32
        ),  # padding: past the row's end, which tells it from data
        "next": np.zeros(row_tokens, bool),
        "mark": np.zeros(row_marks, np.int32),
        "label": np.full(row_marks, np.nan, np.float32),
        "rating": np.full(row_marks, np.nan, np.float32),
        "weight": np.zeros(row_marks, np.float32),
    }
    at, t = 0, 0
    for e in examples:
        n, steps = len(e.ids_L), len(e.mark_T)
        row["ids"][at : at + n] = e.ids_L
        row["pos"][at : at + n] = np.arange(n)
        row["until"][at : at + n] = at + n - 1
        row["next"][at + max(e.start - 1, 0) : at + n - 1] = True
        row["mark"][t : t + steps] = at + e.mark_T
        row["label"][t : t + steps] = e.label_T
        row["rating"][t : t + steps] = e.rating_T
        labelled_T = ~np.isnan(e.label_T)
        row["weight"][t : t + steps][labelled_T] = step_weights(labelled_T.sum(), scheme)
        at, t = at + n, t + steps
    return row


class PackedRows:
    """Row i of an endless shuffled stream of packed rows, as a random-access source for Grain.

    An epoch is planned from the lengths alone, from (seed, epoch), the first time that one of its rows is asked for; so
    the stream is a pure function of the seed and the position in it is the row's number.
    """

    def __init__(
        self, examples: list[Example], rows: int, row_tokens: int, row_marks: int, scheme: str, seed: int
    ):
        self.examples, self.rows, self.seed = examples, rows, seed
        self.row_tokens, self.row_marks, self.scheme = row_tokens, row_marks, scheme
        self.tokens = np.array([len(e.ids_L) for e in examples])
        self.marks = np.array([len(e.mark_T) for e in examples])
        self.ends: list[int] = []  # number of rows up to and including each planned epoch
        self.packs: list[list[int]] = []

    def __len__(self):
        return self.rows

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        while len(self.packs) <= i:
            order = np.random.default_rng([self.seed, len(self.ends)]).permutation(len(self.examples))
            self.packs += plan_packs(self.tokens, self.marks, order, self.row_tokens, self.row_marks)
            self.ends.append(len(self.packs))
        chosen = [self.examples[k] for k in self.packs[i]]
        return pack_row(chosen, self.row_tokens, self.row_marks, self.scheme)

    def epoch(self, i: int) -> float:
        """How many times the data have been read when row i is next."""
        start = 0
        for number, end in enumerate(self.ends):
            if i <= end:
                return number + (i - start) / (end - start)
            start = end
        return float(len(self.ends))


def row_marks(examples: list[Example], row_tokens: int) -> int:
    """Static number of mark slots a row: 1.5 x the average density, or what the solution with most steps needs if more."""
    marks, tokens = sum(len(e.mark_T) for e in examples), sum(len(e.ids_L) for e in examples)
    average = int(np.ceil(1.5 * row_tokens * marks / tokens))
    return -(-max(average, max(len(e.mark_T) for e in examples)) // 8) * 8


def train_batches(source: PackedRows, batch_rows: int, own, first: int = 0):
    """Grain iterator of the batches after step `first`: of each batch's rows those numbered in `own`, for this process.

    The stream is a pure function of the seed, so the step is its whole state, whatever the number of processes.
    """

    def batch(step):
        rows = [source[step * batch_rows + i] for i in own]
        return {k: np.stack([row[k] for row in rows]) for k in rows[0]}

    steps = grain.MapDataset.range(first, len(source) // batch_rows).map(batch)
    return iter(steps.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)))


def eval_batches(
    examples: list[Example], row_tokens: int, marks: int, batch_rows: int, scheme: str = "uniform"
):
    """All examples once, longest first (tightest packing), the last batch filled with empty rows.

    Yields (batch, packs): `packs[b]` lists the example indices of row b in the order of their marks.
    """
    tokens, counts = [len(e.ids_L) for e in examples], [len(e.mark_T) for e in examples]
    packs = plan_packs(tokens, counts, np.argsort(-np.array(tokens), kind="stable"), row_tokens, marks)
    for at in range(0, len(packs), batch_rows):
        here = packs[at : at + batch_rows] + [[]] * (batch_rows - len(packs[at : at + batch_rows]))
        rows = [pack_row([examples[i] for i in pack], row_tokens, marks, scheme) for pack in here]
        yield {k: np.stack([row[k] for row in rows]) for k in rows[0]}, here
