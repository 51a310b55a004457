"""A Scorer that writes before it judges: a critique of each step, then P(good) by the logits of its two verdicts.

The solution's score of a step is that of its prefix: what the format asks of a step and those before it. n votes are n critiques,
rows of one batch with keys of their own: vote j of a prompt is a function of seed, j and the prompt, so n votes are n single runs
(`first_vote`), whatever is scored beside them. A critique that comes to no verdict within its tokens is counted and said.
It is asked for one where the format has a text for that (`force`), else it is left out of its step's votes, and a step
without any has the stand-in `unscored`: a format that writes names one of them, so no step stops a command.

Dimension key: N votes, n prompts.
"""

import concurrent.futures
import dataclasses
import hashlib
import json
from collections.abc import Sequence

import jax
import numpy as np

from prm_jax.critics.execution import run_code
from prm_jax.data.critiques import CODE, cut_at, fill, opening, prompt_text
from prm_jax.data.formats import Format
from prm_jax.data.units import UNITS
from prm_jax.protocols import Rows
from prm_jax.scorers import CERTAIN

KEPT = 1 << 20  # steps whose votes are kept from call to call, since a search asks its prefixes again


@dataclasses.dataclass
class CriticStats:
    """What critiques cost, and what became of them."""

    solutions: int = 0
    critiques: int = 0
    tokens: int = 0  # written
    computed: int = 0  # these, and what was read for the verdicts
    no_verdict: int = 0  # critiques that came to none
    forced: int = 0  # of these, those that were asked for it (format.critic.force)
    unscored: int = 0  # steps with the stand-in
    blocks: int = 0  # of code that were run
    failed: int = 0  # of these

    def summary(self) -> str:
        mean = self.tokens / max(self.critiques, 1)
        code = f", {self.blocks:,} blocks of code run, {self.failed:,} failed"
        return (
            f"criticised  {self.solutions:,} solutions by {self.critiques:,} critiques of {mean:.1f} tokens, {self.no_verdict:,} "
            f"without a verdict, {self.forced:,} of them forced; {self.unscored:,} steps unscored"
            f"{code if self.blocks else ''}"
        )


@dataclasses.dataclass
class Draft:
    """A critique in the making: what stands before its last round, what that round wrote, all of its text and its tokens."""

    prompt: str
    step: int  # the number of the one that it judges
    text: str = ""
    last: object = None
    tokens: int = 0
    stopped: bool = False  # at a block of code, and not gone on with


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

    @property
    def name(self) -> str:
        c = self.format.critic
        return f"{self.writer.name}, {self.format.name}, {c.votes} vote{'s' * (c.votes > 1)}"

    @property
    def label_kind(self) -> str:
        return self.format.label_kind

    @property
    def model(self):
        return self.writer.model

    @property
    def about(self) -> dict:
        """What results say of a critic."""
        return {"critic": {"format": dataclasses.asdict(self.format), **vars(self.stats)}}

    def score(self, rows: Rows) -> list[np.ndarray]:
        rows = [(problem, tuple(steps)) for problem, steps in rows]
        if len(self.known) > KEPT:
            self.known.clear()
        prefixes = dict.fromkeys((problem, steps[: t + 1]) for problem, steps in rows for t in range(len(steps)))
        new = [prefix for prefix in prefixes if prefix not in self.known]
        before = dataclasses.replace(self.stats)
        if self.format.critic.next is None:
            self.judge(new)
        else:  # what it said of the steps before stands in its prompt
            for n in sorted({len(steps) for _, steps in new}):
                self.judge([prefix for prefix in new if len(prefix[1]) == n])
        self.stats.solutions += len(rows)
        if lost := self.stats.no_verdict - before.no_verdict:
            of, limit = self.stats.critiques - before.critiques, self.format.critic.max_tokens
            then = "left out of the votes" if self.format.critic.force is None else "forced (format.critic.force)"
            print(f"critic      {lost:,} of {of:,} critiques came to no verdict within {limit:,} tokens: {then}")
        logit = {prefix: self.decide(self.known[prefix][0]) for prefix in prefixes}
        found = [np.array([logit[p, steps[: t + 1]] for t in range(len(steps))], np.float32) for p, steps in rows]
        return [none_wrong(logit_T) for logit_T in found] if self.format.critic.first_error else found

    def decide(self, logit_N: Sequence[float]) -> float:
        """Log-odds of a step by its votes."""
        c = self.format.critic
        logit_n = np.array([x for x in logit_N if not np.isnan(x)]) / c.decision_temperature
        if len(logit_n):
            return combine(logit_n, c.vote)
        self.stats.unscored += 1
        return float(np.clip(UNITS["probability"].log_odds(c.unscored), -CERTAIN, CERTAIN))

    def judge(self, prefixes: Sequence[tuple[str, tuple[str, ...]]]):
        """The votes of each prefix, into `known`."""
        c, tokenizer = self.format.critic, self.writer.tokenizer
        votes = range(self.first_vote, self.first_vote + c.votes)
        asked = [(prefix, i) for prefix in prefixes for i in range(len(votes))]
        if not asked:
            return

        def prompt(prefix, i) -> str:
            problem, steps = prefix
            said = [self.known[problem, steps[:t]][1][i] for t in range(1, len(steps))] if c.next is not None else ()
            return prompt_text(self.format, tokenizer, problem, steps, said)

        drafts = [Draft(prompt(prefix, i), len(prefix[1])) for prefix, i in asked]
        prompts = [d.prompt for d in drafts]
        if c.max_tokens:
            self.write(drafts, [votes[i] for _, i in asked])
        read = self.writer.computed
        lost_n = np.array([d.stopped or d.tokens > c.max_tokens for d in drafts])
        if c.ask is None:
            logit_n = self.writer.verdicts([d.prompt for d in drafts], [d.last for d in drafts])
            lost_n |= np.isnan(logit_n)
        else:
            logit_n = np.full(len(drafts), np.nan)
            lost_n |= [not self.has_ended(d) for d in drafts]
        logit_n[lost_n] = np.nan
        behind = {i: text for i, lost in enumerate(lost_n) if (text := c.force if lost else c.ask) is not None}
        logit_n[[*behind]] = self.ask([(prompts[i], drafts[i], text) for i, text in behind.items()])
        self.stats.critiques += len(drafts)
        self.stats.tokens += (written := sum(d.tokens for d in drafts))
        self.stats.computed += written + self.writer.computed - read
        self.stats.no_verdict += int(lost_n.sum())
        self.stats.forced += int(lost_n.sum()) * (c.force is not None)
        for k, prefix in enumerate(prefixes):
            own = slice(k * len(votes), (k + 1) * len(votes))
            texts = [opening(self.format, len(prefix[1])) + d.text for d in drafts[own]] if c.next is not None else None
            self.known[prefix] = logit_n[own].tolist(), texts

    def has_ended(self, draft: Draft) -> bool:
        """Whether a critique that is asked for its verdict came to a text of `cut`, or without these to its end."""
        if draft.last is None or not self.format.critic.cut:
            return draft.last is None or draft.last.finish_reason == "eos"
        return cut_at(self.format, draft.text, draft.step) is not None

    def ask(self, asked: Sequence[tuple[str, Draft, str]]) -> np.ndarray:
        """Log-odds logit_n of verdicts by (prompt, critique, text put behind it); behind that the likelier one is put."""
        parts = [text.partition("{verdict}") for *_, text in asked]
        for (_, draft, _), (before, *_) in zip(asked, parts, strict=True):
            draft.text = draft.text[: cut_at(self.format, draft.text, draft.step)] + before
        logit_n = self.writer.after([prompt + draft.text for prompt, draft, _ in asked])
        for (_, draft, _), (*_, after), logit in zip(asked, parts, logit_n, strict=True):
            draft.text += (self.format.good if logit >= 0 else self.format.bad) + after
        return logit_n

    def write(self, drafts: Sequence[Draft], votes: Sequence[int]):
        """Writes the drafts to their end; where code is run, in rounds: each ends with a block of code and what it printed."""
        c, key, open_ = self.format.critic, jax.random.key(self.seed), list(range(len(drafts)))
        for left in reversed(range(c.rounds + 1 if c.execute else 1)):
            here = [drafts[i] for i in open_]
            numbers = [number_of(votes[i], drafts[i].prompt) for i in open_]
            found = self.writer.write([d.prompt for d in here], numbers, key)
            blocks = [CODE.search(new.text) if left else None for new in found]
            with concurrent.futures.ThreadPoolExecutor() as pool:
                printed = list(pool.map(lambda block: block and run_code(block[1]), blocks))
            for draft, new, block, output in zip(here, found, blocks, printed, strict=True):
                draft.last, draft.tokens, draft.stopped = new, draft.tokens + len(new.ids_L), bool(block)
                text = new.text
                if block:
                    self.stats.blocks, self.stats.failed = self.stats.blocks + 1, self.stats.failed + (not output[1])
                    text = text[: block.end()] + fill(c.output, output=output[0])
                    draft.prompt += text
                draft.text += text
            open_ = [i for i in open_ if drafts[i].stopped and drafts[i].tokens < c.max_tokens]
            if not open_:
                break


def none_wrong(logit_T: np.ndarray) -> np.ndarray:
    """Log-odds that no step up to each is wrong, by log-odds of each step given that those before it are right.

    uPRM (arXiv 2605.10158, eq. 6) scores a first error at j by S(j) = [j <= T] log p-_j + sum over t < j of log p+_t, j from 1 to T + 1.
    The exp S(j) sum to 1, and those behind t to the product of p+ up to t.
    """
    logp_T = np.cumsum(-np.logaddexp(0, -logit_T.astype(np.float64)))
    with np.errstate(divide="ignore"):
        return np.clip(logp_T - np.log(-np.expm1(logp_T)), -CERTAIN, CERTAIN).astype(np.float32)


def number_of(vote: int, prompt: str) -> int:
    """31 bits that a vote on a prompt draws with, so that it depends on nothing else."""
    return int.from_bytes(hashlib.sha256(json.dumps([vote, prompt]).encode()).digest()[:4], "big") >> 1


def combine(logit_n: np.ndarray, how: str) -> float:
    """Log-odds of the mean of P(good) over the votes; or by majority of the share of votes with P(good) >= .5, half a vote of
    each kind added, so that it is finite."""
    if how == "majority":
        good = int((logit_n >= 0).sum())
        return float(np.log(good + 0.5) - np.log(len(logit_n) - good + 0.5))
    total = lambda z_n: np.logaddexp.reduce(-np.logaddexp(0, -z_n))
    return float(total(logit_n) - total(-logit_n))
