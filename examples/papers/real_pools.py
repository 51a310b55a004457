"""A released PRM on a real pool, by its stored step scores (MATH-500 of StrictPRMBench); nothing is trained.

python -m examples.papers.run real_pools --redraw       # README.md: its question, what was expected
"""

import os

from examples.papers.run import Figure, Table
from prm_jax.figures.style import BLUE, GREY, band, panels, size_axis

SOLVED = "problems solved"
LEAD = "best of 32 minus majority vote"
RULES = {"prod": "product", "min": "lowest step", "mean": "mean", "last": "last step"}
STYLES = {
    "PRM, best of n": {"color": BLUE, "marker": "o", "markersize": 3.5},
    "vote weighted by the PRM": {"color": BLUE, "linestyle": ":"},
    "majority vote": {"color": GREY, "linestyle": "--"},
    "oracle": {"color": GREY, "linestyle": "-."},
    "shortest": {"color": GREY, "linestyle": (0, (1, 3))},
    "fewest steps": {"color": GREY, "linewidth": 0.8},
}


def gather(stages: dict) -> Table:
    """One run: intervals are bootstraps over problems, of differences paired by problem."""
    table = Table()
    stored = {stage.sweep["aggregator"]: stage.results() for stage in stages["stored"]}
    (merged,) = stages["math"]
    product = stored["prod"]
    scores = product["scorers"]["qwen_prm"]["prod"]
    curves = {
        "PRM, best of n": (scores["best_of_n"], scores["interval"]),
        "vote weighted by the PRM": (scores["weighted_vote"], scores["weighted_vote_interval"]),
    }
    for key in ("majority", "oracle", "shortest", "fewest_steps"):
        series = "majority vote" if key == "majority" else key.replace("_", " ")
        curves[series] = product[key], product[f"{key}_interval"]
    for series, (curve, intervals) in curves.items():
        for n, value in curve.items():
            table.number(SOLVED, series, [value], int(n))
            table[-1]["low"], table[-1]["high"] = intervals[n]
    for rule, name in RULES.items():
        add_difference(table, name, stored[rule], f"qwen_prm.{rule}.best_of_n")
    add_difference(table, "weighted vote, product", product, "qwen_prm.prod.weighted_vote")
    add_difference(table, "product, merged answers", merged.results(), "qwen_prm.prod.best_of_n")
    return table


def add_difference(table: Table, series: str, results: dict, choice: str):
    """The difference of a choice and the majority vote, with its p."""
    (found,) = (x for x in results["differences"] if (x["a"], x["b"]) == (choice, "majority"))
    table.number(LEAD, series, [found["difference"]])
    table[-1]["low"], table[-1]["high"] = found["interval"]
    table.number(f"{LEAD}: p", series, [found["p"]])


def draw(table):
    """Left: problems solved against n. Right: the lead over the vote by each rule."""
    figure, ((left, right),) = panels(1, 2, 2.8, 8.0, width_ratios=[1.6, 1])
    for series, rows in table[table.panel == SOLVED].groupby("series", sort=False):
        left.plot(rows.x, rows.y, **STYLES[series])
        left.annotate(f" {series}", (rows.x.iloc[-1], rows.y.iloc[-1]), fontsize=7, va="center")
        if series == "PRM, best of n":
            band(left, rows.x, rows.low, rows.high, STYLES[series])
    size_axis(left, [1, 2, 4, 8, 16, 32], "n, solutions a problem")
    left.set(ylabel="share of problems solved", xlim=(1, 130))
    rows = table[table.panel == LEAD][::-1]
    ends = [rows.y - rows.low, rows.high - rows.y]
    right.errorbar(rows.y, rows.series, xerr=ends, color=BLUE, marker="o", markersize=3.5, linestyle="none")
    right.axvline(0, color=GREY, linewidth=0.8)
    right.set(xlabel=LEAD)
    return figure


DATA = os.environ.get("PRM_JAX_DATA", "../shared/data")
FILE = f"{DATA}/bon_strictprmbench/math500_qwen2.5-7b-instruct_n32.jsonl.gz"
STAGES = {
    "stored": "evaluate.py task=best_of_n aggregator={aggregator} input=" + FILE,
    "math": "evaluate.py task=best_of_n aggregator=prod checker=math input=" + FILE,
}
FIGURES = {"real_pools": Figure(STAGES, gather, draw, sweep={"aggregator": list(RULES)})}
