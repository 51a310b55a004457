"""Makes a paper's figure: runs its commands, gathers their numbers, states its differences, draws it.

    python -m examples.papers.run NAME             runs what is not done; makes the table and the picture
    python -m examples.papers.run NAME --redraw    draws the table of docs/gallery; runs nothing

A line of `stages` in NAME.py is a command without `python`, run for each combination of the sweep keys. In it
{seed} is a value of the key `seed`, {prm} the folder of the line `prm` at the same combination, [{prm}] all
its folders that agree in the line's keys. Hydra commands write to hydra.run.dir, others where they say {out}.
Folders are named by a hash of the command: remove runs/papers after a change of code."""

import argparse
import hashlib
import importlib
import itertools
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from prm_jax.figures import style
from prm_jax.stats import sign_flip_test

ROOT = Path(__file__).resolve().parents[2]
SEEDS = {"seed": range(8)}
NAMES = sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - {"run"})


class Difference(NamedTuple):
    """A declared difference a - b of two series of a panel, at x or where they end."""

    panel: str
    a: str
    b: str
    x: float | None = None


class Figure(NamedTuple):
    stages: dict[str, str]  # {line: its command}, each behind the lines that it names
    gather: Callable  # {line: its stages} to a Table
    draw: Callable  # a table, as read, to a matplotlib figure
    compare: Sequence[Difference] = ()  # the primary difference first
    sweep: dict[str, dict | Sequence] = SEEDS


class Stage(NamedTuple):
    """A line of a figure at one combination of its sweep keys."""

    sweep: dict[str, object]  # the values that its command depends on
    words: list[str]  # its command
    folder: Path

    def results(self, name: str = "results.json") -> dict:
        return json.loads((self.folder / name).read_text())


class Table(list):
    """Rows (panel, series, x) with the mean over runs, its interval, and the value of each run."""

    def number(self, panel: str, series: str, value_S, x: float | None = None):
        mean, low, high = style.over_seeds(value_S)
        row = {"panel": panel, "series": series, "x": x, "y": mean, "low": low, "high": high}
        self.append(row | {"values": " ".join(f"{value:.6g}" for value in value_S)})

    def curve(self, panel: str, series: str, x_X, value_SX):
        for x, value_S in zip(x_X, np.transpose(value_SX), strict=True):
            self.number(panel, series, value_S, x)


def make_stages(figure: Figure, root: Path) -> dict[str, list[Stage]]:
    """{line: its stages}, each folder once."""
    made = {}
    for line, text in figure.stages.items():
        sweeps = (dict(zip(figure.sweep, values)) for values in itertools.product(*figure.sweep.values()))
        stages = [make_stage(figure, text, sweep, made, root) for sweep in sweeps]
        made[line] = list({stage.folder: stage for stage in stages}.values())
    return made


def make_stage(figure: Figure, text: str, sweep: dict, made: dict[str, list[Stage]], root: Path) -> Stage:
    """The stage of a line at one combination, from those of the lines before it."""
    if "{out}" not in text:
        text += " cpu_devices=1 hydra.run.dir={out}"
    own = {key: value for key, value in sweep.items() if f"{{{key}}}" in text}
    for key, value in own.items():
        options = figure.sweep[key]
        text = text.replace(f"{{{key}}}", options[value] if isinstance(options, dict) else str(value))
    gathers = "[" in text
    agreed = own if gathers else sweep
    for line in [line for line in made if f"{{{line}}}" in text]:
        used = [x for x in made[line] if all(agreed.get(key, y) == y for key, y in x.sweep.items())]
        text = text.replace(f"{{{line}}}", ",".join(str(x.folder) for x in used))
        own |= {} if gathers else used[0].sweep
    folder = root / hashlib.sha256(text.encode()).hexdigest()[:12]
    return Stage(own, shlex.split(text.replace("{out}", str(folder))), folder)


def run_stage(stage: Stage):
    """Runs its command where that is not done; a failure ends it all."""
    if (stage.folder / "DONE").exists():
        return
    print(f"stage       {stage.folder.name}: {shlex.join(stage.words)}", flush=True)
    shutil.rmtree(stage.folder, ignore_errors=True)  # of a run that was stopped
    stage.folder.mkdir(parents=True)
    if code := subprocess.run([sys.executable, *stage.words], cwd=ROOT, check=False).returncode:
        sys.exit(f"error: {stage.folder}: exit {code}")
    (stage.folder / "DONE").touch()


def differences(table: pd.DataFrame, declared: Sequence[Difference]) -> dict[Difference, np.ndarray]:
    """The declared differences of the table in each run."""

    def values(panel: str, series: str, x: float | None) -> np.ndarray:
        rows = table[(table.panel == panel) & (table.series == series)]
        runs = (rows if x is None else rows[rows.x == x])["values"].iloc[-1]
        return np.array(runs.split(), float)

    return {d: values(d.panel, d.a, d.x) - values(d.panel, d.b, d.x) for d in declared}


def statements(found: dict[Difference, np.ndarray]) -> list[str]:
    """A line for each difference: its mean over runs paired by seed, its interval, an exact sign-flip test.
    The first one is primary; Holm's correction (1979) is over the others."""
    lines = []
    p_m = np.array([sign_flip_test(difference_S) for difference_S in found.values()])
    order = 1 + np.argsort(p_m[1:], kind="stable")
    holm_m = p_m.copy()  # the i-th smallest, from 0, times m - i, and no smaller than the one before
    holm_m[order] = np.maximum.accumulate(p_m[order] * np.arange(len(order), 0, -1)).clip(max=1)
    for i, (item, difference_S) in enumerate(found.items()):
        mean, low, high = style.over_seeds(difference_S)
        place = item.panel + ("" if item.x is None else f" at {item.x:g}")
        kind, test = ("secondary", f", by Holm {holm_m[i]:.3f}") if i else ("primary", "")
        number = f"{mean:+.3f} [{low:+.3f}, {high:+.3f}], p {p_m[i]:.3f}{test} ({len(difference_S)} runs)"
        lines.append(f"{kind}: {place}: {item.a} - {item.b}: {number}")
    return lines


def by_value(stages: Sequence[Stage], key: str) -> dict[object, list[Stage]]:
    """{value of a sweep key: its stages}."""
    values = dict.fromkeys(stage.sweep[key] for stage in stages)
    return {value: [stage for stage in stages if stage.sweep[key] == value] for value in values}


def draw_panels(table: pd.DataFrame, names: Sequence[str], xlabel: str, log: bool = False):
    """Axes for each of these panels: curves over x in their bands."""
    table = table[table.panel.isin(names) & table.x.notna()]
    styles = style.role_styles(table.series.unique())
    figure, grid = style.panels(1, len(names), 3.2, 1 + 3.2 * len(names))
    for name, axes in zip(names, grid[0], strict=True):
        for series, rows in table[table.panel == name].groupby("series", sort=False):
            every = 1 + len(rows) // 12
            axes.plot(rows.x, rows.y, label=style.plain(series), markevery=every, **styles[series])
            style.band(axes, rows.x, rows.low, rows.high, styles[series])
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


def main(words: list[str] | None = None):
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--redraw", action="store_true", help="draw the stored table, run nothing")
    args = parser.parse_args(words)
    root = Path("runs/papers").resolve()
    root.mkdir(parents=True, exist_ok=True)
    for name, figure in importlib.import_module(f"examples.papers.{args.name}").FIGURES.items():
        path = (ROOT / "docs/gallery" if args.redraw else root) / f"{name}.csv"
        if not args.redraw:
            lines = make_stages(figure, root / "stages")
            for stage in itertools.chain(*lines.values()):
                run_stage(stage)
            pd.DataFrame(figure.gather(lines)).to_csv(path, index=False, float_format="%.6g")
        table = pd.read_csv(path, dtype={"values": str})
        for line in statements(differences(table, figure.compare)):
            print(f"says        {line}")
        print(f"figure      {style.save(figure.draw(table), root / f'{name}.png')}")


if __name__ == "__main__":
    main()
