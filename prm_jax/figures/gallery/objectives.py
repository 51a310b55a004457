"""Step AUROC, best of 16 and calibration by what a PRM was trained to do: a row an objective."""

from prm_jax.figures.paper import best_of_n_differences, mean_difference, results_at, scorer_of, selection, values_of
from prm_jax.figures.pipeline import Stage
from prm_jax.figures.style import GREY, Drawn, line_style, panels

NO_PROBABILITY = ("pairwise", "PQM")  # kinds whose scores only rank


def draw(stages: dict[str, list[Stage]]) -> Drawn:
    figure, (axes,) = panels(1, 3, 4.3, sharey=True)
    first = results_at(stages["pool"])[0]
    n = min(16, first["n_candidates"])
    text = f"{first['n_problems']} problems x {first['n_candidates']} samples, dashed: their majority vote"
    drawn = Drawn(figure, f"{text}; below the line a pool by the solver, with lines that do nothing")
    drawn.spread = "filled: product of step scores, hollow: the lowest; small: runs, large: their mean, 95 % t interval"
    heights, kinds_of = {}, {}
    for line, pool_line, key in (("verifier", "pool", "objective"), ("restated", "restated_pool", "neutral")):
        pool, kinds = results_at(stages[pool_line])[0], values_of(stages[line], key)
        kinds_of[line], found = kinds, {}
        for i, kind in enumerate(kinds):
            heights[kind] = len(heights) + (0.4 if line == "restated" else 0)
            scorers = [scorer_of(pool, stage) for stage in stages[line] if stage.sweep[key] == kind]
            found[kind] = numbers(pool, scorers, n, kind)
            for name, value_S in found[kind].items():
                own, up, face = places(name)
                style = line_style(i) | ({"markerfacecolor": "white"} if face else {})
                drawn.dots(axes[own], name, kind, heights[kind] + up, value_S, style)
            if kind in NO_PROBABILITY:
                axes[2].text(0, heights[kind], " no probabilities", color=GREY, fontsize=7.5, va="center")
            if i:
                drawn.statements += says(pool, stages[line], key, kinds[0], kind, found, n)
    for own, name in zip(axes, ("step AUROC", f"best of {n}, share solved", "ECE of step scores"), strict=True):
        own.set_title(name, fontsize=9)
        own.axhline(len(kinds_of["verifier"]) - 0.3, color=GREY, linewidth=0.8)
        own.grid(axis="x", linewidth=0.4, alpha=0.5)
    top = len(kinds_of["verifier"]) - 0.3
    axes[1].plot([first["majority"][str(n)]] * 2, [-0.5, top], color=GREY, linewidth=0.8, linestyle="--")
    axes[0].set_yticks(list(heights.values()), list(heights), fontsize=8)
    axes[0].set_ylim(max(heights.values()) + 0.6, -0.5)
    axes[2].set_xlim(0, None)
    return drawn


def numbers(pool: dict, scorers: list[str], n: int, kind: str) -> dict[str, list[float]]:
    """{number: its value for each of the scorers, the runs of one kind}."""
    steps = [pool["calibration"][scorer]["steps"] for scorer in scorers]
    best = lambda rule: [pool["scorers"][scorer][rule]["best_of_n"][str(n)] for scorer in scorers]
    found = {"step AUROC": [x["auroc"] for x in steps]}
    found |= {f"best of {n}, product": best("prod"), f"best of {n}, lowest": best("min")}
    return found | ({} if kind in NO_PROBABILITY else {"ECE": [x["ece"] for x in steps]})


def places(name: str) -> tuple[int, float, bool]:
    """(panel, how far from the row's height, whether hollow) of a number."""
    if name.startswith("best"):
        return 1, 0.13 if name.endswith("lowest") else -0.13, name.endswith("lowest")
    return (2 if name == "ECE" else 0), 0.0, False


def says(pool: dict, stages: list[Stage], key: str, base: str, kind: str, found: dict, n: int) -> list[str]:
    """A kind against the first one: over runs, and of best-of-n by the product over problems too."""
    title = f"{kind} - {base}"
    lines = [mean_difference(f"{title}, {name}", value_S, found[base][name]) for name, value_S in found[kind].items()]
    scorer = {(s.sweep[key], s.sweep["seed"]): selection(pool, scorer_of(pool, s)) for s in stages}
    pairs = [(pool, scorer[kind, seed], scorer[base, seed]) for seed in values_of(stages, "seed")]
    return [*lines, best_of_n_differences(f"{title}, product", pairs, n)]
