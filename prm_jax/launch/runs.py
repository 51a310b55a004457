"""Finds runs, and says in which settings they differ."""

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from prm_jax import InputError
from prm_jax.launch.config import expect
from prm_jax.launch.files import read_json
from prm_jax.launch.run_folder import FREE, run_config, section


def newest_run() -> Path:
    """The training run under runs/ that finished last, language models aside, which could not score."""
    summaries = sorted(Path("runs").glob("**/summary.json"), key=lambda path: path.stat().st_mtime)
    finished = [path.parent for path in summaries if read_json(path).get("objective") not in (None, "lm")]
    if not finished:
        raise InputError(f"checkpoint: no finished run in {Path('runs').resolve()}; name one or train first")
    return finished[-1].resolve()


def runs_of(folder: Path) -> list[Path]:
    """The runs of a checkpoint argument: the finished ones of a sweep's folder, or the folder itself."""
    if (folder / "checkpoints").is_dir():
        return [folder]
    runs = [path.parent for path in folder.glob("*/.hydra")]
    runs.sort(key=lambda run: run.name.zfill(9))  # 2 before 10
    if not runs:
        return [folder]
    finished = [run for run in runs if (run / "summary.json").exists()]
    expect(finished, "checkpoint", str(folder), "a sweep with a run that is finished")
    if len(finished) < len(runs):
        print(f"left out    {len(runs) - len(finished)} runs of the sweep that are not finished")
    return finished


def flatten(node, prefix: str = ""):
    """(dotted key, value) pairs of a nested config."""
    for key, value in node.items():
        if isinstance(value, dict | DictConfig):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def settings(folder: str | Path) -> dict:
    """{dotted key: value} of a run's configuration, without the seed and what changes no result."""
    pairs = flatten(OmegaConf.to_container(run_config(Path(folder)), resolve=True))
    return {key: value for key, value in pairs if section(key) not in ("seed", *FREE)}


def group_by_settings(settings: list[dict]) -> list[tuple[dict, list[int]]]:
    """[(its {key: value} that differ from others, indices of its runs)] of each setting. A missing key is no
    difference; `verifier`, of what is no run, always is one."""
    values, groups = {}, {}
    for setting in settings:
        for key, value in setting.items():
            values.setdefault(key, set()).add(repr(value))
    varied = sorted(key for key in values if key == "verifier" or len(values[key]) > 1)
    for i, setting in enumerate(settings):
        differing = {key: setting[key] for key in varied if key in setting}
        groups.setdefault(repr(differing), (differing, []))[1].append(i)
    return list(groups.values())
