"""The house keeps its floors: imports go down only, in no circle, and nothing below imports a command."""

import ast

from conftest import ROOT

COMMANDS = (
    "prm_jax.sampling",
    "prm_jax.labeling",
    "prm_jax.relabeling",
    "prm_jax.export",
    "train",
    "evaluate",
)
COMMANDS += ("prm_jax.api", "prm_jax.__main__")
FLOORS = [  # from the ground up; what is not named here is the core, flat in prm_jax/
    ("prm_jax", "prm_jax.launch", "prm_jax.protocols"),
    ("prm_jax.data", "prm_jax.tasks", "prm_jax.solutions", "prm_jax.formats", "prm_jax.examples"),
    ("prm_jax.kernels",), ("CORE",), ("prm_jax.figures",),
    ("prm_jax.checkpoints",), ("prm_jax.generate", "prm_jax.critics", "prm_jax.checkpoints.verifiers"),
    ("prm_jax.evals", "prm_jax.rl"), ("prm_jax.bench", "prm_jax.checkpoints.export"),
    COMMANDS,
]  # fmt: skip


def imports(at_import=False):
    """{module: the modules of ours that it imports}, those named within functions too or, at_import, without them."""
    files = [*ROOT.glob("prm_jax/**/*.py"), ROOT / "train.py", ROOT / "evaluate.py"]
    modules = {
        ".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): f for f in files
    }
    graph = {}
    for name, file in modules.items():
        found = set()
        tree = ast.parse(file.read_text())
        for node in tree.body if at_import else ast.walk(tree):
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
    return next(
        (i for place in places for i, names in enumerate(FLOORS) if place in names), FLOORS.index(("CORE",))
    )


def test_imports_go_down():
    wrong = [(a, b) for a, found in imports().items() for b in found if floor(b) > floor(a)]
    assert wrong == []


def test_no_import_circle():
    graph = imports()
    while free := [name for name, found in graph.items() if not found & graph.keys()]:
        for name in free:
            del graph[name]
    assert graph == {}


def test_what_needs_no_policy_loads_none():
    """Training on a file loads nothing of generate/; search is written against protocols, the losses against arrays."""
    graph = imports(at_import=True)

    def loaded(module):
        reached = {module}
        while more := set().union(*(graph[name] for name in reached)) - reached:
            reached |= more
        return reached

    assert not [name for name in loaded("train") if name.startswith("prm_jax.generate")]
    assert not loaded("prm_jax.generate.search") & {"prm_jax.model", "prm_jax.checkpoints.open"}
    assert loaded("prm_jax.losses") == {"prm_jax.losses"}
