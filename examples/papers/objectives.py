"""Five step losses (BCE, focal, squared error, pairwise of 2501.04519, PQM of 2410.11287) and what later
steps' labels say.
    python examples/papers/run.py objectives --redraw

Question: does the step loss, or what follows the first wrong step, matter for a PRM, all else equal?
Expected (f9c3e28): BCE, focal and squared error alike in step AUROC and best of 16, focal alone badly
calibrated; PQM near BCE; pairwise below: it compares few steps, and none of different depth, which the step
AUROC over all steps does. Scores of pairwise and PQM are no probabilities: no ECE, and their product means
little.
Expected (12e707c): primary above 0 (.072 before), BCE above the likelihood by .05 or more. Squared error
within .01 of BCE in step AUROC. PQM below BCE by at most .02, pairwise by more than .02. ECE of focal above
BCE's by .05 or more. Best of 16 by the product: BCE above steps called wrong.
Primary: step AUROC, BCE with steps after the first wrong one left out - called wrong, paired over 8 seeds,
exact sign-flip test.
"""

from examples.papers.table import Difference, Figure, Table, by_value, dots, scorer_of, share_solved

AUROC, PRODUCT, LOWEST = "step AUROC", "best of 16, product", "best of 16, lowest"
LIKELIHOOD, LATER_WRONG = "the policy's likelihood", "BCE, later steps wrong"
NO_PROBABILITY = ("pairwise", "PQM")  # objectives whose scores only rank


def gather(stages: dict) -> Table:
    table, pools = Table(), [stage.results() for stage in stages["pool"]]
    n = min(16, pools[0]["n_candidates"])
    for kind, members in by_value(stages["verifier"], "objective").items():
        pairs = list(zip(pools, members, strict=True))
        steps = [pool["calibration"][scorer_of(pool, stage)]["steps"] for pool, stage in pairs]
        table.number(AUROC, kind, [x["auroc"] for x in steps])
        for name, how in (("product", "prod"), ("lowest", "min")):
            table.number(f"best of {n}, {name}", kind, [share_solved(*pair, n, how) for pair in pairs])
        if kind not in NO_PROBABILITY:
            table.number("ECE", kind, [x["ece"] for x in steps])
    table.number(AUROC, LIKELIHOOD, [pool["calibration"]["policy"]["steps"]["auroc"] for pool in pools])
    return table


ARMS = {
    "BCE": "loss.step=bce",
    "focal": "loss.step=focal",
    "squared error": "loss.step=mse",
    "pairwise": "loss.step=pairwise batch.tokens=512 batch.rows=8",
    "PQM": "loss.step=pqm",
    LATER_WRONG: "data.after_first_error=bad",
    "BCE, later steps weigh more": "batch.step_weights=later",
}
STAGES = {
    "verifier": "train.py {objective} steps=350 seed={seed}",
    "pool": "evaluate.py task=best_of_n checkpoint=[{verifier}] fresh.outcome_model=null fresh.problems=200 "
    "fresh.candidates=16 seed={seed}",
}
COMPARE = [
    Difference(AUROC, "BCE", LATER_WRONG),
    Difference(AUROC, "BCE", LIKELIHOOD),
    Difference(AUROC, "squared error", "BCE"),
    Difference(AUROC, "PQM", "BCE"),
    Difference(AUROC, "pairwise", "BCE"),
    Difference("ECE", "focal", "BCE"),
    Difference(PRODUCT, "BCE", LATER_WRONG),
]
draw = dots([[AUROC], [PRODUCT, LOWEST], ["ECE"]])
SWEEP = {"objective": ARMS, "seed": range(8)}
FIGURES = {"objectives": Figure(STAGES, gather, draw, COMPARE, SWEEP, "cpu_devices=1")}
