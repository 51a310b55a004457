"""Step heads of released checkpoints that only score; training does not use them.

Dimension key: B rows, T step ends, D model, V vocabulary.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from prm_jax.kernels.cpu import soft_cap
from prm_jax.model import PRM


class ReleasedHead(nnx.Module):
    """A PRM whose step logits a subclass computes from the hidden states x_BTD, with the ids of its
    verdicts' tokens; HeadScorer takes it as `head`."""

    head = "scalar"

    def __init__(self, model: PRM, *ids: int):
        self.model, self.ids, self.cfg = model, ids, dataclasses.replace(model.cfg, head=self.head)

    def __call__(self, *args):
        return self.model(*args)


class TokenShareHead(ReleasedHead):
    """P(good) is the probability of the good verdict's token among the whole vocabulary (Granite's PRMs)."""

    def step_logits(self, x_BTD):
        logit_BTV, (good,) = self.model.vocab_logits(x_BTD), self.ids
        others_BTV = logit_BTV.at[..., good].set(-jnp.inf)
        return logit_BTV[..., good, None] - jax.nn.logsumexp(others_BTV, axis=-1, keepdims=True)


class TwoTokenHead(ReleasedHead):
    """P(good) is the softmax over the logits of two tokens, the bad and the good verdict's."""

    head = "binary"

    def step_logits(self, x_BTD):
        model, ids = self.model, np.array(self.ids)
        w_DC = model.embed[...][ids].T if model.unembed is None else model.unembed[...][:, ids]
        x_BTD, w_DC = x_BTD.astype(jnp.float32), w_DC.astype(jnp.float32)
        logit_BTC = jnp.matmul(x_BTD, w_DC, precision=jax.lax.Precision.HIGHEST)
        return soft_cap(self.cfg.logit_scale * logit_BTC, self.cfg.final_logit_softcap)
