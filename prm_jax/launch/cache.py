"""Names the folder of what a command keeps for later ones: compiled programs, samples, verdicts on answers."""

import atexit
import functools
import os
import sys
import tempfile
from pathlib import Path

ROOM = 1 << 20  # bytes that must fit in: a fuller disk would refuse in the middle


@functools.cache
def cache_folder() -> Path:
    """~/.cache/prm_jax, or a temporary folder, which one line says, where there is no home or it cannot be written."""
    try:
        if os.environ.get("HOME") == "":  # Path.home() would be /
            raise RuntimeError("HOME is empty")
        folder = Path.home() / ".cache" / "prm_jax"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(ROOM))
        return folder
    except (OSError, RuntimeError) as error:  # RuntimeError: nobody knows the user's home
        why = getattr(error, "strerror", None) or error
        print(f"cache       ~/.cache/prm_jax: {why}; nothing is kept for later commands", file=sys.stderr)
    temporary = tempfile.TemporaryDirectory(prefix="prm_jax_")
    atexit.register(temporary.cleanup)
    return Path(temporary.name)
