"""Figures of papers: stored tables are redrawn, differences are what they were, commands compose and run."""

import importlib
import re
import sys
from functools import partial
from types import SimpleNamespace

import hydra
import pandas as pd
import pytest

import evaluate
from examples.papers import run
from examples.papers.panels import draw_panels
from examples.papers.run import Difference, Figure, Table, differences, statements
from prm_jax.figures.style import BLUE, ORANGE
from prm_jax.launch.cli import store_defaults
from prm_jax.launch.config import CONF

FIGURES = {
    name: figure
    for file in run.NAMES
    for name, figure in importlib.import_module(f"examples.papers.{file}").FIGURES.items()
}
# The primary difference of each figure, its interval and exact p, as printed when the figure was made.
PRIMARY = {
    "attack": "+0.071 [+0.047, +0.094], p 0.008",
    "best_of_n": "+0.358 [+0.333, +0.383], p 0.008",
    "best_of_n_shift": "+0.165 [+0.134, +0.195], p 0.008",
    "implicit": "-0.049 [-0.058, -0.039], p 0.008",
    "labels_k": "-0.023 [-0.030, -0.016], p 0.008",
    "mc_labels": "+0.062 [+0.026, +0.098], p 0.008",
    "overoptimisation": "+0.246 [+0.198, +0.294], p 0.008",
    "rl": "+0.005 [-0.007, +0.018], p 0.625",
    "search": "+0.068 [+0.040, +0.096], p 0.008",
    "shift": "+0.061 [+0.053, +0.069], p 0.008",
    "supervision": "-0.028 [-0.056, +0.001], p 0.070",
    "threshold": "+0.093 [+0.051, +0.135], p 0.008",
    "trace_error": "-0.344 [-0.368, -0.320], p 0.008",
}


@pytest.mark.parametrize("name", PRIMARY)
def test_the_declared_differences_are_what_they_were(name):
    """The primary one with its test; a table's rows of differences, to the digits of the runs' values."""
    table = pd.read_csv(run.ROOT / "docs/gallery" / f"{name}.csv")
    found = differences(table, FIGURES[name].compare)
    stored = table[table.panel.str.startswith("difference of ")]
    for (item, difference_S), row in zip(found.items(), stored.itertuples(), strict=not stored.empty):
        assert row.panel == f"difference of {item.panel}"
        assert difference_S == pytest.approx([float(x) for x in row.values.split()], abs=2e-6)
    primary, *others = statements(found)
    assert primary.startswith("primary: ") and PRIMARY[name] in primary
    assert all(line.startswith("secondary: ") and ", by Holm " in line for line in others)


def test_holm_is_over_the_secondary_differences():
    says = statements(differences(pd.read_csv(run.ROOT / "docs/gallery" / "rl.csv"), FIGURES["rl"].compare))
    assert "PRM alone (PURE) - checker (RLOO): -0.958 [-1.029, -0.887], p 0.008, by Holm 0.023 " in says[2]
    assert "at equal tokens - checker (RLOO): +0.002 [-0.011, +0.016], p 0.930, by Holm 0.930 " in says[1]
    assert "no wrong step: PRM + checker (PURE) - checker (RLOO): +0.007 [-0.008, +0.022], p 0.391" in says[3]


SERIES = {
    "PRM, product": "PRM, best of n",
    "shortest solution": "shortest",
    "oracle: any of n is right": "oracle",
}


@pytest.mark.parametrize("page", ["README.md", "docs/gallery.md"])
def test_tables_of_the_real_pool_are_those_of_its_file(page):
    table = pd.read_csv(run.ROOT / "docs/gallery/real_pools.csv")
    curves = table[table.panel == "problems solved"].pivot(index="series", columns="x", values="y")
    shown = re.search(
        r"\| solved at n \| 1 \| 4 \| 16 \| 32 \|\n.*\n((?:\|.*\n)+)", (run.ROOT / page).read_text()
    )
    rows = [line.strip("|\n").split("|") for line in shown[1].splitlines()]
    for name, *cells in rows:
        name = name.strip(" *").removesuffix(" of the step scores")
        expected = curves.loc[SERIES.get(name, name), [1, 4, 16, 32]]
        assert [float(cell) for cell in cells] == pytest.approx(list(expected), abs=5.1e-4)


def test_the_vote_on_independent_slips_is_that_of_the_pages():
    table = pd.read_csv(run.ROOT / "docs/gallery/best_of_n.csv").set_index(["panel", "series", "x"]).y
    of_page = ("majority vote", 16, ".931"), ("majority vote", 64, ".995"), ("PRM", 16, "1.000")
    for series, n, shown in of_page:
        assert table["independent slips", series, n] == pytest.approx(float(shown), abs=5.1e-4)
        assert f"{shown} at {n}" in " ".join((run.ROOT / "docs/lab.md").read_text().split())


@pytest.mark.slow
@pytest.mark.parametrize("name", run.NAMES)
def test_a_stored_table_is_redrawn_by_one_command(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run.main([name, "--redraw"])
    own = importlib.import_module(f"examples.papers.{name}").FIGURES
    assert capsys.readouterr().out.count("says        primary: ") == len(own.keys() & PRIMARY.keys())
    for figure in own:
        assert (tmp_path / "runs/papers" / f"{figure}.png").stat().st_size > 5_000


@pytest.mark.parametrize("name", FIGURES)
def test_commands_compose(name, tmp_path):
    """Each line, for one seed: its keys are keys of the command."""
    for module in ("train", *(f"prm_jax.{name}" for name in ("labeling", "rl.__main__"))):
        importlib.import_module(module)  # stores the defaults of its keys
    one_seed = FIGURES[name]._replace(sweep={"seed": [0]} | FIGURES[name].sweep | {"seed": [0]})
    for stages in run.make_stages(one_seed, tmp_path).values():
        for stage in stages:
            words = [word for word in stage.words if not word.startswith("hydra.") and word != "-m"]
            command, config = words.pop(0), COMMANDS.get(stage.words[0], stage.words[1].split(".")[-1])
            if command.startswith("examples."):  # a script
                continue
            if config == "evaluate":
                task = words[0].removeprefix("task=")
                store_defaults("task_defaults", evaluate.task_class(task).Config)
            with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
                hydra.compose({"online": "rl"}.get(config, config), words)


COMMANDS = {"train.py": "train", "evaluate.py": "evaluate"}
FAKE = """
import json, pathlib, sys
folder, kind, seed, *others = sys.argv[1:]
if kind == "bad":
    sys.exit("error: an unlucky kind")
(pathlib.Path(folder) / "results.json").write_text(json.dumps({"x": int(seed) + (kind == "b"), "of": others}))
"""


def gather(stages: dict) -> Table:
    table = Table()
    for kind in ("a", "b"):
        own = [stage for stage in stages["prm"] if stage.sweep["kind"] == kind]
        table.number("x", kind, [stage.results()["x"] for stage in own], 1)
    table.curve("y", "a", [1, 2], [[0.0, 1.0]])
    return table


def test_lines_are_named_at_their_ends_in_the_colour_of_their_role():
    table = Table()
    for series, y in {"PRM": 0.9, "PRM + 0.5 log p": 0.9, "outcome model": 0.4}.items():
        table.curve("solved", series, [1, 2], [[0.5, y]] * 2)
    (axes,) = draw_panels(pd.DataFrame(table), ["solved"], "n").axes
    colour_of = {text.get_text(): text.get_color() for text in axes.texts}
    assert colour_of["PRM"] == colour_of["PRM + 0.5 log p"] == BLUE and colour_of["outcome model"] == ORANGE
    y_of = {text.get_text(): text.xy[1] for text in axes.texts}
    assert abs(y_of["PRM"] - y_of["PRM + 0.5 log p"]) > 0.02 and y_of["outcome model"] == pytest.approx(0.4)


@pytest.fixture
def figure(tmp_path, monkeypatch):
    """A figure whose commands write what they were told."""
    (tmp_path / "fake.py").write_text(FAKE)
    stages = {
        "prm": f"{tmp_path}/fake.py {{out}} {{kind}} {{seed}}",
        "pool": f"{tmp_path}/fake.py {{out}} a {{seed}} [{{prm}}]",
        "each": f"{tmp_path}/fake.py {{out}} a 0 {{prm}}",
    }
    sweep = {"kind": {"a": "a", "b": "b"}, "seed": range(3)}
    draw = partial(draw_panels, names=["y"], xlabel="x")
    made = Figure(stages, gather, draw, [Difference("x", "b", "a")], sweep)
    monkeypatch.setitem(sys.modules, "examples.papers.best_of_n", SimpleNamespace(FIGURES={"tiny": made}))
    monkeypatch.chdir(tmp_path)
    return made


def test_stages_are_run_once_in_order_and_know_each_others_folders(figure, tmp_path, capsys):
    run.main(["best_of_n"])
    out = capsys.readouterr().out
    assert out.count("stage       ") == 15 and "says        primary: x: b - a: +1.000" in out
    lines = run.make_stages(figure, tmp_path / "runs/papers/stages")
    assert [len(lines[line]) for line in ("prm", "pool", "each")] == [6, 3, 6]
    of_seed_1 = [str(stage.folder) for stage in lines["prm"] if stage.sweep["seed"] == 1]
    assert lines["pool"][1].results()["of"] == [f"[{','.join(of_seed_1)}]"]
    assert lines["each"][1].results()["of"] == [str(lines["prm"][1].folder)]
    run.main(["best_of_n"])
    assert "stage  " not in capsys.readouterr().out


def test_a_failed_stage_is_one_line_and_other_figures_go_on(figure, tmp_path, monkeypatch, capsys):
    bad = figure._replace(sweep={"kind": {"a": "a", "b": "bad"}, "seed": [0]})
    monkeypatch.setattr(run, "NAMES", ["best_of_n"])
    own = SimpleNamespace(FIGURES={"bad": bad, "tiny": figure})
    monkeypatch.setitem(sys.modules, "examples.papers.best_of_n", own)
    assert run.main(["all"]) == 1
    assert "error: bad: " in capsys.readouterr().err
    first, second, *_ = run.make_stages(bad, tmp_path / "runs/papers/stages")["prm"]
    assert (first.folder / "DONE").exists() and not (second.folder / "DONE").exists()
    assert (tmp_path / "runs/papers/tiny.csv").exists() and not (tmp_path / "runs/papers/bad.csv").exists()
