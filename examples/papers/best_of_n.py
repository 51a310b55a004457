"""Best of n by a process and an outcome model, votes, the oracle (Lightman et al. 2023, figure 3).

python -m examples.papers.run best_of_n --redraw       # README.md: its question, what was expected
"""

from functools import partial

from examples.papers.run import Difference, Figure, Table, draw_panels

NAMES = {"prm": "PRM", "orm": "ORM", "policy": "policy's likelihood"}
SOLVED, BY_VOTE, SOUND = "solved", "solved by weighted vote", "without a wrong step"


def gather(stages: dict) -> Table:
    table, pools = Table(), [stage.results() for stage in stages["pool"]]
    first, many = pools[0], len(pools[0]["scorers"]) > 2

    def add(panel: str, series: str, rule: str, numbers: list[dict]):
        table.curve(panel, series, map(int, first["oracle"]), [list(own[rule].values()) for own in numbers])

    for scorer, aggregator in first["headline"].items():
        own, name = [pool["scorers"][scorer][aggregator] for pool in pools], NAMES.get(scorer, scorer)
        series = f"{name} ({aggregator})" if many else f"{name}, best of n ({aggregator})"
        add(SOLVED, series, "best_of_n", own)
        add(*((BY_VOTE, series) if many else (SOLVED, f"{name}, weighted vote")), "weighted_vote", own)
        add(SOUND, series, "trace", own)
        if "with_policy" in own[0]:
            add(SOLVED, f"{name} + {first['policy_weight']:g} log p of the policy", "with_policy", own)
    for panel in (SOLVED, BY_VOTE) if many else (SOLVED,):
        add(panel, "majority vote", "majority", pools)
        add(panel, "oracle: any of n is right", "oracle", pools)
    return table


draw = partial(draw_panels, names=[SOLVED, BY_VOTE, SOUND], xlabel="n, solutions a problem", log=True)
STAGES = {
    "prm": "train.py seed={seed}",
    "orm": "train.py experiment=outcome seed={seed}",
    "pool": "evaluate.py task=best_of_n checkpoint=[{prm},{orm}] fresh.outcome_model=null seed={seed}",
}
PRM, ORM = "PRM (prod)", "ORM (last)"
COMPARE = [
    Difference(SOLVED, PRM, ORM, x=16),
    Difference(SOLVED, PRM, "majority vote", x=16),
    Difference(SOLVED, PRM, ORM, x=64),
    Difference(SOLVED, "PRM + 0.5 log p of the policy", PRM, x=64),
    Difference(BY_VOTE, PRM, PRM, x=64, b_panel=SOLVED),
    Difference(SOUND, PRM, ORM, x=16),
]
FIGURES = {"best_of_n": Figure(STAGES, gather, draw, COMPARE)}
