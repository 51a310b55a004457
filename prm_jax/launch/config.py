"""Parses configuration into frozen dataclasses; errors name the unknown, missing or wrongly typed key."""

import dataclasses
import math
import types
import typing
from collections.abc import Callable
from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from prm_jax import InputError

PACKAGE = Path(__file__).parents[1]
# Of train.py, evaluate.py and conf/: the clone, or prm_jax/root of a wheel (pyproject.toml).
ROOT = PACKAGE / "root" if (PACKAGE / "root").is_dir() else PACKAGE.parent
CONF = ROOT / "conf"


def parse(node, cls, key: str = "", elsewhere: tuple[str, ...] = (), **done):
    """A `cls` from a config node or dict; InputError where a key is unknown, wrongly typed or missing. An int
    is a float, too. Sections in `elsewhere` are ignored, and those of `done` replaced."""
    try:
        is_config = OmegaConf.is_config(node)
        values = OmegaConf.to_container(node, resolve=True, throw_on_missing=True) if is_config else node
    except OmegaConfBaseException as error:  # a value that is missing, or a broken interpolation
        raise InputError(f"{error.full_key or key}: {str(error).splitlines()[0]}") from error
    expect(isinstance(values, dict), key, values, f"a section of {cls.__name__} keys")
    values = {name: value for name, value in values.items() if name not in (*elsewhere, *done)}
    values = getattr(cls, "from_keys", dict)(values)
    hints = typing.get_type_hints(cls, include_extras=True)
    dot = f"{key}." if key else ""
    for unknown in sorted(values.keys() - hints.keys(), key=str):
        raise InputError(f"{dot}{unknown}: unknown key; --help lists those that exist")
    for field in dataclasses.fields(cls):
        if field.name not in {*values, *done} and not has_default(field):
            raise InputError(f"{dot}{field.name}: missing key, expected {type_name(hints[field.name])}")
    return cls(**done, **{name: _value(value, hints[name], f"{dot}{name}") for name, value in values.items()})


def has_default(field: dataclasses.Field) -> bool:
    return not (field.default is field.default_factory is dataclasses.MISSING)


class Rule(typing.NamedTuple):  # a condition on a value beside its type, for an annotation such as Count
    allows: Callable[[typing.Any], bool]
    expected: str


def one_of(names: typing.Collection[str]) -> Rule:
    """The rule that a value is one of these names, such as a key of a table."""
    return Rule(lambda x: x in names, ", ".join(names))


# More is a slip of the keyboard, with which a command would hang in silence.
Count = typing.Annotated[int, Rule(lambda n: 1 <= n <= 10**8, "1 to 10^8")]
Natural = typing.Annotated[int, Rule(lambda n: n >= 0, "at least 0")]
Seed = typing.Annotated[int, Rule(lambda n: 0 <= n < 2**32, "at least 0 and below 2^32")]
Share = typing.Annotated[float, Rule(lambda x: 0 <= x <= 1, "a number in [0, 1]")]
BelowOne = typing.Annotated[float, Rule(lambda x: 0 <= x < 1, "a number in [0, 1)")]
Finite = typing.Annotated[float, Rule(math.isfinite, "a finite number")]
Positive = typing.Annotated[float, Rule(lambda x: 0 < x < math.inf, "a number above 0")]
NotNegative = typing.Annotated[float, Rule(lambda x: 0 <= x < math.inf, "a finite number, at least 0")]


def _kinds(hint):
    """(type, its Rules) of each kind of value that an annotation allows."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return [pair for kind in typing.get_args(hint) for pair in _kinds(kind)]
    if typing.get_origin(hint) is typing.Annotated:
        return [(hint.__origin__, hint.__metadata__)]
    if typing.get_origin(hint) is typing.Literal:
        return [(str, (one_of(typing.get_args(hint)),))]
    return [(hint, ())]


def _value(value, hint, key: str):
    """The value as its annotation has it: a list as a tuple, an object as a dataclass, an int as a float."""
    for kind, rules in _kinds(hint):
        origin = typing.get_origin(kind) or kind
        inner = typing.get_args(kind)
        if dataclasses.is_dataclass(kind) and (isinstance(value, dict) or kind is hint):
            return parse(value, kind, key)
        if origin is tuple and isinstance(value, list):
            return tuple(_value(x, inner[0], f"{key}[{i}]") for i, x in enumerate(value))
        if inner and origin is dict and isinstance(value, dict):
            return {name: _value(x, inner[1], f"{key}.{name}") for name, x in value.items()}
        if origin is float and type(value) is int:
            value = float(value)
        if isinstance(value, origin) and (origin in (bool, object) or not isinstance(value, bool)):
            if origin is list:
                is_flat = not any(x is None or isinstance(x, list | dict) for x in value)
                expect(is_flat, key, value, "texts or numbers in the list")
            for rule in rules:
                expect(rule.allows(value), key, value, rule.expected)
            return value
    raise InputError(f"{key}: got {shown(value)}, expected {type_name(hint)}")


def type_name(hint) -> str:
    """What an annotation allows: `int or NoneType`."""
    kinds = [typing.get_origin(kind) or kind for kind, _ in _kinds(hint)]
    return " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)


def expect(is_right: bool, key: str, value, expected: str):
    """Raises InputError, in one line, where the value of a key is not right."""
    if not is_right:
        raise InputError(f"{key}: got {shown(value)}, expected {expected}")


def shown(value, most: int = 200) -> str:
    """The value as it is written in Python, in one line, or how it begins."""
    text = " ".join(repr(value).splitlines())  # a table has several
    return text if len(text) <= most else f"{text[:most]}..."
