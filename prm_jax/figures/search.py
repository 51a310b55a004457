"""Problems solved against policy tokens, by method and difficulty (Snell et al. 2024, figure 3)."""

from pathlib import Path

from prm_jax.figures.style import GREY, legend_above, line_style, panels, plain, save, size_axis


def search_figures(results: dict, folder: Path, choice: str) -> list[Path]:
    """Draws a row of panels a verifier: all problems, then groups by difficulty. choice: the final one, in
    words."""
    rule, verifiers = results["choice"], results["verifiers"]
    n_groups = max(len(v["difficulty_pass_at_1"]) for v in verifiers)
    size = 0.8 + 2.5 * len(verifiers), 3.4 + 2.4 * n_groups
    figure, axes_VG = panels(len(verifiers), 1 + n_groups, *size, sharex=True, sharey=True)
    for v, axes_G in zip(verifiers, axes_VG, strict=True):
        budgets = sorted({s["budget"] for s in v["searches"]})
        methods = list(dict.fromkeys(s["method"] for s in v["searches"]))
        for k, axes in enumerate(axes_G[: 1 + len(v["difficulty_pass_at_1"])]):
            pass_at_1 = v["difficulty_pass_at_1"][k - 1] if k else v["pass_at_1"]
            for i, method in enumerate(methods):
                searches = [s for s in v["searches"] if s["method"] == method]
                shares = [s[rule]["by_difficulty"][k - 1] if k else s[rule] for s in searches]
                x, style = [s["policy_tokens"] for s in searches], line_style(i)
                axes.plot(x, [share["share"] for share in shares], **style, label=plain(method))
            axes.axhline(pass_at_1, color=GREY, linewidth=0.8, linestyle=":")
            group = f"group {k} of {n_groups}, the easiest first" if k else "all problems"
            axes.set_title(f"{group} (pass@1 {pass_at_1:.2f})")
            size_axis(axes, budgets, "policy tokens a problem" if axes_G is axes_VG[-1] else "")
        axes_G[0].set_ylabel(plain(f"share solved\n{Path(v['verifier']).name[:28]}"))
    legend_above(figure, axes_VG[0, 0], 6)
    names = ", ".join(f"{v['verifier']} ({v['aggregator']})" for v in verifiers)
    text = f"{names}; final choice: {choice}; dotted: the policy alone"
    return [save(figure, folder / "search.png", text, results)]
