"""A PRM on problems of another kind: calibration, the threshold of its first error (2412.06559), best of n.
    python examples/papers/run.py shift --redraw

(shift)
Question: is a PRM's P(step good) still calibrated on problems of another kind, and if not, does scaling
fitted at home or only there cure it?
Expected (1d2c78d): ECE several times as large under the shift, mostly overconfident; scaling fitted at home
does not cure it, scaling fitted on shifted problems does; AUROC falls as well, which no scaling repairs.
Expected (82f68d6): primary above 0, near .05 (of three seeds of the default before .054); Platt scaling at
home repairs less than half of it, Platt scaling there brings it below .03; step AUROC lower by .03 to .06.
Primary: ECE of the scores as they are, longer problems - its own task, paired over 8 seeds.
(threshold)
Question: does the threshold .5 lose against a chosen one, and does one that is chosen at home hold on longer
problems?
Expected (14a8686): at home .5 is as good as the chosen one (within .01: ECE is .013 there). On longer
problems the PRM is too pessimistic (docs/gallery.md, "Shift"), so the best threshold is far below .5, and F1
by the one from home is .02 to .10 below one that is chosen there. The likelihood's best F1 lies .15 or more
below the PRM's at home, and its threshold moves less.
Primary: F1 on longer problems, threshold chosen there - chosen at home, paired over 8 seeds.
(best_of_n_shift)
Question: does a PRM still choose better than a majority vote on problems of another kind, or does more search
find what it does not know there?
Expected (867acb8): a PRM of step AUROC .94 there (figure shift; .99 at home) has the blind spots of a short
training at home, whose best of n peaks early and falls (figure overoptimisation, 150 steps). Primary below 0,
by up to .2; best of 64 below best of 4; at n = 16 level with the vote (within .1 either way); the vote
weighted by the PRM above the vote, by up to .1. (Pilot: embedded PRM, 20 problems x 8: best of 8 .11 below
the vote.)
Primary: problems solved at n = 64, best of n by the PRM - majority vote, paired over 8 seeds, exact sign-flip
test.
"""

import numpy as np

from examples.papers import best_of_n
from examples.papers.table import Difference, Figure, Table, curves, dots, results_of

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
        runs = [results["runs"][0] for results in results_of(stages[line])]
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
        *prms, likelihood = [run["f1_by_threshold"] for run in results_of(stages[line])[0]["runs"]]
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
THRESHOLD = Figure(STAGES, gather_threshold, draw, COMPARE, also="cpu_devices=1")

POOL = "evaluate.py task=best_of_n data=chain_shift checkpoint=[{prm}] fresh.outcome_model=null seed={seed}"
COMPARE = [
    Difference("solved", "PRM, best of n (prod)", "majority vote", x=64),
    Difference("solved", "PRM, best of n (prod)", "majority vote", x=16),
    Difference("solved", "PRM, weighted vote", "majority vote", x=64),
]
STAGES = PRM | {"pool": POOL}
BEST_OF_N = Figure(STAGES, best_of_n.gather, best_of_n.draw, COMPARE, also="cpu_devices=1")
FIGURES = {"shift": SHIFT, "threshold": THRESHOLD, "best_of_n_shift": BEST_OF_N}
