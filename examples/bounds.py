r"""A Hydra command with the keys of train.py: a lower and an upper bound of a value (arXiv 2506.09338).

    python -m examples.bounds model.head=quantile loss.step=pinball eval.best_by=loss \
        data.label_kind=value data.after_first_error=keep
    python -m examples.bounds report RUN        # the conformal shift, and how often the bounds hold the label

The head `quantile`, log-odds of the .05, .5 and .95 quantile of a step's label, and the loss `pinball` are
entries that this file adds to the tables of heads.py and losses.py: so can yours be. A shift fitted on the
validation split makes bounds hold new labels as often as they should (conformalised quantile regression,
Romano et al. 2019, arXiv 1905.03222). Dimension key: n steps, B rows, T step ends, C outputs.
"""

import dataclasses
import math
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import train
from prm_jax.checkpoints.open import Loaded, open_checkpoint
from prm_jax.data.splits import data_config, load_splits
from prm_jax.data.units import CERTAIN, UNITS, probability
from prm_jax.generate.samples import policy_pool
from prm_jax.heads import HEADS, Head
from prm_jax.launch.run_folder import run_config
from prm_jax.losses import STEP_LOSSES, Loss
from prm_jax.model import PRM
from prm_jax.scoring import HeadScorer
from prm_jax.solutions import Solution

QUANTILES = (0.05, 0.5, 0.95)
EDGE = 0.01  # a bound this near to 0 or 1 holds 0 or 1, which no log-odds reach


def pinball_loss(z_BT, batch, cfg):
    """Sum over q of max(q (y - v_q), (q - 1) (y - v_q)), v_q = sigmoid of output q, for a soft label y: least
    where v_q is the q-quantile of the labels (Koenker and Bassett 1978)."""
    q_C = jnp.array(QUANTILES)
    error_BTC = jnp.nan_to_num(batch["label"])[..., None] - jax.nn.sigmoid(batch["logits"])
    return jnp.maximum(q_C * error_BTC, (q_C - 1) * error_BTC).sum(-1)


HEADS["quantile"] = Head(("q05", "q50", "q95"), lambda z_BTC: z_BTC[..., 1])  # the median is the score
STEP_LOSSES["pinball"] = Loss(pinball_loss, outputs=len(QUANTILES))


@jax.jit
def step_outputs(model: PRM, batch):
    """The outputs of the step head at the step ends of a packed batch, logit_BTC."""
    return model.step_logits(model(batch["ids"], batch["pos"], batch["visible_until"], batch["step_end"]))


@dataclasses.dataclass(kw_only=True)
class BoundScorer(HeadScorer):
    output: int  # of the head

    def values(self, batch):
        return step_outputs(self.model, batch)[..., self.output]


def bounds_of(loaded: Loaded, solutions: list[Solution]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(lower_n, upper_n, label_n) of all labelled steps, bounds as log-odds."""
    rows = [(s.problem, s.steps) for s in solutions]
    fields = {name: x for name, x in vars(loaded).items() if name not in ("config", "reference")}
    lower, upper = (BoundScorer(**fields, output=i).score(rows) for i in (0, 2))
    label_n = np.concatenate([np.array(s.labels, float) for s in solutions])  # None: nan
    known_n = ~np.isnan(label_n)
    return np.concatenate(lower)[known_n], np.concatenate(upper)[known_n], label_n[known_n]


def shifts(lower_n, upper_n, label_n) -> tuple[float, float]:
    """By how many log-odds the lower and the upper bound must move out to hold a new label as often as they
    should. The guarantee is for one step a problem; steps of one solution depend on each other."""
    edge = math.log((1 - EDGE) / EDGE)
    y_n, n = UNITS["probability"].log_odds(label_n), len(label_n)
    rank = min(math.ceil((n + 1) * QUANTILES[-1]), n) - 1  # at most which another residual is so often
    out = lower_n - np.clip(y_n, -edge, CERTAIN), np.clip(y_n, -CERTAIN, edge) - upper_n
    return tuple(float(np.sort(x_n)[rank]) for x_n in out)


def report(run: str):
    cfg = run_config(Path(run))
    loaded = open_checkpoint(run, "best", None, "float32")
    splits = load_splits(data_config(cfg.data), cfg.seed, policy_pool).splits
    down, up = shifts(*bounds_of(loaded, list(splits["validation"])))
    lower_n, upper_n, label_n = bounds_of(loaded, list(splits["test"]))
    print(f"shift       {down:+.3f} log-odds below, {up:+.3f} above, from the validation split")
    for name, by in (("as learned", (0, 0)), ("shifted", (down, up))):
        low_n, high_n = probability(lower_n - by[0]), probability(upper_n + by[1])
        held_n = (low_n <= np.maximum(label_n, EDGE)) & (high_n >= np.minimum(label_n, 1 - EDGE))
        width = (high_n - low_n).mean()
        print(f"{name:<12}holds {held_n.mean():.3f} of {len(held_n)} labels, mean width {width:.3f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["report"]:
        report(sys.argv[2])
    else:
        train.main()
