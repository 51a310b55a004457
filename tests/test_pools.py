import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prm_jax import InputError
from prm_jax.data.pools import (
    Candidate,
    Problem,
    is_pool,
    is_unsplit,
    read_pool,
    scores_in_unit,
    with_scores,
    write_pool,
)
from prm_jax.data.sources import load
from prm_jax.evals.pool_arrays import log_scores, pool_arrays

DATA = Path(os.environ.get("PRM_JAX_DATA", Path(__file__).parents[2] / "shared" / "data"))
POOL = [
    Problem(
        "x",
        "1+1?",
        "2",
        (
            Candidate(("a", "b"), "2", True, True, {"m": (0.5, 0.25), "n": (-3.0, 7.0)}),
            Candidate(("c",), None, None, False, {"m": (1.0,), "n": (0.0,), "o": (2.0,)}),
        ),
    ),
    Problem("y", "?", None, (Candidate(("d",), "3", False, True, {"m": (0.125,), "n": (1.0,)}),)),
]


def real_pool(name):
    path = DATA / f"bon_strictprmbench/{name}_qwen2.5-7b-instruct_n32.jsonl.gz"
    if not path.exists():
        pytest.skip(f"real data absent: {path.name} (set PRM_JAX_DATA)")
    return path


def jsonl(tmp_path, *rows):
    path = tmp_path / "pool.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_native_layout_literally(tmp_path):
    full = {
        "steps": ["a", "b"],
        "answer": "2",
        "correct": True,
        "finished": False,
        "step_scores": {"m": [0, 0.5]},
    }
    bare = {"steps": [""]}
    row = {"id": "x", "problem": "p", "answer": "2", "candidates": [full, bare], "level": 3}
    [problem] = read_pool(jsonl(tmp_path, row))
    assert problem == Problem(
        "x",
        "p",
        "2",
        (Candidate(("a", "b"), "2", True, False, {"m": (0, 0.5)}), Candidate(("",), None, None, True, {})),
    )


def test_a_list_of_steps_is_a_candidate_and_a_row_without_an_id_is_named_by_its_problem(tmp_path):
    [problem] = read_pool(jsonl(tmp_path, {"problem": "p", "candidates": [["a", "b"], {"steps": ["c"]}]}))
    assert problem == Problem("p", "p", None, (Candidate(("a", "b")), Candidate(("c",))))
    with pytest.raises(InputError, match=r"candidates\[0\].steps: found no steps, expected at least one"):
        read_pool(jsonl(tmp_path, {"problem": "p", "candidates": [[]]}))


def test_strictprmbench_layout_takes_correct_and_never_source_is_correct(tmp_path):
    scores = {"qwen_prm": [0.5], "other": [0.25]}
    candidate = {"response": "r", "steps": ["a"], "extracted_answer": "3", "prm_step_scores": scores}
    candidate |= {"correct": False, "source_is_correct": True}
    row = {"problem_id": "gsm8k_0", "question": "q", "gold": "4", "candidates": [candidate]}
    path = jsonl(tmp_path, row)
    expected = Candidate(("a",), "3", False, True, {"qwen_prm": (0.5,), "other": (0.25,)})
    assert read_pool(path) == [Problem("gsm8k_0", "q", "4", (expected,))]
    [problem] = read_pool(path, ["qwen_prm"])
    assert problem.candidates[0].step_scores == {"qwen_prm": (0.5,)}


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_write_then_read_is_exact(tmp_path, suffix):
    path = tmp_path / f"new/pool.jsonl{suffix}"
    write_pool(path, POOL)
    assert read_pool(path) == POOL
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@settings(max_examples=40, deadline=None)
@given(
    step_count=st.integers(1, 3),
    data=st.data(),
    answer=st.none() | st.text(),
    correct=st.none() | st.booleans(),
    finished=st.booleans(),
)
def test_write_then_read_any_candidate(tmp_path_factory, step_count, data, answer, correct, finished):
    scores = st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * step_count)
    steps = data.draw(st.tuples(*[st.text()] * step_count))
    step_scores = data.draw(st.dictionaries(st.text(), scores, max_size=2))
    problems = [
        Problem(
            "i", data.draw(st.text()), answer, (Candidate(steps, answer, correct, finished, step_scores),)
        )
    ]
    path = tmp_path_factory.mktemp("pool") / "p.jsonl"
    write_pool(path, problems)
    assert read_pool(path) == problems


def candidate_row(**changes):
    return {
        "id": "x",
        "problem": "p",
        "answer": None,
        "candidates": [{"steps": ["a"]}, {"steps": ["a", "b"]} | changes],
    }


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            candidate_row(step_scores={"m": [1]}),
            "candidates[1].step_scores.m: found 1, expected one number for each of 2 steps",
        ),
        (
            candidate_row(step_scores={"m": [1, float("nan")]}),
            "candidates[1].step_scores.m[1]: found nan, expected a finite number",
        ),
        (
            candidate_row(step_scores={"m": [None, 1]}),
            "candidates[1].step_scores.m[0]: found null, expected a finite number",
        ),
        (candidate_row(step_scores={"m": 1}), "candidates[1].step_scores.m: found 1, expected a list"),
        (candidate_row(correct="yes"), "candidates[1].correct: found 'yes', expected true or false or null"),
        (candidate_row(steps=[]), "candidates[1].steps: found no steps, expected at least one"),
        (candidate_row(answer=7), "candidates[1].answer: found 7, expected text or null"),
        (candidate_row() | {"candidates": []}, "candidates: found none, expected at least one"),
        (
            candidate_row() | {"candidates": ["a"]},
            "candidates[0]: found 'a', expected an object or a list of steps",
        ),
        (
            {"id": "x"},
            "candidates: missing, expected a list, or problem and completions (whole texts) in its place; found id",
        ),
    ],
)
def test_errors_name_file_line_and_field(tmp_path, row, message):
    path = jsonl(tmp_path, candidate_row() | {"id": "other"}, row)
    with pytest.raises(InputError) as error:
        read_pool(path)
    assert str(error.value) == f"{path} line 2: {message}"


def test_repeated_id_and_missing_scores(tmp_path):
    path = jsonl(tmp_path, candidate_row(), candidate_row())
    with pytest.raises(InputError) as error:
        read_pool(path)
    expected = f"an id not seen before, {path} line 1 has it"
    assert str(error.value) == f"{path} line 2: id: found 'x', expected {expected}"
    with pytest.raises(
        InputError, match=r"line 1: candidates\[0\]\.step_scores\.m: missing, expected a list; found "
    ):
        read_pool(path, ["m"])


def test_scores_that_some_candidates_lack_are_counted():
    graded = [
        dataclasses.replace(p, candidates=tuple(dataclasses.replace(c, correct=True) for c in p.candidates))
        for p in POOL
    ]
    pool = pool_arrays(graded)
    assert list(pool.scores) == ["m", "n"] and pool.lacking == {"o": 2}


def test_a_pool_says_the_unit_of_its_scores(tmp_path):
    old = candidate_row(step_scores={"m": [0.5, 1]})
    old["candidates"][0]["step_scores"] = {"m": [0.25]}
    [problem] = read_pool(jsonl(tmp_path, old))
    assert problem.scores_unit == {} and scores_in_unit([problem], "m", "probability")[1] == "probability"
    [scored] = with_scores([problem], "new", [[3.5], [-1, 20]])
    write_pool(tmp_path / "scored.jsonl", [scored])
    assert json.loads((tmp_path / "scored.jsonl").read_text())["scores_unit"] == {"new": "logit"}
    [again] = read_pool(tmp_path / "scored.jsonl")
    assert again == scored and scores_in_unit([again], "new", "probability")[1] == "logit"
    assert read_pool(tmp_path / "scored.jsonl", ["m"])[0].scores_unit == {}
    [other] = with_scores([problem], "new", [[3.5], [-1, 20]], "log_ratio")
    with pytest.raises(
        InputError, match="scores_unit.new: found 'log_ratio and logit', expected one unit in all"
    ):
        scores_in_unit([again, other], "new", "probability")
    for unit in ("percent", ["logit"]):
        path = jsonl(tmp_path, old | {"scores_unit": {"m": unit}})
        with pytest.raises(
            InputError, match="pool.jsonl line 1: scores_unit.m: found .*, expected logit, probability"
        ):
            read_pool(path)


def test_with_scores_adds_a_name_and_keeps_the_input():
    scored = list(with_scores(POOL, "new", [np.array([1.0, 2.0], np.float32), [3], [4]]))
    assert [c.step_scores["new"] for p in scored for c in p.candidates] == [(1.0, 2.0), (3.0,), (4.0,)]
    assert [c.step_scores["m"] for p in scored for c in p.candidates] == [(0.5, 0.25), (1.0,), (0.125,)]
    assert [list(c.step_scores) for p in POOL for c in p.candidates] == [
        ["m", "n"],
        ["m", "n", "o"],
        ["m", "n"],
    ]
    with pytest.raises(
        InputError, match="scores: found 'm', expected a new name, problem x has scores of this one"
    ):
        list(with_scores(POOL, "m", [[1, 2], [3], [4]]))
    with pytest.raises(InputError, match="step_scores.new: found 1, expected one number for each of 2 steps"):
        list(with_scores(POOL, "new", [[1], [3], [4]]))
    with pytest.raises(ValueError, match="fewer scores"):
        list(with_scores(POOL, "new", [[1, 2], [3]]))
    with pytest.raises(ValueError, match="more scores"):
        list(with_scores(POOL, "new", [[1, 2], [3], [4], [5]]))


SEVEN = ["internlm2_1_8b_reward", "internlm2_7b_reward", "math_shepherd", "qwen_prm", "rlhflow_prm"]
SEVEN += ["skywork_prm", "skywork_prm_1_5b"]


@pytest.mark.parametrize(
    ("name", "problems", "steps", "longest", "correct", "oracle", "qwen_min", "names"),
    [
        ("gsm8k", 259, 40330, 28, 7682, 253, 250, SEVEN),
        ("math500", 256, 68276, 56, 5803, 234, 208, ["qwen_prm"]),
    ],
)
def test_real_pools(tmp_path, name, problems, steps, longest, correct, oracle, qwen_min, names):
    pool = read_pool(real_pool(name))
    candidates = [candidate for problem in pool for candidate in problem.candidates]
    assert (len(pool), len(candidates)) == (problems, problems * 32)
    assert sum(len(candidate.steps) for candidate in candidates) == steps
    assert sum(candidate.correct for candidate in candidates) == correct
    assert sum(any(c.correct for c in problem.candidates) for problem in pool) == oracle
    arrays = pool_arrays(iter(pool))
    assert list(arrays.scores) == names
    score_PNT, mask_PNT, _ = log_scores(arrays, "qwen_prm", "logit")  # as they are
    assert score_PNT.shape == (problems, 32, longest) and mask_PNT.sum() == steps
    best_P = np.where(mask_PNT, score_PNT, np.inf).min(-1).argmax(-1)
    assert sum(problem.candidates[n].correct for problem, n in zip(pool, best_P)) == qwen_min
    few = [dataclasses.replace(pool[0], candidates=pool[0].candidates[:3])]
    write_pool(tmp_path / "few.jsonl", few)
    assert read_pool(tmp_path / "few.jsonl") == few


def test_a_file_of_search_and_learn_is_a_pool(tmp_path):
    """Its completions have steps between blank lines; its verifiers score each piece, some of them blank ones too."""
    path = tmp_path / "sal.jsonl"
    completions = ["a\n\nb\n\nThe answer is 7.\n\n", "c", "d\n\ne"]
    row = {"problem": "2+5", "answer": "7", "unique_id": "t/1", "completions": completions}
    path.write_text(json.dumps(row | {"scores": [[0.9, 0.8, 0.7, 0.1], [0.3], [0.5]]}) + "\n")
    (problem,) = read_pool(path)
    assert (problem.id, problem.problem, problem.answer) == ("t/1", "2+5", "7")
    assert [(c.steps, c.answer, c.correct) for c in problem.candidates] == [
        (("a", "b", "The answer is 7."), "7", None), (("c",), None, None), (("d", "e"), None, None),
    ]  # fmt: skip
    assert [c.step_scores for c in problem.candidates] == [{"prm": (0.9, 0.8, 0.7)}, {"prm": (0.3,)}, {}]
    solutions, _ = load(path, "native")
    assert [(s.id, s.steps) for s in solutions] == [
        (f"t/1/{n}", c.steps) for n, c in enumerate(problem.candidates)
    ]
    with pytest.raises(InputError, match=r"sal.jsonl line 1: labels: found null, .* a pool has none"):
        load(path, "native", labels_required=True)
    for scores in ([0.5, 0.6, 0.7], [[0.5], None, [0.6]], [[0.5]] * 4):
        path.write_text(json.dumps(row | {"scores": scores}))
        with pytest.raises(
            InputError, match="sal.jsonl line 1: scores: found .*, expected a list of numbers for each comp"
        ):
            read_pool(path)
    named = [row | {"unique_id": None, "id": name} for name in "ab"]
    path.write_text("".join(json.dumps(x) + "\n" for x in named))
    assert [problem.id for problem in read_pool(path)] == ["a", "b"]
    assert not is_pool(
        {"problem": "2+5", "completions": ["a", "b"], "outcome": 1.0}
    )  # a solution that nobody labelled


def test_whole_texts_are_cut_as_asked(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text(json.dumps({"problem": "2+5", "completions": ["a\nb", "c\n\nd\ne"]}))
    steps = lambda split_by: [c.steps for c in read_pool(path, split_by=split_by)[0].candidates]
    assert steps(None) == [("a\nb",), ("c", "d\ne")] and steps("line") == [("a", "b"), ("c", "d", "e")]
    assert [is_unsplit(x) for x in (("a\nb",), ("c", "d\ne"), ("a\n",))] == [True, False, False]
    write_pool(path, read_pool(path))
    with pytest.raises(
        InputError, match="texts.jsonl line 1: split_by: found 'line', expected null: the candidates have"
    ):
        read_pool(path, split_by="line")
    path.write_text('{"question": "2+5", "responses": ["a"]}')
    with pytest.raises(
        InputError,
        match="candidates: missing, expected a list, or problem and completions .*; found question",
    ):
        read_pool(path)


def test_rows_of_problem_and_steps_are_native(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"problem": "p", "steps": ["a", "b"], "labels": [1, 0]}\n')
    ((solution,), _) = load(path, "native", labels_required=True)
    assert (solution.problem, solution.steps, solution.labels) == ("p", ("a", "b"), (1.0, 0.0))
    path.write_text(
        '{"problem": "p", "completions": ["a", "b"], "labels": [1, 0]}\n'
    )  # whose steps, nobody says
    with pytest.raises(
        InputError, match="prompt: missing, expected text; found problem, completions, labels"
    ):
        load(path, "native")
