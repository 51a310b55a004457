"""One table and one figure of any number of runs against their settings, seeds averaged.

python -m prm_jax.sweeps runs=FOLDER x=optimizer.lr y=step_auroc
"""

import dataclasses
import logging
import math
import re
from pathlib import Path
from typing import Literal, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from prm_jax import InputError
from prm_jax.figures.style import FEWEST_SEEDS, NO_LINE, OUTSIDE, caption, line_style, over_seeds, plain
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import expect, parse
from prm_jax.launch.files import read_json
from prm_jax.launch.run_log import read_log

logging.getLogger("fontTools").setLevel(logging.ERROR)  # it logs each table of a font that a PDF embeds
# The numbers that are shown where no `y` is given, as far as the files have them.
DEFAULT_Y = {
    "curve": ("loss", "eval_loss"),
    "summary": ("eval_loss", "eval_accuracy", "eval_step_auroc"),
    "results": ("step_auroc", "first_error_f1"),
}


@dataclasses.dataclass(frozen=True)
class Config:
    runs: str | list  # folders, with all below them
    x: str | None = None  # a setting, or step (learning curves); null: the numeric one with most values
    y: str | list | None = None  # dotted key, or list of keys, of summary.json or results.json; a panel each
    over: tuple[str, ...] = ("seed",)  # settings that are averaged over; for folds: [data.fold]
    interval: Literal["auto", "t", "range"] = "auto"  # 95 % t interval | lowest to highest; auto: t from 8 on


class Run(NamedTuple):
    """A finished run, or one verifier of an evaluation."""

    name: str
    kind: str  # of DEFAULT_Y
    settings: dict  # {dotted key: value}, the seed among them
    values: dict  # its numbers (JSON)
    made: float  # time of the file's last change


class Table(NamedTuple):
    """The numbers of a sweep: a row of `frame` is a setting (with x=step, a step of it) and a y."""

    frame: pd.DataFrame  # columns: keys, (step), y, n, mean, low, high, values
    keys: list[str]  # the settings that differ, x first
    x: str | None
    kind: str  # of the intervals
    n_runs: int
    left_out: dict[str, str]  # {run: why}
    commits: list[str]


@cli.command("sweeps", Config)
def main(cfg):
    """Draws runs against any of their settings, seeds averaged; learning curves with x=step."""
    show_sweep(run_folder.output_dir(), parse(cfg, Config))


def show_sweep(folder: Path, cfg: Config | None = None):
    """Prints a table and writes it, with its figure, into a folder: by default that of the sweep itself."""
    try:
        table = make_table(cfg or Config(str(folder)))
    except InputError as error:
        if cfg is not None:
            raise
        print(f"sweep       {error}")  # no run is finished: the jobs have printed their errors
        return
    print(f"runs        {table.n_runs}, {len(table.left_out)} left out; {describe_means(table)}")
    for name, why in table.left_out.items():
        print(f"left out    {name}: {why}")
    wide = as_texts(table)
    print(wide.to_string(index=False))
    table.frame.to_csv(folder / "sweep.csv", index=False)
    (folder / "sweep.tex").write_text(wide.to_latex(index=False, escape=True))
    print(f"table       {folder / 'sweep.csv'}, .tex")
    print(f"figure      {draw(table, folder / 'sweep.png')}, .pdf")


def make_table(cfg: Config) -> Table:
    left_out: dict[str, str] = {}
    found = [run for path in as_list(cfg.runs) for run in read_runs(Path(path), cfg.x == "step", left_out)]
    ys = as_list(cfg.y)
    kinds = [kind for kind in DEFAULT_Y if any(run.kind == kind for run in found)]
    known = [kind for kind in kinds if all(has_number(found, kind, y) for y in ys)]
    expect(kinds, "runs", cfg.runs, f"a folder with finished runs or evaluations ({len(left_out)} are not)")
    expect(
        known, "y", cfg.y, "keys of one kind of file: summary.json, results.json, or metrics.jsonl (x=step)"
    )
    runs = sorted((run for run in found if run.kind == known[0]), key=lambda run: natural(run.name))
    settings = pd.DataFrame([{k: as_cell(v) for k, v in run.settings.items()} for run in runs], dtype=object)
    for key in {cfg.x, *cfg.over} - {None, "step", "seed"}:
        expect(key in settings, "x" if key == cfg.x else "over", key, "a setting of the runs")
    averaged = [key for key in cfg.over if key in settings and key != cfg.x]
    keys = [key for key in settings if key not in averaged and settings[key].nunique(dropna=False) > 1]
    x = cfg.x or choose_x(settings[keys])
    keys = [key for key in (x,) if key and key != "step"] + [key for key in keys if key != x]
    ys = ys or [y for y in DEFAULT_Y[known[0]] if has_number(runs, known[0], y)]
    if cfg.y is None and any(key.startswith("loss.") or key == "objective" for key in keys):
        ys = [y for y in ys if "loss" not in y] or ys  # losses of other definitions do not compare

    # A repeat of a setting and seed would count twice.
    newest = np.argsort([run.made for run in runs], kind="stable")
    repeated = settings[[*keys, *averaged]].iloc[newest].astype(str).duplicated(keep="last")
    for i in repeated[repeated].index:
        left_out[runs[i].name] = "an older one of the same setting and seed"
    kept = sorted(repeated[~repeated].index)
    members = settings.loc[kept, keys].astype(str).agg("\0".join, axis=1) if keys else pd.Series("", kept)
    groups = list(members.groupby(members, sort=False).groups.values())
    several = [len(group) for group in groups if len(group) > 1]
    kind = cfg.interval
    if kind == "auto":
        kind = "t" if several and min(several) >= FEWEST_SEEDS else "range"
    rows = []
    for y in ys:
        for group in groups:
            setting = {key: settings.loc[group[0], key] for key in keys}
            for place, values in values_of([runs[i] for i in group], y, x == "step"):
                mean, low, high = map(float, over_seeds(values, kind))
                n = int(np.isfinite(values).sum())
                numbers = {"y": y, "n": n, "mean": mean, "low": low, "high": high, "values": values}
                rows.append(setting | place | numbers)
    expect(any(row["n"] for row in rows), "y", ys, "a number that a run has")
    commits = {str((runs[i].values.get("versions") or {}).get("commit", "unknown")) for i in kept}
    return Table(pd.DataFrame(rows), keys, x, kind, len(kept), left_out, sorted(commits))


def read_runs(root: Path, curves: bool, left_out: dict[str, str]) -> list[Run]:
    """The runs and evaluations of a folder and all below it; those without an end are named in `left_out`."""
    expect(root.is_dir(), "runs", str(root), "a folder")
    runs = []
    for record in sorted(root.rglob(".hydra"), key=lambda path: natural(str(path))):
        folder = record.parent
        files = [folder / name for name in ("summary.json", "results.json") if (folder / name).exists()]
        if curves:
            files = [folder / "metrics.jsonl"] if (folder / "metrics.jsonl").exists() else []
        if not files:
            left_out[str(folder)] = "not finished"
        for file in files:
            try:
                runs += read_file(file)
            except (AttributeError, LookupError, TypeError) as error:
                raise InputError(f"runs: {file}: is not as a command writes it ({error})") from None
    return runs


def read_file(path: Path) -> list[Run]:
    """The run of a summary.json or metrics.jsonl, or one for each verifier of a results.json. An evaluation's settings
    have their names, or `evaluate.NAME` where the training has such a key too."""
    folder, made = path.parent, path.stat().st_mtime
    seed = {"seed": run_folder.run_config(folder).get("seed")}
    settings = run_folder.settings(folder) | seed
    if path.name == "metrics.jsonl":
        return [Run(str(folder), "curve", settings, {"lines": read_log(path)}, made)]
    values = read_json(path)
    if path.name == "summary.json":
        return [Run(str(folder), "summary", settings, values, made)]
    settings.pop("checkpoint", None)
    runs = []
    verifiers = values.get("verifiers", {})
    parts = [(run.get("verifier", f"run {i}"), run, run) for i, run in enumerate(values.get("runs", ()))]
    if not parts and isinstance(verifiers, dict):
        scorers = values.get("scorers", {}).items()
        parts = [(name, verifiers.get(name, {}), {"scorer": numbers}) for name, numbers in scorers]
    for name, origin, numbers in parts or [(str(folder), values.get("trained", {}), {})]:
        trained = origin.get("settings") or {}
        known = {f"evaluate.{key}" if key in trained else key: x for key, x in settings.items()} | trained
        known["seed"] = origin.get("train_seed", seed["seed"])
        if values.get("scorers") and not trained:
            known["scorer"] = name
        runs.append(Run(name, "results", known, values | numbers, made))
    return runs


def number(values, key: str) -> float | None:
    """The number at a dotted key: nan where it is null, None where there is none."""
    for part in key.split("."):
        if isinstance(values, list) and part.isdigit() and int(part) < len(values):
            values = values[int(part)]
        elif isinstance(values, dict) and part in values:
            values = values[part]
        else:
            return None
    if values is None:
        return math.nan
    return float(values) if isinstance(values, int | float) else None


def has_number(runs: list[Run], kind: str, y: str) -> bool:
    several = [run.values.get("lines", [run.values]) for run in runs if run.kind == kind]
    return any(number(values, y) is not None for rows in several for values in rows)


def values_of(runs: list[Run], y: str, by_step: bool):
    """Yields (place, each run's number y): one place, or one for each step at which all runs have it."""
    if not by_step:
        numbers = [number(run.values, y) for run in runs]
        yield {}, [math.nan if value is None else value for value in numbers]
        return
    curves = [{line["step"]: number(line, y) for line in run.values["lines"]} for run in runs]
    for step in sorted(set.intersection(*map(set, curves))):
        values = [curve[step] for curve in curves]
        if None not in values:
            yield {"step": step}, values


def choose_x(settings: pd.DataFrame) -> str | None:
    """The numeric key with most values, or else the first."""
    numeric = [key for key in settings if all(map(is_number, settings[key]))]
    return max(numeric, key=lambda key: settings[key].nunique(), default=next(iter(settings), None))


def is_number(x) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def as_list(x: str | list | None) -> list[str]:
    return [] if x is None else list(map(str, x)) if isinstance(x, list) else [x]


def as_cell(x):
    """A value in one line: a list as its text, a separator of format.separator as '\\n'."""
    return x if is_number(x) or (isinstance(x, str) and x.isprintable()) else "null" if x is None else repr(x)


def natural(name: str) -> list:
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)]


def as_texts(table: Table) -> pd.DataFrame:
    """A row a setting: its keys, the number of runs, and for each y the mean with its interval. Learning curves have
    their last step."""
    frame, keys = table.frame, list(table.keys)
    if table.x == "step":
        frame = frame.groupby([*keys, "y"], sort=False, as_index=False).last()
        keys.append("step")
    shown = frame[keys].astype(str)
    shown["runs"] = frame["n"].astype(str)
    shown["y"] = frame["y"]
    shown["text"] = [f"{mean:.4f}" for mean in frame["mean"]]
    several = frame["n"] > 1
    intervals = [f" [{low:.4f}, {high:.4f}]" for low, high in zip(frame["low"], frame["high"], strict=True)]
    shown.loc[several, "text"] += pd.Series(intervals, frame.index)[several]
    wide = shown.pivot_table(index=[*keys, "runs"], columns="y", values="text", aggfunc="first", sort=False)
    return wide.reset_index().rename_axis(columns=None).fillna("-")


def describe_means(table: Table) -> str:
    words = {"t": "95 % t interval of the mean", "range": "lowest to highest"}
    is_single = table.frame["n"].max() < 2
    return "one run a setting" if is_single else f"means; brackets: {words[table.kind]}"


def draw(table: Table, path: Path) -> Path:
    """Draws a panel a y, a line for each setting without x: means, their interval, and each run as a faint dot."""
    x, ys = table.x, list(dict.fromkeys(table.frame["y"]))
    figure, panels = plt.subplots(1, len(ys), figsize=(3.6 * len(ys) + 1.6, 3.2), squeeze=False)
    frame = table.frame.assign(place=table.frame[x] if x else "")
    places = list(dict.fromkeys(frame["place"]))
    numeric = all(map(is_number, places)) and len(places) > 1
    is_log = numeric and x != "step" and min(places) > 0 and max(places) >= 10 * min(places)
    others = [key for key in table.keys if key != x]
    frame["line"] = frame[others].astype(str).agg(", ".join, axis=1) if others else ""
    for axes, y in zip(panels[0], ys, strict=True):
        for i, (name, rows) in enumerate(frame[frame["y"] == y].groupby("line", sort=False)):
            style = line_style(i) | {"label": plain(name)}
            if numeric:
                rows = rows.sort_values("place")
                draw_line(axes, rows, rows["place"].to_numpy(float), style, is_curve=x == "step")
            else:
                aside = 0.08 * (i - (frame["line"].nunique() - 1) / 2)  # so that no interval hides another
                at = np.array([places.index(place) for place in rows["place"]]) + aside
                draw_line(axes, rows, at, style | NO_LINE, is_curve=False)
        if is_log:
            axes.set_xscale("log")
        if not numeric:
            axes.set_xticks(range(len(places)), [plain(str(place)) for place in places])
        axes.set(xlabel=x or "", ylabel=plain(y))
        axes.grid(linewidth=0.3, alpha=0.6)
        axes.margins(x=0.05 if numeric else 0.15)
    if others:
        panels[0, -1].legend(title=plain(",\n".join(others)), title_fontsize=7.5, **OUTSIDE)
    marks = "bands" if x == "step" else "bars"
    text = f"{table.n_runs} runs; {describe_means(table).replace('brackets', marks)}"
    caption(figure, text, {"versions": {"commit": table.commits[-1]}})
    with plt.rc_context({"pdf.fonttype": 42}):
        figure.savefig(path.with_suffix(".pdf"))
    figure.savefig(path)
    plt.close(figure)
    return path


def draw_line(axes, rows: pd.DataFrame, places: np.ndarray, style: dict, is_curve: bool):
    """Draws means with their intervals: as a band of a learning curve, else as bars with the runs behind them."""
    mean, low, high = (rows[name].to_numpy(float) for name in ("mean", "low", "high"))
    if is_curve:
        axes.plot(places, mean, **style | {"marker": "" if len(places) > 20 else style["marker"]})
        axes.fill_between(places, low, high, color=style["color"], alpha=0.15, linewidth=0)
        return
    axes.errorbar(places, mean, [mean - low, high - mean], capsize=2, elinewidth=0.8, **style)
    for place, values in zip(places, rows["values"], strict=True):
        axes.plot([place] * len(values), values, ".", color=style["color"], alpha=0.4, markersize=4)


if __name__ == "__main__":
    main()
