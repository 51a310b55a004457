"""A Scorer that writes before it judges: a critique of each step, then P(good) by its two verdicts' logits.

A step's score depends only on the step and those before it. n votes are n critiques, rows of one batch.
Vote j of a prompt is a function of seed, j and the prompt, whatever is scored beside it. A critique without
a verdict within its tokens is counted and printed. The format's text `force` then asks for the verdict; a
format without it leaves the critique out, and gives a step without any vote P(good) = `unscored`.

Dimension key: N votes, n critiques.
"""

import concurrent.futures
import dataclasses
import hashlib
import json
from collections.abc import Sequence

import jax
import numpy as np

from prm_jax.checkpoints.folders import locate
from prm_jax.checkpoints.open import Loaded, VerdictHead
from prm_jax.checkpoints.tokenizer import load_tokenizer
from prm_jax.critics.prompts import cut_at, fill, prompt_text, verdict_at
from prm_jax.data.units import CERTAIN, UNITS
from prm_jax.encoding import Encoded
from prm_jax.formats import Format, added_bos, turn_end, verdicts
from prm_jax.generate.policies import Sampling, Server
from prm_jax.generate.sampling import as_policy
from prm_jax.launch.config import expect
from prm_jax.protocols import Continuation, Policy, Prefix, Rows
from prm_jax.scoring import HeadScorer

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


class Critic:
    """A language model that judges each step of a solution in its own words. To the policy that writes the
    critiques a prompt is the problem of a solution without steps. A subclass reads the log-odds of verdicts:
    `encode` makes of texts what its `read` takes, `cut` of a critique what stands before its last verdict."""

    unit, objective = "logit", "prm"
    bos = ""  # what prompts begin with and the policy puts there itself

    def __init__(self, policy: Policy, tokenizer, fmt: Format, seed: int):
        votes = fmt.critic.votes
        self.policy, self.tokenizer, self.format, self.seed = policy, tokenizer, fmt, seed
        self.name = f"{policy.name}, {fmt.name}, {votes} vote{'' if votes == 1 else 's'}"
        self.label_kind, self.model = fmt.label_kind, policy.model
        # Solutions after which scores are kept: critiques take long.
        self.chunk = max(1, fmt.critic.rows // votes)
        self.stats = CriticStats()
        self.known: dict[Prefix, list[Draft]] = {}  # a step's votes

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
        prompt = prompt_text(self.format, self.tokenizer, problem, steps, critiques)
        return Draft(prompt, len(steps), vote)

    def write(self, drafts: Sequence[Draft]):
        """Writes the critiques, each drawn with 31 bits of its vote and prompt alone, and reads the verdicts
        that they end with."""
        keys = [json.dumps([draft.vote, draft.prompt]).encode() for draft in drafts]
        numbers = [int.from_bytes(hashlib.sha256(key).digest()[:4], "big") >> 1 for key in keys]
        written = self.draw([draft.prompt for draft in drafts], numbers)
        for draft, new in zip(drafts, written, strict=True):
            draft.text = new.text
            self.stats.tokens += len(new.ids_L)
        if self.format.critic.verdict is None:  # each is asked; one that was cut off is counted
            self.stats.no_verdict += sum(cut_at(self.format, d.text, d.step) is None for d in drafts)
            return
        places = [self.cut(draft.prompt, new) for draft, new in zip(drafts, written, strict=True)]
        self.stats.no_verdict += places.count(None)
        for draft, logit in zip(drafts, self.log_odds(places), strict=True):
            draft.logit = logit

    def ask(self, drafts: Sequence[Draft]):
        """Reads the verdicts behind the text `force`; appends both to the critiques."""
        question, _, rest = self.format.critic.force.partition("{verdict}")
        for draft in drafts:
            draft.text = draft.text[: cut_at(self.format, draft.text, draft.step)] + question
        logit_n = self.log_odds(self.encode([d.prompt + d.text for d in drafts]))
        for draft, logit in zip(drafts, logit_n, strict=True):
            draft.logit = logit
            draft.text += (self.format.good if logit >= 0 else self.format.bad) + rest

    def draw(self, prompts: Sequence[str], numbers: Sequence[int]) -> list[Continuation]:
        """A continuation of each prompt, drawn by its number."""
        prefixes = [(prompt.removeprefix(self.bos), ()) for prompt in prompts]
        drawn = self.policy.extend(prefixes, 1, "end", jax.random.key(self.seed), numbers)
        return [written for (written,) in drawn]

    def log_odds(self, encoded: Sequence) -> np.ndarray:
        """Log-odds logit_n of a verdict behind each of what `encode` and `cut` give: a text, or one up to the
        verdict that it ends with, None (of log-odds NaN) where it has none. Equals are read once."""
        distinct = list(dict.fromkeys(x for x in encoded if x is not None))
        logits = self.read(distinct) if distinct else []
        expect(np.isfinite(logits).all(), f"{self.name}: log-odds of verdicts", logits, "numbers")
        logit = dict(zip(distinct, logits, strict=True))
        return np.array([logit.get(x, np.nan) for x in encoded])


def combine(logit_n: np.ndarray) -> float:
    """Log-odds of the mean P(good)."""
    log_good, log_bad = (np.logaddexp.reduce(-np.logaddexp(0, -z_n)) for z_n in (logit_n, -logit_n))
    return float(log_good - log_bad)


def how_to_write(fmt: Format) -> tuple[Format, Sampling]:
    """(the format of a critique as a solution, its sampling)."""
    c = fmt.critic
    text = Format("critique", separator="\n", bos=fmt.bos and not fmt.chat, chat=False)
    return text, Sampling(c.temperature, c.top_k, c.top_p, max(c.max_tokens, 1))


class LocalCritic(Critic):
    """A model of ours. A verdict's log-odds are the difference of its two logits after the critic's ids."""

    def __init__(
        self, loaded: Loaded, path: str, fmt: Format, rows: int, row_tokens: int | None, seed: int = 0
    ):
        text, sampling = how_to_write(fmt)
        loaded = dataclasses.replace(loaded, format=text)
        policy = as_policy(loaded, path, text, sampling, fmt.critic.rows)
        ends = *policy.eos_ids, *turn_end(fmt, loaded.tokenizer)  # the critic's turn; `text` knows of none
        super().__init__(dataclasses.replace(policy, eos_ids=ends), loaded.tokenizer, fmt, seed)
        self.pair = verdicts(fmt, loaded.tokenizer)
        reader = dataclasses.replace(loaded, model=VerdictHead(loaded.model, *self.pair), objective="prm")
        self.reader: HeadScorer = reader.scorer(rows, row_tokens)

    def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        return [tuple(ids_L.tolist()) for ids_L in self.policy.prefix_ids([(text, ()) for text in texts])]

    def cut(self, prompt: str, critique: Continuation) -> tuple[int, ...] | None:
        """The ids up to the token that is the critique's last verdict; None where no token is one."""
        start = verdict_at(self.format, critique.text)
        ids_L = critique.ids_L
        for n in reversed(np.flatnonzero(np.isin(ids_L, self.pair)).tolist()):
            before = self.tokenizer.decode(ids_L[:n], clean_up_tokenization_spaces=False)
            if start is not None and len(before) == start:
                return (*self.encode([prompt])[0], *ids_L[:n].tolist())
        return None

    def read(self, ids_n: Sequence[tuple[int, ...]]) -> list[float]:
        ends = [np.array([len(ids) - 1], np.int32) for ids in ids_n]
        encoded = [Encoded(np.array(ids, np.int32), end, 0) for ids, end in zip(ids_n, ends, strict=True)]
        return [float(logit_T[0]) for logit_T in self.reader.score_encoded(encoded)]


class RemoteCritic(Critic):
    """A model behind a server of the completions protocol, which scores prompt, critique and either
    verdict as one text (`echo`), so that the verdict's log-probability is exact."""

    def __init__(self, url: str, fmt: Format, seed: int = 0):
        from prm_jax.generate.remote import RemotePolicy  # not above: its client takes a second to load

        server = Server(model=fmt.critic.model)
        path = fmt.critic.tokenizer
        tokenizer = load_tokenizer(locate(path, weights=False)) if path else None
        policy = RemotePolicy(url, *how_to_write(fmt), fmt.critic.rows, server)
        policy.stop_at(turn_end(fmt, tokenizer))
        super().__init__(policy, tokenizer, fmt, seed)
        self.bos = added_bos(tokenizer) if tokenizer else ""

    def encode(self, texts: Sequence[str]) -> Sequence[str]:
        return texts

    def cut(self, prompt: str, critique: Continuation) -> str | None:
        start = verdict_at(self.format, critique.text)
        return None if start is None else prompt + critique.text[:start]

    def read(self, texts: Sequence[str]) -> list[float]:
        with concurrent.futures.ThreadPoolExecutor(self.policy.server.concurrency) as pool:
            good = pool.map(lambda text: self.logprob(text, self.format.good), texts)
            bad = pool.map(lambda text: self.logprob(text, self.format.bad), texts)
            return np.subtract(list(good), list(bad)).tolist()

    def logprob(self, text: str, verdict: str) -> float:
        """log p of the verdict after the text, in nats; InputError where the server does not say it."""

        def read(answer) -> float:
            logprobs = answer.choices[0].logprobs
            token, logp = logprobs.tokens[-1], logprobs.token_logprobs[-1]
            if token != verdict:
                raise ValueError(f"its last token is {token!r}, not {verdict!r} alone")
            return float(logp)

        fields = {"temperature": 1.0, "max_tokens": 0, "echo": True, "logprobs": 0}
        return self.policy.complete(text.removeprefix(self.bos) + verdict, read, **fields)
