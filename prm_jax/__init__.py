"""Process reward models in JAX: train, score, rerank."""


class InputError(ValueError):
    """Bad input from the user: one line that names file, line and field (or the config key), found and expected."""
