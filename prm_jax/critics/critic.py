"""A Scorer that writes before it judges: a critique of each step, then P(good) by its two verdicts' logits.

A step's score depends only on the step and those before it. n votes are n critiques, rows of one batch.
Vote j of a prompt is a function of seed, j and the prompt, so n votes are n single runs (`first_vote`),
whatever is scored beside them. A critique without a verdict within its tokens is counted and printed. The
format's text `force` then asks for the verdict; a format without it leaves the critique out, and gives a
step without any vote P(good) = `unscored`.

Dimension key: N votes, n critiques.
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence

import jax
import numpy as np

from prm_jax.data.critiques import cut_at, fill, prompt_text
from prm_jax.data.units import CERTAIN, UNITS
from prm_jax.formats import Format
from prm_jax.protocols import Continuation, Prefix, Rows

KEPT = 1 << 20  # steps whose votes are kept from call to call, since a search asks about its prefixes again


@dataclasses.dataclass
class CriticStats:
    """The critiques' cost, and how they ended."""

    solutions: int = 0
    critiques: int = 0
    tokens: int = 0  # written
    computed: int = 0  # tokens written or read for the verdicts
    no_verdict: int = 0  # critiques
    forced: int = 0  # critiques without a verdict that were asked for one (format.critic.force)
    unscored: int = 0  # steps that no vote scores

    def summary(self) -> str:
        mean = self.tokens / max(self.critiques, 1)
        cost = f"{self.solutions:,} solutions by {self.critiques:,} critiques of {mean:.1f} tokens"
        verdicts = f"{self.no_verdict:,} without a verdict, {self.forced:,} of them forced"
        return f"criticised  {cost}, {verdicts}; {self.unscored:,} steps unscored"


@dataclasses.dataclass
class Draft:
    """One critique of a step."""

    prompt: str
    step: int  # number of the step that it judges
    written: Continuation | None = None  # None: nothing is written, the critic is asked at once
    text: str = ""  # what was written, then our question and its likelier verdict


@dataclasses.dataclass
class Critic:
    """A language model that judges each step of a solution in its own words."""

    writer: object  # critics/writers.py
    format: Format
    seed: int = 0
    first_vote: int = 0
    objective: str = "prm"
    unit: str = "logit"
    stats: CriticStats = dataclasses.field(default_factory=CriticStats)
    # (problem, steps) -> (logit_N, NaN where there is no verdict; the critiques of a conversation)
    known: dict = dataclasses.field(default_factory=dict)

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
        new, before = [prefix for prefix in distinct if prefix not in self.known], self.stats.no_verdict
        if self.format.critic.next is None:
            self.judge(new)
        else:  # in a conversation the prompt contains the critiques of the steps before
            for n in sorted({len(steps) for _, steps in new}):
                self.judge([prefix for prefix in new if len(prefix[1]) == n])
        self.stats.solutions += len(rows)
        if self.stats.no_verdict and not before:  # said once; the summary counts all
            print("critic      some critiques came to no verdict within format.critic.max_tokens")
        logit = {prefix: self.decide(self.known[prefix][0]) for prefix in distinct}
        return [np.array([logit[prefix] for prefix in of_row], np.float32) for of_row in prefixes]

    def decide(self, logit_N: Sequence[float]) -> float:
        """Log-odds of a step from its votes."""
        c = self.format.critic
        logit_n = np.array([x for x in logit_N if not np.isnan(x)]) / c.decision_temperature
        if len(logit_n):
            return combine(logit_n, c.vote)
        self.stats.unscored += 1
        return float(np.clip(UNITS["probability"].log_odds(c.unscored), -CERTAIN, CERTAIN))

    def judge(self, prefixes: Sequence[Prefix]):
        """Puts the votes of each prefix into `known`."""
        c, stats = self.format.critic, self.stats
        if not prefixes:
            return
        drafts = [self.begin(problem, steps, vote) for problem, steps in prefixes for vote in range(c.votes)]
        if c.max_tokens:
            self.write(drafts, [*range(self.first_vote, self.first_vote + c.votes)] * len(prefixes))
        read_before = self.writer.computed
        if c.ask is None:
            logit_n = self.writer.verdicts([d.prompt for d in drafts], [d.written for d in drafts])
            lost_n = np.isnan(logit_n)
        else:
            logit_n, lost_n = np.full(len(drafts), np.nan), np.array([not self.has_ended(d) for d in drafts])
        texts = [c.force if lost else c.ask for lost in lost_n]
        asked = [i for i, text in enumerate(texts) if text is not None]
        logit_n[asked] = self.ask([drafts[i] for i in asked], [texts[i] for i in asked])
        tokens, lost = sum(len(d.written.ids_L) for d in drafts if d.written), int(lost_n.sum())
        stats.critiques += len(drafts)
        stats.tokens += tokens
        stats.computed += tokens + self.writer.computed - read_before
        stats.no_verdict += lost
        stats.forced += lost if c.force is not None else 0
        for k, prefix in enumerate(prefixes):
            part = slice(k * c.votes, (k + 1) * c.votes)
            texts = [fill(c.opening, n=d.step) + d.text for d in drafts[part]] if c.next is not None else []
            self.known[prefix] = logit_n[part].tolist(), texts

    def begin(self, problem: str, steps: tuple[str, ...], vote: int) -> Draft:
        """The prompt of one vote on the last step; a conversation holds its critiques of the steps before."""
        critiques = []
        if self.format.critic.next is not None:
            critiques = [self.known[problem, steps[:t]][1][vote] for t in range(1, len(steps))]
        return Draft(prompt_text(self.format, self.writer.tokenizer, problem, steps, critiques), len(steps))

    def write(self, drafts: Sequence[Draft], votes: Sequence[int]):
        """Writes the critiques; each is drawn with 31 bits of its vote and prompt alone."""
        keys = [json.dumps([vote, d.prompt]).encode() for d, vote in zip(drafts, votes, strict=True)]
        numbers = [int.from_bytes(hashlib.sha256(key).digest()[:4], "big") >> 1 for key in keys]
        written = self.writer.write([d.prompt for d in drafts], numbers, jax.random.key(self.seed))
        for draft, new in zip(drafts, written, strict=True):
            draft.written, draft.text = new, new.text

    def has_ended(self, draft: Draft) -> bool:
        """Whether a critique may be asked: it reached a text of `cut` or, in a format without, its end."""
        if draft.written is None or not self.format.critic.cut:
            return draft.written is None or draft.written.finish_reason == "eos"
        return cut_at(self.format, draft.text, draft.step) is not None

    def ask(self, drafts: Sequence[Draft], questions: Sequence[str]) -> np.ndarray:
        """Log-odds logit_n of verdicts; appends each question and its likelier verdict to the critique."""
        for draft, question in zip(drafts, questions, strict=True):
            draft.text = draft.text[: cut_at(self.format, draft.text, draft.step)]
            draft.text += question.partition("{verdict}")[0]
        logit_n = self.writer.after([draft.prompt + draft.text for draft in drafts])
        for draft, question, logit in zip(drafts, questions, logit_n, strict=True):
            verdict = self.format.good if logit >= 0 else self.format.bad
            draft.text += verdict + question.partition("{verdict}")[2]
        return logit_n


def combine(logit_n: np.ndarray, rule: str) -> float:
    """Log-odds of the mean P(good), or of the share of good votes, half a vote of each kind added."""
    if rule == "majority":
        good = int((logit_n >= 0).sum())
        return float(np.log(good + 0.5) - np.log(len(logit_n) - good + 0.5))
    log_good, log_bad = (np.logaddexp.reduce(-np.logaddexp(0, -z_n)) for z_n in (logit_n, -logit_n))
    return float(log_good - log_bad)
