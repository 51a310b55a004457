"""`import prm_jax` scores and ranks as the commands do, and the package is whole where it is installed."""

import filecmp
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from conftest import LAST_DECIDES, ROOT, without_torch

import prm_jax
from prm_jax import InputError
from prm_jax.checkpoints import hf_config
from prm_jax.checkpoints import open as opening
from prm_jax.checkpoints.names import OpenOptions, open_verifier
from prm_jax.data.units import probability
from prm_jax.formats import read_format

PROBLEM, RIGHT, WRONG = LAST_DECIDES


@pytest.fixture(scope="module")
def verifier():
    return prm_jax.load("embedded_prm")


def test_scores_are_those_of_the_commands_scorer(verifier):
    options = OpenOptions(format=read_format("auto"))
    (logit_T,) = open_verifier("embedded_prm", options).score([(PROBLEM, RIGHT)])
    np.testing.assert_allclose(verifier.log_odds(PROBLEM, list(RIGHT)), logit_T, atol=1e-5)
    np.testing.assert_allclose(verifier.score(PROBLEM, RIGHT), probability(logit_T), atol=1e-6)
    several = verifier.score([PROBLEM, PROBLEM], [RIGHT, WRONG[:2]])
    assert [len(p_T) for p_T in several] == [3, 2]
    np.testing.assert_allclose(several[0], verifier.score(PROBLEM, RIGHT), atol=1e-5)


def test_candidates_are_ranked_by_the_models_own_aggregator():
    orm = prm_jax.load("embedded_orm")
    assert "embedded_orm" in repr(orm) and "last" in repr(orm)
    assert orm.rank(PROBLEM, [WRONG, RIGHT]) == [1, 0]
    assert orm.rank([PROBLEM, PROBLEM], [[WRONG, RIGHT], [RIGHT]]) == [[1, 0], [0]]
    assert prm_jax.load("embedded_orm", aggregator="min").rank(PROBLEM, [WRONG, RIGHT]) == [0, 1]


@pytest.mark.parametrize(
    "ask, key",
    [
        (lambda v: v.score(PROBLEM, []), "steps"),
        (lambda v: v.score([PROBLEM, PROBLEM], [RIGHT]), "problem"),
        (lambda v: v.rank([PROBLEM, PROBLEM], [[RIGHT]]), "problem"),
        (lambda v: v.score(None, RIGHT), "problem"),
        (lambda v: v.score(PROBLEM, None), "steps"),
        (lambda v: v.rank(PROBLEM, ["4+5=2\n2*3=6", "4+5=3"]), "steps"),
        (lambda v: prm_jax.load("embedded_prm", colour="red"), "colour"),
        (lambda v: prm_jax.load("embedded_prm", "none_such"), "format"),
        (lambda v: prm_jax.load("embedded", "eurus_implicit", reference="embedded_prm"), "reference"),
    ],
)
def test_bad_input_names_its_key(verifier, ask, key):
    with pytest.raises(InputError, match=key):
        ask(verifier)


def test_auto_is_bfloat16_for_wide_models_where_the_processor_multiplies_it(monkeypatch):
    monkeypatch.setattr(opening, "has_bfloat16_unit", lambda: True)
    assert opening.resolve_dtype("auto", "embedded") == "float32"
    monkeypatch.setattr(hf_config, "WIDE", 64)
    assert opening.resolve_dtype("auto", "embedded") == "bfloat16"
    assert opening.resolve_dtype("float32", "embedded") == "float32"
    monkeypatch.setattr(opening, "has_bfloat16_unit", lambda: False)
    assert opening.resolve_dtype("auto", "embedded") == "float32"


def test_the_newest_finished_run_is_meant_where_none_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="checkpoint"):
        prm_jax.load()


@pytest.mark.slow
def test_a_wheel_holds_what_the_commands_read(tmp_path):
    """Unpacked into an empty folder, the package evaluates from anywhere and holds what trains."""
    build = f"import setuptools.build_meta as backend; backend.build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    assert filecmp.cmp(ROOT / "train.py", tmp_path / "site/prm_jax/root/train.py", shallow=False)
    for path in ROOT.glob("conf/**/*.yaml"):
        assert (tmp_path / "site/prm_jax/root" / path.relative_to(ROOT)).exists()
    for path in ROOT.glob("prm_jax/assets/**/*"):
        assert (tmp_path / "site" / path.relative_to(ROOT)).exists()
    environment = without_torch(os.environ) | {"PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, "-m", "prm_jax", "evaluate", "task=witness", "figures=0"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    assert list(tmp_path.glob("runs/evaluate/*/results.json"))
