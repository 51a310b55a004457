"""Wrong answers against lucky ones among those chosen, and the error left after abstaining: PRM, ORM, votes."""

import numpy as np

from prm_jax.figures.best_of_n import NAMES
from prm_jax.figures.paper import Stages, results_at
from prm_jax.figures.style import GREY, NO_LINE, Drawn, floats, line_style, over_seeds, panels

TITLE = NAMES | {"mean": "a sample at random", "majority": "majority vote"}


def draw(stages: Stages) -> Drawn:
    results = results_at(stages["pool"])
    first = results[0]
    figure, ((left, right),) = panels(1, 2, 4.0, gridspec_kw={"width_ratios": [1.1, 1]})
    drawn = Drawn(figure, f"{first['n_problems']} problems x {first['n_candidates']} samples")
    drawn.text += f"; left: best of n = 1, 2, 4, ... {first['n_candidates']}, and votes of all"
    drawn.spread = (
        "left: large markers are means, small ones and thin lines runs, whose intervals are in the table"
    )
    for i, (scorer, aggregator) in enumerate(first["headline"].items()):
        path(drawn, left, scorer, [r["scorers"][scorer][aggregator] for r in results], line_style(i))
    for rule in first["chosen"]["rules"]:
        if not rule.endswith(".best_of_n"):
            place(drawn, left, rule, [r["chosen"]["rules"][rule] for r in results], style_of(rule, first))
    left.set(xlabel="final-answer error", ylabel="trace error: right, with a wrong step")
    left.set(xlim=(0, None), ylim=(0, None))
    share = first["chosen"]["abstain"]["share"]
    for rule in first["chosen"]["abstain"]["error"]:
        y_SX = floats([r["chosen"]["abstain"]["error"][rule] for r in results])
        style = style_of(rule, first) | {"markevery": 4}
        drawn.curve(right, "abstaining", name_of(rule), share, y_SX, style, band=False)
        mean, low, high = over_seeds(y_SX)
        all_, some = (f"{mean[k]:.3f} [{low[k]:.3f}, {high[k]:.3f}]" for k in (0, round(0.3 * len(share))))
        drawn.statements.append(
            f"{name_of(rule)}: final error {all_}, abstaining from 30 % of the problems {some}"
        )
    right.set(xlabel="share of problems abstained from", ylabel="final-answer error on the problems kept")
    right.set(xlim=(0, 0.95), ylim=(0, None))
    drawn.legend_above(left, 3)
    drawn.statements += agreements([r["chosen"]["agreement"] for r in results])
    return drawn


def name_of(rule: str) -> str:
    scorer, _, aggregator = rule.partition(".")
    return f"{TITLE.get(scorer, scorer)}{', ' * bool(aggregator)}{aggregator.replace('_', ' ')}"


def style_of(rule: str, first: dict) -> dict:
    """A verifier's colour, its votes dashed; what needs no verifier is grey."""
    scorer, _, aggregator = rule.partition(".")
    if scorer not in first["headline"]:
        marker = {"marker": "X" if rule == "mean" else "*", "markersize": 5 if rule == "mean" else 8}
        return {"color": GREY, "linestyle": "--", "linewidth": 1.2} | marker
    style = line_style(list(first["headline"]).index(scorer))
    return style | {"linestyle": ":", "marker": "v"} if aggregator == "weighted_vote" else style


def path(drawn: Drawn, axes, scorer: str, tables: list[dict], style: dict):
    """Best of n from n = 1 to all candidates: (final error, trace error) of each run and of their mean."""
    sizes = list(tables[0]["best_of_n"])
    right, trace = (floats([list(t[rule].values()) for t in tables]) for rule in ("best_of_n", "trace"))
    x_SX, y_SX = 1 - right, 1 - np.divide(trace, right, out=np.full(trace.shape, np.nan), where=right > 0)
    mean, low, high = over_seeds(y_SX)
    label = f"{name_of(scorer)}, best of n"
    axes.plot(x_SX.mean(0), mean, **style, label=label)
    axes.plot(x_SX[:, -1], y_SX[:, -1], style["marker"], color=style["color"], markersize=3, alpha=0.4)
    end = {"xytext": (4, 4), "textcoords": "offset points", "fontsize": 7}
    axes.annotate(f"n = {sizes[-1]}", (x_SX[:, -1].mean(), mean[-1]), **end)
    for k, n in enumerate(sizes):
        drawn.row("trace error", f"{label} = {n}", x_SX[:, k].mean(), mean[k], low[k], high[k], y_SX[:, k])


def place(drawn: Drawn, axes, rule: str, rows: list[dict], style: dict):
    """One way to choose: each run small, their mean large."""
    x_S, y_S = ([row[name] for row in rows] for name in ("final_error", "trace_error"))
    mean, *_ = drawn.number("trace error", name_of(rule), y_S, np.mean(x_S))
    points = {"color": style["color"], "marker": style["marker"]} | NO_LINE
    axes.plot(x_S, y_S, **points, markersize=3, alpha=0.4)
    axes.plot(np.mean(x_S), mean, **points, markersize=7)
    axes.plot([], [], **style | (NO_LINE if rule == "mean" else {}), label=name_of(rule))


def agreements(tables: list[dict]) -> list[str]:
    """Says means over runs."""
    names = {"correctness": "the step's label", "outcome": "the outcome"}
    pairs = {
        "steps up to the first wrong one: step label and outcome agree": [table["labels"] for table in tables]
    }
    for a, row in tables[0].items():
        for b in row if a != "labels" else ():
            pairs[f"{name_of(a)} agrees with {names.get(b) or name_of(b)}"] = [
                table[a][b] for table in tables
            ]
    return [f"{pair} on {np.mean(values):.3f}" for pair, values in pairs.items()]
