"""Problems solved against policy tokens, by method and difficulty (Snell et al. 2024, figure 3)."""

from pathlib import Path

import numpy as np

from prm_jax.figures.style import GREY, Drawn, floats, line_style, panels, plain, save, size_axis

LABELS = {
    "best_of_n": "best of n",
    "dvts": "DVTS",
    "vgs": "VGS (blocks)",
    "mcts": "MCTS",
    "optimal": "compute-optimal",
}
THIRDS = ("easiest", "middle", "hardest")
CHOICES = {"best": "best score", "vote": "weighted vote", "policy": "best score + w log p of the policy"}


def search_figures(results: dict, folder: Path) -> list[Path]:
    """Draws one evaluation; bands are bootstrap intervals over problems."""
    names = "; ".join(
        f"{v['verifier']}, {v['aggregator']}, {v['problems']} problems" for v in results["verifiers"]
    )
    text = f"final choice: {CHOICES[results['choice']]}; dotted: the policy alone"
    text += (
        "; bands: 95 % bootstrap intervals over problems; groups of equal size by share of right samples; "
    )
    return [save(draw_search([results]).figure, folder / "search.png", text + names, results)]


def draw_search(runs: list[dict]) -> Drawn:
    """One verifier has two columns of panels, several have a row each: all problems, then groups by difficulty. runs:
    the results of evaluations that differ in their seed alone."""
    first, rule = runs[0]["verifiers"], runs[0]["choice"]
    n_groups = max(len(v["difficulty_pass_at_1"]) for v in first)
    columns, width = (2, 0) if len(first) == 1 else (1 + n_groups, 3.4 + 2.4 * n_groups)
    rows = -(-(1 + n_groups) * len(first) // columns)
    figure, axes_grid = panels(rows, columns, 0.6 + 2.5 * rows, width, sharex=True, sharey=True)
    drawn = Drawn(
        figure, f"{first[0]['problems']} problems, final choice: {CHOICES[rule]}; dotted: the policy alone"
    )
    drawn.spread = "thin lines: runs, whose intervals are in the table and in figure.json"
    for row, axes_of_verifier in enumerate(axes_grid.reshape(len(first), -1)):
        verifiers = [r["verifiers"][row] for r in runs]
        budgets = sorted({s["budget"] for s in first[row]["searches"]})
        for k, axes in enumerate(axes_of_verifier):
            if k > len(first[row]["difficulty_pass_at_1"]):
                axes.axis("off")
                continue
            pass_at_1 = np.mean(
                [v["difficulty_pass_at_1"][k - 1] if k else v["pass_at_1"] for v in verifiers]
            )
            group = f"{THIRDS[k - 1]} third" if n_groups == 3 else f"group {k} of {n_groups}"
            title = group if k else "all problems"
            for i, method in enumerate(dict.fromkeys(s["method"] for s in first[row]["searches"])):
                searches = [[s for s in v["searches"] if s["method"] == method] for v in verifiers]
                shares = [
                    [s[rule]["by_difficulty"][k - 1] if k else s[rule] for s in run] for run in searches
                ]
                band = len(runs) == 1 and not k  # bands of all methods would hide small panels
                interval = floats([x["interval"] for x in shares[0]]).T if band else None
                x = np.mean([[s["policy_tokens"] for s in run] for run in searches], 0)
                y_SX, name = [[x["share"] for x in run] for run in shares], LABELS.get(method, method)
                drawn.curve(axes, title, name, x, y_SX, line_style(i), band=band, interval=interval)
            axes.axhline(pass_at_1, color=GREY, linewidth=0.8, linestyle=":")
            size_axis(
                axes,
                budgets,
                "policy tokens a problem" if row * columns + k >= rows * columns - columns else "",
            )
            axes.tick_params(axis="x", rotation=45 if columns > 2 else 0)
            axes.set_title(f"{title} (pass@1 {pass_at_1:.2f})", fontsize=9)
        name = Path(verifiers[0]["verifier"]).name[:28] if len(first) > 1 else ""
        for axes in axes_of_verifier[::columns]:
            axes.set_ylabel(plain(f"share solved\n{name}".strip()))
    drawn.legend_above(axes_grid[0, 0], 6)
    return drawn
