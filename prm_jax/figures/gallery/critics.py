"""Balanced accuracy on plain lines and on lines that hide work, by the votes of a critic, beside PRMs."""

import numpy as np

from prm_jax.figures.paper import Stages, mean_difference, results_at, run_of, values_of
from prm_jax.figures.style import GREY, Drawn, line_style, panels

WRITES, ALONE, ITSELF = "critic", "critic, verdict alone", "policy's own P(Yes)"
FEW, FULL, MANY = "PRM", "critic, all labels", "PRM, all labels"
TITLES = {"plain": "plain lines", "merged": "merged lines"}
PAIRS = ((WRITES, ALONE), (WRITES, FEW), (FULL, MANY))


def draw(stages: Stages) -> Drawn:
    votes = values_of(stages["criticised"], "votes")
    scored, once, (itself,) = (results_at(stages[line])[0]["runs"] for line in ("scored", "once", "itself"))
    series = {}  # {name: {votes: runs}}
    for kind, name in (("hops", WRITES), ("verdict", ALONE)):
        critics = [stage for stage in stages["critic"] if stage.sweep["writes"] == kind]
        for n in votes if critics else ():
            (results,) = results_at(stages["criticised"], votes=n)
            series.setdefault(name, {})[n] = [run_of(results["runs"], stage) for stage in critics]
    for name, line, runs in ((FEW, "few", scored), (FULL, "full", once), (MANY, "prm", scored)):  # one vote, or none
        series[name] = {n: [run_of(runs, stage) for stage in stages[line]] for n in votes}
    critics = next(iter(series.values()))
    counts = {n: [run["critic"] for run in critics[n]] for n in votes}
    tokens = {n: np.mean([n * c["tokens"] / c["critiques"] for c in counts[n]]) for n in votes}  # all votes on a step
    figure, (axes,) = panels(1, 2, 3.6, sharey=True)
    text = f"{scored[0]['n_solutions']:.0f} held-out solutions, lines up to the first wrong one; a merged line does "
    text += "two operations and hides a value; verifiers learned 1,000 solutions where nothing else is said, level "
    drawn = Drawn(figure, text + "lines have one vote or none")
    for axis, (kind, title) in zip(axes, TITLES.items(), strict=True):
        for i, (name, runs) in enumerate(series.items()):
            y_SX = np.transpose([balanced(runs[n], kind) for n in votes])
            drawn.curve(axis, title, name, np.log2(votes), y_SX, line_style(i))
        axis.axhline(itself["lines"][kind]["balanced"], color=GREY, linewidth=0.9, linestyle=":", label=ITSELF)
        lines = scored[0]["lines"][kind]
        axis.set_title(f"{title} ({lines['n']:,}, {lines['wrong']:,} wrong)", fontsize=9)
        axis.set_xticks(np.log2(votes), [f"{n}\n{tokens[n]:.0f}" for n in votes])
        axis.set_xlabel("votes\ntokens written a step")
    axes[0].set_ylabel("balanced accuracy")
    drawn.legend_above(axes[0], 3)
    first, last = votes[0], votes[-1]
    for kind in TITLES:
        y_S = {name: balanced(runs[first], kind) for name, runs in series.items()}
        means = ", ".join(f"{name} {np.mean(y_S[name]):.3f}" for name in series)
        drawn.statements.append(f"{kind} lines, balanced accuracy, {first} vote: {means}")
        for a, b in [pair for pair in PAIRS if set(pair) <= series.keys()]:
            drawn.statements.append(mean_difference(f"{kind} lines, {a} - {b}, {first} vote", y_S[a], y_S[b]))
        if last != first:
            title = f"{kind} lines, {next(iter(series))}, {last} votes - {first}"
            drawn.statements.append(mean_difference(title, *(balanced(critics[n], kind) for n in (last, first))))
    lost, total = (sum(c[key] for n in votes for c in counts[n]) for key in ("no_verdict", "critiques"))
    written = f"tokens written a step by votes: {', '.join(f'{tokens[n]:.1f} at {n}' for n in votes)}"
    untaught = ", ".join(f"{kind} lines {itself['lines'][kind]['balanced']:.3f}" for kind in TITLES)
    drawn.statements.append(f"{written}; {lost:,} of {total:,} critiques without a verdict")
    drawn.statements.append(f"{ITSELF}, balanced accuracy: {untaught}")
    return drawn


def balanced(runs: list[dict], kind: str) -> list[float]:
    return [run["lines"][kind]["balanced"] for run in runs]
