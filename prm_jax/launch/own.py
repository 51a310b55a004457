"""Loads a user's own function, named FILE.py:FUNCTION, and makes one line of whatever goes wrong in it."""

import copy
import runpy
import traceback
from collections.abc import Callable
from pathlib import Path

from prm_jax import InputError
from prm_jax.launch.config import expect


def read_function(key: str, place: str, accept: Callable) -> Callable:
    """The function that the value `place` of a config key names; its results are what accept(where, result, *arguments)
    makes of them. The function gets copies of its arguments. InputError with key and place, in one line, where there is
    no such function, where it fails, or as `accept` raises it."""
    path, _, name = place.rpartition(":")
    expect(Path(path).is_file(), key, place, "FILE.py:FUNCTION of a file that exists")
    where = f"{key}: {place}"

    def run(step: Callable):
        try:
            return step()
        except (InputError, KeyboardInterrupt):
            raise
        except BaseException as error:  # anybody's code: SystemExit, an error whose text is an error
            why = " ".join("".join(traceback.format_exception_only(error)).split())
            raise InputError(f"{where}: {why[:300]}") from error

    function = run(lambda: runpy.run_path(path).get(name))
    expect(callable(function), key, place, f"a function of {path}")
    return lambda *args: run(lambda: accept(where, function(*map(copy.copy, args)), *args))
