"""Starts commands: configuration and help are Hydra's, bad input ends in one line."""

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from prm_jax import InputError
from prm_jax.launch.config import CONF, store_defaults
from prm_jax.launch.files import cache_folder
from prm_jax.launch.overrides import multirun_first, refusal, require_once
from prm_jax.launch.run_folder import output_dir

# Errors that end in one line: bad input, refusals of the system such as a full disk, an optional package.
USER_ERRORS = (InputError, OSError, MemoryError, ImportError)
FULL_ERROR = "HYDRA_FULL_ERROR"


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
        traces = False  # whether the user asks for them

        @functools.wraps(main)
        def job(cfg: DictConfig) -> float | None:
            if not traces:
                os.environ.pop(FULL_ERROR, None)
            is_sweep = HydraConfig.get().mode == RunMode.MULTIRUN
            try:
                use_compilation_cache()
                return main(cfg)
            except USER_ERRORS as error:
                with contextlib.suppress(OSError):  # the folder is not empty
                    output_dir().rmdir()
                if traces:
                    raise
                if is_sweep:  # an exception, after which Hydra goes on with the other jobs
                    print(one_line(error), file=sys.stderr)
                    raise hydra.errors.CompactHydraException(one_line(error)) from None
                sys.exit(one_line(error))
            except KeyboardInterrupt:
                print("interrupted", file=sys.stderr)
                sys.exit(130)

        run = hydra.main(config_path=str(CONF), config_name=config_name, **options)(job)

        @functools.wraps(main)
        def start():
            nonlocal traces
            traces = FULL_ERROR in os.environ
            try:
                require_once(sys.argv[1:])
                sys.argv[1:] = multirun_first(sys.argv[1:])
                os.environ[FULL_ERROR] = "1"  # until a job begins: Hydra raises what it would print
                run()
            except InputError as error:
                sys.exit(one_line(error))
            except Exception as error:
                if traces:
                    raise
                sys.exit(f"error: {refusal(error, config_name, sys.argv[1:])}")
            finally:
                if not traces:
                    os.environ.pop(FULL_ERROR, None)

        return start

    return decorate


def one_line(error: Exception) -> str:
    """`error: MESSAGE` in one line."""
    text = " ".join(str(error).split())
    return f"error: {text}" if isinstance(error, InputError) else f"error: {type(error).__name__}: {text}"


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
