"""Errors of labels by K completions (Math-Shepherd, figure 4), and verifiers by what labelled their steps.

python -m examples.papers.run labels --redraw       # README.md: its question, what was expected
"""

import sys

import numpy as np

from examples.papers.table import Difference, Figure, Table, by_value, curves, dots, run_of
from prm_jax.data.rows import read_rows, write_rows

ERROR, RULES = "error of a label", {"any": "any right", "half": "half right", "soft": "soft"}


def gather_k(stages: dict) -> Table:
    table = Table()
    by_seed = [stage.results()["runs"][0]["label_errors"] for stage in stages["exact"]]
    for key, name in RULES.items():
        for k in [k for k in by_seed[0] if k != "constant"]:
            error_S = [errors[k][key] for errors in by_seed]
            table.number(ERROR, name, error_S, float(k))
            table.number(ERROR, f"{name}, K = {k}", error_S)
    for key in ("any", "soft"):  # every line called right; the mean value for every line
        table.number(ERROR, f"constant, {key}", [errors["constant"][key] for errors in by_seed])
    return table


CHAIN = "evaluate.py task=steps data=chain data.solutions=8 baselines=false "
STAGES = {"exact": CHAIN + "data.samples=solver data.task.seed={seed} checkpoint=random"}
COMPARE = [
    Difference(ERROR, "any right, K = 64", "any right, K = 4"),
    Difference(ERROR, "soft, K = 64", "soft, K = 8"),
    Difference(ERROR, "any right, K = 8", "half right, K = 8"),
]
draw = curves([ERROR], "K, completions of a prefix", log=True)
LABELS_K = Figure(STAGES, gather_k, draw, COMPARE)

CORRECTNESS, VALUE = "AUROC against correctness", "AUROC against value"
HARD, SOFT, TD = "hard, K = 8", "soft, K = 8", "TD(.8), no completions"
NOISY_HARD, NOISY_SOFT, MASKED = f"{HARD}, noisy checker", f"{SOFT}, noisy checker", f"{HARD}, to the first 0"


def gather_kinds(stages: dict) -> Table:
    table, runs = Table(), stages["steps"][0].results()["runs"]
    for kind, members in by_value(stages["verifier"], "labels").items():
        for panel, key in ((CORRECTNESS, "auroc_correctness"), (VALUE, "auroc_value")):
            table.number(panel, kind, [run_of(runs, stage)[key] for stage in members])
    return table


SAMPLES = "evaluate.py task=solutions data=chain data.solutions=4000 data.solutions_per_problem=1 "
LABELING = "-m prm_jax.labeling input={solutions}/solutions.jsonl k=8 sampling.max_tokens=60 batch_rows=512"
ANY = "-m examples.relabel labels --threshold 0.001 --output {out}/labels.jsonl "
STAGES = {
    "solutions": SAMPLES + "data.test_solutions=8",
    "values": SAMPLES + "data.test_solutions=8 data.label_kind=value data.after_first_error=keep",
    "mc_8": LABELING,
    "mc_8_noisy": "-m examples.papers.labels {mc_8}/labels.jsonl {out}/labels.jsonl",
    "any_8": ANY + "{mc_8}/labels.jsonl --after keep",
    "any_8_masked": ANY + "{mc_8}/labels.jsonl --after mask",
    "any_8_noisy": ANY + "{mc_8_noisy}/labels.jsonl --after keep",
    "targets": "-m examples.relabel td {solutions}/solutions.jsonl --checkpoint embedded_orm "
    "--output {out}/labels.jsonl",
    "verifier": "train.py data=jsonl data.path={labels} data.folds=20 batch.rows=32 batch.tokens=128 "
    "steps=350 eval.every=50 seed={seed}",
    "steps": CHAIN + "data.test_solutions=1000 checkpoint=[{verifier}]",
}
ARMS = {
    "exact correctness": "{solutions}/solutions.jsonl",
    "exact value": "{values}/solutions.jsonl data.label_kind=value",
    SOFT: "{mc_8}/labels.jsonl data.label_kind=value",
    NOISY_SOFT: "{mc_8_noisy}/labels.jsonl data.label_kind=value",
    HARD: "{any_8}/labels.jsonl data.label_kind=value",
    MASKED: "{any_8_masked}/labels.jsonl data.label_kind=value",
    NOISY_HARD: "{any_8_noisy}/labels.jsonl data.label_kind=value",
    TD: "{targets}/labels.jsonl data.label_kind=value",
}
COMPARE = [
    Difference(CORRECTNESS, HARD, SOFT),
    Difference(CORRECTNESS, "exact correctness", HARD),
    Difference(CORRECTNESS, MASKED, HARD),
    Difference(VALUE, SOFT, HARD),
    Difference(VALUE, TD, SOFT),
    Difference(CORRECTNESS, NOISY_HARD, HARD),
    Difference(CORRECTNESS, NOISY_SOFT, SOFT),
]
SWEEP, draw = {"labels": ARMS, "seed": range(8)}, dots([[CORRECTNESS, VALUE]])
MC_LABELS = Figure(STAGES, gather_kinds, draw, COMPARE, SWEEP)
FIGURES = {"labels_k": LABELS_K, "mc_labels": MC_LABELS}


def noisy_rows(path: str, false_positive: float = 0.1):
    """Soft labels by a checker that takes this share of the wrong completions for right ones; a prefix that
    solutions share keeps one count."""
    rng, right = np.random.default_rng(0), {}
    for _, row in read_rows(path):
        for t, n_right in enumerate(row["right"]):
            prefix = row["prompt"], *row["completions"][: t + 1]
            if n_right is not None and prefix not in right:
                right[prefix] = n_right + rng.binomial(row["k"] - n_right, false_positive)
            if n_right is not None:
                row["labels"][t] = right[prefix] / row["k"]
        yield row


if __name__ == "__main__":
    write_rows(sys.argv[2], noisy_rows(sys.argv[1]))
