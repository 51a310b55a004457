"""First wrong lines that a verifier takes for right, by kind of error: the default PRM's runs and the policy's likelihood."""

import numpy as np

from prm_jax.figures.paper import Stages, results_at
from prm_jax.figures.style import BLUE, GREY, NO_LINE, Drawn, line_style, panels

# {name in the figure: kinds of the checker}
KINDS = {x: [x] for x in "*-+"} | {
    "max or min": ["max", "min"],
    "hidden value": ["merged"],
    "malformed": ["form"],
}
STYLES = {"PRM": line_style(0), "likelihood": line_style(6) | {"color": GREY}}


def draw(stages: Stages) -> Drawn:
    measured = results_at(stages["home"])[0]["runs"]
    *prms, likelihood = [run["errors"]["kinds"] for run in measured]
    runs = {"PRM": prms, "likelihood": [likelihood]}
    figure, ((axes,),) = panels(1, 1, 3.6)
    drawn = Drawn(
        figure, "at the threshold that refuses 1 in 20 of the right lines; ring: PRM at .5, mean of the runs"
    )
    drawn.spread = "small markers: runs, bars: 95 % t intervals of their mean"
    names = [name for name, kinds in KINDS.items() if set(kinds) & set(prms[0])]
    for height, name in enumerate(names):
        for i, (verifier, tables) in enumerate(runs.items()):
            missed_S = [share(table, name, "missed_at_equal_refusals") for table in tables]
            drawn.dots(axes, name, verifier, height + 0.22 * i, missed_S, STYLES[verifier])
            drawn.statements.append(f"{name}: {verifier} misses {np.mean(missed_S):.3f}")
        missed_S = [share(table, name, "missed") for table in prms]
        axes.plot(np.mean(missed_S), height, "o", color=BLUE, markerfacecolor="none", markersize=9)
        drawn.number(name, "PRM, threshold .5", missed_S)
    *auroc_S, other = [run["lines"]["merged"]["auroc"] for run in measured]
    drawn.number("AUROC, hidden value", "PRM", auroc_S)
    drawn.statements.append(
        f"AUROC on lines that hide a value: {drawn.rows[-1]['values']}; likelihood {other:.3f}"
    )
    for verifier, style in STYLES.items():
        axes.plot([], [], **style | NO_LINE | {"markersize": 6}, label=verifier)
    counts = [sum(prms[0].get(kind, {"n": 0})["n"] for kind in KINDS[name]) for name in names]
    axes.set_yticks(range(len(names)), [f"{name} ({n})" for name, n in zip(names, counts, strict=True)])
    axes.set(
        xlabel="share of first wrong lines taken for right",
        ylabel="kind of error (lines)",
        xlim=(-0.03, 1.03),
    )
    axes.invert_yaxis()
    drawn.legend_above(axes, 2)
    return drawn


def share(table: dict, name: str, number: str) -> float:
    """The share of the errors of a kind of KINDS, whose own kinds count by their errors."""
    rows = [table[kind] for kind in KINDS[name] if kind in table]
    return float(np.average([row[number] for row in rows], weights=[row["n"] for row in rows]))
