"""Implicit PRMs by form and beta, beside an explicit PRM and an outcome model: step AUROC and best of n."""

from prm_jax.figures.paper import UNTAUGHT, Stages, draw_untaught, results_at, run_of, share_solved
from prm_jax.figures.style import GREY, Drawn, line_style, panels

LOG_P = "the policy's log p"
# {name: (line of the figure, the aggregator of a solution's score)}: the explicit PRM and the outcome model have
# best_of_n's; an implicit PRM has the log-ratio of the whole solution (sum_logit), which it learned.
TAUGHT = {
    "explicit PRM": ("explicit", "prod"),
    "explicit PRM, the default run": ("longer", "prod"),
    "outcome model": ("orm", "last"),
}


def draw(stages: Stages) -> Drawn:
    runs, pools = results_at(stages["steps"])[0]["runs"], results_at(stages["pool"])
    n = pools[0]["n_candidates"]
    kinds = {name: (stages[line], aggregator) for name, (line, aggregator) in TAUGHT.items()}
    for stage in stages["implicit"]:
        kinds.setdefault(f"implicit, {stage.sweep['form']}", ([], "sum_logit"))[0].append(stage)
    figure, (axes,) = panels(1, 2, 3.0, sharey=True)
    text = (
        f"{runs[0]['n_solutions']:,} test solutions; {pools[0]['n_problems']} problems x {n} samples a seed"
    )
    drawn = Drawn(figure, f"{text}; {UNTAUGHT}")
    drawn.spread = "filled: each model's own score of a solution, hollow: its lowest step score"
    drawn.spread += "; small: runs, large: their mean, 95 % t interval"
    for height, (kind, (members, aggregator)) in enumerate(kinds.items()):
        auroc_S = [run_of(runs, stage)["auroc_correctness"] for stage in members]  # by the exact checker
        drawn.dots(axes[0], "step AUROC", kind, height, auroc_S, line_style(height))
        lowest = (f"best of {n}, lowest step", "min", 0.13, {"markerfacecolor": "white"})
        for panel, how, shift, face in ((f"best of {n}", aggregator, -0.13, {}), lowest):
            value_S = [share_solved(*pair, n, how) for pair in zip(pools, members, strict=True)]
            drawn.dots(axes[1], panel, kind, height + shift, value_S, line_style(height) | face)
        numbers = ", ".join(f"{row['panel']} {row['y']:.3f}" for row in drawn.rows[-3:])
        drawn.statements.append(f"{kind}: {numbers}")
    drawn.row("step AUROC", LOG_P, "", *[log_p := runs[-1]["auroc_correctness"]] * 3, [log_p])
    axes[0].axvline(log_p, color=GREY, linewidth=0.8, linestyle="-.")
    draw_untaught(axes[1].axvline, pools, n)
    for axis, title in zip(axes, ("step AUROC", f"best of {n}, share solved"), strict=True):
        axis.set_title(title, fontsize=9)
        axis.grid(axis="x", linewidth=0.4, alpha=0.5)
    axes[0].set_yticks(range(len(kinds)), list(kinds), fontsize=8)
    axes[0].set_ylim(len(kinds) - 0.5, -0.5)
    return drawn
