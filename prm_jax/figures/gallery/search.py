"""Share solved against policy tokens, by method: all problems, then groups of equal difficulty, easiest first."""

import numpy as np

from prm_jax.figures.paper import Drawn, legend_above, of, panels, signed, size_axis
from prm_jax.figures.pipeline import Stage
from prm_jax.figures.search import LABELS
from prm_jax.figures.style import GREY, line_style


def draw(stages: dict[str, list[Stage]]) -> Drawn:
    results = of(stages["search"])
    verifiers, rule = [r["verifiers"][0] for r in results], results[0]["choice"]
    groups = len(verifiers[0]["difficulty_pass_at_1"])
    figure, axes = panels(-(-(1 + groups) // 2), 2, 5.6, sharex=True, sharey=True)
    drawn = Drawn(figure, f"{verifiers[0]['problems']} problems, final choice: {rule} score; dotted: the policy alone")
    drawn.spread = "thin lines: runs, whose intervals are in the table and in figure.json"
    methods = list(dict.fromkeys(s["method"] for s in verifiers[0]["searches"]))
    budgets = list(dict.fromkeys(s["budget"] for s in verifiers[0]["searches"]))
    for k, own in enumerate(axes.flat[: 1 + groups]):
        alone = [v["pass_at_1"] if k == 0 else v["difficulty_pass_at_1"][k - 1] for v in verifiers]
        group = f"third {k} of {groups} by ease" if groups == 3 else f"group {k} of {groups}"
        title = group if k else "all problems"
        for i, method in enumerate(methods):
            found = [[s for s in v["searches"] if s["method"] == method] for v in verifiers]
            part = lambda s, k=k: s[rule]["share"] if k == 0 else s[rule]["by_difficulty"][k - 1]["share"]
            x = np.mean([[s["policy_tokens"] for s in run] for run in found], 0)
            y_SX = [[part(s) for s in run] for run in found]
            drawn.curve(own, title, LABELS.get(method, method), x, y_SX, line_style(i), band=False)
        own.axhline(np.mean(alone), color=GREY, linewidth=0.8, linestyle=":")
        size_axis(own, budgets, "policy tokens a problem" if k >= groups - 1 else "")
        own.set_title(f"{title} (pass@1 {np.mean(alone):.2f})", fontsize=9)
    for own in axes.flat[1 + groups :]:
        own.axis("off")
    legend_above(figure, axes[0, 0], len(methods))
    for method in methods:
        for name, choice in (("best score", "best"), ("weighted vote", "vote")):
            runs_SX = [[s[choice]["share"] for s in v["searches"] if s["method"] == method] for v in verifiers]
            shares = ", ".join(f"{share:.3f}" for share in np.mean(runs_SX, 0))
            at = f"at {', '.join(map(str, budgets))} tokens"
            drawn.says.append(f"{LABELS.get(method, method)}, {name}, {at}: {shares}")
    for method in methods[1:]:
        for budget in dict.fromkeys([budgets[0], budgets[len(budgets) // 2], budgets[-1]]):
            pairs = [s["minus_best_of_n"] for v in verifiers for s in v["searches"]
                     if s["method"] == method and s["budget"] == budget and "minus_best_of_n" in s]  # fmt: skip
            runs = [signed(d["difference"], *d["interval"]) for d in pairs]
            drawn.says.append(f"{LABELS.get(method, method)} - best of n at {budget} tokens: {', '.join(runs)}")
    return drawn
