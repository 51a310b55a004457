"""Packing: sequences of tokens become batches of static shape, for training and scoring alike.

Sequences stand one after another in a row, or, with shared prefixes, as a token tree in which what several of them begin
with stands once. Either way one integer a token says who may see it (attention.py).

Dimension key: B rows, L tokens, T steps (of one sequence, or the slots of one row).
"""

import bisect
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import grain
import numpy as np

from prm_jax.data.formats import STEP_TARGETS, TOKEN_TARGETS, Encoded, Example


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

    A prefix tree (`share`) is laid out depth first. pos counts from the start of each sequence; visible_until is the last
    place that may see the token, the end of the last sequence that goes through it.
    """
    row_3n, places = np.zeros((3, sum(map(len, sequences))), np.int32), [None] * len(sequences)
    at, path_L, last_L = 0, np.zeros(0, int), np.zeros(0, np.int32)
    for i in depth_first(sequences) if share else range(len(sequences)):
        own_L = sequences[i]
        shared = common_prefix(last_L, own_L) if share else 0
        end = at + len(own_L) - shared
        row_3n[0, at:end] = own_L[shared:]
        row_3n[1, at:end] = np.arange(shared, len(own_L))
        path_L = np.concatenate([path_L[:shared], np.arange(at, end)])
        row_3n[2, path_L] = end - 1
        places[i], last_L, at = path_L, own_L, end
    return *row_3n[:, :at], places


def doubled(n: int, needed: int) -> int:
    """n times the lowest power of two that makes it reach `needed`."""
    return next(n << k for k in itertools.count() if n << k >= needed)


def layout_batch(rows: Sequence[Sequence[Encoded]], row_tokens: int, step_slots=None, share=False):
    """(batch, places, slots): rows of sequences as arrays of static shape, and where each sequence finds its values.

    batch: ids_BL, pos_BL and visible_until_BL of `layout_row` (padding: row_tokens), and step_end_BT, the place of the step
    that each slot reads. places[b][k] and slots[b][k]: places of the tokens and slots of the steps of sequence k of row b.
    Of `step_slots` each step of each sequence has its own, a shared one too, so that it weighs as often. None: slots
    only read, so a shared step has one, and there are as few as will do (row_tokens / 16, doubled as needed).
    """
    B = len(rows)
    batch_3BL = np.zeros((3, B, row_tokens), np.int32)
    batch_3BL[2] = row_tokens
    places, slots, step_ends = [], [], []
    for b, row in enumerate(rows):
        *row_3n, places_b = layout_row([e.ids_L for e in row], share)
        batch_3BL[:, b, : len(row_3n[0])] = row_3n
        ends = [place_L[e.step_end_T] for e, place_L in zip(row, places_b, strict=True)]
        all_n = np.concatenate([*ends, np.zeros(0, int)])
        found_n, slot_n = (all_n, np.arange(len(all_n))) if step_slots else np.unique(all_n, return_inverse=True)
        starts = itertools.accumulate(map(len, ends), initial=0)
        places.append(places_b), step_ends.append(found_n)
        slots.append([slot_n[start : start + len(end_T)] for start, end_T in zip(starts, ends)])
    T = step_slots or doubled(max(1, row_tokens // 16), max(map(len, step_ends)))
    batch = dict(zip(("ids", "pos", "visible_until"), batch_3BL)) | {"step_end": np.zeros((B, T), np.int32)}
    for step_end_T, found_n in zip(batch["step_end"], step_ends, strict=True):
        step_end_T[: len(found_n)] = found_n
    return batch, places, slots


def pack_batch(rows: Sequence[Sequence[Example]], row_tokens: int, step_slots: int, share: bool = False):
    """`layout_batch` and the targets of its examples: {name: [B, step_slots]} of STEP_TARGETS, {name: [B, row_tokens]} of
    TOKEN_TARGETS, these empty where prefixes are shared: a shared token has no one next token. `solution` and `problem` number
    what a step belongs to within its row, -1 where a slot has no step; a problem is what stands before the first step."""
    batch, places, slots = layout_batch(rows, row_tokens, step_slots, share)
    batch |= {name: np.full((len(rows), step_slots), fill, np.float32) for name, fill in STEP_TARGETS.items()}
    batch |= {name: np.full((len(rows), row_tokens), fill, np.float32) for name, fill in TOKEN_TARGETS.items()}
    batch |= {name: np.full((len(rows), step_slots), -1, np.int32) for name in ("solution", "problem")}
    for b, row in enumerate(rows):
        problems = [e.ids_L[: e.start].tobytes() for e in row]
        for k, (e, place_L, slot_T) in enumerate(zip(row, places[b], slots[b], strict=True)):
            batch["solution"][b, slot_T], batch["problem"][b, slot_T] = k, problems.index(problems[k])
            for name, x_n in e.targets.items():
                if name in STEP_TARGETS or not share:
                    batch[name][b, slot_T if name in STEP_TARGETS else place_L] = x_n
    return batch


def fits_window(cfg, row_tokens: int) -> bool:
    """Whether prefix trees of so many tokens suit a model: a sliding window counts places, those of other branches too."""
    return cfg.window is None or row_tokens <= cfg.window


def plan_packs(token_counts, step_counts, order, row_tokens: int, step_slots: int, open_packs=64) -> list[list[int]]:
    """First-fit packing in the given order: lists of example indices that share a row.

    Only the last `open_packs` rows are tried, so that planning stays linear in the number of examples.
    """
    packs, n = [], len(order)
    free_tokens, free_steps = np.full(n, row_tokens), np.full(n, step_slots)
    for i in order:
        recent = slice(max(0, len(packs) - open_packs), len(packs))
        fits = (free_tokens[recent] >= token_counts[i]) & (free_steps[recent] >= step_counts[i])
        k = recent.start + int(fits.argmax()) if fits.any() else len(packs)
        if k == len(packs):
            packs.append([])
        packs[k].append(int(i))
        free_tokens[k] -= token_counts[i]
        free_steps[k] -= step_counts[i]
    return packs


def plan_tree(sequences: list[np.ndarray], row_tokens: int, open_rows: int = 64) -> tuple[list[list[int]], int]:
    """Rows that share prefixes: (indices of the sequences in each row, tokens that are laid out in all).

    Depth first, each sequence goes to the row where it adds the fewest tokens, of several to the fullest (best fit), among
    the newest `open_rows`; so a row holds few problems and small ones fill what large ones leave.
    """
    rows, last_L, n = [], np.zeros(0, np.int32), len(sequences)
    free, common = np.full(n, row_tokens), np.zeros(n, int)  # common: of each row's last sequence with this one
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


def choose_width(longest: int, plan: Callable[[int], list[list[int]]]) -> int:
    """Tokens a row: of six widths, from `longest` on, the narrowest that needs at most 3% over the fewest places.

    plan: width -> rows. Wide rows are padded less and share more, narrow ones cost less attention. Widths are powers of two
    and one and a half times them, so that other data of about these lengths mean the same compiled program.
    """
    places = {}
    for width in [w for k in range(5, 32) for w in (1 << k, 3 << (k - 1)) if w >= longest][:6]:
        places[width] = len(plan(width)) * width
        if places[width] == width:
            break
    return min(width for width, n in places.items() if n <= 1.03 * min(places.values()))


class Group(NamedTuple):
    """Examples that go into a row together, and what they take of it."""

    indices: list[int]
    tokens: int
    steps: int


def make_groups(examples: Sequence[Encoded], row_tokens: int, share: bool, together=False) -> list[Group]:
    """Examples one by one; with `share` the neighbours in their prefix tree, as many as a row takes, what they begin with once;
    with `together` those of one problem in the order they come: neighbours would be alike, and make few pairs."""
    together = together or share
    groups, last_L = [Group([], 0, 0)], np.zeros(0, np.int32)
    starts = [e.ids_L if share else e.ids_L[: e.start] for e in examples] if together else []
    for i in depth_first(starts) if together else range(len(examples)):
        e, old = examples[i], groups[-1]
        common = common_prefix(last_L, e.ids_L) if together else 0
        tokens, steps = old.tokens + len(e.ids_L) - common * share, old.steps + len(e.step_end_T)
        # The first word of a template alone is no reason to stand together: that would tie all problems into one group.
        if together and old.indices and common >= e.start and max(tokens, steps) <= row_tokens:
            groups[-1] = Group([*old.indices, i], tokens, steps)
        else:
            groups.append(Group([i], len(e.ids_L), len(e.step_end_T)))
        last_L = e.ids_L
    return groups[1:]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The one shape of the rows of some examples, and what goes into a row together."""

    row_tokens: int
    step_slots: int
    groups: list[Group]
    share: bool

    def rows(self, order) -> list[list[int]]:
        """`plan_packs` of whole groups in this order: lists of example indices that share a row."""
        _, tokens, steps = zip(*self.groups)
        packs = plan_packs(tokens, steps, order, self.row_tokens, self.step_slots)
        return [[i for k in pack for i in self.groups[k].indices] for pack in packs]


def make_plan(examples: Sequence[Encoded], row_tokens: int, share: bool = False, together: bool = False) -> Plan:
    """The plan of rows of so many tokens; slots for 1.5 x the average density of steps, or for the largest group if more.

    `together`: solutions of one problem share a row, as far as it takes them (with `share` they do anyway)."""
    groups = make_groups(examples, row_tokens, share, together)
    _, tokens, steps = zip(*groups)
    slots = max(math.ceil(1.5 * row_tokens * sum(steps) / sum(tokens)), max(steps))
    return Plan(row_tokens, -(-slots // 8) * 8, groups, share)


def training_width(examples: Sequence[Encoded], share: bool) -> int:
    """`choose_width` of training rows, which are filled in random order."""

    def rows(width):
        groups = make_groups(examples, width, share)
        return Plan(width, width, groups, share).rows(range(len(groups)))

    return choose_width(max(len(e.ids_L) for e in examples), rows)


class TrainingRows:
    """The examples of row i of an endless shuffled stream of rows: a pure function of the seed.

    An epoch is planned from (seed, epoch) and the lengths alone, the first time that one of its rows is asked for. `parts`, of
    a mixture: {source: (how many of the examples are its own, its weight)}, in their order; no plan of shared prefixes.
    """

    def __init__(
        self, examples: Sequence[Example], plan: Plan, seed: int, parts: dict[str, tuple[int, float]] | None = None
    ):
        self.examples, self.plan, self.seed, self.parts = examples, plan, seed, parts or {}
        self.ends: list[int] = []  # number of rows up to and including each planned epoch
        self.packs: list[list[int]] = []

    def __getitem__(self, i: int) -> list[Example]:
        while len(self.packs) <= i:
            self.packs += self.plan.rows(self.order(len(self.ends)))
            self.ends.append(len(self.packs))
        return [self.examples[k] for k in self.packs[i]]

    def order(self, epoch: int) -> np.ndarray:
        """The groups that an epoch draws. Of a mixture each source gives its share, from a stream of permutations of its own that
        goes on where the epoch before stopped."""
        rng, n = np.random.default_rng([self.seed, epoch]), len(self.plan.groups)
        if not self.parts:
            return rng.permutation(n)
        drawn, start, total = [], 0, sum(weight for _, weight in self.parts.values())
        for number, (size, weight) in enumerate(self.parts.values()):
            first, end = (round(weight / total * n * e) for e in (epoch, epoch + 1))
            passes = range(first // size, -(-end // size))
            stream = [np.random.default_rng([self.seed, number, k]).permutation(size) for k in passes]
            drawn.append(start + np.concatenate([*stream, np.zeros(0, int)])[first % size :][: end - first])
            start += size
        return rng.permutation(np.concatenate(drawn))

    def drawn(self, rows: int) -> dict[str, dict[str, float]]:
        """Of the first rows: how many solutions of each source, what share of all, and how often each of them on average."""
        ends = list(itertools.accumulate(size for size, _ in self.parts.values()))
        n = np.bincount([bisect.bisect_right(ends, k) for pack in self.packs[:rows] for k in pack], minlength=len(ends))
        return {
            name: {"solutions": int(n_k), "share": float(n_k / n.sum()), "passes": float(n_k / size)}
            for (name, (size, _)), n_k in zip(self.parts.items(), n, strict=True)
        }

    def epoch(self, i: int) -> float:
        """How many times the data have been read when row i is next."""
        number = bisect.bisect_left(self.ends, i)
        start, end = [0, *self.ends, math.inf][number : number + 2]
        return number + (i - start) / (end - start)

    def summary(self) -> str:
        """One line: the shape of the rows, what padding and shared prefixes make of them."""
        self[0]  # plans the first epoch
        places, needed = self.ends[0] * self.plan.row_tokens, sum(group.tokens for group in self.plan.groups)
        text = f"batches     rows of {self.plan.row_tokens} tokens, one shape; {1 - needed / places:.1%} padding"
        if self.plan.share:
            text += f"; {sum(len(e.ids_L) for e in self.examples) / needed:.2f} tokens of solutions a computed token"
        return text


def train_batches(source: TrainingRows, steps: int, batch_rows: int, own, first: int = 0):
    """Grain iterator of the batches of the steps after `first`: of each batch's rows those numbered in `own`, for this process.
    The step is its whole state, whatever the number of processes."""
    plan = source.plan
    rows = lambda step: [source[step * batch_rows + i] for i in own]
    batch = lambda step: pack_batch(rows(step), plan.row_tokens, plan.step_slots, plan.share)
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    return iter(grain.MapDataset.range(first, steps).map(batch).to_iter_dataset(options))


def unpack_steps(batch, x_BT):
    """(x_T, label_T) of each solution of a batch of `eval_batches`, whose rows share nothing; NaN: a step without label."""
    for pos_L, end_T, x_T, label_T in zip(batch["pos"], batch["step_end"], x_BT, batch["label"], strict=True):
        used = np.flatnonzero(end_T)  # no step ends at a row's first token, at which empty slots point
        start = end_T[used] - pos_L[end_T[used]]
        for own in np.split(used, np.flatnonzero(np.diff(start)) + 1) if len(used) else ():
            yield x_T[own], label_T[own]


def eval_batches(examples: Sequence[Example], row_tokens: int, batch_rows: int, together: bool = False):
    """All examples once, longest first (tightest packing), the last batch filled with empty rows."""
    plan = make_plan(examples, row_tokens, together=together)
    packs = plan.rows(np.argsort([-group.tokens for group in plan.groups], kind="stable"))
    packs += [[]] * (-len(packs) % batch_rows)
    for at in range(0, len(packs), batch_rows):
        rows = [[examples[i] for i in pack] for pack in packs[at : at + batch_rows]]
        yield pack_batch(rows, row_tokens, plan.step_slots)
