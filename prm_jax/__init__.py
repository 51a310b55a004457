"""Process reward models in JAX: train, score, rerank. `load`, `train` and `evaluate` are those of prm_jax/api.py."""

import importlib
import os

__version__ = "0.1.0"  # the one place; pyproject.toml reads it

# Only tokenizers of transformers are used, so silence its notice that PyTorch is missing.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")


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
