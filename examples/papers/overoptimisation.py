"""Gold and proxy against KL from the policy, by the verifier's training steps (Gao et al. 2023).
`python -m examples.papers.run overoptimisation --redraw`; README.md: its question, what was expected."""

import numpy as np

from examples.papers.implicit import scorer_of, share_solved
from examples.papers.panels import draw_panels
from examples.papers.run import Difference, Figure, Table, by_value
from prm_jax import rerank
from prm_jax.data.pools import read_pool
from prm_jax.evals.pool_arrays import Pool, log_scores, pool_arrays

BETAS = [0.0, *np.geomspace(1e-3, 1e3, 64), np.inf]  # from the arg max to the reference: KL falls
NUMBERS = {"gold": "accuracy", "proxy": "score"}


def gather(stages: dict) -> Table:
    table, pools = Table(), {stage.sweep["seed"]: stage for stage in stages["pool"]}
    for steps, members in by_value(stages["by_steps"], "training").items():
        series = f"PRM, {steps} updates"
        own = [pools[stage.sweep["seed"]] for stage in members]
        pairs = [(pool.results(), stage) for pool, stage in zip(own, members, strict=True)]
        first, _ = pairs[0]
        N, weight = first["n_candidates"], first["policy_weight"]
        drawn = [pool_arrays(read_pool(pool.folder / "pool.jsonl.gz")) for pool in own]
        laws = [reward_against_kl(x, scorer_of(*pair)) for x, pair in zip(drawn, pairs, strict=True)]
        ends = [np.sqrt(law["kl"]) for law in laws]
        kl_X = np.linspace(max(map(min, ends)), min(map(max, ends)), 24) ** 2  # that all runs have
        for panel, key in NUMBERS.items():
            value_SX = [np.interp(kl_X, law["kl"][::-1], law[key][::-1]) for law in laws]
            table.curve(panel, series, kl_X, value_SX)
        for n in (4, N):
            table.number("gold", f"{series}, best of {n}", [share_solved(*pair, n) for pair in pairs], n)
        solved_S = [share_solved(*pair, N, rule="with_policy") for pair in pairs]
        table.number("gold", f"{series}, best of {N} + {weight:g} log p", solved_S, N)
    return table


def reward_against_kl(pool: Pool, scorer: str) -> dict[str, np.ndarray]:
    """`accuracy` and mean `score`, the product of step scores, against `kl`, in nats, of the laws proportional
    to exp(score / beta) over a problem's candidates, by BETAS; means over problems."""
    score_PN, able_PN, present_PN = pool_scores(pool, scorer, "prod"), pool.eligible_PN, pool.present_PN
    rows = []
    for beta in BETAS:
        law = rerank.reweight(score_PN, beta, None, able_PN, present_PN)
        score_P = rerank.mean_score(law.weight_PN, score_PN, able_PN)
        accuracy_P = rerank.expectation(law.weight_PN, pool.right_PN * able_PN)
        rows.append((law.kl_P.mean(), accuracy_P.mean(), np.nanmean(score_P)))
    return dict(zip(("kl", "accuracy", "score"), np.transpose(rows).astype(float), strict=True))


def pool_scores(pool: Pool, scorer: str, how: str) -> np.ndarray:
    """score_PN of a pool's candidates by an aggregator; -inf where one cannot win."""
    step_PNT, mask_PNT, unit = log_scores(pool, scorer, pool.unit(scorer, "probability"))
    score_PN = np.asarray(rerank.aggregate(step_PNT, mask_PNT, how, unit=unit), float)
    return np.where(pool.eligible_PN, score_PN, -np.inf)


def draw(table):
    """Along sqrt(KL), on which best of n is nearly straight; stars: best of n with log p, at the ends."""
    along_kl = table[~table.series.str.contains("best of")]
    at_root = along_kl.assign(x=np.sqrt(along_kl.x.clip(0)))
    figure = draw_panels(at_root, ["gold"], "square root of KL from the policy (nats)")
    axes = figure.axes[0]
    for line in axes.get_lines():
        cured = table[table.series == f"{line.get_label()}, best of 64 + 0.5 log p"]
        axes.plot(line.get_xdata()[-1], cured.y, "*", color=line.get_color(), markersize=8)
    axes.set_ylabel("problems solved (stars: + 0.5 log p)")
    return figure


STAGES = {
    "by_steps": "train.py steps={training} seed={seed}",
    "pool": "evaluate.py task=best_of_n checkpoint=[{by_steps}] fresh.outcome_model=null seed={seed}",
}
COMPARE = [
    Difference("gold", "PRM, 150 updates, best of 64 + 0.5 log p", "PRM, 150 updates, best of 64"),
    Difference("gold", "PRM, 150 updates, best of 64", "PRM, 150 updates, best of 4"),
    Difference("gold", "PRM, 700 updates, best of 64 + 0.5 log p", "PRM, 700 updates, best of 64"),
]
SWEEP = {"training": [50, 150, 700], "seed": range(8)}
FIGURES = {"overoptimisation": Figure(STAGES, gather, draw, COMPARE, SWEEP)}
