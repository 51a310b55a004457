"""Implicit PRMs by form and beta, beside an explicit PRM and an outcome model: step AUROC and best of 16."""

from prm_jax.figures.paper import mean_difference, results_at, run_of, scorer_of
from prm_jax.figures.pipeline import Stage
from prm_jax.figures.style import GREY, Drawn, line_style, panels

EXPLICIT, LONGER, OUTCOME = "explicit PRM", "explicit PRM, the default run", "outcome model at each step"
# How a solution is scored: the explicit PRM and the outcome model as in best_of_n, an implicit PRM by the log-ratio of
# the whole solution (sum_logit), which it learned.
OWN = {EXPLICIT: "prod", LONGER: "prod", OUTCOME: "last"}


def draw(stages: dict[str, list[Stage]]) -> Drawn:
    pool, runs = results_at(stages["pool"])[0], results_at(stages["steps"])[0]["runs"]
    n = min(16, pool["n_candidates"])
    kinds = {EXPLICIT: stages["explicit"], LONGER: stages["longer"], OUTCOME: stages["orm"]}
    for stage in stages["implicit"]:
        kinds.setdefault(f"implicit, {stage.sweep['form']}, beta {stage.sweep['beta']:g}", []).append(stage)
    figure, (axes,) = panels(1, 2, 3.2, sharey=True)
    text = f"{runs[0]['n_solutions']:,} test solutions; {pool['n_problems']} problems x {pool['n_candidates']} samples"
    drawn = Drawn(figure, f"{text}, dashed: their majority vote; dotted: scores that know nothing")
    drawn.spread = "filled: each model's own score of a solution, hollow: its lowest step score"
    drawn.spread += "; small: runs, large: their mean, 95 % t interval"
    found = {}
    for at, (kind, own) in enumerate(kinds.items()):
        found[kind] = numbers(kind, own, runs, pool, n)
        color = line_style(
            {EXPLICIT: 0, LONGER: 0, OUTCOME: 1}.get(kind, 3 if own[0].sweep.get("form") == "DPO" else 2)
        )
        for i, (name, value_S) in enumerate(found[kind].items()):
            style = color | ({"markerfacecolor": "white"} if i == 2 else {})
            drawn.dots(axes[min(i, 1)], name, kind, at + (0, -0.13, 0.13)[i], value_S, style)
        for other in [kind for kind in (EXPLICIT, OUTCOME) if own[0].line == "implicit"]:
            drawn.statements += [mean_difference(f"{kind} - {other}, {name}", value_S, found[other][name])
                           for name, value_S in found[kind].items()]  # fmt: skip
    for axis, title, line in (
        (axes[0], "step AUROC", 0.5),
        (axes[1], f"best of {n}, share solved", pool["majority"][str(n)]),
    ):
        axis.set_title(title, fontsize=9)
        axis.axvline(line, color=GREY, linewidth=0.8, linestyle=":" if line == 0.5 else "--")
        axis.grid(axis="x", linewidth=0.4, alpha=0.5)
    axes[1].axvline(pool["mean"], color=GREY, linewidth=0.8, linestyle=":")
    axes[0].set_yticks(range(len(kinds)), list(kinds), fontsize=8)
    axes[0].set_ylim(len(kinds) - 0.5, -0.5)
    return drawn


def numbers(kind: str, stages: list[Stage], runs: list[dict], pool: dict, n: int) -> dict[str, list[float]]:
    """{number: its values of the runs of one kind}; AUROC against the exact checker, up to the first wrong step."""
    solved = lambda how: [pool["scorers"][scorer_of(pool, s)][how]["best_of_n"][str(n)] for s in stages]
    found = {"step AUROC": [run_of(runs, stage)["auroc_correctness"] for stage in stages]}
    return found | {f"best of {n}": solved(OWN.get(kind, "sum_logit")), f"best of {n}, lowest step": solved("min")}
