"""Figures of step scores: reliability, histogram, accuracy by position, errors by kind, exact values, one solution."""

import hashlib
import re
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LinearSegmentedColormap

from prm_jax.data.units import UNITS
from prm_jax.figures.style import BLUE, GREY, ORANGE, Drawn, floats, line_style, panels, plain, save

BAD_TO_GOOD = LinearSegmentedColormap.from_list("bad_to_good", [ORANGE, "#F0E442", BLUE])


def step_text(group: dict, runs: list[dict]) -> str:
    """A caption: solutions, steps, setting, seeds, cost."""
    text = f"{group['n_solutions']:.0f} solutions, {group['n_steps']:.0f} labelled steps"
    text += f" of the {runs[0]['data']['name']} data; {runs[0]['verifier']}"
    text += "" if len(runs) == 1 else f" and {len(runs) - 1} more runs: means"
    text += "".join(f"; {key}={value}" for key, value in group.get("setting", {}).items())
    for key, name in (("train_seed", "seed"), ("train_seconds", "training seconds")):
        values = [f"{run[key]:.0f}" for run in runs if run.get(key) is not None]
        text += f"; {name} {', '.join(values)}" if values else ""
    return text


def step_figures(results: dict, folder: Path) -> list[Path]:
    """Draws one page for each setting of the runs and, of an embedded task, missed errors and exact values."""
    groups = [(results, results["runs"], "steps.png")]
    if "groups" in results:
        members = [[results["runs"][i] for i in group["runs"]] for group in results["groups"]]
        groups = [
            (*pair, f"steps_{i}.png") for i, pair in enumerate(zip(results["groups"], members, strict=True))
        ]
    pages = [step_page(group, runs, results, folder / name) for group, runs, name in groups]
    if "errors" in results["runs"][0]:
        pages += [errors_figure(groups[0][1], results, folder / "errors.png")]
    if exact := {run_names(runs): runs for _, runs, _ in groups if all("value_depth" in run for run in runs)}:
        drawn, n, data = draw_value_depth(exact), len(results["runs"]), results["runs"][0]["data"]
        text = (
            "; bands: 95 % bootstrap intervals over problems, of several seeds 95 % t intervals of their mean"
        )
        text += f"; {data['name']} data; value: P(right answer from here) by its noisy solver or exact play; {n} run{'s' * (n > 1)}"
        pages += [save(drawn.figure, folder / "value_depth.png", drawn.text + text, results)]
    return pages


def draw_value_depth(groups: dict[str, list[dict]]) -> Drawn:
    """Scores minus exact values by the steps done and left: mean difference above, mean magnitude below.
    groups: {name: runs of task=steps that differ in their seed alone}."""
    figure, axes = panels(2, 2, 5.2, sharex="col", sharey="row")
    first = next(iter(groups.values()))[0]
    text = "held-out samples; dashed: a constant, the mean value at the depth"
    drawn = Drawn(figure, f"{first['n_solutions']:.0f} {text}")
    for column, side in enumerate(("done", "left")):
        depths = first["value_depth"][side]
        depth = sorted(depths, key=int)
        x = floats(depth)
        for row, (number, title) in enumerate((("bias", "score - value"), ("error", "|score - value|"))):
            for i, (name, runs) in enumerate(groups.items()):
                tables = [run["value_depth"][side] for run in runs]
                # A depth that a run of other data lacks is not drawn for it.
                y_SX = [floats([table.get(d, {}).get(number) for d in depth]) for table in tables]
                interval = [tables[0].get(d, {}).get(f"{number}_interval", (None, None)) for d in depth]
                interval = floats(interval).reshape(-1, 2).T if len(runs) == 1 else None
                drawn.curve(axes[row, column], name, x, y_SX, line_style(i), share=False, interval=interval)
            axes[row, column].set_title(f"mean of {title}", fontsize=9)
        axes[0, column].axhline(0, color=GREY, linewidth=0.9, linestyle="--")
        constant = floats([depths[d]["constant"] for d in depth])
        axes[1, column].plot(x, constant, color=GREY, linewidth=1.2, linestyle="--")
        axes[1, column].set(xlabel=f"steps {side}", xticks=x)
    drawn.legend_above(axes[0, 0], 3)
    return drawn


def run_names(runs: list[dict]) -> str:
    """The folder of the first run, and how many more."""
    name = Path(runs[0]["verifier"].split(" step ")[0]).name
    return name if len(runs) == 1 else f"{name} and {len(runs) - 1} more"


def errors_figure(runs: list[dict], results: dict, path: Path) -> Path:
    """Draws the share of the first wrong lines that a verifier takes for right, by kind of error, frequent ones first:
    against training steps, where the runs recorded it, and of the held-out solutions."""
    held_out, learning = [run["errors"]["kinds"] for run in runs], [run["errors"]["learning"] for run in runs]
    steps = sorted(set.intersection(*map(set, learning)), key=int)
    kinds, n = sorted(held_out[0], key=lambda kind: -held_out[0][kind]["n"]), len(runs)
    figure, (axes,) = panels(1, 1 + bool(steps), 3.4, sharey=True)
    drawn, last = Drawn(figure, f"P(step good) >= {floats(results['threshold']):g}"), axes[-1]
    for i, kind in enumerate(kinds):
        style, missed_S = line_style(i), floats([run.get(kind, {}).get("missed") for run in held_out])
        low, high = held_out[0][kind]["interval"] if n == 1 else (np.nanmin(missed_S), np.nanmax(missed_S))
        last.vlines(i, *floats([low, high]), color=style["color"], linewidth=1.2, alpha=0.5)
        last.plot([i] * n, missed_S, **style | {"linestyle": "none", "alpha": 1 if n == 1 else 0.5})
        if steps:
            y_SX = floats([[run[step].get(kind, {}).get("missed") for step in steps] for run in learning])
            drawn.curve(axes[0], kind, floats(steps), y_SX, style, band=False)
            axes[0].set(xlabel="training steps", title="validation solutions, while it trains")
    labels = [plain(f"{kind}\n{held_out[0][kind]['n']}") for kind in kinds]
    last.set_xticks(range(len(kinds)), labels, fontsize=7.5)
    last.set(xlabel="kind of error, how many", xlim=(-0.5, len(kinds) - 0.5), title="held-out solutions")
    axes[0].set(ylim=(-0.03, 1.03), ylabel="first wrong lines taken for right")
    bars = "95 % bootstrap intervals over problems"
    if n > 1:
        bars = f"lowest to highest of {n} runs" + "; left their mean" * bool(steps)
    text = f"{drawn.text}; bars: {bars}; {run_names(runs)}; {runs[0]['data']['name']} data"
    counts = [f"{kind} {row['n']}" for step in steps[-1:] for kind, row in learning[0][step].items()]
    text += f"; left, in the same colours: {', '.join(counts)}" * bool(counts)
    return save(figure, path, text, results)


def step_page(group: dict, runs: list[dict], results: dict, path: Path) -> Path:
    """Draws reliability, score histogram, and accuracy by position of the runs of one setting."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.2))
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
    right.set_yticks([y for y in right.get_yticks() if right.get_ylim()[0] <= y < 1.001])
    right.set_title(f"By position (first-error F1 {number['first_error_f1']})")
    right.legend()
    return save(figure, path, step_text(group, runs), results)


def reliability(axes, curves):
    """Draws mean label against mean score of each bin, larger dots for more steps; dashed: perfect calibration. curves:
    (reliability table, index of the line style, label) of each."""
    for curve, i, label in curves:
        n, x, y = (floats(curve[name]) for name in ("n", "mean_score", "mean_label"))
        n, x, y, style = n[n > 0], x[n > 0], y[n > 0], line_style(i)
        axes.plot(x, y, color=style["color"], linewidth=1, alpha=0.5)
        axes.scatter(x, y, s=3 + 7 * np.log10(n), color=style["color"], marker=style["marker"], label=label)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle="--")
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))


def solution_figures(results: dict, folder: Path) -> list[Path]:
    """Draws the solutions that the key `figures` of task=score names."""
    return [solution_figure(drawn, results, folder) for drawn in results["drawn"]]


def solution_figure(drawn: dict, results: dict, folder: Path) -> Path:
    """Draws one solution (id, problem, steps, scores): a bar for every step's score, the weakest step marked; the axis
    of an unbounded unit ends at the extremes of this solution, 0 included."""
    score_T, steps, unit = floats(drawn["scores"]), drawn["steps"], UNITS[results["shown_unit"]]
    low = unit.low if np.isfinite(unit.low) else min(0.0, score_T.min())
    high = unit.high if np.isfinite(unit.high) else max(0.0, score_T.max())
    high = high if high > low else low + 1.0
    wrapped = [
        plain(textwrap.shorten(f"{t + 1}. {step}", 90, placeholder=" ...")) for t, step in enumerate(steps)
    ]
    figure, axes = plt.subplots(figsize=(9, 1.3 + 0.32 * len(steps)))
    weakest = int(np.argmin(score_T))
    color_T = BAD_TO_GOOD((score_T - low) / (high - low))
    axes.barh(range(len(steps)), score_T, color=color_T, edgecolor="none", height=0.7)
    axes.barh([weakest], [high - low], left=low, color="none", edgecolor="black", height=0.86, linewidth=1.2)
    for t, score in enumerate(score_T):
        mark, weight = ("  ← weakest", "bold") if t == weakest else ("", "normal")
        axes.text(high + 0.02 * (high - low), t, f"{score:.3f}{mark}", va="center", fontweight=weight)
    threshold = floats(results["threshold"])
    axes.axvline(threshold, color=GREY, linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(steps)), wrapped)
    axes.set(xlim=(low, high), xlabel=f"{unit.name}, threshold {threshold:g}")
    axes.invert_yaxis()
    title = textwrap.shorten(drawn["problem"], 220, placeholder=" ...")
    axes.set_title(plain(textwrap.fill(title, 100)), loc="left")
    path = folder / f"solution_{file_name(drawn['id'])}.png"
    return save(figure, path, f"{drawn['id']}; {results['verifier']}", results)


def file_name(i: str) -> str:
    """An id as part of a file's name; one with other characters gets a digest, so that no two collide."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", i)[:60]
    return name if name == i else f"{name}_{hashlib.sha256(i.encode()).hexdigest()[:8]}"
