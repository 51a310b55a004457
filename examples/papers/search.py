"""Share solved against policy tokens by method, all problems and in thirds by difficulty (Snell et al. 2024,
figure 3).
    python examples/papers/run.py search --redraw

Question: which search solves most at equal policy tokens, and does its lead last as the budget grows?
Expected (fb44a5d): beam search ahead of best-of-n at small budgets and on hard problems, level or behind at
large ones, where it finds the verifier's blind spots; lookahead behind at equal budget.
Expected (a36384f): primary between .02 and .12 (three seeds of the lab before: .072); at 1,920 tokens -.12 to
.02 (there -.062); of the hardest third at 240 tokens above .1; DVTS above 0 at 240; lookahead below 0 at 480
and at 1,920.
Primary: problems solved by the best score at 240 tokens, beam - best of n, paired over 8 seeds, exact
sign-flip test.
"""

import numpy as np

from examples.papers.table import Difference, Figure, Table, curves, results_of

LABELS = {"best_of_n": "best of n", "dvts": "DVTS", "vgs": "VGS (blocks)", "mcts": "MCTS"}
LABELS |= {"optimal": "compute-optimal"}
BUDGET, HARDEST = "solved at a budget", "solved of the hardest group"


def gather(stages: dict) -> Table:
    table, runs = Table(), [results["verifiers"][0] for results in results_of(stages["search"])]
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
draw = curves(PANELS, "policy tokens a problem", "log")
STAGES = {"prm": "train.py seed={seed}", "search": "evaluate.py task=search checkpoint={prm} seed={seed}"}
COMPARE = [
    Difference(BUDGET, "beam", "best of n", x=240),
    Difference(BUDGET, "beam", "best of n", x=1920),
    Difference(HARDEST, "beam", "best of n", x=240),
    Difference(BUDGET, "DVTS", "best of n", x=240),
    Difference(BUDGET, "lookahead", "best of n", x=480),
    Difference(BUDGET, "lookahead", "best of n", x=1920),
]
FIGURES = {"search": Figure(STAGES, gather, draw, COMPARE, also="cpu_devices=1")}
