"""The drawings of conf/figure: `draw` of each file here takes {line: stages} and returns Drawn (figures/paper.py)."""

import importlib
from collections.abc import Callable
from pathlib import Path

from prm_jax.launch.config import expect


def drawing(name: str) -> Callable:
    names = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))
    expect(name in names, "draw", name, ", ".join(names))
    return importlib.import_module(f"{__name__}.{name}").draw
