"""Figures of a pool: curves over n, aggregators, reward against KL, calibration.

Every function takes numbers from results.json (where nan is null) and returns the path it wrote.
"""

import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from prm_jax.figures.style import GREY, commit, line_style, plain, save


def pool_caption(figure, results: dict, text: str = ""):
    source = Path(results["pool"]).name
    start = f"{results['n_problems']} problems x {results['n_candidates']} candidates"
    missing = results["dropped"]["missing"]
    start += f" at most ({missing} fewer in all; {source}); " if missing else f" ({source}); "
    start += f"graded: {results['grading']['checker']}; ties: {results['ties']}"
    names = {v["verifier"] for v in results["verifiers"].values()}
    end = f"; {', '.join(sorted(names))}. " if names else ". "
    width = max(60, int(17 * figure.get_figwidth()))  # characters of this size
    caption = textwrap.fill(start + text + end + commit(results), width)
    figure.text(0, -0.02, plain(caption), fontsize=6.5, color=GREY, va="top")


def best_of_n_figures(results: dict, folder: Path) -> list[Path]:
    """Curves over n, the table of aggregators, reward against KL, calibration."""
    drawings = (best_of_n_curves, aggregator_dots, reward_kl_figure, calibration_figure)
    return [draw(results, folder) for draw in drawings]


def bounds(by_size: dict) -> np.ndarray:
    """Intervals by n as two rows, low and high; null is nan."""
    return np.array(list(by_size.values()), float).T


def best_of_n_curves(results: dict, folder: Path) -> Path:
    """Problems solved against n, as in Lightman et al. 2023, figure 3, but the bands are bootstrap intervals over problems.

    Where exact step labels are known a second panel counts only winners without a wrong step.
    """
    how, sizes = results["aggregator"], [int(n) for n in results["oracle"]]
    every_n = np.arange(1, results["n_candidates"] + 1)
    panels = [("best_of_n", "", "share of problems solved")]
    panels += [("trace", "trace_", "... by a solution without a wrong step")]
    panels = [panel for panel in panels if all(panel[0] in table[how] for table in results["scorers"].values())]
    figure, all_axes = plt.subplots(
        1, len(panels), figsize=(3.6 + 3.6 * len(panels), 4), layout="constrained", sharey=True, squeeze=False
    )
    many, grey, handles = len(results["scorers"]) > 2, {"linewidth": 1.2, "color": GREY}, []

    def curve(axes, numbers, rule, before, **style):
        low, high = bounds(numbers[f"{before}interval"])
        y = np.array(list(numbers[rule].values()), float)
        marks = {key: style.pop(key) for key in [k for k in style if k.startswith("marker")]}
        line = numbers.get(f"{before}curve")
        axes.fill_between(sizes, low, high, color=style["color"], alpha=0.05 if many else 0.12, linewidth=0)
        axes.plot(every_n if line else sizes, np.array(line, float) if line else y, **style)
        axes.plot(sizes, y, linestyle="none", color=style["color"], **marks)

    for axes, (panel, before, ylabel) in zip(all_axes[0], panels, strict=True):
        first = panel == "best_of_n"
        for i, (scorer, table) in enumerate(results["scorers"].items()):
            style = line_style(i)
            curve(axes, table[how], panel, before, **style)
            if first:
                handles.append(plt.Line2D([], [], **style, label=plain(f"{scorer}, best of n ({how})")))
            if first and "weighted_vote" in table[how] and not many:
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
    text = "; bands: 95 % bootstrap intervals over problems"
    text += "; weighted votes of more than two scorers: aggregators.png, results.json" if many else ""
    pool_caption(figure, results, text)
    return save(figure, folder / "best_of_n.png")


def aggregator_dots(results: dict, folder: Path) -> Path:
    """Share solved at the pool's size by aggregator: a dot and its interval a scorer, best-of-n beside the weighted vote."""
    N, scorers = str(results["n_candidates"]), results["scorers"]
    hows = list(next(iter(scorers.values())))
    rules = [("best_of_n", "", f"Best of {N}")]
    rules += [("weighted_vote", "weighted_vote_", f"Weighted vote of {N}")] if "majority" in results else []
    size = 1.6 + 3.4 * len(rules), 1.4 + len(hows) * (0.22 + 0.09 * len(scorers))
    shared = {"sharex": True, "sharey": True, "squeeze": False, "layout": "constrained"}
    figure, all_axes = plt.subplots(1, len(rules), figsize=size, **shared)
    for axes, (rule, before, title) in zip(all_axes[0], rules, strict=True):
        for i, (scorer, table) in enumerate(scorers.items()):
            y = np.arange(len(hows)) + 0.7 * ((i + 0.5) / len(scorers) - 0.5)
            low, high = np.array([table[how][f"{before}interval"][N] for how in hows], float).T
            style = line_style(i) | {"linestyle": "none", "label": plain(scorer)}
            axes.hlines(y, low, high, color=style["color"], linewidth=1, alpha=0.5)
            axes.plot(np.array([table[how][rule][N] for how in hows], float), y, **style)
        for name, dashes in (("majority", "--"), ("oracle", "-.")):
            if name in results:
                axes.axvline(results[name][N], color=GREY, linewidth=0.8, linestyle=dashes, label=f"{name}", zorder=0)
        axes.set_yticks(range(len(hows)), hows)
        axes.set(title=title, xlabel="share of problems solved", ylim=(len(hows) - 0.5, -0.5))
        axes.grid(axis="y", linewidth=0.3)
    handles, labels = all_axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="outside right center", fontsize=7.5)
    pool_caption(figure, results, "; lines: 95 % bootstrap intervals over problems")
    return save(figure, folder / "aggregators.png")


def reward_kl_figure(results: dict, folder: Path) -> Path:
    """Accuracy and mean score against KL from the reference, on a square-root axis as in Gao et al. 2023."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for i, (scorer, tables) in enumerate(results["reward_kl"].items()):
        style, (tilt, best) = line_style(i), (tables["reweighted"], tables["best_of_n"])
        for axes, value in ((left, "accuracy"), (right, "score")):
            x, y = np.array([best["kl"], best[value]], float)
            axes.plot(*np.array([tilt["kl"], tilt[value]], float), color=style["color"], linewidth=1.4)
            axes.plot(x, y, **style | {"linestyle": "none", "markerfacecolor": "white"})
            if i == 0:
                for n, *place in zip(best["n"], x, y, strict=True):
                    if np.isfinite(place).all():
                        axes.annotate(n, place, xytext=(2, -8), textcoords="offset points", fontsize=5.5, color=GREY)
        left.plot([], [], markerfacecolor="white", **style, label=plain(scorer))
    for axes, name in ((left, "expected accuracy (gold)"), (right, f"mean score, {results['aggregator']} (nats)")):
        axes.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0)), np.square))
        axes.set(xlabel="KL from the uniform reference (nats, square-root axis)", ylabel=name, xlim=(0, None))
    figure.legend(*left.get_legend_handles_labels(), frameon=False, fontsize=7, loc="outside right center")
    left.set_title("Gold")
    right.set_title("Proxy: what the policy climbs")
    text = "; lines: weights proportional to exp(score / beta), beta from infinity to 0; markers: best of n draws, n beside"
    pool_caption(figure, results, text + " the first scorer's")
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
            ece, brier, auroc = np.array([numbers[name] for name in ("ece", "brier", "auroc")], float)
            label = plain(f"{scorer}: ECE {ece:.3f}, Brier {brier:.3f}, AUROC {auroc:.3f}")
            style = line_style(i)
            axes.plot(x, y, color=style["color"], linewidth=1, alpha=0.5)
            size = 3 + 6 * np.log10(np.array(curve["n"])[filled])
            axes.scatter(x, y, s=size, color=style["color"], marker=style["marker"], label=label)
    outcome = "share of steps in right solutions" if "outcome" in kinds else "share of good steps"
    for axes, title, xlabel, ylabel in (
        (left, "Step scores", "P(step good)", outcome),
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
