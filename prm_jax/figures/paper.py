"""The figures of papers: one drawing of the results of a figure's stages, and one table of its numbers.

A drawing is a function of Stages that returns Drawn (figures/style.py).
"""

import csv
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from prm_jax.figures.pipeline import Comparison, Stage
from prm_jax.figures.style import FEWEST_SEEDS, GREY, Drawn, floats, plain, save
from prm_jax.launch import run_folder
from prm_jax.stats import holm, sign_flip_test

Stages = dict[str, list[Stage]]  # {line of a figure: its stages}
DASHES = {"majority vote": "--", "the policy's likelihood": "-.", "a candidate at random": ":"}
UNTAUGHT = "dashed: majority vote, dash-dotted: the policy's likelihood, dotted: a candidate at random"


def results_at(stages: list[Stage], **sweep) -> list[dict]:
    """The results of the stages with these values of sweep keys, in the order of the figure."""
    return [
        stage.results() for stage in stages if all(stage.sweep[key] == value for key, value in sweep.items())
    ]


def values_of(stages: list[Stage], key: str) -> list:
    """The values of a sweep key, each once."""
    return list(dict.fromkeys(stage.sweep[key] for stage in stages))


def is_of(numbers: dict, stage: Stage) -> bool:
    """Whether numbers are those of the verifier that a stage has trained."""
    return numbers["verifier"].rsplit(" step ", 1)[0].endswith(f"-{stage.digest}")


def scorer_of(results: dict, stage: Stage) -> str:
    """The name that a verifier's scores have in the results of a pool: prm_2."""
    return next(name for name, verifier in results["verifiers"].items() if is_of(verifier, stage))


def run_of(runs: list[dict], stage: Stage) -> dict:
    """The run of task=steps that measured a stage's verifier."""
    return next(run for run in runs if is_of(run, stage))


def share_solved(
    pool: dict, stage: Stage, n: int, aggregator: str | None = None, rule: str = "best_of_n"
) -> float:
    """The share of problems solved at n under a stage's verifier, by its headline aggregator or by `aggregator`."""
    scorer = scorer_of(pool, stage)
    return pool["scorers"][scorer][aggregator or pool["headline"][scorer]][rule][str(n)]


def untaught(pools: Sequence[dict], n: int) -> dict[str, float]:
    """{name: mean share solved at n} of what nobody has taught to verify; the likelihood where pools have log p."""
    shares = {
        "majority vote": [pool["majority"][str(n)] for pool in pools],
        "the policy's likelihood": [
            x["prod"]["best_of_n"][str(n)] for p in pools if (x := p["scorers"].get("policy"))
        ],
        "a candidate at random": [pool["mean"] for pool in pools],
    }
    return {name: float(np.mean(values)) for name, values in shares.items() if values}


def draw_untaught(line: Callable, pools: Sequence[dict], n: int):
    """Draws these shares by `line`, such as axes.axhline, as UNTAUGHT says."""
    for name, share in untaught(pools, n).items():
        line(share, color=GREY, linewidth=0.8, linestyle=DASHES[name])


def signed(x: float, low: float, high: float) -> str:
    return f"{x:+.3f} [{low:+.3f}, {high:+.3f}]"


def over(value_S) -> str:
    """Says what an interval over runs is (style.over_seeds)."""
    return (
        f"{'95 % t interval' if len(value_S) >= FEWEST_SEEDS else 'lowest to highest'}, {len(value_S)} runs"
    )


def spread_text(spread: str, n_seeds: int) -> str:
    """A caption's words for a spread: few runs have no t interval (style.over_seeds)."""
    instead = "none, of one run" if n_seeds == 1 else "from the lowest to the highest"
    few = 0 < n_seeds < FEWEST_SEEDS
    return re.sub("95 % t intervals?( of their mean)?", instead, spread) if few else spread


def compare(drawn: Drawn, comparisons: Sequence[Comparison]):
    """Adds the declared differences to a drawing's table and statements: the mean over runs, paired by seed, its interval
    and an exact sign-flip test. The first is the primary one; Holm's correction is over the others. What the table lacks,
    since the user chose some arms alone, is named."""
    differences, left_out = {}, []
    for c in comparisons:
        at_x = [row for row in drawn.rows if c.x is None or row["x"] == c.x]
        places = (c.panel, c.a), (c.b_panel or c.panel, c.b)
        pair = [[r["values"].split() for r in at_x if (r["panel"], r["series"]) == place] for place in places]
        if all(pair):
            differences[c] = np.subtract(*(floats(values[-1]) for values in pair))
        else:
            left_out.append(f"left out: {c.panel}: {c.a} - {c.b}: no such rows in the table")
    p = {c: sign_flip_test(value_S)[0] for c, value_S in differences.items()}
    secondary = [c for c in differences if c != comparisons[0]]
    tests = {c: f", by Holm {x:.3f}" for c, x in zip(secondary, holm([p[c] for c in secondary]), strict=True)}
    for c, value_S in differences.items():
        name, x = (
            f"{c.a} - {c.b}{c.b_panel and f' ({c.b_panel})' or ''}",
            "" if c.x is None else f" at {c.x:g}",
        )
        interval = drawn.number(f"difference of {c.panel}", name, value_S, "" if c.x is None else c.x)
        test, kind = (
            f"p {p[c]:.3f}{tests.get(c, '')} ({over(value_S)})",
            "secondary" if c in tests else "primary",
        )
        drawn.statements.append(f"{kind}: {c.panel}{x}: {name}: {signed(*interval)}, {test}")
    drawn.statements += left_out


def draw(
    drawing: Callable,
    name: str,
    stages: Stages,
    overrides: dict,
    folder: Path,
    comparisons: Sequence[Comparison] = (),
) -> list[Path]:
    """Writes the figure as PNG and PDF, its numbers as CSV, and figure.json: its statements, and what it rests on."""
    drawn = drawing(stages)
    compare(drawn, comparisons)
    every = list({stage.folder: stage for line in stages.values() for stage in line}.values())
    sources = provenance(every, name, overrides)
    n_seeds = len({stage.sweep["seed"] for stage in every if "seed" in stage.sweep})
    text = f"{drawn.text}. {sources['command']}: {sources['seeds']}; {spread_text(drawn.spread, n_seeds)}. "
    text += f"Cost: {sources['cost']}. Commit {', '.join(sources['commits'])}."
    text = plain(textwrap.fill(text, int(16.5 * drawn.figure.get_figwidth())))
    drawn.figure.text(0, -0.02, text, fontsize=7.5, color=GREY, va="top")
    folder.mkdir(parents=True, exist_ok=True)
    drawn.figure.savefig(folder / f"{name}.pdf")
    png = save(drawn.figure, folder / f"{name}.png")
    with open(folder / f"{name}.csv", "w", newline="") as file:
        table = csv.DictWriter(file, ["panel", "series", "x", "y", "low", "high", "runs", "values"])
        table.writeheader()
        table.writerows(drawn.rows)
    folders = {stage.name: str(stage.folder) for stage in every}
    run_folder.write_json(folder / "figure.json", {**sources, "says": drawn.statements, "stages": folders})
    print("\n".join(f"says        {line}" for line in drawn.statements))
    return [png, folder / f"{name}.csv"]


def provenance(every: list[Stage], name: str, overrides: dict[str, str]) -> dict:
    """Command, seeds, cost and commits of the stages."""
    records = [stage.record() for stage in every]
    seeds = list(dict.fromkeys(stage.sweep["seed"] for stage in every if "seed" in stage.sweep))
    seconds, cpu_seconds = (sum(record[key] for record in records) for key in ("seconds", "cpu_seconds"))
    n_resumed = sum(record["resumed"] for record in records)
    cost = f"{len(every)} commands, {seconds / 60:.1f} minutes one by one, {cpu_seconds / 60:.1f} CPU minutes"
    commits = (run_folder.short_commit(record["commit"]) for record in records)
    return {
        "seconds": seconds, "cpu_seconds": cpu_seconds, "commits": list(dict.fromkeys(commits)),
        "command": " ".join([f"name={name}", *(f"{key}={value}" for key, value in overrides.items())]),
        "seeds": f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds)) or 0}",
        "cost": cost + (f"; {n_resumed} were stopped and resumed, their time before is not counted" if n_resumed else ""),
    }  # fmt: skip
