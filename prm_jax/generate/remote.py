"""A policy behind a server of the OpenAI completions protocol: vLLM, SGLang, `transformers serve`.

Commands take it as checkpoint=http://HOST:PORT; it needs `pip install openai`, and some servers OPENAI_API_KEY.

Each sample is one request. Its seed depends on the key, its prefix's number and its own, so that a stopped pool can be
resumed. Prompts are sent as text, so the server's tokenizer may fuse what training keeps apart (`.` and a line end), as
it does in texts that the model writes. Ids are -1 and log-probabilities NaN where a server gives none.

A server's finish_reason "stop" means the end of a step or of the text. vLLM (stop_reason) and SGLang (matched_stop) say
which and cut the separator off; transformers leaves it in the text, and reports a text that ends with the last allowed
token as cut. An answer that does neither is an error.
"""

import concurrent.futures
import dataclasses
import functools
import importlib
import itertools
import json
import os
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import numpy as np

from prm_jax import InputError
from prm_jax.data.rows import writable
from prm_jax.data.steps import step_sums
from prm_jax.formats import Format, numbered
from prm_jax.generate.policies import Sampling, SamplingStats, check_format, prefix_numbers, sample_keys
from prm_jax.launch import cli
from prm_jax.launch.config import Count, Natural, Positive, expect
from prm_jax.protocols import Continuation, Prefix


@dataclasses.dataclass(frozen=True)
class Server:  # settings of requests; conf/sampling.yaml says what each key means
    model: str | None = None
    concurrency: Count = 64
    timeout: Positive = 600.0
    retries: Natural = 4


AS_USUAL = Server()
# Bytes of a reply at most: of any, for each byte of the request (whose tokens `echo` describes), for each new token.
MOST, PER_BYTE, PER_TOKEN = 1 << 22, 100, 1000


class Served(NamedTuple):
    """The model that a server names; its weights are not known."""

    name: str
    server: Literal["vllm", "sglang", "transformers", "other"]


def sampling_fields(kind: str, s: Sampling) -> dict:
    """The request's fields of the distribution, all of them: servers take missing ones from generation_config.json."""
    fields = {"max_tokens": s.max_tokens, "temperature": s.temperature, "top_p": s.top_p}
    if kind in ("vllm", "sglang"):
        fields |= {"top_k": s.top_k or -1, "min_p": 0.0, "repetition_penalty": 1.0}
        # SGLang gives log-probabilities of the tempered distribution.
        fields |= {"logprobs": 0} if kind == "vllm" or s.temperature == 1 else {}
        return fields | ({"return_token_ids": True} if kind == "vllm" else {})
    if kind == "transformers":  # greedy without do_sample, whatever the temperature
        config = {
            "do_sample": s.temperature > 0,
            "top_k": s.top_k or 0,
            "repetition_penalty": 1.0,
            "min_p": 0.0,
        }
        return fields | {"generation_config": json.dumps(config)}
    expect(s.top_k is None, "sampling.top_k", s.top_k, "null: it is no field of the completions protocol")
    return fields


@jax.jit
def seeds(key, prefix_B, sample_B):
    """A seed of 31 bits for each sample, from the key with which our own policy draws it."""
    return jax.vmap(jax.random.bits)(sample_keys(key, prefix_B, sample_B)) >> 1


def open_client(url: str, server: Server, max_tokens: int):
    """The client. It repeats requests after a lost connection, a time-out, 408, 409, 429, 5xx, with growing pauses. A
    whole reply has server.timeout seconds, not only each read of it, and a limit of bytes."""
    try:
        import openai
    except ImportError:
        raise InputError(
            f"{url}: a policy behind a server needs the package openai: pip install openai"
        ) from None
    reply = (
        threading.local()
    )  # of the request that this thread has sent: its end, and the bytes that it may yet have

    def begin(request):
        reply.end = time.monotonic() + server.timeout
        reply.left = MOST + PER_BYTE * len(request.content) + PER_TOKEN * max_tokens
        request.extensions["trace"] = connected

    def connected(event, info):  # the HTTP library reports each step of a request
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            stream = info["return_value"]
            errors = importlib.import_module(type(stream).__module__.partition(".")[0])
            stream.read = functools.partial(read, stream.read, errors)

    def read(read, errors, n, timeout=None):
        seconds = reply.end - time.monotonic()
        if seconds <= 0:
            raise errors.ReadTimeout("timed out")
        data = read(n, min(timeout or seconds, seconds))
        reply.left -= len(data)
        if reply.left < 0:
            raise errors.ReadError("its reply is longer than any to this request")
        return data

    def refuse_packed(response):  # a small reply may unpack to a large one
        if "content-encoding" in response.headers:
            raise ValueError("sent a packed reply, expected a plain one, as it was asked for")

    base = url if urllib.parse.urlsplit(url).path.strip("/") else urllib.parse.urljoin(url, "/v1")
    key = os.environ.get("OPENAI_API_KEY", "none")
    http = openai.DefaultHttpxClient(event_hooks={"request": [begin], "response": [refuse_packed]})
    options = {"max_retries": server.retries, "timeout": server.timeout, "http_client": http}
    return openai.OpenAI(
        base_url=base, api_key=key, default_headers={"Accept-Encoding": "identity"}, **options
    )


def are_numbers(values, kinds: tuple[type, ...], low: float, high: float) -> bool:
    """Whether it is a list of numbers of these types, between the two; true and false are none."""
    return isinstance(values, list) and all(type(x) in kinds and low <= x <= high for x in values)


@dataclasses.dataclass
class RemotePolicy:
    """A language model behind a server that continues solutions, as sampling.Policy does."""

    url: str
    format: Format
    sampling: Sampling
    batch_rows: int = 64  # sets the size of a pool's chunks; requests are not limited by it
    server: Server = AS_USUAL
    stats: SamplingStats = dataclasses.field(default_factory=SamplingStats)
    client: object = None  # opened once; dataclasses.replace keeps client and model
    model: Served | None = None
    dtype = "unknown: the server's"

    def __post_init__(self):
        check_format(self.format)
        expect(self.format.name != "auto" and "{pad}" not in self.format.prefix + self.format.separator,
               "format", self.format.name, "a convention that is text, without a tokenizer")  # fmt: skip
        expect(
            jax.process_count() == 1, "distributed", jax.process_count(), "null: one process asks a server"
        )
        self.client = self.client or open_client(self.url, self.server, self.sampling.max_tokens)
        self.model = self.model or self.find_model()
        # `transformers serve` writes one text at a time, with the seed of the newest request.
        self.concurrency = 1 if self.model.server == "transformers" else self.server.concurrency
        self.name = f"{self.model.name} at {self.url}"
        self.fields = sampling_fields(self.model.server, self.sampling) | {"model": self.model.name}

    def find_model(self) -> Served:
        """The served model: the list of models names vLLM and SGLang, its routes show `transformers serve`."""
        listing, why = self.get("/models")
        rows = listing.get("data") if isinstance(listing, dict) else None
        rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        owner_of = {
            writable(row["id"]): row.get("owned_by") for row in rows if isinstance(row.get("id"), str)
        }
        names, chosen = list(owner_of), self.server.model
        kind = next((owner for owner in owner_of.values() if owner in ("vllm", "sglang")), "other")
        if kind == "other":
            routes, _ = self.get(urllib.parse.urljoin(self.url, "/openapi.json"))
            paths = routes.get("paths") if isinstance(routes, dict) else None
            kind = "transformers" if isinstance(paths, dict) and "/load_model" in paths else kind
        if kind == "transformers":  # it lists its cache, not what it serves
            expect(chosen, "server.model", chosen, "a name: `transformers serve` does not say what it serves")
        elif chosen is None and len(names) != 1:
            models = ", ".join(names) or f"no model at /models ({why})"
            raise InputError(f"{self.url}: lists {models}; name one: server.model=NAME")
        else:
            expect(
                chosen is None or not names or chosen in names,
                "server.model",
                chosen,
                f"of {self.url}: {names}",
            )
        return Served(chosen or names[0], kind)

    def get(self, path: str) -> tuple[object, str]:
        """(the answer or None, why there is none); InputError where no server answers, or it refuses our key."""
        import openai

        try:  # with one retry: some servers drop a connection after an error
            return self.client.with_options(max_retries=1).get(
                path, cast_to=object
            ), "not in the protocol's form"
        except openai.APIStatusError as error:
            if error.status_code in (401, 403):
                raise InputError(
                    f"{self.url}: {reason(error)}; its key is read from OPENAI_API_KEY"
                ) from None
            return None, reason(error)
        except (openai.APIError, ValueError, RecursionError) as error:
            raise InputError(f"{self.url}: no server of the completions protocol: {reason(error)}") from None

    def post(self, body: dict, read: Callable, failure: str):
        """read(answer to a completion request); InputError with `failure` where either fails, read by ValueError."""
        import openai

        try:
            return read(self.client.post("/completions", body=body, cast_to=object))
        except (openai.APIError, ValueError, RecursionError) as error:
            raise InputError(f"{self.url}: {failure}: {reason(error)}") from None

    def prompt(self, problem: str, steps: Sequence[str]) -> str:
        """The text before the next step."""
        f = self.format
        text = f.prefix.replace("{problem}", problem) + "".join(
            s + f.separator for s in numbered(f, tuple(steps))
        )
        expect(text, f"prefix {problem[:60]!r}", text, "a text of at least one token")
        return text

    def extend(self, prefixes: Sequence[Prefix], n: int, stop: str, key, first=0) -> list[list[Continuation]]:
        """n continuations of each (problem, steps so far); prefix i has the number first + i, or first[i]. InputError
        where a request fails for good; then none is returned or counted."""
        start, size = time.perf_counter(), len(prefixes) * n
        if not size:
            return [[] for _ in prefixes]
        prompts = [self.prompt(*prefix) for prefix in prefixes]
        number_B = np.repeat(prefix_numbers(first, len(prefixes)), n)
        seed_B = np.asarray(seeds(key, number_B, np.tile(np.arange(n), len(prefixes))))
        pool = concurrent.futures.ThreadPoolExecutor(min(self.concurrency, size))
        requests = [pool.submit(self.ask, prompts[i // n], int(seed), stop) for i, seed in enumerate(seed_B)]
        try:
            ended, shown = concurrent.futures.as_completed(requests), {"delay": 10, "leave": False}
            for request in cli.progress("requests", size, "sample", iterable=ended, **shown):
                request.result()
        finally:  # after an error the other requests are cancelled
            pool.shutdown(wait=False, cancel_futures=True)
        raw = [request.result() for request in requests]
        samples = [dataclasses.replace(c, text=writable(c.text)) for c in raw]
        if replaced := sum(c.text != new.text for c, new in zip(raw, samples, strict=True)):
            print(
                f"samples     {self.name}: {replaced:,} of {size:,} texts have U+FFFD for what is no character"
            )
        groups = [samples[i : i + n] for i in range(0, size, n)]
        if (
            self.sampling.temperature > 0
            and n > 1
            and size > 16
            and all(len({c.text for c in g}) == 1 for g in groups)
        ):
            alike = f"the {n} of each prefix are the same text; does it heed temperature and seed?"
            print(f"samples     {self.name}: {alike}")
        self.stats.prompts += len(set(prompts))
        self.stats.continuations += size
        self.stats.tokens += sum(len(c.ids_L) for c in samples)
        self.stats.seconds += time.perf_counter() - start
        return groups

    def ask(self, text: str, seed: int, stop: str) -> Continuation:
        """One sample; InputError where there is none."""
        body = self.fields | {"prompt": text, "seed": seed}
        body |= {"stop": [self.format.separator]} if stop == "step" else {}
        return self.post(
            body, lambda answer: self.continuation(answer, stop), f"no continuation of {text[-60:]!r}"
        )

    def continuation(self, answer, stop: str) -> Continuation:
        """The one choice of an answer; ValueError where there is none, or neither the model nor the limit ended it."""
        try:
            (choice,), n = answer["choices"], answer["usage"]["completion_tokens"]
            text, finish, ids = choice["text"], choice["finish_reason"], choice.get("token_ids") or []
            logprobs = choice.get("logprobs") or {}
            logp, tokens = logprobs.get("token_logprobs") or [], logprobs.get("tokens") or []
            is_right = isinstance(text, str) and finish in ("stop", "length") and len(ids) in (0, n)
            is_right &= are_numbers([n], (int,), 0, self.sampling.max_tokens) and are_numbers(
                ids, (int,), 0, 2**31 - 1
            )
            is_right &= len(text) <= PER_TOKEN * (n + 1)
            is_right &= are_numbers([x for x in logp if x is not None], (int, float), -1e30, 1e-3)
            is_right &= all(isinstance(token, str) for token in tokens)
        except (AttributeError, KeyError, TypeError, ValueError):
            is_right = False
        if not is_right:
            expected = (
                f"one choice that has ended, with its usage of at most {self.sampling.max_tokens} tokens"
            )
            raise ValueError(f"answered {str(answer)[:200]!r}, expected {expected}")
        is_known = len(logp) == n and None not in logp
        logp_L = np.array(logp if is_known else [np.nan] * n, np.float32)
        text, reason = self.ending(choice, text, finish, stop)
        # What follows the text, such as its end, has no text there; a server that names its tokens otherwise has no logp.
        starts = itertools.accumulate(map(len, tokens), initial=0)
        tokens = [token if start < len(text) else "" for token, start in zip(tokens, starts)]
        logp_T = (
            step_sums(self.format, tokens, logp_L, text) if is_known and "".join(tokens) == text else None
        )
        return Continuation(np.array(ids or [-1] * n, np.int32), logp_L, text, reason, logp_T)

    def ending(self, choice: dict, text: str, finish: str, stop: str) -> tuple[str, str]:
        """(text, finish_reason); the separator ends a step's text whether or not the server left it there."""
        separator = self.format.separator
        # What follows it is cut off: the rest of the same token, or of a text that the server did not stop.
        if stop == "step" and separator in text:
            return text[: text.index(separator) + len(separator)], "stop"
        if finish == "length":
            return text, "length"
        if stop == "step":
            stops = [choice[name] for name in ("stop_reason", "matched_stop") if name in choice]
            if separator in stops:
                return text + separator, "stop"
            if not stops and self.model.server != "transformers":
                expected = (
                    "stop_reason (vLLM), matched_stop (SGLang) or the separator in the text (transformers)"
                )
                raise ValueError(f"does not say whether the step or the text ended, expected {expected}")
        return text, "eos"


def reason(error: Exception) -> str:
    """The cause of a failure on one line of at most 300 characters, in the server's words where it sent any."""
    why = str(error) if error.__cause__ is None else f"{error} ({error.__cause__})"
    if (response := getattr(error, "response", None)) is not None:
        why = f"status {response.status_code}: {response.text}"
    return " ".join(why.split())[:300]
