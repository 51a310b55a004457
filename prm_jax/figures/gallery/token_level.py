"""An outcome model trained at every token or at the end alone: held-out loss, AUROC and best of n by training steps."""

import itertools

import numpy as np

from prm_jax.figures import paper
from prm_jax.figures.style import Drawn, floats, line_style, over_seeds, panels, size_axis
from prm_jax.launch.run_log import read_log


def draw(stages: paper.Stages) -> Drawn:
    (pool,) = paper.results_at(stages["pool"])
    kinds, lengths, seeds = (paper.values_of(stages["verifier"], key) for key in ("at", "training", "seed"))
    stage_at = {(s.sweep["at"], s.sweep["training"], s.sweep["seed"]): s for s in stages["verifier"]}
    n = pool["n_candidates"]
    figure, ((curves, auroc, best),) = panels(1, 3, 3.1)
    drawn = Drawn(figure, f"{pool['n_problems']} problems x {n} samples; the last checkpoint of each run")
    drawn.text += f"; loss: of each model's own objective; {paper.UNTAUGHT}"
    auroc_of = {s: x["solutions"][pool["headline"][s]]["auroc"] for s, x in pool["calibration"].items()}
    for i, kind in enumerate(kinds):
        logs = [read_log(stage_at[kind, lengths[-1], seed].folder / "metrics.jsonl")[0] for seed in seeds]
        runs = [[line for line in log if "eval_loss" in line] for log in logs]
        x, y_SX = [line["step"] for line in runs[0]], [[line["eval_loss"] for line in run] for run in runs]
        drawn.curve(curves, "held-out loss", kind, x, y_SX, line_style(i), share=False)
        lowest = ", ".join(f"{x[np.argmin(y_X)]:g} ({min(y_X):.3f}, at the end {y_X[-1]:.3f})" for y_X in y_SX)
        drawn.statements.append(f"{kind}: held-out loss lowest at step {lowest}")
        runs = [[stage_at[kind, length, seed] for length in lengths] for seed in seeds]
        for axes, panel, y_SX in (
            (auroc, "outcome AUROC", [[auroc_of[paper.scorer_of(pool, stage)] for stage in run] for run in runs]),
            (best, f"best of {n}", [[paper.share_solved(pool, stage, n) for stage in run] for run in runs]),
        ):
            drawn.curve(axes, panel, kind, lengths, floats(y_SX), line_style(i))
            means = ", ".join("{:.3f} [{:.3f}, {:.3f}]".format(*x) for x in zip(*over_seeds(y_SX), strict=True))
            drawn.statements.append(f"{kind}: {panel} after {', '.join(map(str, lengths))} steps {means}")
    for (a, b), length in itertools.product(itertools.pairwise(kinds), lengths):
        pair = ([stage_at[kind, length, seed] for seed in seeds] for kind in (a, b))
        drawn.statements.append(paper.differences(f"{length} steps: {a} - {b}", pool, *pair, n))
    paper.draw_untaught(best.axhline, [pool], n)
    for axes, name in ((curves, "held-out loss"), (auroc, "outcome AUROC"), (best, f"best of {n}")):
        axes.set_title(name, fontsize=9)
    curves.set(xlabel="step of the longest run", xlim=(0, None))
    for axes in (auroc, best):
        size_axis(axes, lengths, "training steps")
    drawn.legend_above(curves, len(kinds))
    return drawn
