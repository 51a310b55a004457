"""Figures of the toy trace witness: mass by beta, and the winner by beta, injected error and aggregator."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from prm_jax import witness
from prm_jax.figures.style import COLOURS, GREY, save

DASHES, HATCHES = ("solid", (0, (6, 2)), "dashdot", "dotted"), ("", "////", "....", "xxxx")
TRACE_STYLES = list(zip(COLOURS, DASHES, HATCHES))  # of the witness's traces, in their order
MASSES = {0.5: "solid", 0.9: "dotted"}  # contours of the mass on valid traces
BETA_LABEL = r"$\beta$ (nats of score per nat of KL)"


def witness_figures(results: dict, folder: Path) -> list[Path]:
    """Draws the mass of the traces by beta and the winner by beta, error and aggregator; writes the page."""
    # The page has grids of its own.
    shown = {
        key: x for key, x in results.items() if key not in ("by_beta", "plane", "aggregators", "versions")
    }
    page = witness.page(folder / "witness.html", shown)
    phases = witness_phases(results, folder / "witness_phases.png")
    return [witness_mass(results, folder / "witness_mass.png"), phases, page]


def witness_mass(results: dict, path: Path) -> Path:
    titles = {
        "outcome": "Outcome verifier",
        "process": "Process verifier",
        "hacked": "Process verifier, hacked",
    }
    by_beta, beta, traces = results["by_beta"], results["beta"], results["traces"]
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.1), sharey=True)
    for axis, (verifier, title) in zip(axes, titles.items(), strict=True):
        policy, mass_Nb = results["policies"][verifier], np.transpose(by_beta[verifier])
        for i, mass_b in enumerate(mass_Nb):
            colour, dashes, _ = TRACE_STYLES[i]
            axis.plot(by_beta["beta"], mass_b, color=colour, linestyle=dashes, linewidth=1.8)
            axis.plot(beta, policy[i], "o", color=colour, markersize=4)
            if mass_b[0] > 0.1:  # its name at the left end, the winner's above its curve
                side = 1 if mass_b[0] == mass_Nb[:, 0].max() else -1
                place = {
                    "xytext": (4, 6 * side),
                    "textcoords": "offset points",
                    "va": "center",
                    "fontsize": 7.5,
                }
                axis.annotate(traces[i], (by_beta["beta"][0], mass_b[0]), **place)
        axis.axvline(beta, color=GREY, linewidth=0.8, linestyle="--", zorder=0)
        largest = [f"{traces[i]} {policy[i]:.3f}" for i in np.argsort(policy)[:-3:-1] if policy[i] >= 0.0005]
        text = rf"at $\beta$ = {beta:g}: {', '.join(largest)}"
        axis.text(0, 1.03, text, fontsize=7.5, transform=axis.transAxes)
        axis.set(xscale="log", xlim=(by_beta["beta"][0], by_beta["beta"][-1]), ylim=(-0.02, 1.1))
        axis.set_title(title, fontsize=10, loc="left", pad=18)
        axis.xaxis.set_major_formatter("{x:g}")
    reference, middle = results["reference"], np.mean(results["reference"])
    outside = {
        "xycoords": ("axes fraction", "data"),
        "textcoords": ("axes fraction", "data"),
        "fontsize": 7.5,
    }
    for place, i in enumerate(np.argsort(reference)):
        arrow = {"arrowstyle": "-", "color": TRACE_STYLES[i][0], "linewidth": 0.8}
        text, target = (1.07, middle + 0.075 * (place - 1.5)), (1, reference[i])
        axes[2].annotate(
            f"{traces[i]} {reference[i]:.2f}", target, text, va="center", arrowprops=arrow, **outside
        )
    axes[2].annotate("reference", (1.07, middle + 0.2), **outside)
    axes[0].set_ylabel("probability mass of a trace")
    figure.supxlabel(BETA_LABEL, fontsize=9)
    text = f"Four toy traces, score by {results['aggregator']}. Dashed: beta = {beta:g}. "
    return save(figure, path, f"{text}Hacked: an error of size 1 on {results['plane']['trace']}", results)


def witness_phases(results: dict, path: Path) -> Path:
    plane, traces, panels = results["plane"], results["traces"], results["plane"]["by_aggregator"]
    panels = {name: panels[name] for name in results["aggregators"]}
    beta_b, error_e = np.array(plane["beta"]), np.array(plane["error"])
    winners = np.unique([panel["winner"] for panel in panels.values()])
    rows = -(-len(panels) // 3)
    figure, axes = plt.subplots(rows, 3, figsize=(9, 0.6 + 2 * rows), sharex=True, sharey=True, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    for axis, (aggregator, panel) in zip(axes.flat, panels.items(), strict=False):
        winner_eb, lead_eb, valid_eb = (np.transpose(panel[name]) for name in ("winner", "lead", "valid"))
        for i in winners:
            ahead_eb = np.where(winner_eb == i, abs(lead_eb), -abs(lead_eb))  # 0 between the grid's points
            colour, _, hatch = TRACE_STYLES[i]
            axis.contourf(
                beta_b, error_e, ahead_eb, [0, np.inf], colors=[colour], alpha=0.35, hatches=[hatch]
            )
        for mass, dashes in MASSES.items():
            axis.contour(beta_b, error_e, valid_eb, [mass], colors="black", linewidths=0.9, linestyles=dashes)
        axis.axvline(results["beta"], color=GREY, linewidth=0.8, linestyle="--")
        axis.set(xscale="log", xlim=(beta_b[0], beta_b[-1]))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_title(aggregator, fontsize=9)
    keys = []
    for i in winners:
        colour, _, hatch = TRACE_STYLES[i]
        keys.append(
            plt.Rectangle((0, 0), 1, 1, facecolor=colour, alpha=0.35, hatch=hatch, label=f"{traces[i]} wins")
        )
    for mass, dashes in MASSES.items():
        label = f"{mass} of the mass on traces without a wrong step"
        keys.append(plt.Line2D([], [], color="black", linewidth=0.9, linestyle=dashes, label=label))
    figure.legend(handles=keys, loc="outside upper center", ncols=len(keys), fontsize=8)
    figure.supxlabel(BETA_LABEL, fontsize=9)
    figure.supylabel(f"verifier error injected on {plane['trace']} (0 none, 1 fully fooled)", fontsize=9)
    text = "Four toy traces under the process verifier, one panel for each aggregator of step scores. "
    return save(figure, path, f"{text}Dashed: beta = {results['beta']:g}", results)
