"""A Scorer that writes before it judges: a critique of each step, then P(good) from the logits of its two verdicts.

A step's score depends only on the step and those before it. n votes are n critiques, rows of one batch. Vote j of a
prompt is a function of seed, j and the prompt, so n votes are n single runs (`first_vote`), whatever is scored beside
them. A critique without a verdict within its tokens is counted and printed. The format's text `force` then asks for the
verdict; a format without it leaves the critique out, and gives a step without any vote P(good) = `unscored`.

Dimension key: N votes, n prompts.
"""

import concurrent.futures
import dataclasses
import hashlib
import json
from collections.abc import Sequence

import jax
import numpy as np

from prm_jax.critics.execution import run_code, sandbox
from prm_jax.data.critiques import CODE, cut_at, fill, prompt_text
from prm_jax.data.units import CERTAIN, UNITS
from prm_jax.formats import Format
from prm_jax.protocols import Rows

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
    blocks: int = 0  # code blocks that were run
    failed: int = 0  # code blocks

    def summary(self) -> str:
        mean = self.tokens / max(self.critiques, 1)
        code = f", {self.blocks:,} blocks of code run, {self.failed:,} failed" if self.blocks else ""
        cost = f"{self.solutions:,} solutions by {self.critiques:,} critiques of {mean:.1f} tokens"
        verdicts = f"{self.no_verdict:,} without a verdict, {self.forced:,} of them forced"
        return f"criticised  {cost}, {verdicts}; {self.unscored:,} steps unscored{code}"


@dataclasses.dataclass
class Draft:
    """An unfinished critique."""

    prompt: str  # all text before the last round
    step: int  # number of the step that it judges
    text: str = ""
    last: object = None  # the Continuation of the last round
    tokens: int = 0
    stopped: bool = False  # at a block of code, and not continued


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
        if self.format.critic.execute:
            sandbox()  # here, not in a thread that runs code, it is looked for and the line said
        n = self.format.critic.votes
        self.name = f"{self.writer.name}, {self.format.name}, {n} vote{'s' * (n > 1)}"
        self.label_kind, self.model = self.format.label_kind, self.writer.model
        self.chunk = max(
            1, self.format.critic.rows // n
        )  # solutions after which scores are kept: critiques take long

    @property
    def about(self) -> dict:
        """The critic's part of a results file."""
        return {"critic": {"format": dataclasses.asdict(self.format), **vars(self.stats)}}

    def score(self, rows: Rows) -> list[np.ndarray]:
        critic, rows = self.format.critic, [(problem, tuple(steps)) for problem, steps in rows]
        if len(self.known) > KEPT:
            self.known.clear()
        prefixes = dict.fromkeys(
            (problem, steps[: t + 1]) for problem, steps in rows for t in range(len(steps))
        )
        new = [prefix for prefix in prefixes if prefix not in self.known]
        before = dataclasses.replace(self.stats)
        # In a conversation the prompt contains the critiques of the steps before.
        batches = [new]
        if critic.next is not None:
            batches = [[p for p in new if len(p[1]) == n] for n in sorted({len(steps) for _, steps in new})]
        for prefixes_together in batches:
            self.judge(prefixes_together)
        self.stats.solutions += len(rows)
        if (lost := self.stats.no_verdict) and not before.no_verdict:  # said once; the summary counts all
            critiques = self.stats.critiques - before.critiques
            outcome = "left out of the votes" if critic.force is None else "forced (format.critic.force)"
            limit = f"came to no verdict within {critic.max_tokens:,} tokens"
            print(f"critic      {lost:,} of {critiques:,} critiques {limit}: {outcome}")
        logit = {prefix: self.decide(self.known[prefix][0]) for prefix in prefixes}
        return [
            np.array([logit[p, steps[: t + 1]] for t in range(len(steps))], np.float32) for p, steps in rows
        ]

    def decide(self, logit_N: Sequence[float]) -> float:
        """Log-odds of a step from its votes."""
        c = self.format.critic
        logit_n = np.array([x for x in logit_N if not np.isnan(x)]) / c.decision_temperature
        if len(logit_n):
            return combine(logit_n, c.vote)
        self.stats.unscored += 1
        return float(np.clip(UNITS["probability"].log_odds(c.unscored), -CERTAIN, CERTAIN))

    def judge(self, prefixes: Sequence[tuple[str, tuple[str, ...]]]):
        """Puts the votes of each prefix into `known`."""
        c, votes = self.format.critic, range(self.first_vote, self.first_vote + self.format.critic.votes)
        if not prefixes:
            return
        drafts = []
        for problem, steps in prefixes:
            for i in range(len(votes)):
                written = [
                    self.known[problem, steps[:t]][1][i] for t in range(1, len(steps)) if c.next is not None
                ]
                prompt = prompt_text(self.format, self.writer.tokenizer, problem, steps, written)
                drafts.append(Draft(prompt, len(steps)))
        prompts = [d.prompt for d in drafts]
        if c.max_tokens:
            self.write(drafts, [*votes] * len(prefixes))
        computed_before = self.writer.computed
        lost_n = np.array([d.stopped or d.tokens > c.max_tokens for d in drafts])
        if c.ask is None:
            logit_n = self.writer.verdicts([d.prompt for d in drafts], [d.last for d in drafts])
            lost_n |= np.isnan(logit_n)
        else:
            logit_n = np.full(len(drafts), np.nan)
            lost_n |= [not self.has_ended(d) for d in drafts]
        logit_n[lost_n] = np.nan
        questions = {
            i: text for i, lost in enumerate(lost_n) if (text := c.force if lost else c.ask) is not None
        }
        logit_n[[*questions]] = self.ask([(prompts[i], drafts[i], text) for i, text in questions.items()])
        self.stats.critiques += len(drafts)
        self.stats.tokens += (written := sum(d.tokens for d in drafts))
        self.stats.computed += written + self.writer.computed - computed_before
        self.stats.no_verdict += int(lost_n.sum())
        self.stats.forced += int(lost_n.sum()) * (c.force is not None)
        for k, prefix in enumerate(prefixes):
            part = slice(k * len(votes), (k + 1) * len(votes))
            texts = [fill(c.opening, n=d.step) + d.text for d in drafts[part] if c.next is not None]
            self.known[prefix] = logit_n[part].tolist(), texts

    def has_ended(self, draft: Draft) -> bool:
        """Whether a critique reached a text of `cut` or, in a format without these, its end; then it is asked."""
        if draft.last is None or not self.format.critic.cut:
            return draft.last is None or draft.last.finish_reason == "eos"
        return cut_at(self.format, draft.text, draft.step) is not None

    def ask(self, questions: Sequence[tuple[str, Draft, str]]) -> np.ndarray:
        """Log-odds logit_n of verdicts; appends each question and its likelier verdict to the critique."""
        parts = [question.partition("{verdict}") for *_, question in questions]
        for (_, draft, _), (before, *_) in zip(questions, parts, strict=True):
            draft.text = draft.text[: cut_at(self.format, draft.text, draft.step)] + before
        logit_n = self.writer.after([prompt + draft.text for prompt, draft, _ in questions])
        for (_, draft, _), (*_, after), logit in zip(questions, parts, logit_n, strict=True):
            draft.text += (self.format.good if logit >= 0 else self.format.bad) + after
        return logit_n

    def write(self, drafts: Sequence[Draft], votes: Sequence[int]):
        """Writes the drafts to their end. Where code is run, each round ends with a block of code and its output."""
        c, key, unfinished = (
            self.format.critic,
            jax.random.key(self.seed),
            list(zip(drafts, votes, strict=True)),
        )
        for rounds_left in reversed(range(c.rounds + 1 if c.execute else 1)):
            # A vote is drawn with 31 bits of its number and prompt, so that it depends on nothing else.
            digests = [
                hashlib.sha256(json.dumps([vote, d.prompt]).encode()).digest() for d, vote in unfinished
            ]
            numbers = [int.from_bytes(digest[:4], "big") >> 1 for digest in digests]
            continuations = self.writer.write([draft.prompt for draft, _ in unfinished], numbers, key)
            blocks = [CODE.search(new.text) if rounds_left else None for new in continuations]
            with concurrent.futures.ThreadPoolExecutor() as pool:
                outputs = list(pool.map(lambda block: block and run_code(block[1]), blocks))
            for (draft, _), new, block, output in zip(
                unfinished, continuations, blocks, outputs, strict=True
            ):
                draft.last, draft.tokens, draft.stopped = new, draft.tokens + len(new.ids_L), bool(block)
                text = new.text
                if block:
                    self.stats.blocks, self.stats.failed = (
                        self.stats.blocks + 1,
                        self.stats.failed + (not output[1]),
                    )
                    text = text[: block.end()] + fill(c.output, output=output[0])
                    draft.prompt += text
                draft.text += text
            unfinished = [(d, vote) for d, vote in unfinished if d.stopped and d.tokens < c.max_tokens]
            if not unfinished:
                break


def combine(logit_n: np.ndarray, rule: str) -> float:
    """Log-odds of the mean P(good), or of the share of votes with P(good) >= .5, half a vote of each kind added."""
    if rule == "majority":
        good = int((logit_n >= 0).sum())
        return float(np.log(good + 0.5) - np.log(len(logit_n) - good + 0.5))
    log_good, log_bad = (np.logaddexp.reduce(-np.logaddexp(0, -z_n)) for z_n in (logit_n, -logit_n))
    return float(log_good - log_bad)
