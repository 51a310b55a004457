"""Problems solved against policy tokens, by method."""

from pathlib import Path

from prm_jax.figures.style import GREY, legend_above, line_style, panels, plain, save, size_axis


def draw(results: dict, folder: Path) -> list[Path]:
    """Draws a panel a verifier; dotted: the policy alone."""
    rule, verifiers = results["choice"], results["verifiers"]
    figure, axes_V = panels(1, len(verifiers), 3.3, 1 + 3.4 * len(verifiers), sharey=True)
    for v, axes in zip(verifiers, axes_V[0], strict=True):
        for i, method in enumerate(dict.fromkeys(s["method"] for s in v["searches"])):
            searches = [s for s in v["searches"] if s["method"] == method]
            x, y = [s["policy_tokens"] for s in searches], [s[rule]["share"] for s in searches]
            axes.plot(x, y, **line_style(i), label=plain(method))
        axes.axhline(v["pass_at_1"], color=GREY, linewidth=0.8, linestyle=":")
        axes.set_title(plain(f"{Path(v['verifier']).name[:28]} (pass@1 {v['pass_at_1']:.2f})"))
        size_axis(axes, sorted({s["budget"] for s in v["searches"]}), "policy tokens a problem")
    axes_V[0, 0].set_ylabel("share solved")
    legend_above(figure, axes_V[0, 0], 3)
    return [save(figure, folder / "search.png")]
