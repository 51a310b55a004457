"""Balanced accuracy on lines that show their work and on those that hide some, by the votes of a critic, beside verifiers that do not write."""

import numpy as np

from prm_jax.figures.paper import mean_difference, results_at, run_of, values_of
from prm_jax.figures.pipeline import Stage
from prm_jax.figures.style import GREY, Drawn, legend_above, line_style, panels

WRITES, ALONE, ITSELF = "critic", "critic, verdict alone", "policy's own P(Yes)"
FEW, FULL, MANY = "PRM", "critic, 8,000 solutions", "PRM, 8,000 solutions"
TITLES = {"plain": "plain lines", "merged": "merged lines"}


def draw(stages: dict[str, list[Stage]]) -> Drawn:
    votes = values_of(stages["criticised"], "votes")
    told = {n: results_at(stages["criticised"], votes=n)[0]["runs"] for n in votes}
    scored, (itself,) = results_at(stages["scored"])[0]["runs"], results_at(stages["itself"])[0]["runs"]
    own = lambda runs, chosen: [run_of(runs, stage) for stage in chosen]
    learned = values_of(stages["critic"], "writes")
    critics = {kind: [s for s in stages["critic"] if s.sweep["writes"] == kind] for kind in learned}
    names = {"hops": WRITES, "verdict": ALONE}
    series = {name: {n: own(told[n], critics[kind]) for n in votes} for kind, name in names.items() if kind in learned}
    once = results_at(stages["once"])[0]["runs"]
    told_once = {FEW: ("few", scored), FULL: ("full", once), MANY: ("prm", scored)}  # of one vote, or of none
    series |= {name: dict.fromkeys(votes, own(runs, stages[line])) for name, (line, runs) in told_once.items()}
    tokens = {n: np.mean([tokens_a_step(run["critic"]) for run in next(iter(series.values()))[n]]) for n in votes}
    figure, (axes,) = panels(1, 2, 3.6, sharey=True)
    text = f"{scored[0]['n_solutions']:.0f} held-out solutions, lines up to the first wrong one; a merged line does two operations and hides a value; "
    text += "verifiers learned 1,000 solutions where nothing else is said, those that are level have one vote or none"
    drawn = Drawn(figure, text)
    for axis, (kind, title) in zip(axes, TITLES.items(), strict=True):
        for i, (name, runs) in enumerate(series.items()):
            y_SX = np.transpose([[run["lines"][kind]["balanced"] for run in runs[n]] for n in votes])
            drawn.curve(axis, title, name, np.log2(votes), y_SX, line_style(i))
        axis.axhline(itself["lines"][kind]["balanced"], color=GREY, linewidth=0.9, linestyle=":", label=ITSELF)
        n = scored[0]["lines"][kind]
        axis.set_title(f"{title} ({n['n']:,}, {n['wrong']:,} wrong)", fontsize=9)
        axis.set_xticks(np.log2(votes), [f"{n}\n{tokens[n]:.0f}" for n in votes])
        axis.set_xlabel("votes\ntokens written a step")
    axes[0].set_ylabel("balanced accuracy")
    legend_above(figure, axes[0], 3)
    alone = ", ".join(f"{kind} lines {itself['lines'][kind]['balanced']:.3f}" for kind in TITLES)
    drawn.statements += [*says(series, votes, tokens), f"{ITSELF}, balanced accuracy: {alone}"]
    return drawn


def tokens_a_step(critic: dict) -> float:
    """Tokens written for one step by all votes."""
    return critic["tokens"] * critic["format"]["critic"]["votes"] / critic["critiques"]


def says(series: dict, votes: list[int], tokens: dict) -> list[str]:
    first, last, lines = votes[0], votes[-1], []
    numbers = lambda name, n, kind: [run["lines"][kind]["balanced"] for run in series[name][n]]
    writes = next(iter(series))
    for kind in TITLES:
        means = ", ".join(f"{name} {np.mean(numbers(name, first, kind)):.3f}" for name in series)
        lines.append(f"{kind} lines, balanced accuracy, {first} vote: {means}")
        for one, other in ((WRITES, ALONE), (WRITES, FEW), (FULL, MANY)):
            if one in series and other in series:
                pair = numbers(one, first, kind), numbers(other, first, kind)
                lines.append(mean_difference(f"{kind} lines, {one} - {other}, {first} vote", *pair))
        if last != first:
            title = f"{kind} lines, {writes}, {last} votes - {first}"
            lines.append(mean_difference(title, numbers(writes, last, kind), numbers(writes, first, kind)))
    lost = sum(run["critic"]["no_verdict"] for n in votes for run in series[writes][n])
    every = sum(run["critic"]["critiques"] for n in votes for run in series[writes][n])
    at = ", ".join(f"{tokens[n]:.1f} at {n}" for n in votes)
    return [*lines, f"tokens written a step by votes: {at}; {lost:,} of {every:,} critiques without a verdict"]
