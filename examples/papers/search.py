"""Share solved against policy tokens by method and difficulty (Snell et al. 2024, figure 3).
`python -m examples.papers.run search --redraw`; README.md: its question, what was expected."""

import numpy as np

from examples.papers.panels import draw_panels
from examples.papers.run import Difference, Figure, Table

HIDDEN = "blocks of 12 tokens"  # in the picture
LABELS = {"best_of_n": "best of n", "beam": "beam search", "dvts": "DVTS", "vgs": HIDDEN, "mcts": "MCTS"}
BUDGET, HARDEST = "problems solved", "solved of the hardest third"  # the third with fewest right samples


def gather(stages: dict) -> Table:
    table, runs = Table(), [stage.results()["verifiers"][0] for stage in stages["search"]]
    by_ease = [np.argsort(-np.array(run["right"]), kind="stable") for run in runs]
    hardest = [np.array_split(order, 3)[-1] for order in by_ease]
    for method in dict.fromkeys(x["method"] for x in runs[0]["searches"]):
        own = [[x for x in run["searches"] if x["method"] == method] for run in runs]
        name, budgets = LABELS.get(method, method), [x["budget"] for x in own[0]]
        solved_SXP = np.array([[x["best"]["solved"] for x in run] for run in own])
        table.curve(BUDGET, name, budgets, solved_SXP.mean(-1))
        pairs = zip(solved_SXP, hardest, strict=True)
        table.curve(HARDEST, name, budgets, [solved_XP[:, members].mean(-1) for solved_XP, members in pairs])
    return table


def draw(table):
    table = table[table.series != HIDDEN]
    return draw_panels(table, [BUDGET, HARDEST], "budget, policy tokens a problem", log=True)


STAGES = {"prm": "train.py seed={seed}", "search": "evaluate.py task=search checkpoint={prm} seed={seed}"}
COMPARE = [
    Difference(BUDGET, "beam search", "best of n", x=240),
    Difference(BUDGET, "beam search", "best of n", x=1920),
    Difference(HARDEST, "beam search", "best of n", x=240),
    Difference(BUDGET, "DVTS", "best of n", x=240),
    Difference(BUDGET, "lookahead", "best of n", x=480),
]
FIGURES = {"search": Figure(STAGES, gather, draw, COMPARE)}
