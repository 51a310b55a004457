"""Best of N against training solutions by supervision, a column a task; below, winners without a wrong step."""

import itertools

from prm_jax.figures.paper import UNTAUGHT, Stages, differences, draw_untaught, results_at, share_solved, values_of
from prm_jax.figures.style import Drawn, line_style, panels, size_axis

COLUMNS = (("chain", "verifier", "pool", "samples"), ("injective", "control", "control_pool", "control_samples"))


def draw(stages: Stages) -> Drawn:
    kinds, seeds = (values_of(stages["verifier"], key) for key in ("supervision", "seed"))
    n = results_at(stages["pool"])[0]["n_candidates"]
    figure, axes = panels(2, 2, 5.4, sharex=True, sharey="row")
    drawn = Drawn(figure, f"Best of {n} of unseen problems; {UNTAUGHT}")
    sizes = sorted({x for _, line, _, key in COLUMNS for x in values_of(stages[line], key)})
    for column, (task, line, pool_line, key) in enumerate(COLUMNS):
        (pool,), samples = results_at(stages[pool_line]), values_of(stages[line], key)
        stage_at = {(s.sweep["supervision"], s.sweep[key], s.sweep["seed"]): s for s in stages[line]}
        for row, (rule, name) in enumerate((("best_of_n", "solved"), ("trace", "without a wrong step"))):
            for i, kind in enumerate(kinds):
                y_SX = [[share_solved(pool, stage_at[kind, x, seed], n, rule=rule) for x in samples] for seed in seeds]
                drawn.curve(axes[row, column], f"{task}, {name}", kind, samples, y_SX, line_style(i))
            size_axis(axes[row, column], sizes, "training solutions" if row else "")
            axes[row, column].set_title(f"{task}: {name}", fontsize=9)
        draw_untaught(axes[0, column].axhline, pool, n)
        lucky = stage_at[kinds[0], samples[0], seeds[0]].results()["counts"]["lucky_share_of_right_answers"]
        drawn.statements.append(f"{task}: {lucky:.3f} of the right answers hold a wrong step")
        for a, b in itertools.combinations(kinds, 2):
            pair = ([stage_at[kind, samples[-1], seed] for seed in seeds] for kind in (a, b))
            drawn.statements.append(differences(f"{task}, {samples[-1]:,} solutions: {a} - {b}", pool, *pair, n))
    drawn.legend_above(axes[0, 0], len(kinds))
    return drawn
