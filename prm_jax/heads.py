"""Step heads: what reads the hidden state at a step's end, and how that becomes log-odds.

Dimension key: B rows, T step ends, D model, C head outputs."""

import dataclasses
from collections.abc import Callable

import jax


@dataclasses.dataclass(frozen=True)
class Head:
    """A linear layer of C outputs; with `hidden` after a linear layer of D outputs and a ReLU."""

    labels: tuple[str, ...]  # the class of each of the C logits, as in `id2label` of a config.json
    log_odds: Callable  # logit_BTC -> logit_BT, the log-odds that the step is good
    hidden: bool = False
    rates: bool = False  # its classes are the human ratings -1, 0, +1

    @property
    def outputs(self) -> int:
        return len(self.labels)

    @property
    def layer(self) -> str:
        """Name of the last Linear layer in Hugging Face files."""
        return "score.2" if self.hidden else "score"


def one(z_BTC):
    return z_BTC[..., 0]


def good_minus_bad(z_BTC):
    return z_BTC[..., 1] - z_BTC[..., 0]


def neutral_or_good_minus_bad(z_BTC):
    return jax.nn.logsumexp(z_BTC[..., 1:], -1) - z_BTC[..., 0]


HEADS = {
    "scalar": Head(("good",), one),
    "binary": Head(("bad", "good"), good_minus_bad),  # class 1 is good, as in TRL and in Qwen2.5-Math-PRM
    "mlp": Head(("bad", "good"), good_minus_bad, hidden=True),
    "mlp_scalar": Head(("good",), one, hidden=True),  # Qwen2.5-Math-RM
    # Neutral counts as good: P(good) = P(0) + P(+1) (Lightman et al. 2023, appendix F).
    "ternary": Head(("bad", "neutral", "good"), neutral_or_good_minus_bad, rates=True),
}
