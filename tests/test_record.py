"""Records: what a run has cost is read from what it left, and one that breaks a rule, or of which it cannot be told, is refused."""

import json
from pathlib import Path

import hydra
import numpy as np
import pytest
from conftest import call, printed
from omegaconf import OmegaConf

import evaluate
from prm_jax import InputError, tasks
from prm_jax.data.splits import data_config, problem_hash
from prm_jax.evals import best_of_n, record
from prm_jax.evals.record import BUDGETS, costs_of
from prm_jax.launch.config import CONF

POOL = {problem_hash("4 +5 mod7?")}
SUMMARY = {
    "objective": "prm",
    "label_kind": "correctness",
    "cpu_seconds": 50.0,
    "examples": {"train": 900, "validation": 100},
}
SUMMARY |= {
    "counts": {"policy_tokens": 7},
    "machine": {"device": "cpu"},
    "versions": {"commit": "c" * 40 + "+"},
}


def config(*overrides):
    with hydra.initialize_config_dir(str(CONF), version_base=None):
        return hydra.compose("train", ["experiment=record_outcomes", *overrides])


def put_run(folder, i, cfg, problems=(), files=(), **summary):
    """A run as train.py leaves it, by name; no checkpoint is in it."""
    (folder / "checkpoints/best/1").mkdir(parents=True)
    (folder / ".hydra").mkdir()
    OmegaConf.save(cfg, folder / ".hydra/config.yaml")
    (folder / "summary.json").write_text(json.dumps(SUMMARY | {"seed": i} | summary))
    data = {"files": dict.fromkeys(map(str, files), ""), "problems": list(problems), "validation": []}
    (folder / "data.json").write_text(json.dumps(data))
    return str(folder)


def put_five(folder, *overrides, last=None, **more):
    """Five runs; the last one may have another configuration."""
    cfg = config(*overrides)
    return [[put_run(folder / str(i), i, last or cfg if i == 4 else cfg, **more)] for i in range(5)]


def labels(folder, completer):
    (folder / "about.json").write_text(json.dumps({"completer": completer, "counts": {"policy_tokens": 11}}))
    return {"files": [folder / "labels.jsonl"], "label_kind": "value"}


FILE = ("data=jsonl", "data.path=labels.jsonl", "data.label_kind=value")


@pytest.mark.parametrize("budget", BUDGETS)
def test_the_baseline_of_a_budget_is_within_it_and_has_the_seeds(budget):
    with hydra.initialize_config_dir(str(CONF), version_base=None):
        cfg = hydra.compose("train", [f"experiment=record_{budget}"], return_hydra_config=True)
        hydra.compose("evaluate", ["task=record", f"budget={budget}"])
    most = BUDGETS[budget].labelled
    assert most is None or cfg.data.solutions + cfg.eval.solutions == most
    assert BUDGETS[budget].step_labels or cfg.objective == "orm"
    assert cfg.hydra.sweeper.params == {"seed": "range(5)"}
    _, command, *_ = (CONF / f"experiment/record_{budget}.yaml").read_text().splitlines()
    assert f"experiment=record_{budget} " in command and f"budget={budget} " in command


def test_costs_are_read_and_those_of_members_add_up(tmp_path):
    one = {"cpu_seconds": 50.0, "policy_tokens": 7, "labelled": 1000}
    runs = put_five(tmp_path)
    assert costs_of(runs, BUDGETS["solutions"], POOL) == [one] * 5
    cfg = config()
    others = [[put_run(tmp_path / str(i), i, cfg)] for i in range(5, 10)]
    pairs = [a + b for a, b in zip(runs, others, strict=True)]
    with pytest.raises(
        InputError, match=r"0, \S+/5: cpu_seconds: got 100.0, expected at most 60, the budget"
    ):
        costs_of(pairs, BUDGETS["seconds"], POOL)
    with pytest.raises(InputError, match="labelled: got 2000, expected at most 1000"):
        costs_of(pairs, BUDGETS["solutions"], POOL)


def test_labels_by_completions_are_no_step_labels_and_their_tokens_count(tmp_path):
    runs = put_five(tmp_path, *FILE, **labels(tmp_path, "embedded"))
    assert {cost["policy_tokens"] for cost in costs_of(runs, BUDGETS["outcomes"], POOL)} == {11}
    labels(tmp_path, "another")
    with pytest.raises(
        InputError, match='4?: labels: got "a checker\'s of steps", expected answers, or completions'
    ):
        costs_of(runs, BUDGETS["outcomes"], POOL)


def older(runs):
    """The runs, of which the first has not counted CPU seconds."""
    summary = {key: x for key, x in SUMMARY.items() if key != "cpu_seconds"}
    (Path(runs[0][0]) / "summary.json").write_text(json.dumps(summary | {"seed": 0}))
    return runs


BROKEN = {
    "four runs": ("checkpoint: got 4, expected 5 verifiers", lambda t: put_five(t)[:4]),
    "a seed twice": (r"seeds: got \[0, 0, 1, 2, 3\], expected 0 to 4", lambda t: put_five(t)[:4] + [[put_run(t / "b", 0, config())]]),
    "another setting": ("seed alone", lambda t: put_five(t, last=config("steps=3"))),
    "no run": ("embedded_prm', expected a run of train.py", lambda t: put_five(t)[:4] + [["embedded_prm"]]),
    "an older version": (r"summary.json: got .*train it with this version", lambda t: older(put_five(t))),
    "a GPU": ("device, distributed: got \\('NVIDIA", lambda t: put_five(t, machine={"device": "NVIDIA H100"})),
    "a trained start": ("init: got 'embedded_prm'", lambda t: put_five(t, "init=embedded_prm")),
    "another policy": ("data: got .*'FOLDER'.*samples of embedded", lambda t: put_five(t, "data.policy=FOLDER")),
    "the pool's problems": ("data: got '1 problems of the pool'", lambda t: put_five(t, problems=POOL)),
    "a language model": ("objective: got 'lm'", lambda t: put_five(t, objective="lm")),
    "exact values": ("label_kind: got 'value'", lambda t: put_five(t, label_kind="value")),
    "one solution more": ("labelled: got 1001", lambda t: put_five(t, examples={"train": 901, "validation": 100})),
    "a seed that is none": (r"summary.json: seed: got .null., expected", lambda t: put_five(t, seed=None)),
    "examples that are no numbers": (r"examples: got \['many'\]", lambda t: put_five(t, examples={"train": "many"})),
    "a machine that is none": (r"machine: got .null., expected", lambda t: put_five(t, machine=None)),
    "tokens that nobody knows": (r"counts.policy_tokens: got None", lambda t: put_five(t, counts={})),
    "a second more": ("cpu_seconds: got 241.0", lambda t: put_five(t, cpu_seconds=241.0)),
}  # fmt: skip


@pytest.mark.parametrize("how", BROKEN)
def test_what_breaks_a_rule_is_refused(how, tmp_path):
    message, runs = BROKEN[how]
    with pytest.raises(InputError, match=message):
        costs_of(runs(tmp_path), BUDGETS["solutions"], POOL)


@pytest.mark.parametrize("objective, overrides", [("prm", ()), ("orm", ("data.outcome=steps",))])
def test_without_step_labels_there_are_none(objective, overrides, tmp_path):
    with pytest.raises(InputError, match='labels: got "a checker\'s of steps"'):
        costs_of(put_five(tmp_path, *overrides, objective=objective), BUDGETS["outcomes"], POOL)


def test_the_number_is_printed_by_the_command(tmp_path, monkeypatch):
    """The pool and the rule are the default task's and best_of_n's, whatever the runs have; the outcome is the mean."""
    asked = []

    def of_pool(setup, rules):
        asked.append((setup, rules))
        curves = {"best_of_n": {"64": 0.0}}
        names, solved = [f"prm_{i}" for i in range(5)], (0.5, 0.6, 0.7, 0.8, 0.9)
        scorers = {
            name: {"min": {"best_of_n": {"64": x}}, "prod": curves}
            for name, x in zip(names, solved, strict=True)
        }
        headline = dict.fromkeys(names, rules.aggregator)
        return {
            "scorers": scorers,
            "headline": headline,
            "verifiers": headline,
            "n_problems": 300,
            "n_candidates": 64,
        }

    monkeypatch.setattr(best_of_n, "run", of_pool)
    for name, nothing in (("show", lambda results: None), ("detail", lambda results: None)):
        monkeypatch.setattr(best_of_n, name, nothing)
    monkeypatch.setattr(record, "detail", lambda results: None)
    monkeypatch.setattr(record, "figures", lambda results, folder: [])
    put_five(tmp_path / "sweep", "data.temperature=1.3")
    words = "task=record", "budget=solutions", "aggregator=min", "checkpoint=sweep", "hydra.run.dir=e"
    out = printed(evaluate.main, monkeypatch, *words, cwd=tmp_path)
    assert (
        "record      solutions: 0.7000 [0.5000, 0.9000], mean and range of 5; best of 64 (min) of 300 problems, pool 0; "
        "at most 50 CPU seconds, 1,000 labelled solutions, 7 policy tokens; commit cccccccccc+\n" in out
    )
    setup, rules = asked[0]
    assert setup.data.name == "chain" and setup.data.temperature == 1.0
    assert (rules.fresh.problems, rules.fresh.candidates, rules.fresh.outcome_model) == (300, 64, None)
    # The problems that runs must not have seen are those of the pool.
    cfg = data_config(OmegaConf.load(CONF / "data/chain.yaml"))
    pool = tasks.make_problems(tasks.CHAIN, cfg.task, 300, "test", 1)
    monkeypatch.setattr(best_of_n, "policy_pool", lambda *args: [])
    monkeypatch.setattr(
        best_of_n.tasks,
        "sample_pool",
        lambda cfg, n, each, split, seed, draw: asked.append((n, split, seed)) or [],
    )
    best_of_n.fresh_pool(setup, rules)
    assert asked[-1] == (300, "test", 1) and len(pool) == 300
    seen = json.loads((tmp_path / "sweep/3/data.json").read_text()) | {"problems": [problem_hash(pool[7])]}
    (tmp_path / "sweep/3/data.json").write_text(json.dumps(seen))
    assert "3: data: got '1 problems of the pool'" in call(
        evaluate.main, monkeypatch, "evaluate.py", *words[:4]
    )
    assert np.isclose(json.loads((tmp_path / "e/results.json").read_text())["record"]["sd"], 0.1 * 2.5**0.5)
