"""Reads a command line before and after Hydra does: no key stands twice, and a refusal is one line."""

import difflib
import re
from collections.abc import Sequence

import hydra
from hydra.errors import OverrideParseException
from omegaconf import OmegaConf

from prm_jax import InputError
from prm_jax.launch.config import CONF, flatten


def require_once(words: Sequence[str]):
    """InputError where two words set one key: of a sweep Hydra would run the jobs of the last word alone."""
    word_of = {}
    for word in words:
        key, sets, _ = word.lstrip("+").partition("=")
        if not sets or key.startswith(("-", "~")):
            continue
        if key in word_of:
            twice = f"{key}: stands twice, in {word_of[key]} and in {word}"
            raise InputError(f"{twice}; write it once, for a sweep -m {key}=A,B")
        word_of[key] = word


def multirun_first(words: Sequence[str]) -> list[str]:
    """The words with -m before all overrides, which argparse takes from one place alone."""
    flags = [word for word in words if word in ("-m", "--multirun")]
    return flags + [word for word in words if word not in flags]


def refusal(error: Exception, config_name: str, words: Sequence[str]) -> str:
    """What Hydra says of a command line that it cannot compose, without its advice for programmers."""
    text = " ".join(str(error).split())
    for end in (" Config search path:", " See https://hydra.cc"):
        text = text.partition(end)[0]
    if isinstance(error, OverrideParseException):
        return f"{error.override}: is not KEY=VALUE; spaces or brackets need quotes, 'KEY=[a, b]'"
    if several := re.match(r"Ambiguous value for argument '(.+?)=(.+)' 1\. ", text):
        key, values = several.groups()
        return f"{key}: got {values}; a sweep needs -m, a list brackets: '{key}=[{values}]'"
    if isinstance(error, ValueError):  # of a group that is no name
        groups = [word for word in words if (CONF / word.partition("=")[0]).is_dir()]
        return f"{' '.join(groups)}: {text}"
    unknown = re.match(r"Could not override '(.+?)'", text)
    if unknown is None:
        return text
    key = unknown[1]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        keys = dict(flatten(OmegaConf.to_container(hydra.compose(config_name))))
    alike = [name for name in keys if name.endswith(f".{key}")] or difflib.get_close_matches(key, keys)
    hint = f"do you mean {' or '.join(alike)}" if alike else "--cfg job shows those there are"
    return f"{key}: no such key; {hint}"
