"""docs/tour.md runs from top to bottom and prints what it shows; docs/tour.ipynb is the same. `python
tests/test_tour.py` writes both."""

import contextlib
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
PAGE, NOTEBOOK = ROOT / "docs/tour.md", ROOT / "docs/tour.ipynb"
NUMBER = re.compile(r"-?\d+\.?\d*")
Cell = tuple[str, str, str | None]  # text before, code, what it printed


def cells(page: str) -> tuple[list[Cell], str]:
    """The cells of a page, and its text after the last one."""
    parts = re.split(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", page, flags=re.DOTALL)
    return list(zip(parts[::3], parts[1::3], parts[2::3], strict=False)), parts[-1]


def run(page: str) -> tuple[list[str], dict]:
    """What each cell prints, and the names at the end."""
    names, printed = {}, []
    for _, code, _ in cells(page)[0]:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(code, names)  # noqa: S102 (our own page)
        printed.append(out.getvalue())
    return printed, names


def with_outputs(page: str) -> str:
    """The page with what its cells print."""
    before, last = cells(page)
    shown = [f"\n```text\n{out}```\n" if out else "" for out in run(page)[0]]
    return (
        "".join(
            f"{text}```python\n{code}```\n{out}" for (text, code, _), out in zip(before, shown, strict=True)
        )
        + last
    )


def notebook(page: str) -> str:
    """The notebook of a page, in nbformat 4.5."""
    made, (before, last) = [], cells(page)
    for text, code, out in [*before, (last, "", None)]:
        lines = out and [{"output_type": "stream", "name": "stdout", "text": out.splitlines(keepends=True)}]
        for kind, source, extra in (
            ("markdown", text, {}),
            ("code", code, {"execution_count": None, "outputs": lines or []}),
        ):
            if source := source.strip("\n").splitlines(keepends=True):
                cell = {"cell_type": kind, "id": f"cell-{len(made)}", "metadata": {}, "source": source}
                made.append(cell | extra)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, sort_keys=True) + "\n"  # as ruff formats it


def test_the_notebook_is_the_page():
    assert NOTEBOOK.read_text() == notebook(PAGE.read_text()), "python tests/test_tour.py writes it"


def test_the_tour_runs_and_prints_what_it_shows():
    page = PAGE.read_text()
    printed, names = run(page)
    for (_, code, shown), out in zip(cells(page)[0], printed, strict=True):
        assert len([line for line in code.splitlines() if line]) <= 10
        words, numbers = (
            [part(text or "") for text in (shown, out)] for part in (NUMBER.split, NUMBER.findall)
        )
        assert " ".join(" ".join(words[0]).split()) == " ".join(" ".join(words[1]).split())
        assert np.array(numbers[1], float) == pytest.approx(np.array(numbers[0], float), abs=0.1, rel=0.05)
    assert float(names["metrics"]["loss"]) < 0.693  # below that of a coin
    solved = {line.split()[0]: float(line.split()[-1]) for line in printed[-2].splitlines()}
    assert solved["PRM"] > solved["log"] + 0.1  # by the best of 8
    scores = [
        names["verifier"].score(names["problem"], edited) for edited in (names["steps"], names["wrong"])
    ]
    assert scores[0][0] > 0.9 and scores[1][0] < 0.5 and np.allclose(scores[0][1:], scores[1][1:], atol=0.1)


if __name__ == "__main__":
    PAGE.write_text(with_outputs(PAGE.read_text()))
    NOTEBOOK.write_text(notebook(PAGE.read_text()))
