"""Figures of step scores: reliability, histogram, accuracy by position, one solution."""

import re
import textwrap
from pathlib import Path

import numpy as np

from prm_jax.figures.style import BLUE, GREY, ORANGE, floats, line_style, panels, plain, save


def step_figures(results: dict, folder: Path) -> list[Path]:
    """Draws one page for each setting of the runs."""
    runs, paths = results["runs"], []
    for i, group in enumerate(results.get("groups", [results])):
        members = [runs[k] for k in group["runs"]] if "groups" in results else runs
        name = f"steps_{i}.png" if "groups" in results else "steps.png"
        text = f"{members[0]['verifier']}; {group['n_steps']:.0f} steps of the {runs[0]['data']['name']} data"
        text += f"; means over {len(members)} runs" if len(members) > 1 else ""
        paths.append(save(step_page(group, members), folder / name, text, results))
    return paths


def step_page(group: dict, runs: list[dict]):
    """Draws reliability, score histogram, and accuracy by position of the runs of one setting."""
    figure, ((left, middle, right),) = panels(1, 3, 3.2, 11)
    number = {name: f"{floats(group[name]):.3f}" for name in ("ece", "brier", "step_auroc", "first_error_f1")}
    reliability(left, [(run["reliability"], 0, None) for run in runs])
    left.set(xlabel="predicted P(step good)", ylabel="share of good steps (dashed: perfect)")
    left.set_title(f"Reliability (ECE {number['ece']}, Brier {number['brier']})")
    for name, colour in (("good", BLUE), ("bad", ORANGE)):
        n = np.maximum(np.mean([run["histogram"][name] for run in runs], axis=0), 0.5)  # 0 has no logarithm
        style = {"color": colour, "fill": True, "alpha": 0.55, "label": f"{name} steps", "baseline": 0.5}
        middle.stairs(n, np.linspace(0, 1, len(n) + 1), **style)
    middle.set(xlabel="predicted P(step good)", ylabel="steps (log scale)", yscale="log")
    middle.set_title(f"Step scores (AUROC {number['step_auroc']})")
    middle.legend()
    positions = sorted({int(t) for run in runs for t in run["by_position"]})
    for key, label, colour in (("accuracy", "accuracy", BLUE), ("auroc", "AUROC", ORANGE)):
        rows = [floats([run["by_position"].get(str(t), {}).get(key) for run in runs]) for t in positions]
        mean = [np.nanmean(row) if np.isfinite(row).any() else np.nan for row in rows]
        right.plot(positions, mean, "o-", color=colour, markersize=3, label=label)
    right.set(xlabel="step position", ylabel="accuracy, AUROC", ylim=(None, 1.02), xticks=positions)
    right.set_title(f"By position (first-error F1 {number['first_error_f1']})")
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


def solution_figures(results: dict, folder: Path) -> list[Path]:
    """Draws the solutions that the key `figures` of task=score names."""
    paths = []
    for drawn in results["drawn"]:
        text = f"{drawn['id']}; {results['verifier']}"
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", drawn["id"])[:60]
        path = folder / f"solution_{len(paths)}_{name}.png"
        paths.append(save(solution_figure(drawn, results), path, text, results))
    return paths


def solution_figure(drawn: dict, results: dict):
    """Draws a bar for every step's score, the weakest in orange; dashed: the threshold."""
    score_T, steps, threshold = floats(drawn["scores"]), drawn["steps"], floats(results["threshold"])
    weakest = int(np.argmin(score_T))
    figure, ((axes,),) = panels(1, 1, 1.3 + 0.32 * len(steps), 9)
    colours = [ORANGE if t == weakest else BLUE for t in range(len(steps))]
    bars = axes.barh(range(len(steps)), score_T, color=colours, alpha=0.6, height=0.7)
    axes.bar_label(bars, fmt="{:.3f}", padding=3)
    axes.axvline(threshold, color=GREY, linewidth=0.8, linestyle="--")
    shortened = [textwrap.shorten(f"{t + 1}. {step}", 90, placeholder=" ...") for t, step in enumerate(steps)]
    axes.set_yticks(range(len(steps)), map(plain, shortened))
    axes.set_xlabel(f"{results['shown_unit']}, threshold {threshold:g}")
    if results["shown_unit"] == "probability":
        axes.set_xlim(0, 1)
    axes.invert_yaxis()
    title = textwrap.fill(textwrap.shorten(drawn["problem"], 220, placeholder=" ..."), 100)
    axes.set_title(plain(title), loc="left")
    return figure
