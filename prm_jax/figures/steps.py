"""Figures of step scores: reliability and histogram."""

from pathlib import Path

import numpy as np

from prm_jax.figures.style import BLUE, GREY, ORANGE, floats, line_style, panels, save


def step_figures(results: dict, folder: Path) -> list[Path]:
    """Draws one page for each setting of the runs."""
    groups, paths = results["groups"], []
    for i, group in enumerate(groups):
        runs = [results["runs"][k] for k in group["members"]]
        name = f"steps_{i}.png" if len(groups) > 1 else "steps.png"
        paths.append(save(step_page(group["means"], runs), folder / name))
    return paths


def step_page(means: dict, runs: list[dict]):
    """Draws reliability and score histogram of the runs of one setting."""
    figure, ((left, right),) = panels(1, 2, 3.2, 7.5)
    number = {name: f"{floats(means[name]):.3f}" for name in ("ece", "brier", "step_auroc")}
    reliability(left, [(run["reliability"], 0, None) for run in runs])
    left.set(xlabel="predicted P(step good)", ylabel="share of good steps (dashed: perfect)")
    left.set_title(f"Reliability (ECE {number['ece']}, Brier {number['brier']})")
    for name, colour in (("good", BLUE), ("bad", ORANGE)):
        n = np.maximum(np.mean([run["histogram"][name] for run in runs], axis=0), 0.5)  # 0 has no logarithm
        style = {"color": colour, "fill": True, "alpha": 0.55, "label": f"{name} steps", "baseline": 0.5}
        right.stairs(n, np.linspace(0, 1, len(n) + 1), **style)
    right.set(xlabel="predicted P(step good)", ylabel="steps (log scale)", yscale="log")
    right.set_title(f"Step scores (AUROC {number['step_auroc']})")
    right.legend()
    return figure


def reliability(axes, curves):
    """Draws mean label against mean score of each bin, larger dots for more steps. curves: (reliability
    table, index of the line style, label) of each."""
    for curve, i, label in curves:
        n, x, y = (floats(curve[name]) for name in ("n", "mean_score", "mean_label"))
        n, x, y, style = n[n > 0], x[n > 0], y[n > 0], line_style(i)
        axes.plot(x, y, color=style["color"], linewidth=1, alpha=0.5)
        axes.scatter(x, y, s=3 + 7 * np.log10(n), color=style["color"], marker=style["marker"], label=label)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle="--")
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
