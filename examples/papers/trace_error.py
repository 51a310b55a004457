"""Trace error of the chosen solutions, and errors left after abstaining (Uesato et al. 2022).
`python -m examples.papers.run trace_error --redraw`; README.md: its question, what was expected."""

import numpy as np

from examples.papers.best_of_n import STAGES
from examples.papers.overoptimisation import pool_scores
from examples.papers.panels import draw_panels
from examples.papers.run import Difference, Figure, Table
from prm_jax import rerank, votes
from prm_jax.data.pools import read_pool
from prm_jax.evals.pool_arrays import Pool, pool_arrays

VERIFIERS = {"prm": "PRM", "orm": "outcome model"}
ERROR, ABSTAINING = "trace error", "final-answer error after abstaining"
SHARE_X = np.arange(0, 1, 0.05)  # of the problems that are left out, least sure first


def gather(stages: dict) -> Table:
    """x: the final-answer error; of abstaining, the share of problems left out."""
    table, pools = Table(), [stage.results() for stage in stages["pool"]]
    how = pools[0]["headline"]
    for scorer, name in VERIFIERS.items():
        own = [pool["scorers"][scorer][how[scorer]] for pool in pools]
        right_SX, trace_SX = (np.array([list(x[y].values()) for x in own]) for y in ("best_of_n", "trace"))
        final_X = 1 - right_SX.mean(0)
        for k, n in enumerate(own[0]["best_of_n"]):
            error_S = 1 - trace_SX[:, k] / right_SX[:, k]
            table.number(ERROR, f"{name}, best of n = {n}", error_S, final_X[k])
    scored = [pool_arrays(read_pool(stage.folder / "pool.jsonl.gz")) for stage in stages["pool"]]
    errors = [abstaining(pool, "prm", how["prm"]) for pool in scored]
    for rule in errors[0]:
        table.curve(ABSTAINING, f"PRM, {rule}", SHARE_X, [own[rule] for own in errors])
    return table


def abstaining(pool: Pool, scorer: str, how: str) -> dict[str, list[float]]:
    """{rule: error of the chosen answer, by the share of problems left out}, of a scored pool. A best of n is
    as sure as its score, a weighted vote as its answer's share of the votes exp(score)."""
    score_PN = pool_scores(pool, scorer, how)
    best_PN = rerank.best_of_n(score_PN, pool.right_PN, pool.eligible_PN, pool.present_PN)
    weight_PN = np.exp(score_PN - score_PN.max(-1, keepdims=True))
    same_PNN = pool.answer_PN[:, :, None] == pool.answer_PN[:, None, :]
    votes_PN = (same_PNN * weight_PN[:, None, :]).sum(-1)
    voted_P = rerank.expectation(votes.vote(pool.answer_PN, score_PN), pool.right_PN)
    return {
        "best of n": selective(score_PN.max(-1), 1 - np.asarray(best_PN)[:, -1]),
        "weighted vote": selective(votes_PN.max(-1) / weight_PN.sum(-1), 1 - np.asarray(voted_P)),
    }


def selective(sure_P, wrong_P) -> list[float]:
    """Error of what is left after abstaining from SHARE_X, least sure first; ties in their mean order."""
    _, block_P = np.unique(-np.asarray(sure_P), return_inverse=True)
    mean = np.bincount(block_P, wrong_P) / np.bincount(block_P)
    total = np.maximum(np.cumsum(mean[np.sort(block_P)]), 0.0)  # errors of -1e-9 are roundings
    kept_X = np.maximum(np.round(len(wrong_P) * (1 - SHARE_X)).astype(int), 1)
    return (total[kept_X - 1] / kept_X).tolist()


def draw(table):
    table = table[table.x < 0.71]  # with more left out, few problems are left
    table = table.assign(series=table.series.str.replace(r" = \d+$", "", regex=True))
    figure = draw_panels(table, [ERROR, ABSTAINING], "final-answer error")
    figure.axes[0].set_ylim(-0.05)
    figure.axes[1].set_xlabel("share of problems left out")
    return figure


COMPARE = [
    Difference(ERROR, "PRM, best of n = 64", "outcome model, best of n = 64"),
    Difference(ERROR, "PRM, best of n = 64", "PRM, best of n = 1"),
    Difference(ERROR, "outcome model, best of n = 64", "PRM, best of n = 1"),
    Difference(ABSTAINING, "PRM, weighted vote", "PRM, best of n", x=0.3),
]
FIGURES = {"trace_error": Figure(STAGES, gather, draw, COMPARE)}
