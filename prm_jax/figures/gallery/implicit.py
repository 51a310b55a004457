"""Implicit PRMs by form and beta, beside an explicit PRM and an outcome model: step AUROC and best of 16."""

from prm_jax.figures.paper import UNTAUGHT, Stages, draw_untaught, mean_difference, results_at, run_of, share_solved
from prm_jax.figures.style import GREY, Drawn, line_style, panels

EXPLICIT, LONGER, OUTCOME = "explicit PRM", "explicit PRM, the default run", "outcome model at each step"
# The aggregator of a solution's score: the explicit PRM and the outcome model have best_of_n's, an implicit PRM the
# log-ratio of the whole solution (sum_logit), which it learned.
AGGREGATOR = {EXPLICIT: "prod", LONGER: "prod", OUTCOME: "last"}


def draw(stages: Stages) -> Drawn:
    (pool,), runs = results_at(stages["pool"]), results_at(stages["steps"])[0]["runs"]
    n = min(16, pool["n_candidates"])
    kinds = {EXPLICIT: stages["explicit"], LONGER: stages["longer"], OUTCOME: stages["orm"]}
    for stage in stages["implicit"]:
        name = f"implicit, {stage.sweep['form']}, beta {stage.sweep['beta']:g}"
        kinds.setdefault(name, []).append(stage)
    figure, (axes,) = panels(1, 2, 3.2, sharey=True)
    text = f"{runs[0]['n_solutions']:,} test solutions; {pool['n_problems']} problems x {pool['n_candidates']} samples"
    drawn = Drawn(figure, f"{text}; {UNTAUGHT}")
    drawn.spread = "filled: each model's own score of a solution, hollow: its lowest step score"
    drawn.spread += "; small: runs, large: their mean, 95 % t interval"
    numbers = {}
    for height, (kind, members) in enumerate(kinds.items()):
        aggregator, form = AGGREGATOR.get(kind, "sum_logit"), members[0].sweep.get("form")
        numbers[kind] = {
            "step AUROC": [run_of(runs, stage)["auroc_correctness"] for stage in members],  # by the exact checker
            f"best of {n}": [share_solved(pool, stage, n, aggregator) for stage in members],
            f"best of {n}, lowest step": [share_solved(pool, stage, n, "min") for stage in members],
        }
        color = line_style({EXPLICIT: 0, LONGER: 0, OUTCOME: 1}.get(kind, 3 if form == "DPO" else 2))
        for i, (name, value_S) in enumerate(numbers[kind].items()):
            style = color | ({"markerfacecolor": "white"} if i == 2 else {})
            drawn.dots(axes[min(i, 1)], name, kind, height + (0, -0.13, 0.13)[i], value_S, style)
        for other in [kind for kind in (EXPLICIT, OUTCOME) if members[0].line == "implicit"]:
            for name, value_S in numbers[kind].items():
                drawn.statements.append(mean_difference(f"{kind} - {other}, {name}", value_S, numbers[other][name]))
    for axis, title in zip(axes, ("step AUROC", f"best of {n}, share solved"), strict=True):
        axis.set_title(title, fontsize=9)
        axis.grid(axis="x", linewidth=0.4, alpha=0.5)
    axes[0].axvline(0.5, color=GREY, linewidth=0.8, linestyle=":")
    draw_untaught(axes[1].axvline, pool, n)
    axes[0].set_yticks(range(len(kinds)), list(kinds), fontsize=8)
    axes[0].set_ylim(len(kinds) - 0.5, -0.5)
    return drawn
