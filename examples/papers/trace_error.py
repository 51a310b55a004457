"""Trace error of the chosen solutions, and errors left after abstaining (Uesato et al. 2022).

python -m examples.papers.run trace_error --redraw       # README.md: its question, what was expected
"""

import numpy as np

from examples.papers.best_of_n import NAMES, STAGES
from examples.papers.table import Difference, Figure, Table, curves

TITLES = NAMES | {"mean": "a sample at random", "majority": "majority vote"}
ERROR, ABSTAINING = "trace error", "abstaining"


def gather(stages: dict) -> Table:
    """x: the final-answer error; of abstaining, the share of problems left out."""
    table, pools = Table(), [stage.results() for stage in stages["pool"]]
    chosen, first = [pool["chosen"] for pool in pools], pools[0]["chosen"]
    for scorer, aggregator in pools[0]["headline"].items():
        own = [pool["scorers"][scorer][aggregator] for pool in pools]
        right, trace = (np.array([list(x[rule].values()) for x in own]) for rule in ("best_of_n", "trace"))
        error_SX = 1 - np.divide(trace, right, out=np.full(trace.shape, np.nan), where=right > 0)
        series = f"{name_of(scorer)}, best of n"
        for k, n in enumerate(own[0]["best_of_n"]):
            table.number(ERROR, f"{series} = {n}", error_SX[:, k], 1 - right[:, k].mean())
    for rule in [rule for rule in first["rules"] if not rule.endswith(".best_of_n")]:
        final = np.mean([x["rules"][rule]["final_error"] for x in chosen])
        table.number(ERROR, name_of(rule), [x["rules"][rule]["trace_error"] for x in chosen], final)
    for rule in first["abstain"]["error"]:
        error_SX = [x["abstain"]["error"][rule] for x in chosen]
        table.curve(ABSTAINING, name_of(rule), first["abstain"]["share"], error_SX)
    return table


def name_of(rule: str) -> str:
    scorer, _, aggregator = rule.partition(".")
    return ", ".join(filter(None, [TITLES.get(scorer, scorer), aggregator.replace("_", " ")]))


def draw(table):
    table = table.assign(series=table.series.str.replace(r" = \d+$", "", regex=True))
    return curves((ERROR, ABSTAINING), "final-answer error; share left out")(table)


COMPARE = [
    Difference(ERROR, "PRM, best of n = 64", "ORM, best of n = 64"),
    Difference(ERROR, "PRM, best of n = 64", "a sample at random"),
    Difference(ERROR, "ORM, best of n = 64", "a sample at random"),
    Difference(ABSTAINING, "PRM, weighted vote", "PRM, best of n", x=0.3),
]
FIGURES = {"trace_error": Figure(STAGES, gather, draw, COMPARE)}
