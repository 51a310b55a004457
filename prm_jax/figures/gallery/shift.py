"""Reliability at home and under a shift, and what temperature and Platt scaling repair."""

import math

import numpy as np

from prm_jax.figures.paper import results_at
from prm_jax.figures.pipeline import Stage
from prm_jax.figures.style import Drawn, floats, line_style, over_seeds, panels, reliability


def draw(stages: dict[str, list[Stage]]) -> Drawn:
    lines = {"home": "its own task", "solver": "the solver's samples", "shifted": "longer, more hidden work"}
    runs = {name: [r["runs"][0] for r in results_at(stages[name])] for name in lines}
    figure, ((left, right),) = panels(1, 2, 3.9, gridspec_kw={"width_ratios": [1, 1.15]})
    drawn = Drawn(figure, f"{len(runs['home'])} runs of the default PRM; dashed: perfect calibration")
    drawn.spread = "left: the steps of all runs together; right, dots: runs, bars: their means"
    for i, (name, label) in enumerate(lines.items()):
        tables = [run["reliability"] for run in runs[name]]
        reliability(left, [(pooled(tables), i, label)])
        auroc = [run["step_auroc"] for run in runs[name]]
        drawn.statements.append(f"{label}: step AUROC {np.mean(auroc):.3f} ({', '.join(f'{x:.3f}' for x in auroc)})")
    tables = [run["recalibrated"]["platt"]["reliability"] for run in runs["shifted"]]
    reliability(left, [(pooled(tables), 3, "the last, Platt-scaled on itself")])
    left.set(xlabel="P(step good)", ylabel="share of good steps")
    left.legend(fontsize=7, loc="lower right")
    ways = list(runs["shifted"][0]["recalibrated"])
    names = {"none": "as they are", "temperature": "temperature, here", "platt": "Platt, here"}
    names |= {f"{way}, elsewhere": f"{names[way].split(',')[0]}, at home" for way in ("temperature", "platt")}
    in_order = ("none", "temperature, elsewhere", "platt, elsewhere", "temperature", "platt")
    ways = [way for way in in_order if way in ways]
    for i, (name, label) in enumerate(lines.items()):
        y = np.arange(len(ways)) + 0.26 * (i - 1)
        of_way = [[run["recalibrated"].get(way, {}).get("ece", math.nan) for run in runs[name]] for way in ways]
        mean, low, high = over_seeds(np.transpose(of_way))
        right.barh(y, mean, height=0.24, color=line_style(i)["color"], alpha=0.35, label=label)
        for at, values in zip(y, of_way, strict=True):
            right.plot(values, [at] * len(values), line_style(i)["marker"], color=line_style(i)["color"], markersize=3)
        for way, m, a, b, values in zip(ways, mean, low, high, of_way, strict=True):
            drawn.row("ECE", label, names[way], m, a, b, values)
    right.set_yticks(range(len(ways)), [names[way] for way in ways], fontsize=7.5)
    right.set(xlabel="ECE", ylim=(len(ways) - 0.5, -0.5), xlim=(0, None))
    for way in ways:
        row = next(r for r in drawn.rows if r["series"] == lines["shifted"] and r["x"] == names[way])
        drawn.statements.append(
            f"shifted, {names[way]}: ECE {row['y']:.3f} [{row['low']:.3f}, {row['high']:.3f}] ({row['values']})"
        )
    return drawn


def pooled(tables: list[dict]) -> dict:
    """The reliability table of several runs' steps together."""
    n = floats([table["n"] for table in tables])
    total = n.sum(0)
    with np.errstate(invalid="ignore"):
        mean = lambda name: np.nansum(floats([table[name] for table in tables]) * n, 0) / total
        return {"n": total, "mean_score": mean("mean_score"), "mean_label": mean("mean_label")}
