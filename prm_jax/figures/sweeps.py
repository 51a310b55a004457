"""One table and one figure of any number of runs against their settings.

python -m prm_jax.sweeps runs=FOLDER x=optimizer.lr y=step_auroc by=model.head

Runs that differ in their seed alone are averaged; those that differ in anything else stand apart.
"""

import csv
import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from prm_jax import InputError
from prm_jax.figures.style import NO_LINE, OUTSIDE, caption, line_style, plain
from prm_jax.figures.sweep_table import Config, is_number, make_table, order
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import parse, script

INTERVALS = {"t": "95 % t interval of the mean", "range": "lowest to highest"}


@cli.command("sweeps", Config)
def main(cfg):
    """Table and figure of runs against any of their overrides, seeds averaged; learning curves with x=step."""
    folder, table = run_folder.output_dir(), make_table(parse(cfg, Config))
    with run_folder.locked_run_folder(folder, cfg):
        show(table)
        write(table, folder)


def show_sweep(folder: Path):
    """Ends a sweep: prints its table, writes table and figure into its folder, and prints the next command."""
    try:
        table = make_table(Config(str(folder)))
    except InputError as error:  # no run is finished: the jobs have printed their errors
        print(f"sweep       {error}")
        return
    show(table)
    write(table, folder)
    again = f"python -m prm_jax.sweeps runs={folder}"
    if {"prm", "orm"} & set(table["objectives"]):
        evaluate = f"{script('evaluate')} task=steps checkpoint={folder} hydra.run.dir={folder}/steps"
        print(f"next        {evaluate} && {again} y=step_auroc")
    print(f"            {again} x=step    (learning curves)")


def shown(x) -> str:
    """A value in one line: a separator of format.separator as '\\n'."""
    text = f"{x:.6g}" if is_number(x) else "null" if x is None else str(x)
    return text if text.isprintable() else repr(text)


def cells(table: dict) -> tuple[list[str], list[list[str]]]:
    """(head, body) of the table as texts: a row a setting, a column for each of its keys, for n, and for each y a mean
    with its interval. Learning curves have their last step."""
    keys, step = (
        [k for k in [*table["lines"], table["x"]] if k and k != "step"],
        ["step"] * (table["x"] == "step"),
    )
    rows_of, body = {}, []
    for row in table["rows"]:
        rows_of.setdefault(tuple(shown(row["setting"].get(k)) for k in keys), {})[row["y"]] = row
    for setting, by_y in rows_of.items():
        steps = [str(next(iter(by_y.values()))[key]) for key in step]
        counts = "/".join(dict.fromkeys(str(by_y[y]["n"]) if y in by_y else "0" for y in table["y"]))
        body.append([*setting, *steps, counts, *(measured(by_y.get(y)) for y in table["y"])])
    return [*keys, *step, "runs", *table["y"]], body


def measured(row: dict | None) -> str:
    if row is None or not row["n"]:
        return "-"
    interval = f" [{row['low']:.4f}, {row['high']:.4f}]" if row["n"] > 1 else ""
    return f"{row['mean']:.4f}{interval}" + " *" * row.get("best", False)


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
    """A caption's words for a number of the table."""
    best = "; *: the best" * any(row.get("best") for row in table["rows"])
    if all(row["n"] < 2 for row in table["rows"]):
        return "one run a setting" + best
    columns = zip(table["over"], zip(*(values for row in table["rows"] for values in row["over"])))
    over = "; ".join(f"{key} {', '.join(dict.fromkeys(map(shown, values)))}" for key, values in columns)
    return f"means over {over}; brackets: {INTERVALS[table['interval']]}{best}"


def write(table: dict, folder: Path):
    """Writes sweep.json, .csv, .tex, .png, .pdf, .svg into a folder."""
    run_folder.write_json(folder / "sweep.json", table)
    keys = [k for k in [*table["lines"], table["x"]] if k]
    with (folder / "sweep.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow([*keys, "y", "n", "mean", "low", "high", "interval", "best", "values", "runs"])
        for row in table["rows"]:
            setting = [place_of(row, k) for k in keys]
            numbers = [
                row["y"],
                row["n"],
                row["mean"],
                row["low"],
                row["high"],
                table["interval"],
                row.get("best"),
            ]
            out.writerow([*setting, *numbers, ";".join(map(str, row["values"])), ";".join(row["runs"])])
    (folder / "sweep.tex").write_text(latex(table))
    print(f"table       {folder / 'sweep.csv'}, .tex, .json")
    print(f"figure      {draw(table, folder / 'sweep.png')}, .pdf, .svg")


def latex(table: dict) -> str:
    """The table for a paper (package booktabs), with its source in a comment above."""
    marks = {character: rf"\{character}" for character in "_%&#${}"}
    marks = str.maketrans(
        marks | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    )
    head, body = cells(table)
    texts = [[text.translate(marks) for text in line] for line in (head, *body)]
    lines = [
        " & ".join(re.sub(r"(.+) \*$", r"\\textbf{\1}", text) for text in line) + r" \\" for line in texts
    ]
    columns = "l" * (len(head) - len(table["y"])) + "r" * len(table["y"])
    comment = f"% {means(table)}; all: {' '.join(table['everywhere'])}; commits {', '.join(table['commits'])}"
    top = comment, rf"\begin{{tabular}}{{{columns}}}", r"\toprule", lines[0], r"\midrule"
    return "\n".join((*top, *lines[1:], r"\bottomrule", r"\end{tabular}", ""))


def place_of(row: dict, x: str | None):
    return row["step"] if x == "step" else row["setting"].get(x) if x else ""


def draw(table: dict, path: Path) -> Path:
    """Draws a panel a y, a line for each setting without x: means, their interval, and each run as a faint dot. Lines
    are moved a little aside, so that no interval hides another."""
    x, keys, n = table["x"], table["lines"], len(table["y"])
    figure, panels = plt.subplots(1, n, figsize=(3.6 * n + 1.6, 3.2), squeeze=False)
    places = [place_of(row, x) for row in sorted(table["rows"], key=lambda row: order(row, [], x))]
    places = list(dict.fromkeys(places))
    numeric = all(map(is_number, places)) and len(places) > 1
    is_log = numeric and x != "step" and min(places) > 0 and max(places) >= 10 * min(places)
    lines = {}  # {name: rows}
    for row in table["rows"]:
        lines.setdefault(", ".join(shown(row["setting"].get(key)) for key in keys), []).append(row)
    for axes, y in zip(panels[0], table["y"], strict=True):
        for i, (name, rows) in enumerate(lines.items()):
            rows = [row for row in rows if row["y"] == y and row["n"]]
            x_n = [place_of(row, x) if numeric else places.index(place_of(row, x)) for row in rows]
            style = line_style(i) | {"label": plain(name), "linestyle": ("-", "--", ":")[i // 7 % 3]}
            if x != "step":
                x_n = aside(
                    np.array(x_n, float), places if numeric else None, is_log, i - (len(lines) - 1) / 2
                )
            draw_line(axes, rows, x_n, style if numeric or x == "step" else style | NO_LINE, x == "step")
        if is_log:
            axes.set_xscale("log")
        if x != "step" and len(places) <= 8:
            axes.set_xticks(
                places if numeric else range(len(places)), [plain(shown(place)) for place in places]
            )
            axes.minorticks_off()
        axes.set(xlabel=x or "", ylabel=plain(y))
        axes.grid(linewidth=0.3, alpha=0.6)
        axes.margins(x=0.05 if numeric else 0.15)
    if keys:
        panels[0, -1].legend(title=plain(",\n".join(keys)), title_fontsize=7.5, **OUTSIDE)
    n_out, commits = len(table["left_out"]), table["commits"]
    text = f"{table['n_runs']} runs" + f", {n_out} left out" * bool(n_out)
    words = {"brackets": "bands" if x == "step" else "bars", "*": "ring"}
    text += (
        "; "
        + re.sub(r"brackets|\*", lambda match: words[match[0]], means(table))
        + "; dots: runs" * (x != "step")
    )
    text += f". All runs: {' '.join(table['everywhere']) or 'no shared override'}"
    text += f". Runs of {len(commits)} commits, among them" * (len(commits) > 1)
    caption(figure, text, {"versions": {"commit": commits[-1]}})
    for suffix in (".pdf", ".svg", ".png"):
        figure.savefig(path.with_suffix(suffix))
    plt.close(figure)
    return path


def aside(place: np.ndarray, places: list | None, is_log: bool, k: float) -> np.ndarray:
    """Places moved k steps aside: of numbers 1 % of their span, of categories (None) an eighth of their distance."""
    if places is None:
        return place + 0.12 * k
    span = np.log(max(places) / min(places)) if is_log else max(places) - min(places)
    return place * np.exp(0.01 * k * span) if is_log else place + 0.01 * k * span


def draw_line(axes, rows: list[dict], places, style: dict, is_curve: bool):
    """Draws means with their intervals: as a band of a learning curve, else as bars with the runs behind them."""
    mean, low, high = (np.array([row[name] for row in rows], float) for name in ("mean", "low", "high"))
    if is_curve:
        axes.plot(places, mean, **style | {"marker": "" if len(places) > 20 else style["marker"]})
        axes.fill_between(places, low, high, color=style["color"], alpha=0.15, linewidth=0)
        return
    axes.errorbar(places, mean, [mean - low, high - mean], capsize=2, elinewidth=0.8, **style)
    for place, row in zip(places, rows, strict=True):
        if row.get("best"):
            axes.plot(place, row["mean"], "o", fillstyle="none", color=style["color"], markersize=11)
        axes.plot(
            [place] * len(row["values"]), row["values"], ".", color=style["color"], alpha=0.4, markersize=4
        )


if __name__ == "__main__":
    main()
