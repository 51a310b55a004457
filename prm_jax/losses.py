"""What a model is trained to do: losses at step ends, and of the next token.

Dimension key: B rows, L tokens, T step ends, C head outputs, V vocabulary.
"""

import jax
import jax.numpy as jnp
import optax

from prm_jax.model import HEADS


def bce(logit, label, pos_weight=1.0):
    """Binary cross-entropy in nats from a logit, for a soft label y in [0, 1]: -(w y log p + (1 - y) log(1 - p)).

    For the binary head the logit is z1 - z0, and this is exactly the 2-class cross-entropy that TRL's PRMTrainer minimises.
    """
    return -(pos_weight * label * jax.nn.log_sigmoid(logit) + (1 - label) * jax.nn.log_sigmoid(-logit))


def bce_loss(logit_BTC, batch, head: str, pos_weight: float):
    """`bce` of the event that the step is good; a head of RATING_LOSSES learns the human rating where there is one."""
    loss_BT = bce(HEADS[head].log_odds(logit_BTC), jnp.nan_to_num(batch["label"]), pos_weight)
    if head in RATING_LOSSES:
        is_rated_BT = ~jnp.isnan(batch["rating"])
        rating_BT = jnp.where(is_rated_BT, batch["rating"], -1.0)
        loss_BT = jnp.where(is_rated_BT, RATING_LOSSES[head](logit_BTC, rating_BT, pos_weight), loss_BT)
    return loss_BT


def three_ratings_loss(logit_BTC, rating_BT, pos_weight: float):
    """Cross-entropy over the ratings -1, 0, +1 (Lightman et al. 2023); neutral and positive count as good."""
    class_BT = (rating_BT + 1).astype(jnp.int32)
    loss_BT = optax.losses.softmax_cross_entropy_with_integer_labels(logit_BTC, class_BT)
    return loss_BT * jnp.where(class_BT > 0, pos_weight, 1.0)


RATING_LOSSES = {"ternary": three_ratings_loss}  # head -> how it learns a human rating

# loss.step -> f(logit_BTC, batch, head, pos_weight) -> loss_BT of each step, in nats for bce. `batch` has the arrays of data/packing.py:
# label and rating are NaN where there is none, and steps of one solution share batch["visible_until"] at their step ends.
# The trainer multiplies by batch["weight"] and ignores what stands where that is 0.
STEP_LOSSES = {"bce": bce_loss}


def next_token_loss(logit_BLV, ids_BL, token_weight_BL):
    """Weighted cross-entropy in nats at each token of predicting the next one, loss_BL.

    token_weight_BL is of the tokens to predict: 0 for the problem, padding and the first token of a row.
    """
    target_BL, weight_BL = (jnp.roll(x_BL, -1, axis=1) for x_BL in (ids_BL, token_weight_BL))
    loss_BL = optax.losses.softmax_cross_entropy_with_integer_labels(logit_BLV, target_BL)
    return jnp.where(weight_BL != 0, weight_BL * loss_BL, 0.0)
