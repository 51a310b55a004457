"""Finished runs and evaluations below some folders: the settings of each, and its numbers."""

import dataclasses
import difflib
import math
import os
from collections.abc import Iterable
from pathlib import Path

from omegaconf import OmegaConf

from prm_jax import InputError
from prm_jax.launch import run_folder
from prm_jax.launch.run_log import read_log

LARGE = ("checkpoints", "model", "figures", "tensorboard", "wandb")  # folders of a run that hold no run


@dataclasses.dataclass(frozen=True)
class Record:
    """One run: its settings {dotted key: value}, the seed among them, its overrides, and its numbers (JSON)."""

    name: str
    kind: str  # summary, results, metrics
    settings: dict
    overrides: tuple[str, ...]
    values: dict
    curve: tuple[dict, ...]  # the lines of metrics.jsonl
    made: float  # time of the file's last change
    whole: bool = True  # whether the settings are the whole configuration, not the overrides alone

    def __post_init__(self):
        versions = self.values.get("versions") or {}
        if not isinstance(versions, dict) or not all(isinstance(x, str) for x in self.overrides):
            raise TypeError("versions or overrides of another type")


def read_records(paths: Iterable[str]) -> tuple[list[Record], dict[str, str]]:
    """(records, {what is left out: why}) of files, and of folders with all below them."""
    records, left_out = [], {}
    for path in map(Path, paths):
        if not path.exists():
            raise InputError(f"runs: {path}: no such file or folder")
        if path.is_file():
            if path.name not in READ:
                raise InputError(f"runs: {path}: expected a folder or {', '.join(READ)}")
            records += read_file(path)
        for folder in folders(path):  # none below a file
            files = [file for file in READ if (folder / file).exists()]
            if {"summary.json", "results.json"}.isdisjoint(files):
                left_out[str(folder)] = why_not(folder)
            else:
                records += [r for file in files for r in read_file(folder / file)]
    # Overrides alone do not name what was left at its default, which is a value as any other.
    bare = {key: "default" for r in records if not r.whole for key in r.settings}
    return [r if r.whole else dataclasses.replace(r, settings=bare | r.settings) for r in records], left_out


def folders(root: Path) -> list[Path]:
    """The folders below `root` in which a command has run, the numbered ones of a sweep in their order."""
    runs = []
    for folder, names, files in os.walk(root):
        made = ".hydra" in names or not {"summary.json", "results.json", "error.txt"}.isdisjoint(files)
        is_job = Path(folder).name.isdigit() and (Path(folder).parent / "multirun.yaml").exists()
        runs += [Path(folder)] if made or is_job else []
        names[:] = [name for name in names if name not in LARGE and not name.startswith(".")]
    return sorted(
        runs, key=lambda p: [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in p.parts]
    )


def why_not(folder: Path) -> str:
    """Says why a folder in which a command has run has no number."""
    if (folder / "error.txt").exists():
        return f"failed: {(folder / 'error.txt').read_text().strip()}"
    if curve := read_log(folder / "metrics.jsonl")[0]:
        return f"not finished: at step {curve[-1]['step']} of {run_folder.run_config(folder).get('steps')}"
    return "not finished" if (folder / ".hydra").exists() else "not begun, or refused at its start"


def read_summary(path: Path) -> list[Record]:
    values, settings = run_folder.read_json(path), settings_of(path.parent)
    overrides = tuple(values.get("overrides", ()))
    known = (settings or as_settings(overrides)) | {"seed": values.get("seed")}
    return [
        Record(
            str(path.parent), "summary", known, overrides, values, (), path.stat().st_mtime, bool(settings)
        )
    ]


def read_metrics(path: Path) -> list[Record]:
    """The last line, and all of them as a curve; the settings of the summary beside it, where the run is finished."""
    lines, summary = tuple(read_log(path)[0]), path.with_name("summary.json")
    if not lines:
        raise InputError(f"runs: {path}: holds no line, expected one JSON object a logged step")
    if summary.exists():
        (run,) = read_summary(summary)
        origin = {name: run.values.get(name) for name in ("objective", "versions")}
        return [dataclasses.replace(run, kind="metrics", values=lines[-1] | origin, curve=lines)]
    settings, overrides = (
        settings_of(path.parent) or {"file": str(path)},
        tuple(run_folder.overrides_of(path.parent)),
    )
    return [Record(str(path.parent), "metrics", settings, overrides, lines[-1], lines, path.stat().st_mtime)]


def read_results(path: Path) -> list[Record]:
    """A record of each run that was evaluated, or one of an evaluation of other things. The settings of an evaluation
    have their names, or `evaluate.NAME` where the training has such a key too."""
    results, made = run_folder.read_json(path), path.stat().st_mtime
    settings = settings_of(path.parent) or as_settings(results.get("overrides", ()))
    settings.pop("checkpoint", None)
    scorers, verifiers = results.get("scorers", {}), results.get("verifiers", {})
    parts = [(run.get("verifier", f"run {i}"), run, run) for i, run in enumerate(results.get("runs", ()))]
    parts = parts or [(name, verifiers.get(name, {}), {"scorer": x}) for name, x in scorers.items()]
    records = []
    for name, origin, values in parts or [(str(path.parent), results.get("trained", {}), {})]:
        trained = origin.get("settings") or as_settings(origin.get("overrides", ()))
        known = {f"evaluate.{key}" if key in trained else key: x for key, x in settings.items()} | trained
        known |= {"seed": origin.get("train_seed", results.get("seed"))}
        known |= {"scorer": name} if scorers and not trained else {}
        overrides = (*results.get("overrides", ()), *origin.get("overrides", ()))
        whole = "settings" in origin or (not origin and (path.parent / ".hydra").exists())
        records.append(Record(name, "results", known, overrides, results | values, (), made, whole))
    return records


READ = {"summary.json": read_summary, "results.json": read_results, "metrics.jsonl": read_metrics}


def read_file(path: Path) -> list[Record]:
    """The records of one file; InputError where it holds anything but what our commands write."""
    try:
        return READ[path.name](path)
    except (AttributeError, LookupError, TypeError, RecursionError) as error:
        raise InputError(
            f"runs: {path}: is not as a command writes it ({error}); leave it out or delete it"
        ) from None


def settings_of(folder: Path) -> dict:
    """The settings of a run or an evaluation and its seed; empty where the folder has no configuration."""
    if not (folder / ".hydra" / "config.yaml").exists():
        return {}
    return run_folder.settings(folder) | {"seed": run_folder.run_config(folder).get("seed")}


def as_settings(overrides: Iterable[str]) -> dict:
    """The settings that overrides name, where the configuration did not travel with the numbers."""
    pairs = [(o.split("=")[0], o) for o in (o.lstrip("+") for o in overrides) if "=" in o]
    return {key: OmegaConf.select(OmegaConf.from_dotlist([o]), key) for key, o in pairs}


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


def near(key: str, keys: Iterable[str]) -> str:
    """`did you mean ..?` with the keys that are most like one, as a whole or in a part."""
    keys = sorted(set(keys))
    parts = [k for k in keys if key.split(".")[-1] in k.replace(".", "_")]
    close = [*difflib.get_close_matches(key, keys, n=3, cutoff=0.5), *parts][:4]
    return (
        f"did you mean {', '.join(dict.fromkeys(close))}?" if close else f"there are {', '.join(keys[:20])}"
    )
