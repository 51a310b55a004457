"""Best of n against labelled solutions, mined or drawn evenly: a column by training steps, a row by n."""

import numpy as np

from prm_jax.figures.paper import best_of_n_differences, mean_difference, results_at, scorer_of, selection, values_of
from prm_jax.figures.pipeline import Stage
from prm_jax.figures.style import GREY, Drawn, legend_above, line_style, panels, size_axis

KEYS = ("choice", "samples", "training", "seed")


def draw(stages: dict[str, list[Stage]]) -> Drawn:
    pool = results_at(stages["pool"])[0]
    choices, sizes, budgets, seeds = (values_of(stages["verifier"], key) for key in KEYS)
    at = {tuple(s.sweep[key] for key in KEYS): scorer_of(pool, s) for s in stages["verifier"]}
    most = pool["n_candidates"]
    figure, axes = panels(2, len(budgets), 5.2, sharex=True, sharey="row")
    drawn = Drawn(figure, f"{pool['n_problems']} unseen problems x {most} samples; dashed: majority vote")
    best = lambda scorer, n: pool["scorers"][scorer][pool["headline"][scorer]]["best_of_n"][str(n)]
    steps = lambda scorer: pool["calibration"][scorer]["steps"]
    rows = {n: lambda scorer, n=n: best(scorer, n) for n in (min(16, most), most)}
    numbers = {f"best of {n}": read for n, read in rows.items()}
    numbers |= {"step AUROC": lambda scorer: steps(scorer)["auroc"], "step ECE": lambda scorer: steps(scorer)["ece"]}
    for column, budget in enumerate(budgets):
        of_choice = lambda choice, read, budget=budget: [[read(at[choice, x, budget, s]) for x in sizes] for s in seeds]
        for row, (n, read) in enumerate(rows.items()):
            own, title = axes[row, column], f"best of {n}, {budget} training steps"
            for i, choice in enumerate(choices):
                drawn.curve(own, title, choice, sizes, of_choice(choice, read), line_style(i))
            own.axhline(pool["majority"][str(n)], color=GREY, linewidth=0.8, linestyle="--")
            size_axis(own, sizes, "labelled solutions" if row else "")
            own.set_title(title, fontsize=9)
            curves = [np.mean(of_choice(choice, read), 0) for choice in choices]
            drawn.statements.append(
                f"{title}: a {choices[1]} solution is worth {worth(sizes, *curves)} {choices[0]} ones (log-linear)"
            )
        for size in sizes:
            runs = {choice: [at[choice, size, budget, seed] for seed in seeds] for choice in choices}
            title = f"{choices[1]} - {choices[0]}, {size:,} solutions, {budget} steps"
            for name, read in numbers.items():
                values = [[read(scorer) for scorer in runs[choice]] for choice in choices]
                drawn.statements.append(mean_difference(f"{title}, {name}", *values[::-1]))
            pairs = [(pool, selection(pool, b), selection(pool, a)) for a, b in zip(*runs.values(), strict=True)]
            drawn.statements.append(best_of_n_differences(title, pairs, most))
    legend_above(figure, axes[0, 0], len(choices))
    small = [r["eval_step_auroc"] for r in results_at(stages["selector"])]
    drawn.statements.append(f"the small PRM: step AUROC {', '.join(f'{x:.3f}' for x in small)} on validation problems")
    for choice in choices:
        counts = [r["counts"][choice] for r in results_at(stages["mining"], samples=sizes[-1])]
        mean = lambda key, counts=counts: np.mean([found[key] for found in counts])
        shares = f"{mean('wrong_answers'):.3f} with a wrong answer, {mean('unsound'):.3f} with a wrong step"
        drawn.statements.append(
            f"{choice}: {mean('solutions'):,.0f} solutions, {mean('steps'):,.0f} steps to label, {shares}"
        )
    return drawn


def worth(sizes: list[int], base_X, other_X) -> str:
    """How many solutions of `base` one of `other` is worth at the smallest size: by the line through the smallest and the
    largest size of `base`, in the logarithm of the size. Unknown where that line does not rise."""
    rise = base_X[-1] - base_X[0]
    if rise <= 0:
        return "an unknown number of"
    return f"{(sizes[-1] / sizes[0]) ** ((other_X[0] - base_X[0]) / rise):.2f}"
