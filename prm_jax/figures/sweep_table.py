"""The numbers of a sweep: means over seeds of each setting, at each value of x or step of a learning curve."""

import collections
import dataclasses
import math
from typing import Literal

import numpy as np

from prm_jax import InputError
from prm_jax.figures.records import Record, near, number, numbers, read_records
from prm_jax.figures.style import over_seeds
from prm_jax.launch import run_folder

# What is shown where no `y` is given: of each kind of file those that there are.
DEFAULT_Y = {"summary": ("eval_loss", "eval_step_auroc"), "results": ("step_auroc", "first_error_f1"), "metrics": ("loss", "eval_loss")}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Config:
    """conf/sweeps.yaml says what each key means."""

    runs: str | list
    x: str | None = None
    y: str | list | None = None
    by: str | list | None = None
    over: tuple[str, ...] = ("seed",)
    interval: Literal["auto", "t", "range"] = "auto"


def texts(x: str | list | None) -> list[str]:
    return [] if x is None else [str(name) for name in (x if isinstance(x, list) else [x])]


def make_table(cfg: Config) -> dict:
    """Every number of table and figure: `rows`, one for each setting (and step, of learning curves) and y."""
    records, left_out = read_records(texts(cfg.runs))
    if not records:
        why = "".join(f"; {name}: {reason}" for name, reason in left_out.items())
        raise InputError(f"runs: no finished run or evaluation in {', '.join(texts(cfg.runs))}{why}")
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
        about = {"setting": {key: told[group[0]].get(key) for key in ([x] if x and x != "step" else []) + lines}}
        about |= {"runs": [r.name for r in members], "over": [[r.settings.get(key) for key in over] for r in members]}
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
    table["objectives"] = sorted({str(r.values.get("objective")) for r in chosen})
    table["commits"] = sorted({r.values.get("versions", {}).get("commit", "unknown") for r in chosen})
    return table | {"rows": sorted(rows, key=lambda row: (ys.index(row["y"]), order(row, lines, x)))}


def choose(records: list[Record], ys: list[str], x: str | None) -> tuple[list[Record], list[str]]:
    """(the records of the first kind of file that has each y, the ys); InputError where none has one."""
    kinds = ("metrics",) if x == "step" else ("summary", "results", "metrics")
    of = {kind: [r for r in records if r.kind == kind] for kind in kinds}
    there = {kind: [key for r in of[kind] for key in keys_of(r)] for kind in kinds}
    if not ys:
        ys = next(([y for y in default_y(kind, of[kind]) if y in there[kind]] for kind in kinds if of[kind]), [])
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


def default_y(kind: str, records: list[Record]) -> list[str]:
    """DEFAULT_Y; where runs differ in what their loss is, it has no common unit, and accuracies stand in its place."""
    loss_of = lambda r: {key: x for key, x in r.settings.items() if key == "objective" or key.startswith("loss.")}
    is_one = len({repr(sorted(loss_of(r).items())) for r in records}) == 1
    return [y if is_one else y.replace("loss", "accuracy") for y in DEFAULT_Y[kind]]


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
    """A row's mean, interval and how many runs have the number."""
    mean, low, high = map(float, over_seeds(values, kind))
    return {"n": int(np.isfinite(values).sum()), "mean": mean, "low": low, "high": high, "values": values}
