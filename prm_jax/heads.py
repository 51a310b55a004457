"""Step heads: what reads the hidden state at a step's end, and how its outputs become the
log-odds that the step is good.

Dimension key: B rows, T step ends, D model, C head outputs.
"""

import dataclasses
from collections.abc import Callable

import jax


@dataclasses.dataclass(frozen=True)
class Head:
    """A step head: a linear layer of C outputs; with `hidden` after a linear layer of D outputs and a ReLU."""

    labels: tuple[str, ...]  # the class of each of the C logits, as in `id2label` of a config.json
    log_odds: Callable  # logit_BTC -> logit_BT, the log-odds that the step is good
    hidden: bool = False
    rates: bool = False  # its classes are the human ratings -1, 0, +1
    loss: str | None = None  # the step loss that alone trains all of its outputs, and fits no other head
    bounds: tuple[int, int] | None = None  # the outputs that are a lower and an upper bound of a step's value

    @property
    def outputs(self) -> int:
        return len(self.labels)

    @property
    def layer(self) -> str:
        """Name of the last Linear layer in Hugging Face files."""
        return "score.2" if self.hidden else "score"


def ternary_log_odds(z_BTC):
    return jax.nn.logsumexp(z_BTC[..., 1:], -1) - z_BTC[..., 0]


HEADS = {
    "scalar": Head(("good",), lambda z_BTC: z_BTC[..., 0]),
    # Class 1 is good, as in TRL and in Qwen2.5-Math-PRM.
    "binary": Head(("bad", "good"), lambda z_BTC: z_BTC[..., 1] - z_BTC[..., 0]),
    "mlp": Head(("bad", "good"), lambda z_BTC: z_BTC[..., 1] - z_BTC[..., 0], hidden=True),
    "mlp_scalar": Head(("good",), lambda z_BTC: z_BTC[..., 0], hidden=True),  # Qwen2.5-Math-RM
    # Neutral counts as good: P(good) = P(0) + P(+1) (Lightman et al. 2023, appendix F).
    "ternary": Head(("bad", "neutral", "good"), ternary_log_odds, rates=True),
    # Log-odds of the .05, .5 and .95 quantile of a step's value (loss.step=pinball); the median is the score.
    "quantile": Head(("q05", "q50", "q95"), lambda z_BTC: z_BTC[..., 1], loss="pinball", bounds=(0, 2)),
}


def good_logit(logit_BTC, head: str):
    """The step head's C logits as one: the log-odds that the step is good, logit_BT."""
    return HEADS[head].log_odds(logit_BTC)
