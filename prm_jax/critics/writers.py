"""Language models that write critiques and give the log-odds of verdicts: ours, or behind a server."""

import concurrent.futures
import dataclasses
from collections.abc import Sequence

import numpy as np

from prm_jax.checkpoints.folders import locate
from prm_jax.checkpoints.open import Loaded, TwoTokenHead
from prm_jax.checkpoints.tokenizer import load_tokenizer
from prm_jax.critics.prompts import verdict_at
from prm_jax.encoding import Encoded
from prm_jax.formats import Format, added_bos, turn_end, verdicts
from prm_jax.generate.policies import Sampling, Server
from prm_jax.generate.sampling import as_policy
from prm_jax.launch.config import expect
from prm_jax.protocols import Continuation
from prm_jax.scoring import HeadScorer


class Writer:
    """A policy that writes critiques, and its model's log-odds of verdicts behind them. A prompt goes to it
    as the problem of a solution without steps."""

    def __init__(self, fmt: Format):
        c = fmt.critic
        self.format = fmt
        self.text = Format("critique", separator="\n", bos=fmt.bos and not fmt.chat, chat=False)
        self.sampling = Sampling(c.temperature, c.top_k, c.top_p, max(c.max_tokens, 1))

    def write(self, prompts: Sequence[str], numbers: Sequence[int], key) -> list[Continuation]:
        """A continuation of each prompt, drawn by its number."""
        prefixes = [(prompt, ()) for prompt in prompts]
        return [written for (written,) in self.policy.extend(prefixes, 1, "end", key, numbers)]

    def log_odds(self, encoded: Sequence) -> np.ndarray:
        """Log-odds logit_n of a verdict behind each of what `encode` and `cut` give: a text, or one up to the
        verdict that it ends with, None (of log-odds NaN) where it has none. Equals are read once."""
        distinct = list(dict.fromkeys(x for x in encoded if x is not None))
        logits = self.read(distinct) if distinct else []
        expect(np.isfinite(logits).all(), f"{self.name}: log-odds of verdicts", logits, "numbers")
        logit = dict(zip(distinct, logits, strict=True))
        return np.array([logit.get(x, np.nan) for x in encoded])


class LocalWriter(Writer):
    """A model of ours. A verdict's log-odds are the difference of its two logits after the critic's ids."""

    def __init__(self, loaded: Loaded, path: str, fmt: Format, rows: int, row_tokens: int | None):
        super().__init__(fmt)
        self.tokenizer, self.name, self.model = loaded.tokenizer, loaded.name, loaded.model
        self.pair = verdicts(fmt, self.tokenizer)
        loaded = dataclasses.replace(loaded, format=self.text)
        policy = as_policy(loaded, path, self.text, self.sampling, fmt.critic.rows)
        ends = *policy.eos_ids, *turn_end(fmt, self.tokenizer)  # the critic's turn; `text` knows of none
        self.policy = dataclasses.replace(policy, eos_ids=ends)
        judge = dataclasses.replace(loaded, model=TwoTokenHead(self.model, *self.pair), objective="prm")
        self.judge: HeadScorer = judge.scorer(rows, row_tokens)

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
        return [float(logit_T[0]) for logit_T in self.judge.score_encoded(encoded)]


class RemoteWriter(Writer):
    """A model behind a server of the completions protocol, which scores prompt, critique and either
    verdict as one text (`echo`), so that the verdict's log-probability is exact."""

    def __init__(self, url: str, fmt: Format):
        from prm_jax.generate.remote import RemotePolicy  # not above: its client takes a second to load

        super().__init__(fmt)
        server = Server(model=fmt.critic.model)
        path = fmt.critic.tokenizer
        self.policy = RemotePolicy(url, self.text, self.sampling, fmt.critic.rows, server)
        self.name, self.model = self.policy.name, self.policy.model
        self.tokenizer = load_tokenizer(locate(path, weights=False)) if path else None
        self.bos = added_bos(self.tokenizer) if self.tokenizer else ""
        self.policy.stop_at(turn_end(fmt, self.tokenizer))

    def write(self, prompts: Sequence[str], numbers: Sequence[int], key) -> list[Continuation]:
        return super().write([prompt.removeprefix(self.bos) for prompt in prompts], numbers, key)

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
