"""A PRM on problems of another kind: calibration, threshold of its first error (2412.06559), best of n.
`python -m examples.papers.run shift --redraw`; README.md: its question, what was expected."""

from functools import partial
from typing import NamedTuple

import numpy as np
from scipy import optimize

from examples.papers import best_of_n
from examples.papers.panels import draw_panels, draw_rows
from examples.papers.run import Difference, Figure, Table
from prm_jax.data.rows import read_rows
from prm_jax.data.units import UNITS, probability
from prm_jax.data.writing import stored_scores
from prm_jax.evals.baselines import cut_chances, mean_f1
from prm_jax.metrics import ece, labelled_steps, problem_numbers
from prm_jax.solutions import first_error

HOME, LONGER = "own task", "longer problems"
LINES = {"home": HOME, "shifted": LONGER}
F1 = {line: f"F1, {panel}" for line, panel in LINES.items()}  # of the first wrong step
MOST = 30.0  # log-odds: beyond them a probability is 1 to thirteen digits, and no scaling can be read from it
THRESHOLDS = np.arange(1, 100) / 100


class Scored(NamedTuple):
    """Held-out solutions under one PRM."""

    p: list  # P(good) of each solution's steps
    labels: list
    problem: np.ndarray  # the number of each solution's problem

    def steps(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(log-odds, label, problem) of the steps up to each solution's first wrong one."""
        places = [(i, t) for i, label_T in enumerate(self.labels) for t in labelled_steps(label_T)]
        steps = [(self.p[i][t], self.labels[i][t], self.problem[i]) for i, t in places]
        p_n, y_n, problem_n = np.transpose(steps)
        return np.clip(UNITS["probability"].log_odds(p_n), -MOST, MOST), y_n, problem_n


def read_scores(stages: dict, line: str) -> list[Scored]:
    """The scores that each stage of a line has stored; its truth labels the same solutions."""
    (truth,) = stages[f"{line}_truth"]
    rows = [row for _, row in read_rows(truth.folder / "solutions.jsonl")]
    labels, problem = [row["labels"] for row in rows], problem_numbers(row["prompt"] for row in rows)
    stored = [stored_scores(stage.folder / "scores_0.jsonl") for stage in stages[line]]
    return [Scored([probability(logit_T) for logit_T in one], labels, problem) for one in stored]


def fit(z, y) -> tuple[float, float]:
    """(a, b) of sigmoid(a z + b) of least cross-entropy with labels y: Platt scaling. A tiny pull to (1, 0)
    keeps them finite where the steps can be separated."""
    start, pull = np.array([1.0, 0.0]), 2e-6

    def loss(w):
        x = w[0] * z + w[1]
        return np.mean(np.logaddexp(0, x) - y * x) + pull / 2 * ((w - start) ** 2).sum()

    a, b = optimize.minimize(loss, start, method="BFGS").x
    return float(a), float(b)


def ece_here(z, y, problem) -> float:
    """ECE after a scaling fitted on one half of the problems and measured on the other, and the reverse."""
    q, halves = np.empty_like(z), [problem % 2 == side for side in (0, 1)]
    for measured, fitted in (halves, halves[::-1]):
        a, b = fit(z[fitted], y[fitted])
        q[measured] = probability(a * z[measured] + b)
    return ece(q, y)


def gather_ece(stages: dict) -> Table:
    table = Table()
    for line, panel in LINES.items():
        runs = [stage.results()["runs"][0] for stage in stages[line]]
        table.number("step AUROC", panel, [run["step_auroc"] for run in runs])
        table.number("ECE", f"{panel}, unscaled", [run["ece"] for run in runs])
    longer = [scored.steps() for scored in read_scores(stages, "shifted")]
    repaired_S = []
    for home, (z, y, _) in zip(read_scores(stages, "home"), longer, strict=True):
        a, b = fit(*home.steps()[:2])
        repaired_S.append(ece(probability(a * z + b), y))
    table.number("ECE", f"{LONGER}, scaled at home", repaired_S)
    table.number("ECE", f"{LONGER}, scaled there", [ece_here(*own) for own in longer])
    return table


PRM = {"prm": "train.py seed={seed}"}
STEPS = "evaluate.py task=steps checkpoint={prm} baselines=false seed={seed}"
TRUTH = "evaluate.py task=solutions split=test data.solutions=8 data="
STAGES = PRM | {
    "home": STEPS,
    "shifted": STEPS + " data=chain_shift",
    "home_truth": f"{TRUTH}chain",
    "shifted_truth": f"{TRUTH}chain_shift",
}
COMPARE = [
    Difference("ECE", f"{LONGER}, unscaled", f"{HOME}, unscaled"),
    Difference("ECE", f"{LONGER}, scaled at home", f"{LONGER}, unscaled"),
    Difference("ECE", f"{LONGER}, scaled there", f"{LONGER}, unscaled"),
    Difference("step AUROC", LONGER, HOME),
]
SHIFT = Figure(STAGES, gather_ece, partial(draw_rows, names=["ECE"]), COMPARE)


def gather_threshold(stages: dict) -> Table:
    table = Table()
    runs = {line: [f1_by_threshold(scored) for scored in read_scores(stages, line)] for line in LINES}
    for line, panel in F1.items():
        f1_SX = np.array([f1_X for f1_X, _ in runs[line]])
        table.curve(panel, "PRM", THRESHOLDS, f1_SX)
        table.number(panel, "PRM, chosen there", [crossed for _, crossed in runs[line]])
        table.number(panel, "PRM, .5", f1_SX[:, np.abs(THRESHOLDS - 0.5).argmin()])
    best_S = [f1_X.argmax() for f1_X, _ in runs["home"]]
    table.number(F1["shifted"], "PRM, chosen at home", f1_SX[np.arange(len(f1_SX)), best_S])
    return table


def f1_by_threshold(scored: Scored) -> tuple[np.ndarray, float]:
    """ProcessBench's F1 of first errors at each of THRESHOLDS; the mean of the two halves of the problems,
    each at the threshold that is best on the other."""
    error_N = np.array([first_error(label_T) for label_T in scored.labels])
    hit_CN, one_group_N1 = cut_chances(scored.p, error_N, THRESHOLDS), np.ones((len(error_N), 1), bool)
    f1s = []
    for part in (slice(None), *(scored.problem % 2 == side for side in (0, 1))):
        own = [mean_f1(hit_N[part], error_N[part], one_group_N1[part]) for hit_N in hit_CN]
        f1s.append(np.array(own))
    whole, first, second = f1s
    return whole, (first[second.argmax()] + second[first.argmax()]) / 2


COMPARE = [
    Difference(F1["shifted"], "PRM, chosen there", "PRM, chosen at home"),
    Difference(F1["home"], "PRM, chosen there", "PRM, .5"),
]
draw = partial(draw_panels, names=list(F1.values()), xlabel="threshold on P(good)")
THRESHOLD = Figure(STAGES, gather_threshold, draw, COMPARE)

POOL = "evaluate.py task=best_of_n data=chain_shift checkpoint=[{prm}] fresh.outcome_model=null seed={seed}"
COMPARE = [
    Difference(best_of_n.SOLVED, "PRM", "majority vote", x=64),
    Difference(best_of_n.SOLVED, "PRM, weighted vote", "majority vote", x=64),
]
STAGES = PRM | {"pool": POOL}
BEST_OF_N = Figure(STAGES, best_of_n.gather, best_of_n.draw, COMPARE)
FIGURES = {"shift": SHIFT, "threshold": THRESHOLD, "best_of_n_shift": BEST_OF_N}
