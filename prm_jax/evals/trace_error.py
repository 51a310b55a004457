"""Errors behind right answers (Uesato et al. 2022): trace error, selective prediction.

All numbers are of a pool's size n and of exact step labels. Dimension key: P problems, N candidates, T steps,
S shares.
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
    """`rules`: errors of each way to choose, with 95 % bootstrap intervals; `abstain`: final error by the
    share of problems left out. Final error: the chosen answer is wrong; trace error: the share of right
    chosen answers with a wrong step. score_PN: {scorer: solution scores by its headline aggregator}.
    trace_PN: `right_traces`."""
    table, errors = {}, {}
    for rule, law in laws_of(pool, score_PN, rules).items():
        right_P = (law.weight_PN * pool.right_PN).sum(-1)
        hidden_P = (law.weight_PN * (pool.right_PN - trace_PN)).sum(-1)
        table[rule] = {
            "final_error": float(1 - right_P.mean()),
            "final_error_interval": ratio_interval(1 - right_P, np.ones_like(right_P), seed).tolist(),
            "trace_error": float(hidden_P.sum() / right_P.sum()) if right_P.any() else float("nan"),
            "trace_error_interval": ratio_interval(hidden_P, right_P, seed).tolist(),
        }
        if law.confidence_P is not None:
            errors[rule] = selective(law.confidence_P, 1 - right_P)
    abstain = {"share": SHARE_S.tolist(), "error": errors}
    return {"n": pool.right_PN.shape[-1], "rules": table, "abstain": abstain}


def laws_of(pool, score_PN: dict[str, np.ndarray], rules) -> dict[str, Law]:
    """{rule: Law}: `mean` (a candidate at random), `majority` (a random one of its voters), SCORER.best_of_n,
    and SCORER.weighted_vote (the winning answer's best candidate)."""
    present_PN, eligible_PN, answer_PN = pool.present_PN, pool.eligible_PN, pool.answer_PN
    laws = {"mean": Law(present_PN / present_PN.sum(-1, keepdims=True))}

    def vote(x_PN) -> np.ndarray:
        weight_PN = votes.vote(answer_PN, x_PN, present_PN, ties=rules.ties, counts=rules.counts)
        return np.asarray(weight_PN, float)

    if answer_PN is not None:
        win_PN = vote(None)
        laws["majority"] = Law(win_PN, winning_share(win_PN, answer_PN, eligible_PN.astype(float)))
    for scorer, raw_PN in score_PN.items():
        x_PN = np.where(eligible_PN, np.asarray(raw_PN, float), -np.inf)
        best_PN = rerank.winner_probs(x_PN, x_PN.shape[-1], eligible_PN, present_PN, ties=rules.ties)
        laws[f"{scorer}.best_of_n"] = Law(np.asarray(best_PN, float) * eligible_PN, x_PN.max(-1))
        if answer_PN is not None:
            win_PN = vote(x_PN)
            vote_PN = np.exp(x_PN - np.maximum(x_PN.max(-1, keepdims=True), np.finfo(float).min))
            confidence_P = winning_share(win_PN, answer_PN, vote_PN)
            laws[f"{scorer}.weighted_vote"] = Law(best_of_winners(win_PN, answer_PN, x_PN), confidence_P)
    return laws


def right_traces(pool) -> np.ndarray:
    """trace_PN: 1 for a right candidate without a wrong step (Uesato et al. 2022's trace, here with the
    answer)."""
    trace_PN = pool.right_PN.copy()
    trace_PN[pool.present_PN] *= [metrics.labelled_steps(label_T)[1] == -1 for label_T in pool.labels]
    return trace_PN


def winning_share(win_PN, answer_PN, weight_PN) -> np.ndarray:
    """share_P of the votes that the winning answer has, in [0, 1]; 0 where nobody votes."""
    same_PNN = answer_PN[:, :, None] == answer_PN[:, None, :]
    weight_PN = np.where(answer_PN >= 0, weight_PN, 0.0)
    total_P1 = np.maximum(weight_PN.sum(-1, keepdims=True), 1e-300)
    return (win_PN * (same_PNN * weight_PN[:, None, :]).sum(-1) / total_P1).sum(-1)


def best_of_winners(win_PN, answer_PN, score_PN) -> np.ndarray:
    """A vote's probabilities of winning, each answer's moved to its candidates of the best score."""
    same_PNN = answer_PN[:, :, None] == answer_PN[:, None, :]
    best_PN = np.where(same_PNN, score_PN[:, None, :], -np.inf).max(-1)
    # Under counts="first" a win lies on the first member alone.
    group_PN = (same_PNN * win_PN[:, None, :]).sum(-1)
    is_best_PN = (score_PN >= best_PN) & (group_PN > 0)
    return is_best_PN * group_PN / np.maximum((same_PNN * is_best_PN[:, None, :]).sum(-1), 1)


def selective(confidence_P, wrong_P) -> list[float]:
    """Error of the problems left after abstaining from SHARE_S of them, least sure first; ties in the mean
    order."""
    _, block_P = np.unique(-np.asarray(confidence_P), return_inverse=True)
    mean = np.bincount(block_P, wrong_P) / np.bincount(block_P)
    total = np.maximum(np.cumsum(mean[np.sort(block_P)]), 0.0)  # errors of -1e-9 are roundings
    kept_S = np.maximum(np.round(len(wrong_P) * (1 - SHARE_S)).astype(int), 1)
    return (total[kept_S - 1] / kept_S).tolist()


def show(chosen: dict):
    title = f"chosen at n = {chosen['n']}; trace error: right answers with a wrong step"
    columns = {"final_error": "final error", "trace_error": "trace error", "trace_error_interval": "interval"}
    rows = {
        rule: {title: row[key] for key, title in columns.items()} for rule, row in chosen["rules"].items()
    }
    show_table(title, rows, digits=3)
