"""Five step losses (BCE, focal, squared error, pairwise 2501.04519, PQM 2410.11287), labels behind an error.

python -m examples.papers.run objectives --redraw       # README.md: its question, what was expected
"""

from functools import partial
from pathlib import Path

from examples.papers.run import Difference, Figure, Table, by_value, draw_panels

AUROC, PRODUCT, LOWEST = "step AUROC", "best of 16, product", "best of 16, lowest"
LIKELIHOOD, LATER_WRONG = "the policy's likelihood", "BCE, later steps wrong"
NO_PROBABILITY = ("pairwise", "PQM")  # objectives whose scores only rank


def gather(stages: dict) -> Table:
    table, pools = Table(), [stage.results() for stage in stages["pool"]]
    for kind, members in by_value(stages["verifier"], "objective").items():
        pairs = list(zip(pools, members, strict=True))
        steps = [pool["calibration"][scorer_of(pool, stage)]["steps"] for pool, stage in pairs]
        table.number(AUROC, kind, [x["auroc"] for x in steps])
        for panel, how in ((PRODUCT, "prod"), (LOWEST, "min")):
            table.number(panel, kind, [share_solved(*pair, 16, how) for pair in pairs])
        if kind not in NO_PROBABILITY:
            table.number("ECE", kind, [x["ece"] for x in steps])
    table.number(AUROC, LIKELIHOOD, [pool["calibration"]["policy"]["steps"]["auroc"] for pool in pools])
    return table


draw = partial(draw_panels, names=[AUROC, PRODUCT, LOWEST, "ECE"])


def has_made(stage, verifier: str) -> bool:
    """Whether a verifier of a results.json is this stage's: FOLDER step 700."""
    return Path(verifier.rsplit(" step ", 1)[0]).name == stage.folder.name


def scorer_of(pool: dict, stage) -> str:
    """The name that a verifier's scores have in the results of a pool: prm_2."""
    return next(name for name, x in pool["verifiers"].items() if has_made(stage, x["verifier"]))


def share_solved(pool: dict, stage, n: int, how: str | None = None, rule: str = "best_of_n") -> float:
    """The share of problems solved at n under a stage's verifier, by its headline aggregator or by `how`."""
    scorer = scorer_of(pool, stage)
    return pool["scorers"][scorer][how or pool["headline"][scorer]][rule][str(n)]


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
SWEEP = {"objective": ARMS, "seed": range(8)}
FIGURES = {"objectives": Figure(STAGES, gather, draw, COMPARE, SWEEP)}
