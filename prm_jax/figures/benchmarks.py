"""Figures of ProcessBench and PRMBench beside published verifiers."""

import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from prm_jax.figures.style import BLUE, GREY, commit, line_style, plain, save


def benchmark_caption(figure, results: dict, n: str, text: str):
    start = f"{n}; {results['verifier']}; a step below {results['threshold']:.4g} is bad (threshold: "
    start += f"{results['threshold_origin']}); {text}. {commit(results)}"
    width = int(20 * figure.get_figwidth())  # characters of this size
    figure.text(0, -0.02, plain(textwrap.fill(start, width)), fontsize=6.5, color=GREY, va="top")


def processbench_figures(results: dict, folder: Path) -> list[Path]:
    """F1 per split beside the published verifiers; F1 against the threshold."""
    bars = processbench_bars(results, folder / "processbench.png")
    return [bars, processbench_thresholds(results, folder / "processbench_threshold.png")]


def processbench_bars(results: dict, path: Path) -> Path:
    """One row a verifier, sorted by the mean over the splits that all of them have; this one in colour, with intervals."""
    splits, published = results["splits"], results["published"]["f1"]
    shared = [name for name in splits if all(name in table for table in published.values())]
    mine, columns = "this verifier", [*splits, "mean"] if len(splits) > 1 else list(splits)
    tables = {mine: {name: x["f1"] for name, x in splits.items()}} | (published if shared else {})
    # The mean of the splits shown; a published mean over more is another number.
    mean = lambda table: np.mean([table.get(name, np.nan) for name in splits])
    tables = {system: table | {"mean": mean(table)} for system, table in tables.items()}
    intervals = {name: x["f1_interval"] for name, x in splits.items()} | {"mean": results["mean_f1_interval"]}
    rank = {system: np.mean([table[name] for name in shared or splits]) for system, table in tables.items()}
    order = sorted(tables, key=lambda system: np.nan_to_num(rank[system]))
    size = 2.6 + 1.75 * len(columns), 1.1 + 0.21 * len(order)
    figure, all_axes = plt.subplots(1, len(columns), figsize=size, layout="constrained", sharey=True, squeeze=False)
    for axes, column in zip(all_axes[0], columns, strict=True):
        for y, system in enumerate(order):
            is_mine, f1 = system == mine, 100 * tables[system].get(column, np.nan)
            if not np.isfinite(f1):
                axes.text(1, y, "undefined" if is_mine else "", va="center", fontsize=6.5, color=GREY)
                continue
            axes.barh(y, f1, height=0.72, color=BLUE if is_mine else "#CFCFCF")
            end = f1
            if is_mine:
                interval = 100 * np.array(intervals[column])
                axes.plot(interval, [y, y], color="black", linewidth=1)
                end = np.nanmax([f1, *interval])
            weight = "bold" if is_mine else "normal"
            axes.text(end + 1.5, y, f"{f1:.1f}", va="center", fontsize=6.5, weight=weight)
        axes.set(xlim=(0, 112), ylim=(-0.6, len(order) - 0.4), xticks=[0, 25, 50, 75, 100], xlabel="F1 (%)")
        axes.set_title(plain(f"mean of {len(splits)} splits" if column == "mean" else column), fontsize=9)
        axes.tick_params(axis="y", length=0)
    all_axes[0, 0].set_yticks(range(len(order)), order, fontsize=7.5)
    all_axes[0, 0].get_yticklabels()[order.index(mine)].set(color=BLUE, weight="bold")
    figure.suptitle("ProcessBench: F1 of finding the first wrong step", fontsize=10)
    text = "line: 95 % bootstrap interval over problems"
    text += f". Grey, as published: {results['published']['source']}" if shared else ""
    benchmark_caption(figure, results, f"{results['n_rows']} solutions", text)
    return save(figure, path)


def processbench_thresholds(results: dict, path: Path) -> Path:
    """F1 of every split, and their mean, against the threshold; the one used is marked."""
    x, curves = np.array(results["curve"]["threshold"]), results["curve"]["f1"]
    lines = {
        name: (100 * np.array(y, float), results["splits"][name]["f1"], line_style(i))
        for i, (name, y) in enumerate(curves.items())
    }
    if len(lines) > 1:
        mean = np.mean([y for y, *_ in lines.values()], axis=0)
        lines["mean"] = mean, results["mean_f1"], {"color": "black", "marker": "D", "linewidth": 2.2}
    threshold = results["threshold"]
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for name, (y, f1, style) in lines.items():
        if np.isnan(f1):
            continue
        marker = {"marker": style.pop("marker"), "color": style["color"], "markersize": 6}
        style.pop("markersize", None)
        label = plain(f"{name}: {100 * f1:.1f}, best {y.max():.1f} at {x[y.argmax()]:.2f}")
        axes.plot(x, y, **style)
        axes.plot(threshold, 100 * f1, markeredgecolor="white", **marker)
        axes.plot([], [], label=label, linewidth=style["linewidth"], **marker)
    axes.axvline(threshold, color=GREY, linewidth=0.8, linestyle="--", zorder=0)
    at = {"xytext": (4, -2), "textcoords": "offset points", "va": "top", "color": GREY, "fontsize": 7.5}
    axes.annotate(plain(f"{threshold:.4g}\n({results['threshold_origin']})"), (threshold, 100), **at)
    axes.set(xlabel="threshold on P(step good): a step below it is bad", ylabel="F1 (%)")
    axes.set(xlim=(-0.01, 1.01), ylim=(0, 100))
    axes.legend(frameon=False, fontsize=7.5, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.set_title("ProcessBench: F1 against the threshold", fontsize=10)
    text = "legend: F1 there, then the best of the curve, chosen on the same rows and so optimistic"
    benchmark_caption(figure, results, f"{results['n_rows']} solutions", text)
    return save(figure, path)


def prmbench_figures(results: dict, folder: Path) -> list[Path]:
    """PRMScore per class, in the paper's three groups, and overall: bars with intervals; published verifiers as markers."""
    known = [name for group in results["groups"].values() for name in group["classes"]]
    others = [name for name in results["classes"] if name not in known]
    blocks = {name: group["classes"] for name, group in results["groups"].items()}
    blocks |= {"other": others} if others else {}
    blocks["all steps"] = ["overall"]
    values = {name: (x["prmscore"], x["prmscore_interval"]) for name, x in results["classes"].items()}
    values["overall"] = results["overall"], results["overall_interval"]
    places, x = {}, 0.0
    for names in blocks.values():
        places |= {name: x + i for i, name in enumerate(names)}
        x += len(names) + 0.6
    figure, axes = plt.subplots(figsize=(11, 4.2), layout="constrained")
    for name, (value, interval) in values.items():
        axes.bar(places[name], 100 * value, width=0.8, color=BLUE, alpha=0.2)
        axes.plot([places[name]] * 2, 100 * np.array(interval), color=BLUE, linewidth=2, zorder=1)
        axes.text(places[name], 2, f"{100 * value:.1f}", ha="center", color=BLUE, weight="bold")
    handles = [plt.Rectangle((0, 0), 1, 1, color=BLUE, alpha=0.2, label="this verifier")]
    tables = results["published"]["prmscore"]
    for i, (system, table) in enumerate(tables.items()):
        shift = 0.11 * (i - (len(tables) - 1) / 2)
        style = line_style(i + 1) | {"linestyle": "none", "markersize": 5.5, "markeredgecolor": "white"}
        x, y = zip(*[(place + shift, 100 * table[name]) for name, place in places.items() if name in table])
        handles += axes.plot(x, y, **style, markeredgewidth=0.5, label=system)
    for block, names in blocks.items():
        at, mean = np.mean([places[name] for name in names]), results["groups"].get(block, {}).get("prmscore")
        number = "" if mean is None or not np.isfinite(mean) else f" {100 * mean:.1f}"
        axes.text(at, 107, f"{block}{number}", ha="center", va="bottom", fontsize=9, weight="bold")
    labels = [name.replace("_", "\n") + ("" if name in values else "\n(no rows)") for name in places]
    axes.set_xticks(list(places.values()), labels, fontsize=6.5)
    axes.tick_params(axis="x", length=0)
    axes.set(ylabel="PRMScore (%)", ylim=(0, 106), yticks=[0, 20, 40, 60, 80, 100])
    axes.legend(handles=handles, frameon=False, fontsize=7.5, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.suptitle("PRMBench: PRMScore by class of error", fontsize=10)
    text = "PRMScore: mean of F1 on good and on bad steps; of multi_solutions, which has no bad step, F1 on good steps"
    text += ". Group: mean of its classes. Line: 95 % bootstrap interval over problems. Markers, as published: "
    text += results["published"]["source"]
    benchmark_caption(figure, results, f"{results['n_rows']} rows, {results['n_steps']} steps", text)
    return [save(figure, folder / "prmbench.png")]
