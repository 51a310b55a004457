"""Figures of ProcessBench and PRMBench beside published verifiers."""

from pathlib import Path

import numpy as np

from prm_jax.figures.style import BLUE, OUTSIDE, floats, line_style, panels, percent, plain, save

OURS = "this verifier"


def about(results: dict, text: str) -> str:
    """A caption: the verifier, its threshold, `text`, where published numbers are from."""
    caption = f"{results['verifier']}; a step below {results['threshold']:.4g} is bad; {text}"
    source = results["published"]["source"]
    return f"{caption}. Published: {source}" if source else caption


def processbench_figures(results: dict, folder: Path) -> list[Path]:
    """Draws F1 per split, a row a verifier sorted by the mean over the splits shown, beside the published
    ones; this one in colour, with intervals."""
    splits, published = results["splits"], results["published"]["f1"]
    tables = {OURS: {name: x["f1"] for name, x in splits.items()}}
    if any(name in table for table in published.values() for name in splits):
        tables |= published
    for system, table in tables.items():  # a published mean over more splits is another number
        tables[system] = table | {"mean": np.mean(floats([table.get(name) for name in splits]))}
    order = sorted(tables, key=lambda system: np.nan_to_num(tables[system]["mean"]))
    intervals = {name: x["f1_interval"] for name, x in splits.items()} | {"mean": results["mean_f1_interval"]}
    columns = list(intervals) if len(splits) > 1 else list(splits)
    row, colours = order.index(OURS), [BLUE if system == OURS else "#CFCFCF" for system in order]
    figure, axes_C = panels(1, len(columns), 1.1 + 0.21 * len(order), 2.6 + 1.75 * len(columns), sharey=True)
    for axes, column in zip(axes_C[0], columns, strict=True):
        f1 = percent([tables[system].get(column) for system in order])
        axes.barh(range(len(order)), f1, height=0.72, color=colours)
        axes.plot(percent(intervals[column]), [row, row], color="black", linewidth=1)
        for y, x in enumerate(f1):
            if np.isfinite(x):
                axes.text(x + 1.5, y - 0.3 * (y == row), f"{x:.1f}", va="center", fontsize=6.5)
        axes.set(xlim=(0, 112), ylim=(-0.6, len(order) - 0.4), xticks=[0, 25, 50, 75, 100], xlabel="F1 (%)")
        axes.set_title(plain(column))
    axes_C[0, 0].set_yticks(range(len(order)), order, fontsize=7.5)
    figure.suptitle("ProcessBench: F1 of finding the first wrong step", fontsize=10)
    text = about(results, "line: 95 % bootstrap interval over problems")
    return [save(figure, folder / "processbench.png", text, results)]


def prmbench_figures(results: dict, folder: Path) -> list[Path]:
    """Draws PRMScore per class and overall: bars with intervals; published verifiers as markers."""
    values = {name: (x["prmscore"], x["prmscore_interval"]) for name, x in results["classes"].items()}
    values["all steps"] = results["overall"], results["overall_interval"]
    tables = results["published"]["prmscore"]
    figure, ((axes,),) = panels(1, 1, 4.2, 11)
    for x, (name, (value, interval)) in enumerate(values.items()):
        axes.bar(x, percent(value), color=BLUE, alpha=0.2, label=OURS if name == "all steps" else "")
        axes.plot([x, x], percent(interval), color=BLUE, linewidth=2, zorder=1)
        axes.text(x, 2, f"{percent(value):.1f}", ha="center", color=BLUE, weight="bold")
    for i, (system, table) in enumerate(tables.items()):
        places = np.arange(len(values)) + 0.11 * (i - (len(tables) - 1) / 2)
        shown = [table.get("overall" if name == "all steps" else name) for name in values]
        axes.plot(places, percent(shown), **line_style(i + 1) | {"linestyle": "none"}, label=system)
    axes.set_xticks(range(len(values)), values, fontsize=6.5, rotation=40, ha="right")
    axes.set(ylabel="PRMScore (%)", ylim=(0, 106))
    axes.legend(**OUTSIDE)
    name = "PRMBench" if tables else "Socratic-PRMBench"
    figure.suptitle(f"{name}: PRMScore by class of error", fontsize=10)
    text = "PRMScore: mean of F1 on good and on bad steps; line: 95 % bootstrap interval over problems"
    return [save(figure, folder / "prmbench.png", about(results, text), results)]
