"""ProcessBench's F1 of the first wrong line against the threshold, at home and on longer problems, beside the likelihood."""

import numpy as np

from prm_jax.figures.paper import Stages, results_at
from prm_jax.figures.style import GREY, NO_LINE, Drawn, floats, line_style, panels

PANELS = {"its own task": "home", "longer problems": "longer"}
STYLES = {
    "PRM": line_style(0) | {"marker": ""},
    "likelihood": {"color": GREY, "linestyle": "-.", "linewidth": 1.4},
}
CHOSEN = line_style(1) | NO_LINE | {"marker": "^"}


def draw(stages: Stages) -> Drawn:
    figure, (axes_C,) = panels(1, 2, 3.7, sharey=True)
    drawn, at_home = (
        Drawn(figure, "dotted: .5; triangles: the threshold that is best at home, a run each"),
        {},
    )
    for axes, (panel, line) in zip(axes_C, PANELS.items(), strict=True):
        axes.axvline(0.5, color=GREY, linewidth=0.8, linestyle=":")
        *prms, likelihood = [run["f1_by_threshold"] for run in results_at(stages[line])[0]["runs"]]
        for (verifier, style), curves in zip(STYLES.items(), (prms, [likelihood]), strict=True):
            x, f1_SX = floats(curves[0]["threshold"]), floats([curve["all"] for curve in curves])
            drawn.curve(axes, panel, verifier, x, f1_SX, style)
            best_S = at_home.setdefault(verifier, f1_SX.argmax(1))
            runs = np.arange(len(curves))
            ways = {
                "chosen here": [crossed(curve["halves"]) for curve in curves],
                "chosen at home": f1_SX[runs, best_S],
                ".5": f1_SX[runs, np.abs(x - 0.5).argmin()],
                "threshold that is best": x[f1_SX.argmax(1)],
            }
            if line == "home":
                ways.pop("chosen at home")  # on the problems that it was chosen on
            for way, value_S in ways.items():
                drawn.number(panel, f"{verifier}, {way}", value_S)
                drawn.statements.append(f"{panel}: {verifier}, {way}: {np.mean(value_S):.3f}")
            if verifier == "PRM":
                axes.plot(x[best_S], f1_SX[runs, best_S], **CHOSEN, label="chosen at home")
        axes.set(xlabel="threshold of P(line right)", xlim=(0, 1), ylim=(0, 1), title=panel)
    axes_C[0].set_ylabel("F1 of the first wrong line")
    drawn.legend_above(axes_C[0], 3)
    return drawn


def crossed(halves: list[list[float]]) -> float:
    """Mean F1 of the two halves of the problems, each at the threshold that is best on the other."""
    first, second = floats(halves)
    return float(first[second.argmax()] + second[first.argmax()]) / 2
