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
    ("think", "Hi |<think>a\n\nb</think>|\nSo 3."),
    ("think", "<think>never closed"),
]


@pytest.mark.parametrize(("how", "text"), CUT)
def test_split_literally(how, text):
    assert split_steps(text.replace("|", ""), how) == [step.strip() for step in text.split("|")]


def same_up_to_space(text, steps):
    return re.sub(r"\s", "", "".join(steps)) == re.sub(r"\s", "", text)


PIECES = ["a", "B c", "1", ".", "3.5", "\n", " ", "\n\n", "1. ", "Step 2:", "é", "\x1c", "**", "## "]
PIECES += ["<think>", "</think>", "a " * 60]


@given(
    text=st.lists(st.sampled_from(PIECES) | st.text(max_size=3)).map("".join),
    how=st.sampled_from(list(SPLITS)),
)
def test_nothing_is_lost(text, how):
    steps = split_steps(text, how)
    assert same_up_to_space(text, steps)
    assert all(step == step.strip() and step for step in steps)
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
    assert n_of["numbered"] < n_of["blank"] < n_of["line"]


@pytest.mark.parametrize("how", SPLITS)
def test_linear_time(how):
    hostile = ["\n", " ", "\n1. ", "\n \n", "**", "<think>", "\n#"]
    start = time.process_time()
    for piece in hostile:
        split_steps(piece * 20_000, how)
    assert time.process_time() - start < 5  # measured: 0.6
