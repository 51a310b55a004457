"""Stored scores of released reward models: best of N by aggregator, gold against KL, calibration, length bias."""

import itertools

import numpy as np

from prm_jax import InputError
from prm_jax.figures.best_of_n import square_root
from prm_jax.figures.paper import Stages, signed
from prm_jax.figures.style import GREY, NO_LINE, Drawn, floats, line_style, panels, plain

# {name of the scores: (its model, the rule that StrictPRMBench takes from its authors)}; other scores: prod.
MODELS = {
    "qwen_prm": ("Qwen2.5-Math-PRM-7B", "prod"),
    "skywork_prm": ("Skywork-o1-Open-PRM-7B", "mean"),
    "skywork_prm_1_5b": ("Skywork-o1-Open-PRM-1.5B", "mean"),
    "rlhflow_prm": ("RLHFlow Llama3.1-8B-PRM-Deepseek", "mean"),
    "math_shepherd": ("Math-Shepherd-Mistral-7B-PRM", "min"),
    "internlm2_7b_reward": ("InternLM2-7B-Reward (outcome)", "last"),
    "internlm2_1_8b_reward": ("InternLM2-1.8B-Reward (outcome)", "last"),
}
NO_INTERVAL = (np.nan, np.nan)
RIGHT_AS_ONE = "majority_right_as_one"  # of results.json


def draw(stages: Stages) -> Drawn:
    by_rule = {stage.sweep["aggregator"]: stage.results() for stage in stages["pool"]}
    first, rules = next(iter(by_rule.values())), list(by_rule)
    if "majority" not in first:
        raise InputError(
            f"pool: {first['pool']}: no candidate has an answer, expected some for a majority vote"
        )
    N, scorers = first["n_candidates"], sorted(first["scorers"], key=[*MODELS, *first["scorers"]].index)
    model = {s: MODELS.get(s, (s, "prod"))[0] for s in scorers}
    rule_of = {s: rule if (rule := MODELS.get(s, (s, "prod"))[1]) in rules else rules[0] for s in scorers}
    differs = {
        rule: {(d["a"], d["b"]): d for d in r["differences"] if d["n"] == N} for rule, r in by_rule.items()
    }
    keys = [(s, aggregator) for s in scorers for aggregator in first["scorers"][s]]
    gain = {(s, name): differs[rules[0]][f"{s}.{name}.best_of_n", "majority"] for s, name in keys}
    length = {(s, rule): by_rule[rule]["length_correlation"][s] for s in scorers for rule in rules}
    ece = {
        (s, aggregator): x["ece"]
        for s in scorers
        for aggregator, x in first["calibration"][s]["solutions"].items()
    }

    figure, ((left, right), (below, last)) = panels(2, 2, 7.4)
    drawn = Drawn(figure, f"{first['n_problems']} problems x {N} candidates, stored step scores")
    drawn.text += ". Filled: the authors' rule, in the legend. Top right: lines weigh by exp(score / beta)"
    drawn.text += f", markers are best of n = 1, 2, 4, ... {N}"
    drawn.text += "; votes take answers as equal where their stored texts are" * bool(
        first["graded_both_ways"]
    )
    drawn.spread = (
        "nothing is trained; lines at dots: 95 % bootstrap intervals over problems, of differences paired"
    )
    panel = {
        f"best of {N} minus majority": (
            left,
            {key: (d["difference"], d["interval"]) for key, d in gain.items()},
        ),
        "ECE of solution scores": (below, {key: (x, NO_INTERVAL) for key, x in ece.items()}),
        "score and length given correctness: r": (
            last,
            {key: (x["r"], x["interval"]) for key, x in length.items()},
        ),
    }
    for title, (axes, numbers) in panel.items():
        for (s, aggregator), (
            y,
            (low, high),
        ) in numbers.items():  # of all aggregators those of `rules` are drawn
            drawn.row(title, model[s], aggregator, y, low, high, [y])
        dots(axes, title, numbers, scorers, rules, rule_of)
    for i, s in enumerate(scorers):
        tables, style = by_rule[rule_of[s]]["reward_kl"][s], line_style(i) | {"markersize": 4}
        gold = gold_against_kl(right, tables, style)
        left.plot([], [], **style, label=plain(f"{model[s]}: {rule_of[s]}"))
        for x, y in zip(tables["reweighted"]["kl"], tables["reweighted"]["accuracy"], strict=True):
            drawn.row("share right against KL", model[s], x, y, "", "", [y])
        test = gain[s, rule_of[s]]
        text = f"{model[s]}, {rule_of[s]}: best of {N} - majority {shown(test)}, p {test['p']:.2g}"
        if as_graded := differs[rule_of[s]].get((f"{s}.{rule_of[s]}.best_of_n", RIGHT_AS_ONE)):
            lead = as_graded["difference"]
            drawn.row(RIGHT_AS_ONE, model[s], rule_of[s], lead, *as_graded["interval"], [lead])
            text += f"; - {RIGHT_AS_ONE} {shown(as_graded)}, p {as_graded['p']:.2g}, {as_graded['n_differ']} problems differ"
        text += f"; share right {gold.max():.3f} at its highest, {gold[0]:.3f} at the arg max, {gold[-1]:.3f} alone"
        text += f"; ECE {ece[s, rule_of[s]]:.3f}" if (s, rule_of[s]) in ece else ""
        drawn.statements.append(f"{text}; length {shown(length[s, rule_of[s]], 'r')}")
    drawn.legend_above(left, 2)
    clear = [d["difference"] for d in gain.values() if d["p"] < 0.05]
    better, worse = sum(x > 0 for x in clear), sum(x < 0 for x in clear)
    text = f"{better} of {len(gain)} pairs of model and aggregator above majority, {worse} below"
    drawn.statements.append(f"{text}, by sign-flip tests at .05, not adjusted for their number")
    pairs = [(s, a, b) for s in scorers for a, b in itertools.combinations(rules, 2)]
    within = {(s, a, b): differs[b][f"{s}.{a}.best_of_n", f"{s}.{b}.best_of_n"] for s, a, b in pairs}
    clear = [
        f"{model[s]} {a} - {b} {shown(d)} p {d['p']:.2g}" for (s, a, b), d in within.items() if d["p"] < 0.05
    ]
    text = f"two aggregators of one model: {len(clear)} of {len(pairs)} pairs differ by the same test"
    drawn.statements.append(text + f": {', '.join(clear)}" * bool(clear))
    return drawn


def dots(axes, title: str, numbers: dict, scorers: list[str], rules: list[str], rule_of: dict[str, str]):
    """A row of `rules`, in it a dot for each scorer; numbers: {(scorer, aggregator): (y, its interval)}."""
    for i, s in enumerate(scorers):
        style = line_style(i) | NO_LINE | {"markersize": 5}
        for row, rule in enumerate(rules):
            y, interval = numbers.get((s, rule), (np.nan, NO_INTERVAL))
            place = row + 0.8 * ((i + 0.5) / len(scorers) - 0.5)
            axes.hlines(place, *floats(interval), color=style["color"], linewidth=1.2, alpha=0.6)
            axes.plot(y, place, **style, markerfacecolor=style["color"] if rule == rule_of[s] else "white")
    for row in range(0, len(rules), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="black", alpha=0.05, linewidth=0)
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.set_yticks(range(len(rules)), rules)
    axes.set(ylim=(len(rules) - 0.5, -0.5))
    axes.set_title(title, fontsize=9)


def gold_against_kl(axes, tables: dict, style: dict) -> np.ndarray:
    """Draws the share of right answers against KL; returns it by beta, from 0 (the arg max) to inf (the policy)."""
    kl, gold = (floats(tables["reweighted"][name]) for name in ("kl", "accuracy"))
    axes.plot(kl, gold, color=style["color"], linewidth=1.2)
    best = tables["best_of_n"]
    axes.plot(floats(best["kl"]), floats(best["accuracy"]), **style | NO_LINE, clip_on=False)
    square_root(axes)
    axes.set(xlim=(0, None), xticks=(0, 0.25, 1, 2, 3), xlabel="KL from the samples (nats, square-root axis)")
    axes.set_title("share right against KL", fontsize=9)
    return gold


def shown(x: dict, name: str = "difference") -> str:
    return signed(x[name], *x["interval"])
