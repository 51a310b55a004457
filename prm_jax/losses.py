"""One number from a batch: per-step binary cross-entropy and the language-model loss.

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


def step_loss(logit_BTC, label_BT, rating_BT, head: str, pos_weight=1.0):
    """Loss at every step end, loss_BT in nats; meaningless where the label is NaN (the caller's weight is 0 there).

    A head of RATING_LOSSES learns the human rating where there is one, and the event good / bad where there is only a label.
    """
    loss_BT = bce(HEADS[head].log_odds(logit_BTC), jnp.nan_to_num(label_BT), pos_weight)
    if head in RATING_LOSSES:
        rated_BT = ~jnp.isnan(rating_BT)
        rating_loss_BT = RATING_LOSSES[head](logit_BTC, jnp.where(rated_BT, rating_BT, -1.0), pos_weight)
        loss_BT = jnp.where(rated_BT, rating_loss_BT, loss_BT)
    return loss_BT


def three_class_loss(logit_BTC, rating_BT, pos_weight=1.0):
    """Cross-entropy over the ratings -1, 0, +1 (Lightman et al. 2023); neutral and positive are good."""
    class_BT = (rating_BT + 1).astype(jnp.int32)
    loss_BT = optax.losses.softmax_cross_entropy_with_integer_labels(logit_BTC, class_BT)
    return loss_BT * jnp.where(class_BT > 0, pos_weight, 1.0)


RATING_LOSSES = {"ternary": three_class_loss}  # head -> how it learns a human rating


def next_token_loss(logit_BLV, ids_BL, token_weight_BL):
    """Weighted cross-entropy in nats at each token of predicting the next one, loss_BL.

    token_weight_BL is of the tokens to predict: 0 for the problem, padding and the first token of a row.
    """
    target_BL, weight_BL = (jnp.roll(x_BL, -1, axis=1) for x_BL in (ids_BL, token_weight_BL))
    loss_BL = optax.losses.softmax_cross_entropy_with_integer_labels(logit_BLV, target_BL)
    return jnp.where(weight_BL != 0, weight_BL * loss_BL, 0.0)
