"""Intervals and spreads of an evaluation's numbers, and how tables print them."""

from collections.abc import Sequence

import numpy as np

from prm_jax.stats import bootstrap_interval

SPREAD = {"median": np.median, "lowest": np.min, "highest": np.max, "mean": np.mean}


def interval_of(statistic, problems, seed: int, *arrays):
    """95 % bootstrap interval over problems of statistic(*arrays), whose arrays have an entry a row."""
    return bootstrap_interval(lambda rows: statistic(*(x[rows] for x in arrays)), problems, seed=seed)


def plus_minus(interval) -> str:
    return "[{:.4f}, {:.4f}]".format(*interval) if np.isfinite(interval).all() else f"{'no interval':<16}"


def spread(values: Sequence[float]) -> dict[str, float]:
    """SPREAD of one number over runs that differ in their seed alone; sd: standard deviation of the sample."""
    return {name: float(f(values)) for name, f in SPREAD.items()} | {"sd": float(np.std(values, ddof=1))}


def show_spread(title: str, rows: dict[str, dict[str, float]]):
    columns = (*SPREAD, "sd")
    print(f"over seeds  {title:<26}" + "".join(f"{name:>10}" for name in columns))
    for name, x in rows.items():
        print(f"  {name:<36}" + "".join(f"{x[key]:>10.4f}" for key in columns))
