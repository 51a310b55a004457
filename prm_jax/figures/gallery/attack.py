"""What an attacker gains by one edit, by how the PRM was trained; beside it the exact checker, whose verdict no edit fools."""

import itertools

import numpy as np

from prm_jax.figures.attack import QUANTITIES, SHOWN
from prm_jax.figures.paper import Stages, results_at, signed, values_of
from prm_jax.figures.style import GREY, NO_LINE, Drawn, line_style, over_seeds, panels

UNEDITED = "AUROC without edits"
FALLS = {"worst": "fall of AUROC, worst edit", "worst_wrong_line": "fall of AUROC, a wrong line left"}


def draw(stages: Stages) -> Drawn:
    (checker,) = results_at(stages["checker"])
    arms = {
        arm: results_at(stages["attack"], training=arm) for arm in values_of(stages["attack"], "training")
    }
    tables = {arm: [by_edit(run) for run in runs] for arm, runs in arms.items()}
    exact, (figure, (all_axes,)) = by_edit(checker), panels(1, 3, 5.2, 9.6, sharey=True)
    drawn = Drawn(figure, f"{checker['solutions']:,} solutions, {checker['sound']} sound")
    drawn.text += "; each row: the worst place of one edit"
    drawn.spread = "dots: runs, bars: 95 % t intervals of their mean"
    for axes, (key, title) in zip(all_axes, QUANTITIES.items(), strict=True):
        exact_n = [numbers[key] for numbers in exact.values()]
        axes.plot(exact_n, range(len(exact)), "|", color=GREY, markersize=16, label="the exact checker")
        for i, (arm, runs) in enumerate(tables.items()):
            shift = 0.18 * (i - (len(arms) - 1) / 2)
            for y, name in enumerate(exact):
                drawn.dots(
                    axes, title, f"{arm}: {name}", y + shift, [run[name][key] for run in runs], line_style(i)
                )
            axes.plot([], [], **line_style(i) | NO_LINE, label=arm)
        for name, x in zip(exact, exact_n, strict=True):
            drawn.row(title, f"the exact checker: {name}", "", x, np.nan, np.nan, [x])
        axes.set(title=title, xlim=(-0.03, 1.03), ylim=(len(exact) - 0.5, -0.5))
        axes.set_yticks(range(len(exact)), list(exact))
        axes.hlines(np.arange(len(exact) - 1) + 0.5, -0.03, 1.03, color=GREY, linewidth=0.3)
    drawn.legend_above(all_axes[0], 5)
    state_falls(drawn, arms, checker)
    return drawn


def by_edit(results: dict) -> dict[str, dict]:
    """{name of a row: its numbers}."""
    return {"no edit": results["before"]} | {SHOWN.get(name, name): x for name, x in results["edits"].items()}


def state_falls(drawn: Drawn, arms: dict[str, list[dict]], checker: dict):
    """States each arm's AUROC before the attack and its falls, and adds them to the table."""

    def before(runs):
        return np.array([run["before"]["auroc"] for run in runs])

    for arm, runs in (arms | {"the exact checker": [checker]}).items():
        numbers = {UNEDITED: before(runs)}
        numbers |= {
            text: before(runs) - [run["edits"][name]["auroc"] for run in runs] for name, text in FALLS.items()
        }
        words = [f"{text} {signed(*drawn.number(text, arm, value_S))}" for text, value_S in numbers.items()]
        drawn.statements.append(f"{arm}: {', '.join(words)}")
    for a, b in itertools.pairwise(arms):
        drawn.statements.append(
            f"{UNEDITED}, {b} - {a}: {signed(*over_seeds(before(arms[b]) - before(arms[a])))}"
        )
