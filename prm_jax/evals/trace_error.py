"""Errors behind right answers (Uesato et al. 2022): trace error, selective prediction, agreement with labels.

All numbers are of a pool's size n and of exact step labels. Dimension key: P problems, N candidates, T steps, S shares.
"""

import functools
from collections.abc import Sequence

import numpy as np

from prm_jax import metrics, rerank, votes
from prm_jax.data.units import as_probability
from prm_jax.stats import bootstrap_interval, ratio_interval

SHARE_S = np.arange(0, 1, 0.05)  # of the problems that are abstained from


def chosen_numbers(pool, score_PN: dict[str, np.ndarray], trace_PN, rules, seed: int) -> dict:
    """`rules`: errors of each way to choose; `differences` of the first scorer's trace error by best of n from others,
    paired; `abstain`: final error by the share of problems left out; `agreement`: below. score_PN: {scorer: solution
    scores by its headline aggregator}. trace_PN: `right_traces`. Rules are `mean` (a candidate at random), `majority` (a
    random one of its voters), SCORER.best_of_n, and SCORER.weighted_vote (the winning answer's best candidate)."""
    present_PN, eligible_PN, answer_PN = pool.present_PN, pool.eligible_PN, pool.answer_PN
    weight_PN, confidence_P = {"mean": present_PN / present_PN.sum(-1, keepdims=True)}, {}

    def vote(x_PN):
        return np.asarray(
            votes.vote(answer_PN, x_PN, present_PN, ties=rules.ties, counts=rules.counts), float
        )

    if answer_PN is not None:
        weight_PN["majority"] = vote(None)
        confidence_P["majority"] = winning_share(
            weight_PN["majority"], answer_PN, np.where(eligible_PN, 1.0, 0.0)
        )
    for scorer, x_PN in score_PN.items():
        x_PN, rule = np.where(eligible_PN, np.asarray(x_PN, float), -np.inf), f"{scorer}.best_of_n"
        best_PN = rerank.winner_probs(x_PN, x_PN.shape[-1], eligible_PN, present_PN, ties=rules.ties)
        weight_PN[rule], confidence_P[rule] = np.asarray(best_PN, float) * eligible_PN, x_PN.max(-1)
        if answer_PN is not None:
            win_PN, rule = vote(x_PN), f"{scorer}.weighted_vote"
            vote_PN = np.exp(x_PN - np.maximum(x_PN.max(-1, keepdims=True), np.finfo(float).min))
            weight_PN[rule] = best_of_winners(win_PN, answer_PN, x_PN)
            confidence_P[rule] = winning_share(win_PN, answer_PN, vote_PN)
    right_PX = np.stack([(x_PN * pool.right_PN).sum(-1) for x_PN in weight_PN.values()], -1)
    hidden_PX = np.stack([(x_PN * (pool.right_PN - trace_PN)).sum(-1) for x_PN in weight_PN.values()], -1)
    final, trace = (
        ratio_interval(1 - right_PX, np.ones_like(right_PX), seed),
        ratio_interval(hidden_PX, right_PX, seed),
    )
    column = {rule: i for i, rule in enumerate(weight_PN)}
    first, all_problems, differences = f"{next(iter(score_PN))}.best_of_n", np.arange(len(right_PX)), []

    def minus(problems, rule):
        a, b = (
            ratio(hidden_PX[problems, column[name]], right_PX[problems, column[name]])
            for name in (first, rule)
        )
        return a - b

    for rule in [rule for rule in column if rule != first and not rule.endswith(".weighted_vote")]:
        interval = bootstrap_interval(functools.partial(minus, rule=rule), all_problems, seed)
        difference = float(minus(all_problems, rule))
        differences.append({"a": first, "b": rule, "difference": difference, "interval": interval})
    table = {}
    for rule, i in column.items():
        table[rule] = {
            "final_error": float(1 - right_PX[:, i].mean()), "final_error_interval": final[:, i].tolist(),
            "trace_error": ratio(hidden_PX[:, i], right_PX[:, i]), "trace_error_interval": trace[:, i].tolist(),
        }  # fmt: skip
    errors = {rule: selective(x_P, 1 - right_PX[:, column[rule]]) for rule, x_P in confidence_P.items()}
    return {
        "n": pool.right_PN.shape[-1], "rules": table, "differences": differences,
        "abstain": {"share": SHARE_S.tolist(), "error": errors},
        "agreement": agreement(pool, list(score_PN), rules.scores_unit),
    }  # fmt: skip


def right_traces(pool) -> np.ndarray:
    """trace_PN: 1 for a right candidate without a wrong step (Uesato et al. 2022's trace, here with the answer)."""
    trace_PN = pool.right_PN.copy()
    trace_PN[pool.present_PN] *= [metrics.labelled_steps(label_T)[1] == -1 for label_T in pool.labels]
    return trace_PN


def ratio(x_P, y_P) -> float:
    return float(x_P.sum() / y_P.sum()) if y_P.sum() > 0 else float("nan")


def winning_share(win_PN, answer_PN, weight_PN) -> np.ndarray:
    """share_P of the votes that the winning answer has, in [0, 1]; 0 where nobody votes."""
    same_PNN = answer_PN[:, :, None] == answer_PN[:, None, :]
    weight_PN = np.where(answer_PN >= 0, weight_PN, 0.0)
    group_PN = (same_PNN * weight_PN[:, None, :]).sum(-1) / np.maximum(
        weight_PN.sum(-1, keepdims=True), 1e-300
    )
    return (win_PN * group_PN).sum(-1)


def best_of_winners(win_PN, answer_PN, score_PN) -> np.ndarray:
    """A vote's probabilities of winning, each answer's moved to its candidates of the best score."""
    same_PNN = answer_PN[:, :, None] == answer_PN[:, None, :]
    best_PN = np.where(same_PNN, score_PN[:, None, :], -np.inf).max(-1)
    group_PN = (same_PNN * win_PN[:, None, :]).sum(
        -1
    )  # under counts="first" it lies on the first member alone
    is_best_PN = (score_PN >= best_PN) & (group_PN > 0)
    return is_best_PN * group_PN / np.maximum((same_PNN * is_best_PN[:, None, :]).sum(-1), 1)


def selective(confidence_P, wrong_P) -> list[float]:
    """Error of the problems left after abstaining from SHARE_S of them, least sure first; ties in the mean order."""
    _, block_P = np.unique(-np.asarray(confidence_P), return_inverse=True)
    mean = np.bincount(block_P, wrong_P) / np.bincount(block_P)
    total = np.maximum(np.cumsum(mean[np.sort(block_P)]), 0.0)  # errors of -1e-9 are roundings
    kept_S = np.maximum(np.round(len(wrong_P) * (1 - SHARE_S)).astype(int), 1)
    return (total[kept_S - 1] / kept_S).tolist()


def agreement(pool, scorers: Sequence[str], default_unit: str) -> dict:
    """{scorer: share of steps on which its P(step good) >= .5 agrees with `correctness` (the step's label), `outcome`
    (the answer is right) and each other scorer}, `labels`: of label with outcome; steps up to the first wrong one."""
    kept_m, label_m = pool.labelled()
    has_outcome = np.repeat(pool.finished_n, pool.steps_n)[kept_m]
    kept_m, right = kept_m[has_outcome], label_m[has_outcome] >= 0.5
    outcome = np.repeat(pool.right_PN[pool.present_PN] > 0, pool.steps_n)[kept_m]
    good, table = {}, {"labels": metrics.mean(right == outcome)}
    for scorer in scorers:
        good[scorer] = as_probability(pool.scores[scorer][kept_m], pool.unit(scorer, default_unit)) >= 0.5
    for a, x in good.items():
        others = {"correctness": right, "outcome": outcome} | {b: y for b, y in good.items() if b != a}
        table[a] = {b: metrics.mean(x == y) for b, y in others.items()}
    return table


def show(chosen: dict):
    print(f"chosen      at n = {chosen['n']}: final error; trace error: right answers with a wrong step")
    for rule, row in chosen["rules"].items():
        low, high = row["trace_error_interval"]
        print(f"  {rule:<24}{row['final_error']:.3f}  {row['trace_error']:.3f} [{low:.3f}, {high:.3f}]")
    labels = chosen["agreement"]["labels"]
    print(f"agreement   up to the first wrong step, of the labels {labels:.3f}; of P(step good) >= .5 with")
    for scorer, row in chosen["agreement"].items():
        if scorer != "labels":
            print(f"  {scorer:<24}{', '.join(f'{name} {share:.3f}' for name, share in row.items())}")
