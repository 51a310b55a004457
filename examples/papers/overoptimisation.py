"""Gold and proxy against KL from the policy, by the verifier's training steps (Gao et al. 2023).

python -m examples.papers.run overoptimisation --redraw       # README.md: its question, what was expected
"""

import numpy as np

from examples.papers.table import Difference, Figure, Table, by_value, curves, scorer_of, share_solved

LAWS = {"reweighted": "", "with_policy": ", the policy's law"}
NUMBERS = {"gold": "accuracy", "proxy": "score"}


def gather(stages: dict) -> Table:
    table, pools = Table(), {stage.sweep["seed"]: stage.results() for stage in stages["pool"]}
    first = next(iter(pools.values()))
    N, weight = first["n_candidates"], first["policy_weight"]
    for steps, members in by_value(stages["by_steps"], "training").items():
        pairs, series = [(pools[stage.sweep["seed"]], stage) for stage in members], f"{steps} steps"
        runs = [pool["reward_kl"][scorer_of(pool, stage)] for pool, stage in pairs]
        for law in [law for law in LAWS if law in runs[0]]:
            ends = [np.sqrt(np.array(run[law]["kl"], float)) for run in runs]
            kl_X = np.linspace(max(map(min, ends)), min(map(max, ends)), 24) ** 2  # that all runs have
            for panel, key in NUMBERS.items():
                table.curve(panel, series + LAWS[law], kl_X, [along(run[law], key, kl_X) for run in runs])
        for n in (4, N):
            table.number("gold", f"{series}, best of {n}", [share_solved(*pair, n) for pair in pairs], n)
        solved_S = [share_solved(*pair, N, rule="with_policy") for pair in pairs]
        table.number("gold", f"{series}, best of {N} + {weight:g} log p", solved_S, N)
        alpha_S, beta_S = np.transpose([gao_fit(run["best_of_n"]) for run in runs])
        table.number("alpha", series, alpha_S)
        table.number("beta", series, beta_S)
    return table


def along(curve: dict, key: str, kl_X) -> np.ndarray:
    """A number of a curve where its KL takes these values."""
    kl, y = np.array([curve["kl"], curve[key]], float)
    order = np.argsort(kl)
    return np.interp(kl_X, kl[order], y[order])


def gao_fit(curve: dict) -> tuple[float, float]:
    """(alpha, beta) of gold = start + d (alpha - beta d), d = sqrt(KL), by least squares."""
    kl, gold = np.array([curve["kl"], curve["accuracy"]], float)
    d = np.sqrt(np.maximum(kl, 0))
    alpha, minus_beta = np.linalg.lstsq(np.stack([d, d**2], -1), gold - gold[0], rcond=None)[0]
    return alpha, -minus_beta


def draw(table):
    """Along sqrt(KL), on which best of n is nearly straight."""
    at_root = table.assign(x=np.sqrt(table.x.clip(0)))
    return curves(["gold", "proxy"], "square root of KL from the reference (nats)")(at_root)


STAGES = {
    "by_steps": "train.py steps={training} seed={seed}",
    "pool": "evaluate.py task=best_of_n checkpoint=[{by_steps}] fresh.outcome_model=null seed={seed}",
}
COMPARE = [
    Difference("gold", "150 steps, best of 64 + 0.5 log p", "150 steps, best of 64"),
    Difference("gold", "150 steps, best of 64", "150 steps, best of 4"),
    Difference("gold", "700 steps, best of 64 + 0.5 log p", "700 steps, best of 64"),
    Difference("alpha", "700 steps", "150 steps"),
]
SWEEP = {"training": [50, 150, 700], "seed": range(8)}
FIGURES = {"overoptimisation": Figure(STAGES, gather, draw, COMPARE, SWEEP)}
