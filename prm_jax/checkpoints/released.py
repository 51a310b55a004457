"""Step heads of released checkpoints that only score; training does not use them.

Dimension key: B rows, T step ends, D model, V vocabulary, W width of a hidden layer, E members.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from prm_jax.launch.config import expect
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
        return self.model.vocab_logits(x_BTD)[..., self.ids]


class Ensemble(ReleasedHead):
    """P(good) is the mean of E networks' sigmoids, each Linear, ReLU, Linear, ReLU, Linear (ActPRM, arXiv
    2504.10559). The weights are nn1, nn2 and nn_out of `layer`'s module, [E, in, out] and [E, out]."""

    def __init__(self, model: PRM, tensors: dict, layer: str):
        super().__init__(model)
        module, width = layer.rsplit(".", 1)[0], model.cfg.dim
        layers, self.members = [], tensors[f"{layer}.weight"].get_shape()[0]
        for name in ("nn1", "nn2", "nn_out"):
            keys = [f"{module}.{name}.{part}" for part in ("weight", "bias")]
            missing = [key for key in keys if key not in tensors]
            expect(not missing, f"tensors of an ensemble of {self.members} heads", None, ", ".join(missing))
            w_EDW, b_EW = (tensors[key][...].astype(np.float32) for key in keys)
            expected = (self.members, width, b_EW.shape[-1])
            expect(w_EDW.shape == expected, f"tensor {keys[0]}: shape", w_EDW.shape, str(expected))
            layers.append((nnx.Param(jnp.asarray(w_EDW)), nnx.Param(jnp.asarray(b_EW))))
            width = b_EW.shape[-1]
        self.layers = nnx.List([nnx.List(pair) for pair in layers])

    def step_logits(self, x_BTD):
        highest = jax.lax.Precision.HIGHEST
        h_EBTW = jnp.broadcast_to(x_BTD.astype(jnp.float32), (self.members, *x_BTD.shape))
        for i, (w_EWV, b_EV) in enumerate(self.layers):
            h_EBTW = jax.nn.relu(h_EBTW) if i else h_EBTW
            product_EBTV = jnp.einsum("EBTW,EWV->EBTV", h_EBTW, w_EWV[...], precision=highest)
            h_EBTW = product_EBTV + b_EV[...][:, None, None]
        # The factor 1 / E of both means cancels.
        good = jax.nn.logsumexp(jax.nn.log_sigmoid(h_EBTW), 0)
        return good - jax.nn.logsumexp(jax.nn.log_sigmoid(-h_EBTW), 0)
