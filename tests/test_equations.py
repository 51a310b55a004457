"""examples/equations.py: literal verdicts, hostile texts, and its place in commands."""

import runpy
import time

import pytest
from conftest import ROOT

from examples.relabel import own_labels
from prm_jax.tasks.checkers import open_grader, own_function

PLACE = ROOT / "examples/equations.py"
EQUATIONS = runpy.run_path(PLACE)
RIGHT = r"""
Natalia sold 48/2 = <<48/2=24>>24 clips in May.
$48 / 2 = $24
2(3+4)=14
\frac{\frac{1}{2}}{2} = \frac14
10/3 = 3.3333
6 \times 12 = 72 \text{ inches}
x = 3 + 4 = \boxed{7}
"""
WRONG = r"""
She has 16 - 3 = <<16-3=12>>12 eggs.
5 * 4 = 20 = 3 * 7
10/3=3.4
So 3 * 4 = 13. Then 2 + 2 = 4.
"""
NOT_JUDGED = r"""
2x + 3 = 8
\sqrt{16} = 5
2 hours = 120 minutes
-3^2 = 9
6/2(3) = 9
2 + 3 = 5 * 4 = 20
If we try 3, 2 * 3 + 1 = 8.
14, 400 / 80 = 180
7/2 \approx 4
\frac{10}{20} \times 100\% = 50\%
48 = 100% + 20%
6 \text{ feet} \times 12 \text{ inches/foot} = 72 \text{ inches}
no equation
"""
TABLE = [(line, True) for line in RIGHT.strip().splitlines()]
TABLE += [(line, False) for line in WRONG.strip().splitlines()]
TABLE += [(line, None) for line in NOT_JUDGED.strip().splitlines()]


@pytest.mark.parametrize(("text", "holds"), TABLE)
def test_verdict(text, holds):
    assert EQUATIONS["verdict"](text) is holds
    assert EQUATIONS["verdict"]("4+3=0", "4 +3 mod7?") is None  # of a modular problem: in doubt


@pytest.mark.parametrize(
    "text", ["1" * 100_000 + "=2", "(" * 50_000 + "=1", "9^9^9^9=1", "1+1=" * 10_000 + "3"]
)
def test_hostile_texts_take_linear_time(text):
    start = time.process_time()
    EQUATIONS["verdict"](text)
    assert time.process_time() - start < 10


def test_commands_take_it_as_labels_and_as_a_grade():
    steps = "Tom has 3 + 4 = 7 eggs.", "That is enough.", "He sells 7 * 2 = 15."
    assert own_function(f"{PLACE}:labels", own_labels)("p", steps, None) == [1, None, 0]
    assert open_grader(f"{PLACE}:holds").right("p", steps, None) is False
    assert open_grader(f"{PLACE}:holds").right("p", steps[:2], None) is True
