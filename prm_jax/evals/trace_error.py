"""Errors behind right answers (Uesato et al. 2022): trace error, selective prediction.

All numbers are of all candidates and exact step labels. Dimension key: P problems, N candidates, S shares.
"""

from typing import NamedTuple

import numpy as np

from prm_jax import metrics, rerank, votes
from prm_jax.evals.tables import show_table
from prm_jax.stats import ratio_interval

SHARE_S = np.arange(0, 1, 0.05)  # of the problems that are abstained from


class Law(NamedTuple):
    """How a rule chooses."""

    weight_PN: np.ndarray  # probability of each candidate
    confidence_P: np.ndarray | None = None  # by which problems are left out, least sure first


def chosen_numbers(pool, score_PN: dict[str, np.ndarray], trace_PN, rules, seed: int) -> dict:
    """`rules`: errors of each way to choose; `abstain`: final error by the share of problems left out. Final
    error: the chosen answer is wrong; trace error: the share of right chosen answers with a wrong step, with
    its 95 % bootstrap interval. score_PN: {scorer: solution scores by its headline aggregator}. The ways are
    `mean` (a candidate at random), `majority`, SCORER.best_of_n and SCORER.weighted_vote."""
    laws = {"mean": Law(pool.present_PN / pool.present_PN.sum(-1, keepdims=True))}
    if pool.answer_PN is not None:
        laws["majority"] = vote_law(pool.answer_PN, np.where(pool.eligible_PN, 0.0, -np.inf), rules)
    for scorer, raw_PN in score_PN.items():
        x_PN = np.where(pool.eligible_PN, np.asarray(raw_PN, float), -np.inf)
        arrays = x_PN, x_PN.shape[-1], pool.eligible_PN, pool.present_PN
        best_PN = np.asarray(rerank.winner_probs(*arrays, ties=rules.ties), float)
        laws[f"{scorer}.best_of_n"] = Law(best_PN * pool.eligible_PN, x_PN.max(-1))
        if pool.answer_PN is not None:
            laws[f"{scorer}.weighted_vote"] = vote_law(pool.answer_PN, x_PN, rules)
    table, errors = {}, {}
    for rule, law in laws.items():
        right_P = (law.weight_PN * pool.right_PN).sum(-1)
        hidden_P = (law.weight_PN * (pool.right_PN - trace_PN)).sum(-1)
        table[rule] = {
            "final_error": float(1 - right_P.mean()),
            "trace_error": float(hidden_P.sum() / right_P.sum()) if right_P.any() else float("nan"),
            "trace_error_interval": ratio_interval(hidden_P, right_P, seed).tolist(),
        }
        if law.confidence_P is not None:
            errors[rule] = selective(law.confidence_P, 1 - right_P)
    return {"rules": table, "abstain": {"share": SHARE_S.tolist(), "error": errors}}


def right_traces(pool) -> np.ndarray:
    """trace_PN: 1 for a right candidate without a wrong step (Uesato et al. 2022's trace, here with the
    answer)."""
    trace_PN = pool.right_PN.copy()
    trace_PN[pool.present_PN] *= [metrics.labelled_steps(label_T)[1] == -1 for label_T in pool.labels]
    return trace_PN


def vote_law(answer_PN, score_PN, rules) -> Law:
    """The winning answer's best candidate, equal ones alike; it is as sure as its answer's share of the votes
    exp(score), 0 where nobody votes."""
    vote_PN = votes.vote(answer_PN, score_PN, ties=rules.ties, counts=rules.counts)
    win_PN = np.asarray(vote_PN, float)
    same_PNN = answer_PN[:, :, None] == answer_PN[:, None, :]

    def total(x_PN) -> np.ndarray:
        """The sum over all candidates of each one's answer."""
        return (same_PNN * x_PN[:, None, :]).sum(-1)

    top_P1 = np.maximum(score_PN.max(-1, keepdims=True), np.finfo(float).min)
    weight_PN = np.where(answer_PN >= 0, np.exp(score_PN - top_P1), 0.0)
    share_PN = total(weight_PN) / np.maximum(weight_PN.sum(-1, keepdims=True), 1e-300)
    group_PN = total(win_PN)  # with ties=first a win lies on the first member alone
    best_PN = np.where(same_PNN, score_PN[:, None, :], -np.inf).max(-1)
    is_best_PN = (score_PN >= best_PN) & (group_PN > 0)
    weight_PN = is_best_PN * group_PN / np.maximum(total(is_best_PN), 1)
    return Law(weight_PN, (win_PN * share_PN).sum(-1))


def selective(confidence_P, wrong_P) -> list[float]:
    """Error of the problems left after abstaining from SHARE_S of them, least sure first; ties in the mean
    order."""
    _, block_P = np.unique(-np.asarray(confidence_P), return_inverse=True)
    mean = np.bincount(block_P, wrong_P) / np.bincount(block_P)
    total = np.maximum(np.cumsum(mean[np.sort(block_P)]), 0.0)  # errors of -1e-9 are roundings
    kept_S = np.maximum(np.round(len(wrong_P) * (1 - SHARE_S)).astype(int), 1)
    return (total[kept_S - 1] / kept_S).tolist()


def show(chosen: dict):
    show_table("chosen of all; trace error: right answers with a wrong step", chosen["rules"], digits=3)
