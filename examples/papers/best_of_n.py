"""Best of n by a process and an outcome model, votes, the oracle (Lightman et al. 2023, figure 3).
`python -m examples.papers.run best_of_n --redraw`; README.md: its question, what was expected."""

from functools import partial

from examples.papers.panels import draw_panels
from examples.papers.run import Difference, Figure, Table

NAMES = {"prm": "PRM", "orm": "outcome model", "policy": "policy's likelihood"}
SOLVED = "problems solved"
PANELS = {"pool": SOLVED, "plain": "independent slips"}  # {line: its panel}; the second is not drawn


def gather(stages: dict) -> Table:
    table = Table()
    for line, panel in PANELS.items():
        if line in stages:
            add_curves(table, panel, [stage.results() for stage in stages[line]])
    return table


def add_curves(table: Table, panel: str, pools: list[dict]):
    first = pools[0]

    def add(series: str, rule: str, numbers: list[dict]):
        table.curve(panel, series, map(int, first["oracle"]), [list(own[rule].values()) for own in numbers])

    for scorer, aggregator in first["headline"].items():
        own, name = [pool["scorers"][scorer][aggregator] for pool in pools], NAMES.get(scorer, scorer)
        add(name, "best_of_n", own)
        if len(first["scorers"]) == 1:
            add(f"{name}, weighted vote", "weighted_vote", own)
        if scorer == "prm" and "with_policy" in own[0]:
            add(f"{name} + {first['policy_weight']:g} log p", "with_policy", own)
    add("majority vote", "majority", pools)
    add("oracle", "oracle", pools)


draw = partial(draw_panels, names=[SOLVED], xlabel="n, solutions a problem", log=True)
STAGES = {
    "prm": "train.py seed={seed}",
    "orm": "train.py experiment=outcome seed={seed}",
    "pool": "evaluate.py task=best_of_n checkpoint=[{prm},{orm}] fresh.outcome_model=null seed={seed}",
}
PLAIN = {
    "plain_prm": "train.py data=chain_plain seed={seed}",
    "plain": "evaluate.py task=best_of_n checkpoint=[{plain_prm}] fresh.outcome_model=null seed={seed}",
}
PRM, ORM = "PRM", "outcome model"
COMPARE = [
    Difference(SOLVED, PRM, ORM, x=16),
    Difference(SOLVED, PRM, "majority vote", x=16),
    Difference(SOLVED, PRM, ORM, x=64),
    Difference(SOLVED, "PRM + 0.5 log p", PRM, x=64),
]
FIGURES = {"best_of_n": Figure(STAGES | PLAIN, gather, draw, COMPARE)}
