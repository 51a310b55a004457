"""docs/tour.md runs from top to bottom, and docs/tour.ipynb is the same. `python tests/test_tour.py` writes the notebook."""

import json
import re
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
PAGE, NOTEBOOK = ROOT / "docs/tour.md", ROOT / "docs/tour.ipynb"


def cells(page: str) -> list[tuple[str, str]]:
    """(kind of cell, its text) of a page: Python blocks are code, what stands between them is text."""
    parts = re.split(r"```python\n(.*?)```\n", page, flags=re.DOTALL)
    return [(("markdown", "code")[i % 2], part.strip("\n")) for i, part in enumerate(parts)]


def notebook(page: str) -> str:
    """The notebook of a page, in nbformat 4.5."""
    made = []
    for number, (kind, text) in enumerate(cells(page)):
        extra = {"execution_count": None, "outputs": []} if kind == "code" else {}
        lines = text.splitlines(keepends=True)
        made.append({"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": lines} | extra)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return (
        json.dumps({"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}, indent=1)
        + "\n"
    )


def test_the_notebook_is_the_page():
    assert NOTEBOOK.read_text() == notebook(PAGE.read_text()), "python tests/test_tour.py writes it"


def test_the_tour_runs(capsys):
    names = {}
    for kind, text in cells(PAGE.read_text()):
        if kind == "code":
            assert len([line for line in text.splitlines() if line]) <= 10
            exec(text, names)  # noqa: S102 (our own page)
    assert float(names["metrics"]["loss"]) < 0.693  # below that of a coin
    solved = {
        words[0]: float(words[-1])
        for words in map(str.split, capsys.readouterr().out.splitlines())
        if words[:1] in (["PRM"], ["log"])
    }
    assert solved["PRM"] > solved["log"] + 0.1  # by the best of 8
    scores = [names["verifier"].score(names["problem"], edited) for edited in (names["steps"], names["wrong"])]
    assert scores[0][0] > 0.9 and scores[1][0] < 0.5 and np.allclose(scores[0][1:], scores[1][1:], atol=0.1)


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(PAGE.read_text()))
