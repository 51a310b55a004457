"""Figures of a pool: curves over n, calibration."""

from pathlib import Path

import numpy as np

from prm_jax.figures.steps import reliability
from prm_jax.figures.style import (
    GREY,
    WIDTH,
    band,
    floats,
    legend_above,
    line_style,
    panels,
    plain,
    save,
    size_axis,
)

# Rules and their dashes.
WITHOUT_SCORER = {"shortest": (0, (1, 4)), "majority": "--", "oracle": "-."}
NAMES = {"prm": "PRM", "orm": "ORM", "policy": "policy's likelihood"}
TITLES = {  # {rule: the title of its panel}
    "best_of_n": "share of problems solved",
    "weighted_vote": "solved by the vote weighted by the scores",
    "trace": "solved without a wrong step",
}


def best_of_n_figures(results: dict, folder: Path) -> list[Path]:
    """Draws curves over n in 95 % bootstrap bands over problems, and calibration in 15 equal bins."""
    return [
        save(curves(results), folder / "best_of_n.png"),
        save(calibration(results), folder / "calibration.png"),
    ]


def scorer_styles(results: dict) -> dict[str, tuple[dict, str]]:
    """{scorer: (its style, its label)}: seeds of one setting look alike, and the first has the label."""
    first_of = {scorer: group["scorers"][0] for group in results["over_seeds"] for scorer in group["scorers"]}
    looks = list(dict.fromkeys(first_of.get(scorer, scorer) for scorer in results["scorers"]))
    styles = {}
    for scorer in results["scorers"]:
        first = first_of.get(scorer, scorer)
        label = plain(NAMES.get(scorer, scorer)) if scorer == first else ""
        styles[scorer] = line_style(looks.index(first)), label
    return styles


def draw_rule(axes, sizes: list[int], table: dict, rule: str, label: str, style: dict, has_band: bool):
    axes.plot(sizes, floats(list(table[rule].values())), **style, label=label)
    if has_band:
        interval = table["interval" if rule == "best_of_n" else f"{rule}_interval"]
        band(axes, sizes, *np.transpose(list(interval.values())), style)


def curves(results: dict):
    """Draws problems solved against n (Lightman et al. 2023, figure 3), a panel a rule. Of more than three
    lines bands would hide each other, so that only the first scorer has one."""
    tables = {scorer: results["scorers"][scorer][how] for scorer, how in results["headline"].items()}
    rules = [rule for rule in TITLES if all(rule in table for table in tables.values())]
    figure, axes_R = panels(1, len(rules), 4.1, max(WIDTH, 3.4 * len(rules)), sharey=True)
    sizes, few = [int(n) for n in results["oracle"]], len(tables) <= 3
    for axes, rule in zip(axes_R[0], rules, strict=True):
        for i, (scorer, (style, label)) in enumerate(scorer_styles(results).items()):
            name = f"{label} ({results['headline'][scorer]})" if label else ""
            draw_rule(axes, sizes, tables[scorer], rule, name, style, few or not i)
            if rule == "best_of_n" and "with_policy" in tables[scorer]:
                dashed = style | {"linestyle": (0, (4, 1.5)), "markerfacecolor": "white"}
                name = f"{label} + {results['policy_weight']:g} log p of the policy" if label else ""
                draw_rule(axes, sizes, tables[scorer], "with_policy", name, dashed, few)
        for name, dashes in WITHOUT_SCORER.items() if rule != "trace" else ():
            if name in results:
                style = {"linestyle": dashes, "linewidth": 1.2, "color": GREY, "marker": ""}
                draw_rule(axes, sizes, results, name, name.replace("_", " "), style, few)
        first = next(iter(tables.values()))  # one solution is the same for every scorer
        level = first["trace"]["1"] if rule == "trace" else results["mean"]
        axes.axhline(level, color=GREY, linewidth=0.8, alpha=0.6, label="mean of the candidates")
        axes.set_title(TITLES[rule])
        size_axis(axes, sizes, "n, solutions a problem")
    legend_above(figure, axes_R[0, 0], 2 * len(rules))
    return figure


def calibration(results: dict):
    """Draws reliability of step scores and of the headline aggregator's solution scores, with their ECE."""
    figure, ((left, right),) = panels(1, 2, 4.2, 9)
    steps, solutions = [], []
    for i, (scorer, x) in enumerate(results["calibration"].items()):
        for lines, numbers in [(steps, x["steps"]), *((solutions, own) for own in x["solutions"].values())]:
            lines.append((numbers["reliability"], i, plain(f"{scorer}: ECE {floats(numbers['ece']):.3f}")))
    reliability(left, steps)
    reliability(right, solutions)
    labels = " or ".join(sorted({f"{x['step_label']} labels" for x in results["calibration"].values()}))
    left.set(title="Step scores", xlabel="P(step good)", ylabel=f"share of good steps ({labels})")
    right.set(title="Solution scores", xlabel="solution score", ylabel="share of right solutions")
    for axes in (left, right):
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=7)
    return figure
