"""Errors behind right answers (Uesato et al. 2022).

All numbers are of all candidates and exact step labels. Dimension key: P problems, N candidates.
"""

import numpy as np

from prm_jax import metrics, rerank, votes
from prm_jax.stats import ratio_interval


def chosen_numbers(pool, score_PN: dict[str, np.ndarray], rules, seed: int) -> dict:
    """`rules`: errors of each way to choose: `mean` (a candidate at random), `majority`, SCORER.best_of_n,
    SCORER.weighted_vote. Final error: the chosen answer is wrong; trace error: the share of right chosen
    answers with a wrong step."""
    weight_PN = {"mean": pool.present_PN / pool.present_PN.sum(-1, keepdims=True)}
    if pool.answer_PN is not None:
        weight_PN["majority"] = vote_weights(pool.answer_PN, np.where(pool.eligible_PN, 0.0, -np.inf), rules)
    for scorer, raw_PN in score_PN.items():
        x_PN = np.where(pool.eligible_PN, np.asarray(raw_PN, float), -np.inf)
        N, present_PN = x_PN.shape[-1], pool.present_PN
        best_PN = rerank.winner_probs(x_PN, N, pool.eligible_PN, present_PN, ties=rules.ties)
        weight_PN[f"{scorer}.best_of_n"] = np.asarray(best_PN, float) * pool.eligible_PN
        if pool.answer_PN is not None:
            weight_PN[f"{scorer}.weighted_vote"] = vote_weights(pool.answer_PN, x_PN, rules)
    table, trace_PN = {}, right_traces(pool)
    for way, chosen_PN in weight_PN.items():
        right_P = (chosen_PN * pool.right_PN).sum(-1)
        hidden_P = (chosen_PN * (pool.right_PN - trace_PN)).sum(-1)
        table[way] = {
            "final_error": float(1 - right_P.mean()),
            "trace_error": float(hidden_P.sum() / right_P.sum()) if right_P.any() else float("nan"),
            "trace_error_interval": ratio_interval(hidden_P, right_P, seed).tolist(),
        }
    return {"rules": table}


def right_traces(pool) -> np.ndarray:
    """trace_PN: 1 for a right candidate without a wrong step."""
    trace_PN = pool.right_PN.copy()
    trace_PN[pool.present_PN] *= [metrics.labelled_steps(label_T)[1] == -1 for label_T in pool.labels]
    return trace_PN


def vote_weights(answer_PN, score_PN, rules) -> np.ndarray:
    """weight_PN of the candidate that shows a vote: the winning answer's best, equal ones alike."""
    win_PN = np.asarray(votes.vote(answer_PN, score_PN, ties=rules.ties, counts=rules.counts), float)
    same_PNN = answer_PN[:, :, None] == answer_PN[:, None, :]
    group_PN = (same_PNN * win_PN[:, None, :]).sum(-1)  # with ties=first a win lies on the first alone
    best_PN = np.where(same_PNN, score_PN[:, None, :], -np.inf).max(-1)
    is_best_PN = (score_PN >= best_PN) & (group_PN > 0)
    n_best_PN = (same_PNN * is_best_PN[:, None, :]).sum(-1)
    return is_best_PN * group_PN / np.maximum(n_best_PN, 1)
