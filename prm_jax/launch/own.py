"""Loads a user's own function or class, named FILE.py:NAME; what goes wrong in it is named by its key."""

import copy
import runpy
from collections.abc import Callable
from pathlib import Path

from prm_jax import InputError
from prm_jax.launch.config import expect


def load_object(key: str, place: str):
    """The function or class that the value `place` of a config key names."""
    path, _, name = str(place).rpartition(":")
    expect(Path(path).is_file(), key, place, "FILE.py:NAME of a file that exists")
    found = guard(f"{key}: {place}", lambda: runpy.run_path(path).get(name))
    expect(callable(found), key, place, f"a function or class of {path}")
    return found


def read_function(key: str, place: str, accept: Callable) -> Callable:
    """The function at `place`, called on copies, with accept(where, result, *arguments) as its result."""
    function = load_object(key, place)
    where = f"{key}: {place}"
    return lambda *args: guard(where, lambda: accept(where, function(*map(copy.copy, args)), *args))


def guard(where: str, step: Callable):
    """step(), with an InputError in place of what goes wrong in it."""
    try:
        return step()
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:  # anybody's code, SystemExit too
        raise InputError(f"{where}: {type(error).__name__}: {error}") from error
