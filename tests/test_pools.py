import dataclasses
import json

import numpy as np
import pytest
from conftest import jsonl, real_data

from prm_jax import InputError
from prm_jax.data.pools import Candidate, Problem, note_unsplit, read_pool, with_scores, write_pool
from prm_jax.data.rows import is_pool
from prm_jax.data.sources import load
from prm_jax.evals.pool_arrays import log_scores, pool_arrays
from prm_jax.solutions import Solution

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


def test_a_list_of_steps_is_a_candidate_and_a_row_without_an_id_is_named_by_its_problem(tmp_path):
    [problem] = read_pool(jsonl(tmp_path, {"problem": "p", "candidates": [["a", "b"], {"steps": ["c"]}]}))
    assert problem == Problem("p", "p", None, (Candidate(("a", "b")), Candidate(("c",))))
    with pytest.raises(InputError, match=r"candidates\[0\].steps: "):
        read_pool(jsonl(tmp_path, {"problem": "p", "candidates": [[]]}))


def test_strictprmbench_layout_takes_correct_and_never_source_is_correct(tmp_path):
    scores = {"qwen_prm": [0.5], "other": [0.25]}
    candidate = {"response": "r", "steps": ["a"], "extracted_answer": "3", "prm_step_scores": scores}
    candidate |= {"correct": False, "source_is_correct": True}
    row = {"problem_id": "gsm8k_0", "question": "q", "gold": "4", "candidates": [candidate]}
    path = jsonl(tmp_path, row)
    expected = Candidate(("a",), "3", False, True, {"qwen_prm": (0.5,), "other": (0.25,)})
    assert read_pool(path) == [Problem("gsm8k_0", "q", "4", (expected,))]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_write_then_read_is_exact(tmp_path, suffix):
    path = tmp_path / f"new/pool.jsonl{suffix}"
    write_pool(path, POOL)
    assert read_pool(path) == POOL
    assert [file.name for file in path.parent.iterdir()] == [path.name]


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
    pool = read_pool(real_data(f"bon_strictprmbench/{name}_qwen2.5-7b-instruct_n32.jsonl.gz"))
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


def candidate_row(**changes):
    candidates = [{"steps": ["a"]}, {"steps": ["a", "b"]} | changes]
    return {"id": "x", "problem": "p", "answer": None, "candidates": candidates}


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (candidate_row(step_scores={"m": [1]}), r"candidates\[1\].step_scores.m: "),
        (candidate_row(step_scores={"m": [1, float("nan")]}), r"candidates\[1\].step_scores.m\[1\]: "),
        (candidate_row(logp=[-0.5, 2.5]), r"candidates\[1\].logp\[1\]: "),
        (candidate_row() | {"scores_unit": {"m": "percent"}}, "scores_unit.m: "),
        (candidate_row() | {"id": "other"}, "id: "),
        ({"id": "x", "responses": ["a"]}, "candidates: missing"),
    ],
)
def test_errors_name_file_line_and_field(tmp_path, row, field):
    path = jsonl(tmp_path, candidate_row() | {"id": "other"}, row)
    with pytest.raises(InputError, match=f"rows.jsonl line 2: {field}"):
        read_pool(path)


def test_scores_keep_their_unit_and_are_added_under_a_new_name(tmp_path):
    [old] = read_pool(jsonl(tmp_path, candidate_row()))
    [scored] = with_scores([old], "new", [[3.5], np.array([-1, 20], np.float32)])
    write_pool(tmp_path / "scored.jsonl", [scored])
    assert json.loads((tmp_path / "scored.jsonl").read_text())["scores_unit"] == {"new": "logit"}
    [again] = read_pool(tmp_path / "scored.jsonl")
    assert again == scored and [c.step_scores for c in old.candidates] == [{}, {}]
    with pytest.raises(InputError, match="step_scores.more: "):
        list(with_scores([scored], "more", [[3.5], [-1]]))


def test_a_file_of_search_and_learn_is_a_pool(tmp_path):
    """Its completions have steps between blank lines; its verifiers score pieces, some of them blank."""
    completions = ["a\n\nb\n\nThe answer is 7.\n\n", "c", "d\n\ne\nf"]
    row = {"problem": "2+5", "answer": "7", "unique_id": "t/1", "completions": completions}
    path = jsonl(tmp_path, row | {"scores": [[0.9, 0.8, 0.7, 0.1], [0.3], [0.5]]})
    (problem,) = read_pool(path)
    assert (problem.id, problem.problem, problem.answer) == ("t/1", "2+5", "7")
    assert [c.steps for c in problem.candidates] == [("a", "b", "The answer is 7."), ("c",), ("d", "e\nf")]
    assert [c.answer for c in problem.candidates] == ["7", None, None]
    assert [c.step_scores for c in problem.candidates] == [{"prm": (0.9, 0.8, 0.7)}, {"prm": (0.3,)}, {}]
    assert [s.id for s in load(path, "native")[0]] == ["t/1/0", "t/1/1", "t/1/2"]
    cut = [c.steps for c in read_pool(path, split_by="line")[0].candidates]
    assert cut[2] == ("d", "e", "f")
    with pytest.raises(InputError, match="rows.jsonl line 1: labels: "):
        load(path, "native", labels_required=True)
    with pytest.raises(InputError, match="rows.jsonl line 1: scores: "):
        read_pool(jsonl(tmp_path, row | {"scores": [[0.5]]}))
    mine = jsonl(tmp_path, row | {"scores": [[1.0]] * 3, "mine": [[0.9], [0.3], [0.5]]})
    (problem,) = read_pool(mine, columns={"step_scores": "mine"})
    assert problem.candidates[1].step_scores == {"prm": (0.3,)}
    assert not is_pool({"problem": "2+5", "completions": ["a"], "outcome": 1.0})  # nobody labelled it


def test_solutions_that_look_like_whole_texts_are_named(capsys):
    note_unsplit(Solution("p", steps) for steps in (("a\nb",), ("a\n",), ("a", "b")))
    assert "1 of 3 solutions" in capsys.readouterr().out
