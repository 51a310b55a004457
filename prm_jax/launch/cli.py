"""How a command starts: help, strict configuration, one-line errors, and where its folder lies.

Hydra composes the configuration; everything else of the code sees frozen dataclasses made here once.
"""

import argparse
import difflib
import fcntl
import inspect
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from tqdm import tqdm

from prm_jax import InputError
from prm_jax.launch.config import CONF, flatten

# What is said in one line: bad input, and what the system refuses, such as a full disk or a folder that cannot be written.
USER_ERRORS = (InputError, OSError)
# Of the sweep that this process has begun: its folder and the lock on it, which stands here since launchers pickle the callback.
active_sweeps: list[tuple[Path, TextIO | None]] = []


class SweepFolder(Callback):
    """Hydra says where a sweep lies to its jobs alone, which may run on other machines, and to this. One sweep at a time works
    in a folder of numbered jobs; stages of a figure, which a launcher takes elsewhere, share one, each under a name of its own."""

    def on_multirun_start(self, config: DictConfig, **more):
        folder, lock = Path(config.hydra.sweep.dir), None
        if OmegaConf.is_interpolation(config.hydra.sweep, "subdir"):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                lock = (folder / ".lock").open("a")  # goes with its process, however that ends
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                sys.exit(f"error: hydra.sweep.dir: {folder}: another sweep works in it; stop that one first")
            except OSError:  # the first job says why, in one line
                pass
        active_sweeps.append((folder, lock))


def command(config_name: str, end_of_sweep: Callable[[Path], None] | None = None):
    """Decorator for a `main(cfg)`: Hydra's, with the commented configuration as --help and one clear line an error.

    `end_of_sweep` gets the folder of a sweep when all of its jobs have ended, failed ones too.
    """

    def decorate(main: Callable[[DictConfig], None]) -> Callable[[], None]:
        full_error = "HYDRA_FULL_ERROR" in os.environ  # the user asks for tracebacks

        def job(cfg: DictConfig):
            try:
                main(cfg)
            except Exception as error:
                is_sweep = HydraConfig.get().mode == RunMode.MULTIRUN
                if is_sweep:
                    why = one_line(error) if isinstance(error, USER_ERRORS) else f"{type(error).__name__}: {error}"
                    told = " ".join(HydraConfig.get().overrides.task)
                    (Path(HydraConfig.get().runtime.output_dir) / "error.txt").write_text(f"{why} ({told})\n")
                    print(f"job {HydraConfig.get().job.num}: {why}", file=sys.stderr)
                    error.is_told = True
                # SystemExit would end a sweep; an exception lets Hydra go on with the next job.
                if is_sweep or full_error or not isinstance(error, USER_ERRORS):
                    raise
                sys.exit(one_line(error))

        def start():
            if {"--help", "-h"} & set(sys.argv[1:]):
                try:
                    print_help(config_name, main.__doc__)
                    sys.stdout.flush()
                except BrokenPipeError:  # `--help | head`: what is left goes nowhere
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return
            use_compilation_cache()
            if "execution_whitelist" in inspect.signature(hydra.main).parameters:  # Hydra 1.4
                of_hydra = {"execution_whitelist": f"{SweepFolder.__module__}.SweepFolder"}
            else:
                of_hydra = {"version_base": "1.3"}
                # Python 3.14 checks the help of every option, and refuses that of Hydra 1.3's --shell-completion.
                argparse.ArgumentParser._check_help = lambda self, action: None
            run = hydra.main(config_path=str(CONF), config_name=config_name, **of_hydra)(job)
            os.environ["HYDRA_FULL_ERROR"] = "1"  # makes Hydra hand its errors on, so that they become one line here
            failed = None
            try:
                run()
            except (*USER_ERRORS, hydra.errors.HydraException, OmegaConfBaseException) as error:
                if full_error:
                    raise
                failed = 1 if getattr(error, "is_told", False) else one_line(error, config_name)
            finally:
                if not full_error:
                    os.environ.pop("HYDRA_FULL_ERROR", None)
                if active_sweeps and (sweep := active_sweeps.pop()) and end_of_sweep:
                    end_of_sweep(sweep[0])  # whatever became of its jobs
            if failed:
                sys.exit(failed)

        return start

    return decorate


def one_line(error: Exception, config_name: str | None = None) -> str:
    """`error: what was wrong`, without line breaks; a mistyped key gets the nearest real one."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename or 'a file'}: {error.strerror}"
    text = " ".join(line.strip() for line in text.splitlines() if line.strip())
    if config_name and (mistyped := re.match(r"Could not override '([^']+)'", text)):
        key, keys = mistyped[1], known_keys(config_name)
        names = {k.split(".")[-1]: k for k in keys}
        close = difflib.get_close_matches(key, keys, n=1)
        close = close or [names[n] for n in difflib.get_close_matches(key.split(".")[-1], names, n=1)]
        hint = f"did you mean {close[0]}?" if close else "--help lists every key"
        return f"error: {key}: no such key in the configuration; {hint}"
    options = r"Available options in '[^']+': (.*?)(?: Config search path|$)"
    if unknown := re.match(rf".*Could not find '([\w/]+)/([^'/]+)'.*?{options}", text):
        return f"error: {unknown[1]}: got {unknown[2]!r}, expected {', '.join(unknown[3].split())}"
    if error.__cause__ is not None and (cause := str(error.__cause__).splitlines()[0]) not in text:
        text += f" ({cause})"
    return f"error: {text}"


def known_keys(config_name: str) -> list[str]:
    """Every dotted key of the default configuration."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return [key for key, _ in flatten(hydra.compose(config_name))]


def print_help(config_name: str, doc: str):
    """The commented configuration files: Hydra's own help drops the comments, which say what each key means."""
    print(doc.strip(), end="\n\n")
    module = {"sweeps": "figures.sweeps", "compare": "serve.compare"}.get(config_name, config_name)
    command = Path(sys.argv[0]).name if config_name in ("train", "evaluate") else f"-m prm_jax.{module}"
    print(f"Usage: python {command} [key=value ...] [-m key=value1,value2 ...]\n")
    top = (CONF / f"{config_name}.yaml").read_text()
    print(top.strip())
    for group, default in re.findall(r"^  - /?(\w+): (\w+)", top, flags=re.MULTILINE):
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


def progress(what: str, total: int, unit: str, initial: int = 0, **more) -> tqdm:
    """A progress bar with the time left; one line every 20 seconds where the output is a file. Only process 0 shows it."""
    import jax

    often = dict.fromkeys(("mininterval", "maxinterval"), 0.5 if sys.stderr.isatty() else 20)
    return tqdm(desc=what, total=total, initial=initial, unit=unit, disable=jax.process_index() > 0, **often, **more)


def print_counts(counts: dict[str, float], totals=("rows", "solutions", "steps", "labels")):
    """One line of everything that was dropped, cut, masked or odd in the data; the totals are left out."""
    number = lambda n: f"{n:.4g}" if isinstance(n, float) else f"{n:,}"
    odd = [f"{number(n)} {name}" for name, n in counts.items() if n and name not in totals]
    if odd:
        print(f"counts      {', '.join(odd)}")
