"""One table and one figure of any number of runs against their settings, seeds averaged.

python -m prm_jax.sweeps runs=FOLDER x=optimizer.lr y=eval_step_auroc
"""

import dataclasses
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from prm_jax import InputError
from prm_jax.figures import style
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import expect, parse
from prm_jax.launch.files import read_json, read_lines

# The files of runs, the first kind that has the numbers, and what is shown of it where no `y` is given.
DEFAULT_Y = {
    "metrics.jsonl": ("loss", "eval_loss"),
    "summary.json": ("eval_loss", "eval_accuracy", "eval_step_auroc"),
    "results.json": ("step_auroc", "first_error_f1"),
}


@dataclasses.dataclass(frozen=True)
class Config:
    runs: str | list  # folders, with all below them
    x: str | None = None  # a setting, or step (learning curves); null: the numeric one with most values
    y: str | list | None = None  # dotted key, or list of keys, of summary.json or results.json; a panel each
    over: tuple[str, ...] = ("seed",)  # settings that are averaged over; for folds: [data.fold]


class Row(NamedTuple):  # a finished run, a step of one, or a verifier of an evaluation
    name: str
    made: float  # time of the file's last change
    settings: dict  # {dotted key: value}, the seed among them
    numbers: dict  # JSON


class Table(NamedTuple):
    frame: pd.DataFrame  # a row for each setting and y: keys, y, value (those of runs), n, mean, low, high
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
    x = cfg.x or choose_x(settings[keys])
    keys = ([x] if x else []) + [key for key in keys if key != x]

    ys = list(numbers)
    if cfg.y is None and any(key.startswith("loss.") or key == "objective" for key in keys):
        ys = [y for y in ys if "loss" not in y] or ys  # losses of other definitions do not compare
    newest = np.argsort([row.made for row in rows], kind="stable")
    is_old = settings[[*keys, *averaged]].iloc[newest].astype(str).duplicated(keep="last").sort_index()
    left_out |= {rows[i].name: "an older one of the same setting and seed" for i in is_old[is_old].index}
    values = pd.concat(settings[keys].assign(y=y, value=numbers[y])[~is_old] for y in ys).dropna()
    expect(len(values), "y", ys, "a number that a run has")
    frame = values.groupby([*keys, "y"], sort=False)["value"].agg(list).reset_index()
    frame["n"] = frame["value"].map(len)
    if x == "step":  # those that all runs of a setting have
        frame = frame[frame["n"] == frame.groupby([*keys[1:], "y"])["n"].transform("max")]
    frame[["mean", "low", "high"]] = np.array([style.over_seeds(values) for values in frame["value"]])
    return Table(frame, keys, left_out)


def read_rows(cfg: Config) -> tuple[list[Row], pd.DataFrame, dict[str, str]]:
    """(rows, their numbers by the keys that are shown, {run without an end: why}) of all folders below
    `runs`."""
    names = ["metrics.jsonl"] if cfg.x == "step" else ["summary.json", "results.json"]
    rows, left_out = {name: [] for name in names}, {}
    for root in map(Path, as_list(cfg.runs)):
        expect(root.is_dir(), "runs", str(root), "a folder")
        for folder in sorted(path.parent for path in root.rglob(".hydra")):
            files = [folder / name for name in names if (folder / name).exists()]
            for file in files:
                rows[file.name] += read_file(file)
            if not files:
                left_out[str(folder)] = "not finished"
    expect(any(rows.values()), "runs", cfg.runs, f"finished runs or evaluations; {len(left_out)} are not")
    for name, found in rows.items():
        numbers = pd.json_normalize([row.numbers for row in found])
        asked = as_list(cfg.y) if cfg.y else [y for y in DEFAULT_Y[name] if y in numbers]
        if found and set(asked) <= set(numbers):
            return found, numbers[asked].apply(pd.to_numeric, errors="coerce"), left_out
    raise InputError(f"y: got {cfg.y}, expected numbers of {' or '.join(names)}")


def read_file(file: Path) -> list[Row]:
    """A run, the steps of one, or each verifier of an evaluation."""
    folder, made = file.parent, file.stat().st_mtime
    own = run_folder.settings(folder) | {"seed": run_folder.run_config(folder).get("seed")}
    if file.name == "metrics.jsonl":
        return [Row(str(folder), made, own | {"step": line["step"]}, line) for line in read_lines(file)]
    results = read_json(file)
    if file.name == "summary.json":
        return [Row(str(folder), made, own, results)]
    verifiers = results.get("runs", [])
    for name, numbers in results.get("scorers", {}).items():
        about = results.get("verifiers", {}).get(name, {})
        verifiers.append(about | {"verifier": name, "scorer": numbers})
    rows = []
    for verifier in verifiers or [results.get("trained", {})]:
        name = verifier.get("verifier", str(folder))
        rows.append(Row(name, made, verifier_settings(own, verifier), results | verifier))
    return rows


def verifier_settings(evaluation: dict, verifier: dict) -> dict:
    """The settings of a verifier's training, and beside them those of its evaluation, which are named
    `evaluate.NAME` where the training has such a key too."""
    trained = verifier.get("settings") or {}
    settings = {f"evaluate.{key}" if key in trained else key: x for key, x in evaluation.items()} | trained
    settings.pop("checkpoint", None)
    if "scorer" in verifier and not trained:
        settings["scorer"] = verifier["verifier"]
    return settings | {"seed": verifier.get("train_seed", evaluation["seed"])}


def choose_x(settings: pd.DataFrame) -> str | None:
    """The numeric key with most values, or else the first."""
    numeric = [key for key in settings if settings[key].map(is_number).all()]
    return max(numeric, key=lambda key: settings[key].nunique(), default=next(iter(settings), None))


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
    frame["text"] = frame.apply(as_text, axis=1)
    index = [*table.keys, "n"]
    wide = frame.pivot_table(index=index, columns="y", values="text", aggfunc="first", sort=False)
    return wide.reset_index().rename_axis(columns=None).fillna("-")


def as_text(row: pd.Series) -> str:
    """A mean with its interval, where it has one."""
    mean = f"{row['mean']:.4f}"
    return mean if np.isnan(row["low"]) else f"{mean} [{row['low']:.4f}, {row['high']:.4f}]"


def draw(table: Table, path: Path) -> Path:
    """Draws a panel a y, a line for each setting without x: means and their interval, as a band of learning
    curves, else as bars with each run as a faint dot."""
    x, *others = table.keys or [None]
    frame = table.frame.assign(place=table.frame[x] if x else "", line="")
    if others:
        frame["line"] = frame[others].astype(str).agg(", ".join, axis=1)
    names = list(frame["place"].unique())
    is_numeric = all(map(is_number, names)) and len(names) > 1
    if not is_numeric:
        frame["place"] = frame["place"].map(names.index)
    ys = frame["y"].unique()
    figure, axes = style.panels(1, len(ys), 3.2, 3.6 * len(ys) + 1.6)
    for panel, y in zip(axes[0], ys, strict=True):
        for i, (name, rows) in enumerate(frame[frame["y"] == y].groupby("line", sort=False)):
            draw_line(panel, rows.sort_values("place"), name, i, x == "step", is_numeric)
        if not is_numeric:
            panel.set_xticks(range(len(names)), [style.plain(str(name)) for name in names])
        elif x != "step" and min(names) > 0 and max(names) >= 10 * min(names):
            panel.set_xscale("log")
        panel.set(xlabel=x or "", ylabel=style.plain(y))
        panel.margins(x=0.05 if is_numeric else 0.15)
    if others:
        axes[0, -1].legend(title=style.plain(",\n".join(others)), title_fontsize=7.5, **style.OUTSIDE)
    return style.save(figure, path)


def draw_line(panel, rows: pd.DataFrame, name: str, i: int, is_curve: bool, is_numeric: bool):
    """The means of one line of a panel, with their intervals."""
    look = style.line_style(i)
    if not is_numeric:
        look |= style.NO_LINE
    place, mean, low, high = rows[["place", "mean", "low", "high"]].to_numpy(float).T
    panel.plot(place, mean, label=style.plain(name), **look)
    if is_curve:
        style.band(panel, place, low, high, look)
        return
    color = look["color"]
    panel.errorbar(place, mean, [mean - low, high - mean], fmt="none", ecolor=color, capsize=2)
    each = rows.explode("value")
    panel.plot(each["place"], each["value"], ".", color=color, alpha=0.4, markersize=4)


if __name__ == "__main__":
    main()
