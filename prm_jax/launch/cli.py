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
from prm_jax.launch.run_folder import output_dir

# Errors that end in one line: bad input, refusals of the system such as a full disk, an optional package.
USER_ERRORS = (InputError, OSError, MemoryError, ImportError)


def command(config_name: str, config: type | None = None):
    """Decorates a `main(cfg)` as the Hydra command of conf/{config_name}.yaml. What it returns, a number or
    None, is the job's metric, which sweepers such as Optuna's minimise or maximise. `config` is the dataclass
    that it parses: its defaults need no line in YAML. HYDRA_FULL_ERROR=1 shows the traceback of an error."""
    if config is not None:
        store_defaults(f"{config_name}_defaults", config)
    options = {"version_base": "1.3"}
    if "execution_whitelist" in inspect.signature(hydra.main).parameters:  # Hydra 1.4
        options = {"execution_whitelist": f"{__name__}.SweepTable"}

    def decorate(main: Callable[[DictConfig], float | None]) -> Callable[[], None]:
        @functools.wraps(main)
        def job(cfg: DictConfig) -> float | None:
            is_sweep = HydraConfig.get().mode == RunMode.MULTIRUN
            try:
                use_compilation_cache()
                return main(cfg)
            except USER_ERRORS as error:
                with contextlib.suppress(OSError):  # the folder is not empty
                    output_dir().rmdir()
                if "HYDRA_FULL_ERROR" in os.environ:
                    raise
                if is_sweep:  # an exception, after which Hydra goes on with the other jobs
                    print(one_line(error), file=sys.stderr)
                    raise hydra.errors.CompactHydraException(one_line(error)) from None
                sys.exit(one_line(error))
            except KeyboardInterrupt:
                print("interrupted", file=sys.stderr)
                sys.exit(130)

        return hydra.main(config_path=str(CONF), config_name=config_name, **options)(job)

    return decorate


def one_line(error: Exception) -> str:
    """`error: MESSAGE` in one line."""
    text = " ".join(str(error).split())
    return f"error: {text}" if isinstance(error, InputError) else f"error: {type(error).__name__}: {text}"


class SweepTable(Callback):
    """Ends a sweep of training runs with its table and figure."""

    def on_multirun_end(self, config: DictConfig, **more):
        from prm_jax.figures.sweeps import show_sweep  # not above: it imports matplotlib

        show_sweep(Path(config.hydra.sweep.dir))


def use_compilation_cache():
    """Stores compiled programs on disk, so that only the first run with a shape waits for XLA."""
    import jax

    if not jax.config.jax_compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder()))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
