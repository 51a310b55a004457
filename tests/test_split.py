"""task=split: responses become rows with steps, cut by their text or before the words of which a policy was least sure."""

import itertools
import json
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from conftest import call, printed

import evaluate
from prm_jax.checkpoints.verifiers import OpenOptions, open_verifier
from prm_jax.evals.split import unsure_words
from prm_jax.formats import Format, encode

PROBLEM = "4 +5 *3 max2 -2 mod7?"
TEXTS = ["4+5=2\n2*3=6\n6max2=6\n6-2=4", "4+5=3\n3*3=1\n1max2=2\n2-2=0", "4+5=2  2*3=5"]


def write(path, *rows):
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def rows_of(folder):
    return [json.loads(line) for line in Path(folder, "solutions.jsonl").read_text().splitlines()]


def test_a_trace_and_its_answer_become_two_rows_that_score_reads(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    write(
        "raw.jsonl",
        {
            "id": "a",
            "question": PROBLEM,
            "response": "<think>4+5=2\n2*3=6</think>\n6max2=6\n6-2=4",
            "answer": "4",
        },
        {"problem": PROBLEM, "response": "4+5=3\n3*3=2"},
        {"problem": PROBLEM, "response": "<think>4+5=2"},
        {"problem": PROBLEM, "response": " \n"},
    )
    asked = "task=split", "input=raw.jsonl", "split_by=line", "two_pass=true", "hydra.run.dir=run"
    out = printed(evaluate.main, monkeypatch, *asked, cwd=tmp_path)
    assert (
        "counts      1 rows_without_steps_dropped\n" in out
        and "4 solutions, 7 steps, at most 2; 1 have one" in out
    )
    rows = rows_of("run")
    assert rows[0] == {
        "id": "a/think", "answer": "4", "problem": PROBLEM, "steps": ["<think>4+5=2", "2*3=6</think>"],
    }  # fmt: skip
    assert [(row["id"], len(row["steps"])) for row in rows[1:]] == [
        ("a/answer", 2),
        ("2/answer", 2),
        ("3/think", 1),
    ]
    asked = (
        "task=score",
        "input=run/solutions.jsonl",
        "checkpoint=random",
        "figures=0",
        "hydra.run.dir=scored",
    )
    printed(evaluate.main, monkeypatch, *asked, cwd=tmp_path)
    scored = [json.loads(line) for line in Path("scored/scores.jsonl").read_text().splitlines()]
    assert [(row["id"], len(row["scores"])) for row in scored] == [
        (row["id"], len(row["steps"])) for row in rows
    ]


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_words_are_cut_where_one_forward_pass_finds_the_least_probable_tokens(share):
    policy = open_verifier("policy:embedded", OpenOptions())
    letters, logp = [], []
    for text in TEXTS:
        (e,) = encode(policy.format, policy.tokenizer, [(PROBLEM, (text,))])
        spans = policy.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)[
            "offset_mapping"
        ]
        ids_BL = jnp.array([e.ids_L])
        x_BLD = policy.model(ids_BL, jnp.arange(len(e.ids_L))[None], jnp.full(ids_BL.shape, len(e.ids_L)))
        logp_L = np.asarray(policy.model.next_logprobs(x_BLD, ids_BL))[0]  # of tokens 1, 2, ...
        logp.append(logp_L[e.start - 1 : e.start - 1 + len(spans)])
        letters.append([text[first:end] for first, end in spans])
        assert "".join(letters[-1]) == text
    limit = sorted(itertools.chain(*logp))[max(0, int(np.ceil(share * sum(map(len, logp)))) - 1)]
    expected = []
    for text, parts, x_L in zip(TEXTS, letters, logp, strict=True):
        ends = np.cumsum([len(part) for part in parts])
        unsure = [end - 1 for end, x in zip(ends, x_L, strict=True) if x <= limit]
        # White space belongs to the word behind it.
        expected.append(
            [m.start(1) for m in re.finditer(r"\s*(\S+)", text) if {*range(*m.span())} & {*unsure}]
        )
    assert unsure_words(policy, [PROBLEM] * 3, TEXTS, share) == expected
    assert share < 1 or [len(places) for places in expected] == [4, 4, 2]
    assert share > 0 or sum(map(len, expected)) == 1


def test_splitting_by_confidence_never_cuts_a_word_and_loses_none(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    write("raw.jsonl", *({"problem": PROBLEM, "text": text} for text in TEXTS))
    asked = "task=split", "input=raw.jsonl", "split_by=confidence", "share=0.2", "checkpoint=policy:embedded"
    printed(evaluate.main, monkeypatch, *asked, "hydra.run.dir=run", cwd=tmp_path)
    for row, text in zip(rows_of("run"), TEXTS, strict=True):
        assert " ".join(row["steps"]).split() == text.split()


def test_a_format_that_rewrites_responses_is_refused():
    policy = open_verifier("policy:embedded", OpenOptions())
    policy.format = Format("other", separator="\n", number="Step {n}: ")
    with pytest.raises(Exception, match="format: got 'other', expected one that writes a response as it is"):
        unsure_words(policy, [PROBLEM], TEXTS[:1], 0.1)


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({}, ["split_by=line"], r"raw.jsonl line 1: problem: missing, expected text"),
        (
            {"problem": "p", "response": 3},
            ["split_by=line"],
            r"raw.jsonl line 1: response: found 3, expected text",
        ),
        (
            {"problem": "p", "response": " "},
            ["split_by=line"],
            r"raw.jsonl: got 'no text', expected at least one response",
        ),
        ({"problem": "p", "response": "a"}, [], r"split_by: got None, expected line, blank, .*, confidence"),
        (
            {"problem": "p", "response": "a"},
            ["split_by=line", "checkpoint=policy:embedded"],
            r"checkpoint: got 'policy:em",
        ),
        (
            {"problem": "p", "response": "a"},
            ["split_by=confidence"],
            r"checkpoint: got None, expected checkpoint=policy:F",
        ),
        (
            {"problem": "p", "response": "a"},
            ["split_by=confidence", "checkpoint=random"],
            r"checkpoint: got '.*', expected a language model",
        ),
        (
            {"problem": "p", "response": "a"},
            ["split_by=line", "share=2"],
            r"share: got 2.0, expected a number",
        ),
    ],
)
def test_bad_input_is_one_line(monkeypatch, tmp_path, row, options, message):
    monkeypatch.chdir(tmp_path)
    write("raw.jsonl", row)
    assert re.search(
        message, call(evaluate.main, monkeypatch, "evaluate.py", "task=split", "input=raw.jsonl", *options)
    )
