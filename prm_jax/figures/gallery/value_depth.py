"""Scores minus exact values by the steps done and left: mean difference above, mean magnitude below, a line a kind of labels."""

import numpy as np

from prm_jax.figures.gallery.mc_labels import KINDS
from prm_jax.figures.paper import Drawn, legend_above, of, over_seeds, panels, run_of
from prm_jax.figures.pipeline import Stage
from prm_jax.figures.style import GREY, floats, line_style

FEWEST = 50  # steps at a depth that is drawn


def draw(stages: dict[str, list[Stage]]) -> Drawn:
    runs, kinds = of(stages["steps"])[0]["runs"], [kind for kind in KINDS if kind in stages]
    figure, axes = panels(2, 2, 5.2, sharex="col", sharey="row")
    drawn = Drawn(
        figure, f"{runs[0]['n_solutions']:.0f} held-out samples; dashed: a constant, the mean value at the depth"
    )
    drawn.text += "; values are the exact chances of the solver that the policy learned from"
    for column, side in enumerate(("done", "left")):
        first = runs[0]["value_depth"][side]
        depth = sorted((d for d in first if first[d]["n"] >= FEWEST), key=int)
        x = floats(depth)
        for row, (number, title) in enumerate((("bias", "score - value"), ("error", "|score - value|"))):
            own = axes[row, column]
            for i, kind in enumerate(kinds):
                tables = [run_of(runs, stage)["value_depth"][side] for stage in stages[kind]]
                y_SX = floats([[table[d][number] for d in depth] for table in tables])
                drawn.curve(own, f"{title} by steps {side}", KINDS[kind], x, y_SX, line_style(i), share=False)
                if side == "done":
                    drawn.says.append(f"{KINDS[kind]}: mean {title} by steps done {listed(depth, y_SX)}")
            own.set_title(f"mean of {title}", fontsize=9)
        axes[0, column].axhline(0, color=GREY, linewidth=0.9, linestyle="--")
        constant = floats([first[d]["constant"] for d in depth])
        axes[1, column].plot(x, constant, color=GREY, linewidth=1.2, linestyle="--")
        axes[1, column].set(xlabel=f"steps {side}", xticks=x)
        drawn.says.append(f"a constant: mean |score - value| by steps {side} {listed(depth, constant[None])}")
    legend_above(figure, axes[0, 0], 3)
    return drawn


def listed(depth: list[str], y_SX) -> str:
    interval = lambda low, high: "" if np.isnan(low) else f" [{low:.3f}, {high:.3f}]"
    numbers = zip(depth, *over_seeds(y_SX), strict=True)
    return ", ".join(f"{d}: {mean:.3f}{interval(low, high)}" for d, mean, low, high in numbers)
