"""The drawings of conf/figure, one a figure of a paper: each takes {line: stages} and returns Drawn (figures/paper.py)."""

import itertools
import math

import numpy as np

from prm_jax.figures.paper import (
    Drawn,
    difference,
    legend_above,
    of,
    over_seeds,
    panels,
    scorer_of,
    selection,
    size_axis,
    values_of,
)
from prm_jax.figures.pipeline import Stage
from prm_jax.figures.style import GREY, floats, line_style, reliability


def best_of_n(stages: dict[str, list[Stage]]) -> Drawn:
    """Problems solved against n, and by a solution without a wrong step: a PRM, an ORM, votes, the oracle."""
    results = of(stages["pool"])
    first = results[0]
    sizes = [int(n) for n in first["oracle"]]
    figure, ((left, right),) = panels(1, 2, 4.1, sharey=True)
    drawn = Drawn(figure, f"{first['n_problems']} problems x {first['n_candidates']} samples, exact over all subsets")
    title = {"prm": "PRM", "orm": "ORM"}

    def curve(axes, panel, series, numbers, style, line=None):
        """Markers at powers of two, the line through every n where there is a closed form."""
        x, y_SX = sizes, floats([list(table.values()) for table in numbers])
        drawn.curve(axes, panel, series, x, y_SX, style)
        if line:
            axes.plot(range(1, first["n_candidates"] + 1), floats(line).mean(0), color=style["color"], linewidth=0.8)

    for i, (scorer, how) in enumerate(first["headline"].items()):
        tables = [r["scorers"][scorer][how] for r in results]
        name, style = title.get(scorer, scorer), line_style(i)
        curve(left, "solved", f"{name}, best of n ({how})", [t["best_of_n"] for t in tables], style)
        if "trace" in tables[0]:
            curve(right, "without a wrong step", f"{name}, best of n ({how})", [t["trace"] for t in tables], style)
        if scorer == "prm":
            style = line_style(i) | {"linestyle": ":", "markerfacecolor": "white"}
            curve(left, "solved", f"{name}, weighted vote", [t["weighted_vote"] for t in tables], style)
    for rule, label, dashes in (("majority", "majority vote", "--"), ("oracle", "oracle: any of n is right", "-.")):
        style = {"color": GREY, "linestyle": dashes, "linewidth": 1.2, "marker": ""}
        curve(left, "solved", label, [r[rule] for r in results], style)
    for axes, name in ((left, "share of problems solved"), (right, "solved without a wrong step")):
        size_axis(axes, sizes, "n, solutions a problem")
        axes.set_title(name, fontsize=9)
    legend_above(figure, left, 2)
    n = min(16, sizes[-1])
    prm, orm = (selection(first, scorer) for scorer in first["headline"])
    others = {"PRM - ORM": orm, "PRM - majority vote": "majority"}
    drawn.says = [difference(title, [(r, prm, b) for r in results], n) for title, b in others.items()]
    drawn.says += [peak(drawn, f"{title.get(x, x)}, best of n ({how})") for x, how in first["headline"].items()]
    return drawn


def peak(drawn: Drawn, series: str, panel: str = "solved") -> str:
    """Where the mean of a series is highest, and each run's own place."""
    rows = [row for row in drawn.rows if row["panel"] == panel and row["series"] == series]
    runs = floats([row["values"].split() for row in rows]).T
    at = [f"{rows[i]['x']:g}" for i in runs.argmax(1)]
    top = max(rows, key=lambda row: row["y"])
    return (
        f"{series}: highest at {top['x']:g} ({top['y']:.3f}), runs at {', '.join(at)}; {rows[-1]['y']:.3f} at the end"
    )


def supervision(stages: dict[str, list[Stage]]) -> Drawn:
    """Best of N against training solutions, by kind of supervision: a column a task; below, by winners without a wrong step."""
    columns = (("chain", "verifier", "pool", "samples"), ("injective", "control", "control_pool", "control_samples"))
    kinds, seeds = (values_of(stages["verifier"], key) for key in ("supervision", "seed"))
    n = of(stages["pool"])[0]["n_candidates"]
    figure, axes = panels(2, 2, 5.4, sharex=True, sharey="row")
    drawn = Drawn(figure, f"Best of {n} of unseen problems; dashed: majority vote, dotted: mean of the candidates")
    sizes = sorted({x for _, line, _, key in columns for x in values_of(stages[line], key)})
    for column, (task, line, pool, key) in enumerate(columns):
        pool, samples = of(stages[pool])[0], values_of(stages[line], key)
        at = {(s.at["supervision"], s.at[key], s.at["seed"]): s for s in stages[line]}
        scorer = {place: scorer_of(pool, stage) for place, stage in at.items()}
        for row, (rule, name) in enumerate((("best_of_n", "solved"), ("trace", "without a wrong step"))):
            own = axes[row, column]
            numbers = {key: pool["scorers"][s][pool["headline"][s]][rule][str(n)] for key, s in scorer.items()}
            for i, kind in enumerate(kinds):
                y_SX = [[numbers[kind, x, seed] for x in samples] for seed in seeds]
                drawn.curve(own, f"{task}, {name}", kind, samples, y_SX, line_style(i))
            size_axis(own, sizes, "training solutions" if row else "")
            own.set_title(f"{task}: {name}", fontsize=9)
        axes[0, column].axhline(pool["majority"][str(n)], color=GREY, linewidth=0.8, linestyle="--")
        axes[0, column].axhline(pool["mean"], color=GREY, linewidth=0.8, linestyle=":")
        lucky = at[kinds[0], samples[0], seeds[0]].results()["counts"]["lucky_share_of_right_answers"]
        drawn.says.append(f"{task}: {lucky:.3f} of the right answers hold a wrong step")
        for a, b in itertools.pairwise(kinds):
            names = [[selection(pool, scorer[kind, samples[-1], seed]) for kind in (a, b)] for seed in seeds]
            pairs = [(pool, *names_of_run) for names_of_run in names]
            drawn.says.append(difference(f"{task}, {samples[-1]:,} solutions: {a} - {b}", pairs, n))
    legend_above(figure, axes[0, 0], len(kinds))
    return drawn


def overoptimisation(stages: dict[str, list[Stage]]) -> Drawn:
    """Gold and proxy against KL, reweighted (lines) and best of n (markers): a column by layers, a column by training steps."""
    pools = {stage.at["seed"]: stage.results() for stage in stages["pool"]}
    first = next(iter(pools.values()))
    figure, axes = panels(2, 2, 5.6, sharex=True, sharey="row")
    drawn = Drawn(
        figure, f"{first['n_problems']} problems x {first['n_candidates']} samples; lines: weights exp(score / beta)"
    )
    drawn.text += f"; markers: best of n = 1, 2, 4, ... {first['n_candidates']}"
    for column, (line, key, unit) in enumerate((("by_layers", "layers", "layers"), ("by_steps", "training", "steps"))):
        for i, value in enumerate(values_of(stages[line], key)):
            own = [stage for stage in stages[line] if stage.at[key] == value]
            laws = [pools[s.at["seed"]]["reward_kl"][scorer_of(pools[s.at["seed"]], s)] for s in own]
            most = min(max(floats(law["reweighted"]["kl"])) for law in laws)
            grid = np.linspace(0, math.sqrt(most), 24) ** 2
            fits = [gao_fit(law["best_of_n"]) for law in laws]
            alpha, beta = np.mean(fits, 0)
            drawn.says.append(
                f"{value} {unit}: gold = start + d ({alpha:.3f} - {beta:.3f} d); runs alpha "
                f"{', '.join(f'{a:.3f}' for a, _ in fits)}, beta {', '.join(f'{b:.3f}' for _, b in fits)}"
            )
            for row, (number, name) in enumerate((("accuracy", "gold"), ("score", "proxy"))):
                y_SX, style = [along(law["reweighted"], number, grid) for law in laws], line_style(i)
                series = f"{value} {unit if value != 1 else unit[:-1]}"
                drawn.curve(
                    axes[row, column], f"{name} by {unit}", series, grid, y_SX, style | {"marker": ""}, share=row == 0
                )
                kl, y = (np.mean([floats(law["best_of_n"][k]) for law in laws], 0) for k in ("kl", number))
                axes[row, column].plot(kl, y, **style | {"linestyle": "none", "markerfacecolor": "white"})
        for own, name in zip(axes[:, column], ("gold: share right", "proxy: mean score (nats)"), strict=True):
            own.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0)), np.square))
            own.set(xlim=(0, None), xticks=[x for x in (0, 0.25, 1, 2, 4) if x <= own.get_xlim()[1]], title=name)
            own.title.set_fontsize(9)
        axes[1, column].set_xlabel("KL from the policy (nats, square-root axis)")
        axes[0, column].legend(fontsize=7.5, loc="lower left")
    return drawn


def along(law: dict, number: str, grid) -> np.ndarray:
    """A number of a family of laws where its KL takes the values of a grid."""
    kl, y = floats(law["kl"]), floats(law[number])
    order = np.argsort(kl)
    return np.interp(grid, kl[order], y[order])


def gao_fit(law: dict) -> np.ndarray:
    """(alpha, beta) of gold = start + d (alpha - beta d), d = sqrt(KL): Gao et al. 2023, of best-of-n; least squares."""
    d = np.sqrt(np.maximum(floats(law["kl"]), 0))
    gain = floats(law["accuracy"]) - law["accuracy"][0]
    alpha, minus_beta = np.linalg.lstsq(np.stack([d, d**2], -1), gain, rcond=None)[0]
    return np.array([alpha, -minus_beta])


def search(stages: dict[str, list[Stage]]) -> Drawn:
    """Share solved against policy tokens, by method: all problems, then groups of equal difficulty, easiest first."""
    results = of(stages["search"])
    verifiers, rule = [r["verifiers"][0] for r in results], results[0]["choice"]
    groups = len(verifiers[0]["difficulty_pass_at_1"])
    figure, axes = panels(-(-(1 + groups) // 2), 2, 5.6, sharex=True)
    names = {"best_of_n": "best of n", "dvts": "DVTS", "vgs": "VGS (blocks)", "mcts": "MCTS"}
    drawn = Drawn(figure, f"{verifiers[0]['problems']} problems, final choice: {rule} score; dotted: the policy alone")
    methods = list(dict.fromkeys(s["method"] for s in verifiers[0]["searches"]))
    budgets = list(dict.fromkeys(s["budget"] for s in verifiers[0]["searches"]))
    for k, own in enumerate(axes.flat[: 1 + groups]):
        alone = [v["pass_at_1"] if k == 0 else v["difficulty_pass_at_1"][k - 1] for v in verifiers]
        title = (
            "all problems" if k == 0 else f"third {k} of {groups} by ease" if groups == 3 else f"group {k} of {groups}"
        )
        for i, method in enumerate(methods):
            found = [[s for s in v["searches"] if s["method"] == method] for v in verifiers]
            part = lambda s, k=k: s[rule]["share"] if k == 0 else s[rule]["by_difficulty"][k - 1]["share"]
            x = np.mean([[s["policy_tokens"] for s in run] for run in found], 0)
            y_SX = [[part(s) for s in run] for run in found]
            drawn.curve(own, title, names.get(method, method), x, y_SX, line_style(i))
        own.axhline(np.mean(alone), color=GREY, linewidth=0.8, linestyle=":")
        size_axis(own, budgets, "policy tokens a problem" if k >= groups - 1 else "")
        own.set_title(f"{title} (pass@1 {np.mean(alone):.2f})", fontsize=9)
    for own in axes.flat[1 + groups :]:
        own.axis("off")
    legend_above(figure, axes[0, 0], len(methods))
    for method in methods[1:]:
        for budget in dict.fromkeys([budgets[0], budgets[len(budgets) // 2], budgets[-1]]):
            pairs = [s["minus_best_of_n"] for v in verifiers for s in v["searches"]
                     if s["method"] == method and s["budget"] == budget and "minus_best_of_n" in s]  # fmt: skip
            runs = [f"{d['difference']:+.3f} [{d['interval'][0]:+.3f}, {d['interval'][1]:+.3f}]" for d in pairs]
            drawn.says.append(f"{names.get(method, method)} - best of n at {budget} tokens: {', '.join(runs)}")
    return drawn


def shift(stages: dict[str, list[Stage]]) -> Drawn:
    """Reliability at home and under a shift, and what temperature and Platt scaling repair."""
    lines = {"home": "its own task", "solver": "the solver's samples", "shifted": "longer, more hidden work"}
    runs = {name: [r["runs"][0] for r in of(stages[name])] for name in lines}
    figure, ((left, right),) = panels(1, 2, 3.9, gridspec_kw={"width_ratios": [1, 1.15]})
    drawn = Drawn(figure, f"{len(runs['home'])} runs of the default PRM; dashed: perfect calibration")
    drawn.spread = "left: the steps of all runs together; right, dots: runs, bars: their means"
    for i, (name, label) in enumerate(lines.items()):
        tables = [run["reliability"] for run in runs[name]]
        reliability(left, [(pooled(tables), i, label)])
        auroc = [run["step_auroc"] for run in runs[name]]
        drawn.says.append(f"{label}: step AUROC {np.mean(auroc):.3f} ({', '.join(f'{x:.3f}' for x in auroc)})")
    tables = [run["recalibrated"]["platt"]["reliability"] for run in runs["shifted"]]
    reliability(left, [(pooled(tables), 3, "the last, Platt-scaled on itself")])
    left.set(xlabel="P(step good)", ylabel="share of good steps")
    left.legend(fontsize=7, loc="lower right")
    ways = list(runs["shifted"][0]["recalibrated"])
    names = {"none": "as they are", "temperature": "temperature, here", "platt": "Platt, here"}
    names |= {f"{way}, elsewhere": f"{names[way].split(',')[0]}, at home" for way in ("temperature", "platt")}
    ways = [
        way for way in ("none", "temperature, elsewhere", "platt, elsewhere", "temperature", "platt") if way in ways
    ]
    for i, (name, label) in enumerate(lines.items()):
        y = np.arange(len(ways)) + 0.26 * (i - 1)
        of_way = [[run["recalibrated"].get(way, {}).get("ece", math.nan) for run in runs[name]] for way in ways]
        mean, low, high = over_seeds(np.transpose(of_way))
        right.barh(y, mean, height=0.24, color=line_style(i)["color"], alpha=0.35, label=label)
        for at, values in zip(y, of_way, strict=True):
            right.plot(values, [at] * len(values), line_style(i)["marker"], color=line_style(i)["color"], markersize=3)
        for way, m, a, b, values in zip(ways, mean, low, high, of_way, strict=True):
            row = {"panel": "ECE", "series": label, "x": names[way], "y": m, "low": a, "high": b, "runs": len(values)}
            drawn.rows.append(row | {"values": " ".join(f"{v:.6g}" for v in values)})
    right.set_yticks(range(len(ways)), [names[way] for way in ways], fontsize=7.5)
    right.set(xlabel="ECE", ylim=(len(ways) - 0.5, -0.5), xlim=(0, None))
    for way in ways:
        row = next(r for r in drawn.rows if r["series"] == lines["shifted"] and r["x"] == names[way])
        drawn.says.append(
            f"shifted, {names[way]}: ECE {row['y']:.3f} [{row['low']:.3f}, {row['high']:.3f}] ({row['values']})"
        )
    return drawn


def pooled(tables: list[dict]) -> dict:
    """The reliability table of several runs' steps together."""
    n = floats([table["n"] for table in tables])
    total = n.sum(0)
    with np.errstate(invalid="ignore"):
        mean = lambda name: np.nansum(floats([table[name] for table in tables]) * n, 0) / total
        return {"n": total, "mean_score": mean("mean_score"), "mean_label": mean("mean_label")}


DRAWINGS = {
    "best_of_n": best_of_n,
    "supervision": supervision,
    "overoptimisation": overoptimisation,
    "search": search,
    "shift": shift,
}
