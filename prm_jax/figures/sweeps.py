"""One table and one figure of any number of runs against what they were told.

python -m prm_jax.figures.sweeps runs=FOLDER x=optimizer.lr y=step_auroc by=model.head

Runs that differ in their seed alone are averaged; those that differ in anything else stand apart.
"""

import collections
import csv
import dataclasses
import math
from pathlib import Path
from typing import Literal

import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

from prm_jax import InputError
from prm_jax.figures.records import Record, near, number, numbers, read_records
from prm_jax.figures.style import caption, line_style, plain
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import parse

# What is shown where no `y` is given: of each kind of file those that there are.
DEFAULT_Y = {"summary": ("eval_loss", "eval_step_auroc"), "results": ("step_auroc", "first_error_f1"), "metrics": ("loss", "eval_loss")}  # fmt: skip
INTERVALS = {"t": "95 % t interval of the mean", "range": "lowest to highest"}


@dataclasses.dataclass(frozen=True)
class Config:
    """conf/sweeps.yaml says what each key means."""

    runs: str | list
    x: str | None = None
    y: str | list | None = None
    by: str | list | None = None
    over: tuple[str, ...] = ("seed",)
    interval: Literal["auto", "t", "range"] = "auto"


@cli.command("sweeps")
def main(cfg):
    """Table and figure of runs against any of their overrides, seeds averaged; learning curves with x=step."""
    asked, folder = parse(cfg, Config), run_folder.output_dir()
    table = make_table(asked)
    run_folder.create_run_folder(folder, cfg)
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
    if table["objectives"] & {"prm", "orm"}:
        evaluate = f"python evaluate.py task=steps checkpoint={folder} hydra.run.dir={folder}/steps"
        print(f"next        {evaluate} && {again} y=step_auroc")
    print(f"            {again} x=step    (learning curves)")


def texts(x: str | list | None) -> list[str]:
    return [] if x is None else [str(name) for name in (x if isinstance(x, list) else [x])]


def make_table(cfg: Config) -> dict:
    """Every number of table and figure: `rows`, one for each setting (and step, of learning curves) and y."""
    records, left_out = read_records(texts(cfg.runs))
    if not records:
        why = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise InputError(
            f"runs: no finished run or evaluation in {', '.join(texts(cfg.runs))}" + (f"; {why}" * bool(why))
        )
    chosen, ys = choose(records, texts(cfg.y), cfg.x)
    chosen = newest(chosen, left_out)
    known = {key for r in chosen for key in r.settings}
    for name, keys in (("x", texts(cfg.x) if cfg.x != "step" else []), ("by", texts(cfg.by)), ("over", cfg.over)):
        for key in keys:
            if key not in known:
                raise InputError(f"{name}: got {key!r}, which no run was told; {near(key, known)}")
    over = [key for key in cfg.over if key != cfg.x]
    told = [{key: x for key, x in r.settings.items() if key not in over} for r in chosen]
    settings = run_folder.by_settings(told)
    varied, groups = sorted({key for own, _ in settings for key in own}), [of for _, of in settings]
    x = cfg.x or choose_x(varied, told)
    lines = [key for key in dict.fromkeys([*texts(cfg.by), *varied]) if key != x]
    kind, rows = interval_kind(cfg.interval, groups), []
    for group in groups:
        members = [chosen[i] for i in group]
        setting = {key: told[group[0]].get(key) for key in ([x] if x and x != "step" else []) + lines}
        about = {
            "setting": setting,
            "runs": [r.name for r in members],
            "over": [[r.settings.get(k) for k in over] for r in members],
        }
        for y in ys:
            if x == "step":
                rows += curve_rows(members, y, about, kind, left_out)
            else:
                rows += [about | {"y": y} | spread([value_of(r, y, left_out) for r in members], kind)]
    if not any(row["n"] for row in rows):
        raise InputError(f"y: {', '.join(ys)}: undefined in every run")
    shared = collections.Counter(o for r in chosen for o in dict.fromkeys(r.overrides))
    table = {"x": x, "y": ys, "lines": lines, "over": over, "interval": kind, "n_runs": len(chosen)}
    table |= {"everywhere": [o for o, n in shared.items() if n == len(chosen)], "left_out": left_out}
    table["objectives"] = {r.values.get("objective") for r in chosen}
    table["commits"] = sorted({r.values.get("versions", {}).get("commit", "unknown") for r in chosen})
    return table | {"rows": sorted(rows, key=lambda row: (ys.index(row["y"]), order(row, lines, x)))}


def choose(records: list[Record], ys: list[str], x: str | None) -> tuple[list[Record], list[str]]:
    """(the records of the first kind of file that has each y, the ys); InputError where none has one."""
    kinds = ("metrics",) if x == "step" else ("summary", "results", "metrics")
    of = {kind: [r for r in records if r.kind == kind] for kind in kinds}
    there = {kind: [key for r in of[kind] for key in keys_of(r)] for kind in kinds}
    if not ys:
        found = next(
            ((kind, [y for y in DEFAULT_Y[kind] if y in there[kind]]) for kind in kinds if of[kind]), (None, [])
        )
        ys = found[1]
    for kind in kinds:
        if ys and all(y in there[kind] for y in ys):
            return of[kind], ys
    everywhere = {key for keys in there.values() for key in keys}
    if not ys:
        raise InputError(f"y: name one; {near('loss', everywhere)}")
    lacking = next((y for y in ys if y not in everywhere), None)
    if lacking is None:
        raise InputError(f"y: {', '.join(ys)}: no one kind of file has them all; ask for them one at a time")
    raise InputError(f"y: got {lacking!r}, which no {' or '.join(kinds)} has; {near(lacking, everywhere)}")


def keys_of(r: Record) -> set[str]:
    lines = [key for line in r.curve for key in line] if r.kind == "metrics" else []
    return {*numbers(r.values), *lines}


def newest(records: list[Record], left_out: dict) -> list[Record]:
    """One record of each setting and seed: a repeat would count a seed twice."""
    groups = run_folder.by_settings([r.settings for r in records])
    keep = {max(of, key=lambda i: records[i].made) for _, of in groups}
    for i, r in enumerate(records):
        if i not in keep:
            left_out[f"{r.name} ({r.kind})"] = "an older one of the same setting and seed"
    return [r for i, r in enumerate(records) if i in keep]


def choose_x(varied: list[str], told: list[dict]) -> str | None:
    """The numeric key with most values, or else the first that varies."""
    values = {key: {t.get(key) for t in told if is_number(t.get(key))} for key in varied}
    numeric = [key for key in varied if all(is_number(t.get(key)) for t in told)]
    return max(numeric, key=lambda key: len(values[key]), default=varied[0] if varied else None)


def is_number(x) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def order(row: dict, lines: list[str], x: str | None) -> tuple:
    values = [row["setting"].get(key) for key in lines] + [row.get("step", row["setting"].get(x))]
    return tuple((not is_number(v), v if is_number(v) else 0, str(v)) for v in values)


def value_of(r: Record, y: str, left_out: dict) -> float:
    """A run's number; where it has none it is named."""
    found = number(r.values, y)
    if found is None or math.isnan(found):
        left_out[f"{r.name}: {y}"] = "no such number" if found is None else "undefined"
    return math.nan if found is None else found


def curve_rows(members: list[Record], y: str, about: dict, kind: str, left_out: dict) -> list[dict]:
    """A row for each step at which all runs of a setting have the number."""
    curves = []
    for r in members:
        curve = {line["step"]: found for line in r.curve if (found := number(line, y)) is not None}
        if curve:
            curves.append(curve)
        else:
            left_out[f"{r.name}: {y}"] = "no such number"
    steps = sorted(set.intersection(*map(set, curves))) if curves else []
    return [about | {"y": y, "step": step} | spread([c[step] for c in curves], kind) for step in steps]


def interval_kind(asked: str, groups: list) -> str:
    """t where every setting that has several seeds has three at least: of two it would be thirteen times their distance."""
    sizes = [len(group) for group in groups if len(group) > 1]
    return asked if asked != "auto" else "t" if sizes and min(sizes) > 2 else "range"


def spread(values: list[float], kind: str) -> dict:
    """Mean of the defined values and their interval (nan of fewer than two)."""
    x = np.array([v for v in values if not math.isnan(v)])
    low = high = math.nan
    if len(x) > 1 and kind == "range":
        low, high = x.min(), x.max()
    elif len(x) > 1:
        half = stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x))
        low, high = x.mean() - half, x.mean() + half
    return {
        "n": len(x),
        "mean": float(x.mean()) if len(x) else math.nan,
        "low": float(low),
        "high": float(high),
        "values": values,
    }


def shown(x) -> str:
    return f"{x:.6g}" if is_number(x) else "default" if x is None else str(x)


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
    rows = [{key: x for key, x in row.items()} for row in table["rows"]]
    run_folder.write_json(
        folder / "sweep.json", table | {"objectives": sorted(map(str, table["objectives"])), "rows": rows}
    )
    keys = [k for k in [*table["lines"], table["x"]] if k]
    with (folder / "sweep.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow([*keys, "y", "n", "mean", "low", "high", "interval", "values", "runs"])
        for row in rows:
            own = [row["step"] if k == "step" else row["setting"].get(k) for k in keys]
            numbers = [row["y"], row["n"], row["mean"], row["low"], row["high"], table["interval"]]
            out.writerow([*own, *numbers, ";".join(map(str, row["values"])), ";".join(row["runs"])])
    (folder / "sweep.tex").write_text(latex(table))
    print(f"table       {folder / 'sweep.csv'}, .tex, .json")
    print(f"figure      {draw(table, folder / 'sweep.png')}, .pdf, .svg")


def latex(table: dict) -> str:
    """The table for a paper (packages booktabs, none other); what it says stands in a comment above."""
    marks = {"_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}"}
    escape = lambda text: "".join(marks.get(c, c) for c in text)
    head, body = cells(table)
    n_text = len(head) - len(table["y"])
    lines = [" & ".join(map(escape, line)) + r" \\" for line in (head, *body)]
    about = f"% {means(table)}; all: {' '.join(table['everywhere'])}; commits {', '.join(table['commits'])}"
    columns = "l" * n_text + "r" * len(table["y"])
    inner = [lines[0], r"\midrule", *lines[1:]]
    return (
        "\n".join([about, rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *inner, r"\bottomrule", r"\end{tabular}"])
        + "\n"
    )


def draw(table: dict, path: Path) -> Path:
    """A panel a y, a line for each setting but x: means, their interval, and each run as a faint dot."""
    x, keys, n = table["x"], table["lines"], len(table["y"])
    figure, panels = plt.subplots(1, n, figsize=(3.6 * n + 1.6, 3.2), squeeze=False)
    at = lambda row: row["step"] if x == "step" else row["setting"].get(x)
    places = list(dict.fromkeys(at(row) for row in sorted(table["rows"], key=lambda r: order(r, [], x))))
    numeric = all(map(is_number, places)) and len(places) > 1
    names = list(dict.fromkeys(tuple(shown(row["setting"].get(k)) for k in keys) for row in table["rows"]))
    for axes, y in zip(panels[0], table["y"], strict=True):
        for i, name in enumerate(names):
            rows = [
                r
                for r in table["rows"]
                if r["y"] == y and tuple(shown(r["setting"].get(k)) for k in keys) == name and r["n"]
            ]
            draw_line(
                axes,
                rows,
                i,
                [at(r) if numeric else places.index(at(r)) for r in rows],
                numeric,
                x == "step",
                len(names),
                ", ".join(name),
            )
        if numeric and x != "step" and min(places) > 0 and max(places) >= 10 * min(places):
            axes.set_xscale("log")
        if x != "step" and len(places) <= 8:
            axes.set_xticks(places if numeric else range(len(places)), [plain(shown(place)) for place in places])
            axes.minorticks_off()
        axes.set(xlabel=x or "", ylabel=plain(y))
        axes.grid(linewidth=0.3, alpha=0.6)
    if keys:
        panels[0, -1].legend(
            title=plain(",\n".join(keys)), loc="center left", bbox_to_anchor=(1, 0.5), fontsize=7.5, title_fontsize=7.5
        )
    left_out = f"; {len(table['left_out'])} left out" if table["left_out"] else ""
    text = f"{table['n_runs']} runs{left_out}; {means(table)}".replace("brackets", "bars" if x != "step" else "bands")
    text += "" if x == "step" else "; dots: runs"
    text += f". All runs: {' '.join(table['everywhere']) or 'no shared override'}"
    newest = table["commits"][-1]
    text += f". Runs of {len(table['commits'])} commits, among them" if len(table["commits"]) > 1 else ""
    caption(figure, text, {"versions": {"commit": newest}})
    for suffix in (".pdf", ".svg", ".png"):
        figure.savefig(path.with_suffix(suffix))
    plt.close(figure)
    return path


def draw_line(axes, rows: list[dict], i: int, places: list, numeric: bool, is_curve: bool, n_lines: int, label: str):
    """One setting's means; of categories those of several settings stand beside each other."""
    style = line_style(i) | {"label": plain(label), "linestyle": ("-", "--", ":")[i // 7 % 3]}
    mean, low, high = (np.array([row[name] for row in rows], float) for name in ("mean", "low", "high"))
    x = np.array(places, float) + (0 if numeric else 0.12 * (i - (n_lines - 1) / 2))
    if is_curve:
        axes.plot(x, mean, **style | {"marker": "" if len(x) > 20 else style["marker"]})
        axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)
        return
    axes.errorbar(
        x,
        mean,
        [mean - low, high - mean],
        capsize=2,
        elinewidth=0.8,
        **style | ({} if numeric else {"linestyle": "none"}),
    )
    for place, row in zip(x, rows, strict=True):
        axes.plot([place] * len(row["values"]), row["values"], ".", color=style["color"], alpha=0.4, markersize=4)


if __name__ == "__main__":
    main()
