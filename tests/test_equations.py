r"""The equation checker: a literal table, hostile texts, its use as reader and verifier, and what it finds in real solutions.

Measured on all of the shared data, the steps as stored without the chat prompt:
                                                                  GSM8K pool       MATH pool   four models on GSM8K
  solutions, share with a wrong final answer                    8,288, .073     8,192, .292     5,276, .621
  steps right / wrong / without verdict                20,703/59/19,568  11,422/271/56,583  16,534/107/6,500
  solutions with a wrong verdict, share with a wrong answer       57, 1.000       178, .837        90, .933
  share of the solutions with a wrong answer that have one             .094            .062            .026
All 35 right answers under a wrong verdict were read: each has an equation that is false as it stands. Against people, up
to their first error: 11 of 11 (ProcessBench gsm8k), 27 of 29 (math), 16 of 18 (PRM800K) wrong verdicts stand on that error.
Of the steps with a right verdict they call .86 good, as many as of all steps (.87): it is no evidence for the step.
"""

import collections
import json
import time
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import real_data
from hypothesis import given
from hypothesis import strategies as st
from test_solutions import jsonl

from prm_jax import InputError
from prm_jax.checkpoints.verifiers import OpenOptions, open_verifier
from prm_jax.data.equations import equations, verdict
from prm_jax.data.sources import load
from prm_jax.evals import verifiers
from prm_jax.scorers import CERTAIN, LIKELY, EquationScorer

RIGHT = r"""
48/2=24
Natalia sold 48/2 = <<48/2=24>>24 clips in May.
She makes 9 * 2 = $<<9*2=18>>18 every day.
$48 / 2 = $24
\$3.50 \times 2 = \$7.00
1,000=1000
1,000 + 2{,}000 = 3000
11,\!111 - 1 = 11110
50%=0.5
10/20 * 100 = 50%
\frac{10}{20} \times 100\% = 50\%
(2/3) * 100 = 66.67%
30\% \times 8000 = 0.3 \times 8000 = 2400
1 = 1/2 + 1/2
2(3+4)=14
4(1) + 4(4) + 7(1) = 27.$
(7 - 3)(2 + 1) = 12
2^10=1024
2^{10} = 1024
2**10 = 1024
10 - 3^2 = 1
(-3)^2 = 9
2^{-1} = 0.5
= 12 = 3*4
\frac{8}{2} = 4
\frac{\frac{1}{2}}{2} = \frac14
\dfrac{3}{4} \div \frac{1}{4} = 3
6 × 4 ÷ 3 − 1 = 7
5 · 5 = 25
3 x 4 = 12
3 - -4 = 7
$2 \cdot -3 = -6$
10/3=3.33
10/3 = 3.3333
2/3 = 0.66
2/3 = 0.667
22/7 ≈ 3.14
\frac{20}{3} \approx 6.67
7/2 \approx 4
9/14*84=54.00000000000001
10 - 5 = 5 apples
3 apples + 4 oranges = 7 fruits
6 \text{ feet} \times 12 \text{ inches/foot} = 72 \text{ inches}
880 \text{ (frames)} + 20 \text{ (pins)} = 900
90^\circ + 90^\circ = 180^\circ
\frac{120^\circ}{360^\circ} = \frac{1}{3}
5cm * 4 = 20cm
3 + 4 = \boxed{7}
3 + 4 = **7**
**Total:** 3 + 4 = 7.
- 3 + 4 = 7
2. 3 + 4 = 7
x = 3 + 4 = 7
f(2) = 3(2) + 1 = 7
3 + 4 \\ &= 7
a total of 3 + 4 = 7
3+4 = 7 → 7*2 = 14
"""
WRONG = r"""
48/2=25
She has 16 - 3 = <<16-3=12>>12 eggs.
1,000 + 2,000 = 30000
10/20 = 60%
2(3+4)=10
2^10=1000
10 - 5 = 6 apples
3 + 4 = 6 + 2
5 * 4 = 20 = 3 * 7
\frac{8}{2} = 3
6 × 4 = 25
10/3=3.4
2/3 = 0.65
$3.50 * 3 = $10.60
5 + 5 ≈ 11
x = 3 + 4 = 8
3 + 4 = \boxed{8}
a total of 3 + 4 = 8
So 3 * 4 = 13. Then 2 + 2 = 4.
180^\circ - 72^\circ = 36^\circ
48^3=13824
600 + 150 + 1200 = 2950
8 + 5 = 12, so she pays $12.
$2 + $3 = $6
5 + 3 = 9 cents
1.250 * 2 = 3.50
"""
NOT_JUDGED = r"""
The party is on 3/4.
Read pages 2-3.
3:4 = 6:8
5!=120
5! = 120
5 != 6
x=5
2x + 3 = 8
x + 3 = 5
3 = 5 - x
a_1 = 3
a_{10} = 3 + 4 = x
f(3) = 10
\sqrt{16} = 5
|3 - 5| = 1
\lfloor 7/2 \rfloor = 4
\binom{5}{2} = 11
max(3, 5) = 4
sin 30 + 1 = 2
1/2 of 10 = 5
half of 10 + 2 = 7
twice 3 + 4 = 10
10 choose 3 = 120
17 mod 5 = 3
2 hours = 120 minutes
1 foot = 12 inches
0.5 = 30 minutes
1/4 = 25
$1 - 25 cents = 75 cents
25 cents + $5 = $5.25
50 cents + $3 = $3.50
2 dimes + $1 = $1.20
In binary, 11 + 1 = 100.
In hexadecimal, 9 + 9 = 12.
1.000 + 1 = 1001
2.500 + 500 = 3000
1 hour + 30 minutes = 1.5 hours
2 x 4 x 10 boards = 10 * 10
3 \times \text{(pens per box)} + 2 = 26
3 boxes + 2 loose pencils = 26 pencils
2 million + 1 = 3000001
-3^2 = 9
-3^2 = -9
6/2(3) = 9
27/3/4 = 36
1 1/2 = 2
0.\overline{3} = 1/4
1 + 2 + ... + 10 = 54
1 + 2 + \cdots + 10 = 54
3,5 + 1 = 5
20/3 = 6 boxes
7/2=3
24 * 0.6667 = 16
0.67 * 30 = 20
2 + 3 = 5 * 4 = 20
3 + 4 = 7 + 1
60 - 170 = 110
100 - 98 = 3?
2 + 2 = 5 is not true
If we try 3, 2 * 3 + 1 = 8.
2 * 3 + 1 = 8\n7 = 8
629 / 8 = 78 remainder 5
4 - 6 = 8 in base 10
9 because James + 1 = 9
0900-0130 = 0730
.8 + . 84 + .82 = 2.46
5 * 3 = $15,000
14, 400 / 80 = 180
Weeks 1-2 = 96 - 70
48 = 100% + 20%
\[ 40 - 20 = 2
70 + 30
no equation
10 =
= 10
"""


def cases(table):
    return [line.replace(r"\n", "\n") if "\\n7" in line else line for line in table.strip().splitlines()]


@pytest.mark.parametrize("text", cases(RIGHT))
def test_right(text):
    assert verdict(text) is True, equations(text)


@pytest.mark.parametrize("text", cases(WRONG))
def test_wrong(text):
    assert verdict(text) is False, equations(text)


@pytest.mark.parametrize("text", cases(NOT_JUDGED))
def test_not_judged(text):
    assert verdict(text) is None, equations(text)


numbers = st.integers(0, 30).map(lambda n: (str(n), Fraction(n)))


def combine(parts):
    (left, a), sign, (right, b), wrap = parts
    value = a + b if sign == "+" else a - b if sign == "-" else a * b
    text = f"{left} {sign} {right}" if wrap == 0 else f"({left}) {sign} ({right})"
    return f"({text})", value


# So few that they stay within the reader's depth and length.
terms = st.recursive(
    numbers, lambda t: st.tuples(t, st.sampled_from("+-*"), t, st.integers(0, 1)).map(combine), max_leaves=12
)


@given(term=terms, offset=st.integers(-50, 50))
def test_values_are_exact(term, offset):
    text, value = term
    assert verdict(f"{text} = {value}") is True
    if offset:
        assert verdict(f"{text} = {value + offset}") is not True


def test_equations_of_a_text_one_by_one():
    text = "First 3 + 4 = 7 eggs, 2 * 7 = <<2*7=15>>15 so 100/3 = 33.\n\nThen 15 / 2\n= 7.5 = 7 + 0.5."
    assert equations(text) == [
        ("3 + 4 = 7 eggs", True),
        ("2 * 7 = 15", False),
        ("100/3 = 33", None),
        ("15 / 2\n= 7.5", True),
        ("7.5 = 7 + 0.5", True),
        ("2*7=15", False),
    ]
    assert verdict(text) is False
    assert verdict("3 + 4 = 7 and 100/3 = 33") is None  # one is in doubt
    assert verdict("3 + 4 = 7, so x = 2y") is True  # one is not read


HOSTILE = {
    "digits": "1" * 100_000 + "=2",
    "separators": "1,111" * 20_000 + ",1111=2",
    "depth": "(" * 50_000 + "1" + ")" * 50_000 + "=1",
    "towers": "9^9^9^9=1\n9^999999999=1\n2^{1000^{1000}}=1\n9^9999=1\n",
    "long product": "*".join(["99999999999999999999"] * 5_000) + "=1",
    "chain": "1+1=" * 10_000 + "3",
    "decimals": ("+".join(["1.01"] * 9) + "=3=") * 1_000,
    "signs": "-" * 50_000 + "1=1",
    "equalities": "=" * 50_000,
    "spaces": " " * 100_000 + "\n" * 100_000 + "=",
    "annotations": "<<" * 50_000 + "=",
    "words": "aa " * 50_000 + "= 3",
    "braces": "\\frac{" * 20_000 + "1=1\\text{" * 20_000,
    "nothing": "\x00\ud800\\",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_take_linear_time(name):
    start = time.process_time()
    verdict.__wrapped__(HOSTILE[name])
    assert time.process_time() - start < 5  # measured: 0.6 at most


def tally(rows):
    """Counter of verdicts on steps, of solutions, and of flagged solutions, from (steps, is right)."""
    counts = collections.Counter()
    for steps, is_right in rows:
        found = [verdict(step) for step in steps]
        counts.update(found)
        counts.update(
            solutions=1, wrong=not is_right, flagged=False in found, hits=False in found and not is_right
        )
    return counts


def test_wrong_verdicts_against_the_answers_of_gsm8k_solutions():
    rows = map(json.loads, real_data("gsm8k/example_model_solutions.jsonl").read_text().splitlines())
    texts = [row[name] for row in rows for name in row if "_" in name and isinstance(row[name], dict)]
    n = tally((text["solution"].split("\n"), text["is_correct"]) for text in texts)
    assert (n["solutions"], n["wrong"]) == (5276, 3275)
    assert n[True] > 16_000 and n[False] > 100 and n["hits"] / n["flagged"] > 0.9  # 62 % of all are wrong


def test_wrong_verdicts_against_the_answers_of_pools(best_of_32):
    counts = {}
    for name, rows in best_of_32.items():
        some = [c for row in rows for c in row["candidates"][:8]]
        counts[name] = tally((c["steps"], c["correct"]) for c in some)
    n = counts["gsm8k"]
    assert n["flagged"] >= 10 and n["hits"] == n["flagged"] and n["wrong"] < 0.08 * n["solutions"]
    n = counts["math500"]
    assert n["flagged"] >= 30 and n["hits"] / n["flagged"] > 0.75 and n["wrong"] < 0.3 * n["solutions"]


def test_hardly_a_wrong_verdict_in_reference_solutions():
    """GSM8K's own solutions: the 11 were read, each equation is a slip of the pen (200*.55=100, 50-8 = 44)."""
    files = [real_data(f"gsm8k/{name}.jsonl") for name in ("train", "test")]
    answers = [json.loads(line)["answer"] for file in files for line in file.read_text().splitlines()]
    found = collections.Counter(verdict(step) for answer in answers for step in answer.split("\n"))
    assert found[True] > 29_000 and found[False] <= 11


def test_wrong_verdicts_against_human_labels():
    """Of the steps that people judged, up to the first error: how often the verdict is theirs."""
    wrong, right = collections.Counter(), collections.Counter()
    for name in ("gsm8k", "math"):
        for row in json.loads(real_data(f"processbench/{name}.json").read_text()):
            last = row["label"] if row["label"] >= 0 else len(row["steps"])
            for t, step in enumerate(row["steps"][: last + 1]):
                found = verdict(step)
                wrong[t == row["label"]] += found is False
                right[t != row["label"]] += found is True
    assert sum(wrong.values()) >= 35 and wrong[True] / sum(wrong.values()) > 0.9
    assert sum(right.values()) >= 1500 and right[True] / sum(right.values()) > 0.84  # LIKELY of scoring.py


def test_reader_labels_plain_text(tmp_path):
    steps = "Tom has 3 + 4 = 7 eggs.\nThat is enough.\nHe sells 7 * 2 = 15.\nSo 15 + 1 = 16."
    rows = [
        {"question": "q", "answer": steps + "\n#### 16", "outcome": False},
        {"problem": "p", "question": "not this", "solution": "1 + 1 = 2. So x = 5", "answer": "5", "id": 7},
        {"problem": "p", "text": " \n "},
    ]
    path = jsonl(tmp_path, *rows)
    (first, second), counts = load(path, "text", after_first_error="mask")
    assert first.steps == (*steps.split("\n"), "#### 16")
    assert first.labels == (1.0, None, 0.0, None, None)
    assert (first.problem, first.outcome, first.answer, first.id) == ("q", 0.0, "16", "rows.jsonl:1")
    assert (second.problem, second.steps, second.labels, second.id) == (
        "p",
        ("1 + 1 = 2. So x = 5",),
        (1.0,),
        "7",
    )
    assert counts["rows_without_steps_dropped"] == 1 and counts["labels_after_first_error_mask"] == 1
    found = {name: n for name, n in counts.items() if name.startswith("steps_")}
    assert found == {
        "steps_with_right_equations": 3,
        "steps_with_a_wrong_equation": 1,
        "steps_without_verdict": 2,
    }

    solutions, _ = load(path, "text", split_by="sentence", no_verdict="good")
    assert solutions[1].steps == ("1 + 1 = 2.", "So x = 5")
    assert [s.labels for s in solutions] == [(1.0, 1.0, 0.0, 1.0, 1.0), (1.0, 1.0)]
    with pytest.raises(InputError, match="split_by: found 'word', expected one of line, blank, sentence"):
        load(path, "text", split_by="word")
    with pytest.raises(
        InputError, match=r"rows\.jsonl line 1: solution: missing, expected text; found problem"
    ):
        load(jsonl(tmp_path, {"problem": "p"}), "text")


def test_where_a_problem_counts_modulo_a_wrong_equation_is_in_doubt():
    """7 is plain arithmetic's word for 4 + 3 = 0: of such a problem only what holds is judged."""
    for problem in ("4 +5 *3 mod7?", "Modulo 7: start with 4.", r"$4 + 3 \pmod 7$", "modular arithmetic"):
        assert verdict("4+3=0", problem) is None and verdict("2+2=4", problem) is True
    for problem in ("", "What is 4+3?", "A modest model"):
        assert verdict("4+3=0", problem) is False
    steps = ("4+3=0", "2+2=4")
    odd, plain = EquationScorer().score([("4 +3 mod7?", steps), ("4 +3?", steps)])
    assert odd[0] == 0 > plain[0] and odd[1] == plain[1] > 0


def test_verifier_scores_each_step_by_itself():
    scorer = EquationScorer()
    (score_T,) = scorer.score([("p", ("1 + 1 = 3", "2 + 2 = 4", "so x = 5"))])
    assert score_T.dtype == np.float32
    np.testing.assert_array_equal(score_T, np.float32([-CERTAIN, LIKELY, 0]))
    named = SimpleNamespace(which="best", checkpoint=["equations"])
    assert verifiers.checkpoints(named, needed=True) == ["equations"]
    assert open_verifier("equations", OpenOptions()) == scorer
