"""Spreads of an evaluation's numbers, and how tables are printed."""

import numpy as np

SPREAD = {"median": np.median, "lowest": np.min, "highest": np.max, "mean": np.mean}


def spread_by_setting(settings: list[dict], numbers: list[dict[str, float]]) -> list[dict]:
    """Of each setting what others have otherwise, the indices of its runs, which differ in their seed alone,
    and of each number that all of these have {way of SPREAD: its value}, `sd` that of a sample. A missing key
    is no difference; `verifier`, of what is no run, always is one."""
    values, runs_of = {}, {}
    for setting in settings:
        for key, value in setting.items():
            values.setdefault(key, set()).add(repr(value))
    varied = sorted(key for key in values if key == "verifier" or len(values[key]) > 1)
    for i, setting in enumerate(settings):
        differing = {key: setting[key] for key in varied if key in setting}
        runs_of.setdefault(repr(differing), (differing, []))[1].append(i)
    groups = []
    for setting, members in runs_of.values():
        own = [numbers[i] for i in members]
        spread = {}
        for name in [name for name in own[0] if all(name in x for x in own)]:
            values = [x[name] for x in own]
            spread[name] = {way: float(f(values)) for way, f in SPREAD.items()}
            spread[name]["sd"] = float(np.std(values, ddof=1)) if len(own) > 1 else float("nan")
        means = {name: x["mean"] for name, x in spread.items()}
        groups.append({"setting": setting, "members": members, "spread": spread, "means": means})
    return groups


def cell(value, digits: int) -> str:
    """A number, the two ends of an interval (none where there are too few problems), or a text."""
    if isinstance(value, float):
        return f"{value:.{digits}f}"
    if isinstance(value, str | int):
        return str(value)
    low, high = value
    return f"[{low:.{digits}f}, {high:.{digits}f}]" if np.isfinite(value).all() else "no interval"


def with_interval(numbers: dict, name: str) -> str:
    return f"{cell(numbers[name], 4)} {cell(numbers[f'{name}_interval'], 4)}"


def lead_text(verifier: str, rule: str, lead: dict) -> str:
    """One line on whether a verifier is above what was never taught to verify, by their paired difference."""
    if not np.isfinite(lead["interval"]).all():
        return f"{verifier} against {rule} alone: too few problems or kinds of solutions to say"
    how = "is above" if lead["interval"][0] > 0 else "is not above"
    return f"{verifier} {how} {rule} alone: {lead['difference']:+.4f} {cell(lead['interval'], 4)}"


def show_table(title: str, rows: dict[str, dict], digits: int = 4):
    """Prints {row: {column: value}}; a row may lack columns."""
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    texts = {title: columns}
    for name, row in rows.items():
        texts[f"  {name}"] = [cell(row[column], digits) if column in row else "" for column in columns]
    first = max(len(title) + 2, *map(len, texts))
    widths = [max(map(len, column)) + 2 for column in zip(*texts.values(), strict=True)]
    for name, row in texts.items():
        print(f"{name:<{first}}" + "".join(f"{text:>{w}}" for text, w in zip(row, widths, strict=True)))
