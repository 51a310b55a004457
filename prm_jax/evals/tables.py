"""Intervals and spreads of an evaluation's numbers, and how tables are printed."""

from collections.abc import Sequence

import numpy as np

from prm_jax.stats import bootstrap_interval

SPREAD = {"median": np.median, "lowest": np.min, "highest": np.max, "mean": np.mean}


def interval_of(statistic, problems, seed: int, *arrays):
    """95 % bootstrap interval over problems of statistic(*arrays), whose arrays have an entry a row."""
    return bootstrap_interval(lambda rows: statistic(*(x[rows] for x in arrays)), problems, seed=seed)


def spread(values: Sequence[float]) -> dict[str, float]:
    """SPREAD of one number over runs that differ in their seed alone; sd: standard deviation of the
    sample."""
    return {name: float(f(values)) for name, f in SPREAD.items()} | {"sd": float(np.std(values, ddof=1))}


def cell(value, digits: int) -> str:
    """A number, the two ends of an interval (none where there are too few problems), or a text."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return (
            f"[{value[0]:.{digits}f}, {value[1]:.{digits}f}]" if np.isfinite(value).all() else "no interval"
        )
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def p_text(p: float) -> str:
    return f"{p:.3f}" if p >= 0.0005 else "<0.001"


def show_table(title: str, rows: dict[str, dict], digits: int = 4):
    """Prints {row: {column: value}}; a row may lack columns."""
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    texts = {
        name: [cell(row[column], digits) if column in row else "" for column in columns]
        for name, row in rows.items()
    }
    first = max(len(name) for name in (title, *rows)) + 2
    widths = [max(map(len, column)) + 2 for column in zip(columns, *texts.values(), strict=True)]
    print(f"{title:<{first}}" + "".join(f"{name:>{w}}" for name, w in zip(columns, widths, strict=True)))
    for name, row in texts.items():
        print(f"  {name:<{first - 2}}" + "".join(f"{text:>{w}}" for text, w in zip(row, widths, strict=True)))
