"""Configuration to frozen dataclasses: unknown, missing and wrongly typed keys raise one line that names the key."""

import dataclasses
import difflib
import types
import typing
from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from prm_jax import InputError

CONF = Path(__file__).parents[2] / "conf"


def parse(node, cls, key: str = "", elsewhere: tuple[str, ...] = ()):
    """A frozen dataclass from a config node: unknown, missing and wrongly typed keys raise InputError with their name.

    A key may be missing where the dataclass has a default. Nested dataclasses are parsed in turn; an int is accepted where a float is declared, and nothing else is converted.
    Sections named in `elsewhere` are left to another call.
    """
    try:
        values = (
            OmegaConf.to_container(node, resolve=True, throw_on_missing=True) if OmegaConf.is_config(node) else node
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
        raise InputError(f"{dot}{unknown}: unknown key" + (f"; did you mean {dot}{close[0]}?" if close else ""))
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
        if dataclasses.is_dataclass(kind) and isinstance(value, dict):
            return parse(value, kind, key)
        if origin is tuple and isinstance(value, list):
            return tuple(_value(x, typing.get_args(kind)[0], f"{key}[{i}]") for i, x in enumerate(value))
        if origin is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, origin) and (origin is bool or not isinstance(value, bool)):
            if origin is dict:
                return {name: _value(x, typing.get_args(kind)[1], f"{key}.{name}") for name, x in value.items()}
            return value
    raise InputError(f"{key}: got {value!r}, expected {type_name(hint)}")


def type_name(hint) -> str:
    names = {str: "a text", int: "an integer", float: "a number", bool: "true or false", type(None): "null"}
    if isinstance(hint, types.UnionType):
        return " or ".join(type_name(kind) for kind in hint.__args__)
    return names.get(typing.get_origin(hint) or hint, getattr(hint, "__name__", str(hint)))


def leaves(node, prefix: str = ""):
    """(dotted key, value) of every leaf of a config."""
    for key, value in OmegaConf.to_container(node, resolve=True).items() if OmegaConf.is_config(node) else node.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def expect(is_right: bool, key: str, found, expected: str):
    """InputError, one line, where the value of a key is not what it should be."""
    if not is_right:
        raise InputError(f"{key}: got {found!r}, expected {expected}")
