"""Reads a command line before and after Hydra does: no key stands twice, and a refusal is one line."""

import difflib
import re
from collections.abc import Sequence

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Transformer
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf

from prm_jax import InputError
from prm_jax.launch.config import CONF, flatten


def require_once(words: Sequence[str]):
    """InputError where two words set one key: of a sweep Hydra would run the jobs of the last word alone."""
    seen = {}  # key: (the word that sets it, what `read_word` says of that)
    for word in words:
        values = read_word(word)
        for key in values:
            if key in seen:
                other, others = seen[key]
                twice = f"{key}: stands twice, in {other} and in {word}"
                raise InputError(f"{twice}; write each key once{written_once(others, values)}")
        seen |= dict.fromkeys(values, (word, values))


def multirun_first(words: Sequence[str]) -> list[str]:
    """The words with -m before all overrides, which argparse takes from one place alone."""
    flags = [word for word in words if word in ("-m", "--multirun")]
    return flags + [word for word in words if word not in flags]


def read_word(word: str) -> dict[str, list[str]]:
    """{key: its values} of an override; of a dict's the keys in it too. A section has no values itself, and a
    word that sets nothing no keys."""
    if "=" not in word or word.startswith(("-", "~")):
        return {}
    try:
        override = OverridesParser.create().parse_override(word)
    except HydraException:  # Hydra says what is wrong with it
        return {}
    key = override.get_key_element().lstrip("+").removeprefix("hydra.sweeper.params.")
    value = override.value()
    options = value.list if isinstance(value, ChoiceSweep) else [value]
    sections = [option for option in options if isinstance(option, dict)]
    if not sections:
        return {key: [word.partition("=")[2]]}
    values = {key: []}
    for section in sections:
        for name, x in flatten(section, f"{key}."):
            values.setdefault(name.removeprefix("hydra.sweeper.params."), []).append(Transformer.str(x))
    return values


def written_once(*words: dict[str, list[str]]) -> str:
    """How to write what several words say, a key a word: a sweep where a key has several values."""
    merged = {}
    for values in words:
        for key, texts in values.items():
            merged.setdefault(key, {}).update(dict.fromkeys(texts))
    shown = [f"'{key}={','.join(texts)}'" for key, texts in merged.items() if texts]
    is_sweep = any(len(texts) > 1 for texts in merged.values())
    return f", for a sweep -m {' '.join(shown)}" if is_sweep else f": {' '.join(shown)}"


def refusal(error: Exception, config_name: str, words: Sequence[str]) -> str:
    """What Hydra says of a command line that it cannot compose, without its advice for programmers."""
    text = " ".join(str(error).split())
    for end in (" Config search path:", " See https://hydra.cc"):
        text = text.partition(end)[0]
    if isinstance(error, OverrideParseException):
        return (
            f"{error.override}: is not KEY=VALUE; a value with spaces or brackets needs quotes, 'KEY=[a, b]'"
        )
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
