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


def solution_figure(name, problem, steps, score_T, threshold: float, folder: Path, verifier: str) -> Path:
    """One solution: a bar for every step's P(good), coloured by it, the weakest step marked."""
    wrapped = [
        plain(textwrap.shorten(f"{t + 1}. {step}", 90, placeholder=" ...")) for t, step in enumerate(steps)
    ]
    figure, axes = plt.subplots(figsize=(9, 1.3 + 0.32 * len(steps)), layout="constrained")
    weakest = int(np.argmin(score_T))
    axes.barh(
        range(len(steps)), score_T, color=BAD_TO_GOOD(np.asarray(score_T)), edgecolor="none", height=0.7
    )
    axes.barh([weakest], [1], color="none", edgecolor="black", height=0.86, linewidth=1.2)
    for t, score in enumerate(score_T):
        mark = "  ← weakest" if t == weakest else ""
        axes.text(1.02, t, f"{score:.3f}{mark}", va="center", fontweight="bold" if t == weakest else "normal")
    axes.axvline(threshold, color=GREY, linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(steps)), wrapped)
    axes.set(xlim=(0, 1), xlabel=f"P(step good), threshold {threshold:g}")
    axes.invert_yaxis()
    axes.set_title(plain(textwrap.fill(textwrap.shorten(problem, 220, placeholder=" ..."), 100)), loc="left")
    figure.text(0, -0.02, plain(f"{name}; {verifier}"), fontsize=6.5, color=GREY, va="top")
    return save(figure, folder / f"solution_{re.sub(r'[^A-Za-z0-9._-]+', '_', str(name))}.png")


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
