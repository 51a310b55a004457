"""Figures of step scores: reliability, histogram, accuracy by position; one solution with its steps' scores."""

import hashlib
import re
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from prm_jax.data.units import UNITS
from prm_jax.figures.style import BAD_TO_GOOD, BLUE, GREY, ORANGE, commit, plain, save


def caption(figure, group: dict, runs: list[dict], results: dict):
    """What a number rests on: solutions, steps, setting, seeds, cost, commit."""
    text = f"{group['n_solutions']:.0f} held-out solutions, {group['n_steps']:.0f} labelled steps"
    text += f" of the {runs[0]['data']['name']} data; {runs[0]['verifier']}"
    text += "" if len(runs) == 1 else f" and {len(runs) - 1} more runs: means"
    text += "".join(f"; {key}={value}" for key, value in group.get("setting", {}).items())
    for key, name in (("train_seed", "seed"), ("train_seconds", "training seconds")):
        values = [f"{run[key]:.0f}" for run in runs if run.get(key) is not None]
        text += f"; {name} {', '.join(values)}" if values else ""
    text += f"; {commit(results)}"
    figure.text(0, -0.02, plain(textwrap.fill(text, 150)), fontsize=6.5, color=GREY, va="top")


def step_figures(results: dict, folder: Path) -> list[Path]:
    """One page about step scores for each setting of the runs."""
    groups = results.get("groups")
    if groups is None:
        return [step_page(results, results["runs"], results, folder / "steps.png")]
    of = lambda group: [r for r in results["runs"] if all(r["settings"][k] == v for k, v in group["setting"].items())]
    return [step_page(group, of(group), results, folder / f"steps_{i}.png") for i, group in enumerate(groups)]


def step_page(group: dict, runs: list[dict], results: dict, path: Path) -> Path:
    """Reliability, score histogram, and accuracy by position of the runs of one setting."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    for run in runs:
        curve = run["reliability"]
        filled = np.array(curve["n"]) > 0
        x, y = np.array(curve["mean_score"], float)[filled], np.array(curve["mean_label"], float)[filled]
        left.plot(x, y, color=BLUE, alpha=0.4, linewidth=1)
        left.scatter(x, y, s=3 + 8 * np.log10(np.array(curve["n"])[filled]), color=BLUE, alpha=0.8)
    left.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle="--", label="perfect calibration")
    left.set(xlabel="predicted P(step good)", ylabel="share of good steps", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    left.set_title(f"Reliability (ECE {group['ece']:.3f}, Brier {group['brier']:.3f})")
    left.legend(frameon=False)

    edges = np.linspace(0, 1, 21)
    for name, colour in (("good", BLUE), ("bad", ORANGE)):
        n = np.mean([run["histogram"][name] for run in runs], axis=0)
        style = {"color": colour, "fill": True, "alpha": 0.55, "label": f"{name} steps", "baseline": 0.5}
        middle.stairs(np.maximum(n, 0.5), edges, **style)
    middle.set(xlabel="predicted P(step good)", ylabel="steps (log scale)", yscale="log")
    middle.set_title(f"Step scores (AUROC {group['step_auroc']:.3f})")
    middle.legend(frameon=False)

    positions = sorted({int(t) for run in runs for t in run["by_position"]})
    for key, colour in (("accuracy", BLUE), ("auroc", ORANGE)):
        rows = [[run["by_position"].get(str(t), {}).get(key, np.nan) for run in runs] for t in positions]
        mean = [np.nanmean(row) if np.isfinite(row).any() else np.nan for row in np.array(rows, float)]
        label = "AUROC" if key == "auroc" else "accuracy"
        right.plot(positions, mean, "o-", color=colour, markersize=3, label=label)
    right.set(xlabel="step position", ylabel="accuracy, AUROC", ylim=(None, 1.0), xticks=positions)
    right.set_title(f"By position (first-error F1 {group['first_error_f1']:.3f})")
    right.legend(frameon=False)
    caption(figure, group, runs, results)
    return save(figure, path)


def solution_figures(results: dict, folder: Path) -> list[Path]:
    """The solutions that task=score was asked to draw."""
    shown = results["shown_unit"], results["threshold"], f"{results['verifier']}; {commit(results)}"
    return [solution_figure(drawn, *shown, folder) for drawn in results["drawn"]]


def solution_figure(drawn: dict, unit: str, threshold: float, source: str, folder: Path) -> Path:
    """One solution (id, problem, steps, scores): a bar for every step's score, coloured by it, the weakest step marked.

    Where the unit is unbounded the figure ends at the extremes of this solution, 0 included.
    """
    score_T, steps = np.asarray(drawn["scores"]), drawn["steps"]
    low, high = UNITS[unit].low, UNITS[unit].high
    low = low if np.isfinite(low) else min(0.0, score_T.min())
    high = high if np.isfinite(high) else max(0.0, score_T.max())
    high = high if high > low else low + 1.0
    wrapped = [plain(textwrap.shorten(f"{t + 1}. {step}", 90, placeholder=" ...")) for t, step in enumerate(steps)]
    figure, axes = plt.subplots(figsize=(9, 1.3 + 0.32 * len(steps)), layout="constrained")
    weakest = int(np.argmin(score_T))
    color_T = BAD_TO_GOOD((score_T - low) / (high - low))
    axes.barh(range(len(steps)), score_T, color=color_T, edgecolor="none", height=0.7)
    axes.barh([weakest], [high - low], left=low, color="none", edgecolor="black", height=0.86, linewidth=1.2)
    for t, score in enumerate(score_T):
        mark, weight = ("  ← weakest", "bold") if t == weakest else ("", "normal")
        axes.text(high + 0.02 * (high - low), t, f"{score:.3f}{mark}", va="center", fontweight=weight)
    axes.axvline(threshold, color=GREY, linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(steps)), wrapped)
    axes.set(xlim=(low, high), xlabel=f"{UNITS[unit].name}, threshold {threshold:g}")
    axes.invert_yaxis()
    title = textwrap.shorten(drawn["problem"], 220, placeholder=" ...")
    axes.set_title(plain(textwrap.fill(title, 100)), loc="left")
    figure.text(0, -0.02, plain(f"{drawn['id']}; {source}"), fontsize=6.5, color=GREY, va="top")
    return save(figure, folder / f"solution_{file_name(drawn['id'])}.png")


def file_name(i: str) -> str:
    """An id as part of a file's name; one that has to be changed for it gets a digest, so that no two collide."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", i)[:60]
    return name if name == i else f"{name}_{hashlib.sha256(i.encode()).hexdigest()[:8]}"
