"""The figures of papers: what the stages of a figure (figures/pipeline.py) found, in one drawing and one table of its numbers.

A drawing is a function of {line: stages} that returns Drawn. Seeds: thin lines are runs, a bold line is their mean, a band its
95 % t interval (of two runs, where that would be thirteen times their distance, from the lower to the higher).
"""

import csv
import dataclasses
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from prm_jax.figures.pipeline import Stage
from prm_jax.figures.style import GREY, floats, plain, save
from prm_jax.figures.sweep_table import over_seeds
from prm_jax.launch import run_folder

WIDTH = 6.4  # inches: legible at 600 pixels


@dataclasses.dataclass
class Drawn:
    """A drawing, what its caption says of it, the rows of its table, and what it says in words: one line a comparison."""

    figure: plt.Figure
    text: str
    rows: list[dict] = dataclasses.field(default_factory=list)
    says: list[str] = dataclasses.field(default_factory=list)
    spread: str = "thin lines: runs, bands: 95 % t intervals of their mean"

    def curve(self, axes, panel: str, series: str, x, y_SX, style: dict, share: bool = True, band: bool = True):
        """The runs of one setting, a row of y_SX each, and a row of the table for each x; the band of a share ends at 0 and 1."""
        mean_X, low_X, high_X = over_seeds(y_SX)
        x = np.asarray(x, float)
        for y_X in y_SX if len(y_SX) > 1 else ():
            axes.plot(x, y_X, "." * (len(x) == 1), color=style["color"], linewidth=0.5, alpha=0.35)
        if len(y_SX) > 1 and band:
            drawn = np.clip((low_X, high_X), 0, 1) if share else (low_X, high_X)
            axes.fill_between(x, *drawn, color=style["color"], alpha=0.12, linewidth=0)
        axes.plot(x, mean_X, **style, label=plain(series))
        values = zip(x.tolist(), mean_X, low_X, high_X, np.transpose(y_SX).tolist(), strict=True)
        for at, mean, low, high, runs in values:
            self.row(panel, series, at, mean, low, high, runs)

    def dots(self, axes, panel: str, series: str, at: float, value_S, style: dict):
        """The runs of one setting at a height, their mean and its interval, and a row of the table."""
        (mean,), (low,), (high,) = over_seeds(np.reshape(value_S, (-1, 1)))
        style = style | {"linestyle": "none"}
        axes.plot([low, high], [at, at], color=style["color"], linewidth=1.2)
        axes.plot(value_S, [at] * len(value_S), **style | {"alpha": 0.45, "markersize": 3})
        axes.plot(mean, at, **style | {"markersize": 6})
        self.row(panel, series, "", mean, low, high, value_S)

    def row(self, panel: str, series: str, x, y, low, high, value_S):
        """A row of the table: a number, its interval, how many runs have it, and what each has."""
        value_S, own = floats(value_S), {"panel": panel, "series": series, "x": x, "y": y, "low": low, "high": high}
        values = " ".join(f"{value:.6g}" for value in value_S)
        self.rows.append(own | {"runs": int(np.isfinite(value_S).sum()), "values": values})


def of(stages: list[Stage], **at) -> list[dict]:
    """The results of the stages at these keys, in the order of the figure."""
    return [stage.results() for stage in stages if all(stage.at[key] == value for key, value in at.items())]


def values_of(stages: list[Stage], key: str) -> list:
    return list(dict.fromkeys(stage.at[key] for stage in stages))


def is_of(about: dict, stage: Stage) -> bool:
    """Whether numbers are those of the verifier that a stage has trained."""
    return about["verifier"].rsplit(" step ", 1)[0].endswith(f"-{stage.digest}")


def scorer_of(results: dict, stage: Stage) -> str:
    """The name that a verifier's scores have in the results of a pool: prm_2."""
    return next(name for name, about in results["verifiers"].items() if is_of(about, stage))


def run_of(runs: list[dict], stage: Stage) -> dict:
    """The run of task=steps that measured a stage's verifier."""
    return next(run for run in runs if is_of(run, stage))


def selection(results: dict, scorer: str) -> str:
    return f"{scorer}.{results['headline'][scorer]}.best_of_n"


def difference(title: str, pairs: list[tuple[dict, str, str]], n: int) -> str:
    """Paired differences a - b of best-of-n by (results, a, b), one a run, as results.json has them."""
    runs = []
    for results, a, b in pairs:
        d = next(d for d in results["differences"] if {d["a"], d["b"]} == {a, b} and d["n"] == n)
        sign = 1 if d["a"] == a else -1
        runs.append(signed(sign * d["difference"], *sorted(sign * x for x in d["interval"])))
    return f"{title} at n = {n}: {', '.join(runs)} (95 % bootstrap over problems, a run each)"


def signed(x: float, low: float, high: float) -> str:
    return f"{x:+.3f} [{low:+.3f}, {high:+.3f}]"


def mean_difference(title: str, a_S, b_S) -> str:
    """The mean of a - b over runs that differ in their seed alone, and its interval (of two runs their own values)."""
    (mean,), (low,), (high,) = over_seeds(np.subtract(a_S, b_S)[:, None])
    if len(a_S) == 1:
        return f"{title}: {mean:+.3f} (1 run)"
    return f"{title}: {signed(mean, low, high)} ({'95 % t interval, ' * (len(a_S) > 2)}{len(a_S)} runs)"


def size_axis(axes, sizes, label: str):
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
    axes.minorticks_off()
    axes.set_xlabel(label)


def panels(rows: int, columns: int, height: float, **kwargs):
    return plt.subplots(rows, columns, figsize=(WIDTH, height), dpi=125, squeeze=False, **kwargs)


def legend_above(figure, axes, columns: int):
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=columns, fontsize=8)


def said_of(spread: str, n_seeds: int) -> str:
    """What the caption says of a spread: fewer than three runs have no t interval (sweep_table.over_seeds)."""
    instead = {1: "none, of one run", 2: "from the lower to the higher"}
    return re.sub("95 % t intervals?( of their mean)?", lambda t: instead.get(n_seeds, t[0]), spread)


def draw(drawing: Callable, name: str, stages: dict[str, list[Stage]], overrides: dict, folder: Path) -> list[Path]:
    """The figure as PNG, its numbers as CSV, and figure.json: what it says and what it rests on."""
    drawn = drawing(stages)
    every = list({stage.folder: stage for line in stages.values() for stage in line}.values())
    about = provenance(every, name, overrides)
    n_seeds = len({stage.at["seed"] for stage in every if "seed" in stage.at})
    text = f"{drawn.text}. {about['command']}: {about['seeds']}; {said_of(drawn.spread, n_seeds)}. "
    text += f"Cost: {about['cost']}. Commit {', '.join(about['commits'])}."
    drawn.figure.text(0, -0.02, plain(textwrap.fill(text, int(16.5 * WIDTH))), fontsize=7.5, color=GREY, va="top")
    folder.mkdir(parents=True, exist_ok=True)
    drawn.figure.savefig(folder / f"{name}.pdf")
    paths = [save(drawn.figure, folder / f"{name}.png")]
    with open(folder / f"{name}.csv", "w", newline="") as file:
        table = csv.DictWriter(file, ["panel", "series", "x", "y", "low", "high", "runs", "values"])
        table.writeheader()
        table.writerows(drawn.rows)
    about |= {"says": drawn.says, "stages": {stage.name: str(stage.folder) for stage in every}}
    run_folder.write_json(folder / "figure.json", about)
    print("\n".join(f"says        {line}" for line in drawn.says))
    return [*paths, folder / f"{name}.csv"]


def provenance(every: list[Stage], name: str, overrides: dict[str, str]) -> dict:
    """Command, seeds, cost and commits of the stages."""
    records = [stage.record() for stage in every]
    seeds = list(dict.fromkeys(stage.at["seed"] for stage in every if "seed" in stage.at))
    total = {key: sum(r[key] for r in records) for key in ("seconds", "cpu_seconds")}
    cut = sum(r["resumed"] for r in records)
    wall, cpu = (f"{seconds / 60:.1f}" for seconds in total.values())
    cost = f"{len(every)} commands, {wall} minutes one by one, {cpu} CPU minutes"
    cost += f", more before {cut} of them were stopped" if cut else ""
    commits = dict.fromkeys(r["commit"][:10] + "+" * r["commit"].endswith("+") for r in records)
    command = " ".join([f"name={name}", *(f"{key}={value}" for key, value in overrides.items())])
    listed = f"seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"seed {', '.join(map(str, seeds)) or 0}"
    return total | {"command": command, "seeds": listed, "cost": cost, "commits": list(commits)}
