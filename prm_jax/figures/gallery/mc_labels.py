"""Verifiers by what labelled their steps: AUROC against both exact meanings of a label, and best of n by aggregator."""

import numpy as np

from prm_jax.figures.paper import Stages, results_at, run_of, share_solved, untaught
from prm_jax.figures.style import GREY, NO_LINE, Drawn, line_style, panels

KINDS = {  # {line of the figure: its name}
    "exact": "exact correctness",
    "value": "exact value",
    "soft_8": "soft, K = 8",
    "soft_8_noisy": "soft, K = 8, noisy checker",
    "hard_8": "hard, K = 8",
    "hard_8_masked": "hard, K = 8, to the first 0",
    "hard_8_noisy": "hard, K = 8, noisy checker",
    "td": "TD(.8), no completions",
    "judge": "a judge",
    "consensus": "consensus of both",
}
HOWS = ("last", "min", "prod", "mean")
MEANINGS = {"auroc_correctness": "against correctness", "auroc_value": "against value"}


def draw(stages: Stages) -> Drawn:
    (pool,), kinds = (
        results_at(stages["pool"]),
        {KINDS[line]: stages[line] for line in KINDS if line in stages},
    )
    runs = [
        run
        for line in ("steps", "more_steps")
        if line in stages
        for run in results_at(stages[line])[0]["runs"]
    ]
    n = pool["n_candidates"]
    figure, ((left, right),) = panels(1, 2, 4.2, sharey=True, gridspec_kw={"width_ratios": [1.2, 1]})
    drawn = Drawn(figure, f"AUROC: {runs[0]['n_solutions']:.0f} held-out samples")
    drawn.text += f"; best of {n}: {pool['n_problems']} problems"
    drawn.spread = "small markers: runs, bars: 95 % t intervals of their mean"
    drawn.spread += "; solutions and labels are the same in all runs"
    for i, (key, meaning) in enumerate(MEANINGS.items()):
        for height, (name, members) in enumerate(kinds.items()):
            value_S = [run_of(runs, stage)[key] for stage in members]
            drawn.dots(left, f"AUROC {meaning}", name, height + 0.24 * (i - 0.5), value_S, line_style(i))
        left.plot([], [], **line_style(i) | NO_LINE, label=meaning)
    if ceiling := runs[0].get("auroc_value_ceiling"):
        left.axvline(ceiling, color=line_style(1)["color"], linewidth=0.8, linestyle=":")
        drawn.text += f"; dotted: AUROC of the exact value against value, {ceiling:.3f}"
    mean_KA = np.zeros((len(kinds), len(HOWS)))
    for k, (name, members) in enumerate(kinds.items()):
        for a, aggregator in enumerate(HOWS):
            value_S = [share_solved(pool, stage, n, aggregator) for stage in members]
            mean_KA[k, a], *_ = drawn.number(f"best of {n}", name, value_S, aggregator)
    right.imshow(mean_KA, cmap="cividis", aspect="auto")
    middle = (mean_KA.min() + mean_KA.max()) / 2
    for (k, a), x in np.ndenumerate(mean_KA):
        style = {
            "color": "black" if x > middle else "white",
            "weight": "bold" if x == mean_KA[k].max() else "normal",
        }
        right.text(a, k, f"{x:.2f}", ha="center", va="center", fontsize=8, **style)
    left.set_yticks(range(len(kinds)), list(kinds), fontsize=8)
    left.set(xlabel="AUROC of step scores", ylim=(len(kinds) - 0.5, -0.5))
    left.axvline(0.5, color=GREY, linewidth=0.6)
    left.grid(axis="y", linewidth=0.3)
    left.legend(fontsize=7.5, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    right.set_xticks(range(len(HOWS)), HOWS)
    right.set_title(f"best of {n}", fontsize=9)
    right.tick_params(left=False)
    drawn.text += "".join(f"; {name} {x:.3f}" for name, x in untaught([pool], n).items())
    return drawn
