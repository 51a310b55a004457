"""A Scorer that writes before it judges: a critique of each step, then P(good) by its two verdicts' logits.

A step's score depends only on the step and those before it. n votes are n critiques, rows of one batch.
Vote j of a prompt is a function of seed, j and the prompt, whatever is scored beside it. A critique without
a verdict within its tokens is counted and printed. The format's text `force` then asks for the verdict; a
format without it leaves the critique out, and gives a step without any vote P(good) = `unscored`.

Dimension key: N votes, n critiques.
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence

import jax
import numpy as np

from prm_jax.critics.prompts import cut_at, fill, prompt_text
from prm_jax.data.units import CERTAIN, UNITS
from prm_jax.formats import Format
from prm_jax.protocols import Prefix, Rows

KEPT = 1 << 17  # steps whose votes are kept from call to call, since a search asks about its prefixes again


@dataclasses.dataclass
class CriticStats:
    """The critiques' cost, and how they ended."""

    solutions: int = 0
    critiques: int = 0
    tokens: int = 0  # written
    no_verdict: int = 0  # critiques
    unscored: int = 0  # steps that no vote scores

    def summary(self) -> str:
        mean = self.tokens / max(self.critiques, 1)
        cost = f"{self.solutions:,} solutions by {self.critiques:,} critiques of {mean:.1f} tokens"
        return f"criticised  {cost}, {self.no_verdict:,} without a verdict; {self.unscored:,} steps unscored"


@dataclasses.dataclass
class Draft:
    """One critique of a step."""

    prompt: str
    step: int  # number of the step that it judges
    vote: int
    text: str = ""  # what was written, then `force` and its likelier verdict
    logit: float = np.nan  # log-odds of its verdict; NaN: it came to none


@dataclasses.dataclass
class Critic:
    """A language model that judges each step of a solution in its own words."""

    writer: object  # critics/writers.py
    format: Format
    seed: int = 0
    objective: str = "prm"
    unit: str = "logit"
    stats: CriticStats = dataclasses.field(default_factory=CriticStats)
    known: dict[Prefix, list[Draft]] = dataclasses.field(default_factory=dict)  # a step's votes

    def __post_init__(self):
        votes = self.format.critic.votes
        self.name = f"{self.writer.name}, {self.format.name}, {votes} vote{'' if votes == 1 else 's'}"
        self.label_kind, self.model = self.format.label_kind, self.writer.model
        # Solutions after which scores are kept: critiques take long.
        self.chunk = max(1, self.format.critic.rows // votes)

    @property
    def about(self) -> dict:
        """The critic's part of a results file."""
        return {"critic": {"format": dataclasses.asdict(self.format), **vars(self.stats)}}

    def score(self, rows: Rows) -> list[np.ndarray]:
        if len(self.known) > KEPT:
            self.known.clear()
        rows = [(problem, tuple(steps)) for problem, steps in rows]
        prefixes = [[(problem, steps[: t + 1]) for t in range(len(steps))] for problem, steps in rows]
        distinct = dict.fromkeys(prefix for of_row in prefixes for prefix in of_row)
        new = [prefix for prefix in distinct if prefix not in self.known]
        before = self.stats.no_verdict
        if self.format.critic.next is None:
            self.judge(new)
        else:  # in a conversation the prompt contains the critiques of the steps before
            for n in sorted({len(steps) for _, steps in new}):
                self.judge([prefix for prefix in new if len(prefix[1]) == n])
        self.stats.solutions += len(rows)
        if self.stats.no_verdict and not before:  # said once; the summary counts all
            print("critic      some critiques came to no verdict within format.critic.max_tokens")
        logit = {prefix: self.decide(self.known[prefix]) for prefix in distinct}
        return [np.array([logit[prefix] for prefix in of_row], np.float32) for of_row in prefixes]

    def decide(self, drafts: Sequence[Draft]) -> float:
        """Log-odds of a step from its votes."""
        logits = [draft.logit for draft in drafts if not np.isnan(draft.logit)]
        if logits:
            return combine(np.array(logits))
        self.stats.unscored += 1
        unscored = UNITS["probability"].log_odds(self.format.critic.unscored)
        return float(np.clip(unscored, -CERTAIN, CERTAIN))

    def judge(self, prefixes: Sequence[Prefix]):
        """Puts the votes of each prefix into `known`."""
        c = self.format.critic
        votes = {prefix: [self.begin(*prefix, vote) for vote in range(c.votes)] for prefix in prefixes}
        drafts = [draft for of_step in votes.values() for draft in of_step]
        if c.max_tokens:
            self.write(drafts)
        if c.force is not None:
            self.ask([draft for draft in drafts if np.isnan(draft.logit)])
        for draft in drafts:
            draft.prompt = ""  # which nobody asks for again
        self.stats.critiques += len(drafts)
        self.known |= votes

    def begin(self, problem: str, steps: tuple[str, ...], vote: int) -> Draft:
        """One vote on the last step; a conversation holds its critiques of the steps before."""
        critiques = []
        if self.format.critic.next is not None:
            before = [self.known[problem, steps[:t]][vote] for t in range(1, len(steps))]
            critiques = [fill(self.format.critic.opening, n=draft.step) + draft.text for draft in before]
        prompt = prompt_text(self.format, self.writer.tokenizer, problem, steps, critiques)
        return Draft(prompt, len(steps), vote)

    def write(self, drafts: Sequence[Draft]):
        """Writes the critiques, each drawn with 31 bits of its vote and prompt alone, and reads the verdicts
        that they end with."""
        keys = [json.dumps([draft.vote, draft.prompt]).encode() for draft in drafts]
        numbers = [int.from_bytes(hashlib.sha256(key).digest()[:4], "big") >> 1 for key in keys]
        written = self.writer.write([d.prompt for d in drafts], numbers, jax.random.key(self.seed))
        for draft, new in zip(drafts, written, strict=True):
            draft.text = new.text
            self.stats.tokens += len(new.ids_L)
        if self.format.critic.verdict is None:  # each is asked; one that was cut off is counted
            self.stats.no_verdict += sum(cut_at(self.format, d.text, d.step) is None for d in drafts)
            return
        places = [self.writer.cut(draft.prompt, new) for draft, new in zip(drafts, written, strict=True)]
        self.stats.no_verdict += places.count(None)
        for draft, logit in zip(drafts, self.writer.log_odds(places), strict=True):
            draft.logit = logit

    def ask(self, drafts: Sequence[Draft]):
        """Reads the verdicts behind the text `force`; appends both to the critiques."""
        question, _, rest = self.format.critic.force.partition("{verdict}")
        for draft in drafts:
            draft.text = draft.text[: cut_at(self.format, draft.text, draft.step)] + question
        logit_n = self.writer.log_odds(self.writer.encode([d.prompt + d.text for d in drafts]))
        for draft, logit in zip(drafts, logit_n, strict=True):
            draft.logit = logit
            draft.text += (self.format.good if logit >= 0 else self.format.bad) + rest


def combine(logit_n: np.ndarray) -> float:
    """Log-odds of the mean P(good)."""
    log_good, log_bad = (np.logaddexp.reduce(-np.logaddexp(0, -z_n)) for z_n in (logit_n, -logit_n))
    return float(log_good - log_bad)
