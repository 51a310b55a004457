"""One table and one figure of any number of runs against what they were told.

python -m prm_jax.figures.sweeps runs=FOLDER x=optimizer.lr y=step_auroc by=model.head

Runs that differ in their seed alone are averaged; those that differ in anything else stand apart.
"""

import csv
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from prm_jax import InputError
from prm_jax.figures.style import caption, line_style, plain
from prm_jax.figures.sweep_table import Config, is_number, make_table, order
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import parse

INTERVALS = {"t": "95 % t interval of the mean", "range": "lowest to highest"}


@cli.command("sweeps")
def main(cfg):
    """Table and figure of runs against any of their overrides, seeds averaged; learning curves with x=step."""
    asked, folder = parse(cfg, Config), run_folder.output_dir()
    table = make_table(asked)
    with run_folder.locked_run_folder(folder, cfg):
        show(table)
        write(table, folder)


def show_sweep(folder: Path):
    """What a sweep ends with: its table and figure, in its folder, and the next command."""
    try:
        table = make_table(Config(str(folder)))
    except InputError as error:  # no run is finished: the jobs have said why
        print(f"sweep       {error}")
        return
    show(table)
    write(table, folder)
    again = f"python -m prm_jax.figures.sweeps runs={folder}"
    if {"prm", "orm"} & set(table["objectives"]):
        evaluate = f"python evaluate.py task=steps checkpoint={folder} hydra.run.dir={folder}/steps"
        print(f"next        {evaluate} && {again} y=step_auroc")
    print(f"            {again} x=step    (learning curves)")


def shown(x) -> str:
    return f"{x:.6g}" if is_number(x) else "null" if x is None else str(x)


def cells(table: dict) -> tuple[list[str], list[list[str]]]:
    """(head, body) of the table as texts: a line a setting, a column a key of it, n, and a mean with its interval for each y.
    Of learning curves the last step."""
    keys = [k for k in [*table["lines"], table["x"]] if k and k != "step"]
    body = {}
    for row in table["rows"]:
        line = body.setdefault(tuple(shown(row["setting"].get(k)) for k in keys), {})
        line[row["y"]] = row
    head = [*keys, *(["step"] if table["x"] == "step" else []), "runs", *table["y"]]
    out = []
    for key, line in body.items():
        any_row = next(iter(line.values()))
        step = [str(any_row["step"])] if table["x"] == "step" else []
        counts = "/".join(dict.fromkeys(str(line[y]["n"]) if y in line else "0" for y in table["y"]))
        out.append([*key, *step, counts, *(measured(line.get(y)) for y in table["y"])])
    return head, out


def measured(row: dict | None) -> str:
    if row is None or not row["n"]:
        return "-"
    return f"{row['mean']:.4f}" + (f" [{row['low']:.4f}, {row['high']:.4f}]" if row["n"] > 1 else "")


def show(table: dict):
    head, body = cells(table)
    n_out = f", {len(table['left_out'])} left out" if table["left_out"] else ""
    print(f"runs        {table['n_runs']}{n_out}; {means(table)}")
    for name, why in table["left_out"].items():
        print(f"left out    {name}: {why}")
    print(f"all         {' '.join(table['everywhere']) or 'no override is shared'}")
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    for line in (head, *body):
        print("  " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def means(table: dict) -> str:
    """What a number of the table is."""
    if all(row["n"] < 2 for row in table["rows"]):
        return "one run a setting"
    told = zip(table["over"], zip(*(values for row in table["rows"] for values in row["over"])))
    over = "; ".join(f"{key} {', '.join(dict.fromkeys(map(shown, values)))}" for key, values in told)
    return f"means over {over}; brackets: {INTERVALS[table['interval']]}"


def write(table: dict, folder: Path):
    """sweep.json, .csv, .tex, .png, .pdf, .svg in a folder."""
    run_folder.write_json(folder / "sweep.json", table)
    keys = [k for k in [*table["lines"], table["x"]] if k]
    with (folder / "sweep.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow([*keys, "y", "n", "mean", "low", "high", "interval", "values", "runs"])
        for row in table["rows"]:
            own = [row["step"] if k == "step" else row["setting"].get(k) for k in keys]
            numbers = [row["y"], row["n"], row["mean"], row["low"], row["high"], table["interval"]]
            out.writerow([*own, *numbers, ";".join(map(str, row["values"])), ";".join(row["runs"])])
    (folder / "sweep.tex").write_text(latex(table))
    print(f"table       {folder / 'sweep.csv'}, .tex, .json")
    print(f"figure      {draw(table, folder / 'sweep.png')}, .pdf, .svg")


def latex(table: dict) -> str:
    """The table for a paper (package booktabs); what it rests on stands in a comment above."""
    marks = {"_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}"}
    escape = lambda text: "".join(marks.get(c, c) for c in text)
    keys, rows = cells(table)
    head, *body = (" & ".join(map(escape, line)) + r" \\" for line in (keys, *rows))
    columns = "l" * (len(keys) - len(table["y"])) + "r" * len(table["y"])
    about = f"% {means(table)}; all: {' '.join(table['everywhere'])}; commits {', '.join(table['commits'])}"
    top = about, rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule"
    return "\n".join((*top, *body, r"\bottomrule", r"\end{tabular}", ""))


def draw(table: dict, path: Path) -> Path:
    """A panel a y, a line for each setting but x: means, their interval, and each run as a faint dot. Lines stand a little beside
    each other, so that no interval hides another."""
    x, keys, n = table["x"], table["lines"], len(table["y"])
    figure, panels = plt.subplots(1, n, figsize=(3.6 * n + 1.6, 3.2), squeeze=False)
    at = lambda row: row["step"] if x == "step" else row["setting"].get(x) if x else ""
    name = lambda row: ", ".join(shown(row["setting"].get(key)) for key in keys)
    places = list(dict.fromkeys(at(row) for row in sorted(table["rows"], key=lambda row: order(row, [], x))))
    numeric = all(map(is_number, places)) and len(places) > 1
    is_log = numeric and x != "step" and min(places) > 0 and max(places) >= 10 * min(places)
    names = list(dict.fromkeys(map(name, table["rows"])))
    for axes, y in zip(panels[0], table["y"], strict=True):
        for i, line in enumerate(names):
            rows = [row for row in table["rows"] if row["y"] == y and name(row) == line and row["n"]]
            where = [at(row) if numeric else places.index(at(row)) for row in rows]
            style = line_style(i) | {"label": plain(line), "linestyle": ("-", "--", ":")[i // 7 % 3]}
            if x == "step":
                draw_curve(axes, rows, where, style)
            else:
                where = aside(np.array(where, float), places if numeric else None, is_log, i - (len(names) - 1) / 2)
                draw_points(axes, rows, where, style if numeric else style | {"linestyle": "none"})
        if is_log:
            axes.set_xscale("log")
        if x != "step" and len(places) <= 8:
            axes.set_xticks(places if numeric else range(len(places)), [plain(shown(place)) for place in places])
            axes.minorticks_off()
        axes.set(xlabel=x or "", ylabel=plain(y))
        axes.grid(linewidth=0.3, alpha=0.6)
        axes.margins(x=0.05 if numeric else 0.15)
    if keys:
        sizes = dict.fromkeys(("fontsize", "title_fontsize"), 7.5)
        panels[0, -1].legend(title=plain(",\n".join(keys)), loc="center left", bbox_to_anchor=(1, 0.5), **sizes)
    n_out, commits = len(table["left_out"]), table["commits"]
    text = f"{table['n_runs']} runs" + f", {n_out} left out" * bool(n_out)
    text += f"; {means(table)}".replace("brackets", "bands" if x == "step" else "bars") + "; dots: runs" * (x != "step")
    text += f". All runs: {' '.join(table['everywhere']) or 'no shared override'}"
    text += f". Runs of {len(commits)} commits, among them" * (len(commits) > 1)
    caption(figure, text, {"versions": {"commit": commits[-1]}})
    for suffix in (".pdf", ".svg", ".png"):
        figure.savefig(path.with_suffix(suffix))
    plt.close(figure)
    return path


def columns(rows: list[dict]):
    return (np.array([row[name] for row in rows], float) for name in ("mean", "low", "high"))


def draw_curve(axes, rows: list[dict], steps: list[int], style: dict):
    mean, low, high = columns(rows)
    axes.plot(steps, mean, **style | {"marker": "" if len(steps) > 20 else style["marker"]})
    axes.fill_between(steps, low, high, color=style["color"], alpha=0.15, linewidth=0)


def aside(place: np.ndarray, places: list | None, is_log: bool, k: float) -> np.ndarray:
    """Places moved k steps aside: of numbers 1 % of their span, of categories (None) an eighth of their distance."""
    if places is None:
        return place + 0.12 * k
    span = np.log(max(places) / min(places)) if is_log else max(places) - min(places)
    return place * np.exp(0.01 * k * span) if is_log else place + 0.01 * k * span


def draw_points(axes, rows: list[dict], places: np.ndarray, style: dict):
    """Means with their intervals and the runs behind them."""
    mean, low, high = columns(rows)
    axes.errorbar(places, mean, [mean - low, high - mean], capsize=2, elinewidth=0.8, **style)
    for place, row in zip(places, rows, strict=True):
        axes.plot([place] * len(row["values"]), row["values"], ".", color=style["color"], alpha=0.4, markersize=4)


if __name__ == "__main__":
    main()
