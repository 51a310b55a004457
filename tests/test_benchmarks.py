"""ProcessBench and PRMBench: official numbers on the real files and by hand, thresholds by brute force,
errors by line."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from conftest import DATA, TINY, data_node, printed, real_data
from flax import nnx

import evaluate
from prm_jax.checkpoints import hf
from prm_jax.checkpoints.tokenizer import train_tokenizer
from prm_jax.data.splits import data_config, problem_hashes
from prm_jax.data.units import probability
from prm_jax.data.writing import stored_scores
from prm_jax.evals import benchmarks
from prm_jax.evals.baselines import Row, compare_apart, compare_with_rules, mean_f1, show_comparison
from prm_jax.evals.benchmarks import SETS
from prm_jax.model import PRM
from prm_jax.solutions import Solution


def read_set(name, **where):
    return benchmarks.read(data_config(data_node("files", name=name, **where)))


def random_scores(rng, rows):
    return [rng.random(len(row.solution.steps)) for row in rows]


def processbench_row(split, error, n=3, problem="q"):
    labels = [1.0] * n if error == -1 else [*[1.0] * error, 0.0, *[None] * (n - error - 1)]
    return Row(Solution(problem, ("s",) * n, tuple(labels), outcome=1.0), split, problem)


def predicting(first_errors, n=3):
    """Scores whose first step below 0.5 is the one asked for."""
    return [np.where(np.arange(n) == error, 0.1, 0.9) for error in first_errors]


def measure(name, rows, scores, threshold=0.5):
    """The benchmark's numbers, beside rules."""
    compared = compare_with_rules(rows, scores, None, threshold, 0)
    return benchmarks.measure(name, rows, scores, threshold, 0) | compared


# ProcessBench


def test_processbench_equals_an_independent_computation_on_the_real_files(rng):
    paths = [str(real_data(f"processbench/{name}.json")) for name in ("gsm8k", "math")]
    rows, counts = read_set("processbench", path=paths)
    scores = random_scores(rng, rows)
    found = measure("processbench", rows, scores, 0.3)
    by_id = {row.solution.id: score_T for row, score_T in zip(rows, scores, strict=True)}
    f1s = []
    for name, path in zip(("gsm8k", "math"), paths, strict=True):
        hits = {True: [], False: []}
        for item in json.loads(Path(path).read_text()):
            below = [t for t, s in enumerate(by_id[item["id"]]) if s < 0.3]
            hits[item["label"] != -1].append((below or [-1])[0] == item["label"])
        a, b = np.mean(hits[True]), np.mean(hits[False])
        f1s.append(2 * a * b / (a + b))
        split = found["groups"][name]
        numbers = [split[metric] for metric in SETS["processbench"].metrics]
        assert numbers == pytest.approx([a, b, f1s[-1]])
        low, high = split["first_error_f1_interval"]
        assert low < split["first_error_f1"] < high
    mean = found["judges"]["verifier"]
    assert mean["f1"] == pytest.approx(np.mean(f1s))
    assert mean["f1_interval"][0] < mean["f1"] < mean["f1_interval"][1]
    sizes = [[found["groups"][s][k] for k in ("n", "n_error")] for s in ("gsm8k", "math")]
    assert sizes == [[400, 207], [1000, 594]] and counts["rows"] == len(rows) == 1400


def test_the_mean_is_plain_and_undefined_where_a_split_is():
    rows = [processbench_row("a", error) for error in (0, -1)] * 10 + [
        processbench_row("b", error) for error in (1, -1)
    ]
    found = measure("processbench", rows, predicting([0, -1] * 10 + [0, -1]))
    assert [found["groups"][name]["first_error_f1"] for name in "ab"] == [1, 0]
    assert found["judges"]["verifier"]["f1"] == 0.5
    one_sided = measure("processbench", [*rows, processbench_row("c", -1)], predicting([-1] * 23))
    f1s = one_sided["groups"]["c"]["first_error_f1"], one_sided["judges"]["verifier"]["f1"]
    assert np.isnan(f1s).all()
    of_a_alone = np.array([[True, False]] * 2)  # a resample that has nothing of the last group
    assert np.isnan(mean_f1(np.ones(2), np.array([0, -1]), of_a_alone))


def wrong_where_long(i, error):
    steps = tuple("x" * (60 if t == error else 5) for t in range(3))
    return Row(dataclasses.replace(processbench_row("a", error).solution, steps=steps), "a", f"q{i}")


def test_a_verifier_stands_beside_rules_that_read_nothing():
    """Wrong steps are the long ones: a cut on length, from other problems, finds them all."""
    errors = [-1, 0, 1, -1, 2, -1, 0, -1, 1, 2] * 4
    rows = [wrong_where_long(i, error) for i, error in enumerate(errors)]
    blind = compare_with_rules(rows, predicting([-1] * 40), None, 0.5, 0)
    assert (blind["best_rule"], blind["judges"]["length"]["cross_fitted"]) == ("length", 1)
    assert blind["lead"]["difference"] == -1 == blind["lead"]["interval"][0]
    level = compare_with_rules(rows, predicting(errors), predicting(errors), 0.5, 0)
    assert level["lead"]["difference"] == 0 and level["judges"]["verifier"]["cross_fitted"] == 1
    assert level["judges"]["likelihood"]["step_auroc"] == 1
    # By hand: of 24 erroneous ones with errors at 0, 1, 2 equally often, and 16 sound ones of three steps.
    rate = np.linspace(0, 1, 200)
    found = (rate + rate * (1 - rate) + rate * (1 - rate) ** 2) / 3
    sound = (1 - rate) ** 3
    best = (2 * found * sound / (found + sound)).max()
    assert level["judges"]["hazard"]["cross_fitted"] == pytest.approx(best, abs=0.01)


def test_a_cut_is_fitted_on_other_problems_and_known_ones_are_measured_apart():
    """The best cut of each problem calls all of the other's solutions wrong, or none."""
    rows = [processbench_row("a", error, 1, problem) for problem in "pq" for error in (0, -1)]
    scores = list(np.array([[0.4], [0.6], [0.05], [0.2]]))
    fitted = compare_with_rules(rows, scores, None, 0.5, 0)["judges"]["verifier"]
    assert (fitted["cross_fitted"], fitted["f1"]) == (pytest.approx(0.5), pytest.approx(2 / 3))
    apart = compare_apart(rows, scores, None, [True, True, False, False], 0.1, 0)
    assert (apart["n"], apart["unseen"]["n"], apart["unseen"]["judges"]["verifier"]["f1"]) == (4, 2, 1)
    assert "unseen" not in compare_apart(rows, scores, None, [False] * 4, 0.5, 0)


def test_values_have_no_first_error_and_stand_beside_rules_by_auroc_alone(capsys):
    solution = Solution("q", ("aa", "b", "ccc"), (0.9, 0.2, 0.7))  # the step behind the bad one counts
    scores = [np.array([0.8, 0.1, 0.6])]
    found = compare_with_rules([Row(solution, "", "q")], scores, None, 0.5, 0, "value")
    assert found.keys() == {"judges"} and found["judges"]["verifier"]["step_auroc"] == 1
    assert found["judges"]["length"]["step_auroc"] == 0 and "hazard" not in found["judges"]
    show_comparison(found)
    assert "length" in capsys.readouterr().out


# PRMBench


def official_prmscore(is_bad, is_valid):
    """PRMBench's evaluator: F1 of valid and of invalid steps from four counts."""
    tp, fp = np.sum(~is_bad & is_valid), np.sum(is_bad & is_valid)
    tn, fn = np.sum(is_bad & ~is_valid), np.sum(~is_bad & ~is_valid)
    precision, recall = tp / (tp + fp), tp / (tp + fn)
    f1 = 2 * precision * recall / (precision + recall)
    if not is_bad.any():
        return f1
    precision, recall = tn / (tn + fn), tn / (tn + fp)
    return 0.5 * f1 + 0.5 * 2 * precision * recall / (precision + recall)


def test_prmbench_equals_an_independent_computation_on_the_real_files(rng):
    real_data("prmbench")
    paths = sorted(str(path) for path in (DATA / "prmbench").glob("*.jsonl"))
    rows, counts = read_set("prmbench", path=paths)
    scores = [np.round(score_T, 1) for score_T in random_scores(rng, rows)]  # which tie with the threshold
    found = measure("prmbench", rows, scores, 0.3)
    items = [json.loads(line) for path in paths for line in Path(path).read_bytes().splitlines()]
    keys = [(item["classification"], item["idx"]) for item in items]
    first = [k for k, key in enumerate(keys) if key not in keys[:k]]
    items, is_valid = [items[k] for k in first], [score_T > 0.3 for score_T in scores]
    assert sum((score_T == 0.3).sum() for score_T in scores) > 100
    is_bad = [np.isin(np.arange(len(i["modified_process"])) + 1, i["error_steps"]) for i in items]
    expected = {}
    for name in {item["classification"] for item in items}:
        here = [k for k, item in enumerate(items) if item["classification"] == name]
        expected[name] = official_prmscore(
            *(np.concatenate([x[k] for k in here]) for x in (is_bad, is_valid))
        )
    expected["all"] = official_prmscore(np.concatenate(is_bad), np.concatenate(is_valid))
    assert {name: x["prmscore"] for name, x in found["groups"].items()} == pytest.approx(expected)
    simplicity = (expected["redundency"] + expected["circular"]) / 2
    assert found["categories"]["simplicity"] == pytest.approx(simplicity)
    n_steps = sum(len(item["modified_process"]) for item in items)
    whole = found["groups"]["all"]
    assert (whole["n"], whole["n_steps"], counts["rows"]) == (878, n_steps, 883)
    odd = ("rows_with_error_steps_out_of_range", "error_steps_out_of_range", "rows_with_repeated_idx")
    assert [counts[name] for name in odd] == [21, 26, 5]
    assert len({row.problem for row in rows}) == 191
    for x in found["groups"].values():
        assert x["prmscore_interval"][0] < x["prmscore"] < x["prmscore_interval"][1]


def prmbench_row(name, labels):
    return Row(Solution("q", ("s",) * len(labels), tuple(labels)), name, "q")


def test_prmbench_literally():
    rows = [prmbench_row("circular", (1.0, 0.0, 1.0, 0.0)), prmbench_row("multi_solutions", (1.0, 1.0))]
    scores = [[0.9, 0.1, 0.2, 0.6], [0.9, 0.5]]
    found = measure("prmbench", rows, scores)
    of = lambda found, name: found["groups"][name]["prmscore"]
    assert of(found, "circular") == 0.5
    assert of(found, "multi_solutions") == pytest.approx(2 / 3)  # one at the threshold is bad
    # Pooled: 2 good steps right, 2 missed; 1 bad step right, 1 missed.
    assert of(found, "all") == pytest.approx(
        (2 * 2 / 3 * 0.5 / (2 / 3 + 0.5) + 2 / 3 / (1 / 3 + 0.5) / 2) / 2
    )
    assert np.isnan(list(found["categories"].values())).all()  # none is complete
    calls_all_good = measure("prmbench", rows, [[1.0] * 4, [1.0] * 2])
    assert of(calls_all_good, "circular") == pytest.approx((2 / 3 + 0) / 2)
    assert of(measure("prmbench", rows, [[0.0] * 4, [0.0] * 2]), "multi_solutions") == 0
    assert measure("prmbench", [prmbench_row("all", (1.0, 0.0))], [[0.9, 0.1]])["groups"]["all"]["n"] == 1
    all_wrong = measure("prmbench", rows[:1], [[0.0, 1.0, 0.0, 1.0]])
    assert of(all_wrong, "all") == 0  # where the official code, dividing 0 by 0, has -1


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def pb(i, label=-1, steps=("s", "t")):
    return {"id": i, "problem": "q", "steps": list(steps), "final_answer_correct": True, "label": label}


def prm(name, **changes):
    row = {"modified_question": "m", "question": "q", "modified_process": ["a", "b"], "error_steps": [2, 9]}
    return row | {"idx": "1", "classification": name} | changes


@dataclasses.dataclass
class Given:
    """A Scorer with these log-odds, row by row."""

    logits: list
    name: str = "given"
    unit: str = "logit"
    label_kind: str = "correctness"
    objective: str = "prm"

    def score(self, rows):
        return [np.array(logit_T, np.float32) for logit_T in self.logits]


def test_a_checkpoint_from_end_to_end(monkeypatch, tmp_path):
    model = PRM(dataclasses.replace(TINY, vocab=320, head="binary"), rngs=nnx.Rngs(0))
    model.w_head[...] = model.w_head[...] * 100  # scores away from 0.5
    # P(good) - P(bad), as PURE scores: the threshold is on P(good) all the same.
    pure = {"name": "pure", "separator": "\n", "head": "binary", "score": "difference"}
    tokenizer = train_tokenizer(["7 + 5 = 2"], 280)
    hf.save(tmp_path / "model", model, tokenizer, label_kind="value", format=pure)
    rows = [pb(f"x-{i}", [-1, 0, 1][i % 3], (f"{i} + 1", f"so {i + 1}")) for i in range(12)]
    path = write(tmp_path / "gsm8k.jsonl", *rows)
    read, _ = read_set("processbench", path=path)
    known = problem_hashes(row.solution for row in read)
    (tmp_path / "model/data.json").write_text(json.dumps({"problems": known}))
    command = ["task=processbench", "checkpoint=model", f"data.path={path}"]
    out = printed(evaluate.main, monkeypatch, *command, "batch.rows=2", "hydra.run.dir=out", cwd=tmp_path)
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert (results["verifier"], results["label_kind"], results["n_rows"]) == ("model", "value", 12)
    assert list(results["judges"]) == ["verifier", "position", "length", "hazard"] and "verdict" in out
    split = results["groups"]["gsm8k"]
    assert (split["n"], split["n_error"]) == (12, 8)
    assert results["metric"] == results["judges"]["verifier"]["f1"] == split["first_error_f1"]
    assert results["n_seen"] == 12 and "unseen" not in results
    assert "trained on 12 of these" in (tmp_path / "out/report.txt").read_text()
    # The scores it wrote give the same numbers without the model.
    scores = list(map(probability, stored_scores(tmp_path / "out/scores.jsonl")))
    assert np.ptp(scores) > 0.05
    assert {json.loads(line)["unit"] for line in (tmp_path / "out/scores.jsonl").open()} == {"logit"}
    again = json.loads(json.dumps(measure("processbench", read, scores)), parse_constant=lambda _: None)
    assert again["groups"] == results["groups"] and again["lead"] == results["lead"]
    assert results["published"]["Qwen2.5-Math-PRM-7B"] == pytest.approx(0.824)
    assert "published: Qwen2.5-Math-PRM-7B" in out


def test_prmbench_as_a_command(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "p.jsonl", prm("circular"), prm("multi_solutions", error_steps=[]))
    monkeypatch.setattr(benchmarks.verifiers, "one_scorer", lambda setup: Given([[3.0, -3.0]] * 2))
    monkeypatch.setattr(benchmarks.verifiers, "backbone_of", lambda name: "embedded")
    given = "task=prmbench", "data=prmbench", f"data.path={path}", "checkpoint=random", "hydra.run.dir=out"
    monkeypatch.setattr("sys.argv", ["evaluate.py", *given, "baselines=false"])
    evaluate.main()
    results = json.loads((tmp_path / "out/results.json").read_text())
    groups = {name: x["prmscore"] for name, x in results["groups"].items()}
    assert groups["circular"] == 1 and groups["multi_solutions"] == pytest.approx(2 / 3)
    assert groups["all"] == results["metric"] == pytest.approx((4 / 5 + 2 / 3) / 2)
    assert results["categories"]["soundness"] is None
    assert results["groups"]["all"]["prmscore_interval"] == [None, None]
    assert results["counts"]["error_steps_out_of_range"] == 1 and results["verifier"] == "given"
    assert "likelihood" not in results["judges"]  # of a language model, which did not load
    assert "soundness, mean of its classes" in capsys.readouterr().out
