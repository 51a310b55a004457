"""An outcome model trained at every token or at the end alone: held-out loss, AUROC and best of n by training steps."""

import numpy as np

from prm_jax.figures import paper
from prm_jax.figures.style import Drawn, line_style, panels, size_axis
from prm_jax.launch.run_log import read_log


def draw(stages: paper.Stages) -> Drawn:
    kinds, lengths, seeds = (paper.values_of(stages["verifier"], key) for key in ("at", "training", "seed"))
    stage_at = {(s.sweep["at"], s.sweep["training"], s.sweep["seed"]): s for s in stages["verifier"]}
    pools = paper.results_at(stages["pool"])
    n = pools[0]["n_candidates"]
    figure, ((curves, auroc, best),) = panels(1, 3, 3.1)
    drawn = Drawn(
        figure, f"{pools[0]['n_problems']} problems x {n} samples a seed; the last checkpoint of each run"
    )
    drawn.text += f"; loss: of the score at the end, in both; {paper.UNTAUGHT}"

    def outcome_auroc(pool: dict, stage) -> float:
        scorer = paper.scorer_of(pool, stage)
        return pool["calibration"][scorer]["solutions"][pool["headline"][scorer]]["auroc"]

    for i, kind in enumerate(kinds):
        logs = [read_log(stage_at[kind, lengths[-1], seed].folder / "metrics.jsonl") for seed in seeds]
        runs = [[line for line in log if "eval_loss" in line] for log in logs]
        x, y_SX = [line["step"] for line in runs[0]], [[line["eval_loss"] for line in run] for run in runs]
        drawn.curve(curves, "held-out loss", kind, x, y_SX, line_style(i), share=False)
        lowest = ", ".join(
            f"{x[np.argmin(y_X)]:g} ({min(y_X):.3f}, at the end {y_X[-1]:.3f})" for y_X in y_SX
        )
        drawn.statements.append(f"{kind}: held-out loss lowest at step {lowest}")
        pairs = [
            [(pool, stage_at[kind, x, s]) for x in lengths] for s, pool in zip(seeds, pools, strict=True)
        ]
        for axes, panel, number in (
            (auroc, "outcome AUROC", outcome_auroc),
            (best, f"best of {n}", lambda *pair: paper.share_solved(*pair, n)),
        ):
            drawn.curve(
                axes, panel, kind, lengths, [[number(*pair) for pair in run] for run in pairs], line_style(i)
            )
            means = ", ".join(f"{row['y']:.3f}" for row in drawn.rows[-len(lengths) :])
            drawn.statements.append(f"{kind}: {panel} after {', '.join(map(str, lengths))} steps {means}")
    paper.draw_untaught(best.axhline, pools, n)
    for axes, name in ((curves, "held-out loss"), (auroc, "outcome AUROC"), (best, f"best of {n}")):
        axes.set_title(name, fontsize=9)
    curves.set(xlabel="step of the longest run", xlim=(0, None))
    for axes in (auroc, best):
        size_axis(axes, lengths, "training steps")
    drawn.legend_above(curves, len(kinds))
    return drawn
