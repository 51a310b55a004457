"""The figure of the toy trace witness: the winner by beta, injected error and aggregator."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from prm_jax import witness
from prm_jax.figures.style import COLOURS, GREY, panels, save

HATCHES = ("", "////", "....", "xxxx")  # of the witness's traces, in their order


def draw(results: dict, folder: Path) -> list[Path]:
    """Draws the winner by beta, error and aggregator; writes the page."""
    expected = {key: x for key, x in results.items() if key not in ("plane", "versions")}
    page = witness.page(folder / "witness.html", expected)
    return [save(witness_phases(results), folder / "witness_phases.png"), page]


def trace_fill(i: int) -> dict:
    return {"facecolor": COLOURS[i], "alpha": 0.35, "hatch": HATCHES[i]}


def witness_phases(results: dict):
    """Draws the winning trace by beta and injected error, a panel an aggregator of step scores."""
    plane, traces = results["plane"], results["traces"]
    tables = plane["by_aggregator"]
    beta_b, error_e = np.array(plane["beta"]), np.array(plane["error"])
    winners = np.unique([table["winner"] for table in tables.values()])
    rows = -(-len(tables) // 3)
    figure, axes_RC = panels(rows, 3, 0.6 + 2 * rows, 9, sharex=True, sharey=True)
    for axes in axes_RC.flat[len(tables) :]:
        axes.axis("off")
    for axes, (aggregator, table) in zip(axes_RC.flat, tables.items(), strict=False):
        winner_eb, lead_eb, valid_eb = (np.transpose(table[name]) for name in ("winner", "lead", "valid"))
        for i in winners:
            ahead_eb = np.where(winner_eb == i, abs(lead_eb), -abs(lead_eb))  # 0 between the grid's points
            fill = trace_fill(i)
            styles = {"colors": [fill["facecolor"]], "hatches": [fill["hatch"]], "alpha": fill["alpha"]}
            axes.contourf(beta_b, error_e, ahead_eb, [0, np.inf], **styles)
        axes.contour(beta_b, error_e, valid_eb, [0.5], colors="black", linewidths=0.9)
        axes.axvline(results["beta"], color=GREY, linewidth=0.8, linestyle="--")
        axes.set(xscale="log", xlim=(beta_b[0], beta_b[-1]), title=aggregator)
        axes.xaxis.set_major_formatter("{x:g}")
    keys = [plt.Rectangle((0, 0), 1, 1, **trace_fill(i), label=f"{traces[i]} wins") for i in winners]
    label = "half of the mass on traces without a wrong step"
    keys.append(plt.Line2D([], [], color="black", linewidth=0.9, label=label))
    figure.legend(handles=keys, loc="outside upper center", ncols=len(keys))
    figure.supxlabel(r"$\beta$ (nats of score per nat of KL)", fontsize=9)
    figure.supylabel(f"error injected on {plane['trace']} (0 none, 1 fully fooled)", fontsize=9)
    return figure
