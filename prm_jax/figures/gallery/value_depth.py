"""Scores minus exact values by the steps done and left: mean difference and magnitude, a line a kind of labels."""

import numpy as np

from prm_jax.figures.gallery.mc_labels import KINDS
from prm_jax.figures.paper import Stages, results_at, run_of
from prm_jax.figures.steps import draw_value_depth
from prm_jax.figures.style import Drawn

FEWEST = 50  # steps at a depth that is drawn


def draw(stages: Stages) -> Drawn:
    runs = results_at(stages["steps"])[0]["runs"]
    kinds = {
        name: [run_of(runs, stage) for stage in stages[kind]]
        for kind, name in KINDS.items()
        if kind in stages
    }
    drawn = draw_value_depth(kinds, FEWEST)
    drawn.text += "; values are the exact chances of the solver that the policy learned from"
    table = {}
    for row in [row for row in drawn.rows if row["panel"].endswith("done")]:
        interval = "" if np.isnan(row["low"]) else f" [{row['low']:.3f}, {row['high']:.3f}]"
        series = f"{row['series']}: mean {row['panel']}"
        table.setdefault(series, []).append(f"{row['x']:g}: {row['y']:.3f}{interval}")
    drawn.statements += [f"{series} {', '.join(cells)}" for series, cells in table.items()]
    for side, depths in runs[0]["value_depth"].items():
        cells = (
            f"{d}: {depths[d]['constant']:.3f}" for d in sorted(depths, key=int) if depths[d]["n"] >= FEWEST
        )
        drawn.statements.append(f"a constant: mean |score - value| by steps {side} {', '.join(cells)}")
    return drawn
