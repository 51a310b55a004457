"""Share solved against policy tokens by method and difficulty (Snell et al. 2024, figure 3).

python -m examples.papers.run search --redraw       # README.md: its question, what was expected
"""

import numpy as np

from examples.papers.table import Difference, Figure, Table, curves

LABELS = {"best_of_n": "best of n", "dvts": "DVTS", "vgs": "VGS (blocks)", "mcts": "MCTS"}
LABELS |= {"optimal": "compute-optimal"}
BUDGET, HARDEST = "solved at a budget", "solved of the hardest group"


def gather(stages: dict) -> Table:
    table, runs = Table(), [stage.results()["verifiers"][0] for stage in stages["search"]]
    G = len(runs[0]["difficulty_pass_at_1"])  # groups of problems, the easiest first
    for method in dict.fromkeys(search["method"] for search in runs[0]["searches"]):
        searches = [[x for x in run["searches"] if x["method"] == method] for run in runs]
        name, budget_X = LABELS.get(method, method), [x["budget"] for x in searches[0]]
        tokens_X = np.mean([[x["policy_tokens"] for x in run] for run in searches], 0)
        solved_SX = [[x["best"]["share"] for x in run] for run in searches]
        voted_SX = [[x["vote"]["share"] for x in run] for run in searches]
        table.curve("all problems", name, tokens_X, solved_SX)
        table.curve(BUDGET, name, budget_X, solved_SX)
        table.curve(f"{BUDGET}, weighted vote", name, budget_X, voted_SX)
        for g in range(G):
            solved_SX = [[x["best"]["by_difficulty"][g]["share"] for x in run] for run in searches]
            table.curve(f"third {g + 1} of {G} by ease", name, tokens_X, solved_SX)
        table.curve(HARDEST, name, budget_X, solved_SX)
    return table


PANELS = ["all problems", *(f"third {g} of 3 by ease" for g in (1, 2, 3))]
draw = curves(PANELS, "policy tokens a problem", log=True)
STAGES = {"prm": "train.py seed={seed}", "search": "evaluate.py task=search checkpoint={prm} seed={seed}"}
COMPARE = [
    Difference(BUDGET, "beam", "best of n", x=240),
    Difference(BUDGET, "beam", "best of n", x=1920),
    Difference(HARDEST, "beam", "best of n", x=240),
    Difference(BUDGET, "DVTS", "best of n", x=240),
    Difference(BUDGET, "lookahead", "best of n", x=480),
    Difference(BUDGET, "lookahead", "best of n", x=1920),
]
FIGURES = {"search": Figure(STAGES, gather, draw, COMPARE)}
