"""What the figures of papers have in common: curves with their bands, rows with their intervals."""

from collections.abc import Sequence

import pandas as pd

from prm_jax.figures import style


def draw_panels(table: pd.DataFrame, names: Sequence[str], xlabel: str, log: bool = False):
    """Axes for each of these panels: curves over x in their bands."""
    table = table[table.panel.isin(names) & table.x.notna()]
    styles = style.role_styles(table.series.unique())
    rows, columns = (1, len(names)) if len(names) < 3 else (len(names), 1)  # legible on a telephone
    figure, grid = style.panels(rows, columns, 3.2 * rows, 1 + 3.2 * columns)
    for name, axes in zip(names, grid.flat, strict=True):
        for series, points in table[table.panel == name].groupby("series", sort=False):
            every = 1 + len(points) // 12
            axes.plot(points.x, points.y, label=style.plain(series), markevery=every, **styles[series])
            style.band(axes, points.x, points.low, points.high, styles[series])
        if log:
            style.size_axis(axes, sorted(table.x.astype(int).unique()), xlabel)
        axes.set(xlabel=xlabel, ylabel=name)
        style.label_ends(axes)
    return figure


def draw_rows(table: pd.DataFrame, names: Sequence[str]):
    """Axes for each of these panels: a row a series, with its interval."""
    table = table[table.panel.isin(names)]
    height = 0.8 + 0.24 * table.series.nunique()
    figure, grid = style.panels(1, len(names), height, 2 + 2.2 * len(names), sharey=True)
    for name, axes in zip(names, grid[0], strict=True):
        for row in table[table.panel == name].itertuples():
            colour = style.ROLES[style.role_of(row.series) or "PRM"][0]
            ends = [[row.y - row.low], [row.high - row.y]]
            axes.errorbar(row.y, style.plain(row.series), xerr=ends, color=colour, marker="o")
        axes.set_xlabel(name)
    grid[0, 0].invert_yaxis()
    return figure
