"""The figure of a pool: curves over n."""

from pathlib import Path

import numpy as np

from prm_jax.figures import style
from prm_jax.figures.style import floats, plain

# Rules and their dashes.
WITHOUT_SCORER = {"shortest": (0, (1, 4)), "majority": "--", "oracle": "-."}
NAMES = {"prm": "PRM", "orm": "ORM", "policy": "policy's likelihood"}
TITLES = {  # {rule: the title of its panel}
    "best_of_n": "share of problems solved",
    "weighted_vote": "solved by the vote weighted by the scores",
    "trace": "solved without a wrong step",
}


def scorer_styles(results: dict) -> dict[str, tuple[dict, str]]:
    """{scorer: (its style, its label)}: seeds of one setting look alike, and the first has the label."""
    first_of = {scorer: group["scorers"][0] for group in results["over_seeds"] for scorer in group["scorers"]}
    looks = list(dict.fromkeys(first_of.get(scorer, scorer) for scorer in results["scorers"]))
    styles = {}
    for scorer in results["scorers"]:
        first = first_of.get(scorer, scorer)
        label = plain(NAMES.get(scorer, scorer)) if scorer == first else ""
        styles[scorer] = style.line_style(looks.index(first)), label
    return styles


def draw_rule(axes, sizes: list[int], table: dict, rule: str, label: str, look: dict, has_band: bool):
    axes.plot(sizes, floats(list(table[rule].values())), **look, label=label)
    if has_band:
        interval = table["interval" if rule == "best_of_n" else f"{rule}_interval"]
        style.band(axes, sizes, *np.transpose(list(interval.values())), look)


def draw(results: dict, folder: Path) -> list[Path]:
    """Draws problems solved against n (Lightman et al. 2023, figure 3), a panel a rule, in 95 % bootstrap
    bands over problems. Bands of more than three lines would hide each other: then the first scorer has
    one."""
    tables = {scorer: results["scorers"][scorer][how] for scorer, how in results["headline"].items()}
    rules = [rule for rule in TITLES if all(rule in table for table in tables.values())]
    figure, axes_R = style.panels(1, len(rules), 4.1, max(style.WIDTH, 3.4 * len(rules)), sharey=True)
    sizes = [int(n) for n in results["oracle"]]
    few = len(tables) <= 3
    for axes, rule in zip(axes_R[0], rules, strict=True):
        for i, (scorer, (look, label)) in enumerate(scorer_styles(results).items()):
            name = f"{label} ({results['headline'][scorer]})" if label else ""
            draw_rule(axes, sizes, tables[scorer], rule, name, look, few or not i)
            if rule == "best_of_n" and "with_policy" in tables[scorer]:
                dashed = look | {"linestyle": (0, (4, 1.5)), "markerfacecolor": "white"}
                name = f"{label} + {results['policy_weight']:g} log p of the policy" if label else ""
                draw_rule(axes, sizes, tables[scorer], "with_policy", name, dashed, few)
        for name, dashes in WITHOUT_SCORER.items() if rule != "trace" else ():
            if name in results:
                look = {"linestyle": dashes, "linewidth": 1.2, "color": style.GREY, "marker": ""}
                draw_rule(axes, sizes, results, name, name.replace("_", " "), look, few)
        first = next(iter(tables.values()))  # one solution is the same for every scorer
        level = first["trace"]["1"] if rule == "trace" else results["mean"]
        axes.axhline(level, color=style.GREY, linewidth=0.8, alpha=0.6, label="mean of the candidates")
        axes.set_title(TITLES[rule])
        style.size_axis(axes, sizes, "n, solutions a problem")
    style.legend_above(figure, axes_R[0, 0], 2 * len(rules))
    return [style.save(figure, folder / "best_of_n.png")]
