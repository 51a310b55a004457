"""An outcome model asked at every token or at the end alone: held-out loss along training, AUROC and best of n by its length."""

import itertools

import numpy as np

from prm_jax.figures.paper import best_of_n_differences, results_at, scorer_of, selection, values_of
from prm_jax.figures.pipeline import Stage
from prm_jax.figures.records import read_lines
from prm_jax.figures.style import GREY, Drawn, floats, legend_above, line_style, over_seeds, panels, size_axis


def draw(stages: dict[str, list[Stage]]) -> Drawn:
    pool, verifiers = results_at(stages["pool"])[0], stages["verifier"]
    kinds, lengths, seeds = (values_of(verifiers, key) for key in ("at", "training", "seed"))
    at = {(s.sweep["at"], s.sweep["training"], s.sweep["seed"]): s for s in verifiers}
    scorer = {place: scorer_of(pool, stage) for place, stage in at.items()}
    n = pool["n_candidates"]
    figure, ((curves, auroc, best),) = panels(1, 3, 3.1)
    drawn = Drawn(figure, f"{pool['n_problems']} problems x {n} samples; the last checkpoint of each run")
    drawn.text += "; dashed: majority vote, dotted: mean of the samples"
    for i, kind in enumerate(kinds):
        longest = [held_out_loss(at[kind, lengths[-1], seed]) for seed in seeds]
        x, y_SX = longest[0][0], [loss for _, loss in longest]
        drawn.curve(curves, "held-out loss", kind, x, y_SX, line_style(i), share=False)
        low = [f"{x[np.argmin(y_X)]:g} ({min(y_X):.3f}, at the end {y_X[-1]:.3f})" for y_X in y_SX]
        drawn.statements.append(f"{kind}: held-out loss lowest at step {', '.join(low)}")
        for axes, panel, number in ((auroc, "outcome AUROC", auroc_of), (best, f"best of {n}", share_of)):
            y_SX = floats([[number(pool, scorer[kind, length, seed]) for length in lengths] for seed in seeds])
            drawn.curve(axes, panel, kind, lengths, y_SX, line_style(i))
            means = ", ".join("{:.3f} [{:.3f}, {:.3f}]".format(*x) for x in zip(*over_seeds(y_SX), strict=True))
            drawn.statements.append(f"{kind}: {panel} after {', '.join(map(str, lengths))} steps {means}")
    for a, b in itertools.pairwise(kinds):
        for length in lengths:
            pairs = [(pool, *(selection(pool, scorer[kind, length, seed]) for kind in (a, b))) for seed in seeds]
            drawn.statements.append(best_of_n_differences(f"{length} steps: {a} - {b}", pairs, n))
    best.axhline(pool["majority"][str(n)], color=GREY, linewidth=0.8, linestyle="--")
    best.axhline(pool["mean"], color=GREY, linewidth=0.8, linestyle=":")
    for axes, name in ((curves, "held-out loss"), (auroc, "outcome AUROC"), (best, f"best of {n}")):
        axes.set_title(name, fontsize=9)
    curves.set(xlabel="step of the longest run", xlim=(0, None))
    for axes in (auroc, best):
        size_axis(axes, lengths, "training steps")
    legend_above(figure, curves, len(kinds))
    return drawn


def auroc_of(pool: dict, scorer: str) -> float:
    return pool["calibration"][scorer]["solutions"][pool["headline"][scorer]]["auroc"]


def share_of(pool: dict, scorer: str) -> float:
    """Problems solved by the best of all candidates."""
    return pool["scorers"][scorer][pool["headline"][scorer]]["best_of_n"][str(pool["n_candidates"])]


def held_out_loss(stage: Stage) -> tuple[list[int], list[float]]:
    """(steps, loss of the validation split, asked at the end of a solution) along a run."""
    lines = read_lines(stage.folder / "metrics.jsonl")
    found = [(line["step"], line["eval_loss"]) for line in lines if "eval_loss" in line]
    return tuple(map(list, zip(*found, strict=True)))
