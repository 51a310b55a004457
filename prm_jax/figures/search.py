"""Problems solved against policy tokens, by method and difficulty (Snell et al. 2024, figure 3)."""

from pathlib import Path

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
    return [save(draw_search(results), folder / "search.png", text + names, results)]


def draw_search(results: dict):
    """One verifier has two columns of panels, several have a row each: all problems, then groups by difficulty."""
    first, rule = results["verifiers"], results["choice"]
    n_groups = max(len(v["difficulty_pass_at_1"]) for v in first)
    columns, width = (2, 0) if len(first) == 1 else (1 + n_groups, 3.4 + 2.4 * n_groups)
    rows = -(-(1 + n_groups) * len(first) // columns)
    figure, axes_grid = panels(rows, columns, 0.6 + 2.5 * rows, width, sharex=True, sharey=True)
    drawn = Drawn(figure, "")
    for row, (verifier, axes_of_verifier) in enumerate(
        zip(first, axes_grid.reshape(len(first), -1), strict=True)
    ):
        budgets = sorted({search["budget"] for search in verifier["searches"]})
        pass_at_1 = [verifier["pass_at_1"], *verifier["difficulty_pass_at_1"]]
        for k, axes in enumerate(axes_of_verifier):
            if k >= len(pass_at_1):
                axes.axis("off")
                continue
            group = f"{THIRDS[k - 1]} third" if n_groups == 3 else f"group {k} of {n_groups}"
            title = group if k else "all problems"
            for i, method in enumerate(dict.fromkeys(search["method"] for search in verifier["searches"])):
                searches = [search for search in verifier["searches"] if search["method"] == method]
                solved = [search[rule]["by_difficulty"][k - 1] if k else search[rule] for search in searches]
                interval = (
                    None if k else floats([x["interval"] for x in solved]).T
                )  # bands would hide small panels
                x, share = [search["policy_tokens"] for search in searches], [x["share"] for x in solved]
                name = LABELS.get(method, method)
                drawn.curve(axes, name, x, [share], line_style(i), band=not k, interval=interval)
            axes.axhline(pass_at_1[k], color=GREY, linewidth=0.8, linestyle=":")
            is_last_row = row * columns + k >= rows * columns - columns
            size_axis(axes, budgets, "policy tokens a problem" if is_last_row else "")
            axes.tick_params(axis="x", rotation=45 if columns > 2 else 0)
            axes.set_title(f"{title} (pass@1 {pass_at_1[k]:.2f})", fontsize=9)
        name = Path(verifier["verifier"]).name[:28] if len(first) > 1 else ""
        for axes in axes_of_verifier[::columns]:
            axes.set_ylabel(plain(f"share solved\n{name}".strip()))
    drawn.legend_above(axes_grid[0, 0], 6)
    return figure
