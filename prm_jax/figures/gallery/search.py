"""Share solved against policy tokens, by method: all problems, then groups of equal difficulty, easiest first."""

import numpy as np

from prm_jax.figures.paper import Stages, results_at
from prm_jax.figures.search import LABELS, draw_search
from prm_jax.figures.style import Drawn


def draw(stages: Stages) -> Drawn:
    results = results_at(stages["search"])
    drawn, searches = draw_search(results), [r["verifiers"][0]["searches"] for r in results]
    methods, budgets = (list(dict.fromkeys(s[key] for s in searches[0])) for key in ("method", "budget"))
    names = {method: LABELS.get(method, method) for method in methods}
    for method in methods:
        runs = [[s for s in run if s["method"] == method] for run in searches]
        for name, choice in (("best score", "best"), ("weighted vote", "vote")):
            mean_X = np.mean([[s[choice]["share"] for s in run] for run in runs], 0)
            shares = ", ".join(f"{share:.3f}" for share in mean_X)
            tokens = ", ".join(map(str, budgets))
            drawn.statements.append(f"{names[method]}, {name}, at {tokens} tokens: {shares}")
        for at_budget in zip(*runs, strict=True):
            best, x = [s["best"] for s in at_budget], at_budget[0]["budget"]
            hardest = [share["by_difficulty"][-1]["share"] for share in best]
            drawn.number("solved at a budget", names[method], [share["share"] for share in best], x)
            drawn.number("solved of the hardest group", names[method], hardest, x)
    return drawn
