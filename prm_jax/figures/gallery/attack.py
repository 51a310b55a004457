"""What an attacker gains by one edit, by how the PRM was trained; beside it the exact checker, whose verdict no edit fools."""

import itertools

import numpy as np

from prm_jax.evals.attack import QUANTITIES, SHOWN
from prm_jax.figures.paper import Stages, results_at, signed, values_of
from prm_jax.figures.style import GREY, NO_LINE, Drawn, line_style, over_seeds, panels
from prm_jax.stats import holm, sign_flip_test

FALLS = {"worst": "fall of AUROC, worst edit", "worst_wrong_line": "fall of AUROC, a wrong line left"}


def draw(stages: Stages) -> Drawn:
    (checker,) = results_at(stages["checker"])
    arms = {arm: results_at(stages["attack"], training=arm) for arm in values_of(stages["attack"], "training")}
    names, (figure, (all_axes,)) = ["before", *checker["edits"]], panels(1, 3, 5.2, 9.6, sharey=True)
    drawn = Drawn(
        figure, f"{checker['solutions']:,} solutions, {checker['sound']} sound; each row: the worst place of one edit"
    )
    drawn.spread = "dots: runs, bars: 95 % t intervals of their mean"
    for axes, (key, title) in zip(all_axes, QUANTITIES.items(), strict=True):
        exact = [table_of(checker, name)[key] for name in names]
        axes.plot(exact, range(len(names)), "|", color=GREY, markersize=16, label="the exact checker")
        for i, (arm, runs) in enumerate(arms.items()):
            for y, name in enumerate(names):
                value_S = [table_of(run, name)[key] for run in runs]
                drawn.dots(
                    axes,
                    title,
                    f"{arm}: {row_name(name)}",
                    y + 0.18 * (i - (len(arms) - 1) / 2),
                    value_S,
                    line_style(i),
                )
            axes.plot([], [], **line_style(i) | NO_LINE, label=arm)
        for y, x in enumerate(exact):
            drawn.row(title, f"the exact checker: {row_name(names[y])}", "", x, np.nan, np.nan, [x])
        axes.set(title=title, xlim=(-0.03, 1.03), ylim=(len(names) - 0.5, -0.5))
        axes.set_yticks(range(len(names)), map(row_name, names))
        axes.hlines(np.arange(len(names) - 1) + 0.5, -0.03, 1.03, color=GREY, linewidth=0.3)
    drawn.legend_above(all_axes[0], 5)
    compare(drawn, arms, checker)
    return drawn


def table_of(results: dict, name: str) -> dict:
    return results["before"] if name == "before" else results["edits"][name]


def row_name(name: str) -> str:
    return "no edit" if name == "before" else SHOWN.get(name, name).strip()


def compare(drawn: Drawn, arms: dict[str, list[dict]], checker: dict):
    """States each arm's AUROC before the attack and its falls, and the differences between arms, paired by seed, with exact
    sign-flip tests; Holm's correction is over all but the primary one, the first."""

    def before(runs):
        return np.array([run["before"]["auroc"] for run in runs])

    def fall(runs, name):
        return before(runs) - [run["edits"][name]["auroc"] for run in runs]

    for arm, runs in arms.items():
        falls = [f"{text} {signed(*over_seeds(fall(runs, name)))}" for name, text in FALLS.items()]
        drawn.statements.append(f"{arm}: AUROC without edits {signed(*over_seeds(before(runs)))}, {', '.join(falls)}")
    falls = [f"{text} {fall([checker], name)[0]:.3f}" for name, text in FALLS.items()]
    drawn.statements.append(f"the exact checker: {', '.join(falls)}")
    names = [*arms]
    pairs = [*itertools.pairwise(names), *([(names[0], names[-1])] if len(names) > 2 else [])]
    differences = {(a, b, name): fall(arms[a], name) - fall(arms[b], name) for a, b in pairs for name in FALLS}
    p = [sign_flip_test(value_S)[0] for value_S in differences.values()]
    tests = (
        [f"p {p[0]:.3f}", *(f"p {x:.3f}, by Holm {y:.3f}" for x, y in zip(p[1:], holm(p[1:]), strict=True))]
        if p
        else []
    )
    for i, ((a, b, name), value_S) in enumerate(differences.items()):
        interval = over_seeds(value_S)
        drawn.row(FALLS[name], f"{a} - {b}", "", *interval, value_S)
        text = f"{'secondary' if i else 'primary'}: {FALLS[name]}, {a} - {b}: {signed(*interval)}, {tests[i]}"
        drawn.statements.append(text)
    for a, b in pairs:
        change = over_seeds(before(arms[b]) - before(arms[a]))
        drawn.statements.append(f"AUROC without edits, {b} - {a}: {signed(*change)}")
