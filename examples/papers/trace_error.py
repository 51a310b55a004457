"""Trace error of the chosen solutions, and errors left after abstaining (Uesato et al. 2022).

python -m examples.papers.run trace_error --redraw       # README.md: its question, what was expected
"""

import numpy as np

from examples.papers.best_of_n import NAMES, STAGES
from examples.papers.overoptimisation import pool_scores
from examples.papers.run import Difference, Figure, Table, draw_panels
from prm_jax import rerank, votes
from prm_jax.data.pools import read_pool
from prm_jax.evals.pool_arrays import Pool, pool_arrays
from prm_jax.evals.pool_metrics import right_traces
from prm_jax.tasks.chain import CHAIN

TITLES = NAMES | {"majority": "majority vote"}
ERROR, ABSTAINING = "trace error", "abstaining"
SHARE_X = np.arange(0, 1, 0.05)  # of the problems that are left out, least sure first


def gather(stages: dict) -> Table:
    """x: the final-answer error; of abstaining, the share of problems left out."""
    table, pools = Table(), [stage.results() for stage in stages["pool"]]
    for scorer, aggregator in pools[0]["headline"].items():
        own = [pool["scorers"][scorer][aggregator] for pool in pools]
        right, trace = (np.array([list(x[rule].values()) for x in own]) for rule in ("best_of_n", "trace"))
        error_SX = 1 - np.divide(trace, right, out=np.full(trace.shape, np.nan), where=right > 0)
        series = f"{name_of(scorer)}, best of n"
        for k, n in enumerate(own[0]["best_of_n"]):
            table.number(ERROR, f"{series} = {n}", error_SX[:, k], 1 - right[:, k].mean())
    scored = [labelled_pool(stage) for stage in stages["pool"]]
    final, traces = np.transpose([errors_at_random(pool) for pool in scored])
    table.number(ERROR, "a sample at random", traces, final.mean())
    pairs = zip(scored, pools, strict=True)
    errors = [abstaining(pool, results["headline"]) for pool, results in pairs]
    for rule in errors[0]:
        table.curve(ABSTAINING, name_of(rule), SHARE_X, [own[rule] for own in errors])
    return table


def labelled_pool(stage) -> Pool:
    """The pool that a stage of task=best_of_n has scored and written, with the exact labels of its steps."""
    pool = read_pool(stage.folder / "pool.jsonl.gz")
    rows = {(p.problem, c.steps) for p in pool for c in p.candidates}
    return pool_arrays(pool, step_labels={row: CHAIN.step_labels(*row) for row in rows})


def errors_at_random(pool: Pool) -> tuple[float, float]:
    """(final error, trace error) of a sample at random: its answer is wrong; a right one has a wrong step."""
    chance_PN = pool.present_PN / pool.present_PN.sum(-1, keepdims=True)
    right = float((chance_PN * pool.right_PN).sum())
    sound = float((chance_PN * right_traces(pool)).sum())
    return 1 - right / len(pool.right_PN), 1 - sound / right


def abstaining(pool: Pool, headline: dict[str, str]) -> dict[str, list[float]]:
    """{rule: error of the chosen answer, by the share of problems left out}, of a scored pool. A best of n is
    as sure as its score, a vote as its answer's share of the votes exp(score)."""
    alike_PN = np.where(pool.eligible_PN, 0.0, -np.inf)
    errors = {"majority": vote_errors(pool, alike_PN)}
    for scorer, how in headline.items():
        score_PN = pool_scores(pool, scorer, how)
        right_PN = rerank.best_of_n(score_PN, pool.right_PN, pool.eligible_PN, pool.present_PN)
        errors[f"{scorer}.best_of_n"] = selective(score_PN.max(-1), 1 - np.asarray(right_PN)[:, -1])
        errors[f"{scorer}.weighted_vote"] = vote_errors(pool, score_PN)
    return errors


def vote_errors(pool: Pool, score_PN) -> list[float]:
    top_P1 = np.maximum(score_PN.max(-1, keepdims=True), np.finfo(float).min)
    weight_PN = np.exp(score_PN - top_P1)
    same_PNN = pool.answer_PN[:, :, None] == pool.answer_PN[:, None, :]
    votes_PN = (same_PNN * weight_PN[:, None, :]).sum(-1)
    sure_P = votes_PN.max(-1) / np.maximum(weight_PN.sum(-1), 1e-300)
    right_P = rerank.expectation(votes.vote(pool.answer_PN, score_PN), pool.right_PN)
    return selective(sure_P, 1 - np.asarray(right_P))


def selective(sure_P, wrong_P) -> list[float]:
    """Error of the problems left after abstaining from SHARE_X of them, least sure first; ties in the mean
    order."""
    _, block_P = np.unique(-np.asarray(sure_P), return_inverse=True)
    mean = np.bincount(block_P, wrong_P) / np.bincount(block_P)
    total = np.maximum(np.cumsum(mean[np.sort(block_P)]), 0.0)  # errors of -1e-9 are roundings
    kept_X = np.maximum(np.round(len(wrong_P) * (1 - SHARE_X)).astype(int), 1)
    return (total[kept_X - 1] / kept_X).tolist()


def name_of(rule: str) -> str:
    scorer, _, aggregator = rule.partition(".")
    return ", ".join(filter(None, [TITLES.get(scorer, scorer), aggregator.replace("_", " ")]))


def draw(table):
    table = table.assign(series=table.series.str.replace(r" = \d+$", "", regex=True))
    return draw_panels(table, [ERROR, ABSTAINING], "final-answer error; share left out")


COMPARE = [
    Difference(ERROR, "PRM, best of n = 64", "ORM, best of n = 64"),
    Difference(ERROR, "PRM, best of n = 64", "a sample at random"),
    Difference(ERROR, "ORM, best of n = 64", "a sample at random"),
    Difference(ABSTAINING, "PRM, weighted vote", "PRM, best of n", x=0.3),
]
FIGURES = {"trace_error": Figure(STAGES, gather, draw, COMPARE)}
