import collections
import gzip
import hashlib
import json
from pathlib import Path

import pytest
from conftest import jsonl, real_data
from omegaconf import OmegaConf

from prm_jax import InputError
from prm_jax.data.rows import read_rows
from prm_jax.data.sources import load
from prm_jax.data.splits import assign_fold, data_config, load_evaluation, load_splits, normal_text
from prm_jax.data.writing import native_row as row_of
from prm_jax.data.writing import write_rows
from prm_jax.launch.config import CONF
from prm_jax.solutions import Solution, first_error

OPTIONS = {"after_first_error": "mask"}


def read(path, kind, **options):
    return load(path, kind, **(OPTIONS | options))


def native_row(**changes):
    return {"prompt": "1+1?", "completions": ["1+1=2", "so 3"], "labels": [1, 0]} | changes


def completion(text, rating):
    return {"text": text, "rating": rating, "flagged": False}


def raw_step(*completions, chosen=None, human=None):
    human = human and {"text": human, "rating": None}
    return {"completions": list(completions), "human_completion": human, "chosen_completion": chosen}


def raw_row(*steps, reason="solution", quality=False, screening=False):
    return {
        "is_quality_control_question": quality,
        "is_initial_screening_question": screening,
        "question": {"problem": "p"},
        "label": {"steps": list(steps), "finish_reason": reason},
    }


# A good step, a step where the second of three was chosen, a step written by the labeller, the end.
RAW = raw_row(
    raw_step(completion("a", 1), chosen=0),
    raw_step(completion("b0", -1), completion("b1", 0), completion("b2", None), chosen=1),
    raw_step(completion("c0", -1), human="c human"),
    raw_step(completion("d\n\n# Answer\n\n7", 1), completion("d1", 0), chosen=0),
)


def test_native_ids_default_to_file_and_line_and_labels_are_optional(tmp_path):
    path = tmp_path / "x.jsonl"
    text = json.dumps({"prompt": "p", "completions": ["a"]})
    path.write_bytes(b"\xef\xbb\xbf" + f"{text}\r\n\n   \n{text}\n".encode())
    solutions, counts = read(path, "native")
    assert [(s.id, s.labels, s.outcome) for s in solutions] == [(f"x.jsonl:{n}", None, None) for n in (1, 4)]
    assert (counts["rows"], counts["labels"]) == (2, 0)
    with pytest.raises(InputError, match=r"x\.jsonl line 1: labels: missing"):
        read(path, "native", labels_required=True)


@pytest.mark.parametrize(
    ("option", "labels", "ratings", "changed"),
    [
        ("mask", (1.0, 0.4, None, None, None), (1, -1, None, None, None), 2),
        ("bad", (1.0, 0.4, 0.0, 0.0, 0.0), (1, -1, -1, -1, -1), 2),
        ("keep", (1.0, 0.4, 0.9, None, 0.0), (1, -1, 1, None, -1), 0),
    ],
)
def test_after_first_error(tmp_path, option, labels, ratings, changed):
    row = native_row(completions=list("abcde"), labels=[1, 0.4, 0.9, None, 0], ratings=[1, -1, 1, None, -1])
    [solution], counts = read(jsonl(tmp_path, row), "native", after_first_error=option)
    assert (solution.labels, solution.ratings) == (labels, ratings)
    assert counts.get(f"labels_after_first_error_{option}", 0) == changed


def test_duplicates_are_exact_repeats(tmp_path):
    changes = {}, {"id": "b"}, {"labels": [1, None]}, {"outcome": 1}, {"prompt": "q"}
    path = jsonl(tmp_path, *[native_row(**change) for change in changes])
    kept, counts = read(path, "native", duplicates="drop")
    assert [s.id for s in kept] == ["rows.jsonl:1", "rows.jsonl:3", "rows.jsonl:4", "rows.jsonl:5"]
    assert (counts["rows"], counts["solutions"], counts["duplicates_dropped"]) == (5, 4, 1)
    assert read([path, path], "native", duplicates="drop")[1]["duplicates_dropped"] == 6
    assert len(read([path, path], "native")[0]) == 10


def test_raw_rows_literally_each_rated_step_is_supervised_once(tmp_path):
    solutions, counts = read(jsonl(tmp_path, RAW), "prm800k")
    steps, labels = ("a", "b1", "c human", "d\n\n# Answer\n\n7"), (1.0, 1.0, None, 1.0)
    assert solutions[0] == Solution("p", steps, labels, (1, 0, None, 1), answer="7", id="rows.jsonl:1")
    assert counts["human_steps_without_rating"] == 1
    assert [(s.id, s.steps, s.labels, s.ratings) for s in solutions[1:]] == [
        ("rows.jsonl:1/1.0", ("a", "b0"), (None, 0.0), (None, -1)),
        ("rows.jsonl:1/2.0", ("a", "b1", "c0"), (None, None, 0.0), (None, None, -1)),
        ("rows.jsonl:1/3.1", ("a", "b1", "c human", "d1"), (None, None, None, 1.0), (None, None, None, 0)),
    ]
    assert solutions[1].answer is None
    assert (counts["solutions"], counts["labels"]) == (4, 6)
    assert counts["solutions_without_label_dropped"] == 1  # b2 has no rating


def test_raw_row_that_stops_without_a_choice_ends_with_the_step_under_review(tmp_path):
    steps = (raw_step(completion("a", 1), chosen=0), raw_step(completion("b0", -1), completion("b1", 1)))
    row = raw_row(*steps, {"completions": None, "human_completion": None, "chosen_completion": None})
    solutions, _ = read(jsonl(tmp_path, row), "prm800k")
    assert [(s.steps, s.labels) for s in solutions] == [(("a", "b0"), (1.0, 0.0)), (("a", "b1"), (None, 1.0))]
    empty = raw_row({"completions": None, "human_completion": None, "chosen_completion": None})
    _, counts = read(jsonl(tmp_path, row, empty), "prm800k")
    assert counts["rows_without_steps_dropped"] == 1


def test_quality_control_rows_are_dropped_by_reason(tmp_path):
    step = raw_step(completion("a", 1), chosen=0)
    rows = [raw_row(step), raw_row(step, quality=True), raw_row(step, screening=True)]
    rows += [raw_row(step, reason=reason) for reason in ("give_up", "bad_problem", "found_error")]
    path = jsonl(tmp_path, *rows)
    solutions, counts = read(path, "prm800k")
    assert [s.id for s in solutions] == ["rows.jsonl:1", "rows.jsonl:6"]
    reasons = ("quality_control", "screening", "give_up", "bad_problem")
    assert [counts[f"{reason}_rows_dropped"] for reason in reasons] == [1, 1, 1, 1]


def test_real_prm800k_flat():
    path = real_data("prm800k_val1818/prm800k_val1818.jsonl")
    solutions, counts = read(path, "prm800k")
    assert counts["rows"] == counts["solutions"] == 1175
    assert counts["steps"] == counts["labels"] == 6098
    ratings = collections.Counter(rating for s in solutions for rating in s.ratings)
    assert ratings == {1: 4713, 0: 340, -1: 1045}
    assert sum(s.answer is not None for s in solutions) == 145
    errors = [s for s in solutions if first_error(s.labels) != -1]
    assert len(errors) == 1045 and all(first_error(s.labels) == len(s.steps) - 1 for s in errors)
    distinct, counts = read(path, "prm800k", duplicates="drop")
    assert (len(distinct), counts["duplicates_dropped"], counts["labels"]) == (729, 446, 4933)
    bad = read(path, "prm800k", neutral="bad", after_first_error="keep")[0]
    assert sum(label == 0 for s in bad for label in s.labels) == 340 + 1045
    assert sum(rating == -1 for s in bad for rating in s.ratings) == 340 + 1045


def shepherd(tmp_path, text, label):
    path = jsonl(tmp_path, {"input": text, "label": label, "task": "GSM8K"})
    return read(path, "math_shepherd", after_first_error="keep")


def test_math_shepherd_row_literally(tmp_path):
    text = "Pens? Really? Step 1: 3 - 1 = 2. ки\nStep 2: ки\nStep 3: The answer is: 2 + x ки"
    [solution], counts = shepherd(
        tmp_path, text, "Pens? Really? Step 1: 3 - 1 = 2. +\nStep 2: -\nStep 3: The answer is: 2 + x +"
    )
    steps = ("Step 1: 3 - 1 = 2.", "Step 2:", "Step 3: The answer is: 2 + x")
    assert solution == Solution("Pens? Really?", steps, (1.0, 0.0, 1.0), answer="2 + x", id="rows.jsonl:1")
    assert [counts[key] for key in ("rows_without_step_1", "marks_inside_problem_dropped")] == [0, 0]


@pytest.mark.parametrize(
    ("text", "problem", "steps", "labels", "counted"),
    [
        ("Find xки. step 1: a ки b", "Find x.", ("step 1: a",), (0.0,), [0, 1, 1]),
        ("Why? Or? So a ки\nStep 2: b ки\n", "Why? Or?", ("So a", "Step 2: b"), (1.0, 0.0), [1, 0, 0]),
        ("Find x. ки\nb ки", "Find x.", ("b",), (0.0,), [1, 1, 0]),
    ],
)
def test_math_shepherd_dirt_is_counted(tmp_path, text, problem, steps, labels, counted):
    signs = text.replace("ки", "+", 1).replace("ки", "-")
    [solution], counts = shepherd(tmp_path, text, signs)
    assert (solution.problem, solution.steps, solution.labels) == (problem, steps, labels)
    keys = ("rows_without_step_1", "marks_inside_problem_dropped", "texts_after_last_mark_dropped")
    assert [counts[key] for key in keys] == counted


@pytest.mark.parametrize(
    ("name", "rows", "steps", "errors", "clean", "lucky", "problems"),
    [("gsm8k", 400, 2082, 207, 193, 7, 375), ("math", 1000, 6505, 594, 406, 94, 955)],
)
def test_real_processbench(name, rows, steps, errors, clean, lucky, problems):
    solutions, counts = read(real_data(f"processbench/{name}.json"), "processbench", duplicates="drop")
    assert (counts["rows"], counts["solutions"], counts["steps"]) == (rows, rows, steps)
    found = [first_error(s.labels) for s in solutions]
    assert (rows - found.count(-1), found.count(-1)) == (errors, clean)
    assert sum(error != -1 and s.outcome == 1 for s, error in zip(solutions, found)) == lucky
    assert not any(error == -1 and s.outcome == 0 for s, error in zip(solutions, found))
    assert len({s.problem for s in solutions}) == problems
    assert (solutions[0].id, solutions[-1].id) == (f"{name}-0", f"{name}-{rows - 1}")
    assert all(label is None for s, e in zip(solutions, found) if e >= 0 for label in s.labels[e + 1 :])


def test_real_prmbench():
    paths = sorted(real_data("prmbench").glob("*.jsonl"))
    solutions, counts = read(paths, "prmbench", after_first_error="keep")
    assert len(paths) == 9
    assert (counts["rows"], counts["solutions"]) == (883, 883)
    assert counts["steps"] == counts["labels"] == 13148
    assert (counts["rows_with_error_steps_out_of_range"], counts["error_steps_out_of_range"]) == (21, 26)
    assert len({s.id for s in solutions}) == 883
    multiple = [s for s in solutions if "multi_solutions" in s.id]
    assert len(multiple) == 165 and all(set(s.labels) == {1.0} for s in multiple)


def test_every_file_type_gives_the_same_rows(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [native_row(labels=[0.25, None]), native_row(prompt="ü\u2028")]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    texts = {
        "a.jsonl": lines,
        "list.json": json.dumps(rows),
        "pretty.json": "\n".join(json.dumps(row, indent=4) for row in rows),
        "lines.json": lines,
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    for name in [*texts, *(f"{name}.gz" for name in texts), "t.parquet"]:
        read = [(place.number, row) for place, row in read_rows(tmp_path / name)]
        assert read == [(1, rows[0]), (2, rows[1])], name
    one = tmp_path / "one.json"
    one.write_text(json.dumps(rows[0], indent=2))
    assert [row for _, row in read_rows(one)] == rows[:1]


def test_hub_rows_go_through_the_same_functions(tmp_path, monkeypatch):
    import datasets

    # load_dataset takes a folder as it takes a hub name, so no network is needed.
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "set"
    folder.mkdir()
    rows = native_row(labels=[True, False]), native_row(labels=[True, None])
    rows = rows[0] | {"steps": []}, rows[1]  # a column beside TRL's, unused
    jsonl(folder, *rows, native_row(completions=[], labels=[]), name="train.jsonl")
    solutions, counts = read(str(folder), "native", split="train", after_first_error="keep")
    assert [(s.labels, s.id) for s in solutions] == [((1.0, 0.0), "set:1"), ((1.0, None), "set:2")]
    assert (counts["rows"], counts["rows_without_steps_dropped"]) == (3, 1)
    with pytest.raises(InputError, match=r"set split nope: cannot be loaded \(.*\)$"):
        read(str(folder), "native", split="nope")


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_write_then_read_is_exact(tmp_path, suffix):
    full = Solution("\u2028 ü", ("a", ""), (0.1, None), (1, None), 0.5, answer="7", id="i")
    rows = [full, Solution("p", ("\x00",), id="j")]
    path = tmp_path / f"new/x.jsonl{suffix}"
    write_rows(path, map(row_of, rows))
    assert read(path, "native", after_first_error="keep")[0] == rows
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    with pytest.raises(ZeroDivisionError):
        write_rows(path, (row_of(Solution("p", ("a",), (1 / n,))) for n in (1, 0)))
    assert read(path, "native", after_first_error="keep")[0] == rows  # a failed write leaves the old file


# Of "problem 0" to "problem 9" among 5; a change moves every published split.
FOLDS = [int(fold) for fold in "3132431000"]


def test_folds_are_stable_and_ignore_white_space():
    assert [assign_fold(f"problem {i}", 5) for i in range(10)] == FOLDS
    assert assign_fold(" a\n b\t", 1000) == assign_fold("a b", 1000) != assign_fold("ab", 1000)
    assert normal_text("Tom has 3 pens .\n") == normal_text("tom has 3 pens.") != normal_text("4 pens.")


def file_config(**changes):
    """The data config of native rows, as `data=jsonl` with these overrides gives it."""
    node = OmegaConf.merge(OmegaConf.load(CONF / "data" / "files.yaml"), {"name": "native"})
    del node["defaults"]
    return data_config(OmegaConf.merge(node, changes))


def labelled_rows(*problems):
    return [native_row(prompt=problem) for problem in problems]


PROBLEMS = [f"problem {i}" for i in range(10)]


def test_a_file_named_for_an_evaluation_is_measured_whole(tmp_path):
    path = str(jsonl(tmp_path, *labelled_rows(*PROBLEMS)))
    whole = load_evaluation(file_config(path=path), 0, named=True)
    assert [s.problem for s in whole.splits["test"]] == PROBLEMS and not whole.splits["train"]
    fold_4 = [name for name, fold in zip(PROBLEMS, FOLDS) if fold == 4]
    for named in (True, False):  # a fold that the config names is a fold; so is the data of a run
        data = load_evaluation(file_config(path=path, folds=5, fold=4), 0, named=named)
        assert [s.problem for s in data.splits["test"]] == fold_4
    trained = load_splits(file_config(path=path, folds=5), 0).splits  # fold 0
    assert load_evaluation(file_config(path=path, folds=5), 0, named=False).splits == trained
    assert [len(trained[side]) for side in ("train", "validation", "test")] == [5, 2, 3]


def test_a_test_file_beside_a_training_file(tmp_path):
    train = str(jsonl(tmp_path, *labelled_rows(*PROBLEMS)))
    test = str(jsonl(tmp_path, *labelled_rows("problem  3", "new", "new", "problem 4"), name="test.jsonl"))
    data = load_splits(file_config(path=train, test_path=test, folds=5), 0)
    assert [s.problem for s in data.splits["test"]] == ["problem  3", "new", "problem 4"]
    assert [s.problem for s in data.splits["validation"]] == [p for p, f in zip(PROBLEMS, FOLDS) if f == 0]
    assert len(data.splits["train"]) == 7
    assert (data.counts["test_duplicates_dropped"], data.counts["test_problems_in_training"]) == (1, 2)
    held_out = str(jsonl(tmp_path, *labelled_rows("held out", "problem 1"), name="validation.jsonl"))
    data = load_splits(file_config(path=train, test_path=[test], validation_path=held_out), 0)
    assert [s.problem for s in data.splits["train"]] == PROBLEMS  # nothing is held back
    assert [s.problem for s in data.splits["validation"]] == ["held out", "problem 1"]
    assert data.counts["validation_problems_in_training"] == 1
    digests = {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in (train, test, held_out)}
    assert data.fingerprints == digests
    data = load_splits(file_config(path=train, validation_path=held_out, folds=2), 0)
    assert len(data.splits["train"]) + len(data.splits["test"]) == 10 and len(data.splits["validation"]) == 2


def test_a_file_that_states_another_meaning_of_its_labels_is_refused(tmp_path):
    rows = labelled_rows(*PROBLEMS)
    path = str(jsonl(tmp_path, *rows, native_row(prompt="another", label_kind="value")))
    with pytest.raises(InputError, match="^data.label_kind: .*rows.jsonl line 11"):
        load_splits(file_config(path=path), 0)


BAD_FILES = [
    ("a.jsonl", b"{}\n{", "a.jsonl line 2: "),
    ("a.jsonl", b'{"a": "\\ud800"}\n', "a.jsonl line 1: "),
    ("a.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 99, mtime=0)[:-12], "a.jsonl.gz: "),
    ("a.parquet", b"not parquet at all", "a.parquet: "),
]


@pytest.mark.parametrize(("name", "content", "place"), BAD_FILES)
def test_broken_files_are_one_line_that_names_the_place(tmp_path, name, content, place):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as error:
        list(read_rows(tmp_path / name))
    message = str(error.value)
    assert message.removeprefix(str(tmp_path)).removeprefix("/").startswith(place) and "\n" not in message


BAD_ROWS = [
    ("native", native_row(labels=[1, 1.01]), r"labels\[1\]"),
    ("native", native_row(labels=[-100, 1]), r"labels\[0\]"),
    ("native", {"prompt": "p", "completion": ["a"]}, "completions: missing"),
    ("prm800k", raw_row(raw_step(completion("a", 3), chosen=0)), r"ratings\[0\]"),
    ("math_shepherd", {"input": "Step 1: a ки", "label": "Step 1: a ки"}, r"label\[10\]"),
    ("processbench", {"problem": "p", "steps": ["a"], "label": 1}, "label"),
]


@pytest.mark.parametrize(("kind", "row", "field"), BAD_ROWS)
def test_bad_rows_name_file_line_and_field(tmp_path, kind, row, field):
    with pytest.raises(InputError, match=rf"rows.jsonl line 1: {field}"):
        read(jsonl(tmp_path, row), kind)


@pytest.mark.parametrize("row", [{}, {"made": [1]}, {"steps": ["a"]}])
def test_what_fails_in_a_reader_of_your_own_is_named(tmp_path, row):
    code = "from prm_jax.solutions import Solution\n\n\ndef f(row, row_id, counts, *, more=1):\n"
    code += "    return row.get('made') or [Solution('p', row['steps'])]\n"
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(InputError, match="rows.jsonl line 1: data.name: .*mine.py:f: "):
        load(jsonl(tmp_path, row), f"{tmp_path}/mine.py:f")
