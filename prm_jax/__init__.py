"""Process reward models in JAX: train, score, rerank. `load`, `train` and `evaluate` are those of prm_jax/api.py."""

import importlib
import os
import signal
import sys

__version__ = "0.1.0"  # the one place; pyproject.toml reads it

# Only tokenizers of transformers are used, so silence its notice that PyTorch is missing.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")

# Ctrl-C while a command imports ends it in one line; then it has handlers of its own. What only imports us keeps its own.
scripts = [os.path.join(os.path.dirname(__path__[0]), name) for name in ("train.py", "evaluate.py")]
is_module = sys.argv[:1] == ["-m"] and any(word.split(".")[0] == "prm_jax" for word in sys.orig_argv)
is_script = os.path.abspath("".join(sys.argv[:1])) in scripts
if (is_module or is_script) and signal.getsignal(signal.SIGINT) == signal.default_int_handler:
    signal.signal(signal.SIGINT, lambda *_: os._exit(print("interrupted", file=sys.stderr) or 130))


class InputError(ValueError):
    """Bad input from the user: one line that names file, line and field (or the config key), found and expected."""


API = ("load", "train", "evaluate")


def __getattr__(name: str):
    """A function of prm_jax/api.py, which is imported when one is first used, since it imports jax."""
    if name in API:
        return getattr(importlib.import_module("prm_jax.api"), name)
    raise AttributeError(f"module 'prm_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *API])
