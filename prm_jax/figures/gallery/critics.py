"""Balanced accuracy and AUROC on plain lines and on lines that hide work: critics that write or do not, and PRMs."""

import numpy as np

from prm_jax.figures.paper import Stages, results_at, run_of
from prm_jax.figures.style import GREY, Drawn, line_style, panels

NUMBERS = {  # {panel: (kind of line, its number)}
    "plain lines": ("plain", "balanced"),
    "merged lines": ("merged", "balanced"),
    "AUROC on merged lines": ("merged", "auroc"),
}


def draw(stages: Stages) -> Drawn:
    evaluations = (results_at(stages[line])[0]["runs"] for line in ("scored", "judged", "voted", "itself"))
    scored, judged, voted, (itself,) = evaluations
    writes, alone = (
        [s for s in stages["critic"] if s.sweep["writes"] == kind] for kind in ("hops", "verdict")
    )
    kinds = {
        "PRM": [run_of(scored, stage) for stage in stages["prm"]],
        "critic, verdict alone": [run_of(judged, stage) for stage in alone],
        "critic, 1 vote": [run_of(judged, stage) for stage in writes],
        "critic, 16 votes": [run_of(voted, stage) for stage in writes],
    }
    figure, (axes,) = panels(1, 3, 2.6, 8, sharey=True)
    text = f"{scored[0]['n_solutions']:.0f} held-out solutions, lines up to the first wrong one; a merged line does two"
    text += " operations and hides a value; dotted: the policy's own P(Yes), dash-dotted: its log p"
    drawn = Drawn(figure, text)
    drawn.spread = "small markers: runs, bars: 95 % t intervals of their mean"
    for axis, (panel, (lines, key)) in zip(axes, NUMBERS.items(), strict=True):
        for height, (name, runs) in enumerate(kinds.items()):
            drawn.dots(
                axis, panel, name, height, [run["lines"][lines][key] for run in runs], line_style(height)
            )
        untaught = {"P(Yes)": (itself, ":")} | ({"log p": (scored[-1], "-.")} if key == "auroc" else {})
        means = [f"{row['series']} {row['y']:.3f}" for row in drawn.rows[-len(kinds) :]]
        for name, (run, dashes) in untaught.items():
            axis.axvline(run["lines"][lines][key], color=GREY, linewidth=0.9, linestyle=dashes)
            means.append(f"the policy's {name} {run['lines'][lines][key]:.3f}")
        drawn.statements.append(f"{panel}: {', '.join(means)}")
        about, title = scored[0]["lines"][lines], "AUROC" if key == "auroc" else "balanced accuracy"
        axis.set_title(f"{lines} lines ({about['n']:,}, {about['wrong']:,} wrong)", fontsize=9)
        axis.set_xlabel(title)
        axis.grid(axis="x", linewidth=0.4, alpha=0.5)
    axes[0].set_yticks(range(len(kinds)), list(kinds))
    axes[0].set_ylim(len(kinds) - 0.5, -0.5)
    for name in list(kinds)[-2:]:
        counts = [run["critic"] for run in kinds[name]]
        tokens, lost, total = (
            np.sum([x[key] for x in counts]) for key in ("tokens", "no_verdict", "critiques")
        )
        votes = counts[0]["format"]["critic"]["votes"]
        cost = f"{votes * tokens / total:.1f} tokens a step"
        drawn.statements.append(f"{name}: {cost}, {lost} of {total} without a verdict")
    return drawn
