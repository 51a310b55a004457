"""Hides PyTorch from the commands that tests start: users need none, and transformers takes a second to
import it. They collect garbage as rarely as conftest.py does."""

import gc
from importlib.machinery import PathFinder

find_spec = PathFinder.find_spec
PathFinder.find_spec = lambda name, *where: None if name == "torch" else find_spec(name, *where)
gc.set_threshold(50_000, 20, 100)
