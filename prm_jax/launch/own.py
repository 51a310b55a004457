"""Loads a user's own function, named FILE.py:FUNCTION, and makes one line of whatever goes wrong in it."""

import copy
import runpy
from collections.abc import Callable
from pathlib import Path

from prm_jax import InputError
from prm_jax.launch.config import expect


def read_function(key: str, place: str, accept: Callable) -> Callable:
    """The function that the value `place` of a config key names; its results are what accept(where, result, *arguments)
    makes of them. The function gets copies of its arguments. InputError with key and place where it fails."""
    path, _, name = place.rpartition(":")
    expect(Path(path).is_file(), key, place, "FILE.py:FUNCTION of a file that exists")
    where = f"{key}: {place}"

    def run(step: Callable):
        try:
            return step()
        except (InputError, KeyboardInterrupt):
            raise
        except BaseException as error:  # anybody's code, SystemExit too
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise InputError(f"{where}: {why[:300]}") from error

    function = run(lambda: runpy.run_path(path).get(name))
    expect(callable(function), key, place, f"a function of {path}")
    return lambda *args: run(lambda: accept(where, function(*map(copy.copy, args)), *args))
