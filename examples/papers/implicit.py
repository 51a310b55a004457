"""Step scores from outcomes alone (2412.01981), and what labels of steps are worth (Lightman et al. 2023).
`python -m examples.papers.run implicit --redraw`; README.md: its question, what was expected."""

from functools import partial
from pathlib import Path

from examples.papers.panels import draw_panels, draw_rows
from examples.papers.run import Difference, Figure, Table, by_value

AUROC, BEST, LOWEST = "step AUROC", "best of 16, own rule", "best of 16, lowest step"
LOG_P = "policy's likelihood"


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


def gather_implicit(stages: dict) -> Table:
    table, pools = Table(), [stage.results() for stage in stages["pool"]]
    runs = stages["steps"][0].results()["runs"]
    for kind, members in by_value(stages["verifier"], "kind").items():
        pairs = list(zip(pools, members, strict=True))
        table.number(AUROC, kind, [run_of(runs, stage)["auroc_correctness"] for stage in members])
        own = "sum_logit" if kind.startswith("implicit") else None  # the log-ratio of the whole solution
        table.number(BEST, kind, [share_solved(*pair, 16, own) for pair in pairs])
        table.number(LOWEST, kind, [share_solved(*pair, 16, "min") for pair in pairs])
    table.number(AUROC, LOG_P, [runs[-1]["auroc_correctness"]])
    return table


def run_of(runs: list[dict], stage) -> dict:
    """The run of task=steps that measured a stage's verifier."""
    return next(run for run in runs if has_made(stage, run["verifier"]))


KINDS = {
    "explicit PRM": "steps=350",
    "explicit PRM, the default run": "",
    "outcome model": "objective=orm outcome_at=tokens steps=350",
    "implicit, cross-entropy, beta .5": "objective=implicit steps=350 loss.step=bce loss.beta=0.5",
    "implicit, cross-entropy, beta .05": "objective=implicit steps=350 loss.step=bce loss.beta=0.05",
    "implicit, DPO, beta .5": "objective=implicit steps=350 loss.step=pairwise loss.beta=0.5 "
    "batch.tokens=512 batch.rows=8",
}
POOL = "evaluate.py task=best_of_n checkpoint=[{verifier}] fresh.outcome_model=null fresh.problems=200 "
STAGES = {
    "verifier": "train.py {kind} seed={seed}",
    "steps": "evaluate.py task=steps checkpoint=[{verifier},policy] data=chain data.test_solutions=1000 "
    "data.solutions=8 baselines=false",
    "pool": POOL + "fresh.candidates=16 seed={seed}",
}
CE = "implicit, cross-entropy, beta .5"
COMPARE = [
    Difference(AUROC, CE, "explicit PRM"),
    Difference(AUROC, CE, LOG_P),
    Difference(AUROC, CE, "outcome model"),
    Difference(AUROC, "implicit, cross-entropy, beta .05", CE),
    Difference(AUROC, "implicit, DPO, beta .5", CE),
    Difference(LOWEST, CE, "explicit PRM"),
]
SWEEP = {"kind": KINDS, "seed": range(8)}
IMPLICIT = Figure(STAGES, gather_implicit, partial(draw_rows, names=[AUROC, BEST, LOWEST]), COMPARE, SWEEP)

EACH, ANSWER, BY_STEPS = "PRM", "outcome model, answer right", "outcome model, all steps right"
BY_RATIO = "implicit PRM"
SOLVED = {n: f"problems solved, best of {n}" for n in (4, 16, 64)}


def gather_supervision(stages: dict) -> Table:
    table, pools = Table(), {stage.sweep["seed"]: stage.results() for stage in stages["pool"]}
    for kind, of_kind in by_value(stages["verifier"], "supervision").items():
        own = "sum_logit" if kind == BY_RATIO else None  # the log-ratio of the whole solution
        for samples, members in by_value(of_kind, "samples").items():
            pairs = [(pools[stage.sweep["seed"]], stage) for stage in members]
            for n, panel in SOLVED.items():
                table.number(panel, kind, [share_solved(*pair, n, own) for pair in pairs], samples)
    return table


draw_supervision = partial(draw_panels, names=SOLVED.values(), xlabel="training solutions", log=True)
ARMS = {
    EACH: "objective=prm loss.lm_weight=0.5",
    BY_RATIO: "objective=implicit loss.step=bce loss.beta=0.5",
    BY_STEPS: "objective=orm loss.lm_weight=0.5 outcome_at=tokens data.outcome=steps",
    ANSWER: "objective=orm loss.lm_weight=0.5 outcome_at=tokens",
}
STAGES = {
    "verifier": "train.py {supervision} data.solutions={samples} data.solutions_per_problem=1 "
    "data.test_solutions=1000 steps=350 seed={seed}",
    "pool": POOL + "fresh.candidates=64 seed={seed}",
}
COMPARE = [
    Difference(SOLVED[16], EACH, BY_RATIO, x=16000),
    Difference(SOLVED[16], EACH, ANSWER, x=16000),
    Difference(SOLVED[16], BY_RATIO, ANSWER, x=16000),
    Difference(SOLVED[64], EACH, BY_RATIO, x=16000),
    Difference(SOLVED[16], EACH, BY_RATIO, x=1000),
    Difference(SOLVED[16], BY_STEPS, ANSWER, x=16000),
]
SWEEP = {"supervision": ARMS, "samples": [1000, 4000, 16000], "seed": range(8)}
SUPERVISION = Figure(STAGES, gather_supervision, draw_supervision, COMPARE, SWEEP)
FIGURES = {"implicit": IMPLICIT, "supervision": SUPERVISION}
