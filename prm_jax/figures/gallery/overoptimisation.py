"""Gold and proxy against KL, reweighted (lines) and best of n (markers): columns by layers and by training steps."""

import math

import numpy as np

from prm_jax.figures.best_of_n import square_root
from prm_jax.figures.paper import Stages, scorer_of, values_of
from prm_jax.figures.style import NO_LINE, Drawn, floats, line_style, panels


def draw(stages: Stages) -> Drawn:
    pools = {stage.sweep["seed"]: stage.results() for stage in stages["pool"]}
    first = next(iter(pools.values()))
    N, n_problems = first["n_candidates"], first["n_problems"]
    figure, axes = panels(2, 2, 5.6, sharex=True, sharey="row")
    drawn = Drawn(figure, f"{n_problems} problems x {N} samples; lines: weights exp(score / beta)")
    drawn.text += f"; markers: best of n = 1, 2, 4, ... {N}"
    for column, (line, key, unit) in enumerate((("by_layers", "layers", "layers"), ("by_steps", "training", "steps"))):
        for i, value in enumerate(values_of(stages[line], key)):
            runs = []
            for stage in [stage for stage in stages[line] if stage.sweep[key] == value]:
                pool = pools[stage.sweep["seed"]]
                runs.append(pool["reward_kl"][scorer_of(pool, stage)])
            grid = np.linspace(0, math.sqrt(min(max(floats(run["reweighted"]["kl"])) for run in runs)), 24) ** 2
            fits = [gao_fit(run["best_of_n"]) for run in runs]
            (alpha, beta), (alphas, betas) = np.mean(fits, 0), (", ".join(f"{x:.3f}" for x in xs) for xs in zip(*fits))
            text = f"{value} {unit}: gold = start + d ({alpha:.3f} - {beta:.3f} d)"
            drawn.statements.append(f"{text}; runs alpha {alphas}, beta {betas}")
            for panel, number, name in zip(axes[:, column], ("accuracy", "score"), ("gold", "proxy"), strict=True):
                y_SX, style = [along(run["reweighted"], number, grid) for run in runs], line_style(i)
                series = f"{value} {unit if value != 1 else unit[:-1]}"
                is_share = number == "accuracy"
                drawn.curve(panel, f"{name} by {unit}", series, grid, y_SX, style | {"marker": ""}, is_share)
                kl, y = (np.mean([floats(run["best_of_n"][k]) for run in runs], 0) for k in ("kl", number))
                panel.plot(kl, y, **style | NO_LINE | {"markerfacecolor": "white"})
        for panel, title in zip(axes[:, column], ("gold: share right", "proxy: mean score (nats)"), strict=True):
            square_root(panel)
            panel.set(xlim=(0, None), xticks=[x for x in (0, 0.25, 1, 2, 4) if x <= panel.get_xlim()[1]])
            panel.set_title(title, fontsize=9)
        axes[1, column].set_xlabel("KL from the policy (nats, square-root axis)")
        axes[0, column].legend(fontsize=7.5, loc="lower left")
    return drawn


def along(curve: dict, number: str, grid) -> np.ndarray:
    """A number of reward_kl's curves where its KL takes the values of a grid."""
    kl, y = floats(curve["kl"]), floats(curve[number])
    order = np.argsort(kl)
    return np.interp(grid, kl[order], y[order])


def gao_fit(curve: dict) -> np.ndarray:
    """(alpha, beta) of gold = start + d (alpha - beta d), d = sqrt(KL), by least squares (Gao et al. 2023)."""
    d = np.sqrt(np.maximum(floats(curve["kl"]), 0))
    gain = floats(curve["accuracy"]) - curve["accuracy"][0]
    alpha, minus_beta = np.linalg.lstsq(np.stack([d, d**2], -1), gain, rcond=None)[0]
    return np.array([alpha, -minus_beta])
