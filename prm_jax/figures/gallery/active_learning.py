"""Best of n against labelled solutions, mined or drawn evenly: a column by training steps, a row by n."""

import numpy as np

from prm_jax.figures import paper
from prm_jax.figures.pipeline import Stage
from prm_jax.figures.style import Drawn, line_style, panels, size_axis

KEYS = ("choice", "samples", "training", "seed")


def draw(stages: paper.Stages) -> Drawn:
    (pool,) = paper.results_at(stages["pool"])
    choices, sizes, budgets, seeds = (paper.values_of(stages["verifier"], key) for key in KEYS)
    base, other = choices
    stage_at = {tuple(stage.sweep[key] for key in KEYS): stage for stage in stages["verifier"]}
    N = pool["n_candidates"]
    figure, axes = panels(2, len(budgets), 5.2, sharex=True, sharey="row")
    drawn = Drawn(figure, f"{pool['n_problems']} unseen problems x {N} samples; {paper.UNTAUGHT}")
    for column, budget in enumerate(budgets):
        for row, n in enumerate((min(16, N), N)):
            panel, title, curves = axes[row, column], f"best of {n}, {budget} training steps", []
            for i, choice in enumerate(choices):
                y_SX = [[paper.share_solved(pool, stage_at[choice, x, budget, s], n) for x in sizes] for s in seeds]
                drawn.curve(panel, title, choice, sizes, y_SX, line_style(i))
                curves.append(np.mean(y_SX, 0))
            paper.draw_untaught(panel.axhline, [pool], n)
            size_axis(panel, sizes, "labelled solutions" if row else "")
            panel.set_title(title, fontsize=9)
            text = f"a {other} solution is worth {worth(sizes, *curves)} {base} ones (log-linear)"
            drawn.statements.append(f"{title}: {text}")
        for size in sizes:
            runs = {choice: [stage_at[choice, size, budget, seed] for seed in seeds] for choice in choices}
            title = f"{other} - {base}, {size:,} solutions, {budget} steps"
            of_other, of_base = (numbers_of(pool, runs[choice]) for choice in (other, base))
            for name, value_S in of_other.items():
                drawn.statements.append(paper.mean_difference(f"{title}, {name}", value_S, of_base[name]))
            drawn.statements.append(paper.differences(title, pool, runs[other], runs[base], N))
    drawn.legend_above(axes[0, 0], len(choices))
    aurocs = ", ".join(f"{results['eval_step_auroc']:.3f}" for results in paper.results_at(stages["selector"]))
    drawn.statements.append(f"the small PRM: step AUROC {aurocs} on validation problems")
    for choice in choices:
        counts = [results["counts"][choice] for results in paper.results_at(stages["mining"], samples=sizes[-1])]
        mean = {key: np.mean([x[key] for x in counts]) for key in ("solutions", "steps", "wrong_answers", "unsound")}
        shares = f"{mean['wrong_answers']:.3f} with a wrong answer, {mean['unsound']:.3f} with a wrong step"
        size = f"{mean['solutions']:,.0f} solutions, {mean['steps']:,.0f} steps to label"
        drawn.statements.append(f"{choice}: {size}, {shares}")
    return drawn


def numbers_of(pool: dict, stages: list[Stage]) -> dict[str, list[float]]:
    """{number: its value for the verifier of each stage}."""
    steps = [pool["calibration"][paper.scorer_of(pool, stage)]["steps"] for stage in stages]
    sizes = (min(16, pool["n_candidates"]), pool["n_candidates"])
    solved = {f"best of {n}": [paper.share_solved(pool, stage, n) for stage in stages] for n in sizes}
    return solved | {f"step {name}": [x[name.lower()] for x in steps] for name in ("AUROC", "ECE")}


def worth(sizes: list[int], base_X, other_X) -> str:
    """How many solutions of `base` one of `other` is worth at the smallest size: by the line through the smallest and
    the largest size of `base`, in the logarithm of the size. Unknown where that line does not rise."""
    rise = base_X[-1] - base_X[0]
    if rise <= 0:
        return "an unknown number of"
    return f"{(sizes[-1] / sizes[0]) ** ((other_X[0] - base_X[0]) / rise):.2f}"
