"""A PRM on problems of another kind: calibration, threshold of its first error (2412.06559), best of n.

python -m examples.papers.run shift --redraw       # README.md: its question, what was expected
"""

import numpy as np

from examples.papers import best_of_n
from examples.papers.table import Difference, Figure, Table, curves, dots

HOME, LONGER = "its own task", "longer, more hidden work"
LINES = {"home": HOME, "solver": "the solver's samples", "shifted": LONGER}
WAYS = {
    "none": "as they are",
    "temperature, elsewhere": "temperature, at home",
    "platt, elsewhere": "Platt, at home",
    "temperature": "temperature, here",
    "platt": "Platt, here",
}


def gather_ece(stages: dict) -> Table:
    table = Table()
    for line, label in LINES.items():
        runs = [stage.results()["runs"][0] for stage in stages[line]]
        table.number("step AUROC", label, [run["step_auroc"] for run in runs])
        for way, name in WAYS.items():  # at home nothing is fitted elsewhere
            ece_S = [run["recalibrated"].get(way, {}).get("ece", np.nan) for run in runs]
            table.number("ECE", f"{label}, {name}", ece_S)
    return table


PRM = {"prm": "train.py seed={seed}"}
STEPS = "evaluate.py task=steps checkpoint={prm} baselines=false seed={seed}"
STAGES = PRM | {
    "home": STEPS,
    "solver": STEPS + " data=chain data.samples=solver calibrated_by={home}",
    "shifted": STEPS + " data=chain_shift calibrated_by={home}",
}
COMPARE = [
    Difference("ECE", f"{LONGER}, as they are", f"{HOME}, as they are"),
    Difference("ECE", f"{LONGER}, Platt, at home", f"{LONGER}, as they are"),
    Difference("ECE", f"{LONGER}, Platt, here", f"{LONGER}, as they are"),
    Difference("step AUROC", LONGER, HOME),
]
SHIFT = Figure(STAGES, gather_ece, dots([["ECE"]]), COMPARE)

ELSEWHERE = "longer problems"


def gather_threshold(stages: dict) -> Table:
    table, at_home = Table(), {}
    for line, panel in (("home", HOME), ("longer", ELSEWHERE)):
        *prms, likelihood = [run["f1_by_threshold"] for run in stages[line][0].results()["runs"]]
        for verifier, of_runs in (("PRM", prms), ("likelihood", [likelihood])):
            x, f1_SX = np.array(of_runs[0]["threshold"]), np.array([x["all"] for x in of_runs], float)
            table.curve(panel, verifier, x, f1_SX)
            best_S, runs = at_home.setdefault(verifier, f1_SX.argmax(1)), np.arange(len(of_runs))
            table.number(panel, f"{verifier}, chosen here", [crossed(x["halves"]) for x in of_runs])
            if panel != HOME:  # it was chosen on these problems
                table.number(panel, f"{verifier}, chosen at home", f1_SX[runs, best_S])
            table.number(panel, f"{verifier}, .5", f1_SX[runs, np.abs(x - 0.5).argmin()])
            table.number(panel, f"{verifier}, threshold that is best", x[f1_SX.argmax(1)])
    return table


def crossed(halves: list[list[float]]) -> float:
    """Mean F1 of the two halves of the problems, each at the threshold that is best on the other."""
    first, second = np.array(halves, float)
    return (first[second.argmax()] + second[first.argmax()]) / 2


HELD_OUT = "evaluate.py task=steps data.solutions=8 checkpoint=[{prm},policy] baselines=false data="
STAGES = PRM | {"home": f"{HELD_OUT}chain", "longer": f"{HELD_OUT}chain_shift"}
COMPARE = [
    Difference(ELSEWHERE, "PRM, chosen here", "PRM, chosen at home"),
    Difference(ELSEWHERE, "PRM, chosen at home", "PRM, .5"),
    Difference(HOME, "PRM, chosen here", "PRM, .5"),
    Difference(HOME, "PRM, chosen here", "likelihood, chosen here"),
]
draw = curves((HOME, ELSEWHERE), "threshold (F1 of the first wrong line)")
THRESHOLD = Figure(STAGES, gather_threshold, draw, COMPARE)

POOL = "evaluate.py task=best_of_n data=chain_shift checkpoint=[{prm}] fresh.outcome_model=null seed={seed}"
COMPARE = [
    Difference("solved", "PRM, best of n (prod)", "majority vote", x=64),
    Difference("solved", "PRM, best of n (prod)", "majority vote", x=16),
    Difference("solved", "PRM, weighted vote", "majority vote", x=64),
]
STAGES = PRM | {"pool": POOL}
BEST_OF_N = Figure(STAGES, best_of_n.gather, best_of_n.draw, COMPARE)
FIGURES = {"shift": SHIFT, "threshold": THRESHOLD, "best_of_n_shift": BEST_OF_N}
