"""From labelled solutions to packed batches: whole solutions share a row, and the position in the data is one integer.

A row is laid out by `layout_row`: solutions one after another, or, with shared prefixes, as a token tree in which what
several solutions begin with stands once. Either way one integer a token says who may see it (attention.py).

Dimension key: B rows, L tokens, T step marks (of one solution, or the slots of one row).
"""

import dataclasses
from collections.abc import Callable

import grain
import numpy as np

from prm_jax import InputError
from prm_jax.data.formats import Format, encode
from prm_jax.data.solutions import Solution


@dataclasses.dataclass(frozen=True)
class Example:
    """One tokenised solution and its targets; a target of NaN is unlabelled."""

    ids_L: np.ndarray
    step_end_T: np.ndarray
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


def make_examples(solutions: list[Solution], fmt: Format, tokenizer, objective: str, limit: int | None, too_long: str):
    """Tokenises solutions for an objective; returns (examples, counts of everything dropped or cut).

    A solution of more than `limit` tokens (None: no limit) raises (`too_long=error`), is dropped, or loses its last steps
    (`cut`: whole steps only, so that every label kept still has its mark). A solution without a target is dropped and counted.
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
        example = Example(row.ids_L, row.step_end_T, label_T, rating_T, row.start)
        if limit is not None and len(row.ids_L) > limit:
            if too_long == "error":
                raise InputError(
                    f"{solution.id}: has {len(row.ids_L)} tokens, more than batch.tokens={limit}; "
                    "raise it, or set batch.too_long=drop or cut"
                )
            example = truncate(example, limit) if too_long == "cut" else None
            if example is None:
                counts["too_long_dropped"] += 1
                continue
            counts["too_long_cut"] += 1
            counts["steps_cut"] += len(row.step_end_T) - len(example.step_end_T)
        if objective != "lm" and np.isnan(example.label_T).all():
            counts["without_target_dropped"] += 1
            continue
        examples.append(example)
    return examples, counts


def truncate(example: Example, limit: int) -> Example | None:
    """The example up to the last step that ends within `limit` tokens; None if not even the first does."""
    n = int((example.step_end_T < limit).sum())
    if n == 0:
        return None
    end = example.step_end_T[n - 1] + 1
    return Example(
        example.ids_L[:end], example.step_end_T[:n], example.label_T[:n], example.rating_T[:n], example.start
    )


def plan_packs(
    token_counts, mark_counts, order, row_tokens: int, step_slots: int, open_packs: int = 64
) -> list[list[int]]:
    """First-fit packing in the given order: lists of example indices that share a row.

    Only the last `open_packs` unfinished rows are tried, so that planning stays linear in the number of examples.
    """
    packs, n = [], len(token_counts)
    free_tokens, free_marks = np.full(n, row_tokens), np.full(n, step_slots)
    for i in order:
        recent = slice(max(0, len(packs) - open_packs), len(packs))
        fits = (free_tokens[recent] >= token_counts[i]) & (free_marks[recent] >= mark_counts[i])
        k = recent.start + int(fits.argmax()) if fits.any() else len(packs)
        if k == len(packs):
            packs.append([])
        packs[k].append(int(i))
        free_tokens[k] -= token_counts[i]
        free_marks[k] -= mark_counts[i]
    return packs


def common_prefix(a_L, b_L) -> int:
    """Number of tokens that two sequences begin with in common."""
    n = min(len(a_L), len(b_L))
    differs = a_L[:n] != b_L[:n]
    return int(differs.argmax()) if differs.any() else n


def depth_first(sequences: list[np.ndarray]) -> list[int]:
    """Indices in lexicographic order of the token ids, in which sequences with a common prefix are neighbours."""
    return sorted(range(len(sequences)), key=lambda i: sequences[i].astype(">i4").tobytes())


def layout_row(sequences: list[np.ndarray], share: bool):
    """(ids_n, pos_n, visible_until_n, places): the tokens of a row, and where those of each sequence stand in it.

    Without `share` one after another; with it as the sequences' prefix tree, depth first: a prefix that several of them
    begin with stands once. pos counts from the start of each sequence; until is the last place that may see the token,
    the end of its own sequence, or of the subtree below it.
    """
    ids, places, visible_until_n = [], [None] * len(sequences), np.zeros(sum(map(len, sequences)), np.int32)
    at, path_L, last_L = 0, np.zeros(0, int), np.zeros(0, np.int32)
    for i in depth_first(sequences) if share else range(len(sequences)):
        own_L = sequences[i]
        shared = common_prefix(last_L, own_L) if share else 0
        visible_until_n[path_L[shared:]] = at - 1  # nothing that follows goes through these tokens
        path_L = np.concatenate([path_L[:shared], np.arange(at, at + len(own_L) - shared)])
        ids.append(own_L[shared:])
        places[i], last_L, at = path_L, own_L, at + len(own_L) - shared
    visible_until_n[path_L] = at - 1
    pos_n = np.zeros(at, np.int32)
    for place_L in places:
        pos_n[place_L] = np.arange(len(place_L))
    return np.concatenate(ids) if ids else np.zeros(0, np.int32), pos_n, visible_until_n[:at], places


def fits_window(cfg, row_tokens: int) -> bool:
    """Whether prefix trees of so many tokens suit a model: a sliding window counts places, those of other branches too."""
    return cfg.window is None or row_tokens <= cfg.window


@dataclasses.dataclass(frozen=True)
class Group:
    """Examples that go into a row together, and what they take of it."""

    indices: list[int]
    tokens: int
    marks: int


def make_groups(examples, row_tokens: int, step_slots: int, share: bool) -> list[Group]:
    """Examples one by one; with `share` the neighbours in their prefix tree, as many as a row takes."""
    if not share:
        return [Group([i], len(e.ids_L), len(e.step_end_T)) for i, e in enumerate(examples)]
    groups, last_L = [], np.zeros(0, np.int32)
    for i in depth_first([e.ids_L for e in examples]):
        ids_L, marks = examples[i].ids_L, len(examples[i].step_end_T)
        shared = common_prefix(last_L, ids_L)
        # The first word of a template alone is no reason to stand together: that would tie all problems into one group.
        together = shared >= examples[i].start and groups
        if (
            together
            and groups[-1].tokens + len(ids_L) - shared <= row_tokens
            and groups[-1].marks + marks <= step_slots
        ):
            old = groups[-1]
            groups[-1] = Group([*old.indices, i], old.tokens + len(ids_L) - shared, old.marks + marks)
        else:
            groups.append(Group([i], len(ids_L), marks))
        last_L = ids_L
    return groups


def plan_groups(groups: list[Group], order, row_tokens: int, step_slots: int) -> list[list[int]]:
    """`plan_packs` of whole groups: lists of example indices that share a row."""
    packs = plan_packs([u.tokens for u in groups], [u.marks for u in groups], order, row_tokens, step_slots)
    return [[i for k in pack for i in groups[k].indices] for pack in packs]


def plan_tree(sequences: list[np.ndarray], row_tokens: int, open_rows: int = 64) -> tuple[list[list[int]], int]:
    """Rows that share prefixes, for solutions in any order: (indices in each row, tokens that are laid out in all).

    Depth first, each sequence goes to the row where it adds the fewest tokens, of several to the fullest (best fit), among
    the newest `open_rows`; so a row holds few problems and small ones fill what large ones leave.
    """
    rows, last_L, n = [], np.zeros(0, np.int32), len(sequences)
    free, common = (np.full(n, row_tokens), np.zeros(n, int))  # common: of each row's last sequence with this one
    for i in depth_first(sequences):
        own_L = sequences[i]
        # Two sequences begin alike as far as all that stand between them in depth-first order do.
        common = np.minimum(common, common_prefix(last_L, own_L))
        recent = slice(max(0, len(rows) - open_rows), len(rows))
        added = len(own_L) - common[recent]
        fits = np.flatnonzero(added <= free[recent])
        r = recent.start + fits[np.lexsort((free[recent][fits], added[fits]))[0]] if len(fits) else len(rows)
        if r == len(rows):
            rows.append([])
        rows[r].append(i)
        free[r] -= len(own_L) - common[r]
        common[r], last_L = len(own_L), own_L
    return rows, int((row_tokens - free).sum())


def plan_rows(sequences: list[np.ndarray], row_tokens: int, share: bool) -> tuple[list[list[int]], int]:
    """`plan_tree`, or without shared prefixes the tightest packing of whole sequences, the longest first."""
    if share:
        return plan_tree(sequences, row_tokens)
    lengths = [len(ids_L) for ids_L in sequences]
    order = np.argsort([-n for n in lengths], kind="stable")
    return plan_packs(lengths, [0] * len(lengths), order, row_tokens, 0), sum(lengths)


SPARE = 0.03  # share of the places in all rows that narrower rows may cost


def choose_width(longest: int, plan: Callable[[int], list[list[int]]]) -> int:
    """Tokens a row: of six widths, from `longest` on, the narrowest that needs no more than SPARE over the fewest places.

    plan: width -> rows. Wide rows are padded less and share more, narrow ones cost less attention on an
    accelerator. Widths are powers of two and one and a half times them, so that other data of about these lengths mean
    the same compiled program.
    """
    places = {}
    for width in [w for k in range(5, 32) for w in (1 << k, 3 << (k - 1)) if w >= longest][:6]:
        n_rows = len(plan(width))
        places[width] = n_rows * width
        if n_rows == 1:
            break
    return min(width for width, n in places.items() if n <= (1 + SPARE) * min(places.values()))


def longest_first(groups: list[Group]) -> np.ndarray:
    """The order that packs most tightly."""
    return np.argsort([-u.tokens for u in groups], kind="stable")


def step_weights(n: int, scheme: str) -> np.ndarray:
    """Loss weights of the n labelled steps of a solution, mean 1. `later`: proportional to the position, 2t / (n + 1)."""
    match scheme:
        case "uniform":
            return np.ones(n, np.float32)
        case "later":
            return (2 * np.arange(1, n + 1) / (n + 1)).astype(np.float32)
    raise InputError(f"loss.step_weights: got {scheme!r}, expected uniform or later")


def pack_row(
    examples: list[Example], row_tokens: int, step_slots: int, scheme: str, share: bool = False
) -> dict[str, np.ndarray]:
    """One packed row of static shape.

    ids_L, pos_L, visible_until_L of `layout_row`, next_L (the next token belongs to the same solution's steps: a language-model
    target; none where prefixes are shared), step_end_T (place of each step mark; a shared one stands here once for every
    solution, so that it weighs as often), label_T, rating_T (NaN = unlabelled) and weight_T (0 = no step or no label).
    """
    ids_n, pos_n, visible_until_n, places = layout_row([e.ids_L for e in examples], share)
    row = {
        "ids": np.zeros(row_tokens, np.int32),
        "pos": np.zeros(row_tokens, np.int32),
        # Padding: past the row's end, which tells it from data.
        "visible_until": np.full(row_tokens, row_tokens, np.int32),
        "next": np.zeros(row_tokens, bool),
        "step_end": np.zeros(step_slots, np.int32),
        "label": np.full(step_slots, np.nan, np.float32),
        "rating": np.full(step_slots, np.nan, np.float32),
        "weight": np.zeros(step_slots, np.float32),
    }
    for name, x_n in (("ids", ids_n), ("pos", pos_n), ("visible_until", visible_until_n)):
        row[name][: len(x_n)] = x_n
    t = 0
    for e, place_L in zip(examples, places, strict=True):
        own = slice(t, t + len(e.step_end_T))
        row["next"][place_L[max(e.start - 1, 0) : -1]] = not share
        row["step_end"][own] = place_L[e.step_end_T]
        row["label"][own], row["rating"][own] = e.label_T, e.rating_T
        labelled_T = ~np.isnan(e.label_T)
        row["weight"][own][labelled_T] = step_weights(labelled_T.sum(), scheme)
        t = own.stop
    return row


class PackedRows:
    """Row i of an endless shuffled stream of packed rows, as a random-access source for Grain.

    An epoch is planned from the lengths alone, from (seed, epoch), the first time that one of its rows is asked for; so
    the stream is a pure function of the seed and the position in it is the row's number.
    """

    def __init__(
        self,
        examples: list[Example],
        rows: int,
        row_tokens: int,
        step_slots: int,
        scheme: str,
        seed: int,
        share: bool = False,
    ):
        self.examples, self.rows, self.seed, self.share = examples, rows, seed, share
        self.row_tokens, self.step_slots, self.scheme = row_tokens, step_slots, scheme
        self.groups = make_groups(examples, row_tokens, step_slots, share)
        self.ends: list[int] = []  # number of rows up to and including each planned epoch
        self.packs: list[list[int]] = []

    def __len__(self):
        return self.rows

    def summary(self) -> str:
        """One line: the shape of the rows, what padding and shared prefixes make of them."""
        self[0]  # plans the first epoch
        rows, needed = self.ends[0], sum(group.tokens for group in self.groups)
        text = f"batches     rows of {self.row_tokens} tokens, one shape; {1 - needed / (rows * self.row_tokens):.1%} padding"
        if self.share:
            text += f"; {sum(len(e.ids_L) for e in self.examples) / needed:.2f} tokens of solutions a computed token"
        return text

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        while len(self.packs) <= i:
            order = np.random.default_rng([self.seed, len(self.ends)]).permutation(len(self.groups))
            self.packs += plan_groups(self.groups, order, self.row_tokens, self.step_slots)
            self.ends.append(len(self.packs))
        chosen = [self.examples[k] for k in self.packs[i]]
        return pack_row(chosen, self.row_tokens, self.step_slots, self.scheme, self.share)

    def epoch(self, i: int) -> float:
        """How many times the data have been read when row i is next."""
        start = 0
        for number, end in enumerate(self.ends):
            if i <= end:
                return number + (i - start) / (end - start)
            start = end
        return float(len(self.ends))


def training_width(examples: list[Example], share: bool) -> int:
    """`choose_width` of training rows, which are filled in random order."""

    def plan(width):
        groups = make_groups(examples, width, width, share)
        return plan_groups(groups, range(len(groups)), width, width)

    return choose_width(max(len(e.ids_L) for e in examples), plan)


def step_slots(examples: list[Example], row_tokens: int, share: bool = False) -> int:
    """Static number of mark slots a row: 1.5 x the average density, or what the solution with most steps needs if more."""
    marks = sum(len(e.step_end_T) for e in examples)
    tokens = sum(group.tokens for group in make_groups(examples, row_tokens, row_tokens, share))
    average = int(np.ceil(1.5 * row_tokens * marks / tokens))
    return -(-max(average, max(len(e.step_end_T) for e in examples)) // 8) * 8


def train_batches(source: PackedRows, batch_rows: int, own, first: int = 0):
    """Grain iterator of the batches after step `first`: of each batch's rows those numbered in `own`, for this process.

    The stream is a pure function of the seed, so the step is its whole state, whatever the number of processes.
    """

    def batch(step):
        rows = [source[step * batch_rows + i] for i in own]
        return {k: np.stack([row[k] for row in rows]) for k in rows[0]}

    steps = grain.MapDataset.range(first, len(source) // batch_rows).map(batch)
    return iter(steps.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)))


def eval_batches(examples: list[Example], row_tokens: int, marks: int, batch_rows: int, scheme: str = "uniform"):
    """All examples once, longest first (tightest packing), the last batch filled with empty rows."""
    groups = make_groups(examples, row_tokens, marks, share=False)
    packs = plan_groups(groups, longest_first(groups), row_tokens, marks)
    for at in range(0, len(packs), batch_rows):
        here = packs[at : at + batch_rows] + [[]] * (batch_rows - len(packs[at : at + batch_rows]))
        rows = [pack_row([examples[i] for i in pack], row_tokens, marks, scheme) for pack in here]
        yield {k: np.stack([row[k] for row in rows]) for k in rows[0]}
