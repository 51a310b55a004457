"""Figures of search: problems solved against policy tokens, by method and difficulty, as in Snell et al. 2024."""

from pathlib import Path

import matplotlib.pyplot as plt

from prm_jax.figures.style import GREY, caption, floats, line_style, plain, save

LABELS = {"best_of_n": "best of n", "dvts": "DVTS", "vgs": "VGS (blocks)", "mcts": "MCTS"}


def search_figures(results: dict, folder: Path) -> list[Path]:
    """A row a verifier: all problems, then the groups of equal difficulty; bands are bootstrap intervals over problems."""
    verifiers, rule = results["verifiers"], results["choice"]
    columns = 1 + max(len(v["difficulty_pass_at_1"]) for v in verifiers)
    size = 1.6 + 2.4 * columns, 0.9 + 2.3 * len(verifiers)
    figure, axes_rows = plt.subplots(len(verifiers), columns, figsize=size, sharey="row", squeeze=False)
    for row, v in zip(axes_rows, verifiers, strict=True):
        methods = list(dict.fromkeys(s["method"] for s in v["searches"]))
        titles = ["all problems", *(f"pass@1 {share:.2f}" for share in v["difficulty_pass_at_1"])]
        alone = [v["pass_at_1"], *v["difficulty_pass_at_1"]]
        for k, (axes, title, share) in enumerate(zip(row, titles, alone, strict=False)):
            for i, method in enumerate(methods):
                own = [s for s in v["searches"] if s["method"] == method and rule in s]
                parts = [s[rule] if k == 0 else s[rule]["by_difficulty"][k - 1] for s in own]
                x, y = floats([s["policy_tokens"] for s in own]), floats([part["share"] for part in parts])
                style = line_style(i)
                axes.plot(x, y, **style, label=LABELS.get(method, method))
                if k == 0:
                    low, high = floats([part["interval"] for part in parts]).T
                    axes.fill_between(x, low, high, color=style["color"], alpha=0.08, linewidth=0)
            axes.axhline(share, color=GREY, linewidth=0.8, linestyle=":")
            axes.set_xscale("log", base=2)
            ticks = sorted({s["budget"] for s in v["searches"]})
            axes.set_xticks(ticks, [str(t) for t in ticks], rotation=45)
            axes.minorticks_off()
            axes.set_title(title, fontsize=9)
        row[0].set_ylabel(plain(f"share solved\n{Path(v['verifier']).name[:28]}"))
    for axes in axes_rows[-1]:
        axes.set_xlabel("policy tokens a problem")
    figure.legend(*axes_rows[0, 0].get_legend_handles_labels(), loc="outside right center", fontsize=7.5)
    final = {"best": "best score", "vote": "weighted vote"}[rule]
    text = f"final choice: {final}; dotted: the policy alone; bands: 95 % bootstrap intervals over problems; columns: groups of equal size by share of right samples"
    names = "; ".join(f"{v['verifier']}, {v['aggregator']}, {v['problems']} problems" for v in verifiers)
    caption(figure, f"{text}; {names}", results)
    return [save(figure, folder / "search.png")]
