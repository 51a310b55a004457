"""What a text states, and which answers are equal: literal cases, real pools, bounds on time."""

import collections
import functools
import gzip
import json
from fractions import Fraction

import pytest
from conftest import real_data

from prm_jax import InputError
from prm_jax.data import grading
from prm_jax.data.answers import extract
from prm_jax.data.grading import Checker, count_apart, group_pool
from prm_jax.data.numbers import as_number
from prm_jax.data.pools import Candidate, Problem, read_pool
from prm_jax.data.questions import read_questions
from prm_jax.data.writing import write_rows
from prm_jax.tasks.checkers import grade_pool

TOWER = "9^{9^{9^{9}}}"
POOLS = {name: f"bon_strictprmbench/{name}_qwen2.5-7b-instruct_n32.jsonl.gz" for name in ("gsm8k", "math500")}

shared = functools.cache(Checker)


def same(gold, answer, how):
    return shared(how).verdict(gold, answer) == "same"


@pytest.mark.parametrize(
    "text, answer",
    [
        (r"\boxed{\left\{ x \mid x > \frac{a}{b} \right.}", r"\left\{ x \mid x > \frac{a}{b} \right."),
        (r"so $\boxed 5.5$.", "5.5"),
        ("\\boxed{\\begin{pmatrix} 1 \\\\\n 2 \\end{pmatrix}}", "\\begin{pmatrix} 1 \\\\\n 2 \\end{pmatrix}"),
        ("She has <<9*2=18>>18.\n#### 18", "18"),
        ("The answer is 4.\nNo: the answer is: -5", "-5"),
        (r"The answer is \(12\pi\) inches.", r"12\pi"),
        (r"The final answer is $\frac{1}{2}$. I hope it is correct.", r"\frac{1}{2}"),
        ("Final Answer: The final answer is $107$. I hope it is correct.", "107"),  # Minerva's and Llama's
        ("The answer is:\n\n$$\n(1, 2)\n$$", "(1, 2)"),
        ("so it is.\n\n# Answer\n\n\\frac{3}{4}", r"\frac{3}{4}"),
        (r"#### 3, or \boxed{4}; the answer is 5", "4"),
        ("The answer is 2**3 = 8.", "2**3 = 8"),
        ("", None),
        ("#### Final Answer: 5", "5"),
        ("##### Conclusion", None),
        # Thoughts.
        ("<think>It is \\boxed{12}.</think>So the answer is 15.", "15"),
        ("<think>The answer is 4.\n#### 4", None),
        ("The answer is 3. <think>Is it? \\boxed{3}", None),
        ("<think>a</think>\\boxed{1}<think>b</think>\\boxed{2}", "2"),
        ("<|begin_of_thought|>\\boxed{8}<|end_of_thought|>Answer: 9", "9"),
        ("<seed:think>The answer is 5.</seed:think>The answer is 6.", "6"),
        # Tags.
        ("<answer>\n 3/4 \n</answer>", "3/4"),
        ("<answer>1</answer>, or rather <Answer>5 km</Answer>", "5 km"),
        ("<answer>So it is \\boxed{7}, of course.</answer>", "7"),
        ("<answer></answer> The answer is 3.", "3"),
        # Boxes that form one answer.
        ("\\boxed{3} and \\boxed{-4}", "3, -4"),
        ("\\boxed{0} or \\boxed{0.0}", "0.0"),
        ("\\boxed{1}, \\boxed{2}, and \\boxed{9}", "1, 2, 9"),
        ("\\boxed{6}\\text{ or }\\boxed{7}", "6, 7"),
        ("\\boxed{3/4} or \\boxed{0.75}", "0.75"),
        ("\\boxed{2 \\text{ km}} or \\boxed{2000 \\text{ m}}", "2000 \\text{ m}"),
    ],
)
def test_extract(text, answer):
    assert extract(text) == answer


@pytest.mark.parametrize(
    "text, number",
    [
        ("She makes $18 every day.", "18"),
        ("so 3/4 of it, 1,250.50 in all.", "1,250.50"),
        (r"x = -\frac{1}{2}", r"-\frac{1}{2}"),
        (r"x = \frac{-1}{2}", r"\frac{-1}{2}"),
        ("So x = −5.", "-5"),
        ("a loss of -$5.", "-$5"),
        ("It takes 3 1/2 hours.", "3 1/2"),
        (r"It takes $3\frac{1}{2}$ hours.", r"3\frac{1}{2}"),
        ("we get $1{,}234$", "1,234"),
        ("<think>7", None),
        ("It is 12,5 or 1.234,56 or 2.5km.", None),
        ("The answer is five of 6.", "five of 6"),
    ],
)
def test_the_last_number_counts_for_a_checker_of_numbers(text, number):
    assert extract(text, numbers=True) == number == shared("number").read(text.split("\n"))


@pytest.mark.parametrize(
    "a, b, is_same",
    [
        (r"\dfrac{1}{2}", r"\frac12", True),
        (r"5\,\text{cm}", "5 cm", True),
        ("1,000", "1000", False),
        (r"\frac{1}{2}", "0.5", False),
        ("1 1/2", "11/2", False),
        (r"\leftarrow", "arrow", False),
    ],
)
def test_same_string(a, b, is_same):
    assert same(a, b, "string") == same(b, a, "string") == is_same


@pytest.mark.parametrize(
    "text, value",
    [
        (r"10\,080.50", Fraction("10080.5")),
        ("-$1,234.5", Fraction("-1234.5")),
        (r"168,000 \, \text{\$}", 168000),
        (r"1\frac{1}{2}", Fraction(3, 2)),
        ("60 miles per hour.", 60),
        ("2 million", None),
        ("2 thirds", None),
        ("5 tenths", None),
        ("2, 100", None),
        ("0,125", None),
        ("2x", None),
        ("1,00", None),
        ("9" * 5000, None),
        ("1/0", None),
        ("3 quarters", 3),
        ("", None),
    ],
)
def test_as_number(text, value):
    assert as_number(text) == value


@pytest.mark.parametrize(
    "gold, answer, is_same",
    [
        ("1000", "1,000.00", True),
        (r"\frac{1}{3}", "0.333333", True),
        (r"\frac{1}{3}", "0.33333", False),
        ("0.25", r"25\%", False),  # the sign is a unit
        ("1000000000", "1000000001", False),  # whole numbers are exact
        ("1000000000.5", "1000000000.5000009", True),
        ("0.0000001", "0.0000002", False),  # below 1 the tolerance is relative
        (r"\sqrt{2}", r"\sqrt {2}", True),  # no numbers: as strings
        (r"\sqrt{2}", "1.41421356", False),
    ],
)
def test_same_number(gold, answer, is_same):
    assert same(gold, answer, "number") == is_same


@pytest.mark.parametrize(
    "gold, answer, is_same",
    [
        (r"\frac{1}{2}", "0.5", True),
        (r"\sqrt{8}", r"2\sqrt{2}", True),
        ("x^2-1", "(x-1)(x+1)", True),
        ("(1,2)", "(2,1)", False),
        (r"5\text{ cm}", "5", True),
        ("x=1", "1", True),
        ("1", "2x+z=1", True),  # not symmetric: only the right side of an answer counts
        (r"\text{no solution}", "none", False),
        ("25", r"25\%", False),  # a hundredth: not as by `number`
        (r"\foo{", r"\foo {", True),  # cannot be read either, but the strings are equal
        # Plain text.
        (r"\frac{3\pi}{4}", "3*pi/4", True),
        ("e^{2}-3", "exp(2) - 3", True),
        (r"\frac{1}{2}+\frac{\sqrt{3}}{2}i", "1/2 + sqrt(3)/2*i", True),
        ("3+2i", "2.0i + 3.0", True),
        ("0.0002", "2e-4", True),
        ("2", "3 1/2", False),
        ("7/2", "3 1/2", True),
        ("1234", r"1\,234", True),
        (r"(-\infty, 4]", "(-inf, 4]", True),
        (r"25\%", "0.25", True),
        # Small numbers.
        (r"\frac{1}{7^{40}}", r"\frac{1}{7^{41}}", False),
        (r"\frac{2}{900!}", r"\frac{2}{900!}\cdot 1", True),
        ("0", r"\frac{1}{10^{30}}", False),
        (r"\frac{1}{3}", "0.333333", True),
        # Several parts.
        ("4, 9", "9, 4", True),
    ],
)
def test_same_math(gold, answer, is_same):
    assert same(gold, answer, "math") == is_same


def test_a_missing_answer_is_never_right():
    for how in grading.RULES:
        assert not any(same(a, b, how) for a in (None, "", " $") for b in (None, "", " . ", "1"))


def test_other_rules_are_refused():
    with pytest.raises(InputError, match="^rule: got 'nope'"):
        Checker("nope")


def test_group_in_order_of_first_occurrence_without_pooling_none():
    texts = [None, "0.5", "1", None, r"\frac{1}{2}", "", "1.0", "2"]
    assert shared("string").group(texts) == [-1, 0, 1, -1, 2, -1, 3, 4]
    for how in ("number", "math"):
        assert shared(how).group(texts) == [-1, 0, 1, -1, 0, -1, 1, 2]
    assert shared("math").group([None, None]) == [-1, -1] and shared("math").group([]) == []
    assert shared("math").group(["1", "2x+z=1"]) == [0, 0]  # the first is the gold one
    assert shared("math").group(["2x+z=1", "1"]) == [0, 1]


def test_equal_numbers_that_vote_apart_are_counted():
    def count(*graded):
        candidates = [Candidate(("s",), answer, correct) for answer, correct in graded]
        return count_apart(candidates, shared("string").group([c.answer for c in candidates]))

    assert count((".25", True), ("0.25", True), (r"\frac14", True), ("4", False), ("x", False)) == 2
    assert count(("25", True), (r"25\%", False)) == 0  # whoever graded takes them for different
    assert count(("7", True), ("7", False), (None, False)) == 0


@pytest.mark.parametrize(
    "text, answer",
    [
        (r"\boxed{" * 20_000, None),
        (r"\boxed{5}" + r"\boxed{" * 20_000, "5"),
        ("#### " + " " * 20_000 + "x\nso 5", None),
        (r"\boxed{7" + " $" * 20_000 + "}", "7"),
        ("<answer>" * 20_000 + "5</answer>", "5"),
        (r"\boxed{1}" + " $" * 20_000 + r"\boxed{2}", "2"),
    ],
)
def test_extract_takes_time_in_proportion_to_the_text(text, answer):
    """The first took 18 seconds at a tenth of the length, and the blanks a minute at a fifth."""
    assert extract(text) == answer


def test_the_right_answer_of_a_whole_solution_is_what_it_states(tmp_path):
    """GSM8K's own rows, in questions and in pools; an answer of several lines that states nothing stays."""
    matrix = "\\begin{pmatrix} 1 \\\\\n2 \\end{pmatrix}"
    golds = {"48/2 = <<48/2=24>>24\n#### 72": "72", "#### 1,000": "1,000", matrix: matrix, "5": "5"}
    golds[r"<think>\boxed{3}</think>so $\boxed{4}$"] = "4"
    write_rows(tmp_path / "q.jsonl", [{"question": "?", "answer": gold} for gold in golds])
    assert [q.answer for q in read_questions(tmp_path / "q.jsonl")] == list(golds.values())
    row = {"problem": "?", "candidates": [["The answer is 72."], ["<think>\\boxed{72}"]]}
    write_rows(tmp_path / "pool.jsonl", [row | {"id": gold, "answer": gold} for gold in golds])
    problems = read_pool(tmp_path / "pool.jsonl")
    assert [p.answer for p in problems] == list(golds.values())
    (graded,), counts = grade_pool(problems[:1], "number")
    assert [(c.answer, c.correct) for c in graded.candidates] == [("72", True), (None, False)]
    assert counts["no_answer"] == 1


def test_all_answers_of_gsm8k_are_numbers():
    path = real_data("gsm8k/test.jsonl")
    solutions = [json.loads(line)["answer"] for line in path.read_text().splitlines()]
    pairs = [(q.answer, extract(text)) for q, text in zip(read_questions(path), solutions, strict=True)]
    verdicts = collections.Counter(shared("number").verdict(*pair) for pair in pairs)
    assert verdicts == {"same": 1319} and pairs[0] == ("18", "18")


@functools.cache
def read_candidates(name):
    """(row, candidate) of a real pool."""
    with gzip.open(real_data(POOLS[name])) as file:
        rows = [json.loads(line) for line in file]
    return [(row, c) for row in rows for c in row["candidates"] if c["boxed"] is not None]


@pytest.mark.parametrize("name, size", [("gsm8k", 2387), ("math500", 7613)])
def test_extract_finds_the_boxes_of_the_real_pools(name, size):
    found = [(c["boxed"], extract(c["response"])) for _, c in read_candidates(name)]
    assert len(found) == size and all(box == answer for box, answer in found)


@pytest.mark.slow
@pytest.mark.parametrize("name, agree, wrong_problems", [("gsm8k", 2370, 4), ("math500", 7474, 9)])
def test_math_agrees_with_the_data_readme(name, agree, wrong_problems):
    wrong_of = collections.Counter()
    for row, c in read_candidates(name):
        is_same = shared("math").verdict(row["gold"], c["boxed"]) == "same"
        wrong_of[row["problem_id"]] += is_same != c["correct"]
    wrong = [n for n in wrong_of.values() if n]
    assert (wrong_of.total(), len(wrong)) == (len(read_candidates(name)) - agree, wrong_problems)


def test_grade_pool_counts(monkeypatch, capsys):
    monkeypatch.setattr(grading, "SECONDS", 1)
    rows = {r"\frac{1}{2}": ("0.5", "0.5", None, "3", r"\frac12"), "7": (TOWER, "!!", " ", "7.0")}
    candidates = {
        gold: tuple(Candidate(("s",), answer) for answer in answers) for gold, answers in rows.items()
    }
    problems = [Problem(gold, "?", gold, found) for gold, found in candidates.items()]
    graded, counts = grade_pool(problems, "math")
    correct = [[candidate.correct for candidate in problem.candidates] for problem in graded]
    assert correct == [[True, True, False, False, True], [False, False, False, True]]
    expected = {"candidates": 9, "same": 4, "different": 1, "unparsable": 1, "timeout": 1, "no_answer": 2}
    assert {name: counts[name] for name in expected} == expected
    assert counts["checker"].startswith("math-verify 0.") and "1 timeout" in capsys.readouterr().out
    assert group_pool(problems, "math") == [[0, 0, -1, 1, 0], [0, 1, -1, 2]]
    with pytest.raises(InputError, match="^problem p0: answer"):
        grade_pool([Problem("p0", "?", None, (Candidate(("s",), "1"),))], "string")
