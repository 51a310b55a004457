"""Results to figures; nothing else draws. Every function takes numbers from results.json and returns the path it wrote."""

import textwrap
from pathlib import Path

import matplotlib

from prm_jax.figures.style import GREY, line_style, plain, save

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np


def pool_caption(figure, results: dict, text: str = ""):
    source = Path(results["pool"]).name
    start = f"{results['n_problems']} problems x {results['n_candidates']} candidates ({source}); "
    start += f"graded: {results['grading']['checker']}; ties: {results['ties']}"
    names = {v["verifier"] for v in results["verifiers"].values()}
    end = f"; {', '.join(sorted(names))}" if names else ""
    end += f"; commit {results['versions']['commit'][:10]}"
    figure.text(0, -0.02, plain(textwrap.fill(start + text + end, 150)), fontsize=6.5, color=GREY, va="top")


def best_of_n_figures(results: dict, folder: Path) -> list[Path]:
    """Curves over n, the table of aggregators, reward against KL, calibration."""
    drawings = (best_of_n_curves, aggregator_table, reward_kl_figure, calibration_figure)
    return [draw(results, folder) for draw in drawings]


def best_of_n_curves(results: dict, folder: Path) -> Path:
    """Problems solved against n, as in Lightman et al. 2023, figure 3; bands: one standard deviation of drawing n.

    Where exact step labels are known a second panel counts only winners without a wrong step.
    """
    how, sizes = results["aggregator"], [int(n) for n in results["oracle"]]
    every_n = np.arange(1, results["n_candidates"] + 1)
    panels = [
        ("best_of_n", "", "share of problems solved"),
        ("trace", "trace_", "... by a solution without a wrong step"),
    ]
    panels = [panel for panel in panels if all(panel[0] in table[how] for table in results["scorers"].values())]
    figure, all_axes = plt.subplots(
        1, len(panels), figsize=(3.6 + 3.6 * len(panels), 4), layout="constrained", sharey=True, squeeze=False
    )

    def curve(axes, numbers, rule, before, **style):
        y = np.array([numbers[rule][str(n)] for n in sizes])
        band = np.array([numbers[f"{before}band"][str(n)] for n in sizes])
        marks = {key: style.pop(key) for key in [k for k in style if k.startswith("marker")]}
        line, many = numbers.get(f"{before}curve"), len(results["scorers"]) > 3
        axes.fill_between(sizes, y - band, y + band, color=style["color"], alpha=0.06 if many else 0.15, linewidth=0)
        axes.plot(every_n if line else sizes, line or y, **style)
        axes.plot(sizes, y, linestyle="none", color=style["color"], **marks)

    grey, handles = {"linewidth": 1.2, "color": GREY}, []
    for axes, (panel, before, ylabel) in zip(all_axes[0], panels, strict=True):
        first = panel == "best_of_n"
        for i, (scorer, table) in enumerate(results["scorers"].items()):
            style = line_style(i)
            curve(axes, table[how], panel, before, **style)
            if first:
                handles.append(plt.Line2D([], [], **style, label=plain(f"{scorer}, best of n ({how})")))
            if first and "weighted_vote" in table[how] and len(results["scorers"]) <= 2:
                style |= {"linestyle": ":", "markerfacecolor": "white"}
                curve(axes, table[how], "weighted_vote", "weighted_vote_", **style)
                handles.append(plt.Line2D([], [], **style, label=plain(f"{scorer}, weighted vote")))
        rules = [("majority", "--", "majority vote"), ("oracle", "-.", "oracle (any of n right)")]
        for rule, linestyle, label in rules if first else []:
            if rule in results:
                curve(axes, results, rule, f"{rule}_", linestyle=linestyle, **grey)
                handles.append(plt.Line2D([], [], linestyle=linestyle, **grey, label=label))
        if first:
            axes.axhline(results["mean"], color=GREY, linewidth=0.8, alpha=0.6)
            handles.append(plt.Line2D([], [], color=GREY, linewidth=0.8, alpha=0.6, label="mean of the candidates"))
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(n) for n in sizes])
        axes.minorticks_off()
        axes.set(xlabel="n, solutions sampled per problem (log scale)", ylabel=ylabel)
    figure.legend(handles=handles, frameon=False, loc="outside right center")
    figure.suptitle("Best of n: expectation over all subsets of n candidates")
    pool_caption(figure, results, "; bands: one standard deviation of the mean if each problem draws one subset")
    return save(figure, folder / "best_of_n.png")


def aggregator_table(results: dict, folder: Path) -> Path:
    """Share solved at the pool's size by aggregator and scorer, each with its interval; the best of a column in bold."""
    N = str(results["n_candidates"])
    scorers, hows = list(results["scorers"]), list(next(iter(results["scorers"].values())))
    rules = [("best_of_n", "interval", "best of")]
    if "majority" in results:
        rules.append(("weighted_vote", "weighted_vote_interval", "weighted vote of"))
    columns = [(scorer, *rule) for scorer in scorers for rule in rules]
    table = [[results["scorers"][s][how][rule][N] for s, rule, *_ in columns] for how in hows]
    figure, axes = plt.subplots(figsize=(2 + 1.3 * len(columns), 1.2 + 0.42 * len(hows)), layout="constrained")
    values = np.array(table)
    image = axes.imshow(values, cmap="cividis", aspect="auto")
    middle = (values.min() + values.max()) / 2
    for i, how in enumerate(hows):
        for j, (scorer, _, interval, _) in enumerate(columns):
            low, high = results["scorers"][scorer][how][interval][N]
            ink = "white" if values[i, j] <= middle else "black"
            best = values[i, j] >= values[:, j].max() - 1e-6
            axes.text(
                j,
                i - 0.14,
                f"{values[i, j]:.3f}",
                ha="center",
                va="center",
                color=ink,
                weight="bold" if best else "normal",
            )
            axes.text(j, i + 0.24, f"{low:.3f} to {high:.3f}", ha="center", va="center", color=ink, fontsize=5.5)
    axes.set_yticks(range(len(hows)), hows)
    axes.set_xticks(range(len(columns)), [plain(f"{s}\n{name} {N}") for s, _, _, name in columns], fontsize=6.5)
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, label="share of problems solved", shrink=0.9)
    votes = f"; majority {results['majority'][N]:.3f}" if "majority" in results else ""
    text = f"{votes}; oracle {results['oracle'][N]:.3f}; small: 95 % bootstrap intervals over problems; bold: best of a column"
    pool_caption(figure, results, text)
    return save(figure, folder / "aggregators.png")


def reward_kl_figure(results: dict, folder: Path) -> Path:
    """Accuracy and mean score against KL from the reference, on a square-root axis as in Gao et al. 2023."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for i, (scorer, tables) in enumerate(results["reward_kl"].items()):
        style = line_style(i)
        for axes, value in ((left, "accuracy"), (right, "score")):
            tilt, best = tables["reweighted"], tables["best_of_n"]
            axes.plot(tilt["kl"], tilt[value], color=style["color"], linewidth=1.4, label=plain(scorer))
            axes.plot(
                best["kl"],
                best[value],
                color=style["color"],
                linestyle="none",
                marker=style["marker"],
                markersize=4,
                markerfacecolor="white",
            )
    for axes, name in ((left, "expected accuracy (gold)"), (right, f"mean score, {results['aggregator']} (nats)")):
        axes.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0)), np.square))
        axes.set(xlabel="KL from the uniform reference (nats, square-root axis)", ylabel=name, xlim=(0, None))
    left.legend(frameon=False, fontsize=7)
    left.set_title("Gold")
    right.set_title("Proxy: what the policy climbs")
    text = "; lines: weights proportional to exp(score / beta), beta from infinity to 0; markers: best of n draws, n = 1, 2, 4, ..."
    pool_caption(figure, results, text)
    return save(figure, folder / "reward_kl.png")


def calibration_figure(results: dict, folder: Path) -> Path:
    """Reliability of step scores and of the headline aggregator's solution scores, with ECE and Brier score."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
    how, kinds = results["aggregator"], {c.get("step_label") for c in results["calibration"].values()}
    for i, (scorer, tables) in enumerate(results["calibration"].items()):
        for axes, numbers in ((left, tables.get("steps")), (right, tables["solutions"].get(how))):
            if numbers is None:
                continue
            curve = numbers["reliability"]
            filled = np.array(curve["n"]) > 0
            x, y = np.array(curve["mean_score"], float)[filled], np.array(curve["mean_label"], float)[filled]
            label = plain(
                f"{scorer}: ECE {numbers['ece']:.3f}, Brier {numbers['brier']:.3f}, AUROC {numbers['auroc']:.3f}"
            )
            style = line_style(i)
            axes.plot(x, y, color=style["color"], linewidth=1, alpha=0.5)
            size = 3 + 6 * np.log10(np.array(curve["n"])[filled])
            axes.scatter(x, y, s=size, color=style["color"], marker=style["marker"], label=label)
    outcome = "share of steps in right solutions" if "outcome" in kinds else "share of good steps"
    for axes, title, xlabel, ylabel in (
        (left, "Step scores", "step score", outcome),
        (right, f"Solution scores ({how})", "solution score", "share of right solutions"),
    ):
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle="--")
        axes.set(xlabel=xlabel, ylabel=ylabel, xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), title=title)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=6.5, loc="upper center", bbox_to_anchor=(0.5, -0.16))
        else:
            axes.text(0.5, 0.5, "not a probability", ha="center", color=GREY)
    pool_caption(figure, results, "; 15 equal bins, larger dots hold more; dashed: perfect calibration")
    return save(figure, folder / "calibration.png")
