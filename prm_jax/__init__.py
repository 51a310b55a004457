"""Process reward models in JAX: train, score, rerank."""

import os

# Of transformers only tokenizers are used; that PyTorch is not there for its models is no news.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")


class InputError(ValueError):
    """Bad input from the user: one line that names file, line and field (or the config key), found and expected."""
