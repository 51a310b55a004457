"""The house keeps its floors: imports go down only, in no circle, and nothing below imports a command."""

import ast

from conftest import ROOT

FLOORS = [  # from the ground up; what is not named here is flat and lies on FLAT
    ("prm_jax", "prm_jax.launch"), ("prm_jax.data", "prm_jax.tasks"), ("prm_jax.kernels",), ("FLAT",),
    ("prm_jax.checkpoints",), ("prm_jax.critics", "prm_jax.checkpoints.verifiers", "prm_jax.sampling", "prm_jax.lab", "prm_jax.labeling", "prm_jax.relabeling", "prm_jax.search"), ("prm_jax.evals", "prm_jax.rl"), ("prm_jax.figures",), ("prm_jax.bench", "prm_jax.serve", "prm_jax.export", "train", "evaluate"),
]  # fmt: skip


def imports():
    """{module: the modules of ours that it imports}."""
    files = [*ROOT.glob("prm_jax/**/*.py"), ROOT / "train.py", ROOT / "evaluate.py"]
    modules = {".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): f for f in files}
    graph = {}
    for name, file in modules.items():
        found = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found |= {
                    f"{node.module}.{a.name}" if f"{node.module}.{a.name}" in modules else node.module
                    for a in node.names
                }
        graph[name] = found & modules.keys() - {name}
    return graph


def floor(module):
    places = module, ".".join(module.split(".")[:2])  # a file that stands above its folder is named by itself
    return next((i for place in places for i, names in enumerate(FLOORS) if place in names), 3)


def test_imports_go_down():
    wrong = [(a, b) for a, found in imports().items() for b in found if floor(b) > floor(a)]
    assert wrong == []


def test_no_import_circle():
    graph = imports()
    while free := [name for name, found in graph.items() if not found & graph.keys()]:
        for name in free:
            del graph[name]
    assert graph == {}


def test_no_file_is_long_and_the_flat_files_are_few():
    lines = {file: len(file.read_text().splitlines()) for file in ROOT.glob("prm_jax/**/*.py")}
    assert {file.name: n for file, n in lines.items() if n > 400} == {}
    assert sum(n for file, n in lines.items() if file.parent.name == "prm_jax") < 4_000
