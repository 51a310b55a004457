"""The distribution, keys and cost of a policy, ours (sampling.py) or one behind a server (remote.py)."""

import dataclasses
from typing import Literal, NamedTuple

import jax
import numpy as np

from prm_jax.formats import Format
from prm_jax.launch.config import Count, Natural, NotNegative, Positive, Share, expect


@dataclasses.dataclass(frozen=True)
class Sampling:
    """The distribution of tokens: temperature, then top-k, then top-p of the rest, in transformers' order."""

    temperature: NotNegative  # 0: always the most likely token
    top_k: Count | None  # only the k most likely tokens, and those as likely as the last of them
    top_p: Share  # only the fewest most likely tokens whose probabilities sum to this; 1: all
    max_tokens: Count  # at most this many new tokens


@dataclasses.dataclass(frozen=True)
class Server:  # settings of requests; conf/sampling.yaml says what each key means
    model: str | None = None
    concurrency: Count = 64
    timeout: Positive = 600.0
    retries: Natural = 4


class Served(NamedTuple):
    """The model that a server names; its weights are not known."""

    name: str
    server: Literal["vllm", "sglang", "other"]


@jax.jit
def sample_keys(key, prefix_B, sample_B):
    """fold_in(fold_in(key, prefix), sample) of every row."""
    return jax.vmap(lambda i, j: jax.random.fold_in(jax.random.fold_in(key, i), j))(prefix_B, sample_B)


def prefix_numbers(first, n: int) -> np.ndarray:
    """The numbers by which n prefixes draw: first + i, or those of a sequence."""
    return first + np.arange(n) if np.ndim(first) == 0 else np.asarray(first)


@dataclasses.dataclass
class SamplingStats:
    """Counts of a policy's work."""

    prompts: int = 0  # distinct
    continuations: int = 0
    tokens: int = 0  # new tokens
    seconds: float = 0.0

    def summary(self) -> str:
        prompts = f"{self.continuations:,} continuations of {self.prompts:,} distinct prompts"
        rate = f"{self.tokens:,} tokens, {self.tokens / max(self.seconds, 1e-9):,.0f} a second"
        return f"sampled     {prompts}: {rate}"


def check_format(fmt: Format):
    """InputError where the next step would not start right after the separator of the last one."""
    unlike = fmt.suffix or fmt.between or fmt.shift or fmt.probe or fmt.drop_separator or fmt.chat
    expected = "a convention in which nothing but the separator stands between steps"
    expect(not unlike, "format", fmt.name, expected)
