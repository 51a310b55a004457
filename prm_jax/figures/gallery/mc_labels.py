"""Verifiers by what labelled their steps: AUROC against both exact meanings of a label, and best of n by aggregator."""

import numpy as np

from prm_jax.figures.paper import results_at, run_of, scorer_of
from prm_jax.figures.pipeline import Stage
from prm_jax.figures.style import GREY, Drawn, floats, line_style, over_seeds, panels

KINDS = {  # line of the figure -> what it is called
    "exact": "exact correctness",
    "value": "exact value",
    "soft_8": "soft, K = 8",
    "soft_2": "soft, K = 2",
    "soft_8_noisy": "soft, K = 8, noisy checker",
    "hard_8": "hard, K = 8",
    "hard_2": "hard, K = 2",
    "hard_8_noisy": "hard, K = 8, noisy checker",
    "ratio_8": "ratio, K = 8",
    "td": "TD(.8), no completions",
}
HOWS = ("last", "min", "prod", "mean")
MEANINGS = {"auroc_correctness": "against correctness", "auroc_value": "against value"}


def draw(stages: dict[str, list[Stage]]) -> Drawn:
    pool, kinds = results_at(stages["pool"])[0], [kind for kind in KINDS if kind in stages]
    runs = [run for line in ("steps", "more_steps") for run in results_at(stages[line])[0]["runs"]]
    n, names = pool["n_candidates"], [KINDS[kind] for kind in kinds]
    figure, ((left, right),) = panels(1, 2, 4.2, sharey=True, gridspec_kw={"width_ratios": [1.2, 1]})
    drawn = Drawn(
        figure, f"AUROC: {runs[0]['n_solutions']:.0f} held-out samples; best of {n}: {pool['n_problems']} problems"
    )
    drawn.spread = (
        "small markers: runs, bars: 95 % t intervals of their mean; solutions and labels are the same in all runs"
    )
    y = np.arange(len(kinds))
    for i, (key, meaning) in enumerate(MEANINGS.items()):
        values_KS = floats([[run_of(runs, stage)[key] for stage in stages[kind]] for kind in kinds])
        style, at = line_style(i), y + 0.24 * (i - 0.5)
        mean_K, low_K, high_K = over_seeds(values_KS.T)
        left.hlines(at, low_K, high_K, color=style["color"], linewidth=1.2, alpha=0.5)
        left.plot(values_KS, np.repeat(at[:, None], values_KS.shape[1], 1), style["marker"], color=style["color"],
                  markersize=2.5, alpha=0.4)  # fmt: skip
        left.plot(mean_K, at, style["marker"], color=style["color"], markersize=5, label=meaning)
        add_rows(drawn, f"AUROC {meaning}", names, meaning, values_KS)
    if ceiling := runs[0].get("auroc_value_ceiling"):
        left.axvline(ceiling, color=line_style(1)["color"], linewidth=0.8, linestyle=":")
        drawn.text += f"; dotted: AUROC of the exact value against value, {ceiling:.3f}"
    share = lambda stage, how: pool["scorers"][scorer_of(pool, stage)][how]["best_of_n"][str(n)]
    shares = {how: floats([[share(stage, how) for stage in stages[kind]] for kind in kinds]) for how in HOWS}
    mean_KA = np.stack([x_KS.mean(1) for x_KS in shares.values()], -1)
    right.imshow(mean_KA, cmap="cividis", aspect="auto")
    middle = (mean_KA.min() + mean_KA.max()) / 2
    for (k, a), x in np.ndenumerate(mean_KA):
        best = {"fontweight": "bold"} if x == mean_KA[k].max() else {}
        right.text(
            a, k, f"{x:.2f}", ha="center", va="center", fontsize=8, color="black" if x > middle else "white", **best
        )
    for how, values_KS in shares.items():
        add_rows(drawn, f"best of {n}", names, how, values_KS)
    left.set_yticks(y, names, fontsize=8)
    left.set(xlabel="AUROC of step scores", ylim=(len(kinds) - 0.5, -0.5))
    left.axvline(0.5, color=GREY, linewidth=0.6)
    left.grid(axis="y", linewidth=0.3)
    left.legend(fontsize=7.5, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    right.set_xticks(range(len(HOWS)), HOWS)
    right.set_title(f"best of {n}", fontsize=9)
    right.tick_params(left=False)
    drawn.text += f"; mean of the samples {pool['mean']:.3f}, majority vote {pool['majority'][str(n)]:.3f}"
    drawn.statements += summaries(drawn, names, n)
    return drawn


def add_rows(drawn: Drawn, panel: str, names: list[str], x: str, values_KS):
    for name, values_S, mean, low, high in zip(names, values_KS, *over_seeds(values_KS.T), strict=True):
        drawn.row(panel, name, x, mean, low, high, values_S)


def summaries(drawn: Drawn, names: list[str], n: int) -> list[str]:
    """A line a kind of labels: both AUROCs, best of n by each aggregator."""
    cell = {(row["series"], row["x"]): "{y:.3f} [{low:.3f}, {high:.3f}]".format(**row) for row in drawn.rows}
    says = []
    for name in names:
        aurocs = ", ".join(f"{meaning} {cell[name, meaning]}" for meaning in MEANINGS.values())
        says.append(f"{name}: AUROC {aurocs}; best of {n} {', '.join(f'{how} {cell[name, how]}' for how in HOWS)}")
    return says
