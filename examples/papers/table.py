"""What the figures share: reading results, the table of numbers, declared differences, two drawings.

Dimension key: S runs that differ in their seed, X places on an axis
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from prm_jax.figures.style import FEWEST_SEEDS, line_style, over_seeds, panels, plain
from prm_jax.stats import holm, sign_flip_test

COLUMNS = ("panel", "series", "x", "y", "low", "high", "runs", "values")


class Difference(NamedTuple):
    """A declared difference a - b of two series of a panel (b's may be another), at x or where they end."""

    panel: str
    a: str
    b: str
    x: float | None = None
    b_panel: str | None = None


@dataclasses.dataclass(frozen=True)
class Figure:
    stages: dict[str, str]  # {line: its command}
    gather: Callable  # {line: its stages} to a Table
    draw: Callable  # a table, as read, to a matplotlib figure
    compare: Sequence[Difference] = ()  # the primary difference first
    sweep: dict[str, dict | Sequence] = dataclasses.field(default_factory=lambda: {"seed": range(8)})
    also: str = ""  # words of every Hydra command


class Table:
    """Rows (panel, series, x) with the mean over runs, its interval, and the value of each run."""

    def __init__(self):
        self.rows = []

    def number(self, panel: str, series: str, value_S, x: float | str = "", ends: Sequence[float] = ()):
        """Adds a row. ends: of an interval that is not one over the runs."""
        value_S = np.array(value_S, float)
        mean, *of_runs = (float(f"{number:.6g}") for number in over_seeds(value_S))
        low, high = ends or of_runs
        values = " ".join(f"{value:.6g}" for value in value_S)
        row = (panel, series, x, mean, low, high, int(np.isfinite(value_S).sum()), values)
        self.rows.append(dict(zip(COLUMNS, row, strict=True)))

    def curve(self, panel: str, series: str, x_X, value_SX):
        for x, value_S in zip(x_X, np.transpose(value_SX), strict=True):
            self.number(panel, series, value_S, float(f"{x:.6g}"))

    def write(self, path: Path):
        pd.DataFrame(self.rows).to_csv(path, index=False, na_rep="nan")


def read_table(path: Path) -> pd.DataFrame:
    """The rows of a file; x is nan where it is a word or missing, values are an array of the runs."""
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    for name in ("x", "y", "low", "high"):
        table[name] = pd.to_numeric(table[name], errors="coerce")
    table["values"] = [np.array(text.split(), float) for text in table["values"]]
    return table


def results_of(stages: Sequence) -> list[dict]:
    return [stage.results() for stage in stages]


def by_value(stages: Sequence, key: str) -> dict:
    """{value of a sweep key: its stages}."""
    values = dict.fromkeys(stage.sweep[key] for stage in stages)
    return {value: [stage for stage in stages if stage.sweep[key] == value] for value in values}


def run_of(runs: list[dict], stage) -> dict:
    """The run of task=steps that measured a stage's verifier."""
    return next(run for run in runs if stage.made(run["verifier"]))


def scorer_of(pool: dict, stage) -> str:
    """The name that a verifier's scores have in the results of a pool: prm_2."""
    return next(name for name, x in pool["verifiers"].items() if stage.made(x["verifier"]))


def share_solved(pool: dict, stage, n: int, how: str | None = None, rule: str = "best_of_n") -> float:
    """The share of problems solved at n under a stage's verifier, by its headline aggregator or by `how`."""
    scorer = scorer_of(pool, stage)
    return pool["scorers"][scorer][how or pool["headline"][scorer]][rule][str(n)]


def differences(table: pd.DataFrame, declared: Sequence[Difference]) -> list[tuple[Difference, np.ndarray]]:
    """The declared differences of the table in each run; what lacks a series is left out."""
    found = []
    for item in declared:
        at_x = table if item.x is None else table[table.x == item.x]
        places = (item.panel, item.a), (item.b_panel or item.panel, item.b)
        pair = [at_x[(at_x.panel == panel) & (at_x.series == name)]["values"] for panel, name in places]
        if all(map(len, pair)):
            found.append((item, pair[0].iloc[-1] - pair[1].iloc[-1]))
    return found


def statements(table: pd.DataFrame, declared: Sequence[Difference]) -> list[str]:
    """A line for each difference: its mean over runs paired by seed, its interval, an exact sign-flip test.
    The first declared one is primary; Holm's correction is over the others."""
    found = differences(table, declared)
    p = {item: sign_flip_test(difference_S)[0] for item, difference_S in found}
    secondary = [item for item in p if item != declared[0]]
    by_holm = dict(zip(secondary, holm([p[item] for item in secondary]), strict=True))
    lines = []
    for item, difference_S in found:
        mean, low, high = over_seeds(difference_S)
        at = "" if item.x is None else f" at {item.x:g}"
        other = f" ({item.b_panel})" if item.b_panel else ""
        spread = "95 % t interval" if len(difference_S) >= FEWEST_SEEDS else "lowest to highest"
        test = f"p {p[item]:.3f}" + (f", by Holm {by_holm[item]:.3f}" if item in by_holm else "")
        kind = "secondary" if item in by_holm else "primary"
        number = f"{mean:+.3f} [{low:+.3f}, {high:+.3f}], {test} ({spread}, {len(difference_S)} runs)"
        lines.append(f"{kind}: {item.panel}{at}: {item.a} - {item.b}{other}: {number}")
    return lines


def curves(shown: Sequence[str], xlabel: str, scale: str = "linear") -> Callable:
    """Returns a drawing of a table with axes for each panel of `shown`: runs thin, their mean bold, its
    interval a band. scale: linear, log or sqrt (of a KL, along which best of n is nearly straight)."""
    return functools.partial(_draw_curves, shown, xlabel, scale)


def _draw_curves(panels_shown: Sequence[str], xlabel: str, scale: str, table: pd.DataFrame):
    shown = table[table.panel.isin(panels_shown)].dropna(subset="x")
    shown = shown[shown.groupby(["panel", "series"]).x.transform("size") > 1]
    names = [name for name in panels_shown if name in set(shown.panel)]
    series, n_lines = list(dict.fromkeys(shown.series)), -(-len(names) // 2)
    figure, grid = panels(n_lines, min(2, len(names)), 1 + 2.6 * n_lines)
    for name, axes in zip(names, grid.flat, strict=False):
        for label, rows in shown[shown.panel == name].groupby("series", sort=False):
            style = line_style(series.index(label))
            axes.plot(rows.x, np.stack(rows["values"]), color=style["color"], linewidth=0.5, alpha=0.35)
            axes.fill_between(rows.x, rows.low, rows.high, color=style["color"], alpha=0.12)
            style["marker"] = style["marker"] if len(rows) < 10 else ""
            axes.plot(rows.x, rows.y, **style, label=plain(label))
        axes.set_title(name, fontsize=9)
        axes.set_xlabel(xlabel)
        if scale == "log":
            axes.set_xscale("log", base=2)
        elif scale == "sqrt":
            axes.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0)), np.square))
    for axes in grid.flat[len(names) :]:
        axes.axis("off")
    add_legend(figure)
    return figure


def dots(columns: Sequence[Sequence[str]], ends: tuple[str, ...] = ("",)) -> Callable:
    """Returns a drawing of a table with a row for each series (whose name ends so), axes for each of
    `columns`, a colour for each panel that it lists: runs small, their mean large, its interval a bar."""
    return functools.partial(_draw_dots, columns, ends)


def _draw_dots(columns: Sequence[Sequence[str]], ends: tuple[str, ...], table: pd.DataFrame):
    listed = [panel for column in columns for panel in column]
    shown = table[table.panel.isin(listed) & table.series.str.endswith(ends)]
    names = list(dict.fromkeys(shown.series))
    figure, grid = panels(1, len(columns), 1.6 + 0.3 * len(names), 1.6 + 2.8 * len(columns), sharey=True)
    for axes, column in zip(grid[0], columns, strict=True):
        for i, panel in enumerate(column):
            style = line_style(i) | {"linestyle": "none"}
            axes.plot([], [], **style, label=panel)
            for row in shown[shown.panel == panel].itertuples():
                y = names.index(row.series) + 0.26 * (i - (len(column) - 1) / 2)
                axes.plot([row.low, row.high], [y, y], color=style["color"], linewidth=1.2)
                axes.plot(row.values, np.full(len(row.values), y), **style | {"alpha": 0.45, "markersize": 3})
                axes.plot(row.y, y, **style | {"markersize": 6})
        axes.set_title(column[0].split(",")[0], fontsize=9)
        axes.set_yticks(range(len(names)), map(plain, names), fontsize=8)
        axes.set_ylim(len(names) - 0.5, -0.5)
    if len(listed) > len(columns):
        add_legend(figure)
    return figure


def add_legend(figure):
    """One legend for all axes, a name once."""
    handles = {}
    for axes in figure.axes:
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside upper center", ncols=3, fontsize=8)
