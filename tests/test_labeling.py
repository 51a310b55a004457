"""Monte-Carlo labels: their expectations, agreement with exact values, shared prefixes, resuming, bad input."""

import json
from math import comb

import jax
import numpy as np
import pytest
from conftest import call, printed
from omegaconf import OmegaConf

from prm_jax import InputError, labeling, tasks
from prm_jax.data import sources
from prm_jax.data.formats import Format
from prm_jax.data.solutions import write_jsonl
from prm_jax.labeling import LABELS, count_right, first_errors, label_file
from prm_jax.launch.config import CONF, parse
from prm_jax.sampling import Continuation, Sampling
from prm_jax.tasks import chain

CFG = parse(OmegaConf.load(CONF / "data/chain.yaml").task, chain.Config, "data.task")


class Solver:
    """The noisy symbolic solver as a policy: `extend` with the keys of the real one, so that nothing is sampled by a model."""

    format, name, sampling, batch_rows, model = Format("plain", "\n"), "solver", Sampling(1.0, None, 1.0, 80), 32, ()

    def __init__(self):
        self.asked = []

    def extend(self, prefixes, n, stop, key, first=0):
        self.asked += prefixes
        return [
            [self.go_on(*prefix, jax.random.key_data(key).tolist() + [first + i, j]) for j in range(n)]
            for i, prefix in enumerate(prefixes)
        ]

    def go_on(self, problem, steps, seed):
        lines = [chain.parse_line(step) for step in steps]
        value, left = lines[-1][2], chain.parse_problem(problem)[1][sum(len(own) for _, own, _ in lines) :]
        asked = "".join(f" {name}{operand}" for name, operand in left)
        new = chain.solve(CFG, f"{value}{asked} mod7?", np.random.default_rng(seed)) if left else ()
        text = "".join(f"{step}\n" for step in new)
        return Continuation(np.zeros(len(text), np.int32), np.zeros(len(text)), text, "end")


def test_labels_of_counts_and_their_expectations():
    """E18: hard labels of a prefix of value v come out 1 with 1 - (1 - v)^K, soft ones are v on average."""
    assert [LABELS["soft"](r, 4, 0.5) for r in (0, 1, 4)] == [0, 0.25, 1]
    assert [LABELS["hard"](r, 4, 0.5) for r in (0, 1, 4)] == [0, 1, 1]
    assert [LABELS["threshold"](r, 4, 0.5) for r in (0, 1, 2, 4)] == [0, 0, 1, 1]
    for v, hard in ((0.05, 0.337), (0.1, 0.570)):
        mean = lambda label, v=v: sum(
            comb(8, r) * v**r * (1 - v) ** (8 - r) * LABELS[label](r, 8, 0.5) for r in range(9)
        )
        assert mean("hard") == pytest.approx(hard, abs=5e-4) and mean("soft") == pytest.approx(v)


def test_counts_agree_with_the_exact_values():
    problem, steps, k = "4 *5 -3 max2 +6 mod7?", ("4*5=6", "6-3=3", "3max2+6=2"), 1500
    prefixes = [(problem, steps[: t + 1]) for t in range(3)]
    found = count_right(Solver(), prefixes, [None] * 3, k, jax.random.key(0), 0, tasks.grade)
    for (right, _), value in zip(found, chain.values(CFG, problem, steps), strict=True):
        assert abs(right / k - value) <= 4 * np.sqrt(0.25 / k)
    assert found[-1] == (k, 0)


@pytest.fixture
def solutions():
    pool = tasks.solver_pool(chain, CFG, tasks.make_problems(chain, CFG, 10, "train", 0), 3, 0)
    label = lambda p, i, c: tasks.labelled(chain, CFG, p.problem, c.steps, "correctness", f"{p.id}/{i}")
    return [label(p, i, c) for p in pool for i, c in enumerate(p.candidates)]


def write(path, solutions, policy=None, **change):
    settings = {"label": "soft", "threshold": 0.5, "k": 8, "seed": 0} | change
    return label_file(
        path, policy or Solver(), solutions, {s.problem: None for s in solutions}, **settings, grade=tasks.grade
    )


def test_rows_say_what_made_them_and_train(monkeypatch, tmp_path, solutions):
    monkeypatch.setattr(labeling, "fingerprint", lambda model: "weights")
    policy, path = Solver(), tmp_path / "labels.jsonl"
    counts = write(path, solutions, policy)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    prefixes = {(s.problem, s.steps[: t + 1]) for s in solutions for t in range(len(s.steps))}
    assert set(policy.asked) == prefixes and counts["solutions"] == 30
    assert (
        len(policy.asked) < counts["steps"] == sum(len(s.steps) for s in solutions)
    )  # what is shared is completed once
    for row, s in zip(rows, solutions, strict=True):
        assert row["labels"] == [right / 8 for right in row["right"]] and row["k"] == 8
        assert row["label_kind"] == "value" and row["completer"] == "solver" and row["labels"][-1] == s.outcome
    about = json.loads((tmp_path / "about.json").read_text())
    assert about["finished"] and about["counts"]["policy_tokens"] == sum(row["policy_tokens"] for row in rows) > 0
    read, _ = sources.load(str(path), "native")
    assert [s.labels for s in read] == [tuple(row["labels"]) for row in rows]
    hard = tmp_path / "hard" / "labels.jsonl"
    hard.parent.mkdir()
    write(hard, solutions, label="hard")
    assert [json.loads(x)["labels"] for x in hard.read_text().splitlines()] == [
        [float(y > 0) for y in row["labels"]] for row in rows
    ]


def test_bisection_finds_the_first_error_of_a_scan_in_log2_rounds():
    """E19: ceil(log2 M) prefixes with an exact oracle, all chains at once."""
    lengths, errors = zip(*[(T, e) for T in range(1, 18) for e in range(T)], strict=True)
    asked = []

    def is_alive(prefixes, rounds):
        asked.append(prefixes)
        return [kept <= errors[n] for n, kept in prefixes]

    assert first_errors(lengths, is_alive) == list(errors)
    assert len(asked) == 5  # ceil(log2 17)
    times = [sum(n == m for prefixes in asked for m, _ in prefixes) for n in range(len(lengths))]
    assert all(t <= int(np.ceil(np.log2(T))) for t, T in zip(times, lengths, strict=True))


def test_first_error_labels_wrong_answers_by_bisection(monkeypatch, tmp_path, solutions):
    """A completer that is right from any prefix without a wrong step, and never after one, finds the checker's labels."""
    monkeypatch.setattr(labeling, "fingerprint", lambda model: "weights")

    class Oracle(Solver):
        def go_on(self, problem, steps, seed):
            good = all(tasks.step_labels(problem, steps))
            text = f"{chain.answer(problem)}={chain.answer(problem)}\n" if good else "0=9\n"
            return Continuation(np.zeros(3, np.int32), np.zeros(3), text, "end")

    policy, path = Oracle(), tmp_path / "labels.jsonl"
    wrong = [s for s in solutions if s.outcome == 0]
    write(path, solutions, policy, label="first_error", k=2)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row, s in zip(rows, solutions, strict=True):
        t = s.labels.index(0) if s.outcome == 0 else len(s.labels)
        n = len(s.labels)
        assert row["labels"] == ([1.0] * n if s.outcome else [1.0] * t + [0.0] + [None] * (n - t - 1))
    assert len(wrong) > 3 and len(policy.asked) <= sum(int(np.ceil(np.log2(len(s.steps)))) for s in wrong)


@pytest.mark.parametrize("kept", [0, 100, 2500])
def test_a_file_that_was_cut_becomes_the_undisturbed_one(monkeypatch, tmp_path, solutions, kept):
    monkeypatch.setattr(labeling, "fingerprint", lambda model: "weights")
    path = tmp_path / "labels.jsonl"
    write(path, solutions)
    whole = path.read_bytes()
    path.write_bytes(whole[:kept])
    write(path, solutions)
    assert path.read_bytes() == whole
    with pytest.raises(InputError, match="labels.jsonl: k: got 8, expected 4, which is asked for now"):
        write(path, solutions, k=4)
    with pytest.raises(InputError, match="labels.jsonl line 1: .* it was drawn from other input"):
        write(path, solutions[1:])


def test_the_command_labels_by_the_embedded_policy(monkeypatch, tmp_path, solutions):
    write_jsonl(tmp_path / "in.jsonl", solutions[:4])
    asked = (f"input={tmp_path}/in.jsonl", "k=4", "batch_rows=32", "sampling.max_tokens=60", "hydra.run.dir=a")
    out = printed(labeling.main, monkeypatch, *asked, cwd=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "a/labels.jsonl").read_text().splitlines()]
    assert len(rows) == 4 and {y for row in rows for y in row["labels"]} <= {0, 0.25, 0.5, 0.75, 1}
    # A finished solution is worth its outcome: its completion is the end alone.
    assert all(abs(row["labels"][-1] - row["outcome"]) < 0.5 for row in rows)
    assert "policy_tokens" in out and "data.label_kind=value" in out
    before = (tmp_path / "a/labels.jsonl").read_bytes()
    printed(labeling.main, monkeypatch, f"resume={tmp_path}/a", cwd=tmp_path)
    assert (tmp_path / "a/labels.jsonl").read_bytes() == before
    message = call(labeling.main, monkeypatch, "labeling", asked[0], "checker=math", "hydra.run.dir=b")
    assert message.startswith("error: checker: got 'math', expected task for native rows")
    (tmp_path / "pool.jsonl").write_text(
        json.dumps({"id": "p", "problem": "2+2?", "candidates": [{"steps": ["4"]}]}) + "\n"
    )
    message = call(
        labeling.main, monkeypatch, "labeling", f"input={tmp_path}/pool.jsonl", "checker=number", "hydra.run.dir=c"
    )
    assert "pool.jsonl: problem p: answer: found null, expected the one right answer" in message
    message = call(labeling.main, monkeypatch, "labeling", f"input={tmp_path}/none.jsonl", "hydra.run.dir=d")
    assert "no such file" in message
