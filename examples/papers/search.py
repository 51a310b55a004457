"""Share solved against policy tokens by method and difficulty (Snell et al. 2024, figure 3).

python -m examples.papers.run search --redraw       # README.md: its question, what was expected
"""

import numpy as np

from examples.papers.run import Difference, Figure, Table, draw_panels

LABELS = {"best_of_n": "best of n", "dvts": "DVTS", "vgs": "VGS (blocks)", "mcts": "MCTS"}
GROUPS = 3  # of equal size by the share of right samples, the easiest first
BUDGET, HARDEST = "solved at a budget", "solved of the hardest group"


def gather(stages: dict) -> Table:
    table, runs = Table(), [stage.results()["verifiers"][0] for stage in stages["search"]]
    groups = [np.array_split(np.argsort(-np.array(run["right"]), kind="stable"), GROUPS) for run in runs]
    found = [outcomes(run) for run in runs]
    budgets = list(dict.fromkeys(budget for _, budget in found[0]))
    for method in dict.fromkeys(method for method, _ in found[0]):
        name, own = LABELS.get(method, method), [[x[method, budget] for budget in budgets] for x in found]
        tokens_X = np.mean([[x["tokens"].mean() for x in run] for run in own], 0)
        solved_SX = [[x["best"].mean() for x in run] for run in own]
        table.curve("all problems", name, tokens_X, solved_SX)
        table.curve(BUDGET, name, budgets, solved_SX)
        voted_SX = [[x["vote"].mean() for x in run] for run in own]
        table.curve(f"{BUDGET}, weighted vote", name, budgets, voted_SX)
        for g in range(GROUPS):
            pairs = list(zip(own, groups, strict=True))
            solved_SX = [[x["best"][members[g]].mean() for x in run] for run, members in pairs]
            table.curve(f"third {g + 1} of {GROUPS} by ease", name, tokens_X, solved_SX)
        table.curve(HARDEST, name, budgets, solved_SX)
    return table


def outcomes(run: dict) -> dict[tuple[str, int], dict[str, np.ndarray]]:
    """{(method, budget): `tokens` of each problem, its chance to be solved by the `best` score and the
    `vote`}."""
    found = {}
    for x in run["searches"]:
        solved = {rule: np.array(x[rule]["solved"]) for rule in ("best", "vote")}
        found[x["method"], x["budget"]] = {"tokens": np.array(x["tokens"])} | solved
    return found


def draw(table):
    names = ["all problems", *(f"third {g + 1} of {GROUPS} by ease" for g in range(GROUPS))]
    return draw_panels(table, names, "policy tokens a problem", log=True)


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
