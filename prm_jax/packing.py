"""Packs sequences of tokens into batches of static shape, for training and scoring.

Sequences stand one after another in a row or, with shared prefixes, as a token tree that holds common
beginnings once. Either way one integer per token says who may see it (visibility.py). Scoring knows all its
sequences: `plan_rows` packs them as tightly as it can. Training has one shape: `make_plan` fixes it, and
`Plan.rows` packs each epoch anew.

Dimension key: B rows, L tokens, T steps (of one sequence, or the slots of one row)."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import grain
import numpy as np

from prm_jax.encoding import Encoded
from prm_jax.examples import Example
from prm_jax.launch.config import expect
from prm_jax.visibility import is_causal

OPEN = 64  # newest rows that still take sequences: planning stays linear in their number
TOGETHER = 1024  # tokens up to which the rows of a paired loss are as long as the solutions of a problem
WORTH_SHARING = 0.25  # share of the tokens from which on training shares prefixes by itself


def common_prefix(a_L, b_L) -> int:
    """Length of the longest common prefix of two sequences."""
    n = min(len(a_L), len(b_L))
    differs = a_L[:n] != b_L[:n]
    return int(differs.argmax()) if differs.any() else n


def depth_first(sequences: list[np.ndarray]) -> list[int]:
    """Indices in lexicographic order of the ids: sequences with a common prefix are neighbours."""
    return sorted(range(len(sequences)), key=lambda i: sequences[i].astype(">i4").tobytes())


def layout_row(sequences: list[np.ndarray], share: bool) -> tuple[np.ndarray, list[np.ndarray]]:
    """(row_3n, places): ids, positions in their sequence and `until` (visibility.py) of a row's tokens, and
    the places of each sequence's tokens. With `share` the row is a prefix tree, laid out depth first."""
    row_3n = np.zeros((3, sum(map(len, sequences))), np.int32)
    places = [None] * len(sequences)
    start = 0
    path_L = np.zeros(0, int)
    last_L = np.zeros(0, np.int32)
    for i in depth_first(sequences) if share else range(len(sequences)):
        ids_L = sequences[i]
        shared = common_prefix(last_L, ids_L) if share else 0
        end = start + len(ids_L) - shared
        row_3n[0, start:end] = ids_L[shared:]
        row_3n[1, start:end] = np.arange(shared, len(ids_L))
        path_L = np.concatenate([path_L[:shared], np.arange(start, end)])
        row_3n[2, path_L] = end - 1
        places[i], last_L, start = path_L, ids_L, end
    return row_3n[:, :start], places


def doubled(n: int, needed: int) -> int:
    """n times the lowest power of two that reaches `needed`."""
    return next(n << k for k in itertools.count() if n << k >= needed)


def layout_tokens(rows: Sequence[Sequence[Encoded]], row_tokens: int, share: bool = False):
    """(batch, places) of rows of sequences as arrays of static shape, without their steps. batch: ids, pos
    and visible_until (padding: L), int32 [B, L]; places[b][k]: of the tokens of sequence k of row b."""
    batch_3BL = np.zeros((3, len(rows), row_tokens), np.int32)
    batch_3BL[2] = row_tokens
    places = []
    for b, row in enumerate(rows):
        row_3n, places_b = layout_row([e.ids_L for e in row], share)
        batch_3BL[:, b, : row_3n.shape[1]] = row_3n
        places.append(places_b)
    return dict(zip(("ids", "pos", "visible_until"), batch_3BL)), places


def layout_score(rows: Sequence[Sequence[Encoded]], row_tokens: int, share: bool = False):
    """(batch, slots) of rows to read: arrays of `layout_tokens` and step_end, int32 [B, T], the place that
    each slot reads; slots[b][k]: of the steps of sequence k of row b. A shared step has one slot, of as few
    as suffice (row_tokens / 16, doubled as needed)."""
    batch, places = layout_tokens(rows, row_tokens, share)
    ends, slots = [], []
    for row, places_b in zip(rows, places, strict=True):
        end_t = [place_L[e.step_end_T] for e, place_L in zip(row, places_b, strict=True)]
        ends.append(np.unique(np.concatenate([*end_t, np.zeros(0, int)])))
        slots.append([np.searchsorted(ends[-1], x_t) for x_t in end_t])
    T = doubled(max(1, row_tokens // 16), max(map(len, ends)))
    batch["step_end"] = np.zeros((len(rows), T), np.int32)
    for end_T, used_n in zip(batch["step_end"], ends, strict=True):
        end_T[: len(used_n)] = used_n
    return batch, slots


def pack_batch(rows: Sequence[Sequence[Example]], row_tokens: int, step_slots: int, share: bool = False):
    """Rows to learn from, {name: array}: those of `layout_tokens`; step_end int32 [B, T], where each step has
    a slot of its own, so that a shared one weighs as often as it occurs; label, rating, weight (of the step's
    loss: 0 without a label) and depth (from 0; 0 of outcomes) float32 [B, T]; solution and problem (the text
    before the first step) int32 [B, T], which number them within a row, -1 in empty slots; token_weight (of
    the loss of predicting a token: 1 in solutions) and reference float32 [B, L], 0 with `share`, since a
    shared token has several next ones."""
    batch, places = layout_tokens(rows, row_tokens, share)
    shape = len(rows), step_slots
    batch["step_end"] = np.zeros(shape, np.int32)
    batch |= {name: np.full(shape, np.nan, np.float32) for name in ("label", "rating")}
    batch |= {name: np.full(shape, -1, np.int32) for name in ("solution", "problem")}
    batch["depth"] = np.zeros(shape, np.float32)
    batch |= {name: np.zeros((len(rows), row_tokens), np.float32) for name in ("token_weight", "reference")}
    for b, row in enumerate(rows):
        problems = [e.ids_L[: e.start].tobytes() for e in row]
        n = 0
        for k, (e, place_L) in enumerate(zip(row, places[b], strict=True)):
            slot_T = slice(n, n + len(e.step_end_T))
            n = slot_T.stop
            batch["step_end"][b, slot_T] = place_L[e.step_end_T]
            batch["label"][b, slot_T] = e.label_T
            batch["rating"][b, slot_T] = e.rating_T
            batch["depth"][b, slot_T] = 0 if e.is_outcome else np.arange(len(e.step_end_T))
            batch["solution"][b, slot_T] = k
            batch["problem"][b, slot_T] = problems.index(problems[k])
            if not share:
                # Nothing comes before the first token to predict it from.
                batch["token_weight"][b, place_L[max(e.start, 1) :]] = 1
                batch["reference"][b, place_L] = e.reference_L
    batch["weight"] = (~np.isnan(batch["label"])).astype(np.float32)
    return batch


def may_share(cfg, row_tokens: int) -> bool:
    """Whether prefix trees of this width suit a model: it is causal, so that a prefix does not depend on what
    follows, and its window is not narrower, since a window counts places, also those of other branches."""
    return is_causal() and (cfg.window is None or row_tokens <= cfg.window)


def plan_packs(token_counts, step_counts, order, row_tokens: int, step_slots: int) -> list[list[int]]:
    """First-fit packing in this order, among the OPEN newest rows: lists of indices that share a row."""
    packs = []
    free_tokens, free_steps = np.full(len(order), row_tokens), np.full(len(order), step_slots)
    for i in order:
        recent = slice(max(0, len(packs) - OPEN), len(packs))
        fits = (free_tokens[recent] >= token_counts[i]) & (free_steps[recent] >= step_counts[i])
        k = recent.start + int(fits.argmax()) if fits.any() else len(packs)
        if k == len(packs):
            packs.append([])
        packs[k].append(int(i))
        free_tokens[k] -= token_counts[i]
        free_steps[k] -= step_counts[i]
    return packs


def plan_tree(sequences: list[np.ndarray], row_tokens: int) -> list[list[int]]:
    """Rows that share prefixes: lists of indices. Depth first, each sequence goes to that one of the OPEN
    newest rows where it adds the fewest tokens, of several to the fullest: a row holds few problems, and
    small ones fill the gaps of large ones."""
    rows = []
    last_L = np.zeros(0, np.int32)
    free = np.full(len(sequences), row_tokens)
    common = np.zeros(len(sequences), int)  # of each row's last sequence with this one
    for i in depth_first(sequences):
        ids_L = sequences[i]
        # In depth-first order two sequences share what all sequences between them share.
        common = np.minimum(common, common_prefix(last_L, ids_L))
        recent = slice(max(0, len(rows) - OPEN), len(rows))
        added = len(ids_L) - common[recent]
        fits = np.flatnonzero(added <= free[recent])
        r = recent.start + fits[np.lexsort((free[recent][fits], added[fits]))[0]] if len(fits) else len(rows)
        if r == len(rows):
            rows.append([])
        rows[r].append(i)
        free[r] -= len(ids_L) - common[r]
        common[r] = len(ids_L)
        last_L = ids_L
    return rows


def plan_rows(sequences: list[np.ndarray], row_tokens: int, share: bool) -> list[list[int]]:
    """`plan_tree`, or without shared prefixes the tightest packing: whole sequences, the longest first."""
    if share:
        return plan_tree(sequences, row_tokens)
    lengths = [len(ids_L) for ids_L in sequences]
    order = np.argsort([-n for n in lengths], kind="stable")
    return plan_packs(lengths, [0] * len(lengths), order, row_tokens, 0)


def choose_width(longest: int, plan: Callable[[int], list[list[int]]]) -> int:
    """Tokens per row: of six widths 2^k and 3 * 2^k from `longest` up, the narrowest that needs at most 3%
    more places than the best: narrow rows cost less attention. plan: width -> rows."""
    widths = (width for k in range(5, 32) for width in (1 << k, 3 << (k - 1)))
    places = {}
    for width in itertools.islice((width for width in widths if width >= longest), 6):
        places[width] = len(plan(width)) * width
        if places[width] == width:
            break
    return min(width for width, n in places.items() if n <= 1.03 * min(places.values()))


class Group(NamedTuple):
    """Examples that share a row, and the tokens and steps that they take of it."""

    indices: list[int]
    tokens: int
    steps: int


def make_groups(examples: Sequence[Encoded], row_tokens: int, share: bool, together=False) -> list[Group]:
    """Examples that share a row: with `share` neighbours in a prefix tree, with `together` of one problem."""
    if not (share or together):
        return [Group([i], len(e.ids_L), len(e.step_end_T)) for i, e in enumerate(examples)]
    groups = []
    last_L = np.zeros(0, np.int32)
    for i in depth_first([e.ids_L if share else e.ids_L[: e.start] for e in examples]):
        e = examples[i]
        alone = Group([i], len(e.ids_L), len(e.step_end_T))
        common = common_prefix(last_L, e.ids_L)
        last_L = e.ids_L
        # A common template alone does not group: that would tie all problems together.
        if groups and common >= e.start:
            old = groups[-1]
            shared = common if share else 0
            joined = Group([*old.indices, i], old.tokens + alone.tokens - shared, old.steps + alone.steps)
            # Each step has a slot, so a tree may have more steps than tokens.
            if joined.tokens <= row_tokens and joined.steps <= row_tokens:
                groups[-1] = joined
                continue
        groups.append(alone)
    return groups


@dataclasses.dataclass(frozen=True)
class Plan:
    """The one shape of rows of some examples, and the groups that share a row."""

    row_tokens: int
    step_slots: int
    groups: list[Group]
    share: bool

    def rows(self, order) -> list[list[int]]:
        """`plan_packs` of groups in this order: lists of example indices that share a row."""
        _, tokens, steps = zip(*self.groups)
        packs = plan_packs(tokens, steps, order, self.row_tokens, self.step_slots)
        return [[i for k in pack for i in self.groups[k].indices] for pack in packs]


def make_plan(examples: Sequence[Encoded], row_tokens: int, share=False, together=False) -> Plan:
    """The plan of rows with slots for 1.5 x the average density of steps, at least for the largest group."""
    groups = make_groups(examples, row_tokens, share, together)
    _, tokens, steps = zip(*groups)
    slots = max(math.ceil(1.5 * row_tokens * sum(steps) / sum(tokens)), max(steps))
    return Plan(row_tokens, -(-slots // 8) * 8, groups, share)


def saved_by_sharing(examples: Sequence[Encoded]) -> float:
    """Share of the tokens that prefix trees save in rows of any width, of the first solutions: a file has
    those of a problem together."""
    some = examples[:10_000]
    groups = make_groups(some, 1 << 30, share=True)
    return 1 - sum(group.tokens for group in groups) / sum(len(e.ids_L) for e in some)


def training_width(examples: Sequence[Encoded], share: bool, together: bool = False) -> int:
    """`choose_width` for training rows, which are filled in random order. With `together` they hold all
    solutions of a problem, of at most TOGETHER tokens."""
    whole = make_groups(examples, TOGETHER, False, together)

    def rows(width):
        groups = make_groups(examples, width, share, together) if share or together else whole
        return Plan(width, width, groups, share).rows(range(len(groups)))

    return choose_width(max(group.tokens for group in whole), rows)


def shuffled(n: int, first: int, end: int, *seed: int) -> np.ndarray:
    """Places first to end of an endless stream of permutations of 0..n-1."""
    orders = [np.random.default_rng([*seed, k]).permutation(n) for k in range(first // n, -(-end // n))]
    return np.concatenate([*orders, np.zeros(0, int)])[first % n :][: end - first]


def mixed_order(parts: dict[str, tuple[int, float]], epoch: int, seed: int) -> np.ndarray:
    """An epoch's examples: each source gives its share by weight, of its own stream of permutations, whose
    seed is longer than that of an epoch's order."""
    n = sum(size for size, _ in parts.values())
    start = 0
    drawn = []
    total = sum(weight for _, weight in parts.values())
    for number, (size, weight) in enumerate(parts.values()):
        first, end = (round(weight / total * n * e) for e in (epoch, epoch + 1))
        drawn.append(start + shuffled(size, first, end, seed, number, 1))
        start += size
    return np.concatenate(drawn)


class TrainingRows:
    """An endless shuffled stream of rows; row i's examples are a pure function of the seed. `parts`, of a
    mixture: {source: (number of its examples, its weight)} in the examples' order; it takes no groups."""

    def __init__(self, examples: Sequence[Example], plan: Plan, seed: int, parts: dict | None = None):
        # A mixture's solutions are drawn one by one, by their numbers.
        is_single = not parts or all(group.indices == [i] for i, group in enumerate(plan.groups))
        expect(is_single, "data", "mixture", "one data set, where solutions share prefixes or are paired")
        self.examples, self.plan, self.seed, self.parts = examples, plan, seed, parts or {}
        self.ends: list[int] = []  # number of rows up to and including each planned epoch
        self.packs: list[list[int]] = []

    def __getitem__(self, i: int) -> list[Example]:
        while len(self.packs) <= i:
            self.packs += self.plan.rows(self.order(len(self.ends)))
            self.ends.append(len(self.packs))
        return [self.examples[k] for k in self.packs[i]]

    def used(self, n: int) -> list[int]:
        """Indices of the examples in the first n rows."""
        self[n - 1]  # plans them
        return sorted({k for pack in self.packs[:n] for k in pack})

    def order(self, epoch: int) -> np.ndarray:
        """The groups of an epoch."""
        groups = mixed_order(self.parts, epoch, self.seed) if self.parts else len(self.plan.groups)  # 0..n-1
        return np.random.default_rng([self.seed, epoch]).permutation(groups)

    def epoch(self, i: int) -> float:
        """The number of epochs read before row i."""
        return float(np.interp(i, [0, *self.ends], range(len(self.ends) + 1)))

    def summary(self) -> str:
        """One line with the shape and number of the rows, their padding, and the gain by shared prefixes."""
        self[0]  # plans the first epoch
        rows, width = self.ends[0], self.plan.row_tokens
        tokens = np.array([group.tokens for group in self.plan.groups])
        padding = 1 - tokens[self.order(0)].sum() / (rows * width)  # a mixture takes some more often
        text = f"rows of {width} tokens, one shape; {padding:.1%} padding; {rows:,} rows an epoch"
        if self.plan.share:
            saved = 1 - tokens.sum() / sum(len(e.ids_L) for e in self.examples)
            text += f"; shared prefixes save {saved:.1%} of the tokens"
        return f"batches     {text}"


def train_batches(source: TrainingRows, steps: int, batch_rows: int, local_rows, first: int = 0):
    """Grain iterator of the batches from step `first` on, its whole state, with `local_rows` of each."""

    def make_batch(step):
        rows = [source[step * batch_rows + i] for i in local_rows]
        plan = source.plan
        return pack_batch(rows, plan.row_tokens, plan.step_slots, plan.share)

    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    return iter(grain.MapDataset.range(first, steps).map(make_batch).to_iter_dataset(options))


def unpack_steps(batch, x_BT):
    """Yields (x_T, label_T) of each solution in a batch of `pack_batch`; NaN: no label."""
    for solution_T, x_T, label_T in zip(batch["solution"], x_BT, batch["label"], strict=True):
        for k in range(solution_T.max() + 1):
            is_of_k = solution_T == k
            yield x_T[is_of_k], label_T[is_of_k]


def eval_batches(examples: Sequence[Example], row_tokens: int, batch_rows: int, together: bool = False):
    """Yields batches, the longest examples first, the last batch filled up with empty rows."""
    plan = make_plan(examples, row_tokens, together=together)
    packs = plan.rows(np.argsort([-group.tokens for group in plan.groups], kind="stable"))
    packs += [[]] * (-len(packs) % batch_rows)
    for start in range(0, len(packs), batch_rows):
        rows = [[examples[i] for i in pack] for pack in packs[start : start + batch_rows]]
        yield pack_batch(rows, row_tokens, plan.step_slots)
