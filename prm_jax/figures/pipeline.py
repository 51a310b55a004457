"""The stages of a figure: commands of this repository with overrides, each made once, in a folder that says what made it.

A figure is a file of conf/figure. `stages` are command lines; `{prm}` in one is the folder of the stage `prm`, `{seed}` a value
of the key `seed` of `over`, and a stage stands once for each combination of the keys that it names. A reference to a stage
with more keys than the line has means all of its folders, joined by commas.

Where a figure rests on files that this repository does not ship, `data` names them: each key is an override of its stages, its value the
file's place below the folder PRM_JAX_DATA.

A stage's folder is its name and a hash of its resolved configuration, in which other stages stand by their folders'
names and files by their content too: who changes a stage changes all that rest on it. `DONE` is written last, and a
folder that holds it is read, never run again. The code is not in the hash, since most edits change no number and a
stage may take an hour; a folder that other code has made is read, and its line says so.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import re
import shlex
from pathlib import Path

import hydra
import yaml
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from prm_jax import InputError
from prm_jax.data.rows import file_fingerprint
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import CONF, expect, flatten, parse

FIGURES = CONF / "figure"
REFERENCE = re.compile(r"\{(\w+)\}")  # an override's own braces hold more than a word
RESULTS = ("results.json", "summary.json")
MISSING = "(none)"  # a key that a configuration lacks


@dataclasses.dataclass(frozen=True)
class Line:
    """A command of a figure, once for each combination of the keys that it names and of those in `over`."""

    run: str
    over: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Definition:
    """One file of conf/figure."""

    draw: str  # a file of figures/gallery
    over: dict[str, list | dict[str, str]]  # {key: its values, or {value: its text in a command line}}
    stages: dict[str, str | Line]
    data: dict[str, str] = dataclasses.field(default_factory=dict)  # {override: its file below PRM_JAX_DATA}


@dataclasses.dataclass(frozen=True, eq=False)
class Stage:
    """One command to run: a line of a figure at one combination of its keys."""

    line: str  # its name in the figure: prm
    at: dict  # its keys: {"seed": 0}
    command: str  # train.py, evaluate.py, or a module of prm_jax
    overrides: tuple[str, ...]
    needs: tuple["Stage", ...]
    config: dict  # every leaf of its configuration that its numbers depend on, other stages by their folders' names
    keys: frozenset[str]  # on top of its configuration
    digest: str
    folder: Path

    @property
    def name(self) -> str:
        return label(self.line, self.at)

    @property
    def identity(self) -> str:
        """What it is called in the configurations of others, whoever has made its folder."""
        return f"{self.name}-{self.digest}"

    @property
    def done(self) -> bool:
        return (self.folder / "DONE").exists()

    @property
    def stopped(self) -> bool:
        """A kill has left something that its command may go on with."""
        return (self.folder / ".hydra").is_dir() and not self.done

    @property
    def by_other_code(self) -> str:
        """Which commit has made it, where the code has changed since; empty where it is the same."""
        made_by = run_folder.read_json(self.folder / "stage.json").get("code")
        return "" if made_by == code_fingerprint() else f", made by other code: commit {self.record()['commit'][:10]}"

    def record(self) -> dict:
        """What DONE says: seconds, commit."""
        return run_folder.read_json(self.folder / "DONE")

    def results(self) -> dict:
        """results.json or summary.json."""
        found = [self.folder / name for name in RESULTS if (self.folder / name).exists()]
        expect(bool(found), str(self.folder), "neither", " or ".join(RESULTS))
        return run_folder.read_json(found[0])


@functools.cache
def code_fingerprint() -> str:
    """That of all code that a stage's numbers may depend on: not of what draws them."""
    product = CONF.parent / "prm_jax"
    files = [file for file in sorted(product.glob("**/*.py")) if product / "figures" not in file.parents]
    return run_folder.code_fingerprint([*files, CONF.parent / "train.py", CONF.parent / "evaluate.py"])


def label(line: str, at: dict) -> str:
    return re.sub(r"[^\w.+-]+", "-", "_".join([line, *map(str, at.values())]))


def read_definition(name: str) -> Definition:
    names = sorted(path.stem for path in FIGURES.glob("*.yaml"))
    expect(name in names, "name", name, f"all, {', '.join(names)}")
    path = FIGURES / f"{name}.yaml"
    try:
        return parse(yaml.safe_load(path.read_text()), Definition)
    except (yaml.YAMLError, InputError) as error:
        raise InputError(f"{path}: {error}") from None


def data_files(figure: Definition, overrides: dict[str, str]) -> dict[str, str]:
    """{key: path} of a figure's `data`, as the user names it or below PRM_JAX_DATA; InputError where one is absent."""
    found = {
        key: overrides.get(key, os.path.join(os.environ.get("PRM_JAX_DATA", ""), place))
        for key, place in figure.data.items()
    }
    for key, path in found.items():
        told = f"{key}: {path}: no such file; expected {key}=FILE, or in PRM_JAX_DATA a folder with {figure.data[key]}"
        if not os.path.isfile(path):
            raise InputError(told)
    return found


def read_value(key: str, text: str):
    """A value of a command line, as YAML reads it."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise InputError(f"{key}: got {text!r}, expected a value or a list of them") from None


def key_values(over: dict, overrides: dict[str, str]) -> dict[str, dict]:
    """{key: {value: its text in a command line}}, as the figure or, where it is overridden, the user has them."""
    table = {}
    for key, values in over.items():
        values = values if isinstance(values, dict) else {value: str(value) for value in values}
        if (asked := overrides.get(key)) is not None:
            listed = read_value(key, asked if asked.startswith("[") else f"[{asked}]")
            expect(bool(listed), key, asked, "one value at least")
            named = isinstance(over[key], dict)
            for value in listed if named else ():
                expect(value in values, key, value, ", ".join(map(str, values)))
            values = {value: values[value] if named else str(value) for value in listed}
        table[key] = values
    return table


def make_stages(
    figure: Definition, overrides: dict[str, str], root: Path, folders: dict[str, Path]
) -> tuple[dict[str, list[Stage]], set[str]]:
    """({line: its stages} of a figure with the user's overrides, the overrides that nobody took); InputError where a stage or
    a key is unknown.

    An override goes to every line whose command has that key, but for lines that set it by a key of `over`. `folders`, by
    hash, is filled: what two stages, or two figures, have in common is made once, under the first one's name.
    """
    table = key_values(figure.over, overrides)
    rest = {key: value for key, value in overrides.items() if key not in table}
    lines = {name: Line(x) if isinstance(x, str) else x for name, x in figure.stages.items()}
    made, open_lines, used = {}, [], set()

    def make(name: str) -> list[Stage]:
        if name in made:
            return made[name]
        expect(name not in open_lines, "stages", " -> ".join([*open_lines, name]), "no circle of references")
        open_lines.append(name)
        text, words = lines[name].run, REFERENCE.findall(lines[name].run)
        for word in words:
            known = f"a stage ({', '.join(lines)}) or a key of `over` ({', '.join(table)})"
            expect(word in lines or word in table, f"stages.{name}", f"{{{word}}}", known)
        below = {word: make(word) for word in words if word in lines}
        keys = [key for key in table if key in words or key in lines[name].over]
        own = known_overrides(text, {word: list(table[word].values()) for word in words if word in table}, rest)
        used.update(own)
        made[name] = [
            make_stage(name, dict(zip(keys, values, strict=True)), text, table, below, own, root, folders)
            for values in itertools.product(*(table[key] for key in keys))
        ]
        open_lines.pop()
        return made[name]

    return {name: make(name) for name in lines}, rest.keys() - used


def known_overrides(text: str, swept: dict[str, list[str]], overrides: dict[str, str]) -> dict[str, str]:
    """Of the user's overrides those that a line's command has a key for: a value, a section or a group of files."""
    if not overrides:
        return {}
    command, *words = shlex.split(text)
    taken = {word.split("=")[0] for word in words if REFERENCE.search(word)}
    taken |= {word.split("=")[0] for texts in swept.values() for text in texts for word in shlex.split(text)}
    cfg = compose(command, [word for word in words if not REFERENCE.search(word)])
    conf = (CONF / f"{config_name(command)}.yaml").read_text()
    groups = re.findall(r"^  - /?(\w+):", conf, flags=re.MULTILINE)
    absent = object()
    knows = lambda key: key in groups or OmegaConf.select(cfg, key, default=absent) is not absent
    free = ("+", "~", "hydra")  # what has no place in the configuration yet, and Hydra's own keys, go to every stage
    return {k: x for k, x in overrides.items() if k not in taken and (k.startswith(free) or knows(k))}


def make_stage(
    line: str, at: dict, text: str, table: dict, below: dict, overrides: dict, root: Path, folders: dict[str, Path]
) -> Stage:
    agree = lambda other: all(other.at[key] == at[key] for key in other.at.keys() & at.keys())
    own = {name: [stage for stage in stages if agree(stage)] for name, stages in below.items()}
    text = REFERENCE.sub(lambda m: table[m[1]][at[m[1]]] if m[1] in at else m[0], text)
    command, *words = shlex.split(text)
    words = [word for word in words if word.split("=")[0] not in overrides]
    words += [f"{key}={value}" for key, value in overrides.items()]

    def written(of) -> list[str]:
        joined = lambda m: ",".join(of(stage) for stage in own[m[1]]) if m[1] in own else m[0]
        return [REFERENCE.sub(joined, word) for word in words]

    cfg = compose(command, written(lambda stage: stage.identity))
    # A key that is null says nothing: one that a later version has more does not make old folders other ones.
    config = {
        key: x for key, x in flatten(cfg) if key.split(".")[0] not in run_folder.KEYS_WITHOUT_EFFECT and x is not None
    }
    config |= contents(config)
    digest = hashlib.sha256(json.dumps([command, sorted(config.items())], default=str).encode()).hexdigest()[:8]
    needs = tuple({stage.folder: stage for stages in own.values() for stage in stages}.values())
    if digest not in folders:
        folders[digest] = next(root.glob(f"*-{digest}"), root / f"{label(line, at)}-{digest}")
    overrides = tuple(written(lambda stage: str(stage.folder)))
    return Stage(line, at, command, overrides, needs, config, frozenset(cfg), digest, folders[digest])


def contents(config: dict) -> dict[str, list[str]]:
    """{"KEY (content)": fingerprints} of the files that a configuration names, such as FILE or FILE.py:FUNCTION."""
    named = {key: x if isinstance(x, list) else [x] for key, x in config.items()}
    files = {key: [re.sub(r"\.py:\w+$", ".py", x) for x in own if isinstance(x, str)] for key, own in named.items()}
    there = {key: [file_fingerprint(x) for x in own if os.path.isfile(x)] for key, own in files.items()}
    return {f"{key} (content)": own for key, own in there.items() if own}


def config_name(command: str) -> str:
    """The file of conf/ that a command reads."""
    name = command.removesuffix(".py")
    places = ("{}.py", "prm_jax/{}.py", "prm_jax/{}/__main__.py")
    is_command = lambda stem: stem != "figures" and any((CONF.parent / x.format(stem)).exists() for x in places)
    commands = sorted(path.stem for path in CONF.glob("*.yaml") if is_command(path.stem))
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
        told = cli.one_line(error, name).removeprefix("error: ")
        raise InputError(f"{command} {' '.join(overrides)}: {told}") from None


def why(stage: Stage) -> str:
    """Whether a stage is done and, where it has yet to be made, what sets it apart from the nearest older folder of its name."""
    if stage.done:
        return f"done        {stage.name:<28} {stage.folder}{stage.by_other_code}"
    state = "stopped" if stage.stopped else "to make"
    return f"{state:<12}{stage.name:<28} {stage.folder}{difference(stage)}"


def difference(stage: Stage) -> str:
    older = [path.parent for path in stage.folder.parent.glob(f"{stage.name}-*/stage.json")]
    changed = {}
    for folder in older:
        before = run_folder.read_json(folder / "stage.json")
        if folder != stage.folder and before["name"] == stage.name:
            now, before = json.loads(json.dumps(stage.config, default=str)), before["config"]
            keys = sorted(k for k in now.keys() | before.keys() if now.get(k, MISSING) != before.get(k, MISSING))
            of = lambda config, k: short(config.get(k, MISSING))
            changed[folder.name] = [f"{k}: {of(before, k)} -> {of(now, k)}" for k in keys]
    if not changed:
        return ""
    nearest = min(changed, key=lambda name: len(changed[name]))
    return f"\n{'':<12}against {nearest}: {', '.join(changed[nearest])}"


def short(value) -> str:
    return text if len(text := str(value)) <= 60 else f"{text[:60]}..."
