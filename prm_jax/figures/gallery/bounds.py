"""How often the bounds of a value hold it, and what N chosen a problem by the lower bound solves at equal policy tokens."""

from prm_jax.figures.paper import Stages, results_at, signed
from prm_jax.figures.style import GREY, NO_LINE, Drawn, line_style, panels, size_axis

WAYS = {"raw": "as learned", "now": "moved by the conformal shift"}
NOMINAL = (0.05, 0.5, 0.95)


def draw(stages: Stages) -> Drawn:
    steps = [results["runs"][0]["bounds"] for results in results_at(stages["steps"])]
    pools = results_at(stages["pool"])
    figure, ((left, right),) = panels(1, 2, 3.9)
    right_text = f"right: {pools[0]['n_problems']} problems, exact or over random orders"
    drawn = Drawn(figure, f"Left: bounds of {steps[0]['of']}; {right_text}")
    left.plot([0, 1], [0, 1], "--", color=GREY, linewidth=0.8)
    for i, (way, label) in enumerate(WAYS.items()):
        for nominal, *seen_S in zip(NOMINAL, *(run[way]["seen"] for run in steps), strict=True):
            left.plot([nominal] * len(seen_S), seen_S, **line_style(i) | NO_LINE | {"alpha": 0.5})
            drawn.number("share of values up to the quantile", label, seen_S, nominal)
        left.plot([], [], **line_style(i) | NO_LINE, label=label)
        for name in ("coverage", "width"):
            interval = drawn.number(name, label, [run[way]["all"][name] for run in steps])
            drawn.statements.append(f"{name} of nominal .90, {label}: {signed(*interval)}")
    left.set(xlabel="quantile", ylabel="share of exact values up to it", xlim=(0, 1), ylim=(0, 1))
    left.legend(loc="upper left", fontsize=7.5)
    first = next(iter(pools[0]["verifiers"]))
    rules = [pool["scorers"][first][pool["headline"][first]] for pool in pools]
    adaptive = next(name for name in rules[0] if name.startswith("adaptive_by_"))
    sizes = [int(n) for n in rules[0][adaptive]]
    for i, (name, label) in enumerate({"best_of_n": "one N for all", adaptive: "N a problem"}.items()):
        y_SX = [[rule[name][str(n)] for n in sizes] for rule in rules]
        drawn.curve(right, "solved", label, sizes, y_SX, line_style(i), True)
    size_axis(right, sizes, "policy tokens, in units of n samples for all")
    right.set(ylabel="problems solved by the default PRM")
    right.legend(loc="lower right", fontsize=7.5)
    return drawn
