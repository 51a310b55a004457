"""Best of N against training solutions, by kind of supervision: a column a task; below, by winners without a wrong step."""

import itertools

from prm_jax.figures.paper import best_of_n_differences, results_at, scorer_of, selection, values_of
from prm_jax.figures.pipeline import Stage
from prm_jax.figures.style import GREY, Drawn, legend_above, line_style, panels, size_axis


def draw(stages: dict[str, list[Stage]]) -> Drawn:
    columns = (("chain", "verifier", "pool", "samples"), ("injective", "control", "control_pool", "control_samples"))
    kinds, seeds = (values_of(stages["verifier"], key) for key in ("supervision", "seed"))
    n = results_at(stages["pool"])[0]["n_candidates"]
    figure, axes = panels(2, 2, 5.4, sharex=True, sharey="row")
    drawn = Drawn(figure, f"Best of {n} of unseen problems; dashed: majority vote, dotted: mean of the candidates")
    sizes = sorted({x for _, line, _, key in columns for x in values_of(stages[line], key)})
    for column, (task, line, pool, key) in enumerate(columns):
        pool, samples = results_at(stages[pool])[0], values_of(stages[line], key)
        at = {(s.sweep["supervision"], s.sweep[key], s.sweep["seed"]): s for s in stages[line]}
        scorer = {place: scorer_of(pool, stage) for place, stage in at.items()}
        for row, (rule, name) in enumerate((("best_of_n", "solved"), ("trace", "without a wrong step"))):
            own = axes[row, column]
            numbers = {key: pool["scorers"][s][pool["headline"][s]][rule][str(n)] for key, s in scorer.items()}
            for i, kind in enumerate(kinds):
                y_SX = [[numbers[kind, x, seed] for x in samples] for seed in seeds]
                drawn.curve(own, f"{task}, {name}", kind, samples, y_SX, line_style(i))
            size_axis(own, sizes, "training solutions" if row else "")
            own.set_title(f"{task}: {name}", fontsize=9)
        axes[0, column].axhline(pool["majority"][str(n)], color=GREY, linewidth=0.8, linestyle="--")
        axes[0, column].axhline(pool["mean"], color=GREY, linewidth=0.8, linestyle=":")
        lucky = at[kinds[0], samples[0], seeds[0]].results()["counts"]["lucky_share_of_right_answers"]
        drawn.statements.append(f"{task}: {lucky:.3f} of the right answers hold a wrong step")
        for a, b in itertools.pairwise(kinds):
            names = [[selection(pool, scorer[kind, samples[-1], seed]) for kind in (a, b)] for seed in seeds]
            pairs = [(pool, *names_of_run) for names_of_run in names]
            drawn.statements.append(best_of_n_differences(f"{task}, {samples[-1]:,} solutions: {a} - {b}", pairs, n))
    legend_above(figure, axes[0, 0], len(kinds))
    return drawn
