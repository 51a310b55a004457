"""Share solved against policy tokens, by method: all problems, then groups of equal difficulty, easiest first."""

import numpy as np

from prm_jax.figures.paper import Stages, results_at, signed
from prm_jax.figures.search import LABELS, draw_search
from prm_jax.figures.style import Drawn


def draw(stages: Stages) -> Drawn:
    results = results_at(stages["search"])
    drawn, searches = draw_search(results), [r["verifiers"][0]["searches"] for r in results]
    methods, budgets = (list(dict.fromkeys(s[key] for s in searches[0])) for key in ("method", "budget"))
    names = {method: LABELS.get(method, method) for method in methods}
    for method in methods:
        for name, choice in (("best score", "best"), ("weighted vote", "vote")):
            runs_SX = [[s[choice]["share"] for s in run if s["method"] == method] for run in searches]
            shares = ", ".join(f"{share:.3f}" for share in np.mean(runs_SX, 0))
            tokens = ", ".join(map(str, budgets))
            drawn.statements.append(f"{names[method]}, {name}, at {tokens} tokens: {shares}")
    for method in methods[1:]:
        for budget in dict.fromkeys([budgets[0], budgets[len(budgets) // 2], budgets[-1]]):
            rows = [s for run in searches for s in run if (s["method"], s["budget"]) == (method, budget)]
            tests = [s["minus_best_of_n"] for s in rows if "minus_best_of_n" in s]
            runs = ", ".join(signed(test["difference"], *test["interval"]) for test in tests)
            drawn.statements.append(f"{names[method]} - best of n at {budget} tokens: {runs}")
    return drawn
