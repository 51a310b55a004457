"""Any damage to a file that a command reads as data ends in one line that names the file, or leaves another valid file.

test_kept.py damages what commands leave and read again, test_bad_input.py says what is wrong with known rows; here are
all readers of data, with any value anywhere, and any byte or line lost, doubled, changed or swapped.
"""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_bad_input import BENCH, GOOD, POOL, PRMBENCH, QUESTION, RAW, WORD
from test_kept import damaged
from test_mistakes import agent, bbm, delta, mr

from prm_jax import InputError
from prm_jax.data.pools import read_pool
from prm_jax.data.questions import read_questions
from prm_jax.data.sources import READERS, load

COMPLETION = {"completions": [{"text": "a", "rating": 1}, {"text": "b", "rating": -1}]}
LABELLED = {"human_completion": None, "chosen_completion": 0, **COMPLETION}
PHASE_2 = {
    "question": {"problem": "q"},
    "is_quality_control_question": False,
    "is_initial_screening_question": False,
}
PHASE_2 |= {
    "label": {"finish_reason": "solution", "steps": [LABELLED, LABELLED | {"chosen_completion": None}]}
}
CALL = {"function": {"name": "f", "arguments": "{}"}}
ROWS = {
    "native": GOOD | {"outcome": 1, "answer": "4", "ratings": [1, -1], "task": "chain"}, "prm800k": RAW,
    "prm800k of phase 2": PHASE_2, "text": WORD, "processbench": BENCH, "prmbench": PRMBENCH,
    "math_shepherd": {"input": "q Step 1: a ки\nStep 2: b ки", "label": "q Step 1: a +\nStep 2: b -"},
    "big_bench_mistake": bbm(1), "mr_gsm8k": mr("wrong", 1), "agent_process_bench": agent({"2": 0, "4": -1}),
    "deltabench": delta((2,), (3,)),
    "hard2verify": {"question": "q", "model_response_by_step": ["a", "b"], "human_labels": [1, 0], "canary": "c"},
    "toolprmbench": {"history": [{"role": "user", "content": "q", "tool_calls": [CALL]}], "functions": [CALL],
                     "action_chosen": CALL, "action_rejected": "b"},
    "pool": POOL | {"scores_unit": {"s": "logit"}}, "questions": QUESTION | {"id": 1},
}  # fmt: skip
VALUES = [
    None,
    True,
    0,
    -1,
    7,
    10**29,
    0.5,
    float("nan"),
    float("inf"),
    "",
    "1",
    "é",
    "\ud800",
    "\x00",
    "x" * 5000,
]
VALUES += [[], [[]], [None], ["a"], [1], {}, {"a": 1}, {"role": 3}]


def read(kind, path):
    if kind in ("pool", "questions"):
        return list({"pool": read_pool, "questions": read_questions}[kind](path))
    options = {"alternatives": "expand", "after_first_error": "mask"} if kind.startswith("prm800k") else {}
    return load(path, kind.split()[0], **options)


def places(value, at=()):
    """The path of every value inside a value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, x in inside:
        yield (*at, key)
        yield from places(x, (*at, key))


def check(kind, path, content):
    path.write_bytes(content)
    try:
        read(kind, path)
    except InputError as error:
        assert (
            str(path) in str(error) and "\n" not in str(error) and len(str(error)) < 400 + len(str(path))
        ), error


def test_every_reader_is_here(tmp_path):
    assert READERS.keys() <= ROWS.keys()
    for kind, row in ROWS.items():
        (path := tmp_path / "rows.jsonl").write_text(json.dumps(row))
        read(kind, path)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), kind=st.sampled_from(sorted(ROWS)), value=st.sampled_from([..., *VALUES]))
def test_any_value_may_stand_anywhere_in_a_row(tmp_path_factory, data, kind, value):
    row = copy.deepcopy(ROWS[kind])
    *inside, key = data.draw(st.sampled_from(list(places(row))))
    at = row
    for name in inside:
        at = at[name]
    at[key] = value
    if value is ...:
        del at[key]
    path = tmp_path_factory.getbasetemp() / data.draw(st.sampled_from(["rows.jsonl", "rows.json"]))
    check(kind, path, json.dumps(row).encode() + b"\n")


@pytest.mark.parametrize("kind", ROWS)
def test_any_byte_or_line_may_be_damaged(kind, tmp_path):
    rows = [ROWS[kind] | {"id": f"{i}"} for i in range(3)]
    whole = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    for _, content in damaged(whole, 30):
        check(kind, tmp_path / "rows.jsonl", content)
