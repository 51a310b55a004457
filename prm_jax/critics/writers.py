"""Language models that write critiques and give the log-odds of verdicts: one of ours, or one behind a server."""

import concurrent.futures
import dataclasses
from collections.abc import Sequence

import numpy as np

from prm_jax.checkpoints import hf
from prm_jax.checkpoints.open import Loaded
from prm_jax.checkpoints.released import TwoTokenHead
from prm_jax.data.critiques import verdict_at
from prm_jax.formats import Encoded, Format, verdicts
from prm_jax.generate.policies import Sampling, Server
from prm_jax.generate.sampling import as_policy
from prm_jax.launch.config import expect
from prm_jax.protocols import Continuation
from prm_jax.scoring import HeadScorer


def sampling_of(fmt: Format) -> Sampling:
    """The distribution that critiques are drawn from."""
    c = fmt.critic
    return Sampling(c.temperature, c.top_k, c.top_p, max(c.max_tokens, 1))


def as_text(fmt: Format) -> Format:
    """The format in which a whole prompt goes to a policy, as the problem of a solution without steps."""
    return Format("critique", separator="\n", bos=fmt.bos and not fmt.chat)


class LocalWriter:
    """A model of ours. A verdict's log-odds are the difference of its two logits after the critic's ids."""

    def __init__(self, loaded: Loaded, path: str, fmt: Format, rows: int, row_tokens: int | None):
        text = as_text(fmt)
        loaded = dataclasses.replace(loaded, format=text)
        self.format, self.tokenizer, self.name = fmt, loaded.tokenizer, loaded.name
        self.policy = as_policy(loaded, path, text, sampling_of(fmt), fmt.critic.rows)
        self.pair = verdicts(fmt, loaded.tokenizer)
        model = TwoTokenHead(loaded.model, *self.pair)
        self.judge = HeadScorer(
            model=model,
            tokenizer=loaded.tokenizer,
            format=text,
            label_kind="unknown",
            name=self.name,
            batch_rows=rows,
            row_tokens=row_tokens,
        )
        self.model = loaded.model

    @property
    def computed(self) -> int:
        """The number of tokens read for verdicts so far."""
        return self.judge.stats.computed

    def write(self, prompts: Sequence[str], numbers: Sequence[int], key) -> list[Continuation]:
        """A continuation of each prompt, drawn by its number."""
        return [
            c for (c,) in self.policy.extend([(prompt, ()) for prompt in prompts], 1, "end", key, numbers)
        ]

    def verdicts(self, prompts: Sequence[str], critiques: Sequence[Continuation]) -> np.ndarray:
        """Log-odds logit_n of the verdicts that the critiques end with, NaN where there is none."""
        prompt_ids = self.policy.prefix_ids([(prompt, ()) for prompt in prompts])
        ids_n = []
        for ids_L, c in zip(prompt_ids, critiques, strict=True):
            n = self.verdict_token(c.ids_L, c.text)
            ids_n.append(None if n is None else (*ids_L.tolist(), *c.ids_L[:n].tolist()))
        return self.read(ids_n)

    def after(self, texts: Sequence[str]) -> np.ndarray:
        """Log-odds logit_n of a verdict right behind each text."""
        return self.read(
            [tuple(ids_L.tolist()) for ids_L in self.policy.prefix_ids([(text, ()) for text in texts])]
        )

    def read(self, ids_n: Sequence[tuple[int, ...] | None]) -> np.ndarray:
        """Log-odds logit_n of a verdict behind the ids, NaN for None; equal ids are read once."""
        distinct = list(dict.fromkeys(ids for ids in ids_n if ids is not None))
        encoded = [
            Encoded(np.array(ids, np.int32), np.array([len(ids) - 1], np.int32), 0) for ids in distinct
        ]
        logits = [float(logit_T[0]) for logit_T in self.judge.score_encoded(encoded)] if encoded else []
        expect(
            np.isfinite(logits).all(),
            f"{self.name}: log-odds of verdicts",
            "some that are not finite",
            "numbers",
        )
        logit = dict(zip(distinct, logits, strict=True))
        return np.array([logit.get(ids, np.nan) for ids in ids_n])

    def verdict_token(self, ids_L: np.ndarray, text: str) -> int | None:
        """Index of the token that is the critique's last verdict; None where no token is one."""
        start = verdict_at(self.format, text)
        for n in reversed(np.flatnonzero(np.isin(ids_L, self.pair)).tolist()) if start is not None else ():
            if len(self.tokenizer.decode(ids_L[:n], clean_up_tokenization_spaces=False)) == start:
                return n
        return None


class RemoteWriter:
    """A model behind a server of the completions protocol, which scores prompt, critique and either verdict as one text
    (`echo`), so that the verdict's log-probability is exact."""

    computed = 0  # a server does not say what it reads

    def __init__(self, url: str, fmt: Format):
        from prm_jax.generate.remote import RemotePolicy  # not above: its client takes a second to load

        server = Server(model=fmt.critic.model)
        self.policy = RemotePolicy(url, as_text(fmt), sampling_of(fmt), fmt.critic.rows, server)
        self.format, self.name, self.model = fmt, self.policy.name, self.policy.model
        path = fmt.critic.tokenizer
        self.tokenizer = path and hf.load_tokenizer(hf.locate(path))
        # The chat template writes it, and the server would add another.
        self.bos = (self.tokenizer and self.tokenizer.bos_token) or ""

    def write(self, prompts: Sequence[str], numbers: Sequence[int], key) -> list[Continuation]:
        prefixes = [(prompt.removeprefix(self.bos), ()) for prompt in prompts]
        return [c for (c,) in self.policy.extend(prefixes, 1, "end", key, numbers)]

    def verdicts(self, prompts: Sequence[str], critiques: Sequence[Continuation]) -> np.ndarray:
        starts = [verdict_at(self.format, c.text) for c in critiques]
        texts = zip(prompts, critiques, starts, strict=True)
        return self.after([None if start is None else prompt + c.text[:start] for prompt, c, start in texts])

    def after(self, texts: Sequence[str | None]) -> np.ndarray:
        distinct = list(dict.fromkeys(text for text in texts if text is not None))
        pairs = [(text, verdict) for text in distinct for verdict in (self.format.good, self.format.bad)]
        with concurrent.futures.ThreadPoolExecutor(self.policy.concurrency) as pool:
            logp = list(pool.map(self.logprob, *zip(*pairs, strict=True)))
        logit = dict(zip(distinct, np.subtract(logp[::2], logp[1::2]), strict=True))
        return np.array([logit.get(text, np.nan) for text in texts])

    def logprob(self, text: str, verdict: str) -> float:
        """log p of the verdict after the text, in nats; InputError where the server does not say, or fails for good."""
        text = text.removeprefix(self.bos)

        def read(answer) -> float:
            logprobs = answer.choices[0].logprobs
            token, logp = logprobs.tokens[-1], logprobs.token_logprobs[-1]
            if token != verdict:
                raise ValueError(f"its last token is {token!r}, not {verdict!r} alone")
            return float(logp)

        fields = {"temperature": 1.0, "max_tokens": 0, "echo": True, "logprobs": 0}
        return self.policy.complete(text + verdict, read, **fields)
