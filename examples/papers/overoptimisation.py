"""Gold and proxy against KL from the policy, by the verifier's training steps (Gao et al. 2023).
`python -m examples.papers.run overoptimisation --redraw`; README.md: its question, what was expected."""

import jax.numpy as jnp
import numpy as np

from examples.papers.implicit import scorer_of, share_solved
from examples.papers.run import Difference, Figure, Table, by_value, draw_panels
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
        runs = [reward_against_kl(x, scorer_of(*pair)) for x, pair in zip(drawn, pairs, strict=True)]
        laws = [run["reweighted"] for run in runs]
        ends = [np.sqrt(law["kl"]) for law in laws]
        kl_X = np.linspace(max(map(min, ends)), min(map(max, ends)), 24) ** 2  # that all runs have
        for panel, key in NUMBERS.items():
            value_SX = [np.interp(kl_X, law["kl"][::-1], law[key][::-1]) for law in laws]
            table.curve(panel, series, kl_X, value_SX)
        for n in (4, N):
            table.number("gold", f"{series}, best of {n}", [share_solved(*pair, n) for pair in pairs], n)
        solved_S = [share_solved(*pair, N, rule="with_policy") for pair in pairs]
        table.number("gold", f"{series}, best of {N} + {weight:g} log p", solved_S, N)
        alpha_S, beta_S = np.transpose([gao_fit(run["best_of_n"]) for run in runs])
        table.number("alpha", series, alpha_S)
        table.number("beta", series, beta_S)
    return table


def reward_against_kl(pool: Pool, scorer: str) -> dict[str, dict]:
    """{law: its `accuracy` and mean `score`, the product of step scores that it climbs, against `kl`, both in
    nats}; means over problems. `reweighted` by BETAS and `best_of_n` by n = 1, 2, 4, ... start at the uniform
    distribution over a problem's candidates."""
    score_PN, able_PN, present_PN = pool_scores(pool, scorer, "prod"), pool.eligible_PN, pool.present_PN
    uniform_PN = present_PN / present_PN.sum(-1, keepdims=True)

    def measure(laws: list) -> dict:
        rows = []
        for weight_PN, kl_P in laws:
            score_P = rerank.mean_score(weight_PN, score_PN, able_PN)
            accuracy_P = rerank.expectation(weight_PN, pool.right_PN * able_PN)
            rows.append((kl_P.mean(), accuracy_P.mean(), np.nanmean(score_P)))
        return dict(zip(("kl", "accuracy", "score"), np.transpose(rows).astype(float), strict=True))

    laws = [rerank.reweight(score_PN, beta, None, able_PN, present_PN) for beta in BETAS]
    tilted = measure([(law.weight_PN, law.kl_P) for law in laws])
    best = []
    for n in 2 ** np.arange(score_PN.shape[1].bit_length()):
        weight_PN = rerank.winner_probs(score_PN, n, able_PN, present_PN)
        kl_P = rerank.expectation(weight_PN, jnp.log(weight_PN) - jnp.log(uniform_PN))
        best.append((weight_PN, kl_P))
    return {"reweighted": tilted, "best_of_n": measure(best)}


def pool_scores(pool: Pool, scorer: str, how: str) -> np.ndarray:
    """score_PN of a pool's candidates by an aggregator; -inf where one cannot win."""
    step_PNT, mask_PNT, unit = log_scores(pool, scorer, pool.unit(scorer, "probability"))
    score_PN = np.asarray(rerank.aggregate(step_PNT, mask_PNT, how, unit=unit), float)
    return np.where(pool.eligible_PN, score_PN, -np.inf)


def gao_fit(curve: dict) -> tuple[float, float]:
    """(alpha, beta) of gold = start + d (alpha - beta d), d = sqrt(KL), by least squares."""
    d, gold = np.sqrt(np.maximum(curve["kl"], 0)), curve["accuracy"]
    alpha, minus_beta = np.linalg.lstsq(np.stack([d, d**2], -1), gold - gold[0], rcond=None)[0]
    return alpha, -minus_beta


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
    Difference("alpha", "PRM, 700 updates", "PRM, 150 updates"),
]
SWEEP = {"training": [50, 150, 700], "seed": range(8)}
FIGURES = {"overoptimisation": Figure(STAGES, gather, draw, COMPARE, SWEEP)}
