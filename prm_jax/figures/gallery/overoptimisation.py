"""Gold and proxy against KL, reweighted (lines) and best of n (markers): a column by layers, a column by training steps."""

import math

import numpy as np

from prm_jax.figures.paper import scorer_of, values_of
from prm_jax.figures.pipeline import Stage
from prm_jax.figures.style import Drawn, floats, line_style, panels, square_root


def draw(stages: dict[str, list[Stage]]) -> Drawn:
    pools = {stage.sweep["seed"]: stage.results() for stage in stages["pool"]}
    first = next(iter(pools.values()))
    figure, axes = panels(2, 2, 5.6, sharex=True, sharey="row")
    drawn = Drawn(
        figure, f"{first['n_problems']} problems x {first['n_candidates']} samples; lines: weights exp(score / beta)"
    )
    drawn.text += f"; markers: best of n = 1, 2, 4, ... {first['n_candidates']}"
    for column, (line, key, unit) in enumerate((("by_layers", "layers", "layers"), ("by_steps", "training", "steps"))):
        for i, value in enumerate(values_of(stages[line], key)):
            own = [stage for stage in stages[line] if stage.sweep[key] == value]
            laws = [pools[s.sweep["seed"]]["reward_kl"][scorer_of(pools[s.sweep["seed"]], s)] for s in own]
            most = min(max(floats(law["reweighted"]["kl"])) for law in laws)
            grid = np.linspace(0, math.sqrt(most), 24) ** 2
            fits = [gao_fit(law["best_of_n"]) for law in laws]
            alpha, beta = np.mean(fits, 0)
            drawn.statements.append(
                f"{value} {unit}: gold = start + d ({alpha:.3f} - {beta:.3f} d); runs alpha "
                f"{', '.join(f'{a:.3f}' for a, _ in fits)}, beta {', '.join(f'{b:.3f}' for _, b in fits)}"
            )
            for row, (number, name) in enumerate((("accuracy", "gold"), ("score", "proxy"))):
                y_SX, style = [along(law["reweighted"], number, grid) for law in laws], line_style(i)
                series = f"{value} {unit if value != 1 else unit[:-1]}"
                at = axes[row, column], f"{name} by {unit}", series
                drawn.curve(*at, grid, y_SX, style | {"marker": ""}, share=row == 0)
                kl, y = (np.mean([floats(law["best_of_n"][k]) for law in laws], 0) for k in ("kl", number))
                axes[row, column].plot(kl, y, **style | {"linestyle": "none", "markerfacecolor": "white"})
        for own, name in zip(axes[:, column], ("gold: share right", "proxy: mean score (nats)"), strict=True):
            square_root(own)
            own.set(xlim=(0, None), xticks=[x for x in (0, 0.25, 1, 2, 4) if x <= own.get_xlim()[1]], title=name)
            own.title.set_fontsize(9)
        axes[1, column].set_xlabel("KL from the policy (nats, square-root axis)")
        axes[0, column].legend(fontsize=7.5, loc="lower left")
    return drawn


def along(law: dict, number: str, grid) -> np.ndarray:
    """A number of a family of laws where its KL takes the values of a grid."""
    kl, y = floats(law["kl"]), floats(law[number])
    order = np.argsort(kl)
    return np.interp(grid, kl[order], y[order])


def gao_fit(law: dict) -> np.ndarray:
    """(alpha, beta) of gold = start + d (alpha - beta d), d = sqrt(KL): Gao et al. 2023, of best-of-n; least squares."""
    d = np.sqrt(np.maximum(floats(law["kl"]), 0))
    gain = floats(law["accuracy"]) - law["accuracy"][0]
    alpha, minus_beta = np.linalg.lstsq(np.stack([d, d**2], -1), gain, rcond=None)[0]
    return np.array([alpha, -minus_beta])
