"""Figures of a pool: curves over n, aggregators, reward against KL, calibration."""

import itertools
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from prm_jax.figures.steps import reliability
from prm_jax.figures.style import (
    GREY,
    NO_LINE,
    Drawn,
    floats,
    line_style,
    over_seeds,
    panels,
    plain,
    save,
    size_axis,
)

# Rules that need no scorer: dashes and label.
RULES = {"majority": ("--", "majority vote"), "oracle": ("-.", "oracle: any of n is right")}
NAMES = {"prm": "PRM", "orm": "ORM", "policy": "policy's likelihood"}
TITLES = {  # {rule of a panel: its title}
    "best_of_n": "share of problems solved",
    "weighted_vote": "solved by the vote weighted by the scores",
    "trace": "solved without a wrong step",
}


def pool_text(results: dict, text: str) -> str:
    """A caption: the pool, how it is graded, `text`, the verifiers."""
    missing, names = (
        results["dropped"]["missing"],
        sorted({v["verifier"] for v in results["verifiers"].values()}),
    )
    size = f"{results['n_problems']} problems x {results['n_candidates']} candidates"
    size += f" at most ({missing} fewer in all; " if missing else " ("
    pool = f"{Path(results['pool']).name}); graded: {results['grading']['checker']}; ties: {results['ties']}"
    return "; ".join([size + pool, text] + [", ".join(names)] * bool(names))


def best_of_n_figures(results: dict, folder: Path) -> list[Path]:
    """Draws curves over n, a row an aggregator, reward against KL, calibration; nothing where there is no pool."""
    drawings = (best_of_n_curves, aggregator_dots, reward_kl_figure, calibration_figure)
    return [draw(results, folder) for draw in drawings if "scorers" in results]


def best_of_n_curves(results: dict, folder: Path) -> Path:
    """Draws the curves of one pool; intervals are bootstraps over problems, of several seeds t intervals of their mean."""
    runs, N, text = by_seed(results), list(results["oracle"])[-1], "95 % bootstrap intervals over problems"
    drawn, many = draw_best_of_n(runs), len(results["scorers"]) > 2
    text = f"beside the curves, at n = {N}: {text}" if many else f"bands: {text}"
    return save(
        drawn.figure,
        folder / "best_of_n.png",
        pool_text(results, drawn.spread if runs[1:] else text),
        results,
    )


def by_seed(results: dict) -> list[dict]:
    """The results as if each seed had been measured by itself, with every scorer that has one seed; or as they are."""
    seeds = {group["scorers"][0]: group["scorers"] for group in results.get("over_seeds", ())}
    others = {name for group in seeds.values() for name in group[1:]}
    names = {
        name: seeds.get(name, itertools.repeat(name)) for name in results["scorers"] if name not in others
    }
    if len({*map(len, seeds.values())}) != 1:
        return [results]
    parts = "scorers", "headline"
    runs = [dict(zip(names, run, strict=True)) for run in zip(*names.values())]
    return [
        results | {part: {name: results[part][x] for name, x in run.items()} for part in parts}
        for run in runs
    ]


def draw_best_of_n(runs: list[dict]) -> Drawn:
    """Problems solved against n (Lightman et al. 2023, figure 3), of one pool or of the pools of several seeds. Of more
    than two scorers bands would hide each other: intervals then stand beside the curves, at the last n, and weighted
    votes have a panel of their own. With exact step labels a last panel counts winners without a wrong step."""
    first, many = runs[0], len(runs[0]["scorers"]) > 2
    N, sizes = first["n_candidates"], [int(n) for n in first["oracle"]]
    tables = {
        scorer: [r["scorers"][scorer][name] for r in runs] for scorer, name in first["headline"].items()
    }
    has_trace = all("trace" in table for scorer_tables in tables.values() for table in scorer_tables)
    shown = {"weighted_vote": many and "majority" in first, "trace": has_trace}
    titles = {rule: title for rule, title in TITLES.items() if shown.get(rule, True)}
    rows, columns = (
        (2, 2) if len(titles) == 3 else (1, len(titles))
    )  # three in a row are not legible on a phone
    figure, axes_RC = panels(rows, columns, 4.1 if rows == 1 else 5.9, sharey=True)
    drawn = Drawn(figure, f"{first['n_problems']} problems x {N} candidates, exact over all subsets")
    drawn.spread = drawn.spread.replace("bands", f"beside the curves, at n = {N}") if many else drawn.spread
    panel, handles = dict(zip(titles, axes_RC.ravel(), strict=False)), {}

    def curve(column, rule, series, tables, style, place):
        """Draws a rule in the panel `column`; its interval is a band, or at place 1, 2, ... beside the curves."""
        prefix, axes = "" if rule == "best_of_n" else f"{rule}_", panel[column]
        y_SX, line_SX = [list(t[rule].values()) for t in tables], [t.get(f"{prefix}curve") for t in tables]
        x, line_SX = (
            (range(1, N + 1), line_SX) if all(line_SX) else (sizes, y_SX)
        )  # at every n in closed form
        mean_X, *ends = over_seeds(line_SX)
        if len(runs) == 1:
            of_sizes = np.transpose(list(tables[0][f"{prefix}interval"].values()))
            ends = floats(tables[0].get(f"{prefix}curve_interval") or of_sizes)
        drawn.curve(axes, series, sizes, y_SX, style | NO_LINE, band=False)
        axes.plot(x, mean_X, **style | {"marker": ""})
        if place:
            x_end, (low, high) = N * 2 ** (0.13 * place), (end_X[-1] for end_X in ends)
            axes.vlines(x_end, low, high, color=style["color"], linewidth=1.4, alpha=0.7)
        else:
            axes.fill_between(x, *np.clip(ends, 0, 1), color=style["color"], alpha=0.12, linewidth=0)
        handles.setdefault(series, plt.Line2D([], [], **style, label=plain(series)))

    for i, (scorer, aggregator) in enumerate(first["headline"].items()):
        style, name = line_style(i), NAMES.get(scorer, scorer)
        series = f"{name} ({aggregator})" if many else f"{name}, best of n ({aggregator})"
        for rule in titles:
            curve(rule, rule, series, tables[scorer], style, many * (i + 1))
        if all("with_policy_curve" in table for table in tables[scorer]):
            dashed = style | {"linestyle": (0, (4, 1.5)), "markerfacecolor": "white"}
            label = f"{name} + {first['policy_weight']:g} log p of the policy"
            curve("best_of_n", "with_policy", label, tables[scorer], dashed, many * (len(tables) + 1 + i))
        if "majority" in first and not many:
            style |= {"linestyle": ":", "markerfacecolor": "white"}
            curve("best_of_n", "weighted_vote", f"{name}, weighted vote", tables[scorer], style, 0)
    for i, (rule, (dashes, label)) in enumerate(RULES.items()):
        style = {"linestyle": dashes, "linewidth": 1.2, "color": GREY}
        for column in [column for column in titles if column != "trace" and rule in first]:
            curve(column, rule, label, runs, style, many * (2 * len(tables) + 1 + i))
    for rule, axes in panel.items():
        levels = [r["mean"] for r in runs]
        if rule == "trace":  # one solution is the same for every scorer
            levels = [table["trace"]["1"] for table in next(iter(tables.values()))]
        mean = axes.axhline(
            np.mean(levels), color=GREY, linewidth=0.8, alpha=0.6, label="mean of the candidates"
        )
        size_axis(axes, sizes, "n, solutions a problem")
        axes.set_title(titles[rule], fontsize=9)
    handles = [*handles.values(), mean]
    if rows == 2:
        axes_RC[1, 1].axis("off")
        axes_RC[1, 1].legend(handles=handles, loc="center", fontsize=8)
    else:
        figure.legend(handles=handles, loc="outside upper center", ncols=2, fontsize=8)
    return drawn


def aggregator_dots(results: dict, folder: Path) -> Path:
    """Draws the share solved at the pool's size by aggregator: a dot a scorer, best-of-n beside the weighted vote."""
    N, scorers = str(results["n_candidates"]), results["scorers"]
    names = results["aggregators"]
    rules = [("best_of_n", "interval", f"Best of {N}")]
    rules += (
        [("weighted_vote", "weighted_vote_interval", f"Weighted vote of {N}")]
        if "majority" in results
        else []
    )
    size = 1.6 + 3.4 * len(rules), 1.4 + len(names) * (0.22 + 0.09 * len(scorers))
    figure, all_axes = plt.subplots(1, len(rules), figsize=size, sharex=True, sharey=True, squeeze=False)
    for axes, (rule, interval, title) in zip(all_axes[0], rules, strict=True):
        for i, (scorer, table) in enumerate(scorers.items()):
            y, style = np.arange(len(names)) + 0.7 * ((i + 0.5) / len(scorers) - 0.5), line_style(i)
            share, (low, high) = (
                [table[x][rule][N] for x in names],
                floats([table[x][interval][N] for x in names]).T,
            )
            axes.hlines(y, low, high, color=style["color"], linewidth=1, alpha=0.5)
            axes.plot(floats(share), y, **style | NO_LINE, label=plain(scorer))
        for name, (dashes, _) in RULES.items():
            if name in results:
                axes.axvline(
                    results[name][N], color=GREY, linewidth=0.8, linestyle=dashes, label=name, zorder=0
                )
        axes.set_yticks(range(len(names)), names)
        axes.set(title=title, xlabel="share of problems solved", ylim=(len(names) - 0.5, -0.5))
        for y in range(0, len(names), 2):
            axes.axhspan(y - 0.5, y + 0.5, color="black", alpha=0.05, linewidth=0)
    figure.legend(*all_axes[0, 0].get_legend_handles_labels(), loc="outside right center", fontsize=7.5)
    text = pool_text(results, "lines: 95 % bootstrap intervals over problems")
    return save(figure, folder / "aggregators.png", text, results)


def reward_kl_figure(results: dict, folder: Path) -> Path:
    """Draws accuracy and mean score against KL from the reference, on a square-root axis as in Gao et al. 2023."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
    for i, (scorer, tables) in enumerate(results["reward_kl"].items()):
        style, (tilt, best) = (
            line_style(i) | {"markerfacecolor": "white"},
            (tables["reweighted"], tables["best_of_n"]),
        )
        for axes, value in ((left, "accuracy"), (right, "score")):
            axes.plot(floats(tilt["kl"]), floats(tilt[value]), color=style["color"], linewidth=1.4)
            places = floats([best["kl"], best[value]])
            axes.plot(*places, **style | NO_LINE)
            if ref := tables.get("with_policy"):
                axes.plot(
                    floats(ref["kl"]), floats(ref[value]), color=style["color"], linewidth=1.4, linestyle="--"
                )
            for n, place in zip(best["n"] if i == 0 else (), places.T, strict=False):
                if np.isfinite(place).all():
                    axes.annotate(
                        n, place, xytext=(3, -9), textcoords="offset points", fontsize=7, color=GREY
                    )
        left.plot([], [], **style, label=plain(scorer))
    names = ", ".join(dict.fromkeys(results["headline"].values()))
    for axes, name in ((left, "expected accuracy (gold)"), (right, f"mean score, {names} (nats)")):
        square_root(axes)
        axes.set(xlabel="KL from the reference (nats, square-root axis)", ylabel=name, xlim=(0, None))
    figure.legend(*left.get_legend_handles_labels(), fontsize=7, loc="outside right center")
    left.set_title("Gold")
    right.set_title("Proxy: what the policy climbs")
    text = "lines: weights ref exp(score / beta), beta from infinity to 0, ref uniform or (dashed) the policy's law"
    text = pool_text(results, text + "; markers: best of n draws, n beside the first scorer's")
    return save(figure, folder / "reward_kl.png", text, results)


def square_root(axes):
    """The axis of a KL, along which best-of-n is nearly straight (Gao et al. 2023)."""
    axes.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0)), np.square))


def calibration_figure(results: dict, folder: Path) -> Path:
    """Draws reliability of step scores and of the headline aggregator's solution scores, with ECE and Brier score."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.2))
    headline, tables = results["headline"], results["calibration"]

    def curve(i, scorer, numbers):
        ece, brier, auroc = floats([numbers[name] for name in ("ece", "brier", "auroc")])
        return (
            numbers["reliability"],
            i,
            plain(f"{scorer}: ECE {ece:.3f}, Brier {brier:.3f}, AUROC {auroc:.3f}"),
        )

    reliability(left, [curve(i, scorer, x["steps"]) for i, (scorer, x) in enumerate(tables.items())])
    solutions = {s: x["solutions"][headline[s]] for s, x in tables.items() if headline[s] in x["solutions"]}
    reliability(right, [curve(i, *pair) for i, pair in enumerate(solutions.items())])
    names = {"exact": "share of good steps", "outcome": "share of steps in right solutions"}
    kinds = [kind for kind in names if any(x["step_label"] == kind for x in tables.values())]
    label = names[kinds[0]] + ";\nof outcome models: in right solutions" * (len(kinds) > 1)
    left.set(title="Step scores", xlabel="P(step good)", ylabel=label)
    right.set(title=f"Solution scores ({', '.join(dict.fromkeys(headline.values()))})")
    right.set(xlabel="solution score", ylabel="share of right solutions")
    for axes in (left, right):
        if axes.collections:
            axes.legend(fontsize=6.5, loc="upper center", bbox_to_anchor=(0.5, -0.16))
        else:
            axes.text(0.5, 0.5, "not a probability", ha="center", color=GREY)
    text = pool_text(results, "15 equal bins, larger dots hold more; dashed: perfect calibration")
    return save(figure, folder / "calibration.png", text, results)
