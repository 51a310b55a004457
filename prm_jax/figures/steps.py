"""Figures of step scores: reliability, histogram, accuracy by position; one solution with its steps' scores."""

import re
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from prm_jax.figures.style import BAD_TO_GOOD, BLUE, GREY, ORANGE, plain, save


def caption(figure, results: dict):
    """What a number rests on: solutions, steps, seeds, cost, commit."""
    runs = results["runs"]
    text = f"{results['n_solutions']:.0f} held-out solutions, {results['n_steps']:.0f} labelled steps"
    text += f" of the {runs[0]['data']['name']} data; {runs[0]['verifier']}"
    text += "" if len(runs) == 1 else f" and {len(runs) - 1} more runs: means"
    for key, name in (("train_seed", "seed"), ("train_seconds", "training seconds")):
        values = [f"{run[key]:.0f}" for run in runs if run.get(key) is not None]
        text += f"; {name} {', '.join(values)}" if values else ""
    text += f"; commit {results['versions']['commit'][:10]}"
    figure.text(0, -0.02, plain(textwrap.fill(text, 150)), fontsize=6.5, color=GREY, va="top")


def step_figures(results: dict, folder: Path) -> list[Path]:
    """One page about step scores: reliability, score histogram, and accuracy by position."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    for run in results["runs"]:
        curve = run["reliability"]
        filled = np.array(curve["n"]) > 0
        x, y = np.array(curve["mean_score"], float)[filled], np.array(curve["mean_label"], float)[filled]
        left.plot(x, y, color=BLUE, alpha=0.4, linewidth=1)
        left.scatter(x, y, s=3 + 8 * np.log10(np.array(curve["n"])[filled]), color=BLUE, alpha=0.8)
    left.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle="--", label="perfect calibration")
    left.set(xlabel="predicted P(step good)", ylabel="share of good steps", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    left.set_title(f"Reliability (ECE {results['ece']:.3f}, Brier {results['brier']:.3f})")
    left.legend(frameon=False)

    edges = np.linspace(0, 1, 21)
    for name, colour in (("good", BLUE), ("bad", ORANGE)):
        n = np.mean([run["histogram"][name] for run in results["runs"]], axis=0)
        middle.stairs(
            np.maximum(n, 0.5), edges, color=colour, fill=True, alpha=0.55, label=f"{name} steps", baseline=0.5
        )
    middle.set(xlabel="predicted P(step good)", ylabel="steps (log scale)", yscale="log")
    middle.set_title(f"Step scores (AUROC {results['step_auroc']:.3f})")
    middle.legend(frameon=False)

    positions = sorted({int(t) for run in results["runs"] for t in run["by_position"]})
    for key, colour in (("accuracy", BLUE), ("auroc", ORANGE)):
        rows = [[run["by_position"].get(str(t), {}).get(key, np.nan) for run in results["runs"]] for t in positions]
        mean = [np.nanmean(row) if np.isfinite(row).any() else np.nan for row in np.array(rows, float)]
        right.plot(positions, mean, "o-", color=colour, markersize=3, label="AUROC" if key == "auroc" else "accuracy")
    right.set(xlabel="step position", ylabel="accuracy, AUROC", ylim=(None, 1.0), xticks=positions)
    right.set_title(f"By position (first-error F1 {results['first_error_f1']:.3f})")
    right.legend(frameon=False)
    caption(figure, results)
    return [save(figure, folder / "steps.png")]


def solution_figure(
    name, problem, steps, score_T, threshold: float, folder: Path, verifier: str, bounds=(0.0, 1.0)
) -> Path:
    """One solution: a bar for every step's score, coloured by it, the weakest step marked.

    `bounds` is the range of the scores: where it is infinite the figure ends at the extremes of this solution, 0 included.
    """
    is_probability, score_T = bounds == (0.0, 1.0), np.asarray(score_T)
    low = bounds[0] if np.isfinite(bounds[0]) else min(0.0, score_T.min())
    high = bounds[1] if np.isfinite(bounds[1]) else max(0.0, score_T.max())
    high = high if high > low else low + 1.0
    wrapped = [plain(textwrap.shorten(f"{t + 1}. {step}", 90, placeholder=" ...")) for t, step in enumerate(steps)]
    figure, axes = plt.subplots(figsize=(9, 1.3 + 0.32 * len(steps)), layout="constrained")
    weakest = int(np.argmin(score_T))
    color_T = BAD_TO_GOOD((score_T - low) / (high - low))
    axes.barh(range(len(steps)), score_T, color=color_T, edgecolor="none", height=0.7)
    axes.barh([weakest], [high - low], left=low, color="none", edgecolor="black", height=0.86, linewidth=1.2)
    for t, score in enumerate(score_T):
        mark = "  ← weakest" if t == weakest else ""
        axes.text(
            high + 0.02 * (high - low),
            t,
            f"{score:.3f}{mark}",
            va="center",
            fontweight="bold" if t == weakest else "normal",
        )
    axes.axvline(threshold, color=GREY, linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(steps)), wrapped)
    meaning = "P(step good)" if is_probability else "step score"
    axes.set(xlim=(low, high), xlabel=f"{meaning}, threshold {threshold:g}")
    axes.invert_yaxis()
    axes.set_title(plain(textwrap.fill(textwrap.shorten(problem, 220, placeholder=" ..."), 100)), loc="left")
    figure.text(0, -0.02, plain(f"{name}; {verifier}"), fontsize=6.5, color=GREY, va="top")
    return save(figure, folder / f"solution_{re.sub(r'[^A-Za-z0-9._-]+', '_', str(name))}.png")
