"""Process reward models in JAX: train, score, rerank."""

import os

__version__ = "0.1.0"  # the one place; pyproject.toml reads it

# Only tokenizers of transformers are used, so silence its notice that PyTorch is missing.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")


class InputError(ValueError):
    """Bad input from the user: one line that names file, line and field (or the config key), found and expected."""
