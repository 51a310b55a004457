"""The distribution, keys and cost of a policy, ours (sampling.py) or one behind a server (remote.py)."""

import dataclasses
from typing import Literal, NamedTuple

import jax

from prm_jax.data.steps import format_steps
from prm_jax.formats import Format, opened_thought
from prm_jax.launch.config import Count, Natural, NotNegative, Positive, Share, expect
from prm_jax.protocols import Continuation, Prefix


@dataclasses.dataclass(frozen=True)
class Sampling:
    """The distribution of tokens: temperature, then top-k, then top-p of the rest, in transformers' order."""

    temperature: NotNegative  # 0: always the most likely token
    top_k: Count | None  # only the k most likely tokens, and those as likely as the last of them
    top_p: Share  # only the fewest most likely tokens whose probabilities sum to this; 1: all
    max_tokens: Count  # at most this many new tokens


@dataclasses.dataclass(frozen=True)
class PolicyFormat:
    """The keys of `Format` that mean something of a language model that solves and brings no format."""

    separator: str = "\n"  # a step ends with any token that holds this text
    # Before the first step, with a chat template the user's message; null: {problem}
    prefix: str | None = None
    number: str = ""
    bos: bool = True
    chat: bool | str | None = None  # null: the model's own chat template, if it has one | true | false | FILE
    system: str | None = None
    strip: bool = False

    def whole(self) -> Format:
        return Format("plain", **{key: x for key, x in vars(self).items() if x is not None})


@dataclasses.dataclass(frozen=True)
class Server:
    """A policy's server, and how it is asked."""

    model: str | None = None  # the name of the model there; null: the only one
    tokenizer: str | None = None  # folder or hub name of its tokenizer; null: the model's name, if it is one
    concurrency: Count = 64  # requests at a time
    timeout: Positive = 600.0  # seconds of a request
    retries: Natural = 4  # of a request that fails


class Served(NamedTuple):
    """The model that a server names; its weights are not known."""

    name: str
    server: Literal["vllm", "sglang", "other"]


@jax.jit
def sample_keys(key, prefix_B, sample_B):
    """fold_in(fold_in(key, prefix), sample) of every row."""
    return jax.vmap(lambda i, j: jax.random.fold_in(jax.random.fold_in(key, i), j))(prefix_B, sample_B)


@dataclasses.dataclass
class SamplingStats:
    """Counts of a policy's work."""

    prompts: int = 0  # distinct
    continuations: int = 0
    tokens: int = 0  # new tokens
    seconds: float = 0.0
    places: int = 0  # of rows in all decoding steps

    @property
    def idle(self) -> float:
        """The share of the places without a sample. A sample's first token comes with its prompt."""
        return 1 - (self.tokens - self.continuations) / max(self.places, 1)

    def summary(self) -> str:
        prompts = f"{self.continuations:,} continuations of {self.prompts:,} distinct prompts"
        rate = f"{self.tokens:,} tokens, {self.tokens / max(self.seconds, 1e-9):,.0f} a second"
        idle = f"; places idle {100 * self.idle:.0f} %" if self.places else ""
        return f"sampled     {prompts}: {rate}{idle}"


def show_prompt(policy, problem: str):
    """Prints what the policy reads before it solves a problem, shortened in the middle."""
    text = repr(policy.prompt(problem))
    shown = text if len(text) <= 240 else f"{text[:120]} ... {text[-120:]}"
    print(f"prompt      {shown} ({'the' if policy.format.chat else 'no'} chat template)")
    is_here = hasattr(policy, "prefix_ids")  # a server reads steps as one text
    if is_here and "".join(policy.tokenizer.tokenize("a")).startswith(("\u2581", "\u0120")):
        print("tokenizer   puts a blank before each step that is read again, as search and labels do")


def thought_before(policy, problem: str) -> str:
    """The opening of a thought that the chat template writes at the end of the prompt; nothing at most."""
    return opened_thought(policy.prompt(problem)) if policy.format.chat else ""


def with_thought(policy, prefix: Prefix, c: Continuation) -> Continuation:
    """The continuation of a bare problem with the opening of the thought that the chat template wrote."""
    problem, steps = prefix
    thought = "" if steps else thought_before(policy, problem)
    if not thought or not c.text.strip():
        return c
    text = thought + c.text
    logp_T = c.logp_T
    if logp_T is not None and len(format_steps(policy.format, text)) > len(logp_T):
        logp_T = (0.0, *logp_T)
    return dataclasses.replace(c, text=text, logp_T=logp_T)


def check_format(fmt: Format):
    """InputError where the next step would not start right after the separator of the last one."""
    unlike = fmt.suffix or fmt.between or fmt.shift or fmt.probe or fmt.drop_separator
    unlike = unlike or (fmt.chat and fmt.tokenized == "together")
    expected = "a convention in which nothing but the separator stands between steps"
    expect(not unlike, "format", fmt.name, expected)
