"""Every figure from nothing to its picture, at a reduced size: `python -m pytest -m gallery`, some twenty minutes of two busy cores."""

import csv
import json
import os

import pytest

from prm_jax.figures import __main__ as figures
from prm_jax.figures import pipeline

# Values of the figures' own keys, and keys of the commands, that keep every stage within seconds.
SMALL = {"seed": "0", "training": "2,4", "samples": "40,60", "control_samples": "40", "beta": "0.5"}
SMALL |= {
    "steps": "2",
    "data.solutions": "40",
    "data.test_solutions": "20",
    "eval.solutions": "20",
    "eval.every": "2",
}
SMALL |= {
    "fresh.problems": "4",
    "fresh.candidates": "4",
    "problems": "4",
    "budgets": "[30,60]",
    "validation_solutions": "10",
}
OWN = {
    "search": {"samples": "4"},
    "value_depth": {"data.test_solutions": "100"},
}  # its key of this name; 50 steps at a depth
TRAINED = [name for name in pipeline.names() if not pipeline.read_definition(name).data]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("gallery")  # one for all, so that stages which figures share are made once


@pytest.mark.gallery
@pytest.mark.parametrize("name", TRAINED)
def test_a_figure_runs_at_a_reduced_size(name, folder):
    words = [
        f"{key}={value}"
        for key, value in (SMALL | OWN.get(name, {})).items()
        if takes(name, key, value, folder)
    ]
    figures.run([f"name={name}", f"jobs={min(2, os.cpu_count())}", f"folder={folder}", *words])
    assert (folder / name / f"{name}.png").stat().st_size > 5_000
    about = json.loads((folder / name / "figure.json").read_text())
    assert about["says"] and all(os.path.exists(path) for path in about["stages"].values())
    assert list(csv.DictReader((folder / name / f"{name}.csv").open()))


def takes(name: str, key: str, value: str, folder) -> bool:
    """Whether a figure or one of its stages has the key."""
    return not pipeline.make_stages(pipeline.read_definition(name), {key: value}, folder, {})[1]
