"""One table and one figure of any number of runs against their settings, seeds averaged.

python -m prm_jax.sweeps runs=FOLDER x=optimizer.lr y=eval_step_auroc
"""

import dataclasses
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from prm_jax.figures import style
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import expect, parse
from prm_jax.launch.files import read_json, read_lines

# What is shown where no `y` is given, as far as runs have it.
LAST = ("eval_loss", "eval_accuracy", "eval_step_auroc", "step_auroc", "first_error_f1")
CURVES = ("loss", "eval_loss")


@dataclasses.dataclass(frozen=True)
class Config:
    runs: str | list  # folders, with all below them
    x: str | None = None  # a setting, or step (learning curves); null: the numeric one with most values
    y: str | list | None = None  # dotted key, or list of keys, of summary.json or results.json; a panel each
    over: tuple[str, ...] = ("seed",)  # settings that are averaged over; for folds: [data.fold]


class Row(NamedTuple):  # a finished run, a step of one, or an evaluation
    name: str
    made: float  # time of the file's last change
    settings: dict  # {dotted key: value}, the seed among them
    numbers: dict  # JSON


class Table(NamedTuple):
    frame: pd.DataFrame  # a row for each setting and y: keys, y, value (of each run), runs, mean, low, high
    keys: list[str]  # the settings that differ, x first
    left_out: dict[str, str]  # {run: why}


@cli.command("sweeps", Config)
def main(cfg):
    """Draws runs against any of their settings, seeds averaged; learning curves with x=step."""
    show_sweep(run_folder.output_dir(), parse(cfg, Config))


def show_sweep(folder: Path, cfg: Config | None = None):
    """Prints a table and writes it, with its figure, into a folder: by default that of the sweep itself."""
    table = make_table(cfg or Config(str(folder)))
    for name, why in table.left_out.items():
        print(f"left out    {name}: {why}")
    wide = as_texts(table)
    print(wide.to_string(index=False))
    table.frame.to_csv(folder / "sweep.csv", index=False)
    (folder / "sweep.tex").write_text(wide.to_latex(index=False, escape=True))
    print(f"sweep       {draw(table, folder / 'sweep.png')}, .pdf, .csv, .tex")
    print(f"intervals   of the mean by t from {style.FEWEST_SEEDS} runs on, else lowest to highest")


def make_table(cfg: Config) -> Table:
    """The means of all settings. Of runs with the same setting and seed, the newest counts."""
    rows, numbers, left_out = read_rows(cfg)
    settings = pd.DataFrame([{key: as_cell(x) for key, x in row.settings.items()} for row in rows])
    settings = settings.astype(object).where(settings.notna(), "none")
    for key in {cfg.x, *cfg.over} - {None, "seed"}:
        expect(key in settings, "x" if key == cfg.x else "over", key, "a setting of the runs")
    averaged = [key for key in cfg.over if key in settings and key != cfg.x]
    keys = [key for key in settings if key not in averaged and settings[key].nunique() > 1]
    numeric = [key for key in keys if settings[key].map(is_number).all()]
    x = cfg.x or max(numeric, key=lambda key: settings[key].nunique(), default=next(iter(keys), None))
    keys = ([x] if x else []) + [key for key in keys if key != x]

    ys = list(numbers)
    if cfg.y is None and any(key.startswith("loss.") or key == "objective" for key in keys):
        ys = [y for y in ys if "loss" not in y] or ys  # losses of other definitions do not compare
    of_run = settings[[key for key in (*keys, *averaged) if key != "step"]].astype(str)
    own = list(of_run.itertuples(index=False))
    newest = {own[i]: rows[i].name for i in np.argsort([row.made for row in rows], kind="stable")}
    is_old = np.array([row.name != newest[x] for row, x in zip(rows, own, strict=True)])
    left_out |= {rows[i].name: "an older one of the same setting and seed" for i in np.flatnonzero(is_old)}
    values = pd.concat(settings[keys].assign(y=y, value=numbers[y])[~is_old] for y in ys).dropna()
    without = sorted({*ys} - {*values["y"]})
    is_whole = not without if cfg.y else len(values)
    expect(is_whole, "y", without, "numbers that a run has")
    frame = values.groupby([*keys, "y"], sort=False)["value"].agg(list).reset_index()
    frame["runs"] = frame["value"].map(len)
    if x == "step":  # those that all runs of a setting have
        frame = frame[frame["runs"] == frame.groupby([*keys[1:], "y"])["runs"].transform("max")]
    frame[["mean", "low", "high"]] = np.array([style.over_seeds(values) for values in frame["value"]])
    return Table(frame, keys, left_out)


def read_rows(cfg: Config) -> tuple[list[Row], pd.DataFrame, dict[str, str]]:
    """(rows, their numbers by the keys that are shown, {run without an end: why}) of all folders below
    `runs`."""
    is_curve = cfg.x == "step"
    names = ["metrics.jsonl"] if is_curve else ["summary.json", "results.json"]
    rows, left_out, folders = [], {}, {}
    for root in map(Path, as_list(cfg.runs)):
        expect(root.is_dir(), "runs", str(root), "a folder")
        folders |= {path.parent.resolve(): path.parent for path in sorted(root.rglob(".hydra"))}
    for folder in folders.values():  # each once, where one of `runs` holds another
        file = next((folder / name for name in names if (folder / name).exists()), None)
        if file is None:
            left_out[str(folder)] = "not finished"
            continue
        own = run_folder.settings(folder) | {"seed": run_folder.run_config(folder).get("seed")}
        for line in read_lines(file) if is_curve else [read_json(file)]:
            step = {"step": line["step"]} if is_curve else {}
            rows.append(Row(str(folder), file.stat().st_mtime, own | step, line))
    expect(rows, "runs", cfg.runs, f"finished runs or evaluations; {len(left_out)} are not")
    numbers = pd.json_normalize([row.numbers for row in rows])
    asked = as_list(cfg.y) if cfg.y else [y for y in (CURVES if is_curve else LAST) if y in numbers]
    is_there = asked and set(asked) <= set(numbers)
    expect(is_there, "y", cfg.y, f"numbers of {' or '.join(names)}")
    return rows, numbers[[*dict.fromkeys(asked)]].apply(pd.to_numeric, errors="coerce"), left_out


def is_number(x) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def as_list(x: str | list) -> list[str]:
    return x if isinstance(x, list) else [x]


def as_cell(x):
    """A number or a printable text as it is; other values as Python writes them."""
    return x if is_number(x) or (isinstance(x, str) and x.isprintable()) else repr(x)


def as_texts(table: Table) -> pd.DataFrame:
    """A row a setting: its keys, the number of runs, and for each y the mean with its interval; of learning
    curves the last step."""
    frame = table.frame
    if table.keys[:1] == ["step"]:
        frame = frame.groupby([*table.keys[1:], "y"], sort=False, as_index=False).last()
    frame = frame.astype(dict.fromkeys(table.keys, str))
    texts = []
    for row in frame.itertuples():
        interval = "" if np.isnan(row.low) else f" [{row.low:.4f}, {row.high:.4f}]"
        texts.append(f"{row.mean:.4f}{interval}")
    index = [*table.keys, "runs"]
    wide = frame.assign(text=texts).pivot_table("text", index, "y", aggfunc="first", sort=False)
    return wide.reset_index().rename_axis(columns=None).fillna("-")


def draw(table: Table, path: Path) -> Path:
    """Draws a panel a y, a line for each setting without x: means and their interval, as a band of learning
    curves, else as bars."""
    x, *others = table.keys or [None]
    frame = table.frame.assign(place=table.frame[x] if x else "", line="")
    if others:
        frame["line"] = frame[others].astype(str).agg(", ".join, axis=1)
    names = frame["place"].unique().tolist()
    is_numeric = all(map(is_number, names)) and len(names) > 1
    if not is_numeric:
        frame["place"] = frame["place"].map(names.index)
    ys = frame["y"].unique()
    figure, axes = style.panels(1, len(ys), 3.2, 3.6 * len(ys) + 1.6)
    for panel, y in zip(axes[0], ys, strict=True):
        for i, (name, rows) in enumerate(frame[frame["y"] == y].groupby("line", sort=False)):
            look = style.line_style(i) | ({} if is_numeric else {"linestyle": "none"})
            columns = rows.sort_values("place")[["place", "mean", "low", "high"]]
            place, mean, low, high = columns.to_numpy(float).T
            panel.plot(place, mean, label=style.plain(name), **look)
            if x == "step":
                style.band(panel, place, low, high, look)
            else:
                bars = [mean - low, high - mean]
                panel.errorbar(place, mean, bars, fmt="none", ecolor=look["color"], capsize=2)
        if not is_numeric:
            panel.set_xticks(range(len(names)), [style.plain(str(name)) for name in names])
        elif x != "step" and min(names) > 0 and max(names) >= 10 * min(names):
            panel.set_xscale("log")
        else:
            panel.locator_params("x", nbins=5)  # more of .00125 would overlap
        panel.set(xlabel=x or "", ylabel=style.plain(y))
        panel.margins(x=0.05 if is_numeric else 0.15)
    if others:
        where = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "fontsize": 7.5}  # beside the axes
        axes[0, -1].legend(title=style.plain(",\n".join(others)), title_fontsize=7.5, **where)
    return style.save(figure, path)
