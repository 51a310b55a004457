"""Step AUROC, best of 16 and calibration by the objective that a PRM was trained on: a row an objective."""

from prm_jax.figures import paper
from prm_jax.figures.pipeline import Stage
from prm_jax.figures.style import GREY, Drawn, line_style, panels

NO_PROBABILITY = ("pairwise", "PQM")  # objectives whose scores only rank
LINES = (("verifier", "pool", "objective"), ("restated", "restated_pool", "neutral"))


def draw(stages: paper.Stages) -> Drawn:
    figure, (axes,) = panels(1, 3, 4.3, sharey=True)
    first = paper.results_at(stages["pool"])[0]
    n = min(16, first["n_candidates"])
    text = f"{first['n_problems']} problems x {first['n_candidates']} samples; {paper.UNTAUGHT}"
    drawn = Drawn(figure, f"{text}; below the line a pool by the solver, with lines that do nothing")
    drawn.spread = "filled: product of step scores, hollow: the lowest; small: runs, large: their mean, 95 % t interval"
    # {number: (panel, distance from the row's height, face of the marker)}
    places = {
        "step AUROC": (axes[0], 0.0, {}),
        f"best of {n}, product": (axes[1], -0.13, {}),
        f"best of {n}, lowest": (axes[1], 0.13, {"markerfacecolor": "white"}),
        "ECE": (axes[2], 0.0, {}),
    }
    heights, line_height = {}, len(paper.values_of(stages["verifier"], "objective")) - 0.3
    for line, pool_line, key in LINES:
        (pool,), kinds, numbers = paper.results_at(stages[pool_line]), paper.values_of(stages[line], key), {}
        members = {kind: [stage for stage in stages[line] if stage.sweep[key] == kind] for kind in kinds}
        for i, kind in enumerate(kinds):
            heights[kind] = len(heights) + (0.4 if line == "restated" else 0)
            numbers[kind] = numbers_of(pool, members[kind], n, kind)
            for name, value_S in numbers[kind].items():
                panel, shift, face = places[name]
                drawn.dots(panel, name, kind, heights[kind] + shift, value_S, line_style(i) | face)
            if kind in NO_PROBABILITY:
                axes[2].text(0, heights[kind], " no probabilities", color=GREY, fontsize=7.5, va="center")
            if i:
                title, base = f"{kind} - {kinds[0]}", numbers[kinds[0]]
                for name, value_S in numbers[kind].items():
                    drawn.statements.append(paper.mean_difference(f"{title}, {name}", value_S, base[name]))
                pair = pool, members[kind], members[kinds[0]]
                drawn.statements.append(paper.differences(f"{title}, product", *pair, n))
    for panel, name in zip(axes, ("step AUROC", f"best of {n}, share solved", "ECE of step scores"), strict=True):
        panel.set_title(name, fontsize=9)
        panel.axhline(line_height, color=GREY, linewidth=0.8)
        panel.grid(axis="x", linewidth=0.4, alpha=0.5)
    paper.draw_untaught(lambda x, **style: axes[1].plot([x, x], [-0.5, line_height], **style), [first], n)
    axes[0].set_yticks(list(heights.values()), list(heights), fontsize=8)
    axes[0].set_ylim(max(heights.values()) + 0.6, -0.5)
    axes[2].set_xlim(0, None)
    return drawn


def numbers_of(pool: dict, stages: list[Stage], n: int, kind: str) -> dict[str, list[float]]:
    """{number: its value for each run of one kind}."""
    steps = [pool["calibration"][paper.scorer_of(pool, stage)]["steps"] for stage in stages]
    numbers = {
        "step AUROC": [x["auroc"] for x in steps],
        f"best of {n}, product": [paper.share_solved(pool, stage, n, "prod") for stage in stages],
        f"best of {n}, lowest": [paper.share_solved(pool, stage, n, "min") for stage in stages],
    }
    return numbers if kind in NO_PROBABILITY else numbers | {"ECE": [x["ece"] for x in steps]}
