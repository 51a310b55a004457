"""Gold and proxy against KL, reweighted (lines, dashed with the policy as the reference) and best of n (markers), by training steps."""

import math

import numpy as np

from prm_jax.figures.best_of_n import square_root
from prm_jax.figures.paper import Stages, scorer_of, share_solved, values_of
from prm_jax.figures.style import NO_LINE, Drawn, floats, line_style, panels

LEGEND = {"reweighted": "-", "with_policy": "--"}


def draw(stages: Stages) -> Drawn:
    pools = {stage.sweep["seed"]: stage.results() for stage in stages["pool"]}
    first = next(iter(pools.values()))
    N, weight = first["n_candidates"], first["policy_weight"]
    figure, (axes,) = panels(1, 2, 3.6, sharex=True)
    drawn = Drawn(
        figure, f"{first['n_problems']} problems x {N} samples; lines: weights ref exp(score / beta), ref"
    )
    drawn.text += f" uniform or (dashed) the policy's law; markers: best of n = 1, 2, 4, ... {N}"
    drawn.text += f"; filled: best of {N} by score + {weight:g} log p, drawn at the KL of the score alone"
    for i, value in enumerate(values_of(stages["by_steps"], "training")):
        members = [(pools[s.sweep["seed"]], s) for s in stages["by_steps"] if s.sweep["training"] == value]
        runs = [pool["reward_kl"][scorer_of(pool, stage)] for pool, stage in members]
        series, style = f"{value} steps", line_style(i)
        kl = np.mean([floats(run["best_of_n"]["kl"]) for run in runs], 0)
        for panel, number, name in zip(axes, ("accuracy", "score"), ("gold", "proxy"), strict=True):
            for law in [law for law in LEGEND if all(law in run for run in runs)]:
                ends = [floats(run[law]["kl"]) for run in runs]
                grid = np.linspace(math.sqrt(max(map(min, ends))), math.sqrt(min(map(max, ends))), 24) ** 2
                y_SX, dashes = (
                    [along(run[law], number, grid) for run in runs],
                    {"marker": "", "linestyle": LEGEND[law]},
                )
                label = series + ", the policy's law" * (law == "with_policy")
                drawn.curve(panel, name, label, grid, y_SX, style | dashes, number == "accuracy")
            y = np.mean([floats(run["best_of_n"][number]) for run in runs], 0)
            panel.plot(kl, y, **style | NO_LINE | {"markerfacecolor": "white"})
        for n in [n for n in (4, N) if n <= N]:
            y_S = [share_solved(pool, stage, n) for pool, stage in members]
            drawn.number("gold", f"{series}, best of {n}", y_S, n)
        y_S = [share_solved(pool, stage, N, rule="with_policy") for pool, stage in members]
        mean, *_ = drawn.number("gold", f"{series}, best of {N} + {weight:g} log p", y_S, N)
        axes[0].plot(kl[-1], mean, **style | {"markersize": 6})
        for name, x_S in zip(
            ("alpha", "beta"), np.transpose([gao_fit(run["best_of_n"]) for run in runs]), strict=True
        ):
            drawn.number(name, series, x_S)
            values = ", ".join(f"{x:.3f}" for x in x_S)
            drawn.statements.append(f"{series}: {name} {values} (gold = start + d (alpha - beta d))")
    for panel, label in zip(axes, ("gold: share right", "proxy: mean score (nats)"), strict=True):
        square_root(panel)
        panel.set(xlim=(0, None), xticks=[x for x in (0, 0.25, 1, 2, 4) if x <= panel.get_xlim()[1]])
        panel.set(xlabel="KL from the reference (nats, square-root axis)", ylabel=label)
    drawn.legend_above(axes[0], 3)
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
