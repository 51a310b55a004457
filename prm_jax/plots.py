"""Results to figures; nothing else draws. Every function takes numbers from results.json and returns the path it wrote."""

import re
import textwrap
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LinearSegmentedColormap

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"  # Okabe-Ito: distinct for every colour vision
BAD_TO_GOOD = LinearSegmentedColormap.from_list("bad_to_good", [ORANGE, "#F0E442", BLUE])
plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 150})


def save(figure, path: Path) -> Path:
    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)
    return path


def plain(text: str) -> str:
    """Text as it is: matplotlib would read what stands between two $ as its own mathematics, and fail on \\boxed."""
    return text.replace("$", r"\$")


def caption(figure, results: dict):
    """What a number rests on: solutions, steps, seeds, cost, commit."""
    runs = results["runs"]
    text = f"{results['n_solutions']:.0f} held-out solutions, {results['n_steps']:.0f} labelled steps"
    text += f" of the {runs[0]['data']['name']} data; {runs[0]['verifier']}"
    text += "" if len(runs) == 1 else f" and {len(runs) - 1} more runs: means"
    for key, name in (("train_seed", "seed"), ("train_seconds", "training seconds")):
        values = [f"{run[key]:.0f}" for run in runs if run.get(key) is not None]
        text += f"; {name} {', '.join(values)}" if values else ""
    text += f"; commit {results['versions']['commit'][:10]}"
    figure.text(0, -0.02, plain(textwrap.fill(text, 150)), fontsize=6.5, color=GREY, va="top")


def step_figures(results: dict, folder: Path) -> list[Path]:
    """One page about step scores: reliability, score histogram, and accuracy by position."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    for run in results["runs"]:
        curve = run["reliability"]
        filled = np.array(curve["n"]) > 0
        x, y = np.array(curve["mean_score"], float)[filled], np.array(curve["mean_label"], float)[filled]
        left.plot(x, y, color=BLUE, alpha=0.4, linewidth=1)
        left.scatter(x, y, s=3 + 8 * np.log10(np.array(curve["n"])[filled]), color=BLUE, alpha=0.8)
    left.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle="--", label="perfect calibration")
    left.set(
        xlabel="predicted P(step good)", ylabel="share of good steps", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02)
    )
    left.set_title(f"Reliability (ECE {results['ece']:.3f}, Brier {results['brier']:.3f})")
    left.legend(frameon=False)

    edges = np.linspace(0, 1, 21)
    for name, colour in (("good", BLUE), ("bad", ORANGE)):
        n = np.mean([run["histogram"][name] for run in results["runs"]], axis=0)
        middle.stairs(
            np.maximum(n, 0.5),
            edges,
            color=colour,
            fill=True,
            alpha=0.55,
            label=f"{name} steps",
            baseline=0.5,
        )
    middle.set(xlabel="predicted P(step good)", ylabel="steps (log scale)", yscale="log")
    middle.set_title(f"Step scores (AUROC {results['step_auroc']:.3f})")
    middle.legend(frameon=False)

    positions = sorted({int(t) for run in results["runs"] for t in run["by_position"]})
    for key, colour in (("accuracy", BLUE), ("auroc", ORANGE)):
        rows = [
            [run["by_position"].get(str(t), {}).get(key, np.nan) for run in results["runs"]]
            for t in positions
        ]
        mean = [np.nanmean(row) if np.isfinite(row).any() else np.nan for row in np.array(rows, float)]
        right.plot(
            positions, mean, "o-", color=colour, markersize=3, label="AUROC" if key == "auroc" else "accuracy"
        )
    right.set(xlabel="step position", ylabel="accuracy, AUROC", ylim=(None, 1.0), xticks=positions)
    right.set_title(f"By position (first-error F1 {results['first_error_f1']:.3f})")
    right.legend(frameon=False)
    caption(figure, results)
    return [save(figure, folder / "steps.png")]


def solution_figure(
    name, problem, steps, score_T, threshold: float, folder: Path, verifier: str, bounds=(0.0, 1.0)
) -> Path:
    """One solution: a bar for every step's score, coloured by it, the weakest step marked.

    `bounds` is the range of the scores: where it is infinite the figure ends at the extremes of this solution, 0 included.
    """
    is_probability, score_T = bounds == (0.0, 1.0), np.asarray(score_T)
    low = bounds[0] if np.isfinite(bounds[0]) else min(0.0, score_T.min())
    high = bounds[1] if np.isfinite(bounds[1]) else max(0.0, score_T.max())
    high = high if high > low else low + 1.0
    wrapped = [
        plain(textwrap.shorten(f"{t + 1}. {step}", 90, placeholder=" ...")) for t, step in enumerate(steps)
    ]
    figure, axes = plt.subplots(figsize=(9, 1.3 + 0.32 * len(steps)), layout="constrained")
    weakest = int(np.argmin(score_T))
    color_T = BAD_TO_GOOD((score_T - low) / (high - low))
    axes.barh(range(len(steps)), score_T, color=color_T, edgecolor="none", height=0.7)
    axes.barh([weakest], [high - low], left=low, color="none", edgecolor="black", height=0.86, linewidth=1.2)
    for t, score in enumerate(score_T):
        mark = "  ← weakest" if t == weakest else ""
        axes.text(
            high + 0.02 * (high - low),
            t,
            f"{score:.3f}{mark}",
            va="center",
            fontweight="bold" if t == weakest else "normal",
        )
    axes.axvline(threshold, color=GREY, linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(steps)), wrapped)
    meaning = "P(step good)" if is_probability else "step score"
    axes.set(xlim=(low, high), xlabel=f"{meaning}, threshold {threshold:g}")
    axes.invert_yaxis()
    axes.set_title(plain(textwrap.fill(textwrap.shorten(problem, 220, placeholder=" ..."), 100)), loc="left")
    figure.text(0, -0.02, plain(f"{name}; {verifier}"), fontsize=6.5, color=GREY, va="top")
    return save(figure, folder / f"solution_{re.sub(r'[^A-Za-z0-9._-]+', '_', str(name))}.png")


# Okabe-Ito again, in an order in which neighbours differ in lightness too; every line has a marker of its own beside.
LINES = (
    ("#0072B2", "o"),
    ("#D55E00", "s"),
    ("#009E73", "^"),
    ("#CC79A7", "D"),
    ("#E69F00", "v"),
    ("#56B4E9", "P"),
    ("#000000", "X"),
)


def line_style(i: int) -> dict:
    colour, marker = LINES[i % len(LINES)]
    return {"color": colour, "marker": marker, "markersize": 3.5, "linewidth": 1.4}


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
    panels = [
        panel for panel in panels if all(panel[0] in table[how] for table in results["scorers"].values())
    ]
    figure, all_axes = plt.subplots(
        1, len(panels), figsize=(3.6 + 3.6 * len(panels), 4), layout="constrained", sharey=True, squeeze=False
    )

    def curve(axes, numbers, rule, before, **style):
        y = np.array([numbers[rule][str(n)] for n in sizes])
        band = np.array([numbers[f"{before}band"][str(n)] for n in sizes])
        marks = {key: style.pop(key) for key in [k for k in style if k.startswith("marker")]}
        line, many = numbers.get(f"{before}curve"), len(results["scorers"]) > 3
        axes.fill_between(
            sizes, y - band, y + band, color=style["color"], alpha=0.06 if many else 0.15, linewidth=0
        )
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
            handles.append(
                plt.Line2D([], [], color=GREY, linewidth=0.8, alpha=0.6, label="mean of the candidates")
            )
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(n) for n in sizes])
        axes.minorticks_off()
        axes.set(xlabel="n, solutions sampled per problem (log scale)", ylabel=ylabel)
    figure.legend(handles=handles, frameon=False, loc="outside right center")
    figure.suptitle("Best of n: expectation over all subsets of n candidates")
    pool_caption(
        figure, results, "; bands: one standard deviation of the mean if each problem draws one subset"
    )
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
    figure, axes = plt.subplots(
        figsize=(2 + 1.3 * len(columns), 1.2 + 0.42 * len(hows)), layout="constrained"
    )
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
            axes.text(
                j, i + 0.24, f"{low:.3f} to {high:.3f}", ha="center", va="center", color=ink, fontsize=5.5
            )
    axes.set_yticks(range(len(hows)), hows)
    axes.set_xticks(
        range(len(columns)), [plain(f"{s}\n{name} {N}") for s, _, _, name in columns], fontsize=6.5
    )
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
    for axes, name in (
        (left, "expected accuracy (gold)"),
        (right, f"mean score, {results['aggregator']} (nats)"),
    ):
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


TRACE_STYLES = (  # colour, dashes and hatching of the witness's traces, in their order
    (BLUE, "solid", ""),
    (ORANGE, (0, (6, 2)), "////"),
    ("#009E73", "dashdot", "...."),
    ("#CC79A7", "dotted", "xxxx"),
)
BETA_LABEL = r"$\beta$ (nats of score per nat of KL)"


def witness_figures(results: dict, folder: Path) -> list[Path]:
    """The toy witness: mass of the traces by beta under three verifiers; who wins, by beta, error and aggregator."""
    return [
        witness_mass(results, folder / "witness_mass.png"),
        witness_phases(results, folder / "witness_phases.png"),
    ]


def witness_mass(results: dict, path: Path) -> Path:
    titles = {
        "outcome": "Outcome verifier",
        "process": "Process verifier",
        "hacked": "Process verifier, hacked",
    }
    by_beta, beta, traces = results["by_beta"], results["beta"], results["traces"]
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.1), sharey=True, layout="constrained")
    for axis, (verifier, title) in zip(axes, titles.items(), strict=True):
        policy, mass_Nb = results["policies"][verifier], np.transpose(by_beta[verifier])
        for i, mass_b in enumerate(mass_Nb):
            colour, dashes, _ = TRACE_STYLES[i]
            axis.plot(by_beta["beta"], mass_b, color=colour, linestyle=dashes, linewidth=1.8)
            axis.plot(beta, policy[i], "o", color=colour, markersize=4)
            if mass_b[0] > 0.1:  # its name at the left end, the winner's above its curve
                side = 1 if mass_b[0] == mass_Nb[:, 0].max() else -1
                at = {"xytext": (4, 6 * side), "textcoords": "offset points", "va": "center", "fontsize": 7.5}
                axis.annotate(traces[i], (by_beta["beta"][0], mass_b[0]), **at)
        axis.axvline(beta, color=GREY, linewidth=0.8, linestyle="--", zorder=0)
        largest = [f"{traces[i]} {policy[i]:.3f}" for i in np.argsort(policy)[:-3:-1] if policy[i] >= 0.0005]
        text = rf"at $\beta$ = {beta:g}: {', '.join(largest)}"
        axis.text(0, 1.03, text, fontsize=7.5, transform=axis.transAxes)
        axis.set(xscale="log", xlim=(by_beta["beta"][0], by_beta["beta"][-1]), ylim=(-0.02, 1.1))
        axis.set_title(title, fontsize=10, loc="left", pad=18)
        axis.xaxis.set_major_formatter("{x:g}")
    reference, at = results["reference"], ("axes fraction", "data")
    for place, i in enumerate(np.argsort(reference)):
        axes[2].annotate(
            f"{traces[i]} {reference[i]:.2f}",
            xy=(1, reference[i]),
            xytext=(1.07, np.mean(reference) + 0.075 * (place - 1.5)),
            xycoords=at,
            textcoords=at,
            va="center",
            fontsize=7.5,
            arrowprops={"arrowstyle": "-", "color": TRACE_STYLES[i][0], "linewidth": 0.8},
        )
    axes[2].annotate("reference law", (1.07, np.mean(reference) + 0.2), xycoords=at, fontsize=7.5)
    axes[0].set_ylabel("probability mass of a trace")
    figure.supxlabel(BETA_LABEL, fontsize=9)
    text = f"Four toy traces, score by {results['aggregator']}. Dashed: beta = {beta:g}. "
    text += f"Hacked: an error of size 1 on {results['plane']['trace']}. {commit(results)}"
    figure.text(0, -0.02, text, fontsize=6.5, color=GREY, va="top")
    return save(figure, path)


def witness_phases(results: dict, path: Path) -> Path:
    plane, traces = results["plane"], results["traces"]
    beta_b, error_e = np.array(plane["beta"]), np.array(plane["error"])
    winners = np.unique([panel["winner"] for panel in plane["by_aggregator"].values()])
    figure, axes = plt.subplots(3, 3, figsize=(9, 6.6), sharex=True, sharey=True, layout="constrained")
    for axis, (how, panel) in zip(axes.flat, plane["by_aggregator"].items(), strict=True):
        names = ("winner", "lead", "valid")
        winner_eb, lead_eb, valid_eb = (np.transpose(panel[name]) for name in names)
        for i in winners:
            ahead_eb = np.where(winner_eb == i, abs(lead_eb), -abs(lead_eb))  # 0 between the grid's points
            colour, _, hatch = TRACE_STYLES[i]
            axis.contourf(
                beta_b, error_e, ahead_eb, [0, np.inf], colors=[colour], alpha=0.35, hatches=[hatch]
            )
        for mass, dashes in ((0.5, "solid"), (0.9, "dotted")):
            axis.contour(beta_b, error_e, valid_eb, [mass], colors="black", linewidths=0.9, linestyles=dashes)
        axis.axvline(results["beta"], color=GREY, linewidth=0.8, linestyle="--")
        axis.set(xscale="log", xlim=(beta_b[0], beta_b[-1]))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_title(how, fontsize=9)
    keys = [
        plt.Rectangle((0, 0), 1, 1, facecolor=colour, alpha=0.35, hatch=hatch, label=f"{traces[i]} wins")
        for i, (colour, _, hatch) in enumerate(TRACE_STYLES)
        if i in winners
    ]
    for mass, dashes in ((0.5, "solid"), (0.9, "dotted")):
        label = f"{mass} of the mass on traces without a wrong step"
        keys.append(plt.Line2D([], [], color="black", linewidth=0.9, linestyle=dashes, label=label))
    figure.legend(handles=keys, loc="outside upper center", ncols=len(keys), frameon=False, fontsize=8)
    figure.supxlabel(BETA_LABEL, fontsize=9)
    figure.supylabel(f"verifier error injected on {plane['trace']} (0 none, 1 fully fooled)", fontsize=9)
    text = "Four toy traces under the process verifier, one panel for each aggregator of step scores. "
    text += f"Dashed: beta = {results['beta']:g}. {commit(results)}"
    figure.text(0, -0.01, text, fontsize=6.5, color=GREY, va="top")
    return save(figure, path)


def commit(results: dict) -> str:
    return f"Commit {results['versions']['commit'][:10]}."


def benchmark_caption(figure, results: dict, n: str, text: str):
    start = f"{n}; {results['verifier']}; a step below {results['threshold']:.4g} is bad (threshold: "
    start += f"{results['threshold_origin']}); {text}. {commit(results)}"
    width = int(20 * figure.get_figwidth())  # characters of this size
    figure.text(0, -0.02, plain(textwrap.fill(start, width)), fontsize=6.5, color=GREY, va="top")


def processbench_figures(results: dict, folder: Path) -> list[Path]:
    """F1 per split beside the published verifiers; F1 against the threshold."""
    return [
        processbench_bars(results, folder / "processbench.png"),
        processbench_thresholds(results, folder / "processbench_threshold.png"),
    ]


def processbench_bars(results: dict, path: Path) -> Path:
    """One row a verifier, sorted by the mean over the splits that all of them have; this one in colour, with intervals."""
    splits, published = results["splits"], results["published"]["f1"]
    shared = [name for name in splits if all(name in table for table in published.values())]
    mine, columns = "this verifier", [*splits, "mean"] if len(splits) > 1 else list(splits)
    tables = {mine: {name: x["f1"] for name, x in splits.items()}} | (published if shared else {})
    # The mean of the splits shown; a published mean over more is another number.
    tables = {
        system: table | {"mean": np.mean([table.get(name, np.nan) for name in splits])}
        for system, table in tables.items()
    }
    intervals = {name: x["f1_interval"] for name, x in splits.items()} | {"mean": results["mean_f1_interval"]}
    rank = {system: np.mean([table[name] for name in shared or splits]) for system, table in tables.items()}
    order = sorted(tables, key=lambda system: np.nan_to_num(rank[system]))
    figure, all_axes = plt.subplots(
        1,
        len(columns),
        figsize=(2.6 + 1.75 * len(columns), 1.1 + 0.21 * len(order)),
        layout="constrained",
        sharey=True,
        squeeze=False,
    )
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
    text += (
        ". Group: mean of its classes. Line: 95 % bootstrap interval over problems. Markers, as published: "
    )
    text += results["published"]["source"]
    benchmark_caption(figure, results, f"{results['n_rows']} rows, {results['n_steps']} steps", text)
    return [save(figure, folder / "prmbench.png")]
