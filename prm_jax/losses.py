"""What a model is trained to do: losses at step ends, and of the next token.

A step loss is an entry of STEP_LOSSES: f(z_BT, batch, cfg) -> loss_BT, where z_BT are the log-odds that each
step is good and `cfg` is the section `loss` of the config. `batch` holds the arrays of packing.py. label and
rating are NaN where there is none; weight is 0 where there is no label; steps of a row with equal `solution`
or `problem` numbers belong together. The trainer sums loss times weight over labelled steps and divides by
their number; a loss may be anything where the weight is 0.

Dimension key: B rows, L tokens, T step ends (TT: a step and one it is compared with), C head outputs, V
vocabulary."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax


def bce(logit, label, pos_weight=1.0):
    """Binary cross-entropy in nats of a soft label y in [0, 1]: -(w y log p + (1 - y) log(1 - p)).

    For the binary head the logit is z1 - z0, and this is the 2-class cross-entropy of TRL's PRMTrainer."""
    return -(pos_weight * label * jax.nn.log_sigmoid(logit) + (1 - label) * jax.nn.log_sigmoid(-logit))


def bce_loss(z_BT, batch, cfg):
    """`bce` of the event that the step is good."""
    return bce(z_BT, jnp.nan_to_num(batch["label"]), cfg.pos_weight)


def focal_loss(z_BT, batch, cfg):
    """`bce` with each term times (1 - p)^gamma, p the probability of its class (Lin et al. 2017, eq. 4)."""
    label_BT = jnp.nan_to_num(batch["label"])
    good_BT, bad_BT = jax.nn.log_sigmoid(z_BT), jax.nn.log_sigmoid(-z_BT)  # log p, log (1 - p)
    of_good_BT = cfg.pos_weight * label_BT * jnp.exp(cfg.gamma * bad_BT) * good_BT
    return -of_good_BT - (1 - label_BT) * jnp.exp(cfg.gamma * good_BT) * bad_BT


def mse_loss(z_BT, batch, cfg):
    """Brier score (P(good) - y)^2 of a soft label y, times w where y = 1: Qwen's loss of soft labels."""
    label_BT = jnp.nan_to_num(batch["label"])
    error_BT = jax.nn.sigmoid(z_BT) - label_BT
    return (1 + (cfg.pos_weight - 1) * label_BT) * error_BT**2


def pairwise_loss(z_BT, batch, cfg):
    """-log sigmoid(z_good - z_bad) (Bradley and Terry): a step's mean over its partners, 0 if it has none.

    Partners are a good and a bad step (label below 1/2) at the same depth in two solutions of one problem, as
    rStar-Math's siblings (arXiv 2501.04519), so that a step's depth predicts nothing; of outcomes, a right
    and a wrong solution of one problem. Solutions of a problem share a row. The loss teaches differences
    within a problem, and no probability."""

    def pairs(f, x_BT):
        return f(x_BT[:, :, None], x_BT[:, None, :])

    good_BT = batch["label"] >= 0.5
    is_pair_BTT = pairs(jnp.equal, batch["problem"]) & pairs(jnp.equal, batch["depth"])
    is_pair_BTT &= pairs(jnp.logical_and, batch["weight"] > 0) & pairs(jnp.not_equal, good_BT)
    margin_BTT = jnp.where(good_BT, 1, -1)[:, :, None] * pairs(jnp.subtract, z_BT)
    loss_BTT = jnp.where(is_pair_BTT, -jax.nn.log_sigmoid(margin_BTT), 0.0)
    return loss_BTT.sum(-1) / jnp.maximum(is_pair_BTT.sum(-1), 1)


def pqm_loss(z_BT, batch, cfg):
    """Q-value ranking (Li and Li 2025, 2410.11287, eq. 10): Q rises over good steps; Q of bad ones < -zeta.

    The loss of a good step t is log(1 + sum_{good u <= t} exp z_u + sum_{bad w} exp(z_w + zeta)) - z_t. Where
    there is a bad step, the start, whose z is 0, adds log(1 + sum_{bad w} exp(z_w + zeta)), in equal parts at
    the bad steps. They sum to the terms that the authors average: one a step up to the first error."""
    is_labelled_BT = batch["weight"] > 0
    good_BT, bad_BT = is_labelled_BT & (batch["label"] >= 0.5), is_labelled_BT & (batch["label"] < 0.5)
    same_BTT = batch["solution"][:, :, None] == batch["solution"][:, None, :]
    is_past_BTT = good_BT[:, :, None] & good_BT[:, None, :] & jnp.tri(z_BT.shape[1], dtype=bool)
    is_rival_BTT = same_BTT & (is_past_BTT | bad_BT[:, None, :])
    rival_BTT = jnp.where(is_rival_BTT, (z_BT + cfg.zeta * bad_BT)[:, None, :], -jnp.inf)
    with_start_BTT = jnp.pad(rival_BTT, ((0, 0), (0, 0), (1, 0)))  # the start's z is 0
    lse_BT = jax.nn.logsumexp(with_start_BTT, axis=-1)
    n_bad_BT = (same_BTT & bad_BT[:, None, :]).sum(-1)
    return jnp.where(good_BT, lse_BT - z_BT, lse_BT / jnp.maximum(n_bad_BT, 1))


def three_ratings_loss(logit_BTC, rating_BT, pos_weight: float):
    """Cross-entropy over the ratings -1, 0, +1 (Lightman et al. 2023); neutral and positive count as good."""
    class_BT = (rating_BT + 1).astype(jnp.int32)
    loss_BT = optax.losses.softmax_cross_entropy_with_integer_labels(logit_BTC, class_BT)
    return loss_BT * jnp.where(class_BT > 0, pos_weight, 1.0)


@dataclasses.dataclass(frozen=True)
class Loss:
    """A step loss and what training has to know of it."""

    f: Callable  # f(z_BT, batch, cfg) -> loss_BT
    together: bool = False  # it compares solutions of a problem, which share a row
    # It learns differences, no probability: no class weight, and one target for an outcome.
    ranks: bool = False
    # f(logit_BTC, rating_BT, pos_weight) -> loss_BT of human ratings, under a head that has a class for each
    ratings: Callable | None = None


# Arrays of a batch for a loss with `together` alone: in other rows a problem's solutions are apart.
ACROSS_SOLUTIONS = ("problem", "depth")
STEP_LOSSES = {
    "bce": Loss(bce_loss, ratings=three_ratings_loss),
    "focal": Loss(focal_loss),
    "mse": Loss(mse_loss),
    "pairwise": Loss(pairwise_loss, together=True, ranks=True),
    "pqm": Loss(pqm_loss, ranks=True),
}


def implicit_logit(next_logp_BL, batch, beta: float):
    """The log-odds of an implicit PRM that a solution is right, logit_BT: beta log(policy / reference) summed
    over its tokens up to each step end (Yuan et al. 2024, arXiv 2412.01981). loss.step=bce gives its CE form,
    pairwise its DPO form. next_logp_BL is the policy's log p of the token after each, batch["reference"] the
    reference's of each token. Rows must not share prefixes."""

    def at(x_BL, place_BT):
        return jnp.take_along_axis(x_BL, place_BT, axis=1)

    is_target_BL = batch["token_weight"] != 0
    ratio_BL = jnp.where(is_target_BL, jnp.roll(next_logp_BL, 1, axis=1) - batch["reference"], 0.0)
    sum_BL = jnp.cumsum(ratio_BL, axis=1)
    end_BT = batch["step_end"]
    start_BT = end_BT - at(batch["pos"], end_BT)  # other solutions may stand before this one
    return beta * (at(sum_BL, end_BT) - at(sum_BL, start_BT))


def next_tokens(batch):
    """(target_BL, weight_BL): the token after each, and its weight in the next-token loss: 0 for the problem,
    padding and the first token of a sequence."""
    return tuple(jnp.roll(batch[name], -1, axis=1) for name in ("ids", "token_weight"))


def next_token_sums(logit_BLV, target_BL, weight_BL):
    """(loss, right): the cross-entropy in nats of the targets times their weights, summed, and how many
    targets are the most likely token."""
    loss_BL = optax.losses.softmax_cross_entropy_with_integer_labels(logit_BLV, target_BL)
    is_right_BL = (logit_BLV.argmax(-1) == target_BL) & (weight_BL != 0)
    return jnp.where(weight_BL != 0, weight_BL * loss_BL, 0.0).sum(), is_right_BL.sum()
