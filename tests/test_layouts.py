"""Other people's rows: names of columns, labels in and beside the text, conversations, tables of samples."""

import collections
import json

import pandas as pd
import pytest
from conftest import jsonl, printed, real_data, refuses

import evaluate
import train
from prm_jax import InputError
from prm_jax.data.pools import Candidate, Problem, read_pool
from prm_jax.data.questions import read_questions
from prm_jax.data.rows import short_text
from prm_jax.data.sources import load
from prm_jax.generate.labeling import read_input


def read(tmp_path, kind, row, **options):
    [solution], counts = load(jsonl(tmp_path, row), kind, **options)
    return (solution.problem, solution.steps, solution.labels), counts


def test_columns_name_those_of_the_file(tmp_path):
    row = {"q": {"text": "1+1?"}, "parts": ["a", "b"], "completions": "seven", "p.good": [0.25, None]}
    columns = {"prompt": "q.text", "completions": "parts", "labels": "p.good"}
    assert read(tmp_path, "native", row, columns=columns)[0] == ("1+1?", ("a", "b"), (0.25, None))
    with pytest.raises(InputError, match=r"rows.jsonl line 1: columns.labels: .*'good'.*q, parts"):
        read(tmp_path, "native", row, columns=columns | {"labels": "good"})
    synonyms = {"problem": "short", "gold": 5}  # what is named counts in their place
    path = jsonl(tmp_path, {"query": "2+2?", "target": 4.0, "number": 3} | synonyms)
    columns = {"prompt": "query", "answer": "target", "id": "number"}
    assert list(read_questions(path, columns=columns)) == [Problem("3", "2+2?", "4")]
    path = jsonl(tmp_path, {"query": "2+2?", "outputs": [["4"]], "id": 1, "key": 2})
    [problem] = read_pool(path, columns={"problem": "query", "candidates": "outputs", "unique_id": "key"})
    assert (problem.id, problem.problem, problem.candidates) == ("2", "2+2?", (Candidate(("4",)),))
    row = {"input": "p Step 1: a ки", "label": [False], "v": [True]}
    assert read(tmp_path, "math_shepherd", row, columns={"value": "v"})[0][2] == (1.0,)
    for kind, name in (("native", "weight"), ("text", "labels")):  # what nothing would read
        refuses(f"^columns.{name}: .* outcome", read, tmp_path, kind, row, columns={name: "v"})
    refuses("^columns.outcom: .*gold", lambda: [*read_questions(path, columns={"outcom": "key"})])
    refuses("^columns.outcom: .*gold", read_pool, path, columns={"outcom": "key"})


def test_an_answer_is_no_text_beside_one(tmp_path):
    row = {"problem": "p", "body": "a\nb", "answer": "4"}
    assert read(tmp_path, "text", row, columns={"text": "body"})[0][1] == ("a", "b")
    assert read(tmp_path, "text", row)[0][1] == ("4",)
    refuses("line 1: completion: got None", read, tmp_path, "text", row | {"completion": None})
    both = {"problem": "p", "solution": "the gold one", "response": "a"}
    [pool] = read_pool(jsonl(tmp_path, both))
    assert read(tmp_path, "text", both)[0][1] == pool.candidates[0].steps == ("a",)


@pytest.mark.parametrize("kind, key, value", [("native", "split_by", "blank"), ("text", "neutral", "bad")])
def test_a_key_that_a_reader_does_not_ask_is_refused(tmp_path, kind, key, value):
    refuses(f"^data.{key}: got '{value}'", read, tmp_path, kind, {}, **{key: value})


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"query": "p", "completions": ["a"]}, "prompt: .*query.*data.columns="),
        ({"conversations": [], "id": 1}, "prompt: .*data.name=conversations"),
    ],
)
def test_a_missing_column_names_those_found_and_the_way(tmp_path, row, named):
    with pytest.raises(InputError, match=f"rows.jsonl line 1: {named}"):
        load(jsonl(tmp_path, row), "native")


@pytest.mark.parametrize(
    "name, labels", [("label", ["+", "-"]), ("value", [1.0, False]), ("value", ["true", "FALSE"])]
)
def test_a_list_of_labels_beside_the_marks(tmp_path, name, labels):
    row = {"input": "How many? Step 1: 2 ки\nStep 2: The answer is: 3 ки", name: labels}
    found, _ = read(tmp_path, "math_shepherd", row)
    assert found == ("How many?", ("Step 1: 2", "Step 2: The answer is: 3"), (1.0, 0.0))
    with pytest.raises(InputError, match=f"rows.jsonl line 1: {name}: "):
        read(tmp_path, "math_shepherd", row | {name: labels[:1]})


@pytest.mark.parametrize(
    ("process", "label", "labels"),
    [
        ("a\nb\n", ["-"], (None, 0.0)),
        ("a\n\n\n\n\nb\n\n\n\n\n", ["+", "-"], (1.0, 0.0)),
        ("a ки\nb ки", [0.5, "-"], (0.5, 0.0)),
    ],
)
def test_steps_of_a_process_have_labels_or_the_last_has_one(tmp_path, process, label, labels):
    row = {"question": "Why?", "process": process, "label": label}
    assert read(tmp_path, "math_shepherd", row)[0] == ("Why?", ("a", "b"), labels)
    with pytest.raises(InputError, match="rows.jsonl line 1: label: "):
        read(tmp_path, "math_shepherd", row | {"label": ["+"] * 3})


def turns(*texts, role="role", content="content", names=("user", "assistant")):
    return [{role: names[i % 2], content: text} for i, text in enumerate(texts)]


JUDGED = "Is 4 even? Step 1: 4/2=2", " + ", "Step 2: no", "-"


@pytest.mark.parametrize(
    ("conversation", "event"),
    [
        (turns(*JUDGED), None),
        (turns(*JUDGED, "and so"), "texts_after_last_mark_dropped"),
        ([{"role": "system", "content": "Judge."}, *turns(*JUDGED)], "system_turns_dropped"),
        (turns(*JUDGED, role="from", content="value", names=("human", "gpt")), None),
    ],
)
def test_conversations(tmp_path, conversation, event):
    found, counts = read(tmp_path, "conversations", {"conversations": conversation})
    assert found == ("Is 4 even?", ("Step 1: 4/2=2", "Step 2: no"), (1.0, 0.0))
    totals = {"rows": 1, "solutions": 1, "steps": 2, "labels": 2}
    assert +collections.Counter(counts) == totals | ({event: 1} if event else {})


def test_a_conversation_without_step_1_is_cut_at_a_blank_line_or_sentence(tmp_path):
    row = {"conversations": turns("One.\n\nWhat?\n\nFirst.", "+", "Second.", "-")}
    found, counts = read(tmp_path, "conversations", row)
    assert found == ("One.\n\nWhat?", ("First.", "Second."), (1.0, 0.0))
    assert counts["rows_without_step_1"] == 1
    row = {"conversations": turns("Let x = 3. Find x.\nWe see", "+", "Second.", "-")}
    found, _ = read(tmp_path, "conversations", row)
    assert found == ("Let x = 3.", ("Find x.\nWe see", "Second."), (1.0, 0.0))
    bad = {r"labels\[1\]": turns("q Step 1: a", "+", "b", "good"), "conversations": turns("q")}
    for field, wrong in bad.items():
        with pytest.raises(InputError, match=f"rows.jsonl line 1: {field}"):
            read(tmp_path, "conversations", {"conversations": wrong})


def sample(problem, text, answer, correct, scores):
    row = {"question": problem, "response": text, "answer": answer, "correct": correct}
    return row | {"step_scores": scores}


TABLE = [
    sample("2+5?", "2+5\n\nThe answer is 7.", 7, 1, [0.5, 1.0]),
    sample("?", "no", None, 0, [0.25]),
    sample("2+5? ", "8", 7.0, 0.0, [0.125]),
]
SUMS = Candidate(("2+5", "The answer is 7."), "7", True, True, {"prm": (0.5, 1.0)})
WRONG = [Candidate((text,), None, False, True, {"prm": (x,)}) for text, x in (("8", 0.125), ("no", 0.25))]
POOL = [Problem("2+5?", "2+5?", "7", (SUMS, WRONG[0])), Problem("?", "?", None, (WRONG[1],))]


def test_rows_of_one_sample_are_joined_to_a_pool(tmp_path):
    assert read_pool(jsonl(tmp_path, *TABLE)) == POOL
    frame = pd.DataFrame(TABLE)
    frame.to_parquet(tmp_path / "table.parquet")
    assert read_pool(tmp_path / "table.parquet") == POOL
    path = jsonl(tmp_path, *frame.to_dict("records"))  # with NaN for the answer that is missing
    assert "NaN" in path.read_text() and read_pool(path) == POOL
    [problem] = read_pool(jsonl(tmp_path, {"problem": "p", "steps": ["#### 2"], "correct": 0, "answer": "1"}))
    assert (problem.answer, problem.candidates) == ("1", (Candidate(("#### 2",), "2", False),))
    with pytest.raises(InputError, match="rows.jsonl line 2: answer: .*extracted_answer"):
        read_pool(jsonl(tmp_path, TABLE[0], TABLE[0] | {"answer": "8"}))


@pytest.mark.parametrize("other", [{"problem": "3+3?"}, {"answer": "5"}, {"scores_unit": {"prm": "logit"}}])
def test_samples_that_share_a_problem_id_are_of_one_problem(tmp_path, other):
    row = {"problem_id": 0, "problem": "2+2?", "answer": "4", "response": "4", "scores": [0.5]}
    with pytest.raises(InputError, match=f"rows.jsonl line 2: {next(iter(other))}: "):
        read_pool(jsonl(tmp_path, row, row | other))


def test_steps_with_ratings_are_one_solution(tmp_path):
    row = {"problem": "2+2?", "completions": ["2+2=4", "5"], "ratings": [1, -1], "solution": "2+2=4"}
    for solution in (*load(jsonl(tmp_path, row), "native")[0], *read_input(tmp_path / "rows.jsonl", None)[0]):
        assert (solution.steps, solution.ratings) == (("2+2=4", "5"), (1, -1))


def test_lists_beside_whole_texts(tmp_path):
    row = {"prompt": "2+5?", "texts": ["2+5\n\n7", "8"], "label": [1, 0], "preds": [7, None], "answer": 7}
    columns = {"problem": "prompt", "completions": "texts", "correct": "label", "answers": "preds"}
    [problem] = read_pool(jsonl(tmp_path, row), columns=columns)
    assert problem.candidates == (Candidate(("2+5", "7"), "7", True), Candidate(("8",), None, False))
    with pytest.raises(InputError, match="rows.jsonl line 1: correct: "):
        read_pool(jsonl(tmp_path, row | {"label": [1]}), columns=columns)


def test_lists_of_a_real_file():
    columns = {"problem": "question", "completions": "code", "correct": "score", "answers": "pred"}
    pool = read_pool(real_data("bon_math_qwen_maj/math_cot_100.jsonl"), columns=columns)
    right = [[c.correct for c in problem.candidates] for problem in pool]
    assert (len(pool), sum(map(sum, right)), sum(map(any, right))) == (100, 728, 96)  # as published


@pytest.mark.parametrize("right", [1, 1.0, True, "true", "True", "1"])
def test_numbers_and_texts_as_answers_ids_and_verdicts(tmp_path, right):
    candidate = {"steps": ["a"], "answer": 12.0, "correct": right, "finished": right}
    path = jsonl(tmp_path, {"id": 7, "problem": "p", "answer": 12, "candidates": [candidate]})
    [problem] = read_pool(path)
    assert (problem.id, problem.answer) == ("7", "12")
    assert problem.candidates == (Candidate(("a",), "12", True, True),)
    assert list(read_questions(path)) == [Problem("7", "p", "12")]
    assert short_text({"answer": 0.00005}, "answer") == "0.00005"
    path = jsonl(tmp_path, {"problem": "p", "candidates": [candidate | {"answer": float("nan")}]})
    assert read_pool(path)[0].candidates == (Candidate(("a",), None, True),)
    [question] = read_questions(jsonl(tmp_path, {"problem": "p", "answer": " "}))
    assert question.answer is None  # against which everything would be wrong
    for name, wrong in (("correct", "yes"), ("answer", [12]), ("answer", True)):
        with pytest.raises(InputError, match=rf"rows.jsonl line 1: candidates\[0\].{name}: "):
            read_pool(jsonl(tmp_path, {"problem": "p", "candidates": [candidate | {name: wrong}]}))


def test_line_ends_and_marks_of_other_systems(tmp_path):
    path = tmp_path / "dos.jsonl"
    texts = ["a\r\n\r\nb \r\n"]
    rows = [json.dumps({"problem": f"p\u2028{i}", "completions": texts}, ensure_ascii=False) for i in (1, 2)]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(rows).encode() + b"\r\n")
    assert [p.problem for p in read_pool(path)] == ["p\u20281", "p\u20282"]
    assert read_pool(path)[0].candidates[0].steps == ("a", "b")


def test_commands_take_columns(monkeypatch, tmp_path):
    rows = [{"q": f"{i}+1?", "parts": [f"{i}+1={i}", "so"], "value": [0.5, 0.1]} for i in range(30)]
    jsonl(tmp_path, *rows)
    columns = "columns={prompt: q, completions: parts, labels: value}"
    data = ["data=jsonl", "data.path=rows.jsonl", f"data.{columns}", "data.label_kind=value"]
    small = ["init=random", "model.dim=16", "model.layers=1", "steps=1", "data.folds=3"]
    printed(train.main, monkeypatch, *data, *small, "hydra.run.dir=run", cwd=tmp_path)
    assert json.loads((tmp_path / "run/summary.json").read_text())["counts"]["rows"] == 30
    table = [{"q": "p", "text": str(i), "answer": 1, "correct": i == 1} for i in range(4)]
    jsonl(tmp_path, *table, name="table.jsonl")
    asked = ["task=best_of_n", "input=table.jsonl", "checkpoint=random", "hydra.run.dir=best"]
    printed(evaluate.main, monkeypatch, *asked, "columns={problem: q, response: text}", cwd=tmp_path)
    assert json.loads((tmp_path / "best/results.json").read_text())["n_candidates"] == 4
