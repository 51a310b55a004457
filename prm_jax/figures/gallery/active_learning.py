"""Best of n against labelled solutions, mined or drawn evenly: a column by training steps, a row by n."""

import numpy as np

from prm_jax.figures import paper
from prm_jax.figures.style import Drawn, line_style, panels, size_axis

KEYS = ("choice", "samples", "training", "seed")


def draw(stages: paper.Stages) -> Drawn:
    choices, sizes, budgets, seeds = (paper.values_of(stages["verifier"], key) for key in KEYS)
    stage_at = {tuple(stage.sweep[key] for key in KEYS): stage for stage in stages["verifier"]}
    pools = dict(zip(seeds, paper.results_at(stages["pool"]), strict=True))
    N = pools[seeds[0]]["n_candidates"]
    figure, axes = panels(2, len(budgets), 5.2, sharex=True, sharey="row")
    drawn = Drawn(
        figure, f"{pools[seeds[0]]['n_problems']} unseen problems x {N} samples a seed; {paper.UNTAUGHT}"
    )
    for column, budget in enumerate(budgets):
        runs = {
            choice: [[(pools[s], stage_at[choice, x, budget, s]) for x in sizes] for s in seeds]
            for choice in choices
        }
        for row, n in enumerate((min(16, N), N)):
            panel, title = axes[row, column], f"best of {n}, {budget} steps"
            for i, (choice, pair_SX) in enumerate(runs.items()):
                y_SX = [[paper.share_solved(*pair, n) for pair in pair_X] for pair_X in pair_SX]
                drawn.curve(panel, title, choice, sizes, y_SX, line_style(i))
            paper.draw_untaught(panel.axhline, list(pools.values()), n)
            size_axis(panel, sizes, "labelled solutions" if row else "")
            panel.set_title(title, fontsize=9)
        for choice, pair_SX in runs.items():
            steps = [
                [p["calibration"][paper.scorer_of(p, s)]["steps"] for p, s in pair_X] for pair_X in pair_SX
            ]
            for name in ("AUROC", "ECE"):
                value_XS = np.transpose([[y[name.lower()] for y in run] for run in steps])
                for x, value_S in zip(sizes, value_XS, strict=True):
                    y = drawn.number(f"step {name}, {budget} steps", choice, value_S, x)[0]
                    drawn.statements.append(f"{choice}, {x:,} solutions, {budget} steps: step {name} {y:.3f}")
    drawn.legend_above(axes[0, 0], len(choices))
    aurocs = ", ".join(
        f"{results['eval_step_auroc']:.3f}" for results in paper.results_at(stages["selector"])
    )
    drawn.statements.append(f"the small PRM: step AUROC {aurocs} on validation problems")
    for choice in choices:
        counts = [
            results["counts"][choice] for results in paper.results_at(stages["mining"], samples=sizes[-1])
        ]
        mean = {
            key: np.mean([x[key] for x in counts])
            for key in ("solutions", "steps", "wrong_answers", "unsound")
        }
        shares = f"{mean['wrong_answers']:.3f} with a wrong answer, {mean['unsound']:.3f} with a wrong step"
        size = f"{mean['solutions']:,.0f} solutions, {mean['steps']:,.0f} steps to label"
        drawn.statements.append(f"{choice}: {size}, {shares}")
    return drawn
