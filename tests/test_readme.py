"""README and docs are true: files, links, choices and tables that they name exist, and the Python example runs."""

import ast
import re

import pytest
from conftest import ROOT

from prm_jax.launch.config import CONF

PAGES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")]}
README = PAGES["README.md"]


@pytest.mark.parametrize("page", PAGES)
def test_links_and_pictures_exist(page):
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", PAGES[page]) + re.findall(r'src="([^"]+)"', PAGES[page])
    missing = [x for x in targets if not x.startswith("http") and not (ROOT / page).parent.joinpath(x).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_choices_that_are_named_exist(page):
    """data=NAME and the like, each a file of conf/; NAME, FILE and other words in capitals stand for the reader's own."""
    found = re.findall(r"(?<![.\w])(data|task|format|experiment)=([a-z]\w*)", PAGES[page])
    assert [(group, name) for group, name in found if not (CONF / group / f"{name}.yaml").exists()] == []
    figures = re.findall(r"prm_jax.figures name=([a-z]\w*)", PAGES[page])
    assert [x for x in figures if x != "all" and not (CONF / "figure" / f"{x}.yaml").exists()] == []


def test_change_x_open_y_names_files_and_their_tables():
    rows = re.findall(r"^\| [^|]+ \| `(prm_jax/[^`]+)` \| an entry of `(\w+)`", README, flags=re.MULTILINE)
    assert len(rows) == 6
    for file, name in rows:
        body = ast.parse((ROOT / file).read_text()).body
        names = [getattr(t, "id", None) for node in body if isinstance(node, ast.Assign) for t in node.targets]
        names += [node.target.id for node in body if isinstance(node, ast.AnnAssign)]
        assert name in names, f"{file} has no table {name}"


def test_every_file_of_the_house_is_on_its_plan():
    plan = README[README.index("## Where to find what") :]
    flat = [path.name for path in ROOT.glob("prm_jax/*.py") if path.name != "__init__.py"]
    folders = [path.name for path in ROOT.glob("prm_jax/*/") if path.name != "__pycache__"]
    assert [x for x in flat if x not in plan] == []
    assert [x for x in folders if f"{x}/" not in plan] == []


def test_the_python_example_runs(capsys):
    exec(re.search(r"```python\n(import prm_jax\n.*?)```", README, flags=re.DOTALL)[1], {})  # noqa: S102 (our own page)
    scores, ranking = capsys.readouterr().out.splitlines()
    assert len(re.findall(r"\d\.\d+", scores)) == 2 and ranking == "[1, 0]"  # the right solution first
