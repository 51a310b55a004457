"""How wrong labels of K completions are, exactly, and what a label costs by the number of operations."""

import numpy as np

from prm_jax.data.rows import read_rows
from prm_jax.figures.paper import Stages, results_at, signed
from prm_jax.figures.style import GREY, Drawn, line_style, over_seeds, panels, size_axis
from prm_jax.stats import ratio_interval

LABELS = {"any": "any right", "half": "half right", "soft": "soft"}
COSTS = {"every": "all lines", "bisected": "bisection"}


def draw(stages: Stages) -> Drawn:
    tables = [results["runs"][0]["label_errors"] for results in results_at(stages["exact"])]
    sizes = [int(k) for k in tables[0] if k != "constant"]
    figure, ((left, right),) = panels(1, 2, 3.9)
    drawn = Drawn(
        figure, "Left: in expectation over completions; right: bands are 95 % bootstraps over problems"
    )
    for i, (key, name) in enumerate(LABELS.items()):
        error_SK = np.array([[table[str(k)][key] for k in sizes] for table in tables])
        drawn.curve(left, "error of a label", name, sizes, error_SK, line_style(i))
        for k, error_S in zip(sizes, error_SK.T, strict=True):
            drawn.number("error of a label", f"{name}, K = {k}", error_S)
        least = ", ".join(str(sizes[k]) for k in error_SK.argmin(1))
        lowest = f"{error_SK.mean(0).min():.3f}"
        drawn.statements.append(f"{name}: least error {lowest}, of each set of beliefs at K = {least}")
    for key, dash in (("any", "--"), ("soft", ":")):
        constant_S = [table["constant"][key] for table in tables]
        left.axhline(np.mean(constant_S), color=GREY, linewidth=0.8, linestyle=dash)
        drawn.number("error of a label", f"constant, {key}", constant_S)
    for key in ("wrong_called_good", "right_called_bad"):
        values = {k: over_seeds([table[str(k)][key] for table in tables]) for k in (sizes[2], sizes[-1])}
        drawn.statements += [f"any right, K = {k}: {key} {signed(*x)}" for k, x in values.items()]
    drawn.text += "; dashed: every line called right, dotted: the mean value for every line"
    size_axis(left, sizes, "K, completions of a prefix")
    left.set(ylabel="share wrong (any, half), mean error (soft)", ylim=(0, None))
    right.set_title("solutions with a wrong answer, one run", fontsize=9)
    wrong = [
        row for _, row in read_rows(stages["bisected"][0].folder / "labels.jsonl") if row["outcome"] == 0
    ]
    operations_P = [len(row["prompt"].split()) - 2 for row in wrong]
    for i, (line, name) in enumerate(COSTS.items(), len(LABELS)):
        rows = {row["id"]: row for _, row in read_rows(stages[line][0].folder / "labels.jsonl")}
        cost, n = np.zeros((2, len(wrong), 1 + max(operations_P, default=0)))
        for p, (operations, row) in enumerate(zip(operations_P, wrong, strict=True)):
            cost[p, operations] = rows[row["id"]]["policy_tokens"]
            n[p, operations] = sum(y is not None for y in rows[row["id"]]["labels"])
        x = np.flatnonzero(n.sum(0))
        drawn.curve(right, "tokens a label", name, x, [(cost.sum(0)[x] / n.sum(0)[x])], line_style(i), share=False,
                    interval=[end[x] for end in ratio_interval(cost, n)])  # fmt: skip
    right.set(xlabel="operations of the problem", ylabel="policy tokens a label", ylim=(0, None))
    for axes in (left, right):
        axes.legend(fontsize=7.5)
    return drawn
