"""Starts commands: configuration and help are Hydra's, bad input ends in one line."""

import contextlib
import dataclasses
import functools
import inspect
import os
import re
import sys
import typing
from collections.abc import Callable
from pathlib import Path

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, OverrideParseException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from prm_jax import InputError
from prm_jax.launch.config import CONF, has_default
from prm_jax.launch.files import cache_folder
from prm_jax.launch.run_folder import output_dir

# Errors that end in one line: bad input, refusals of the system such as a full disk, an optional package.
USER_ERRORS = (InputError, OSError, MemoryError, ImportError)
SHOWS_TRACES = "HYDRA_FULL_ERROR" in os.environ


def command(config_name: str, config: type | None = None):
    """Decorates a `main(cfg)` as the Hydra command of conf/{config_name}.yaml. What it returns, a number or
    None, is the job's metric. The defaults of the dataclass `config` need no line in YAML.
    HYDRA_FULL_ERROR=1 shows the traceback of an error."""
    if config is not None:
        store_defaults(f"{config_name}_defaults", config)
    options = {"version_base": "1.3"}
    if "execution_whitelist" in inspect.signature(hydra.main).parameters:  # Hydra 1.4
        options = {"execution_whitelist": f"{__name__}.AfterSweep"}

    def decorate(main: Callable[[DictConfig], float | None]) -> Callable[[], None]:
        has_begun = False

        @functools.wraps(main)
        def job(cfg: DictConfig) -> float | None:
            nonlocal has_begun
            has_begun = True
            try:
                use_compilation_cache()
                return main(cfg)
            except USER_ERRORS as error:
                with contextlib.suppress(OSError):  # the folder is not empty
                    output_dir().rmdir()
                if SHOWS_TRACES:
                    raise
                if HydraConfig.get().mode == RunMode.MULTIRUN:  # Hydra goes on with the other jobs
                    print(one_line(error), file=sys.stderr)
                    raise
                sys.exit(one_line(error))
            except KeyboardInterrupt:
                hint = f"; resume={cfg.resume or output_dir()} goes on" if "resume" in cfg else ""
                print(f"interrupted{hint}", file=sys.stderr)
                sys.exit(130)

        run = hydra.main(config_path=str(CONF), config_name=config_name, **options)(job)

        @functools.wraps(main)
        def start():
            nonlocal has_begun
            has_begun = False
            os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises what it would print in several lines
            try:
                sys.argv[1:] = map(expand_home, sys.argv[1:])
                run()
            except Exception as error:
                is_bug = has_begun and not isinstance(error, USER_ERRORS)
                if SHOWS_TRACES or is_bug:
                    raise
                sys.exit(one_line(error))

        return start

    return decorate


def script(main: Callable[[], None]):
    """Runs the main of a script of examples/, which what its user did wrong ends in one line."""
    try:
        main()
    except USER_ERRORS as error:
        sys.exit(one_line(error))
    except KeyboardInterrupt:
        sys.exit("interrupted")


def store_defaults(name: str, cls: type):
    """Gives Hydra the defaults of a config dataclass as the node `name`, which its command's list begins
    with: so a field with a default is a key without a line in YAML. Left out are `is_open` sections."""
    ConfigStore.instance().store(name=name, node=defaults_of(cls))


def defaults_of(cls: type) -> dict:
    values = {}
    for name, hint in typing.get_type_hints(cls).items():
        field = cls.__dataclass_fields__[name]
        if has_default(field):
            default = field.default_factory() if field.default is dataclasses.MISSING else field.default
            values[name] = dataclasses.asdict(default) if dataclasses.is_dataclass(default) else default
        elif dataclasses.is_dataclass(hint) and not hasattr(hint, "is_open"):
            values[name] = defaults_of(hint)
    return values


def expand_home(word: str) -> str:
    """The word with the user's folder for each `~` that begins a path, also behind `policy:` or in a list:
    Hydra refuses it, and not every shell expands it."""
    return re.sub(r"(?<=[=:,\[\s'\"])~(?=/)", lambda _: os.path.expanduser("~"), word)


def one_line(error: Exception) -> str:
    """`error: MESSAGE` in one line, without Hydra's advice for programmers."""
    text = " ".join(str(error).split())
    if isinstance(error, InputError):
        return f"error: {text}"
    if isinstance(error, OverrideParseException):
        return f"error: {error.override}: is not KEY=VALUE; spaces or brackets need quotes, 'KEY=[a, b]'"
    if isinstance(error, HydraException):
        for advice in (" Config search path:", " See https://hydra.cc", " Key '"):
            text = text.partition(advice)[0]
        return f"error: {text}"
    if isinstance(error, ValueError):  # of a group that is no name
        return f"error: {' '.join(sys.argv[1:])}: {text}"
    return f"error: {type(error).__name__}: {text}"


class AfterSweep(Callback):
    """Calls a function of the sweep's folder, named by `show`, once its jobs are done."""

    def __init__(self, show: str):
        self.show = show

    def on_multirun_end(self, config: DictConfig, **more):
        hydra.utils.get_method(self.show)(Path(config.hydra.sweep.dir))


def use_compilation_cache():
    """Stores compiled programs on disk, so that only the first run with a shape waits for XLA."""
    import jax

    if not jax.config.jax_compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder()))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
