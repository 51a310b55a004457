"""Step scores for many solutions: text in, log-odds that each step is good out. Evaluation and search score here.
A model is one Scorer of protocols.py; those that need no model are in scorers.py.

Dimension key: B rows, L tokens, T step ends, N solutions, n what is read of a row.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path

import jax
import numpy as np

from prm_jax import InputError
from prm_jax.data.rows import append_rows, field, json_lines, require_same
from prm_jax.data.units import UNITS, log_p_to_log_odds
from prm_jax.formats import Encoded, Format, encode
from prm_jax.heads import good_logit
from prm_jax.launch import cli
from prm_jax.launch.config import expect
from prm_jax.launch.files import sums_file
from prm_jax.launch.hosts import share_file
from prm_jax.launch.mesh import check_divides, replicate, row_shards, shard_batch
from prm_jax.model import PRM
from prm_jax.packing import choose_width, doubled, fits_window, layout_batch, plan_rows
from prm_jax.protocols import Rows

CHUNK = 2048  # solutions in memory at a time: enough for tight packing and whole problems, a few megabytes


@functools.partial(jax.jit, static_argnames="output")
def step_log_odds(model: PRM, batch, output: int | None = None):
    """Log-odds that the step is good, or one output of the head, at the step ends of a packed batch alone, float32
    logit_BT."""
    x_BTD = model(batch["ids"], batch["pos"], batch["visible_until"], batch["step_end"])
    logit_BTC = model.step_logits(x_BTD)
    return replicate(good_logit(logit_BTC, model.cfg.head) if output is None else logit_BTC[..., output])


@jax.jit
def log_ratio(policy: PRM, reference: PRM | None, batch):
    """log policy - log reference of the token after each token, in nats, ratio_BL (Yuan et al. 2024); without a
    reference log policy."""
    inputs = batch["ids"], batch["pos"], batch["visible_until"]
    models = [policy] if reference is None else [policy, reference]
    logp_BL, *others = (model.next_logprobs(model(*inputs), batch["ids"]) for model in models)
    return replicate(logp_BL - others[0] if others else logp_BL)


def step_ratios(beta: float, ratio_L: np.ndarray, encoded: Encoded) -> np.ndarray:
    """beta times the log-ratio of each step's tokens, score_T; ratio l is of token l + 1, the first token has none."""
    sum_L = np.concatenate([[0.0], np.cumsum(ratio_L, dtype=np.float64)])  # of tokens 1 to l
    before_T = np.append(max(encoded.start - 1, 0), encoded.step_end_T[:-1])
    return (beta * (sum_L[encoded.step_end_T] - sum_L[before_T])).astype(np.float32)


@dataclasses.dataclass
class ScoringStats:
    """What scoring computed."""

    solutions: int = 0
    tokens: int = 0  # of the solutions
    computed: int = 0  # tokens left after sharing
    places: int = 0  # in the rows, for tokens
    shapes: set = dataclasses.field(
        default_factory=set
    )  # (rows, tokens, step ends) of batches, each compiled once

    def summary(self) -> str:
        widths = ", ".join(f"{width:,}" for width in sorted({shape[1] for shape in self.shapes}))
        saved, padding = 1 - self.computed / self.tokens, 1 - self.computed / self.places
        what = f"{self.solutions:,} distinct solutions in rows of {widths} tokens"
        packing = f"shared prefixes save {saved:.1%} of the tokens, {padding:.1%} padding"
        return f"scored      {what}: {packing}, shapes compiled: {len(self.shapes)}"


@dataclasses.dataclass
class ModelScorer:
    """Scores steps by a model's step head; with a reference model by beta times the log-ratio (`log_ratio`); with
    `likelihood` by the log-odds of the step's own probability under a language model. A repeated row is scored once, and a prefix that solutions share (the problem, first steps) is computed once. A score
    depends only on its own solution: in float32 up to rounding (2e-7 of P(good)); in bfloat16 its neighbours in the
    packed row move P(good) by up to .0016. `row_tokens=None` is chosen from the lengths in the first call; a longer
    solution doubles the rows from then on."""

    model: PRM
    tokenizer: object
    format: Format
    label_kind: str
    objective: str  # prm, or orm: an outcome model read at every step
    name: str  # folder and step, for results and figures
    reference: PRM | None = None
    batch_rows: int = 8
    row_tokens: int | None = None
    likelihood: bool = False
    output: int | None = None  # of the step head, in place of the log-odds that the step is good
    stats: ScoringStats = dataclasses.field(default_factory=ScoringStats)
    noted: bool = False  # that a solution is longer than the model was made for

    @property
    def unit(self) -> str:
        return "logit" if self.reference is None else "log_ratio"

    def score(self, rows: Rows) -> list[np.ndarray]:
        distinct = {row: i for i, row in enumerate(dict.fromkeys(rows))}
        scores = self.score_encoded(encode(self.format, self.tokenizer, list(distinct))) if distinct else []
        for (problem, _), score_T in zip(distinct, scores, strict=True):
            if not np.isfinite(score_T).all():
                where = f"step scores of a solution of {problem[:60]!r}"
                raise InputError(f"{self.name}: gives {score_T} as {where}, expected numbers")
        # An outcome's one score is every step's.
        times = [len(steps) if self.format.outcome else 1 for _, steps in rows]
        return [np.repeat(scores[distinct[row]], n) for row, n in zip(rows, times, strict=True)]

    def may_share(self, row_tokens: int) -> bool:
        """Whether a row may be a prefix tree; what is read of each token needs the next one in the next place."""
        return not self.by_token and fits_window(self.model.cfg, row_tokens)

    @property
    def by_token(self) -> bool:
        return self.likelihood or self.reference is not None

    def of_tokens(self, value_L: np.ndarray, encoded: Encoded) -> np.ndarray:
        if self.likelihood:
            return log_p_to_log_odds(step_ratios(1.0, value_L, encoded)).astype(np.float32)
        return step_ratios(self.format.beta, value_L, encoded)

    def score_encoded(self, encoded: list[Encoded]) -> list[np.ndarray]:
        """Scores packed rows in few shapes: step slots and rows are powers of two, rows a multiple of the mesh's."""
        check_divides(self.model.cfg, self.batch_rows, "batch.rows")
        sequences = [e.ids_L for e in encoded]
        longest = max(map(len, sequences))
        if longest > (positions := self.model.cfg.max_positions) and not self.noted:
            print(
                f"note        a solution has {longest:,} tokens; {self.name} was made for at most {positions:,}"
            )
            self.noted = True
        if self.row_tokens:
            self.row_tokens = doubled(self.row_tokens, longest)
        else:
            self.row_tokens = choose_width(longest, lambda L: plan_rows(sequences, L, self.may_share(L))[0])
        L, by_token, share = self.row_tokens, self.by_token, self.may_share(self.row_tokens)
        packs, computed = plan_rows(sequences, L, share)
        self.stats.solutions += len(encoded)
        self.stats.tokens += sum(map(len, sequences))
        self.stats.computed += computed
        scores: list[np.ndarray] = [None] * len(encoded)

        def finish(value_Bn, layouts):
            for value_n, (pack, reads) in zip(np.asarray(value_Bn), layouts, strict=True):
                for i, read_n in zip(pack, reads, strict=True):
                    score_n = value_n[read_n]
                    scores[i] = self.of_tokens(score_n, encoded[i]) if by_token else score_n

        pending = None
        for start in range(0, len(packs), self.batch_rows):
            batch_packs = packs[start : start + self.batch_rows]
            B = 1 << (len(batch_packs) - 1).bit_length()
            B = min(self.batch_rows, -(-B // row_shards()) * row_shards())
            batch_packs += [[]] * (B - len(batch_packs))
            batch, places, slots = layout_batch(
                [[encoded[i] for i in pack] for pack in batch_packs], L, share=share
            )
            self.stats.places += B * L
            self.stats.shapes.add((B, L, 0 if by_token else batch["step_end"].shape[1]))
            if by_token:
                del batch["step_end"]  # every token has a value
            batch = shard_batch(batch, B)
            if by_token:
                value_Bn = log_ratio(self.model, self.reference, batch)
            else:
                value_Bn = step_log_odds(self.model, batch, self.output)
            if pending:  # read one batch late, while the device computes the next
                finish(*pending)
            pending = value_Bn, list(zip(batch_packs, places if by_token else slots, strict=True))
        finish(*pending)
        return scores


def score_into(path: Path, scorer, rows: Iterable, total: int) -> Iterator[np.ndarray]:
    """Appends the step scores of (id, problem, steps) rows to a file, one JSON {id, unit, scores} a line, and returns its
    `stored_scores`. It reads CHUNK rows at a time, or a slow scorer's own `chunk`, and keeps the scores of each, so
    memory does not grow with their number. An interrupted file is continued: rows that have a line are not scored again.
    Raises InputError where a line is damaged, belongs to another row or has another unit. Each of several processes
    writes its own file, and all continue that of process 0."""
    share_file(path), share_file(sums_file(path))
    has_stats = hasattr(scorer, "stats")
    if has_stats:
        scorer.stats = type(scorer.stats)()

    def check(line: dict, row):
        require_same(line, id=row[0], unit=scorer.unit)
        scores = field(line, "scores", list)
        is_right = len(scores) == len(row[2]) and all(type(x) in (int, float) for x in scores)
        expect(is_right, "scores", scores, f"a number for each of {len(row[2])} steps")

    def make(chunk: list, _, done: int) -> list[dict]:
        scores = scorer.score([(problem, tuple(steps)) for _, problem, steps in chunk[done:]])
        named = zip(chunk[done:], scores, strict=True)
        return [{"id": i, "unit": scorer.unit, "scores": score_T.tolist()} for (i, *_), score_T in named]

    before = 0
    with cli.progress("scoring", total, "solution", leave=not has_stats) as bar:
        for lines, old in append_rows(path, rows, getattr(scorer, "chunk", CHUNK), check, make):
            before += old
            bar.update(len(lines))
    if before:
        print(f"scored      {before} of {total} solutions before, in {path}")
    if has_stats and scorer.stats.solutions:
        print(f"{scorer.stats.summary()}; by {scorer.name}")
    return stored_scores(path)


def stored_scores(path: Path) -> Iterator[np.ndarray]:
    """Yields a score file's rows as float32 log-odds; lines without a unit are probabilities."""
    for number, row in json_lines(path):
        where = f"{path} line {number}"
        unit = row.get("unit", "probability")
        expect(unit in UNITS, f"{where}: unit", unit, ", ".join(UNITS))
        yield UNITS[unit].log_odds(np.array(row["scores"], np.float64)).astype(np.float32)
