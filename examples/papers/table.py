"""What the figures share: the table of numbers, reading results, declared differences, two drawings.

Dimension key: S runs that differ in their seed, X places on an axis
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from prm_jax import rerank
from prm_jax.data.pools import read_pool
from prm_jax.evals.pool_arrays import Pool, log_scores, pool_arrays
from prm_jax.figures.style import band, line_style, over_seeds, panels, plain
from prm_jax.stats import sign_flip_test
from prm_jax.tasks.chain import CHAIN


class Difference(NamedTuple):
    """A declared difference a - b of two series of a panel (b's may be another), at x or where they end."""

    panel: str
    a: str
    b: str
    x: float | None = None
    b_panel: str | None = None


@dataclasses.dataclass(frozen=True)
class Figure:
    stages: dict[str, str]  # {line: its command}, each behind the lines that it names
    gather: Callable  # {line: its stages} to a Table
    draw: Callable  # a table, as read, to a matplotlib figure
    compare: Sequence[Difference] = ()  # the primary difference first
    sweep: dict[str, dict | Sequence] = dataclasses.field(default_factory=lambda: {"seed": range(8)})


class Table(list):
    """Rows (panel, series, x) with the mean over runs, its interval, and the value of each run."""

    def number(self, panel: str, series: str, value_S, x: float | None = None, ends: Sequence[float] = ()):
        """Adds a row. ends: of an interval that is not one over the runs."""
        value_S = np.array(value_S, float)
        mean, *of_runs = over_seeds(value_S)
        low, high = ends or of_runs
        row = {"panel": panel, "series": series, "x": x, "y": mean, "low": low, "high": high}
        values = " ".join(f"{value:.6g}" for value in value_S)
        self.append(row | {"runs": np.isfinite(value_S).sum(), "values": values})

    def curve(self, panel: str, series: str, x_X, value_SX):
        for x, value_S in zip(x_X, np.transpose(value_SX), strict=True):
            self.number(panel, series, value_S, x)

    def write(self, path: Path, declared: Sequence[Difference]):
        """Writes the rows, behind them the declared differences of the values as they are written."""
        pd.DataFrame(self).to_csv(path, index=False, float_format="%.6g")
        for item, difference_S in differences(read_table(path), declared).items():
            self.number(f"difference of {item.panel}", f"{item.a} - {item.b}", difference_S, item.x)
        pd.DataFrame(self).to_csv(path, index=False, float_format="%.6g")


def read_table(path: Path) -> pd.DataFrame:
    """The rows of a file; `values` are an array of the runs."""
    return pd.read_csv(path, converters={"values": lambda text: np.array(text.split(), float)})


def by_value(stages: Sequence, key: str) -> dict:
    """{value of a sweep key: its stages}."""
    values = {}
    for stage in stages:
        values.setdefault(stage.sweep[key], []).append(stage)
    return values


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


def pool_scores(pool: Pool, scorer: str, how: str) -> np.ndarray:
    """score_PN of a pool's candidates by an aggregator; -inf where one cannot win."""
    step_PNT, mask_PNT, unit = log_scores(pool, scorer, pool.unit(scorer, "probability"))
    score_PN = np.asarray(rerank.aggregate(step_PNT, mask_PNT, how, unit=unit), float)
    return np.where(pool.eligible_PN, score_PN, -np.inf)


def written_pool(stage, with_labels: bool = False) -> Pool:
    """The pool that a stage of task=best_of_n has scored and written; with the exact labels of its steps."""
    pool = read_pool(stage.folder / "pool.jsonl.gz")
    rows = {(p.problem, c.steps) for p in pool for c in p.candidates} if with_labels else ()
    return pool_arrays(pool, step_labels={row: CHAIN.step_labels(*row) for row in rows})


def differences(table: pd.DataFrame, declared: Sequence[Difference]) -> dict[Difference, np.ndarray]:
    """The declared differences of the table in each run."""

    def values(panel: str, series: str, x: float | None) -> np.ndarray:
        rows = table[(table.panel == panel) & (table.series == series)]
        return (rows if x is None else rows[rows.x == x])["values"].iloc[-1]

    return {d: values(d.panel, d.a, d.x) - values(d.b_panel or d.panel, d.b, d.x) for d in declared}


def statements(found: dict[Difference, np.ndarray]) -> list[str]:
    """A line for each difference: its mean over runs paired by seed, its interval, an exact sign-flip test.
    The first one is primary; Holm's correction (1979) is over the others."""
    lines = []
    p_m = np.array([sign_flip_test(difference_S)[0] for difference_S in found.values()])
    order = 1 + np.argsort(p_m[1:], kind="stable")
    holm_m = p_m.copy()  # the i-th smallest, from 0, times m - i, and no smaller than the one before
    holm_m[order] = np.maximum.accumulate(p_m[order] * np.arange(len(order), 0, -1)).clip(max=1)
    for i, (item, difference_S) in enumerate(found.items()):
        mean, low, high = over_seeds(difference_S)
        place = item.panel + ("" if item.x is None else f" at {item.x:g}")
        other = f" ({item.b_panel})" if item.b_panel else ""
        kind, test = ("secondary", f", by Holm {holm_m[i]:.3f}") if i else ("primary", "")
        number = f"{mean:+.3f} [{low:+.3f}, {high:+.3f}], p {p_m[i]:.3f}{test} ({len(difference_S)} runs)"
        lines.append(f"{kind}: {place}: {item.a} - {item.b}{other}: {number}")
    return lines


def curves(names: Sequence[str], xlabel: str, log: bool = False) -> Callable:
    """Returns a drawing of a table with axes for each panel of `names`: runs thin, their mean bold, its
    interval a band."""

    def draw(table: pd.DataFrame):
        shown = table[table.panel.isin(names)].dropna(subset="x")
        shown = shown[shown.groupby(["panel", "series"]).x.transform("size") > 1]
        titles = [name for name in names if name in set(shown.panel)]
        styles = {series: line_style(i) for i, series in enumerate(shown.series.unique())}
        n_lines = -(-len(titles) // 2)
        figure, grid = panels(n_lines, min(2, len(titles)), 1 + 2.6 * n_lines)
        means = {}
        for title, axes in zip(titles, grid.flat, strict=False):
            axes.set(title=title, xlabel=xlabel)
            if log:
                axes.set_xscale("log", base=2)
            for name, rows in shown[shown.panel == title].groupby("series", sort=False):
                style = styles[name] | ({} if len(rows) < 10 else {"marker": ""})
                axes.plot(rows.x, np.stack(rows["values"]), color=style["color"], linewidth=0.5, alpha=0.35)
                band(axes, rows.x, rows.low, rows.high, style)
                (means[plain(name)],) = axes.plot(rows.x, rows.y, **style)
        for axes in grid.flat[len(titles) :]:
            axes.axis("off")
        figure.legend(means.values(), means, loc="outside upper center", ncols=3)
        return figure

    return draw


def dots(columns: list[list[str]], ends: tuple[str, ...] = ("",)) -> Callable:
    """Returns a drawing of a table with a row for each series (whose name ends so), axes for each of
    `columns`, a colour for each panel that it lists: runs small, their mean large, its interval a bar."""

    def draw(table: pd.DataFrame):
        shown = table[table.panel.isin([*itertools.chain(*columns)]) & table.series.str.endswith(ends)]
        names = list(shown.series.unique())
        figure, grid = panels(1, len(columns), 1.6 + 0.3 * len(names), 1.6 + 2.8 * len(columns), sharey=True)
        for axes, column in zip(grid[0], columns, strict=True):
            for i, panel in enumerate(column):
                rows = shown[shown.panel == panel]
                place = rows.series.map(names.index) + 0.26 * (i - (len(column) - 1) / 2)
                style = line_style(i) | {"linestyle": "none"}
                axes.hlines(place, rows.low, rows.high, color=style["color"], linewidth=1.2)
                for y, value_S in zip(place, rows["values"], strict=True):
                    axes.plot(value_S, np.full(len(value_S), y), **style | {"alpha": 0.45, "markersize": 3})
                axes.plot(rows.y, place, **style | {"markersize": 6}, label=panel)
            axes.set_title(column[0].split(",")[0])
            axes.set_yticks(range(len(names)), map(plain, names), fontsize=8)
            axes.set_ylim(len(names) - 0.5, -0.5)
        if max(map(len, columns)) > 1:
            figure.legend(loc="outside upper center", ncols=3)
        return figure

    return draw
