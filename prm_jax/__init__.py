"""Process reward models in JAX: train, score, rerank. `load` is that of prm_jax/api.py."""

import os

__version__ = "0.1.0"  # the one place; pyproject.toml reads it

# Only tokenizers of transformers are used, so silence its notice that PyTorch is missing.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")


class InputError(ValueError):
    """Bad input: one line that names file, line and field (or the key), found and expected."""


def __getattr__(name: str):
    """`load` of prm_jax/api.py, which is imported when it is first used, since it imports jax."""
    if name == "load":
        from prm_jax.api import load

        return load
    raise AttributeError(f"module 'prm_jax' has no attribute {name!r}")
