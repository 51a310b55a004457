"""ProcessBench beside published verifiers."""

from pathlib import Path

import numpy as np

from prm_jax.figures.style import BLUE, floats, panels, plain, save

OURS = "this verifier"


def processbench_figures(results: dict, folder: Path) -> list[Path]:
    """Draws F1 per split, a row a verifier, sorted by the mean; this one in colour, with intervals."""
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
        f1 = 100 * floats([tables[system].get(column) for system in order])
        axes.barh(range(len(order)), f1, height=0.72, color=colours)
        axes.plot(100 * floats(intervals[column]), [row, row], color="black", linewidth=1)
        for y, x in enumerate(f1):
            if np.isfinite(x):
                axes.text(x + 1.5, y - 0.3 * (y == row), f"{x:.1f}", va="center", fontsize=6.5)
        axes.set(xlim=(0, 112), ylim=(-0.6, len(order) - 0.4), xticks=[0, 25, 50, 75, 100], xlabel="F1 (%)")
        axes.set_title(plain(column))
    axes_C[0, 0].set_yticks(range(len(order)), order, fontsize=7.5)
    figure.suptitle("ProcessBench: F1 of finding the first wrong step", fontsize=10)
    text = f"{results['verifier']}; a step below {results['threshold']:.4g} is bad; "
    text += f"line: 95 % bootstrap interval over problems. Published: {results['published']['source']}"
    return [save(figure, folder / "processbench.png", text, results)]
