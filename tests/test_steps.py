"""Splitting solutions into steps: literal texts, no content lost on real and random ones, linear time."""

import json
import re
import time

import pytest
from conftest import real_data
from hypothesis import given
from hypothesis import strategies as st

from prm_jax.data.steps import SPLITS, split_steps

# A text in which | stands where it is cut.
CUT = [
    ("line", "a\n\n| b \r\n|c"),
    ("blank", "a\nb|\n\nc|\n \t\n\n d\n"),
    ("numbered", "We do:\n|1. One\n|2) Two\n  more\n|**3.** Three"),
    ("numbered", "Step 1: a\n\n|## Step 2: b\n|**Step 3** c"),
    ("numbered", "1. a\n   1. nested list\n3.5 is x\n|2. b\n3) = 7"),
    ("numbered", "no numbers. 1. here"),
    ("sentence", "It costs $3.50.| He has 2.5 kg!| Why?| So 1."),
    ("sentence", "Use e.g. Euler, cf. Dr. No, i.e. this.| A. B. Smith"),
    ("sentence", "Let $x = 1. Then$ be.| So $x$ is 3."),
    ("sentence", "We get $x = 3.$| Next is $y$."),
    ("sentence", "She pays $3.| He pays $4.| Both pay."),
    ("sentence", "We have\n\\[\na = 1. \\\\\nB = 2.\n\\]|\nSo c."),
    ("sentence", "\\begin{align*}\na. B\\\\\nC\n\\end{align*}|\nD"),
    ("sentence", "An \\[ that never closes.| So.| Two"),
    ("sentence", "1. First do.| Then\n|2. this\n|- one\n|- two"),
    ("sentence", "Step 1. Add.\n|It is 5! = 120 (see 1.).| Yes"),
    ("sentence", "7 eggs\n|Each day 2\nand so on"),
    ("sentence", '"Is it?" he asks.| "No."| **Bold.**| End'),
    ("sentence", "```\nA. B\n```|\nC"),
    ("think", "Hi |<think>a\n\nb</think>|\nSo 3."),
    ("think", "<think>never closed"),
]


@pytest.mark.parametrize(("how", "text"), CUT)
def test_split_literally(how, text):
    assert split_steps(text.replace("|", ""), how) == [step.strip() for step in text.split("|")]


def same_up_to_space(text, steps):
    return re.sub(r"\s", "", "".join(steps)) == re.sub(r"\s", "", text)


PIECES = ["a", "B c", "1", ".", "3.5", ". ", "\n", " ", "\n\n", "$", "$$", r"\[", r"\]", "```", "`", "1. "]
PIECES += ["Step 2:", r"\begin{a}", r"\end{a}", "é", "\x1c", "!", "**", "<think>", "</think>", "a " * 60]


@given(
    text=st.lists(st.sampled_from(PIECES) | st.text(max_size=3)).map("".join),
    how=st.sampled_from(list(SPLITS)),
)
def test_nothing_is_lost(text, how):
    steps = split_steps(text, how)
    assert same_up_to_space(text, steps)
    assert all(step == step.strip() and step for step in steps)
    if how != "sentence":  # it reads formulas across sentences: pieces of a broken one may be cut again
        assert all(split_steps(step, how) == [step] for step in steps)


def test_nothing_is_lost_of_real_texts(best_of_32):
    texts = [c["response"] for rows in best_of_32.values() for row in rows for c in row["candidates"][:2]]
    texts += [json.loads(line)["answer"] for line in real_data("gsm8k/test.jsonl").read_text().splitlines()]
    texts += [
        json.loads(line)["solution"] for line in real_data("math/math500.jsonl").read_text().splitlines()
    ]
    n_of = {}
    for how in SPLITS:
        found = [split_steps(text, how) for text in texts]
        assert all(map(same_up_to_space, texts, found))
        n_of[how] = sum(map(len, found))
    assert n_of["numbered"] < n_of["blank"] < n_of["sentence"] < n_of["line"]
    whole = [text for text in texts if text.count(r"\[") == text.count(r"\]") > 0]
    assert len(whole) > 1000
    assert all(s.count(r"\[") == s.count(r"\]") for text in whole for s in split_steps(text, "sentence"))


@pytest.mark.parametrize("how", SPLITS)
def test_linear_time(how):
    hostile = ["\\[", "$", "`", "\n", " ", ". ", "\n1. ", "\\begin{a}", "a.", "\n \n", "**", "\n- "]
    start = time.process_time()
    for piece in hostile:
        split_steps(piece * 20_000, how)
    assert time.process_time() - start < 5  # measured: 0.6
