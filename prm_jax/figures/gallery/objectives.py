"""Step AUROC, best of 16 and calibration by the objective that a PRM was trained on: a row an objective."""

from prm_jax.figures.paper import (
    UNTAUGHT,
    Stages,
    draw_untaught,
    results_at,
    scorer_of,
    share_solved,
    values_of,
)
from prm_jax.figures.style import GREY, Drawn, line_style, panels

LIKELIHOOD = "the policy's likelihood"
NO_PROBABILITY = ("pairwise", "PQM")  # objectives whose scores only rank


def draw(stages: Stages) -> Drawn:
    pools, kinds = results_at(stages["pool"]), values_of(stages["verifier"], "objective")
    n = min(16, pools[0]["n_candidates"])
    figure, (axes,) = panels(1, 3, 3.6, sharey=True)
    text = f"{pools[0]['n_problems']} problems x {pools[0]['n_candidates']} samples a seed"
    drawn = Drawn(figure, f"{text}; {UNTAUGHT}")
    drawn.spread = (
        "filled: product of step scores, hollow: the lowest; small: runs, large: their mean, 95 % t interval"
    )
    # {number: (panel, distance from the row's height, face of the marker)}
    places = {
        "step AUROC": (axes[0], 0.0, {}),
        f"best of {n}, product": (axes[1], -0.13, {}),
        f"best of {n}, lowest": (axes[1], 0.13, {"markerfacecolor": "white"}),
        "ECE": (axes[2], 0.0, {}),
    }
    for height, kind in enumerate(kinds):
        members = [stage for stage in stages["verifier"] if stage.sweep["objective"] == kind]
        pairs = list(zip(pools, members, strict=True))
        steps = [pool["calibration"][scorer_of(pool, stage)]["steps"] for pool, stage in pairs]
        numbers = {
            "step AUROC": [x["auroc"] for x in steps],
            f"best of {n}, product": [share_solved(*pair, n, "prod") for pair in pairs],
            f"best of {n}, lowest": [share_solved(*pair, n, "min") for pair in pairs],
        }
        if kind in NO_PROBABILITY:
            axes[2].text(0, height, " no probabilities", color=GREY, fontsize=7.5, va="center")
        else:
            numbers["ECE"] = [x["ece"] for x in steps]
        for name, value_S in numbers.items():
            panel, shift, face = places[name]
            drawn.dots(panel, name, kind, height + shift, value_S, line_style(height) | face)
        means = ", ".join(f"{row['panel']} {row['y']:.3f}" for row in drawn.rows[-len(numbers) :])
        drawn.statements.append(f"{kind}: {means}")
    known_S = [pool["calibration"]["policy"]["steps"]["auroc"] for pool in pools]
    axes[0].axvline(
        drawn.number("step AUROC", LIKELIHOOD, known_S)[0], color=GREY, linewidth=0.8, linestyle="-."
    )
    draw_untaught(axes[1].axvline, pools, n)
    for panel, name in zip(
        axes, ("step AUROC", f"best of {n}, share solved", "ECE of step scores"), strict=True
    ):
        panel.set_title(name, fontsize=9)
        panel.grid(axis="x", linewidth=0.4, alpha=0.5)
    axes[0].set_yticks(range(len(kinds)), list(kinds), fontsize=8)
    axes[0].set_ylim(len(kinds) - 0.5, -0.5)
    axes[2].set_xlim(0, None)
    return drawn
