"""Makes a paper's figure from nothing: runs the commands that it needs and that are not done yet, then draws it."""

import dataclasses
import re
import sys
from pathlib import Path

import yaml

from prm_jax import InputError
from prm_jax.figures import paper, pipeline, running
from prm_jax.figures.gallery import drawing
from prm_jax.launch import cli
from prm_jax.launch.config import CONF, Count, expect, parse


@dataclasses.dataclass(frozen=True)
class FiguresConfig:
    name: str
    folder: str
    explain: bool
    jobs: Count
    launcher: str | None


def read_arguments(args: list[str]) -> tuple[FiguresConfig, dict[str, str]]:
    """(the keys of this command, the overrides that pass down to the stages)."""
    for arg in args:
        if "=" not in arg:
            raise InputError(f"{arg}: expected key=value")
    overrides = dict(arg.split("=", 1) for arg in args)
    for key in overrides:
        expect(sum(arg.startswith(f"{key}=") for arg in args) == 1, key, "several values", "one")
    if "resume" in overrides:
        raise InputError("resume: the same command continues a stopped figure")
    keys = yaml.safe_load((CONF / "figures.yaml").read_text())
    keys |= {key: pipeline.read_value(key, overrides.pop(key)) for key in list(overrides) if key in keys}
    if keys["name"] is None:
        raise InputError(f"name: missing, expected all, {', '.join(pipeline.names())}")
    return parse(keys, FiguresConfig), overrides


def run(args: list[str]):
    cfg, overrides = read_arguments(args)
    root = Path(cfg.folder)
    figures, unused, folders = {}, [], {}
    for name in pipeline.names() if cfg.name == "all" else [cfg.name]:
        figure = pipeline.read_definition(name)
        try:
            files = pipeline.data_files(figure, overrides)
        except InputError as error:
            if cfg.name != "all":
                raise
            print(f"skipped     {name}: {error}")
            continue
        stages, unused_keys = pipeline.make_stages(figure, overrides | files, root / "stages", folders)
        figures[name] = figure, drawing(figure.draw), stages
        unused.append(unused_keys)
    for key in sorted(set.intersection(*unused)):
        sweep_keys = ", ".join(dict.fromkeys(key for figure, *_ in figures.values() for key in figure.sweep))
        raise InputError(f"{key}: no stage takes this key; of the figure itself: {sweep_keys or 'none'}")
    for name, (figure, draw, stages) in figures.items():
        every = [stage for line in stages.values() for stage in line]
        n = len({stage.folder for stage in every})
        print(
            f"figure      {name}: {n} stages in {root / 'stages'}, each with its progress in log.txt",
            flush=True,
        )
        if cfg.explain:
            print("\n".join(map(pipeline.explain, every)))
            continue
        running.make_all(every, cfg.jobs, cfg.launcher)
        for path in paper.draw(draw, name, stages, overrides, root / name, figure.compare):
            print(f"figure      {path}")


def main():
    if not sys.argv[1:] or {"--help", "-h"} & set(sys.argv[1:]):
        named = [word.removeprefix("name=") for word in sys.argv[1:] if not word.startswith("-")]
        if unknown := set(named).difference(pipeline.names()):
            sys.exit(f"error: --help {min(unknown)}: no such figure, expected {', '.join(pipeline.names())}")
        if not named:
            print(f"{__doc__}\n\nUsage: python -m prm_jax.figures name=NAME [key=value ...]\n")
            print((CONF / "figures.yaml").read_text())
        for name in named or pipeline.names():
            header = re.match(r"(?:#.*\n)*", (pipeline.FIGURES / f"{name}.yaml").read_text())[0]
            print(f"# ----- name={name} -----\n{header}")
        return
    try:
        run(sys.argv[1:])
    except cli.USER_ERRORS as error:
        sys.exit(cli.one_line(error))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
