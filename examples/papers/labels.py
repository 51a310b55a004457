"""Errors of labels by K completions (Math-Shepherd, 2312.08935, figure 4), and verifiers by what labelled
their steps.
    python examples/papers/run.py labels --redraw

(labels_k)
Question: do more completions make a label better, the hard one (any is right) as a statement of correctness,
the soft one (their share) as one of value?
Expected (14a8686): soft yes: the error falls as K^-1/2, by .04 to .10 from K = 8 to 64. Hard only at first:
right lines are found by few completions, while from a wrong line luck leads to the right answer the more
often the more are drawn (docs/lab.md: 36 % of the first wrong lines at K = 8, and first errors named right
.570 at 8, .503 at 32), so the error is least at K = 4 to 8 and .02 to .10 higher at 64; half of the K right
is a worse label of correctness at 8 than any, for it calls right lines with hard facts ahead wrong. Bisection
costs as much a label at 2 operations and half or less at 9.
Primary: share of hard labels that are wrong, K = 64 - K = 4, paired over 8 sets of beliefs.
(mc_labels)
Question: what is lost where labels come from completions in place of people, and is a hard or a soft label
the better one?
Expected (f9c3e28): exact labels first by far in AUROC against correctness and in best of n, by prod and min;
hard above soft there, soft and TD above hard against value; noise costs hard labels more than soft ones,
since one error of 8 flips them.
Expected (9fb4e37): primary above .05 (three seeds of 150 steps, the hard ones masked: .816 against .650);
exact - hard above .05; masked - all lines above 0 against correctness, by up to .07 (figure objectives:
labels behind the first wrong line say where errors have been, not what an error is); against value soft -
hard above .03 and TD - soft within .03 of 0; noise lowers hard labels by more than .05 against correctness,
soft ones by less than .03. Exact labels lead all others by .05 or more in best of 16.
Primary: AUROC against correctness, hard - soft at K = 8, both of all lines, paired over 8 seeds, exact
sign-flip test.
"""

from examples.papers.table import Difference, Figure, Table, by_value, curves, dots, results_of, run_of

ERROR, RULES = "error of a label", {"any": "any right", "half": "half right", "soft": "soft"}


def gather_k(stages: dict) -> Table:
    table = Table()
    by_seed = [results["runs"][0]["label_errors"] for results in results_of(stages["exact"])]
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
draw = curves([ERROR], "K, completions of a prefix", "log")
LABELS_K = Figure(STAGES, gather_k, draw, COMPARE, also="cpu_devices=1")

CORRECTNESS, VALUE = "AUROC against correctness", "AUROC against value"
HARD, SOFT, TD = "hard, K = 8", "soft, K = 8", "TD(.8), no completions"
NOISY_HARD, NOISY_SOFT, MASKED = f"{HARD}, noisy checker", f"{SOFT}, noisy checker", f"{HARD}, to the first 0"


def gather_kinds(stages: dict) -> Table:
    table, runs = Table(), results_of(stages["steps"])[0]["runs"]
    for kind, members in by_value(stages["verifier"], "labels").items():
        for panel, key in ((CORRECTNESS, "auroc_correctness"), (VALUE, "auroc_value")):
            table.number(panel, kind, [run_of(runs, stage)[key] for stage in members])
    return table


SAMPLES = "evaluate.py task=solutions data=chain data.solutions=4000 data.solutions_per_problem=1 "
LABELING = "-m prm_jax.labeling input={solutions}/solutions.jsonl k=8 sampling.max_tokens=60 batch_rows=512"
ANY = "-m prm_jax.relabeling by=labels threshold=0.001 input="
STAGES = {
    "solutions": SAMPLES + "data.test_solutions=8",
    "values": SAMPLES + "data.test_solutions=8 data.label_kind=value data.after_first_error=keep",
    "mc_8": LABELING,
    "mc_8_noisy": LABELING + " noise.false_positive=0.1",
    "any_8": ANY + "{mc_8}/labels.jsonl after_first_error=keep",
    "any_8_masked": ANY + "{mc_8}/labels.jsonl after_first_error=mask",
    "any_8_noisy": ANY + "{mc_8_noisy}/labels.jsonl after_first_error=keep",
    "targets": "-m prm_jax.relabeling input={solutions}/solutions.jsonl by=td checkpoint=embedded_orm",
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
MC_LABELS = Figure(STAGES, gather_kinds, draw, COMPARE, SWEEP, "cpu_devices=1")
FIGURES = {"labels_k": LABELS_K, "mc_labels": MC_LABELS}
