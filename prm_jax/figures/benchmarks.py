"""Figures of ProcessBench and PRMBench beside published verifiers."""

from pathlib import Path

import numpy as np

from prm_jax.figures.style import BLUE, GREY, OUTSIDE, floats, line_style, panels, percent, plain, save

OURS = "this verifier"


def about(results: dict, text: str) -> str:
    """A caption: the verifier, its threshold, `text`, where published numbers are from."""
    caption = f"{results['verifier']}; a step below {results['threshold']:.4g} is bad; {text}"
    source = results["published"]["source"]
    return f"{caption}. Published: {source}" if source else caption


def processbench_figures(results: dict, folder: Path) -> list[Path]:
    """Draws F1 per split beside the published verifiers, and F1 against the threshold."""
    bars = about(results, "line: 95 % bootstrap interval over problems")
    curves = about(
        results, "legend: F1 there, then the best of the curve, chosen on the same rows and so optimistic"
    )
    return [
        save(processbench_bars(results), folder / "processbench.png", bars, results),
        save(processbench_thresholds(results), folder / "processbench_threshold.png", curves, results),
    ]


def processbench_bars(results: dict):
    """Draws a row a verifier, sorted by the mean over the splits shown; this one in colour, with
    intervals."""
    splits, published = results["splits"], results["published"]["f1"]
    columns = [*splits, "mean"] if len(splits) > 1 else list(splits)
    tables = {OURS: {name: x["f1"] for name, x in splits.items()}}
    if any(name in table for table in published.values() for name in splits):
        tables |= published
    # The mean of the splits shown; a published mean over more is another number.
    means = {
        system: np.mean(floats([table.get(name) for name in splits])) for system, table in tables.items()
    }
    tables = {system: table | {"mean": means[system]} for system, table in tables.items()}
    order = sorted(tables, key=lambda system: np.nan_to_num(means[system]))
    row, height = order.index(OURS), 1.1 + 0.21 * len(order)
    intervals = {name: x["f1_interval"] for name, x in splits.items()} | {"mean": results["mean_f1_interval"]}
    figure, axes_C = panels(1, len(columns), height, 2.6 + 1.75 * len(columns), sharey=True)
    for axes, column in zip(axes_C[0], columns, strict=True):
        f1 = percent([tables[system].get(column) for system in order])
        axes.barh(
            range(len(order)),
            f1,
            height=0.72,
            color=[BLUE if i == row else "#CFCFCF" for i in range(len(f1))],
        )
        axes.plot(percent(intervals[column]), [row, row], color="black", linewidth=1)
        for y, x in enumerate(f1):
            if np.isfinite(x):
                axes.text(x + 1.5, y - 0.3 * (y == row), f"{x:.1f}", va="center", fontsize=6.5)
        axes.set(xlim=(0, 112), ylim=(-0.6, len(order) - 0.4), xticks=[0, 25, 50, 75, 100], xlabel="F1 (%)")
        axes.set_title(plain(column))
    axes_C[0, 0].set_yticks(range(len(order)), order, fontsize=7.5)
    axes_C[0, 0].get_yticklabels()[row].set(color=BLUE, weight="bold")
    figure.suptitle("ProcessBench: F1 of finding the first wrong step", fontsize=10)
    return figure


def processbench_thresholds(results: dict):
    """Draws F1 of every split, and their mean, against the threshold; the threshold in use is marked."""
    x, threshold = floats(results["curve"]["threshold"]), results["threshold"]
    curves = {name: percent(y) for name, y in results["curve"]["f1"].items()}
    f1 = {name: split["f1"] for name, split in results["splits"].items()}
    if len(curves) > 1:
        curves["mean"], f1["mean"] = np.mean(list(curves.values()), axis=0), results["mean_f1"]
    figure, ((axes,),) = panels(1, 1, 3.6)
    for i, (name, y) in enumerate(curves.items()):
        at_threshold = percent(f1[name])
        if np.isfinite(at_threshold):
            style = line_style(i)
            axes.plot(x, y, **style | {"marker": ""})
            label = plain(f"{name}: {at_threshold:.1f}, best {y.max():.1f} at {x[y.argmax()]:.2f}")
            axes.plot(threshold, at_threshold, **style | {"markersize": 6}, label=label)
    axes.axvline(threshold, color=GREY, linewidth=0.8, linestyle="--", zorder=0)
    axes.set(xlabel="threshold on P(step good): a step below it is bad", ylabel="F1 (%)", ylim=(0, 100))
    if axes.get_legend_handles_labels()[0]:  # an F1 may be undefined in every split
        axes.legend(**OUTSIDE)
    axes.set_title("ProcessBench: F1 against the threshold")
    return figure


def prmbench_figures(results: dict, folder: Path) -> list[Path]:
    """Draws PRMScore per class, by group, and overall: bars with intervals; published verifiers as
    markers."""
    text = "PRMScore: mean of F1 on good and on bad steps; line: 95 % bootstrap interval over problems"
    return [save(prmbench_bars(results), folder / "prmbench.png", about(results, text), results)]


def prmbench_bars(results: dict):
    blocks = {name: group["classes"] for name, group in results["groups"].items()}
    grouped = [name for names in blocks.values() for name in names]
    if others := [name for name in results["classes"] if name not in grouped]:
        blocks["other"] = others
    blocks["all steps"] = ["overall"]
    values = {name: (x["prmscore"], x["prmscore_interval"]) for name, x in results["classes"].items()}
    values["overall"] = results["overall"], results["overall_interval"]
    places = {}
    for b, names in enumerate(blocks.values()):
        places |= {name: i + 0.6 * b for i, name in enumerate(names, len(places))}
    figure, ((axes,),) = panels(1, 1, 4.2, 11)
    for name, (value, interval) in values.items():
        axes.bar(places[name], percent(value), color=BLUE, alpha=0.2, label=OURS if name == "overall" else "")
        axes.plot([places[name]] * 2, percent(interval), color=BLUE, linewidth=2, zorder=1)
        axes.text(places[name], 2, f"{percent(value):.1f}", ha="center", color=BLUE, weight="bold")
    tables = results["published"]["prmscore"]
    for i, (system, table) in enumerate(tables.items()):
        shift = 0.11 * (i - (len(tables) - 1) / 2)
        known = [name for name in places if name in table]
        x = [places[name] + shift for name in known]
        axes.plot(
            x,
            percent([table[name] for name in known]),
            **line_style(i + 1) | {"linestyle": "none"},
            label=system,
        )
    for block, names in blocks.items():
        score = percent(results["groups"].get(block, {}).get("prmscore"))
        text = f"{block} {score:.1f}" if np.isfinite(score) else block
        axes.text(np.mean([places[name] for name in names]), 107, text, ha="center", weight="bold")
    labels = [name if name in values else f"{name} (no rows)" for name in places]
    axes.set_xticks(list(places.values()), labels, fontsize=6.5, rotation=40, ha="right")
    axes.set(ylabel="PRMScore (%)", ylim=(0, 106))
    axes.legend(**OUTSIDE)
    figure.suptitle(
        f"{'PRMBench' if tables else 'Socratic-PRMBench'}: PRMScore by class of error", fontsize=10
    )
    return figure
