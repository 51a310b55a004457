"""What every policy shares, ours (sampling.py) and one behind a server (remote.py): its distribution, keys and cost."""

import dataclasses

import jax

from prm_jax.data.formats import Format
from prm_jax.launch.config import Count, NotNegative, Share, expect


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Which law tokens are drawn from: temperature first, then top-k, then top-p of what is left, as transformers does."""

    temperature: NotNegative  # 0: always the most likely token
    top_k: Count | None  # only so many of the most likely tokens (and what is as likely as the last of them)
    top_p: Share  # only the fewest most likely tokens whose probabilities sum to this; 1: all
    max_tokens: Count  # new tokens of a continuation at most


@jax.jit
def sample_keys(key, prefix_B, sample_B):
    """fold_in(fold_in(key, prefix), sample) of every row."""
    return jax.vmap(lambda i, j: jax.random.fold_in(jax.random.fold_in(key, i), j))(prefix_B, sample_B)


@dataclasses.dataclass
class SamplingStats:
    """What sampling computed."""

    prompts: int = 0  # distinct ones
    continuations: int = 0
    tokens: int = 0  # new ones
    places: int = 0  # for new tokens in the rows that were decoded
    seconds: float = 0.0
    shapes: set = dataclasses.field(default_factory=set)  # (program, rows, tokens), each compiled once

    def summary(self) -> str:
        idle = 1 - self.tokens / max(self.places, 1)
        on_device = f", {idle:.1%} of places idle, {len(self.shapes)} shapes compiled" if self.places else ""
        return (
            f"sampled     {self.continuations:,} continuations of {self.prompts:,} distinct prompts: {self.tokens:,} tokens, "
            f"{self.tokens / max(self.seconds, 1e-9):,.0f} a second{on_device}"
        )


def check_format(fmt: Format):
    """InputError where the next step would not go on right after the separator of the last one."""
    unlike = fmt.suffix or fmt.between or fmt.shift or fmt.probe or fmt.drop_separator or fmt.chat
    expect(not unlike, "format", fmt.name, "a convention in which nothing but the separator stands between steps")
