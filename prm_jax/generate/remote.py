"""A policy behind a server of the OpenAI completions protocol: vLLM, SGLang and others.

Commands take it as checkpoint=http://HOST:PORT; a server that asks for a key gets OPENAI_API_KEY. Each sample
is one request, with a seed of its own, so that a stopped pool can be resumed. Prompts are sent as text, so
the server's tokenizer may fuse what training keeps apart (`.` and a line end), as it does in texts that the
model writes. A chat template is applied here, since a server's chat endpoint cannot continue a solution's
first steps exactly. Ids are -1 and log-probabilities NaN where a server gives none."""

import concurrent.futures
import dataclasses
import itertools
import os
import re
import time
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np
import openai

from prm_jax import InputError
from prm_jax.checkpoints.folders import locate
from prm_jax.checkpoints.tokenizer import load_tokenizer
from prm_jax.data.steps import step_sums
from prm_jax.encoding import numbered
from prm_jax.formats import Format, added_bos, opening, policy_format, turn_end
from prm_jax.generate import policies
from prm_jax.generate.policies import Sampling, SamplingStats, Served, Server, with_thought
from prm_jax.launch.config import expect
from prm_jax.launch.progress import progress
from prm_jax.protocols import Continuation, Rows

MAX_BLANK = 8  # blank lines in a row, after which a step is cut
# The client's errors, and those of reading an answer that is not in the protocol's form.
FAILURES = (openai.OpenAIError, ValueError, TypeError, AttributeError, LookupError)


def sampling_fields(kind: str, s: Sampling) -> dict:
    """All fields of the distribution: a server takes what is missing from generation_config.json."""
    fields = {"max_tokens": s.max_tokens, "temperature": s.temperature, "top_p": s.top_p}
    if kind == "other":
        expect(s.top_k is None, "sampling.top_k", s.top_k, "null: it is no field of the protocol")
        return fields
    extra = {"top_k": s.top_k or -1, "min_p": 0.0, "repetition_penalty": 1.0}
    if kind == "vllm":
        extra["return_token_ids"] = True
    if kind == "vllm" or s.temperature == 1:  # SGLang's are those of the tempered distribution
        fields["logprobs"] = 0
    return fields | {"extra_body": extra}


@jax.jit
def seeds(key, prefix_B, sample_B):
    """A seed of 31 bits for each sample, from the key with which our own policy draws it."""
    return jax.vmap(jax.random.bits)(policies.sample_keys(key, prefix_B, sample_B)) >> 1


def open_client(url: str, server: Server) -> openai.OpenAI:
    """The client, which repeats failed requests (lost, timed out, 408, 409, 429, 5xx) with growing pauses."""
    base = url if urllib.parse.urlsplit(url).path.strip("/") else urllib.parse.urljoin(url, "/v1")
    key = os.environ.get("OPENAI_API_KEY", "none")
    return openai.OpenAI(base_url=base, api_key=key, max_retries=server.retries, timeout=server.timeout)


@dataclasses.dataclass
class RemotePolicy:
    """A language model behind a server that continues solutions, as sampling.Policy does."""

    url: str
    format: Format
    sampling: Sampling
    batch_rows: int = 64  # sets the size of a pool's chunks; requests are not limited by it
    server: Server = dataclasses.field(default_factory=Server)
    stats: SamplingStats = dataclasses.field(default_factory=SamplingStats)
    client: openai.OpenAI | None = None  # opened once; dataclasses.replace keeps these three
    model: Served | None = None
    tokenizer: object = None  # its chat template writes the prompts
    dtype = "unknown: the server's"

    def __post_init__(self):
        policies.check_format(self.format)
        is_text = self.format.name != "auto" and "{pad}" not in self.format.prefix + self.format.separator
        expect(is_text, "format", self.format.name, "a convention that is text, without a tokenizer")
        self.client = self.client or open_client(self.url, self.server)
        self.model = self.model or self.find_model()
        self.tokenizer = self.tokenizer or self.open_tokenizer()
        if self.tokenizer:
            self.format = policy_format(self.format, self.tokenizer)
        hint = "false or null, unless server.tokenizer names whose chat template it is"
        expect(self.tokenizer or not self.format.chat, "format.chat", self.format.chat, hint)
        self.name = f"{self.model.name} at {self.url}"
        self.fields = sampling_fields(self.model.server, self.sampling)
        self.stop_at(turn_end(self.format, self.tokenizer))

    def stop_at(self, ends: set[int]):
        """Ends texts with these ids, too, where the server takes ids."""
        if ends and self.model.server != "other":
            self.fields["extra_body"]["stop_token_ids"] = sorted(ends)

    def find_model(self) -> Served:
        """The served model, by the server's list of them; vLLM and SGLang say there that they own it."""
        try:
            owner_of = {row.id: row.owned_by for row in self.client.models.list()}
        except FAILURES as error:
            raise InputError(f"{self.url}: no server of the completions protocol: {reason(error)}") from None
        chosen = self.server.model or (next(iter(owner_of)) if len(owner_of) == 1 else None)
        expect(chosen in owner_of, "server.model", chosen, f"a name of {self.url}: {list(owner_of)}")
        owner = owner_of[chosen]
        return Served(chosen, owner if owner in ("vllm", "sglang") else "other")

    def open_tokenizer(self):
        """The tokenizer of server.tokenizer, else of the model's name; None without a chat template."""
        name = self.server.tokenizer or self.model.name
        is_named = self.server.tokenizer or Path(name).is_dir() or re.fullmatch(r"[\w.-]+/[\w.-]+", name)
        if self.format.chat is False or not is_named:
            return None
        try:
            return load_tokenizer(locate(name, weights=False))
        except InputError as error:
            hint = "server.tokenizer=FOLDER names it, format.chat=false does without its chat template"
            raise InputError(f"server.tokenizer: {error}; {hint}") from None

    def prompt(self, problem: str, steps: Sequence[str] = ()) -> str:
        """The text before the next step; the server puts its tokenizer's beginning before it."""
        f = self.format
        text = opening(f, self.tokenizer, problem, tuple(steps))
        if f.chat:
            text = text.removeprefix(added_bos(self.tokenizer))
        text += "".join(step + f.separator for step in numbered(f, tuple(steps)))
        expect(text, f"prefix {problem[:60]!r}", text, "a text of at least one token")
        return text

    def extend(self, prefixes: Rows, n: int, stop: str, key, numbers=None) -> list[list[Continuation]]:
        """n continuations of each (problem, steps so far), drawn as protocols.Policy says. InputError
        where a request fails for good; then none is returned or counted."""
        start = time.perf_counter()
        size = len(prefixes) * n
        prompts = [self.prompt(*prefix) for prefix in prefixes]
        number_B = np.repeat(range(len(prefixes)) if numbers is None else numbers, n)
        seed_B = np.asarray(seeds(key, number_B, np.tile(np.arange(n), len(prefixes)))).tolist()
        prompt_B = [prompt for prompt in prompts for _ in range(n)]
        # An error cancels what waits.
        with concurrent.futures.ThreadPoolExecutor(self.server.concurrency) as pool:
            drawn = pool.map(self.ask, prompt_B, seed_B, itertools.repeat(stop))
            samples = list(progress("requests", size, "sample", iterable=drawn, delay=10, leave=False))
        rest = iter(samples)
        groups = [[with_thought(self, prefix, next(rest)) for _ in range(n)] for prefix in prefixes]
        self.stats.prompts += len(set(prompts))
        self.stats.continuations += size
        self.stats.tokens += sum(len(c.ids_L) for c in samples)
        self.stats.seconds += time.perf_counter() - start
        return groups

    def ask(self, prompt: str, seed: int, stop: str) -> Continuation:
        """One sample; InputError where there is none. A blank line is no step: what follows is asked, too."""
        fields = self.fields | ({"stop": [self.format.separator]} if stop == "step" else {})
        parts: list[Continuation] = []
        text = ""
        is_blank = True
        while is_blank and len(parts) < MAX_BLANK and fields["max_tokens"] > 0:
            part = self.complete(prompt + text, lambda x: self.continuation(x, stop), seed=seed, **fields)
            parts.append(part)
            text += part.text
            fields["max_tokens"] -= len(part.ids_L)
            is_blank = part.finish_reason == "stop" and not part.text.strip()
        ids_L = np.concatenate([part.ids_L for part in parts])
        logp_L = np.concatenate([part.logp_L for part in parts])
        logp_T = part.logp_T if len(parts) == 1 else None
        return Continuation(ids_L, logp_L, text, "length" if is_blank else part.finish_reason, logp_T)

    def complete(self, prompt: str, read: Callable, **fields):
        """read(answer) of one completion; InputError where the request or the reading fails."""
        try:
            return read(self.client.completions.create(model=self.model.name, prompt=prompt, **fields))
        except FAILURES as error:
            raise InputError(f"{self.url}: no completion of {prompt[-60:]!r}: {reason(error)}") from None

    def continuation(self, answer, stop: str) -> Continuation:
        """The one choice of an answer; ValueError where neither the model nor the limit ended it."""
        (choice,), n = answer.choices, answer.usage.completion_tokens
        text, finish = self.ending(choice, stop)
        logp, tokens = [], []
        if choice.logprobs:
            logp = choice.logprobs.token_logprobs
            tokens = choice.logprobs.tokens or []
        is_known = len(logp) == n and None not in logp
        logp_L = np.array(logp if is_known else [np.nan] * n, np.float32)
        # What follows the text has no text; a server that names its tokens otherwise has no logp_T.
        starts = itertools.accumulate(map(len, tokens), initial=0)
        tokens = [token if start < len(text) else "" for token, start in zip(tokens, starts)]
        is_split = is_known and "".join(tokens) == text
        logp_T = step_sums(self.format, tokens, logp_L, text) if is_split else None
        ids = getattr(choice, "token_ids", None) or [-1] * n
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half a pair has no UTF-8
        return Continuation(np.array(ids, np.int32), logp_L, text, finish, logp_T)

    def ending(self, choice, stop: str) -> tuple[str, str]:
        """(text, finish_reason). vLLM (stop_reason) and SGLang (matched_stop) cut the separator off and say
        so; it ends a step's text, and what follows it is cut off: the rest of the same token."""
        text, separator = choice.text, self.format.separator
        if choice.finish_reason not in ("stop", "length"):
            raise ValueError(f"finish_reason is {choice.finish_reason!r}, expected stop or length")
        if stop == "step" and separator in text:
            return text[: text.index(separator) + len(separator)], "stop"
        if choice.finish_reason == "length" or stop == "end":
            return text, "length" if choice.finish_reason == "length" else "eos"
        said = [name for name in ("stop_reason", "matched_stop") if name in choice.model_extra]
        if not said:
            raise ValueError("no stop_reason or matched_stop says whether the step or the text ended")
        is_step = separator in [choice.model_extra[name] for name in said]
        return (text + separator, "stop") if is_step else (text, "eos")


def reason(error: Exception) -> str:
    """The cause of a failure in one short line, in the server's words where it sent any."""
    why = str(error) if error.__cause__ is None else f"{error} ({error.__cause__})"
    if isinstance(error, openai.APIStatusError):
        why = f"status {error.status_code}: {error.response.text}"
    return " ".join(why.split())[:300]
