"""Figures of ProcessBench and PRMBench beside published verifiers."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from prm_jax.figures.style import BLUE, GREY, OUTSIDE, floats, line_style, percent, plain, save


def benchmark_text(results: dict, n: str, text: str) -> str:
    verifier = f"{results['verifier']}; a step below {results['threshold']:.4g} is bad"
    return f"{n}; {verifier} (threshold: {results['threshold_origin']}); {text}"


def processbench_figures(results: dict, folder: Path) -> list[Path]:
    """Draws F1 per split beside the published verifiers, and F1 against the threshold."""
    bars = processbench_bars(results, folder / "processbench.png")
    return [bars, processbench_thresholds(results, folder / "processbench_threshold.png")]


def processbench_bars(results: dict, path: Path) -> Path:
    """Draws a row a verifier, sorted by the mean over the splits that all have; this one in colour, with intervals."""
    splits, published = results["splits"], results["published"]["f1"]
    shared = [name for name in splits if all(name in table for table in published.values())]
    system, columns = "this verifier", [*splits, "mean"] if len(splits) > 1 else list(splits)
    tables = {system: {name: x["f1"] for name, x in splits.items()}} | (published if shared else {})

    def mean(table: dict, names) -> float:
        return np.mean(floats([table.get(name) for name in names]))

    order = sorted(tables, key=lambda name: np.nan_to_num(mean(tables[name], shared or splits)))
    row = order.index(system)
    # The mean of the splits shown; a published mean over more is another number.
    tables = {name: table | {"mean": mean(table, splits)} for name, table in tables.items()}
    intervals = {name: x["f1_interval"] for name, x in splits.items()} | {"mean": results["mean_f1_interval"]}
    size, colors = (2.6 + 1.75 * len(columns), 1.1 + 0.21 * len(order)), ["#CFCFCF"] * len(order)
    colors[row] = BLUE
    figure, all_axes = plt.subplots(1, len(columns), figsize=size, sharey=True, squeeze=False)
    for axes, column in zip(all_axes[0], columns, strict=True):
        f1 = percent([tables[name].get(column) for name in order])
        axes.barh(range(len(order)), f1, height=0.72, color=colors)
        axes.plot(percent(intervals[column]), [row, row], color="black", linewidth=1)
        texts, ends = [f"{x:.1f}" if np.isfinite(x) else "" for x in f1], np.nan_to_num(f1)
        texts[row], ends[row] = texts[row] or "undefined", np.nanmax([ends[row], *percent(intervals[column])])
        for y, (text, end) in enumerate(zip(texts, ends, strict=True)):
            axes.text(end + 1.5, y, text, va="center", fontsize=6.5, weight="bold" if y == row else "normal")
        axes.set(xlim=(0, 112), ylim=(-0.6, len(order) - 0.4), xticks=[0, 25, 50, 75, 100], xlabel="F1 (%)")
        axes.set_title(plain(f"mean of {len(splits)} splits" if column == "mean" else column), fontsize=9)
        axes.tick_params(axis="y", length=0)
    all_axes[0, 0].set_yticks(range(len(order)), order, fontsize=7.5)
    all_axes[0, 0].get_yticklabels()[row].set(color=BLUE, weight="bold")
    figure.suptitle("ProcessBench: F1 of finding the first wrong step", fontsize=10)
    text = "line: 95 % bootstrap interval over problems"
    text += f". Grey, as published: {results['published']['source']}" if shared else ""
    return save(figure, path, benchmark_text(results, f"{results['n_rows']} solutions", text), results)


def processbench_thresholds(results: dict, path: Path) -> Path:
    """Draws F1 of every split, and their mean, against the threshold; the threshold in use is marked."""
    x, threshold = floats(results["curve"]["threshold"]), results["threshold"]
    curves, splits = results["curve"]["f1"], results["splits"]
    lines = [
        (name, percent(curves[name]), splits[name]["f1"], line_style(i)) for i, name in enumerate(curves)
    ]
    if len(lines) > 1:
        mean = np.mean([y for _, y, *_ in lines], axis=0)
        lines.append(("mean", mean, results["mean_f1"], {"color": "black", "marker": "D", "linewidth": 2.2}))
    figure, axes = plt.subplots(figsize=(6.4, 3.6))
    for name, y, f1, style in lines:
        if np.isfinite(f1 := percent(f1)):
            axes.plot(x, y, **style | {"marker": ""})
            label = plain(f"{name}: {f1:.1f}, best {y.max():.1f} at {x[y.argmax()]:.2f}")
            axes.plot(threshold, f1, **style | {"markersize": 6}, markeredgecolor="white", label=label)
    axes.axvline(threshold, color=GREY, linewidth=0.8, linestyle="--", zorder=0)
    style = {"xytext": (4, -2), "textcoords": "offset points", "va": "top", "color": GREY, "fontsize": 7.5}
    axes.annotate(plain(f"{threshold:.4g}\n({results['threshold_origin']})"), (threshold, 100), **style)
    axes.set(xlabel="threshold on P(step good): a step below it is bad", ylabel="F1 (%)")
    axes.set(xlim=(-0.01, 1.01), ylim=(0, 100))
    if axes.get_legend_handles_labels()[0]:  # an F1 may be undefined in every split
        axes.legend(**OUTSIDE)
    axes.set_title("ProcessBench: F1 against the threshold", fontsize=10)
    text = "legend: F1 there, then the best of the curve, chosen on the same rows and so optimistic"
    return save(figure, path, benchmark_text(results, f"{results['n_rows']} solutions", text), results)


def prmbench_figures(results: dict, folder: Path) -> list[Path]:
    """Draws PRMScore per class, by group, and overall: bars with intervals; published verifiers as markers."""
    blocks = {name: group["classes"] for name, group in results["groups"].items()}
    others = [name for name in results["classes"] if not any(name in names for names in blocks.values())]
    blocks |= ({"other": others} if others else {}) | {"all steps": ["overall"]}
    values = {name: (x["prmscore"], x["prmscore_interval"]) for name, x in results["classes"].items()}
    values["overall"] = results["overall"], results["overall_interval"]
    places = {}
    for b, names in enumerate(blocks.values()):
        places |= {name: i + 0.6 * b for i, name in enumerate(names, len(places))}
    figure, axes = plt.subplots(figsize=(11, 4.2))
    for name, (value, interval) in values.items():
        axes.bar(places[name], percent(value), width=0.8, color=BLUE, alpha=0.2)
        axes.plot([places[name]] * 2, percent(interval), color=BLUE, linewidth=2, zorder=1)
        axes.text(places[name], 2, f"{percent(value):.1f}", ha="center", color=BLUE, weight="bold")
    handles = [plt.Rectangle((0, 0), 1, 1, color=BLUE, alpha=0.2, label="this verifier")]
    tables = results["published"]["prmscore"]
    between, turn = ("\n", {"rotation": 40, "ha": "right"}) if len(places) > 12 else (" ", {})
    for i, (system, table) in enumerate(tables.items()):
        shift = 0.11 * (i - (len(tables) - 1) / 2)
        style = line_style(i + 1) | {"linestyle": "none", "markersize": 5.5, "markeredgecolor": "white"}
        x, y = zip(*[(place + shift, 100 * table[name]) for name, place in places.items() if name in table])
        handles += axes.plot(x, y, **style, markeredgewidth=0.5, label=system)
    for block, names in blocks.items():
        score = percent(results["groups"].get(block, {}).get("prmscore"))
        text = f"{block}{between}{score:.1f}" if np.isfinite(score) else block
        axes.text(
            np.mean([places[name] for name in names]), 107, text, ha="center", fontsize=9, weight="bold"
        )
    labels = [name.replace("_", "\n") + ("" if name in values else "\n(no rows)") for name in places]
    labels = [label.replace("\n", " ") for label in labels] if turn else labels
    axes.set_xticks(list(places.values()), labels, fontsize=6.5, **turn)
    axes.tick_params(axis="x", length=0)
    axes.set(ylabel="PRMScore (%)", ylim=(0, 106), yticks=[0, 20, 40, 60, 80, 100])
    axes.legend(handles=handles, **OUTSIDE)
    figure.suptitle(
        f"{'PRMBench' if tables else 'Socratic-PRMBench'}: PRMScore by class of error", fontsize=10
    )
    text = "PRMScore: mean of F1 on good and on bad steps; of multi_solutions, which has no bad step, F1 on good steps"
    text += ". Group: mean of its classes. Line: 95 % bootstrap interval over problems"
    text += f". Markers, as published: {results['published']['source']}" if tables else ""
    text = benchmark_text(results, f"{results['n_rows']} rows, {results['n_steps']} steps", text)
    return [save(figure, folder / "prmbench.png", text, results)]
