"""Errors of labels by K completions (Math-Shepherd, figure 4), and verifiers by what labelled their steps.
`python -m examples.papers.run labels --redraw`; README.md: its question, what was expected."""

import sys
from functools import partial

import numpy as np
from scipy import stats

from examples.papers.implicit import run_of
from examples.papers.panels import draw_panels, draw_rows
from examples.papers.run import Difference, Figure, Table, by_value
from prm_jax.data.rows import read_rows
from prm_jax.data.writing import write_rows
from prm_jax.metrics import labelled_steps

ERROR = "error of a label"


def gather_k(stages: dict) -> Table:
    table = Table()
    steps = [exact_steps(*pair) for pair in zip(stages["right"], stages["value"], strict=True)]
    for k in 2 ** np.arange(7):
        by_seed = [label_errors(k, *of_seed) for of_seed in steps]
        for name in by_seed[0]:
            error_S = [errors[name] for errors in by_seed]
            table.number(ERROR, name, error_S, float(k))
            table.number(ERROR, f"{name}, K = {k}", error_S)
    return table


def exact_steps(right, value) -> tuple[np.ndarray, np.ndarray]:
    """(value, correctness) of the lines up to the first wrong one, the last line left out, of two stages that
    label the same solutions."""
    pairs = []
    rows = (read_rows(stage.folder / "solutions.jsonl") for stage in (right, value))
    for (_, a), (_, b) in zip(*rows, strict=True):
        counted = labelled_steps(a["labels"])
        pairs += [(b["labels"][t], a["labels"][t]) for t in counted if t < len(a["labels"]) - 1]
    return tuple(np.transpose(pairs))


def label_errors(k: int, value, good) -> dict[str, float]:
    """Errors of a label by k completions, in expectation over them, of steps with these values and
    correctness: the share of `hard` labels that are wrong, the mean |share right - value| of `soft` ones."""
    p_Kn = stats.binom.pmf(np.arange(k + 1)[:, None], k, value)  # of 0 ... k right completions
    share_K = np.arange(k + 1) / k
    return {
        "hard": np.mean(np.where(good == 1, p_Kn[0], 1 - p_Kn[0])),
        "soft": np.mean((p_Kn * np.abs(share_K[:, None] - value)).sum(0)),
    }


SOLVER = "evaluate.py task=solutions split=test data=chain data.solutions=8 data.samples=solver "
STAGES = {
    "right": SOLVER + "data.task.seed={seed}",
    "value": SOLVER + "data.task.seed={seed} data.label_kind=value data.after_first_error=keep",
}
COMPARE = [Difference(ERROR, "hard, K = 64", "hard, K = 4"), Difference(ERROR, "soft, K = 64", "soft, K = 8")]
draw_k = partial(draw_panels, names=[ERROR], xlabel="K, completions of a prefix", log=True)
LABELS_K = Figure(STAGES, gather_k, draw_k, COMPARE)

CORRECTNESS, VALUE = "AUROC against correctness", "AUROC against value"
HARD, SOFT, TD = "hard, K = 8", "soft, K = 8", "TD(.8), no completions"
NOISY = f"{HARD}, noisy checker"


def gather_kinds(stages: dict) -> Table:
    table, runs = Table(), stages["steps"][0].results()["runs"]
    for kind, members in by_value(stages["verifier"], "labels").items():
        for panel, key in ((CORRECTNESS, "auroc_correctness"), (VALUE, "auroc_value")):
            table.number(panel, kind, [run_of(runs, stage)[key] for stage in members])
    return table


SAMPLES = "evaluate.py task=solutions data=chain data.solutions=4000 data.solutions_per_problem=1 "
LABELING = "-m prm_jax.labeling input={solutions}/solutions.jsonl k=8 sampling.max_tokens=60 batch_rows=512"
ANY = "-m examples.papers.labels {mc_8}/labels.jsonl {out}/labels.jsonl "
STAGES = {
    "solutions": SAMPLES + "data.test_solutions=8",
    "values": SAMPLES + "data.test_solutions=8 data.label_kind=value data.after_first_error=keep",
    "mc_8": LABELING,
    "any_8": ANY + "0",
    "any_8_noisy": ANY + "0.1",
    "targets": "-m examples.relabel td {solutions}/solutions.jsonl --checkpoint embedded_orm "
    "--output {out}/labels.jsonl",
    "verifier": "train.py data=jsonl data.path={labels} data.folds=20 batch.rows=32 batch.tokens=128 "
    "steps=350 eval.every=50 seed={seed}",
    "steps": "evaluate.py task=steps data=chain data.solutions=8 baselines=false "
    "data.test_solutions=1000 checkpoint=[{verifier}]",
}
ARMS = {
    "exact correctness": "{solutions}/solutions.jsonl",
    "exact value": "{values}/solutions.jsonl data.label_kind=value",
    SOFT: "{mc_8}/labels.jsonl data.label_kind=value",
    HARD: "{any_8}/labels.jsonl data.label_kind=value",
    NOISY: "{any_8_noisy}/labels.jsonl data.label_kind=value",
    TD: "{targets}/labels.jsonl data.label_kind=value",
}
COMPARE = [
    Difference(CORRECTNESS, HARD, SOFT),
    Difference(CORRECTNESS, "exact correctness", HARD),
    Difference(VALUE, SOFT, HARD),
    Difference(VALUE, TD, SOFT),
    Difference(CORRECTNESS, NOISY, HARD),
]
SWEEP = {"labels": ARMS, "seed": range(8)}
MC_LABELS = Figure(STAGES, gather_kinds, partial(draw_rows, names=[CORRECTNESS, VALUE]), COMPARE, SWEEP)
FIGURES = {"labels_k": LABELS_K, "mc_labels": MC_LABELS}


def hard_rows(path: str, false_positive: float):
    """Hard labels by a checker that takes this share of the wrong completions for right ones; a prefix that
    solutions share keeps one label."""
    rng, label = np.random.default_rng(0), {}
    for _, row in read_rows(path):
        for t, n_right in enumerate(row["right"]):
            prefix = row["prompt"], *row["completions"][: t + 1]
            if n_right is not None and prefix not in label:
                label[prefix] = float(n_right + rng.binomial(row["k"] - n_right, false_positive) > 0)
            if n_right is not None:
                row["labels"][t] = label[prefix]
        yield row


if __name__ == "__main__":
    write_rows(sys.argv[2], hard_rows(sys.argv[1], float(sys.argv[3])))
