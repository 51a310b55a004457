"""Imports go down only, at no floor a circle; a toy and training on files load what they need."""

import ast

import pytest
from conftest import ROOT

FLOORS = [  # from the ground up; `core` is the rest of prm_jax's flat files
    "launch visibility data tasks solutions formats encoding examples protocols",
    "kernels core",
    "figures checkpoints critics generate",
    "evals rl api bench sampling labeling export sweeps __main__",
    "train evaluate",
]
FILES = [*ROOT.glob("prm_jax/**/*.py"), ROOT / "train.py", ROOT / "evaluate.py"]
MODULES = {".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): f for f in FILES}


def imports(name: str) -> set[str]:
    """Modules of ours that a module imports when it is imported."""
    found = set()
    for node in ast.parse(MODULES[name].read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found & MODULES.keys() - {name, "prm_jax"}


def floor(name: str) -> int:
    place = name.split(".")[1] if "." in name else name
    floors = [i for i, names in enumerate(FLOORS) if place in names.split()]
    return floors[0] if floors else 1


def loaded(name: str) -> set[str]:
    reached, new = set(), {name}
    while new:
        reached |= new
        new = set().union(*map(imports, new)) - reached
    return reached


def test_imports_go_down():
    graph = {name: imports(name) for name in MODULES if name != "prm_jax"}
    assert [(a, b) for a, found in graph.items() for b in found if floor(b) > floor(a)] == []
    while free := [name for name, found in graph.items() if not found & graph.keys()]:
        for name in free:
            del graph[name]
    assert graph == {}, "a circle"


@pytest.mark.parametrize(
    "name, absent",
    [
        ("train", ["prm_jax.generate", "prm_jax.figures"]),
        ("prm_jax.generate.search", ["prm_jax.model", "prm_jax.checkpoints"]),
        ("prm_jax.evals.witness", ["prm_jax.model", "prm_jax.checkpoints"]),
        ("prm_jax.losses", ["prm_jax.model", "prm_jax.launch"]),
    ],
)
def test_what_needs_little_loads_little(name, absent):
    assert not [module for module in loaded(name) if module.startswith(tuple(absent))]
