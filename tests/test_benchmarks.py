"""ProcessBench and PRMBench: official numbers on the real files and by hand, thresholds by brute force,
errors by line."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from conftest import DATA, TINY, printed, real_data
from flax import nnx

import evaluate
from prm_jax import InputError
from prm_jax.checkpoints import hf
from prm_jax.data.score_files import stored_scores
from prm_jax.data.units import probability
from prm_jax.evals import benchmarks, prmbench, processbench
from prm_jax.evals.benchmarks import Row, Source
from prm_jax.figures import benchmarks as benchmark_figures
from prm_jax.formats import train_tokenizer
from prm_jax.model import PRM
from prm_jax.solutions import Solution


def random_scores(rng, rows):
    return [rng.random(len(row.solution.steps)) for row in rows]


def processbench_row(split, error, n=3, problem="q"):
    labels = [1.0] * n if error == -1 else [*[1.0] * error, 0.0, *[None] * (n - error - 1)]
    return Row(Solution(problem, ("s",) * n, tuple(labels), outcome=1.0), split, problem)


def predicting(first_errors, n=3):
    """Scores whose first step below 0.5 is the one asked for."""
    return [np.where(np.arange(n) == error, 0.1, 0.9) for error in first_errors]


# ProcessBench


def test_processbench_equals_an_independent_computation_on_the_real_files(rng):
    paths = [str(real_data(f"processbench/{name}.json")) for name in ("gsm8k", "math")]
    rows, counts = benchmarks.read("processbench", Source(paths, None, "train"))
    scores = random_scores(rng, rows)
    found = processbench.f1_results(rows, scores, 0.3)
    by_id = {row.solution.id: score_T for row, score_T in zip(rows, scores, strict=True)}
    f1s = []
    for name, path in zip(("gsm8k", "math"), paths, strict=True):
        hits = {True: [], False: []}
        for item in json.loads(Path(path).read_text()):
            below = [t for t, s in enumerate(by_id[item["id"]]) if s < 0.3]
            hits[item["label"] != -1].append((below or [-1])[0] == item["label"])
        a, b = np.mean(hits[True]), np.mean(hits[False])
        f1s.append(2 * a * b / (a + b))
        split = found["splits"][name]
        assert [split["accuracy_error"], split["accuracy_clean"], split["f1"]] == pytest.approx(
            [a, b, f1s[-1]]
        )
        assert split["f1_interval"][0] < split["f1"] < split["f1_interval"][1]
    assert found["mean_f1"] == pytest.approx(np.mean(f1s))
    assert found["mean_f1_interval"][0] < found["mean_f1"] < found["mean_f1_interval"][1]
    sizes = [[found["splits"][s][k] for k in ("n", "n_error")] for s in ("gsm8k", "math")]
    assert sizes == [[400, 207], [1000, 594]] and counts["rows"] == len(rows) == 1400


def test_the_mean_is_plain_and_undefined_where_a_split_is(tmp_path):
    rows = [processbench_row("a", error) for error in (0, -1)] * 10 + [
        processbench_row("b", error) for error in (1, -1)
    ]
    found = processbench.f1_results(rows, predicting([0, -1] * 10 + [0, -1]), 0.5)
    assert (found["splits"]["a"]["f1"], found["splits"]["b"]["f1"], found["mean_f1"]) == (1, 0, 0.5)
    one_sided = processbench.f1_results([*rows, processbench_row("c", -1)], predicting([-1] * 23), 0.5)
    assert np.isnan([one_sided["splits"]["c"]["f1"], one_sided["mean_f1"]]).all()
    versions = {"verifier": "v", "versions": {"commit": "0"}}
    for figure in benchmark_figures.processbench_figures(
        one_sided | versions, tmp_path
    ):  # and is drawn nevertheless
        assert figure.stat().st_size > 5_000


def test_the_threshold_is_the_best_of_all_on_the_named_split(rng):
    # Scores on a coarse grid tie within and across solutions.
    rows = [processbench_row(s, e, 4) for s in ("a", "b") for e in rng.integers(-1, 4, 40)]
    scores = [np.round(rng.random(4), 1) for _ in rows]
    f1_at = lambda t, split="a": processbench.f1_results(rows, scores, t)["splits"][split]["f1"]
    tuned = processbench.f1_results(rows, scores, 0.99, "a")
    assert tuned["splits"]["a"]["f1"] == max(f1_at(t) for t in np.arange(0, 1.1, 0.05))
    assert tuned["splits"]["b"]["f1"] == f1_at(tuned["threshold"], "b")
    assert round(tuned["threshold"] * 20) % 2 == 1  # midway between two of the grid's scores
    with pytest.raises(InputError, match="^threshold_split: got 'a'"):
        processbench.f1_results([processbench_row("a", 0)], predicting([0]), 0.5, "a")


def test_a_verifier_stands_beside_rules_that_read_nothing():
    """Wrong steps are the long ones: a cut on length, from other problems, finds them all."""

    def row(i, error):
        steps = tuple("x" * (60 if t == error else 5) for t in range(3))
        return Row(dataclasses.replace(processbench_row("a", error).solution, steps=steps), "a", f"q{i}")

    errors = [-1, 0, 1, -1, 2, -1, 0, -1, 1, 2] * 4
    rows = [row(i, error) for i, error in enumerate(errors)]
    blind = processbench.f1_results(rows, predicting([-1] * 40), 0.5)
    assert (blind["best_rule"], blind["cross_fitted"]["length"]) == ("length", 1)
    assert blind["lead"]["difference"] == -1
    level = processbench.f1_results(rows, predicting(errors), 0.5)
    assert level["lead"]["difference"] == 0 and level["cross_fitted"]["verifier"] == 1


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
    rows, counts = benchmarks.read("prmbench", Source(paths, None, "train"))
    scores = [np.round(score_T, 1) for score_T in random_scores(rng, rows)]  # which tie with the threshold
    found = prmbench.prmscore_results(rows, scores, 0.3)
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
    assert {name: x["prmscore"] for name, x in found["classes"].items()} == pytest.approx(expected)
    assert found["overall"] == pytest.approx(
        official_prmscore(np.concatenate(is_bad), np.concatenate(is_valid))
    )
    simplicity = (expected["redundency"] + expected["circular"]) / 2
    assert found["groups"]["simplicity"]["prmscore"] == pytest.approx(simplicity)
    assert sum(len(group["classes"]) for group in found["groups"].values()) == len(expected) == 9
    n_steps = sum(len(item["modified_process"]) for item in items)
    assert (found["n_rows"], found["n_steps"], counts["rows"]) == (878, n_steps, 883)
    odd = ("rows_with_error_steps_out_of_range", "error_steps_out_of_range", "rows_with_repeated_idx")
    assert [counts[name] for name in odd] == [21, 26, 5]
    assert len({row.problem for row in rows}) == 191
    for x in found["classes"].values():
        assert x["prmscore_interval"][0] < x["prmscore"] < x["prmscore_interval"][1]


def prmbench_row(name, labels):
    return Row(Solution("q", ("s",) * len(labels), tuple(labels)), name, "q")


def test_prmbench_literally():
    rows = [prmbench_row("circular", (1.0, 0.0, 1.0, 0.0)), prmbench_row("multi_solutions", (1.0, 1.0))]
    scores = [[0.9, 0.1, 0.2, 0.6], [0.9, 0.5]]
    found = prmbench.prmscore_results(rows, scores, 0.5)
    assert found["classes"]["circular"]["prmscore"] == 0.5
    assert found["classes"]["multi_solutions"]["prmscore"] == pytest.approx(
        2 / 3
    )  # one at the threshold is bad
    # Pooled: 2 good steps right, 2 missed; 1 bad step right, 1 missed.
    assert found["overall"] == pytest.approx(
        (2 * 2 / 3 * 0.5 / (2 / 3 + 0.5) + 2 * (1 / 3) * 0.5 / (1 / 3 + 0.5)) / 2
    )
    assert np.isnan([group["prmscore"] for group in found["groups"].values()]).all()  # no group is complete
    calls_all_good = prmbench.prmscore_results(rows, [[1.0] * 4, [1.0] * 2], 0.5)
    assert calls_all_good["classes"]["circular"]["prmscore"] == pytest.approx((2 / 3 + 0) / 2)
    calls_all_bad = prmbench.prmscore_results(rows, [[0.0] * 4, [0.0] * 2], 0.5)
    assert calls_all_bad["classes"]["multi_solutions"]["prmscore"] == 0
    all_wrong = prmbench.prmscore_results(rows[:1], [[0.0, 1.0, 0.0, 1.0]], 0.5)
    assert all_wrong["overall"] == 0  # where the official code, dividing 0 by 0, has -1


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
    command = ["task=processbench", "checkpoint=model", f"data.path={path}", "threshold_split=gsm8k"]
    out = printed(evaluate.main, monkeypatch, *command, "batch.rows=2", "hydra.run.dir=out", cwd=tmp_path)
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert (results["verifier"], results["label_kind"], results["n_rows"]) == ("model", "value", 12)
    assert results["threshold_split"] == "gsm8k" and "of the best F1 on gsm8k" in out
    assert list(results["step_aurocs"]) == ["verifier", "position", "length"] and "verdict" in out
    split = results["splits"]["gsm8k"]
    assert (split["n"], split["n_error"]) == (12, 8) and results["mean_f1"] == split["f1"]
    # The scores it wrote give the same numbers without the model.
    read, _ = benchmarks.read("processbench", Source(path, None, "train"))
    scores = list(map(probability, stored_scores(tmp_path / "out/scores.jsonl")))
    assert np.ptp(scores) > 0.05
    assert {json.loads(line)["unit"] for line in (tmp_path / "out/scores.jsonl").open()} == {"logit"}
    again = processbench.f1_results(read, scores, 0.5, "gsm8k")
    assert again["threshold"] == results["threshold"] and again["mean_f1"] == results["mean_f1"]
    assert (tmp_path / "out/figures/processbench.png").stat().st_size > 5_000


def test_prmbench_as_a_command(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "p.jsonl", prm("circular"), prm("multi_solutions", error_steps=[]))
    monkeypatch.setattr(benchmarks, "one_scorer", lambda setup: Given([[3.0, -3.0]] * 2))
    given = "task=prmbench", "data=prmbench", f"data.path={path}", "checkpoint=random", "hydra.run.dir=out"
    monkeypatch.setattr("sys.argv", ["evaluate.py", *given])
    evaluate.main()
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert results["classes"]["circular"]["prmscore"] == 1
    assert results["classes"]["multi_solutions"]["prmscore"] == pytest.approx(2 / 3)
    assert results["overall"] == pytest.approx((4 / 5 + 2 / 3) / 2)
    assert results["groups"]["soundness"]["prmscore"] is None and results["overall_interval"] == [None, None]
    assert results["counts"]["error_steps_out_of_range"] == 1 and results["verifier"] == "given"
    assert "soundness, mean of its classes" in capsys.readouterr().out
