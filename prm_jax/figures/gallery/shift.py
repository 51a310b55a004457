"""Reliability at home and under a shift, and what temperature and Platt scaling repair."""

import math

import numpy as np

from prm_jax.figures.paper import Stages, results_at
from prm_jax.figures.steps import reliability
from prm_jax.figures.style import Drawn, floats, line_style, over_seeds, panels

LINES = {"home": "its own task", "solver": "the solver's samples", "shifted": "longer, more hidden work"}
WAYS = {
    "none": "as they are",
    "temperature, elsewhere": "temperature, at home",
    "platt, elsewhere": "Platt, at home",
    "temperature": "temperature, here",
    "platt": "Platt, here",
}


def draw(stages: Stages) -> Drawn:
    runs = {line: [results["runs"][0] for results in results_at(stages[line])] for line in LINES}
    figure, ((left, right),) = panels(1, 2, 3.9, gridspec_kw={"width_ratios": [1, 1.15]})
    drawn = Drawn(figure, f"{len(runs['home'])} runs of the default PRM; dashed: perfect calibration")
    drawn.spread = "left: the steps of all runs together; right, dots: runs, bars: their means"
    ways = [way for way in WAYS if way in runs["shifted"][0]["recalibrated"]]
    for i, (line, label) in enumerate(LINES.items()):
        reliability(left, [(pooled([run["reliability"] for run in runs[line]]), i, label)])
        drawn.number("step AUROC", label, [run["step_auroc"] for run in runs[line]])
        ece_WS = [
            [run["recalibrated"].get(way, {}).get("ece", math.nan) for run in runs[line]] for way in ways
        ]
        mean_W, low_W, high_W = over_seeds(np.transpose(ece_WS))
        height_W, style = np.arange(len(ways)) + 0.26 * (i - 1), line_style(i)
        right.barh(height_W, mean_W, height=0.24, color=style["color"], alpha=0.35, label=label)
        right.plot(
            ece_WS,
            np.repeat(height_W[:, None], len(ece_WS[0]), 1),
            style["marker"],
            color=style["color"],
            ms=3,
        )
        for way, *row in zip(ways, mean_W, low_W, high_W, ece_WS, strict=True):
            drawn.row("ECE", f"{label}, {WAYS[way]}", "", *row)
    tables = [run["recalibrated"]["platt"]["reliability"] for run in runs["shifted"]]
    reliability(left, [(pooled(tables), 3, "the last, Platt-scaled on its other half")])
    left.set(xlabel="P(step good)", ylabel="share of good steps")
    left.legend(fontsize=7, loc="lower right")
    right.set_yticks(range(len(ways)), [WAYS[way] for way in ways], fontsize=7.5)
    right.set(xlabel="ECE", ylim=(len(ways) - 0.5, -0.5), xlim=(0, None))
    for row in drawn.rows:
        drawn.statements.append("{panel}: {series}: {y:.3f} [{low:.3f}, {high:.3f}] ({values})".format(**row))
    return drawn


def pooled(tables: list[dict]) -> dict:
    """The reliability table of several runs' steps together."""
    n, score, label = (
        floats([table[name] for table in tables]) for name in ("n", "mean_score", "mean_label")
    )
    with np.errstate(invalid="ignore"):
        means = {
            name: np.nansum(x * n, 0) / n.sum(0) for name, x in (("mean_score", score), ("mean_label", label))
        }
    return {"n": n.sum(0), **means}
