"""What evaluate.py's tasks share: which runs are one setting, scorers without a folder, names of files,
folders that a kill leaves."""

import importlib
import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import call, jsonl, printed

import evaluate
from examples.papers.labels import label_errors
from prm_jax.data import sources
from prm_jax.data.questions import read_questions
from prm_jax.data.splits import data_config, load_splits, problem_hashes
from prm_jax.evals import steps
from prm_jax.evals.verifiers import known_rows, new_name
from prm_jax.launch import run_folder
from prm_jax.launch.files import read_json, write_json
from prm_jax.rl.problems import file_problems
from prm_jax.solutions import Solution
from prm_jax.tasks.chain import CHAIN
from prm_jax.tasks.checkers import open_grader

PROBLEM = "4 +5 max3 mod7?"
DRAWN = "report", "witness", "search"  # a report draws steps and best_of_n


def run_of(value, **settings):
    return {"brier": value, "settings": settings}


def test_means_are_over_seeds_of_one_setting_alone():
    (group,) = steps.by_settings([run_of(0.1, lr=1), run_of(0.3, lr=1)])
    assert group["means"] == {"brier": pytest.approx(0.2)} and group["setting"] == {}
    found = steps.by_settings([run_of(0.1, lr=1), run_of(0.3, lr=1), run_of(0.9, lr=2)])
    assert [(g["setting"], g["members"]) for g in found] == [({"lr": 1}, [0, 1]), ({"lr": 2}, [2])]
    assert [g["means"]["brier"] for g in found] == [pytest.approx(0.2), 0.9]
    (many,) = steps.by_settings([run_of(x) for x in (0.1, 0.9, 0.2, 0.4)])
    expected = {"median": 0.3, "lowest": 0.1, "highest": 0.9, "mean": 0.4, "sd": (0.38 / 3) ** 0.5}
    assert many["spread"]["brier"] == pytest.approx(expected)
    judges = {"verifier": {"step_auroc": 0.9}, "length": {"step_auroc": 0.6}, "hazard": {}}
    (ruled,) = steps.by_settings([run_of(x) | {"beside_rules": {"judges": judges}} for x in (0.1, 0.2)])
    assert ruled["means"].keys() == {"brier", "step_auroc, length"}
    others = [run_of(0.5, verifier=name) for name in ("checker", "random")]
    found = steps.by_settings([run_of(0.1, lr=1), *others, run_of(0.3, lr=1)])
    expected = [({}, [0, 3]), ({"verifier": "checker"}, [1]), ({"verifier": "random"}, [2])]
    assert [(g["setting"], g["members"]) for g in found] == expected


def test_names_of_new_scores():
    of = lambda name: SimpleNamespace(name=name, objective="prm")
    taken = {"prm", "prm_1", "random"}
    names = [new_name(of(name), taken) for name in ("run step 3", "checker-0.05-3", "random")]
    assert names == ["prm_2", "checker", "random_1"]


def test_the_exact_checker_and_noise_are_scorers_like_any_other(monkeypatch, tmp_path):
    """On a pool of the embedded task the checker is the oracle of right solutions, and noise is the mean."""
    good, bad = ["4+5=2", "2max3=3"], ["4+5=6", "6max3=6"]
    lucky = ["4+5=1", "1max3=3"]  # the right answer by a wrong step
    candidates = [
        {"steps": s, "answer": s[-1][-1], "correct": s[-1][-1] == "3"} for s in (bad, lucky, good, bad)
    ]
    rows = [
        {"id": f"p{i}", "problem": PROBLEM, "answer": "3", "candidates": candidates[i:] + candidates[:i]}
        for i in range(4)
    ]
    (tmp_path / "pool.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    args = ("task=best_of_n", "input=pool.jsonl", "checkpoint=[checker,random]", "hydra.run.dir=out")
    monkeypatch.chdir(tmp_path)
    said = call(evaluate.main, monkeypatch, "evaluate.py", *args)  # whose checker is not guessed
    assert said.startswith("error: pool.jsonl: task: ")
    printed(evaluate.main, monkeypatch, *args, "data=chain", cwd=tmp_path)
    results = json.loads((tmp_path / "out/results.json").read_text())
    names = list(results["scorers"])
    assert [results["verifiers"][n]["verifier"] for n in names] == ["checker", "random"]
    assert results["scorers"][names[0]]["min"]["best_of_n"]["4"] == pytest.approx(1.0)
    assert results["scorers"][names[1]]["min"]["best_of_n"]["1"] == pytest.approx(0.5)
    pool = [json.loads(line) for line in __import__("gzip").open(tmp_path / "out/pool.jsonl.gz", "rt")]
    assert pool[0]["scores_unit"] == dict.fromkeys(names, "logit")
    assert np.sign(pool[0]["candidates"][1]["step_scores"][names[0]]).tolist() == [-1, -1]


def test_verifiers_of_all_kinds_stand_beside_each_other_on_one_embedded_task(monkeypatch, tmp_path, capsys):
    data = "data=chain", "data.samples=solver", "data.solutions=80", "data.test_solutions=80"
    args = ("task=steps", *data, "checkpoint=[checker,random]", "hydra.run.dir=out", "figures=0")
    asked = []
    monkeypatch.setattr(steps.verifiers, "likelihood_scores", lambda *given: asked.append(given))
    out = printed(evaluate.main, monkeypatch, *args, cwd=tmp_path)
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert [g["setting"] for g in results["groups"]] == [{"verifier": "checker"}, {"verifier": "random"}]
    assert len(asked) == 1  # both are measured on the same solutions beside the same model
    checker, noise = results["runs"]
    assert checker["auroc_correctness"] == 1 and checker["auroc_value"] > noise["auroc_value"] + 0.1
    assert checker["auroc_value"] < checker["auroc_value_ceiling"] < 1
    report = (tmp_path / "out/report.txt").read_text()
    assert "AUROC against exact labels" in report and "exact" not in out
    results["groups"][1]["setting"] = {}  # as a run beside a verifier without settings has it
    steps.Steps().show(results)
    assert "setting     random\nmeasured" in capsys.readouterr().out
    drawn = [path.name for path in steps.Steps().figures(results, tmp_path)]
    assert drawn == ["steps_0.png", "steps_1.png"] and not [*(tmp_path / "out/figures").iterdir()]
    fresh = "fresh.outcome_model=checker", "fresh.problems=2", "fresh.candidates=2"  # it stands there once
    given = "task=best_of_n", *data, "checkpoint=checker", *fresh, "hydra.run.dir=fresh", "figures=0"
    printed(evaluate.main, monkeypatch, *given, cwd=tmp_path)
    assert [*read_json(tmp_path / "fresh/results.json")["scorers"]] == ["checker"]


@pytest.mark.parametrize("task", DRAWN)
def test_figures_are_redrawn_from_the_results_file_as_read(task, monkeypatch, tmp_path):
    """One clean solution, one problem: hardly a number is defined, and what is not is null in the file."""
    row = {"id": "a", "problem": PROBLEM, "steps": ["4+5=2", "2max3=3"]}
    jsonl(tmp_path, row | {"label": -1, "final_answer_correct": True}, name="bench.jsonl")
    candidate = {"steps": ["3"], "answer": "3", "correct": True}
    pool = {"id": "p", "problem": PROBLEM, "answer": "3", "candidates": [candidate]}
    jsonl(tmp_path, pool, name="pool.jsonl")
    steps, pool = ("data=processbench", "data.path=bench.jsonl"), ("input=pool.jsonl",)
    args = {
        "report": steps + pool,
        "witness": (),
        "search": ("data=chain", "problems=1", "samples=1", "methods=[best_of_n]", "budgets=[30]"),
    }[task]
    verifier = () if task == "witness" else ("checkpoint=random",)
    printed(evaluate.main, monkeypatch, f"task={task}", *args, *verifier, "hydra.run.dir=out", cwd=tmp_path)
    first = sorted(path for path in (tmp_path / "out/figures").iterdir() if path.suffix != ".pdf")
    results = read_json(tmp_path / "out/results.json")
    (tmp_path / "again").mkdir()
    task_class = vars(importlib.import_module(f"prm_jax.evals.{task}"))[task.title().replace("_", "")]
    again = sorted(task_class().figures(results, tmp_path / "again"))
    assert [path.name for path in again] == [path.name for path in first] != []
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in first]


def test_the_solutions_that_a_task_trains_on_become_a_file(monkeypatch, tmp_path):
    given = "data=chain data.samples=solver data.solutions=12 data.solutions_per_problem=4"
    given = *given.split(), "data.test_solutions=4", "seed=3"
    out = printed(evaluate.main, monkeypatch, "task=solutions", *given, "hydra.run.dir=a", cwd=tmp_path)
    assert "12 solutions, 3 problems" in out and "correctness labels" in out
    train = load_splits(data_config(run_folder.run_config(tmp_path / "a").data), 3).splits["train"]
    written, _ = sources.load(tmp_path / "a/solutions.jsonl", "native")
    assert train == written and {s.task for s in written} == {"chain"}
    problems = [(q.problem, q.answer) for q in read_questions(tmp_path / "a/problems.jsonl")]
    assert problems == [(p, CHAIN.gold_answer(p)) for p in dict.fromkeys(s.problem for s in train)]
    held = "split=test", "hydra.run.dir=held"
    printed(evaluate.main, monkeypatch, "task=solutions", *given, *held, cwd=tmp_path)
    files = [str(tmp_path / folder / "problems.jsonl") for folder in ("a", "held")]
    read = file_problems(*files, open_grader("task", files), 5)
    assert read.train == [p for p, _ in problems] and len(read.held_out) == 1 and read.task is CHAIN


def test_problems_that_a_run_was_trained_on_are_counted_and_said(capsys, tmp_path):
    rows = [Solution(problem, ("a",)) for problem in ("1 +  2?", "1 + 2 ?", "3?")]
    write_json(tmp_path / "data.json", {"files": {}, "problems": problem_hashes(rows[:1])})
    assert known_rows(str(tmp_path), rows) == [True, True, False]
    assert f"{tmp_path} was trained on 1 " in capsys.readouterr().out
    assert not any(known_rows(str(tmp_path), rows[2:]) + known_rows("checker", rows))
    assert not capsys.readouterr().out
    for name in (f"mean:[{tmp_path},plain:{tmp_path},random]", f"policy:{tmp_path}"):
        assert sum(known_rows(name, rows)) == 2


def test_errors_of_labels_against_every_outcome_of_the_completions():
    """K = 2 and 4 by brute force over all outcomes: a wrong step of value .25, a right one of .5."""
    value, good = np.array([0.25, 0.5]), np.array([0.0, 1.0])
    for k in (2, 4):
        sums = {"hard": 0.0, "soft": 0.0}
        for v, y in zip(value, good, strict=True):
            for outcome in itertools.product((0, 1), repeat=k):
                p = np.prod([v if x else 1 - v for x in outcome]) / 2
                right = sum(outcome) / k
                sums["hard"] += p * ((right > 0) != y)
                sums["soft"] += p * abs(right - v)
        assert label_errors(k, value, good) == pytest.approx(sums)
