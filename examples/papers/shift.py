"""A PRM on problems of another kind: calibration, threshold of its first error (2412.06559), best of n.

python -m examples.papers.run shift --redraw       # README.md: its question, what was expected
"""

from functools import partial

import numpy as np
from scipy import optimize

from examples.papers import best_of_n
from examples.papers.run import Difference, Figure, Table, draw_panels
from prm_jax.data.rows import read_rows
from prm_jax.data.score_files import stored_scores
from prm_jax.data.units import UNITS, probability
from prm_jax.evals.baselines import cut_chances, mean_f1
from prm_jax.metrics import ece, labelled_steps, problem_numbers
from prm_jax.solutions import first_error

HOME, LONGER = "its own task", "longer, more hidden work"
LINES = {"home": HOME, "solver": "the solver's samples", "shifted": LONGER}
MOST = 30.0  # log-odds: beyond them a probability is 1 to thirteen digits, and no scaling can be read from it


def labelled_scores(stage, truth, run: int = 0) -> tuple[list, list, np.ndarray]:
    """(P(good) of each solution's steps, its labels, its problem) of a run of a stage of task=steps; truth:
    the stage of task=solutions with the same solutions."""
    rows = [row for _, row in read_rows(truth.folder / "solutions.jsonl")]
    p = [probability(logit_T) for logit_T in stored_scores(stage.folder / f"scores_{run}.jsonl")]
    return p, [row["labels"] for row in rows], problem_numbers(row["prompt"] for row in rows)


def labelled_steps_of(stage, truth) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(log-odds, label, problem) of the steps up to each solution's first wrong one."""
    p, labels, problem = labelled_scores(stage, truth)
    steps = [(i, t) for i, label_T in enumerate(labels) for t in labelled_steps(label_T)[0]]
    p_n, y_n, problem_n = np.transpose([(p[i][t], labels[i][t], problem[i]) for i, t in steps])
    return np.clip(UNITS["probability"].log_odds(p_n), -MOST, MOST), y_n, problem_n


def fit(z, y) -> tuple[float, float]:
    """(a, b) of sigmoid(a z + b) of least cross-entropy with labels y in [0, 1]: Platt scaling. A tiny pull
    to (1, 0) keeps them finite where the steps can be separated."""
    start, pull = np.array([1.0, 0.0]), 2e-6
    x = np.stack([z, np.ones_like(z)], -1)

    def loss(w):
        return np.mean(np.logaddexp(0, x @ w) - y * (x @ w)) + pull / 2 * ((w - start) ** 2).sum()

    def gradient(w):
        return x.T @ (probability(x @ w) - y) / len(y) + pull * (w - start)

    a, b = optimize.minimize(loss, start, jac=gradient, method="BFGS", tol=1e-8).x
    return float(a), float(b)


def ece_here(z, y, problem) -> float:
    """ECE after a scaling that is fitted on one half of the problems and measured on the other, and the
    reverse."""
    q, halves = np.empty_like(z), [problem % 2 == side for side in (0, 1)]
    for measured, fitted in (halves, halves[::-1]):
        a, b = fit(z[fitted], y[fitted])
        q[measured] = probability(a * z[measured] + b)
    return ece(q, y)


def gather_ece(stages: dict) -> Table:
    table = Table()
    (home_truth,) = stages["home_truth"]
    homes = [labelled_steps_of(stage, home_truth)[:2] for stage in stages["home"]]
    for line, label in LINES.items():
        runs = [stage.results()["runs"][0] for stage in stages[line]]
        table.number("step AUROC", label, [run["step_auroc"] for run in runs])
        table.number("ECE", f"{label}, as they are", [run["ece"] for run in runs])
        (truth,) = stages[f"{line}_truth"]
        here = [labelled_steps_of(stage, truth) for stage in stages[line]]
        if line != "home":
            scaled_S = []
            for home, (z, y, _) in zip(homes, here, strict=True):
                a, b = fit(*home)
                scaled_S.append(ece(probability(a * z + b), y))
            table.number("ECE", f"{label}, Platt, at home", scaled_S)
        table.number("ECE", f"{label}, Platt, here", [ece_here(*own) for own in here])
    return table


draw_ece = partial(draw_panels, names=["ECE"])
PRM = {"prm": "train.py seed={seed}"}
STEPS = "evaluate.py task=steps checkpoint={prm} baselines=false seed={seed}"
TRUTH = "evaluate.py task=solutions split=test data.solutions=8 data="
STAGES = PRM | {
    "home": STEPS,
    "solver": STEPS + " data=chain data.samples=solver",
    "shifted": STEPS + " data=chain_shift",
    "home_truth": f"{TRUTH}chain",
    "solver_truth": f"{TRUTH}chain data.samples=solver",
    "shifted_truth": f"{TRUTH}chain_shift",
}
COMPARE = [
    Difference("ECE", f"{LONGER}, as they are", f"{HOME}, as they are"),
    Difference("ECE", f"{LONGER}, Platt, at home", f"{LONGER}, as they are"),
    Difference("ECE", f"{LONGER}, Platt, here", f"{LONGER}, as they are"),
    Difference("step AUROC", LONGER, HOME),
]
SHIFT = Figure(STAGES, gather_ece, draw_ece, COMPARE)

ELSEWHERE = "longer problems"
THRESHOLDS = np.arange(1, 100) / 100


def gather_threshold(stages: dict) -> Table:
    table, at_home = Table(), {}
    for line, panel in (("home", HOME), ("longer", ELSEWHERE)):
        (stage,), (truth,) = stages[line], stages[f"{line}_truth"]
        n_runs = len(stage.results()["runs"])
        own = [f1_by_threshold(*labelled_scores(stage, truth, i)) for i in range(n_runs)]
        *prms, likelihood = own
        for verifier, of_runs in (("PRM", prms), ("likelihood", [likelihood])):
            x, f1_SX = THRESHOLDS, np.array([f1s[0] for f1s in of_runs])
            table.curve(panel, verifier, x, f1_SX)
            best_S, runs = at_home.setdefault(verifier, f1_SX.argmax(1)), np.arange(len(of_runs))
            table.number(panel, f"{verifier}, chosen here", [crossed(*halves) for _, *halves in of_runs])
            if panel != HOME:  # it was chosen on these problems
                table.number(panel, f"{verifier}, chosen at home", f1_SX[runs, best_S])
            table.number(panel, f"{verifier}, .5", f1_SX[runs, np.abs(x - 0.5).argmin()])
            table.number(panel, f"{verifier}, threshold that is best", x[f1_SX.argmax(1)])
    return table


def draw_threshold(table):
    curves = table.dropna(subset="x")
    return draw_panels(curves, [HOME, ELSEWHERE], "threshold (F1 of the first wrong line)")


def f1_by_threshold(p: list, labels: list, problem) -> list[np.ndarray]:
    """ProcessBench's F1 of first errors at each of THRESHOLDS: of all, and of each half of the problems."""
    error_N = np.array([first_error(label_T) for label_T in labels])
    hit_CN, group_N, f1s = cut_chances(p, error_N, THRESHOLDS), np.zeros(len(p), int), []
    for part in (slice(None), *(np.asarray(problem) % 2 == side for side in (0, 1))):
        own = [mean_f1(hit_N[part], error_N[part], group_N[part]) for hit_N in hit_CN]
        f1s.append(np.array(own))
    return f1s


def crossed(first, second) -> float:
    """Mean F1 of the two halves of the problems, each at the threshold that is best on the other."""
    return (first[second.argmax()] + second[first.argmax()]) / 2


HELD_OUT = "evaluate.py task=steps data.solutions=8 checkpoint=[{prm},policy] baselines=false data="
STAGES = PRM | {"home": f"{HELD_OUT}chain", "longer": f"{HELD_OUT}chain_shift"}
STAGES |= {"home_truth": f"{TRUTH}chain", "longer_truth": f"{TRUTH}chain_shift"}
COMPARE = [
    Difference(ELSEWHERE, "PRM, chosen here", "PRM, chosen at home"),
    Difference(ELSEWHERE, "PRM, chosen at home", "PRM, .5"),
    Difference(HOME, "PRM, chosen here", "PRM, .5"),
    Difference(HOME, "PRM, chosen here", "likelihood, chosen here"),
]
THRESHOLD = Figure(STAGES, gather_threshold, draw_threshold, COMPARE)

POOL = "evaluate.py task=best_of_n data=chain_shift checkpoint=[{prm}] fresh.outcome_model=null seed={seed}"
COMPARE = [
    Difference("solved", "PRM, best of n (prod)", "majority vote", x=64),
    Difference("solved", "PRM, best of n (prod)", "majority vote", x=16),
    Difference("solved", "PRM, weighted vote", "majority vote", x=64),
]
STAGES = PRM | {"pool": POOL}
BEST_OF_N = Figure(STAGES, best_of_n.gather, best_of_n.draw, COMPARE)
FIGURES = {"shift": SHIFT, "threshold": THRESHOLD, "best_of_n_shift": BEST_OF_N}
