"""Finished runs and evaluations below some folders: what each was told, and the numbers that it gave."""

import dataclasses
import difflib
import json
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from omegaconf import OmegaConf

from prm_jax import InputError
from prm_jax.launch import run_folder

LARGE = ("checkpoints", "model", "figures", "tensorboard", "wandb")  # folders of a run that hold no run


@dataclasses.dataclass(frozen=True)
class Record:
    """One run: its settings {dotted key: value}, the seed among them, what its command line said, and its numbers (JSON)."""

    name: str
    kind: str  # summary, results, metrics
    settings: dict
    overrides: tuple[str, ...]
    values: dict
    curve: tuple[dict, ...]  # the lines of metrics.jsonl
    made: float  # when
    whole: bool = True  # the settings are the whole configuration, not only what the command line said


def read_records(paths: Iterable[str]) -> tuple[list[Record], dict[str, str]]:
    """(records, {what is left out: why}) of files, and of folders with all below them."""
    found, left_out = [], {}
    for path in map(Path, paths):
        if not path.exists():
            raise InputError(f"runs: {path}: no such file or folder")
        if path.is_file():
            expected = f"expected a folder or {', '.join(READ)}"
            if path.name not in READ:
                raise InputError(f"runs: {path}: {expected}")
            found += READ[path.name](path)
            continue
        for folder in folders(path):
            files = [file for file in READ if (folder / file).exists()]
            if set(files) & {"summary.json", "results.json"}:
                found += [r for file in files for r in READ[file](folder / file)]
            else:
                left_out[str(folder)] = why_not(folder)
    # Without its configuration a record does not say what was left at its default, which is a value as any other.
    bare = {key: "default" for r in found if not r.whole for key in r.settings}
    return [r if r.whole else dataclasses.replace(r, settings=bare | r.settings) for r in found], left_out


def folders(root: Path) -> list[Path]:
    """The folders below `root` in which something was run, the numbered ones of a sweep in their order."""
    out = []
    for folder, names, files in os.walk(root):
        made = ".hydra" in names or {"summary.json", "results.json", "error.txt"} & set(files)
        is_job = Path(folder).name.isdigit() and (Path(folder).parent / "multirun.yaml").exists()
        out += [Path(folder)] if made or is_job else []
        names[:] = [name for name in names if name not in LARGE and not name.startswith(".")]
    return sorted(out, key=lambda p: [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in p.parts])


def why_not(folder: Path) -> str:
    """Why a folder in which something was run has no number."""
    if (folder / "error.txt").exists():
        return f"failed: {(folder / 'error.txt').read_text().strip()}"
    if curve := read_lines(folder / "metrics.jsonl"):
        return f"not finished: at step {curve[-1]['step']} of {run_folder.run_config(folder).get('steps')}"
    return "not finished" if (folder / ".hydra").exists() else "not begun, or refused at its start"


def read_summary(path: Path) -> list[Record]:
    values, told = run_folder.read_json(path), settings_of(path.parent)
    overrides = tuple(values.get("overrides", ()))
    settings = (told or as_settings(overrides)) | {"seed": values.get("seed")}
    return [Record(str(path.parent), "summary", settings, overrides, values, (), path.stat().st_mtime, bool(told))]


def read_metrics(path: Path) -> list[Record]:
    """The last line, and all of them as a curve; what a finished run's summary beside it says of the run."""
    lines, summary = tuple(read_lines(path)), path.with_name("summary.json")
    if not lines:
        raise InputError(f"runs: {path}: holds no line, expected one JSON object a logged step")
    if summary.exists():
        (run,) = read_summary(summary)
        about = {name: run.values.get(name) for name in ("objective", "versions")}
        return [dataclasses.replace(run, kind="metrics", values=lines[-1] | about, curve=lines)]
    told, overrides = settings_of(path.parent), tuple(run_folder.overrides_of(path.parent))
    made = path.stat().st_mtime
    return [Record(str(path.parent), "metrics", told or {"file": str(path)}, overrides, lines[-1], lines, made)]


def read_results(path: Path) -> list[Record]:
    """A record of each run that was evaluated; of an evaluation of other things one. An evaluation's own settings have their
    names, or `evaluate.NAME` where the training has such a key too."""
    results, made = run_folder.read_json(path), path.stat().st_mtime
    own = settings_of(path.parent) or as_settings(results.get("overrides", ()))
    scorers = results.get("scorers", {})
    several = [(run.get("verifier", f"run {i}"), run, run) for i, run in enumerate(results.get("runs", ()))]
    if not several and scorers:
        verifiers = results.get("verifiers", {})
        several = [(name, verifiers.get(name, {}), {"scorer": x}) for name, x in scorers.items()]
    if not several:
        several = [(str(path.parent), results.get("trained", {}), {})]
    records, own = [], {key: x for key, x in own.items() if key != "checkpoint"}
    for name, about, values in several:
        trained = about.get("settings") or as_settings(about.get("overrides", ()))
        settings = {f"evaluate.{key}" if key in trained else key: x for key, x in own.items()} | trained
        settings |= {"seed": about.get("train_seed", results.get("seed"))}
        settings |= {"scorer": name} if scorers and not trained else {}
        overrides = (*results.get("overrides", ()), *about.get("overrides", ()))
        whole = "settings" in about or (not about and (path.parent / ".hydra").exists())
        records.append(Record(name, "results", settings, overrides, results | values, (), made, whole))
    return records


READ: dict[str, Callable[[Path], list[Record]]] = {
    "summary.json": read_summary,
    "results.json": read_results,
    "metrics.jsonl": read_metrics,
}


def read_lines(path: Path) -> list[dict]:
    """The whole lines of metrics.jsonl; a kill may leave half a one."""
    lines = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def settings_of(folder: Path) -> dict:
    """The settings of a run or an evaluation and its seed; empty where the folder has no configuration."""
    if not (folder / ".hydra" / "config.yaml").exists():
        return {}
    return run_folder.settings(folder) | {"seed": run_folder.run_config(folder).get("seed")}


def as_settings(overrides: Iterable[str]) -> dict:
    """What a command line says, where the configuration did not travel with the numbers."""
    given = [o.lstrip("+") for o in overrides if "=" in o]
    return {key: OmegaConf.select(OmegaConf.from_dotlist([o]), key) for o in given for key in [o.split("=")[0]]}


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


def numbers(values: dict, prefix: str = "") -> Iterable[str]:
    """Every dotted key of a number, lists left aside."""
    for key, x in values.items():
        if isinstance(x, dict):
            yield from numbers(x, f"{prefix}{key}.")
        elif isinstance(x, int | float):
            yield f"{prefix}{key}"


def near(key: str, keys: Iterable[str]) -> str:
    """`did you mean ..?` of the keys that are most like one, by the whole or by a part."""
    keys = sorted(set(keys))
    parts = [k for k in keys if key.split(".")[-1] in k.replace(".", "_")]
    close = [*difflib.get_close_matches(key, keys, n=3, cutoff=0.5), *parts][:4]
    return f"did you mean {', '.join(dict.fromkeys(close))}?" if close else f"there are {', '.join(keys[:20])}"
