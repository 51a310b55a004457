"""The numbers of a sweep: means over seeds of each setting, at each value of x or at each step of a learning curve."""

import collections
import dataclasses
import math
from typing import Literal

import numpy as np

from prm_jax import InputError
from prm_jax.figures.records import Record, near, number, read_records
from prm_jax.figures.style import FEWEST_SEEDS, over_seeds
from prm_jax.launch import run_folder
from prm_jax.launch.config import flatten

# {kind of file: the numbers shown where no `y` is given, as far as the file has them}
DEFAULT_Y = {
    "summary": ("eval_loss", "eval_step_auroc"), "results": ("step_auroc", "first_error_f1"),
    "metrics": ("loss", "eval_loss"),
}  # fmt: skip
# Settings that define a run's loss, besides loss.* (where loss.lm_weight=null some of them decide it).
DEFINE_LOSS = ("init", "objective", "outcome_at", "batch.share_prefixes", "batch.step_weights")
# How the names of numbers end of which the lowest, or the highest, is the best.
LOWEST = ("loss", "nll", "ece", "brier", "missed")
HIGHEST = ("accuracy", "auroc", "auprc", "f1", "pass@1", "pass_at_1", "pass_at_4", "sound")


@dataclasses.dataclass(frozen=True)
class Config:
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
        reasons = "".join(f"; {name}: {reason}" for name, reason in left_out.items())
        raise InputError(f"runs: no finished run or evaluation in {', '.join(texts(cfg.runs))}{reasons}")
    records, ys = choose(records, texts(cfg.y), cfg.x)
    records = newest(records, left_out)
    known = {key for r in records for key in r.settings}
    for name, keys in (
        ("x", texts(cfg.x) if cfg.x != "step" else []),
        ("by", texts(cfg.by)),
        ("over", cfg.over),
    ):
        for key in [key for key in keys if key not in known]:
            raise InputError(f"{name}: got {key!r}, which no run was told; {near(key, known)}")
    over = [key for key in cfg.over if key != cfg.x]
    settings = [
        {k: str(x) if isinstance(x, list) else x for k, x in r.settings.items() if k not in over}
        for r in records
    ]
    groups = run_folder.group_by_settings(settings)
    varied = sorted({key for setting, _ in groups for key in setting})
    x = cfg.x or choose_x(varied, settings)
    lines = [key for key in dict.fromkeys([*texts(cfg.by), *varied]) if key != x]
    kind, rows = interval_kind(cfg.interval, [members for _, members in groups]), []
    for _, members in groups:
        runs, setting = [records[i] for i in members], settings[members[0]]
        group = {
            "setting": {key: setting.get(key) for key in ([x] if x and x != "step" else []) + lines},
            "runs": [r.name for r in runs],
            "over": [[r.settings.get(key) for key in over] for r in runs],
        }
        for y in ys:
            if x == "step":
                rows += curve_rows(runs, y, group, kind, left_out)
            else:
                rows.append(group | {"y": y} | spread([value_of(r, y, left_out) for r in runs], kind))
    if not any(row["n"] for row in rows):
        raise InputError(f"y: {', '.join(ys)}: undefined in every run")
    for y in ys if x != "step" else ():
        mark_best([row for row in rows if row["y"] == y and row["n"]], y, have_one_loss(records))
    shared = collections.Counter(o for r in records for o in dict.fromkeys(r.overrides))
    return {
        "x": x, "y": ys, "lines": lines, "over": over, "interval": kind, "n_runs": len(records),
        "everywhere": [o for o, n in shared.items() if n == len(records)], "left_out": left_out,
        "objectives": sorted({str(r.values.get("objective")) for r in records}),
        "commits": sorted({str((r.values.get("versions") or {}).get("commit", "unknown")) for r in records}),
        "rows": sorted(rows, key=lambda row: (ys.index(row["y"]), order(row, lines, x))),
    }  # fmt: skip


def choose(records: list[Record], ys: list[str], x: str | None) -> tuple[list[Record], list[str]]:
    """(the records of the first kind of file that has each y, the ys); InputError where none has one."""
    kinds = ("metrics",) if x == "step" else ("summary", "results", "metrics")
    records_of = {kind: [r for r in records if r.kind == kind] for kind in kinds}
    keys = {}
    for kind, members in records_of.items():
        keys[kind] = {key for r in members for key, x in flatten(r.values) if isinstance(x, int | float)}
        keys[kind] |= {key for r in members for line in r.curve for key, _ in flatten(line)}
    if not ys:
        kind = next((kind for kind in kinds if records_of[kind]), None)
        # Where runs have different losses, which share no unit, accuracies take their place.
        measure = "loss" if kind and have_one_loss(records_of[kind]) else "accuracy"
        ys = [
            y for y in (name.replace("loss", measure) for name in DEFAULT_Y.get(kind, ())) if y in keys[kind]
        ]
    for kind in kinds:
        if ys and keys[kind].issuperset(ys):
            return records_of[kind], ys
    everywhere = set().union(*keys.values())
    if not ys:
        raise InputError(f"y: name one; {near('loss', everywhere)}")
    for y in [y for y in ys if y not in everywhere]:
        raise InputError(f"y: got {y!r}, which no {' or '.join(kinds)} has; {near(y, everywhere)}")
    raise InputError(f"y: {', '.join(ys)}: no one kind of file has them all; ask for them one at a time")


def have_one_loss(records: list[Record]) -> bool:
    """Whether the losses of all runs share a definition, and so compare."""
    definitions = set()
    for settings in [r.settings for r in records]:
        same = [key for key in settings if key in DEFINE_LOSS or key.startswith("loss.")]
        is_ternary = settings.get("model.head") == "ternary"
        definitions.add(repr([is_ternary, *((key, settings[key]) for key in sorted(same))]))
    return len(definitions) == 1


def mark_best(rows: list[dict], y: str, have_one_loss: bool):
    """Marks the settings with the best mean of `y`, where it is known which way is better and losses compare."""
    sign = (
        1 if y.endswith(HIGHEST) else -1 if y.endswith(LOWEST) and (have_one_loss or "loss" not in y) else 0
    )
    if sign and len(rows) > 1:
        best = max(sign * row["mean"] for row in rows)
        for row in rows:
            row["best"] = sign * row["mean"] == best


def newest(records: list[Record], left_out: dict) -> list[Record]:
    """The newest record of each setting and seed: a repeat would count a seed twice."""
    groups = run_folder.group_by_settings([r.settings for r in records])
    keep = {max(members, key=lambda i: records[i].made) for _, members in groups}
    for r in [r for i, r in enumerate(records) if i not in keep]:
        left_out[f"{r.name} ({r.kind})"] = "an older one of the same setting and seed"
    return [r for i, r in enumerate(records) if i in keep]


def choose_x(varied: list[str], settings: list[dict]) -> str | None:
    """The numeric key with most values, or else the first that varies."""
    numeric = [key for key in varied if all(is_number(setting.get(key)) for setting in settings)]
    return max(
        numeric, key=lambda key: len({s[key] for s in settings}), default=varied[0] if varied else None
    )


def is_number(x) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def order(row: dict, lines: list[str], x: str | None) -> tuple:
    values = [row["setting"].get(key) for key in lines] + [row.get("step", row["setting"].get(x))]
    return tuple((not is_number(v), v if is_number(v) else 0, str(v)) for v in values)


def value_of(r: Record, y: str, left_out: dict) -> float:
    """A run's number; a run that has none is named in `left_out`."""
    value = number(r.values, y)
    if value is None or math.isnan(value):
        left_out[f"{r.name}: {y}"] = "no such number" if value is None else "undefined"
    return math.nan if value is None else value


def curve_rows(runs: list[Record], y: str, group: dict, kind: str, left_out: dict) -> list[dict]:
    """A row for each step at which all runs of a setting have the number."""
    curves = {
        r.name: {line["step"]: number(line, y) for line in r.curve if number(line, y) is not None}
        for r in runs
    }
    left_out |= {f"{name}: {y}": "no such number" for name, curve in curves.items() if not curve}
    curves = [curve for curve in curves.values() if curve]
    steps = sorted(set.intersection(*map(set, curves))) if curves else []
    return [group | {"y": y, "step": step} | spread([c[step] for c in curves], kind) for step in steps]


def interval_kind(kind: str, groups: list) -> str:
    """`auto` is t if every setting with several seeds has FEWEST_SEEDS."""
    sizes = [len(group) for group in groups if len(group) > 1]
    return kind if kind != "auto" else "t" if sizes and min(sizes) >= FEWEST_SEEDS else "range"


def spread(values: list[float], kind: str) -> dict:
    """A row's mean, its interval and the number of runs that have it."""
    mean, low, high = map(float, over_seeds(values, kind))
    return {"n": int(np.isfinite(values).sum()), "mean": mean, "low": low, "high": high, "values": values}
