"""The figure of task=attack, and how its numbers are called."""

from pathlib import Path

from prm_jax.figures.style import GREY, floats, line_style, panels, save

SHOWN = {"worst": "worst edit", "worst_wrong_line": "worst, error left"}  # of all edits
QUANTITIES = {
    "auroc": "AUROC, sound against unsound",
    "unsound_accepted": "unsound solutions above .5",
    "sound_refused": "sound solutions below .5",
}


def attack_figures(results: dict, folder: Path) -> list[Path]:
    """Draws the three quantities before the attack (line) and after each edit (dots)."""
    figure, (all_axes,) = panels(1, 3, 2.6, 9, sharey=True)
    tables, y = results["edits"].values(), range(len(results["edits"]))
    for axes, (key, title) in zip(all_axes, QUANTITIES.items(), strict=True):
        axes.axvline(results["before"][key], color=GREY, linewidth=1, linestyle="--", label="no edit")
        low, high = floats([x[f"{key}_interval"] for x in tables]).T
        axes.hlines(y, low, high, color=line_style(0)["color"], linewidth=1, alpha=0.5)
        axes.plot(
            [x[key] for x in tables], y, **line_style(0) | {"linestyle": ""}, label="worst place of one edit"
        )
        axes.set(title=title, xlim=(-0.03, 1.03), ylim=(len(y) - 0.5, -0.5))
        axes.set_yticks(y, [SHOWN.get(name, name) for name in results["edits"]])
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=8)
    text = f"{results['solutions']} solutions, {results['sound']} sound; {results['aggregator']} of step scores; 95 % bootstrap"
    return [
        save(figure, folder / "attack.png", f"{text} intervals over problems; {results['verifier']}", results)
    ]
