"""What a right answer hides (Uesato et al. 2022): trace error, selective prediction, and whose labels a verifier agrees with.

All of a whole pool, at n = its size, and of exact step labels. Dimension key: P problems, N candidates, T steps, S shares.
"""

from collections.abc import Sequence

import numpy as np

from prm_jax import rerank, votes
from prm_jax.data.units import as_probability
from prm_jax.stats import bootstrap_interval, ratio_interval

SHARE_S = np.arange(0, 1, 0.05)  # of the problems that are abstained from


def measure(pool, score_PN: dict[str, np.ndarray], trace_PN, rules, seed: int) -> dict:
    """`rules`: errors of each way to choose; `differences` of the first scorer's trace error by best of n from others, paired;
    `abstain`: final error by the share of problems left out; `agreement` of P(step good) >= .5 with labels and each other.

    pool: pool_metrics.Pool. score_PN: {scorer: solution scores by its headline aggregator}. trace_PN: as `right_traces`.
    Rules are `mean` (a candidate at random), `majority` (a random one of its voters), SCORER.best_of_n, and
    SCORER.weighted_vote (the winning answer's candidate with the best score).
    """
    present_PN, eligible_PN = pool.present_PN, pool.eligible_PN
    law_PN, confidence_P = {"mean": present_PN / present_PN.sum(-1, keepdims=True)}, {}
    given = {"ties": rules.ties, "counts": rules.counts}
    if pool.answer_PN is not None:
        law_PN["majority"] = np.asarray(votes.vote(pool.answer_PN, None, present_PN, **given), float)
        confidence_P["majority"] = winning_share(law_PN["majority"], pool.answer_PN, np.where(eligible_PN, 1.0, 0.0))
    for scorer, x_PN in score_PN.items():
        x_PN, name = np.where(eligible_PN, np.asarray(x_PN, float), -np.inf), f"{scorer}.best_of_n"
        best = rerank.winner_probs(x_PN, x_PN.shape[-1], eligible_PN, present_PN, ties=rules.ties)
        law_PN[name], confidence_P[name] = np.asarray(best, float) * eligible_PN, x_PN.max(-1)
        if pool.answer_PN is not None:
            law = np.asarray(votes.vote(pool.answer_PN, x_PN, present_PN, **given), float)
            weight_PN = np.exp(x_PN - np.maximum(x_PN.max(-1, keepdims=True), np.finfo(float).min))
            name = f"{scorer}.weighted_vote"
            law_PN[name] = best_of_winners(law, pool.answer_PN, x_PN)
            confidence_P[name] = winning_share(law, pool.answer_PN, weight_PN)
    right_P = {rule: (law * pool.right_PN).sum(-1) for rule, law in law_PN.items()}
    hidden_P = {rule: (law * (pool.right_PN - trace_PN)).sum(-1) for rule, law in law_PN.items()}
    right_PX, hidden_PX = (np.stack(list(x.values()), -1) for x in (right_P, hidden_P))
    final = ratio_interval(1 - right_PX, np.ones_like(right_PX), seed)
    trace = ratio_interval(hidden_PX, right_PX, seed)
    table = {}
    for i, rule in enumerate(law_PN):
        table[rule] = {"final_error": float(1 - right_PX[:, i].mean()), "final_error_interval": final[:, i].tolist()}
        table[rule] |= {"trace_error": ratio(hidden_PX[:, i], right_PX[:, i])}
        table[rule] |= {"trace_error_interval": trace[:, i].tolist()}
    first, every = f"{next(iter(score_PN))}.best_of_n", np.arange(len(right_PX))
    differences = []
    for rule in [rule for rule in law_PN if rule != first and not rule.endswith(".weighted_vote")]:
        parts = [(hidden_P[name], right_P[name]) for name in (first, rule)]
        minus = lambda rows, parts=parts: np.subtract(*(ratio(x_P[rows], y_P[rows]) for x_P, y_P in parts))
        row = {"a": first, "b": rule, "difference": float(minus(every))}
        differences.append(row | {"interval": bootstrap_interval(minus, every, seed)})
    curves = {rule: selective(confidence_P[rule], 1 - right_P[rule]) for rule in confidence_P}
    return {
        "n": pool.right_PN.shape[-1],
        "rules": table,
        "differences": differences,
        "abstain": {"share": SHARE_S.tolist(), "error": curves},
        "agreement": agreement(pool, list(score_PN), rules.scores_unit),
    }


def ratio(x_P, y_P) -> float:
    return float(x_P.sum() / y_P.sum()) if y_P.sum() > 0 else float("nan")


def winning_share(law_PN, answer_PN, weight_PN) -> np.ndarray:
    """share_P of the votes that the winning answer has, in [0, 1]; 0 where nobody votes."""
    same_PNN = answer_PN[:, :, None] == answer_PN[:, None, :]
    weight_PN = np.where(answer_PN >= 0, weight_PN, 0.0)
    of_group_PN = (same_PNN * weight_PN[:, None, :]).sum(-1) / np.maximum(weight_PN.sum(-1, keepdims=True), 1e-300)
    return (law_PN * of_group_PN).sum(-1)


def best_of_winners(law_PN, answer_PN, score_PN) -> np.ndarray:
    """The law of a vote with each winning answer shown by its candidates of the best score."""
    same_PNN = answer_PN[:, :, None] == answer_PN[:, None, :]
    best_PN = np.where(same_PNN, score_PN[:, None, :], -np.inf).max(-1)
    group_PN = (same_PNN * law_PN[:, None, :]).sum(-1)  # under counts="first" it lies on the first member alone
    is_best_PN = (score_PN >= best_PN) & (group_PN > 0)
    return is_best_PN * group_PN / np.maximum((same_PNN * is_best_PN[:, None, :]).sum(-1), 1)


def selective(confidence_P, wrong_P) -> list[float]:
    """Error of the problems that are left after abstaining from SHARE_S of them, the least sure first; ties in the mean order."""
    _, block_P = np.unique(-np.asarray(confidence_P), return_inverse=True)
    mean = np.bincount(block_P, wrong_P) / np.bincount(block_P)
    total = np.maximum(np.cumsum(mean[np.sort(block_P)]), 0.0)  # errors of -1e-9 are roundings
    kept_S = np.maximum(np.round(len(wrong_P) * (1 - SHARE_S)).astype(int), 1)
    return (total[kept_S - 1] / kept_S).tolist()


def agreement(pool, scorers: Sequence[str], default_unit: str) -> dict:
    """Over the steps of finished candidates up to and including the first wrong one: {scorer: the share on which
    P(step good) >= .5 is what `correctness` (the step's label) says, what `outcome` (the answer is right) says, what each other
    scorer says}; `labels`: the share on which the two labels agree."""
    kept_m, label_m = pool.labelled()
    has_outcome = np.repeat(pool.finished_n, pool.steps_n)[kept_m]
    kept_m, label_m = kept_m[has_outcome], label_m[has_outcome]
    right, outcome = label_m >= 0.5, np.repeat(pool.right_PN[pool.present_PN] > 0, pool.steps_n)[kept_m]
    good = {}
    for scorer in scorers:
        good[scorer] = as_probability(pool.scores[scorer][kept_m], pool.unit(scorer, default_unit)) >= 0.5
    table = {"labels": float(np.mean(right == outcome))}
    for a, x in good.items():
        of = {"correctness": right, "outcome": outcome} | {b: y for b, y in good.items() if b != a}
        table[a] = {b: float(np.mean(x == y)) for b, y in of.items()}
    return table


def show(x: dict):
    print(f"chosen      at n = {x['n']}: final error; trace error: right answers with a wrong step")
    for rule, row in x["rules"].items():
        low, high = row["trace_error_interval"]
        print(f"  {rule:<24}{row['final_error']:.3f}  {row['trace_error']:.3f} [{low:.3f}, {high:.3f}]")
    table = x["agreement"]
    one = lambda row: ", ".join(f"{name} {share:.3f}" for name, share in row.items())
    print(f"agreement   up to the first wrong step, of the labels {table['labels']:.3f}; of P(step good) >= .5 with")
    for scorer, row in table.items():
        if scorer != "labels":
            print(f"  {scorer:<24}{one(row)}")
