"""Step scores for many solutions: text in, log-odds that each step is good out.

A model scores by its head, by a log-ratio or by a likelihood. Scorers that need no model are in scorers.py.

Dimension key: B rows, L tokens, T step ends, D model, n what is read of a row."""

import dataclasses

import jax
import numpy as np

from prm_jax import InputError
from prm_jax.data.units import log_p_to_log_odds
from prm_jax.encoding import Encoded, encode
from prm_jax.formats import Format
from prm_jax.heads import HEADS
from prm_jax.launch.mesh import check_divides, pad_rows, replicate, shard_batch
from prm_jax.model import PRM
from prm_jax.packing import choose_width, doubled, layout_score, layout_tokens, may_share, plan_rows
from prm_jax.protocols import Rows


@jax.jit
def step_log_odds(model: PRM, batch):
    """Log-odds that the step is good, at the step ends of a packed batch alone, float32 logit_BT."""
    x_BTD = model(batch["ids"], batch["pos"], batch["visible_until"], batch["step_end"])
    return replicate(HEADS[model.cfg.head].log_odds(model.step_logits(x_BTD)))


@jax.jit
def log_ratio(policy: PRM, reference: PRM | None, batch):
    """log policy - log reference of the token after each, in nats, ratio_BL (Yuan et al. 2024); without a
    reference log policy itself."""
    inputs = batch["ids"], batch["pos"], batch["visible_until"]
    ratio_BL = policy.next_logprobs(policy(*inputs), batch["ids"])
    if reference is not None:
        ratio_BL -= reference.next_logprobs(reference(*inputs), batch["ids"])
    return replicate(ratio_BL)


def step_ratios(beta: float, ratio_L: np.ndarray, encoded: Encoded) -> np.ndarray:
    """beta times the log-ratio of each step's tokens, score_T; ratio l is of token l + 1."""
    sum_L = np.concatenate([[0.0], np.cumsum(ratio_L, dtype=np.float64)])  # of tokens 1 to l
    before_T = np.append(max(encoded.start - 1, 0), encoded.step_end_T[:-1])
    return (beta * (sum_L[encoded.step_end_T] - sum_L[before_T])).astype(np.float32)


@dataclasses.dataclass
class ScoringStats:
    """What scoring computed."""

    solutions: int = 0  # distinct ones
    tokens: int = 0
    too_long: int = 0  # solutions with more tokens than the model has positions

    def summary(self) -> str:
        text = f"scored      {self.solutions:,} distinct solutions of {self.tokens:,} tokens"
        return text + (f"; {self.too_long:,} longer than the model's positions" if self.too_long else "")


@dataclasses.dataclass(kw_only=True)
class ModelScorer:
    """A model as a Scorer: its three kinds say what is read of a packed row, and how that becomes scores.

    A repeated row is scored once, and a prefix that solutions share (the problem, first steps) is computed
    once where that is possible. A score depends only on its own solution: in float32 up to rounding (2e-7 of
    P(good)); in bfloat16 its neighbours in the packed row move P(good) by up to .0016."""

    model: PRM
    tokenizer: object
    format: Format
    label_kind: str
    objective: str = "prm"  # or orm: an outcome model read at every step
    name: str  # folder and step, for results and figures
    batch_rows: int = 8
    row_tokens: int | None = None  # None: chosen in the first call; a call with a longer solution doubles it
    stats: ScoringStats = dataclasses.field(default_factory=ScoringStats)
    unit = "logit"
    reads_steps = False  # at their ends alone, else every token

    def shares(self, row_tokens: int) -> bool:
        """Whether a row may be a prefix tree: not where a token's value needs the next token."""
        return self.reads_steps and may_share(self.model.cfg, row_tokens)

    def values(self, batch):
        """value_Bn: of each token of the rows, or of each step."""
        raise NotImplementedError

    def step_scores(self, value_n: np.ndarray, encoded: Encoded) -> np.ndarray:
        """score_T of one solution from its values."""
        return value_n

    def score(self, rows: Rows) -> list[np.ndarray]:
        distinct = {row: i for i, row in enumerate(dict.fromkeys(rows))}
        encoded = encode(self.format, self.tokenizer, list(distinct))
        self.note_lengths(encoded)
        scores = self.score_encoded(encoded) if distinct else []
        for (problem, _), score_T in zip(distinct, scores, strict=True):
            if not np.isfinite(score_T).all():
                where = f"scores of a solution of {problem[:60]!r}"
                raise InputError(f"{self.name}: {where}: got {score_T}, expected numbers; try dtype=float32")
        # An outcome's one score is every step's.
        times = [len(steps) if self.format.outcome else 1 for _, steps in rows]
        return [np.repeat(scores[distinct[row]], n) for row, n in zip(rows, times, strict=True)]

    def score_encoded(self, encoded: list[Encoded]) -> list[np.ndarray]:
        """score_T of each tokenised solution."""
        sequences = [e.ids_L for e in encoded]
        longest = max(map(len, sequences))
        if self.row_tokens is None:
            self.row_tokens = choose_width(longest, lambda L: plan_rows(sequences, L, self.shares(L)))
        # Not kept: with a given width a score must not depend on what was scored before (resumed RL).
        values = self.read(encoded, doubled(self.row_tokens, longest))
        return [self.step_scores(value_n, e) for value_n, e in zip(values, encoded, strict=True)]

    def read(self, encoded: list[Encoded], L: int) -> list[np.ndarray]:
        """value_n of each solution: `values` at its tokens or steps, computed in packed rows of L tokens."""
        check_divides(self.model.cfg, self.batch_rows, "batch.rows")
        share = self.shares(L)
        lay_out = layout_score if self.reads_steps else layout_tokens
        packs = plan_rows([e.ids_L for e in encoded], L, share)
        values: list[np.ndarray] = [None] * len(encoded)

        def finish(value_Bn, packs, found):
            for value_n, pack, found_b in zip(np.asarray(value_Bn), packs, found, strict=True):
                for i, found_n in zip(pack, found_b, strict=True):
                    values[i] = value_n[found_n]

        pending = None
        for start in range(0, len(packs), self.batch_rows):
            some = packs[start : start + self.batch_rows]
            B = pad_rows(len(some), self.batch_rows)
            some += [[]] * (B - len(some))
            batch, found = lay_out([[encoded[i] for i in pack] for pack in some], L, share)
            value_Bn = self.values(shard_batch(batch, B))
            if pending is not None:  # read one batch late, while the device computes the next
                finish(*pending)
            pending = value_Bn, some, found
        finish(*pending)
        return values

    def note_lengths(self, encoded: list[Encoded]):
        """Counts solutions and tokens, and says once a file which solutions the model was not made for."""
        stats = self.stats
        positions = self.model.cfg.max_positions
        lengths = [len(e.ids_L) for e in encoded]
        n_long = sum(n > positions for n in lengths)
        if n_long and not stats.too_long:
            which = f"{n_long:,} of {len(encoded):,} solutions, up to {max(lengths):,} tokens long"
            print(f"note        {which}, pass the {positions:,} tokens that {self.name} was made for")
        stats.solutions += len(encoded)
        stats.tokens += sum(lengths)
        stats.too_long += n_long


class HeadScorer(ModelScorer):
    """Scores by a model's step head: the log-odds at each step's end."""

    reads_steps = True

    def values(self, batch):
        return step_log_odds(self.model, batch)


@dataclasses.dataclass(kw_only=True)
class RatioScorer(ModelScorer):
    """Scores by an implicit PRM: beta times the log-ratio of each step's tokens under two language models."""

    reference: PRM
    unit = "log_ratio"

    def values(self, batch):
        return log_ratio(self.model, self.reference, batch)

    def step_scores(self, value_n, encoded):
        return step_ratios(self.format.beta, value_n, encoded)


class LikelihoodScorer(ModelScorer):
    """Scores by a language model: the log-odds of each step's own probability."""

    def values(self, batch):
        return log_ratio(self.model, None, batch)

    def step_scores(self, value_n, encoded):
        return log_p_to_log_odds(step_ratios(1.0, value_n, encoded)).astype(np.float32)
