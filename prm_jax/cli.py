"""How a command starts: help, strict configuration, one-line errors, and where its folder lies.

Hydra composes the configuration; everything else of the code sees frozen dataclasses made here once.
"""

import dataclasses
import difflib
import json
import math
import os
import re
import subprocess
import sys
import types
import typing
from collections.abc import Callable
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from tqdm import tqdm

from prm_jax import InputError

CONF = Path(__file__).parent.parent / "conf"


def command(config_name: str):
    """Decorator for a `main(cfg)`: Hydra's, with the commented configuration as --help and one clear line an error."""

    def decorate(main: Callable[[DictConfig], None]) -> Callable[[], None]:
        full_error = "HYDRA_FULL_ERROR" in os.environ  # the user asks for tracebacks

        def job(cfg: DictConfig):
            try:
                main(cfg)
            except InputError as error:
                # SystemExit would end a sweep; an exception lets Hydra go on with the next job.
                if full_error:
                    raise
                if HydraConfig.get().mode == RunMode.MULTIRUN:
                    print(f"job {HydraConfig.get().job.num}: {one_line(error)}", file=sys.stderr)
                    raise
                sys.exit(one_line(error))

        def start():
            if {"--help", "-h"} & set(sys.argv[1:]):
                print_help(config_name, main.__doc__)
                return
            use_compilation_cache()
            run = hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)(job)
            if full_error:
                run()
                return
            os.environ["HYDRA_FULL_ERROR"] = (
                "1"  # makes Hydra hand its errors on, so that they become one line here
            )
            try:
                run()
            except (InputError, hydra.errors.HydraException, OmegaConfBaseException) as error:
                sys.exit(one_line(error, config_name))
            finally:
                os.environ.pop("HYDRA_FULL_ERROR", None)

        return start

    return decorate


def one_line(error: Exception, config_name: str | None = None) -> str:
    """`error: what was wrong`, without line breaks; a mistyped key gets the nearest real one."""
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    mistyped = re.match(r"Could not override '([^']+)'", text)
    if mistyped and config_name:
        key, keys = mistyped[1], known_keys(config_name)
        names = {k.split(".")[-1]: k for k in keys}
        close = difflib.get_close_matches(key, keys, n=1)
        close = close or [names[n] for n in difflib.get_close_matches(key.split(".")[-1], names, n=1)]
        hint = f"did you mean {close[0]}?" if close else "--help lists every key"
        return f"error: {key}: no such key in the configuration; {hint}"
    if error.__cause__ is not None and (cause := str(error.__cause__).splitlines()[0]) not in text:
        text += f" ({cause})"
    return f"error: {text}"


def known_keys(config_name: str) -> list[str]:
    """Every dotted key of the default configuration."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return [key for key, _ in leaves(hydra.compose(config_name))]


def print_help(config_name: str, doc: str):
    """The commented configuration files: Hydra's own help drops the comments, which say what each key means."""
    print(doc.strip(), end="\n\n")
    command = Path(sys.argv[0]).name if config_name in ("train", "evaluate") else f"-m prm_jax.{config_name}"
    print(f"Usage: python {command} [key=value ...] [-m key=value1,value2 ...]\n")
    top = (CONF / f"{config_name}.yaml").read_text()
    print(top.strip())
    groups = re.findall(r"^  - (?:optional )?/?(\w+): (\w+)", top, flags=re.MULTILINE)
    for group, default in groups:
        for path in sorted((CONF / group).glob("*.yaml"), key=lambda p: (p.stem != default, p.stem)):
            chosen = " (default)" if path.stem == default else ""
            print(f"\n# ----- {group}={path.stem}{chosen} -----\n{path.read_text().strip()}")


def use_compilation_cache():
    """Keeps compiled programs between processes, so that only the first run of a shape waits for XLA."""
    import jax

    if not jax.config.jax_compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", str(Path.home() / ".cache" / "prm_jax"))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def parse(node, cls, key: str = "", elsewhere: tuple[str, ...] = ()):
    """A frozen dataclass from a config node: unknown, missing and wrongly typed keys raise InputError with their name.

    A key may be missing where the dataclass has a default. Nested dataclasses are parsed in turn; an int is accepted where a float is declared, and nothing else is converted.
    Sections named in `elsewhere` are left to another call.
    """
    try:
        values = (
            OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
            if OmegaConf.is_config(node)
            else node
        )
    except OmegaConfBaseException as error:  # a `???` without a value, or a broken interpolation
        raise InputError(f"{error.full_key or key}: {str(error).splitlines()[0]}") from error
    if not isinstance(values, dict):
        raise InputError(f"{key}: got {values!r}, expected a section of {cls.__name__} keys")
    values = {name: value for name, value in values.items() if name not in elsewhere}
    hints = typing.get_type_hints(cls)
    dot = f"{key}." if key else ""
    for unknown in sorted(values.keys() - hints.keys(), key=str):
        close = difflib.get_close_matches(str(unknown), hints.keys(), n=1)
        raise InputError(
            f"{dot}{unknown}: unknown key" + (f"; did you mean {dot}{close[0]}?" if close else "")
        )
    for field in dataclasses.fields(cls):
        if field.name not in values and field.default is dataclasses.MISSING:
            expected = type_name(hints[field.name])
            raise InputError(f"{dot}{field.name}: missing key, expected {expected}")
    return cls(**{name: _value(value, hints[name], f"{dot}{name}") for name, value in values.items()})


def _value(value, hint, key: str):
    if dataclasses.is_dataclass(hint):
        return parse(value, hint, key)
    allowed = hint.__args__ if isinstance(hint, types.UnionType) else (hint,)
    for kind in allowed:
        origin = typing.get_origin(kind) or kind
        if origin is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, origin) and (origin is bool or not isinstance(value, bool)):
            if origin is dict:
                return {
                    name: _value(x, typing.get_args(kind)[1], f"{key}.{name}") for name, x in value.items()
                }
            return value
    raise InputError(f"{key}: got {value!r}, expected {type_name(hint)}")


def type_name(hint) -> str:
    names = {str: "a text", int: "an integer", float: "a number", bool: "true or false", type(None): "null"}
    if isinstance(hint, types.UnionType):
        return " or ".join(type_name(kind) for kind in hint.__args__)
    return names.get(typing.get_origin(hint) or hint, getattr(hint, "__name__", str(hint)))


def output_dir() -> Path:
    """The folder of this run or evaluation, as Hydra made it."""
    return Path(HydraConfig.get().runtime.output_dir)


def claim(folder: Path, cfg: DictConfig):
    """Makes an output folder this command's own, and records its configuration there, as Hydra lays it out.

    Hydra's own record is switched off: it is written before the command could refuse a folder that holds a run already.
    """
    try:
        (folder / ".hydra").mkdir()
    except FileExistsError:
        hint = f"; resume={folder} goes on with it" if (folder / "checkpoints").is_dir() else ""
        raise InputError(f"hydra.run.dir: {folder} already holds a run or an evaluation{hint}") from None
    OmegaConf.save(cfg, folder / ".hydra" / "config.yaml")
    OmegaConf.save(
        OmegaConf.create(list(HydraConfig.get().overrides.task)), folder / ".hydra" / "overrides.yaml"
    )


def progress(what: str, total: int, unit: str, initial: int = 0) -> tqdm:
    """A progress bar with the time left; one line every 20 seconds where the output is a file. Only process 0 shows it."""
    import jax

    interval = 0.5 if sys.stderr.isatty() else 20
    return tqdm(
        desc=what,
        total=total,
        initial=initial,
        unit=unit,
        mininterval=interval,
        maxinterval=interval,
        disable=jax.process_index() > 0,
    )


def newest_run(root: str = "runs") -> Path:
    """The training run that finished last under `root`, language models left aside: they cannot score."""
    summaries = sorted(Path(root).glob("**/summary.json"), key=lambda path: path.stat().st_mtime)
    finished = [
        path.parent for path in summaries if json.loads(path.read_text()).get("objective") in ("prm", "orm")
    ]
    if not finished:
        where = Path(root).resolve()
        raise InputError(
            f"checkpoint: no finished run under {where}; run `python train.py` first, or name one"
        )
    return finished[-1].resolve()


def runs_of(folder: Path) -> list[Path]:
    """The runs of a checkpoint argument: the finished numbered runs of a sweep folder, or the one folder that it is."""
    numbered = sorted((p for p in folder.glob("*") if p.name.isdigit()), key=lambda p: int(p.name))
    if (folder / "checkpoints").is_dir() or not numbered:
        return [folder]
    finished = [p for p in numbered if (p / "summary.json").exists()]
    if not finished:
        raise InputError(f"checkpoint: {folder} holds {len(numbered)} runs of a sweep, none of them finished")
    if len(finished) < len(numbered):
        print(
            f"left out    {len(numbered) - len(finished)} of {len(numbered)} runs of the sweep: not finished"
        )
    return finished


def resumed(cfg: DictConfig, harmless: tuple[str, ...]) -> tuple[Path, DictConfig]:
    """The run folder named by cfg.resume and the configuration to go on with: the stored one.

    Keys given on this command line must agree with it, but for the `harmless` ones, on which no result depends.
    """
    run = Path(str(cfg.resume)).resolve()
    if not (run / ".hydra" / "config.yaml").exists():
        raise InputError(f"resume: {run} is no run folder (it has no .hydra/config.yaml)")
    stored = OmegaConf.load(run / ".hydra" / "config.yaml")
    old, new, asked = dict(leaves(stored)), dict(leaves(cfg)), asked_keys()
    if "experiment" in asked:
        raise InputError(
            "resume: goes on with the run's own configuration, expected no experiment= beside it"
        )
    keys = [key for key in new.keys() | old.keys() if any(key == a or key.startswith(f"{a}.") for a in asked)]
    changed = sorted(key for key in keys if new.get(key) != old.get(key))
    refused = [f"{key} (was {old.get(key)}, asked {new.get(key)})" for key in changed if key not in harmless]
    if refused:
        raise InputError(f"resume: {', '.join(refused)}: would change the result; start a new run instead")
    for key in changed:
        OmegaConf.update(stored, key, new[key])
    return run, stored


def of_resumed(cfg: DictConfig, key: str):
    """A key that is needed before `resumed`: that of the run which goes on, if there is one and the command line says nothing."""
    stored = Path(str(cfg.resume)).resolve() / ".hydra" / "config.yaml"
    if cfg.resume is None or key in asked_keys() or not stored.exists():
        return cfg[key]
    return OmegaConf.load(stored).get(key, cfg[key])


def asked_keys() -> list[str]:
    """What this command line overrides."""
    return [override.split("=")[0].lstrip("+~") for override in HydraConfig.get().overrides.task]


def leaves(node, prefix: str = ""):
    """(dotted key, value) of every leaf of a config."""
    for key, value in (
        OmegaConf.to_container(node, resolve=True).items() if OmegaConf.is_config(node) else node.items()
    ):
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def print_counts(counts: dict[str, float]):
    """One line of everything that was dropped, cut, masked or odd in the data; the totals are left out."""
    totals = ("rows", "solutions", "steps", "labels")
    odd = [f"{n:.4g} {name}" for name, n in counts.items() if n and name not in totals]
    if odd:
        print(f"counts      {', '.join(odd)}")


def write_json(path: Path, value):
    """Writes a JSON file at once or not at all; a number that is undefined (NaN, infinite) is written as null."""

    def defined(x):
        if isinstance(x, dict):
            return {name: defined(y) for name, y in x.items()}
        if isinstance(x, list | tuple):
            return [defined(y) for y in x]
        return None if isinstance(x, float) and not math.isfinite(x) else x

    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(defined(value), indent=2, allow_nan=False) + "\n")
    temporary.replace(path)


def versions() -> dict[str, str]:
    """What produced a result: package versions and the commit of this repository (`+` = with uncommitted changes)."""
    from importlib import metadata

    packages = ("jax", "flax", "optax", "orbax-checkpoint", "transformers", "grain")

    def git(*args):  # an archive without .git has no commit, which is no error
        return subprocess.run(
            ["git", *args], cwd=CONF, capture_output=True, text=True, check=False
        ).stdout.strip()

    commit = git("rev-parse", "HEAD")
    dirty = "+" if commit and git("status", "--porcelain", "--untracked-files=no") else ""
    python = ".".join(map(str, sys.version_info[:3]))
    return {
        "python": python,
        **{p: metadata.version(p) for p in packages},
        "commit": commit + dirty or "unknown",
    }
