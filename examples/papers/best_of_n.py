"""Problems solved by the best of n under a process and an outcome model, votes, the oracle (Lightman et al.
2023, figure 3).
    python examples/papers/run.py best_of_n --redraw

Question: does a process model choose better among n samples than an outcome model, a vote and what the policy
knows untrained; does its best of n fall as n grows; and does half the policy's log p mend that? PRM and
outcome model each have the recipe that does best for it (docs/lab.md).
Expected (1d2c78d): PRM above ORM and majority at n = 16 (by .3 and .2); best-of-n peaks at n = 8 to 32 (PRM)
and 2 to 4 (ORM) and falls, the vote weighted by the PRM does not; among winners without a wrong step the
PRM's lead is larger.
Expected (82f68d6): primary near .33 (docs/lab.md, eight PRMs and one ORM on one pool); PRM above majority
vote by .26 at n = 16; at n = 64 PRM above the ORM by .5, + .5 log p above the PRM alone by .03 to .06 with a
smaller spread, the vote weighted by the PRM above its best of n by .01 to .04; the PRM's best of n no longer
falls; the PRM's lead larger among winners without a wrong step.
Primary: problems solved at n = 16, best of n by the PRM - by the ORM, paired over 8 seeds.
"""

from examples.papers.table import Difference, Figure, Table, curves, results_of

NAMES = {"prm": "PRM", "orm": "ORM", "policy": "policy's likelihood"}
SOLVED, BY_VOTE, SOUND = "solved", "solved by weighted vote", "without a wrong step"


def gather(stages: dict) -> Table:
    table, pools = Table(), results_of(stages["pool"])
    first, many = pools[0], len(pools[0]["scorers"]) > 2

    def add(panel: str, series: str, rule: str, numbers: list[dict]):
        table.curve(panel, series, map(int, first["oracle"]), [list(own[rule].values()) for own in numbers])

    for scorer, aggregator in first["headline"].items():
        own, name = [pool["scorers"][scorer][aggregator] for pool in pools], NAMES.get(scorer, scorer)
        series = f"{name} ({aggregator})" if many else f"{name}, best of n ({aggregator})"
        add(SOLVED, series, "best_of_n", own)
        add(*((BY_VOTE, series) if many else (SOLVED, f"{name}, weighted vote")), "weighted_vote", own)
        add(SOUND, series, "trace", own)
        if "with_policy_curve" in own[0]:
            add(SOLVED, f"{name} + {first['policy_weight']:g} log p of the policy", "with_policy", own)
    for panel in (SOLVED, BY_VOTE) if many else (SOLVED,):
        add(panel, "majority vote", "majority", pools)
        add(panel, "oracle: any of n is right", "oracle", pools)
    return table


draw = curves((SOLVED, BY_VOTE, SOUND), "n, solutions a problem", "log")
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
