"""The stages of a figure: commands of this repository with overrides, each run once, in a folder that says by what.

A figure is a file of conf/figure. `stages` are command lines; `{prm}` in one is the folder of the stage `prm`, `{seed}`
a value of the sweep key `seed`, and a line gives one stage for each combination of the sweep keys that it names. A line
and its sweep keys' texts use lines above it; a line of more sweep keys means all of its folders, joined by commas.

`data` names files that a figure needs and this repository does not ship: {override: path below PRM_JAX_DATA}.

`compare` are the differences that the figure was made for, in rows of its table (NAME.csv): the first is its primary one.

A stage's folder is its name and a hash of its resolved configuration, in which other stages appear by the names of
their folders and files by their content too: changing a stage changes every stage that uses it. `DONE` is written last,
and a folder that holds it is read, never run again. The code is not in the hash, since most edits change no number and
a stage may take an hour; a folder that other code has made is read, and its line says so.
"""

import dataclasses
import functools
import itertools
import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import hydra
import yaml
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from prm_jax import InputError
from prm_jax.data.rows import file_fingerprint
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import CONF, PACKAGE, ROOT, expect, flatten, parse

FIGURES = CONF / "figure"
REFERENCE = re.compile(r"\{(\w+)\}")  # an override's own braces hold more than a word
RESULTS = ("results.json", "summary.json")
MISSING = "(none)"  # a key that a configuration lacks


@dataclasses.dataclass(frozen=True)
class Line:
    """A command of a figure, once for each combination of the sweep keys that it names and of those in `sweep`."""

    run: str
    sweep: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A difference a - b of two series in a panel of a figure's table (b's may be another), at x or where they end."""

    panel: str
    a: str
    b: str
    x: float | None = None
    b_panel: str | None = None


@dataclasses.dataclass(frozen=True)
class Definition:
    """One file of conf/figure."""

    draw: str  # a file of figures/gallery
    sweep: dict[str, list | dict[str, str]]  # {key: its values, or {value: its text in a command line}}
    stages: dict[str, str | Line]
    data: dict[str, str] = dataclasses.field(default_factory=dict)  # {override: its file below PRM_JAX_DATA}
    compare: tuple[Comparison, ...] = ()  # the primary comparison, then the secondary ones


@dataclasses.dataclass(frozen=True, eq=False)
class Stage:
    """One command to run: a line of a figure at one combination of its sweep keys."""

    line: str  # its name in the figure: prm
    sweep: dict  # {"seed": 0}
    command: str  # train.py, evaluate.py, or a module of prm_jax
    overrides: tuple[str, ...]
    needs: tuple["Stage", ...]
    config: (
        dict  # {dotted key: value} of what its numbers depend on, other stages by the names of their folders
    )
    keys: frozenset[str]  # the top-level keys of its configuration
    digest: str
    folder: Path

    @property
    def name(self) -> str:
        return label(self.line, self.sweep)

    @property
    def done(self) -> bool:
        return (self.folder / "DONE").exists()

    @property
    def can_resume(self) -> bool:
        """Whether a kill has left something that its command may continue."""
        return (self.folder / ".hydra").is_dir() and not self.done

    @property
    def by_other_code(self) -> str:
        """Names the commit that has made it, where the code has changed since; empty where it is the same."""
        if self.read("stage.json").get("code") == code_fingerprint():
            return ""
        return f", made by other code: commit {run_folder.short_commit(self.record()['commit'])}"

    def record(self) -> dict:
        """The content of DONE: seconds, commit."""
        return self.read("DONE", seconds=float | int, cpu_seconds=float | int, resumed=bool, commit=str)

    def results(self) -> dict:
        """results.json or summary.json."""
        files = [self.folder / name for name in RESULTS if (self.folder / name).exists()]
        expect(bool(files), str(self.folder), "neither", " or ".join(RESULTS))
        return self.read(files[0].name)

    def read(self, name: str, **kinds) -> dict:
        """One of its JSON files; InputError says how it is made again."""
        remedy = f"delete {self.folder}, and the same command makes it again"
        return run_folder.read_json(self.folder / name, remedy, **kinds)


@functools.cache
def code_fingerprint() -> str:
    """The fingerprint of all code that a stage's numbers may depend on, which excludes the drawings."""
    files = [file for file in sorted(PACKAGE.glob("**/*.py")) if PACKAGE / "figures" not in file.parents]
    return run_folder.code_fingerprint([*files, ROOT / "train.py", ROOT / "evaluate.py"])


def label(line: str, sweep: dict) -> str:
    return re.sub(r"[^\w.+-]+", "-", "_".join([line, *map(str, sweep.values())]))


def names() -> list[str]:
    return sorted(path.stem for path in FIGURES.glob("*.yaml"))


def read_definition(name: str) -> Definition:
    expect(name in names(), "name", name, f"all, {', '.join(names())}")
    path = FIGURES / f"{name}.yaml"
    try:
        return parse(yaml.safe_load(path.read_text()), Definition)
    except (yaml.YAMLError, InputError) as error:
        raise InputError(f"{path}: {error}") from None


def data_files(figure: Definition, overrides: dict[str, str]) -> dict[str, str]:
    """{key: path} of a figure's `data`, as the user names it or below PRM_JAX_DATA; InputError where one is absent."""
    paths = {}
    for key, place in figure.data.items():
        paths[key] = path = overrides.get(key, os.path.join(os.environ.get("PRM_JAX_DATA", ""), place))
        if not os.path.isfile(path):
            expected = f"expected {key}=FILE, or in PRM_JAX_DATA a folder with {place}"
            raise InputError(f"{key}: {path}: no such file; {expected}")
    return paths


def read_value(key: str, text: str):
    """A value of a command line, as YAML reads it."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):  # a date that is none, 10,000 brackets
        raise InputError(f"{key}: got {text[:60]!r}, expected a value or a list of them") from None


def sweep_texts(sweep: dict, overrides: dict[str, str]) -> dict[str, dict]:
    """{sweep key: {value: its text in a command line}}, with the values of the figure or of the user's override."""
    table = {}
    for key, values in sweep.items():
        chosen = values
        if (override := overrides.get(key)) is not None:
            chosen = read_value(key, override if override.startswith("[") else f"[{override}]")
            are_values = chosen and not any(isinstance(value, list | dict) for value in chosen)
            expect(are_values, key, override, "one value at least")
        for value in chosen if isinstance(values, dict) else ():
            expect(value in values, key, value, ", ".join(map(str, values)))
        table[key] = {value: values[value] if isinstance(values, dict) else str(value) for value in chosen}
    return table


def make_stages(
    figure: Definition, overrides: dict[str, str], root: Path, folders: dict
) -> tuple[dict, set[str]]:
    """({line: its stages} of a figure, the overrides that no stage takes); InputError where a line names what is neither
    a line above it nor a key. An override goes to every line whose command has that key, except lines that set it by a
    sweep key. `folders`, {hash: folder}, is filled: what two stages, or two figures, have in common is made once."""
    table = sweep_texts(figure.sweep, overrides)
    rest = {key: value for key, value in overrides.items() if key not in table}
    made, used = {}, set()
    for name, line in figure.stages.items():
        line = Line(line) if isinstance(line, str) else line
        words = REFERENCE.findall(line.run)
        words += [
            x for word in words for text in table.get(word, {}).values() for x in REFERENCE.findall(text)
        ]
        for word in words:
            known = f"a stage above it ({', '.join(made) or 'none'}) or a key of `sweep` ({', '.join(table)})"
            expect(word in made or word in table, f"stages.{name}", f"{{{word}}}", known)
        below = {word: made[word] for word in words if word in made}
        keys = [key for key in table if key in words or key in line.sweep]
        taken = known_overrides(
            line.run, {word: list(table[word].values()) for word in words if word in table}, rest
        )
        used.update(taken)
        combinations = itertools.product(*(table[key] for key in keys))
        sweeps = [dict(zip(keys, values, strict=True)) for values in combinations]
        made[name] = [
            make_stage(name, sweep, line.run, table, below, taken, root, folders) for sweep in sweeps
        ]
    return made, rest.keys() - used


def known_overrides(text: str, swept: dict[str, list[str]], overrides: dict[str, str]) -> dict[str, str]:
    """The user's overrides whose key a line's command has: a value, a section or a group of files."""
    if not overrides:
        return {}
    command, *words = shlex.split(text)
    taken = {word.split("=")[0] for word in words if REFERENCE.search(word)}
    taken |= {word.split("=")[0] for texts in swept.values() for text in texts for word in shlex.split(text)}
    cfg = compose(command, [word for word in words if not REFERENCE.search(word)])
    conf = (CONF / f"{config_name(command)}.yaml").read_text()
    groups = re.findall(r"^  - /?(\w+):", conf, flags=re.MULTILINE)
    absent = object()

    def is_known(key: str) -> bool:
        # What has no place in the configuration yet, and Hydra's own keys, go to every stage.
        is_free = key.startswith(("+", "~", "hydra"))
        return is_free or key in groups or OmegaConf.select(cfg, key, default=absent) is not absent

    return {key: value for key, value in overrides.items() if key not in taken and is_known(key)}


def make_stage(
    line, sweep: dict, text: str, table: dict, below: dict, overrides: dict, root: Path, folders
) -> Stage:
    """A stage at one combination of sweep keys; it uses the stages `below` that agree with it in these keys."""

    def agrees(stage: Stage) -> bool:
        return all(sweep.get(key, x) == x for key, x in stage.sweep.items())

    text = REFERENCE.sub(
        lambda match: table[match[1]][sweep[match[1]]] if match[1] in sweep else match[0], text
    )
    used = {name: list(filter(agrees, stages)) for name, stages in below.items() if f"{{{name}}}" in text}
    command, *words = shlex.split(text)
    words = [word for word in words if word.split("=")[0] not in overrides]
    words += [f"{key}={value}" for key, value in overrides.items()]

    def with_stages(written: Callable[[Stage], str]) -> list[str]:
        texts = {name: ",".join(map(written, stages)) for name, stages in used.items()}
        return [REFERENCE.sub(lambda match: texts.get(match[1], match[0]), word) for word in words]

    cfg = compose(
        command, with_stages(lambda stage: f"{stage.name}-{stage.digest}")
    )  # whoever has made its folder
    # Null keys are left out, so that a null key added by a later version changes no older folder's hash.
    pairs = ((key, x) for key, x in flatten(cfg) if x is not None)
    config = {key: x for key, x in pairs if key.split(".")[0] not in run_folder.NO_EFFECT}
    config |= contents(config)
    digest = run_folder.sha256(json.dumps([command, sorted(config.items())], default=str))[:8]
    needs = tuple({stage.folder: stage for stages in used.values() for stage in stages}.values())
    if digest not in folders:
        folders[digest] = next(root.glob(f"*-{digest}"), root / f"{label(line, sweep)}-{digest}")
    overrides = tuple(with_stages(lambda stage: str(stage.folder)))
    return Stage(line, sweep, command, overrides, needs, config, frozenset(cfg), digest, folders[digest])


def contents(config: dict) -> dict[str, list[str]]:
    """{"KEY (content)": fingerprints} of the files that a configuration names, such as FILE or FILE.py:FUNCTION."""
    fingerprints = {}
    for key, x in config.items():
        names = [name for name in (x if isinstance(x, list) else [x]) if isinstance(name, str)]
        if files := [
            name for name in (re.sub(r"\.py:\w+$", ".py", name) for name in names) if os.path.isfile(name)
        ]:
            fingerprints[f"{key} (content)"] = [file_fingerprint(file) for file in files]
    return fingerprints


def config_name(command: str) -> str:
    """The file of conf/ that a command reads."""
    name = command.removesuffix(".py")
    stems = {path.stem for path in (*ROOT.glob("*.py"), *PACKAGE.glob("*.py"))}
    stems |= {path.parent.name for path in PACKAGE.glob("*/__main__.py")} - {"figures"}
    commands = sorted(stems & {path.stem for path in CONF.glob("*.yaml")})
    expect(name in commands, "stages", command, f"a command: {', '.join(commands)}")
    return name


def compose(command: str, overrides: list[str]):
    name = config_name(command)
    try:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = hydra.compose(name, [x for x in overrides if not x.startswith("hydra")])
            OmegaConf.resolve(cfg)
            return cfg
    except (HydraException, OmegaConfBaseException) as error:
        message = cli.one_line(error).removeprefix("error: ")
        raise InputError(f"{command} {' '.join(overrides)}: {message}") from None


def explain(stage: Stage) -> str:
    """Says whether a stage is done and, if not, how it differs from the nearest older folder of its name."""
    state = "done" if stage.done else "stopped" if stage.can_resume else "to make"
    return f"{state:<12}{stage.name:<28} {stage.folder}{stage.by_other_code if stage.done else changed_keys(stage)}"


def changed_keys(stage: Stage) -> str:
    """The keys in which a stage differs from the older folder of its name that differs in fewest; empty without one."""
    config, changed = json.loads(json.dumps(stage.config, default=str)), {}
    for path in stage.folder.parent.glob(f"{stage.name}-*/stage.json"):
        older = run_folder.read_json(path, name=str, config=dict)
        if path.parent != stage.folder and older["name"] == stage.name:
            before = older["config"]
            rows = [(k, before.get(k, MISSING), config.get(k, MISSING)) for k in sorted(config | before)]
            changed[path.parent.name] = [
                f"{k}: {short(old)} -> {short(new)}" for k, old, new in rows if old != new
            ]
    if not changed:
        return ""
    nearest = min(changed, key=lambda name: len(changed[name]))
    return f"\n{'':<12}against {nearest}: {', '.join(changed[nearest])}"


def short(value) -> str:
    return text if len(text := str(value)) <= 60 else f"{text[:60]}..."
