"""A released PRM on a real pool, by its stored step scores (MATH-500 of StrictPRMBench); nothing is trained.
`python -m examples.papers.run real_pools --redraw`; README.md: its question, what was expected.

Without --redraw it reads FILE, which is not shipped: rows of question, gold and candidates [steps, correct,
prm_step_scores], joined from https://github.com/staged-benchmark-2026/StrictPRMBench and MATH-500."""

import os

import numpy as np

from examples.papers.panels import draw_panels
from examples.papers.run import Figure, Table

SOLVED = "problems solved"
LEAD = "best of 32 minus majority vote"
RULES = {"prod": "product", "min": "lowest step", "mean": "mean", "last": "last step"}


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
    for key in ("majority", "oracle", "shortest"):
        series = "majority vote" if key == "majority" else key
        curves[series] = product[key], product[f"{key}_interval"]
    for series, (curve, intervals) in curves.items():
        for n, value in curve.items():
            table.number(SOLVED, series, [value], int(n))
            table[-1]["low"], table[-1]["high"] = intervals[n]
    for rule, name in RULES.items():
        add_difference(table, name, stored[rule], f"qwen_prm.{rule}.best_of_n")
    add_difference(table, "product, merged answers", merged.results(), "qwen_prm.prod.best_of_n")
    return table


def add_difference(table: Table, series: str, results: dict, choice: str):
    """The difference of a choice and the majority vote, with its p."""
    (found,) = (x for x in results["differences"] if (x["a"], x["b"]) == (choice, "majority"))
    table.number(LEAD, series, [found["difference"]])
    table[-1]["low"], table[-1]["high"] = found["interval"]
    table.number(f"{LEAD}: p", series, [found["p"]])


def draw(table):
    """Of one pool the bands would hide each other: the PRM alone has its own."""
    table.loc[table.series != "PRM, best of n", ["low", "high"]] = np.nan
    return draw_panels(table, [SOLVED], "n, solutions a problem", log=True)


DATA = os.environ.get("PRM_JAX_DATA", "../shared/data")
FILE = f"{DATA}/bon_strictprmbench/math500_qwen2.5-7b-instruct_n32.jsonl.gz"
STAGES = {
    "stored": "evaluate.py task=best_of_n aggregator={aggregator} input=" + FILE,
    "math": "evaluate.py task=best_of_n aggregator=prod checker=math input=" + FILE,
}
FIGURES = {"real_pools": Figure(STAGES, gather, draw, sweep={"aggregator": list(RULES)})}
