"""Makes a paper's figure: runs its commands, gathers their numbers, states its differences, draws it.

    python -m examples.papers.run NAME             runs what is not done; makes the table and the picture
    python -m examples.papers.run NAME --redraw    draws the table of docs/gallery; runs nothing
    python -m examples.papers.run all              every figure; one that fails does not stop the others

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
NAMES = sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - {"panels", "run"})


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
    """Runs its command where that is not done; CalledProcessError where it fails."""
    if (stage.folder / "DONE").exists():
        return
    print(f"stage       {stage.folder.name}: {shlex.join(stage.words)}", flush=True)
    shutil.rmtree(stage.folder, ignore_errors=True)  # of a run that was stopped
    stage.folder.mkdir(parents=True)
    subprocess.run([sys.executable, *stage.words], cwd=ROOT, check=True)
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


def make(name: str, figure: Figure, redraw: bool):
    """Makes the figure's table, or reads the stored one; prints its differences and draws it."""
    root = Path("runs/papers").resolve()
    root.mkdir(parents=True, exist_ok=True)
    path = (ROOT / "docs/gallery" if redraw else root) / f"{name}.csv"
    if not redraw:
        lines = make_stages(figure, root / "stages")
        for stage in itertools.chain(*lines.values()):
            run_stage(stage)
        pd.DataFrame(figure.gather(lines)).to_csv(path, index=False, float_format="%.6g")
    table = pd.read_csv(path, dtype={"values": str})
    for line in statements(differences(table, figure.compare)):
        print(f"says        {line}")
    print(f"figure      {style.save(figure.draw(table), root / f'{name}.png')}")


def main(words: list[str] | None = None) -> int:
    """Returns how many figures failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="+", choices=[*NAMES, "all"], metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--redraw", action="store_true", help="draw the stored table, run nothing")
    args = parser.parse_args(words)
    failed = 0
    for file in NAMES if "all" in args.names else args.names:
        for name, figure in importlib.import_module(f"examples.papers.{file}").FIGURES.items():
            try:
                make(name, figure, args.redraw)
            except (subprocess.SubprocessError, OSError, LookupError, ValueError) as error:  # others go on
                print(f"error: {name}: {error!r}", file=sys.stderr)
                failed += 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
