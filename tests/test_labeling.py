"""Monte-Carlo labels: their expectations, agreement with exact values, shared prefixes, resuming."""

import dataclasses
import json
from math import comb

import jax
import numpy as np
import pytest
from conftest import printed
from omegaconf import OmegaConf
from test_search import Solver as NoisySolver

from prm_jax import InputError, tasks
from prm_jax.data import sources
from prm_jax.data.units import UNITS, as_probability
from prm_jax.data.writing import native_row, write_rows
from prm_jax.formats import Format
from prm_jax.generate import labeling
from prm_jax.generate.labeling import LABELS, MC, Completions, Labels, label_file
from prm_jax.generate.sampling import Sampling
from prm_jax.launch.config import CONF, parse
from prm_jax.protocols import Continuation
from prm_jax.tasks import chain
from prm_jax.tasks.chain import CHAIN

CFG = parse(OmegaConf.load(CONF / "data/chain.yaml").task, chain.Config, "data.task")
GRADE = CHAIN.grade


class Solver:
    """The noisy symbolic solver as a policy, with the keys of the real one."""

    name, batch_rows, model = "solver", 32, ()
    format, sampling = Format("plain", "\n"), Sampling(1.0, None, 1.0, 80)

    def __init__(self):
        self.asked, self.tokens = [], 0

    def prompt(self, problem):
        return problem

    def extend(self, prefixes, n, stop, key, numbers):
        self.asked += prefixes
        seeds = [jax.random.key_data(key).tolist() + [number] for number in numbers]
        found = [
            [self.go_on(*p, [*seed, j]) for j in range(n)] for p, seed in zip(prefixes, seeds, strict=True)
        ]
        self.tokens += sum(len(c.ids_L) for own in found for c in own)
        return found

    def go_on(self, problem, steps, seed):
        return NoisySolver().go_on(problem, steps, "end", np.random.default_rng(seed))


def settings(label="soft", **change):
    return Labels(label=label, **{"threshold": 0.8, "k": 8} | change)


def labels(label, right, k=8, threshold=0.8):
    """The labels of steps after which so many of k completions are right; first the bare problem."""
    return LABELS[label]([MC(r, k) for r in right], threshold)


def expected(of, v, k):
    """The mean of of(right) over the binomial law of k completions that are right with probability v."""
    return sum(comb(k, r) * v**r * (1 - v) ** (k - r) * of(r) for r in range(k + 1))


class Oracle(Solver):
    """A completer that is right from any prefix without a wrong step, and never after one."""

    def go_on(self, problem, steps, seed):
        good = all(CHAIN.step_labels(problem, steps)) if steps else True
        text = f"{CHAIN.gold_answer(problem)}={CHAIN.gold_answer(problem)}\n" if good else "0=9\n"
        return Continuation(np.zeros(3, np.int32), np.zeros(3), text, "eos")


def test_labels_of_counts_and_their_expectations():
    """E18: hard labels of a prefix of value v come out 1 with 1 - (1 - v)^K, soft ones are v on average."""
    assert labels("soft", (0, 0, 1, 4), 4) == [0, 0.25, 1]
    assert labels("hard", (0, 0, 1, 4), 4) == [0, 1, 1]
    assert labels("hard", (1, 0.25, 0.75), 1) == [0, 1]  # of a fractional outcome
    assert labels("threshold", (0, 0, 1, 2, 4), 4, threshold=0.5) == [0, 0, 1, 1]
    for v, hard in ((0.05, 0.337), (0.1, 0.570)):
        assert expected(lambda r: labels("hard", (0, r))[0], v, 8) == pytest.approx(hard, abs=5e-4)
        assert expected(lambda r: labels("soft", (0, r))[0], v, 8) == pytest.approx(v)


def test_ratio_compares_with_the_prefix_before_and_ends_where_nothing_is_right():
    assert labels("ratio", (5, 4, 8, 6, 7), 10) == [1, 1, 0, 1]  # .8, 2, .75, 7/6
    assert labels("ratio", (5, 4, 0, 3), 10) == [1, 0, None]
    assert labels("ratio", (0, 4, 5), 10) == [None, None]
    assert labels("ratio", (5, 4, 0, 3), 10, threshold=0.0) == [1, 0, None]
    other_k = [MC(4, 8), MC(13, 32), MC(12, 32)]  # 26/32, 12/13
    assert LABELS["ratio"](other_k, 0.8) == [1, 1]
    assert LABELS["ratio"](other_k, 0.82) == [0, 1]


def test_advantages_of_the_completer():
    assert labels("advantage", (4, 6, 0)) == [0.625, 0.125]  # A = 1/4, -3/4
    means = np.tanh(UNITS["difference"].log_odds(0.25) / 2)  # what a file says and what it means
    assert means == pytest.approx(0.25)
    assert as_probability(0.25, "difference") == pytest.approx(labels("advantage", (4, 6))[0])


PROBLEM, STEPS = "4 *5 -3 max2 +6 mod7?", ("4*5=6", "6-3=3", "3max2+6=2")


def test_counts_agree_with_the_exact_values():
    prefixes, k = [(PROBLEM, STEPS[:t]) for t in range(4)], 1500
    complete = Completions(Solver(), {PROBLEM: None}, k, 0, GRADE)
    exact = CHAIN.values(CFG, PROBLEM, ("4=4", *STEPS))  # the first line does nothing: the bare problem
    for mc, v in zip(complete(prefixes), exact, strict=True):
        assert abs(mc.share - v) <= 4 * np.sqrt(0.25 / k)
    assert complete.mc[prefixes[-1]] == MC(k, k)


@pytest.fixture
def solutions():
    pool = tasks.solver_pool(CHAIN, CFG, tasks.make_problems(CHAIN, CFG, 10, "train", 0), 3, 0)
    label = lambda p, i, c: tasks.labelled(CHAIN, CFG, p.problem, c.steps, "correctness", f"{p.id}/{i}")
    return [label(p, i, c) for p in pool for i, c in enumerate(p.candidates)]


def write(path, solutions, policy=None, label="soft", seed=0, **change):
    """Writes a file of labels; returns its rows and the policy that was asked."""
    path.parent.mkdir(exist_ok=True)
    golds, policy = {s.problem: None for s in solutions}, policy or Solver()
    label_file(path, policy, solutions, golds, settings(label, **change), seed, GRADE)
    return [json.loads(line) for line in path.read_text().splitlines()], policy


def test_rows_say_what_made_them_and_train(tmp_path, solutions):
    path, policy = tmp_path / "a/labels.jsonl", Solver()
    rows, _ = write(path, solutions, policy)
    prefixes = {(s.problem, s.steps[:t]) for s in solutions for t in range(1, len(s.steps))}
    assert len(rows) == 30 and sorted(policy.asked) == sorted(prefixes)  # each once
    assert len(prefixes) < sum(len(s.steps) - 1 for s in solutions)
    for row, s in zip(rows, solutions, strict=True):  # the last step has the solution's own outcome
        assert row["labels"] == [right / 8 for right in row["right"][:-1]] + [s.outcome]
        assert row["right"][-1] is None and row["k"] == (8 if len(s.steps) > 1 else None)
        assert row["label_kind"] == "value" and row["completer"] == "solver"
    about = json.loads((path.parent / "about.json").read_text())
    assert about["finished"] and about["prompt"] == "{problem}"
    assert about["counts"]["policy_tokens"] == sum(row["policy_tokens"] for row in rows) == policy.tokens > 0
    assert about["counts"]["unanswered"] == 0
    read, _ = sources.load(str(path), "native")
    assert [s.labels for s in read] == [tuple(row["labels"]) for row in rows]
    ((half,), _) = write(tmp_path / "h/labels.jsonl", [dataclasses.replace(solutions[0], outcome=0.5)], k=1)
    assert half["labels"][-1] == 0.5  # whatever k is
    hard, _ = write(tmp_path / "b/labels.jsonl", solutions, label="hard")
    assert [row["labels"] for row in hard] == [[float(y > 0) for y in row["labels"]] for row in rows]


def test_solutions_of_one_problem_stand_together_and_share_what_they_begin_with(tmp_path, solutions):
    apart = solutions[::3] + solutions[1::3] + solutions[2::3]
    policy = Solver()
    policy.batch_rows = 8  # a chunk is one problem
    rows, _ = write(tmp_path / "labels.jsonl", apart, policy, label="ratio")
    assert [row["id"] for row in rows] == [s.id for s in solutions]
    bare = [problem for problem, steps in policy.asked if not steps]
    assert len(policy.asked) == len(set(policy.asked)) and len(bare) == len(set(bare)) == 10
    at_once, _ = write(tmp_path / "b/labels.jsonl", solutions, label="ratio")
    assert rows == at_once  # no chunk and no neighbour changes a row
    for row in rows:
        right = [*row["right"][:-1], 8 * row["outcome"]]
        mc = [MC(row["problem_right"], row["problem_k"]), *(MC(r, 8) for r in right)]
        assert row["labels"] == LABELS["ratio"](mc, 0.8)
    moved, _ = write(tmp_path / "c/labels.jsonl", solutions, label="advantage")
    assert [row["right"] for row in moved] == [row["right"] for row in rows]
    assert {row["label_kind"] for row in moved} == {"advantage"}


def test_first_error_labels_wrong_answers_by_bisection(tmp_path, solutions):
    """A completer that is right where no step is wrong, and never after one, finds the checker's."""
    policy, wrong = Oracle(), [s for s in solutions if s.outcome == 0]
    rows, _ = write(tmp_path / "labels.jsonl", solutions, policy, label="first_error", k=2)
    for row, s in zip(rows, solutions, strict=True):
        t = s.labels.index(0) if s.outcome == 0 else len(s.labels)
        n = len(s.labels)
        assert row["labels"] == ([1.0] * n if s.outcome else [1.0] * t + [0.0] + [None] * (n - t - 1))
    assert len(wrong) > 3 and len(policy.asked) <= sum(int(np.ceil(np.log2(len(s.steps)))) for s in wrong)


def test_a_solution_that_was_cut_is_no_wrong_answer(tmp_path):
    """Its last line was called its first error, though every prefix of it is alive."""
    cut = {"steps": ["4*5=6", "6-3=3"], "answer": "3", "correct": False, "finished": False}
    wrong = {"steps": ["4*5=6", "6-3=4", "4max2+6=3"], "answer": "3", "correct": False, "finished": True}
    row = {"id": "p", "problem": PROBLEM, "answer": "2", "candidates": [cut, wrong]}
    (tmp_path / "pool.jsonl").write_text(json.dumps(row) + "\n")
    solutions, _ = labeling.read_input(str(tmp_path / "pool.jsonl"), "task")
    assert [s.outcome for s in solutions] == [None, 0]
    with (tmp_path / "pool.jsonl").open("a") as file:
        file.write(json.dumps(row | {"id": "q", "answer": "3"}) + "\n")
    with pytest.raises(InputError, match="jsonl: q: answer: "):  # its completions have one right answer
        labeling.read_input(str(tmp_path / "pool.jsonl"), "number")
    rows, _ = write(tmp_path / "e/labels.jsonl", solutions, Oracle(), label="first_error", k=2)
    assert [(row["id"], row["labels"]) for row in rows] == [("p/1", [1, 0, None])]
    about = json.loads((tmp_path / "e/about.json").read_text())
    assert about["counts"]["without_outcome_left_out"] == 1 and about["counts"]["solutions"] == 1
    soft, _ = write(tmp_path / "s/labels.jsonl", solutions, Oracle(), k=2)
    assert [(row["labels"], row["outcome"]) for row in soft] == [([1, 1], None), ([1, 0, 0], 0)]
    assert [row["right"] for row in soft] == [[2, 2], [2, 0, None]]  # what was cut is completed


@pytest.mark.parametrize("label", ["soft", "ratio", "first_error"])
def test_a_file_that_was_cut_becomes_the_undisturbed_one(tmp_path, solutions, label):
    path = tmp_path / "labels.jsonl"
    write(path, solutions, label=label)
    rows = path.read_bytes()
    for part in (0, 100, len(rows) // 2, len(rows) - 1):
        path.write_bytes(rows[:part])
        write(path, solutions, label=label)
        assert path.read_bytes() == rows
    with pytest.raises(InputError, match=r"jsonl: got \['k'"):
        write(path, solutions, label=label, k=4)
    with pytest.raises(InputError, match="jsonl line 1: "):
        write(path, solutions[1:], label=label)


def test_completions_without_an_answer_are_counted(tmp_path, solutions):
    class Silent(Solver):
        def go_on(self, problem, steps, seed):  # every other one is cut, though its answer is right
            gold = CHAIN.gold_answer(problem)
            text, reason = ("who knows\n", "eos") if seed[-1] % 2 else (f"{gold}={gold}\n", "length")
            return Continuation(np.zeros(3, np.int32), np.zeros(3), text, reason)

    rows, policy = write(tmp_path / "labels.jsonl", solutions[:6], Silent())
    about = json.loads((tmp_path / "about.json").read_text())
    assert about["counts"]["unanswered"] == sum(row["unanswered"] for row in rows) == 8 * len(policy.asked)
    assert {y for row in rows for y in row["labels"][:-1]} == {0}


SMALL = ("k=4", "batch_rows=32", "sampling.max_tokens=60")


def test_the_command_labels_by_the_embedded_policy(monkeypatch, tmp_path, solutions):
    write_rows(tmp_path / "in.jsonl", map(native_row, solutions[:6]))
    asked = (f"input={tmp_path}/in.jsonl", *SMALL)
    out = printed(labeling.main, monkeypatch, *asked, "hydra.run.dir=a", cwd=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "a/labels.jsonl").read_text().splitlines()]
    assert len(rows) == 6 and {y for row in rows for y in row["labels"]} <= {0, 0.25, 0.5, 0.75, 1}
    # A finished solution is worth its outcome: its completion is the end alone.
    assert all(abs(row["labels"][-1] - row["outcome"]) < 0.5 for row in rows)
    assert "data.label_kind=value" in out and {row["task"] for row in rows} == {"chain"}
    before = (tmp_path / "a/labels.jsonl").read_bytes()
    printed(labeling.main, monkeypatch, f"resume={tmp_path}/a", cwd=tmp_path)
    assert (tmp_path / "a/labels.jsonl").read_bytes() == before
