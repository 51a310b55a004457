"""Figures of step scores: reliability and histogram."""

from pathlib import Path

import numpy as np

from prm_jax.figures.style import BLUE, GREY, ORANGE, floats, panels, save


def draw(results: dict, folder: Path) -> list[Path]:
    """Draws one page for each setting of the runs."""
    groups = results["groups"]
    paths = []
    for i, group in enumerate(groups):
        runs = [results["runs"][k] for k in group["members"]]
        name = f"steps_{i}.png" if len(groups) > 1 else "steps.png"
        paths.append(save(step_page(group["means"], runs), folder / name))
    return paths


def step_page(means: dict, runs: list[dict]):
    """Draws reliability and score histogram of the runs of one setting."""
    figure, ((left, right),) = panels(1, 2, 3.2, 7.5)
    number = {name: f"{floats(means[name]):.3f}" for name in ("ece", "brier", "step_auroc")}
    for run in runs:  # larger dots: more steps
        n, x, y = (floats(run["reliability"][name]) for name in ("n", "mean_score", "mean_label"))
        left.plot(x[n > 0], y[n > 0], color=BLUE, linewidth=1, alpha=0.5)
        left.scatter(x[n > 0], y[n > 0], s=3 + 7 * np.log10(n[n > 0]), color=BLUE)
    left.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle="--")
    left.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
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
