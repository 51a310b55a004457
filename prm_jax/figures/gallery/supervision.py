"""Best of N, and winners without a wrong step, against training solutions by what supervises a verifier."""

from prm_jax.figures.paper import UNTAUGHT, Stages, draw_untaught, share_solved, values_of
from prm_jax.figures.style import Drawn, line_style, panels, size_axis


def draw(stages: Stages) -> Drawn:
    kinds, sizes = (values_of(stages["verifier"], key) for key in ("supervision", "samples"))
    stage_at = {tuple(stage.sweep.values()): stage for stage in stages["verifier"]}
    pools = {stage.sweep["seed"]: stage.results() for stage in stages["pool"]}
    first = next(iter(pools.values()))
    n = first["n_candidates"]
    figure, (axes,) = panels(1, 2, 3.4, sharey=True)
    drawn = Drawn(figure, f"Best of {n} of {first['n_problems']} unseen problems; {UNTAUGHT}")
    for axis, (rule, panel) in zip(
        axes, (("best_of_n", "solved"), ("trace", "without a wrong step")), strict=True
    ):
        for i, kind in enumerate(kinds):
            runs = [[(pool, stage_at[kind, x, s]) for x in sizes] for s, pool in pools.items()]
            y_SX = [[share_solved(*pair, n, rule=rule) for pair in run] for run in runs]
            drawn.curve(axis, panel, kind, sizes, y_SX, line_style(i))
            means = ", ".join(f"{row['y']:.3f}" for row in drawn.rows[-len(sizes) :])
            drawn.statements.append(f"{panel}, {kind}: {means} with {', '.join(map(str, sizes))} solutions")
        size_axis(axis, sizes, "training solutions")
        axis.set_title(f"best of {n}, {panel}", fontsize=9)
    draw_untaught(axes[0].axhline, list(pools.values()), n)
    axes[0].set_ylabel("share of problems")
    drawn.legend_above(axes[0], len(kinds))
    return drawn
