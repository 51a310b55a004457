"""A script that learns which data source to trust, as DreamPRM does (Cao et al. 2025, arXiv 2505.20241).

    python -m examples.source_weights RUN trusted.jsonl a.jsonl b.jsonl     # {file: weight}, for data.weights

The model steps down the weighted loss of all sources, and the weights go where that step lowers the loss on a
few rows whose labels you trust. Files hold native rows with labels. Dimension key: S sources, B rows.
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from prm_jax.checkpoints.open import open_checkpoint
from prm_jax.data.sources import load
from prm_jax.examples import Example, make_examples
from prm_jax.model import PRM
from prm_jax.packing import pack_batch
from prm_jax.training import LossConfig, combine, loss_terms

STEPS, ROWS = 100, 16  # rows of each source in a step
LEARNING_RATE = 0.03  # of the model, by plain gradient descent
WEIGHTS_RATE = 0.05  # length of a step of the weights' logits
LOSS = LossConfig("prm", "bce", pos_weight=1.0, lm_weight=0.0)


@functools.partial(jax.jit, static_argnames=("lr", "weights_lr"))
def two_level_step(model: PRM, logit_S, batches, trusted, lr: float, weights_lr: float):
    """(model, logit_S) after a step on one batch a source, [S, B, ...], and trusted rows, [B, ...]. The
    gradient of the weights softmax(logit_S) goes through the model's step."""
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def mean_loss(params, batch):
        return combine(loss_terms(nnx.merge(graph, params, rest), batch, LOSS), batch, LOSS)[0]

    grads_S = jax.lax.map(lambda batch: jax.grad(mean_loss)(params, batch), batches)

    def trusted_loss(logit_S):
        weight_S = jax.nn.softmax(logit_S)
        stepped = jax.tree.map(lambda w, grad_S: w - lr * jnp.tensordot(weight_S, grad_S, 1), params, grads_S)
        return mean_loss(stepped, trusted), stepped

    slope_S, stepped = jax.grad(trusted_loss, has_aux=True)(logit_S)
    logit_S -= weights_lr * slope_S / jnp.maximum(jnp.linalg.norm(slope_S), 1e-30)
    return nnx.merge(graph, stepped, rest), logit_S


def learn(start: str, trusted: str, files: list[str], seed: int = 0) -> dict[str, float]:
    """{file: weight}, which sum to 1."""
    opened = open_checkpoint(start, "best", None, "float32")
    rng = np.random.default_rng(seed)
    solutions = [load(path, "native", labels_required=True)[0] for path in (trusted, *files)]
    parts = [make_examples(part, opened.format, opened.tokenizer, "prm")[0] for part in solutions]
    width = max(len(e.ids_L) for part in parts for e in part)
    slots = max(len(e.step_end_T) for part in parts for e in part)

    def draw(part: list[Example]) -> dict[str, np.ndarray]:
        return pack_batch([[part[i]] for i in rng.integers(len(part), size=ROWS)], width, slots)

    model, logit_S, rates = opened.model, jnp.zeros(len(files)), (LEARNING_RATE, WEIGHTS_RATE)
    for _ in range(STEPS):
        batches = jax.tree.map(lambda *arrays: np.stack(arrays), *map(draw, parts[1:]))
        model, logit_S = two_level_step(model, logit_S, batches, draw(parts[0]), *rates)
    return dict(zip(files, jax.nn.softmax(logit_S).tolist(), strict=True))


if __name__ == "__main__":
    print(learn(sys.argv[1], sys.argv[2], sys.argv[3:]))
