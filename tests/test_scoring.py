"""Scores depend on the solution alone; verifiers load from run folders and Hugging Face folders alike."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from conftest import TINY
from flax import nnx

from prm_jax import InputError, scoring
from prm_jax.checkpoints.tokenizer import train_tokenizer
from prm_jax.data import writing
from prm_jax.data.writing import score_into, stored_scores
from prm_jax.encoding import Encoded
from prm_jax.formats import Format
from prm_jax.model import PRM
from prm_jax.scorers import CheckerScorer, RandomScorer
from prm_jax.scoring import HeadScorer, ScoringStats, step_ratios
from prm_jax.solutions import Solution

PLAIN = Format("plain", "\n")


@pytest.fixture(scope="module")
def verifier():
    tokenizer = train_tokenizer(["7 + 5 = 2"], 280)
    model = PRM(dataclasses.replace(TINY, vocab=320, head="binary"), rngs=nnx.Rngs(0))
    model.w_head[...] = model.w_head[...] * 100  # scores away from 0.5
    return HeadScorer(model=model, tokenizer=tokenizer, format=PLAIN, label_kind="correctness", name="tiny")


def score(verifier, rows, batch_rows, row_tokens):
    return dataclasses.replace(verifier, batch_rows=batch_rows, row_tokens=row_tokens).score(rows)


def random_rows(rng, n):
    words = lambda k: " ".join(str(x) for x in rng.integers(0, 99, k))
    return [(words(3), tuple(words(rng.integers(1, 9)) for _ in range(rng.integers(1, 7)))) for _ in range(n)]


def test_scores_do_not_depend_on_batch_order_padding_or_neighbours(verifier, rng):
    rows = random_rows(rng, 40)
    together = score(verifier, rows, 8, 128)
    assert [len(s) for s in together] == [len(steps) for _, steps in rows]
    assert np.ptp(np.concatenate(together)) > 0.05
    order = rng.permutation(40)
    shuffled = score(verifier, [rows[i] for i in order], 3, 256)
    alone = [score(verifier, [row], 1, 512)[0] for row in rows[:5]]
    for i, score_T in zip(order, shuffled, strict=True):
        np.testing.assert_allclose(score_T, together[i], atol=5e-5)
    for mine, theirs in zip(alone, together, strict=False):
        np.testing.assert_allclose(mine, theirs, atol=5e-5)


def test_a_score_that_is_no_number_is_an_error_that_names_verifier_and_problem(verifier, rng):
    broken = dataclasses.replace(verifier, model=jax.tree.map(lambda x: x * np.nan, verifier.model))
    with pytest.raises(InputError, match="^tiny: .*'What is 2"):
        score(broken, [("What is 2 + 3?", ("2 + 3 = 5",))], 1, 64)


def test_solutions_beyond_the_models_positions_are_said_once_and_counted(verifier, capsys):
    model = PRM(dataclasses.replace(verifier.model.cfg, max_positions=12), rngs=nnx.Rngs(0))
    short = dataclasses.replace(verifier, model=model, stats=ScoringStats())
    for _ in range(2):
        assert len(score_all := short.score([("1", ("2",)), ("1", ("2",) * 9), ("1", ("3",) * 20)])) == 3
    said = capsys.readouterr().out
    assert said.count("note") == 1 and "2 of 3 solutions, up to 41 tokens" in said and len(score_all[2]) == 20
    assert "; 4 longer than" in short.stats.summary()


def test_a_score_does_not_depend_on_what_was_scored_before(verifier, rng):
    rows, verifier = random_rows(rng, 8), dataclasses.replace(verifier, batch_rows=4, row_tokens=128)
    before = verifier.score(rows)
    assert len(verifier.score([("1", ("2 " * 200,))])) == 1  # wider rows, for itself alone
    assert all(map(np.array_equal, verifier.score(rows), before))


def named(rows) -> list[Solution]:
    return [Solution(*row, id=f"row {i}") for i, row in enumerate(rows)]


def test_shared_prefixes_and_chunks_change_no_score(verifier, rng, monkeypatch, tmp_path):
    """Candidates of one problem, some with common first steps, as a tree, in small chunks, and each alone."""
    trunk = random_rows(rng, 3)
    rows = [(p, (*steps[:k], *more)) for p, steps in trunk for k in (1, 2) for _, more in random_rows(rng, 4)]
    rows += rows[:3]
    together = score(verifier, rows, 4, 256)
    monkeypatch.setattr(writing, "CHUNK", 7)
    verifier = dataclasses.replace(verifier, batch_rows=4, row_tokens=256)
    score_into(tmp_path / "s.jsonl", verifier, named(rows), len(rows))
    stream = stored_scores(tmp_path / "s.jsonl")
    for row, mine, chunked in zip(rows, together, stream, strict=True):
        (alone,) = score(verifier, [row], 1, 256)
        np.testing.assert_allclose(mine, alone, atol=5e-5)
        np.testing.assert_allclose(chunked, alone, atol=5e-5)


def test_the_step_head_sees_marks_alone_and_a_shared_one_once(verifier, rng, monkeypatch):
    """Three candidates of four steps share two: of their 12 marks the head sees the 8 distinct ones."""
    rows = [("12 + 34", ("5 6", "7", f"{n} {n}", "8 9")) for n in (1, 2, 3)]
    seen, compute = [], scoring.step_log_odds

    def spy(model, batch):
        logit_BT = compute(model, batch)
        seen.append((np.asarray(batch["ids"]), np.asarray(batch["step_end"]), logit_BT.shape))
        return logit_BT

    monkeypatch.setattr(scoring, "step_log_odds", spy)
    found = score(verifier, rows, 1, 128)
    ((ids_BL, step_end_BT, shape),) = seen
    newline = verifier.tokenizer.encode("\n")[-1]
    assert sorted(step_end_BT[0]) == np.flatnonzero(ids_BL[0] == newline).tolist() and shape == (1, 8)
    assert len({tuple(score_T[:2]) for score_T in found}) == 1 and len({score_T[2] for score_T in found}) == 3


def test_a_score_never_sees_what_follows(verifier, rng):
    ((problem, steps),) = random_rows(np.random.default_rng(1), 1)
    steps = (*steps, "1", "2")
    changed = (*steps[:-2], "99 98 97", "5 5 5")
    a, b = score(verifier, [(problem, steps), (problem, changed)], 1, 256)
    np.testing.assert_allclose(a[:-2], b[:-2], atol=1e-6)
    assert abs(a[-2] - b[-2]) > 1e-4


def test_an_interrupted_scores_file_is_continued(verifier, rng, tmp_path, monkeypatch):
    rows = named(random_rows(rng, 9))
    verifier = dataclasses.replace(verifier, batch_rows=2, row_tokens=256)
    score_into(tmp_path / "whole.jsonl", verifier, rows, 9)
    whole = (tmp_path / "whole.jsonl").read_bytes()
    lines = [json.loads(line) for line in whole.splitlines()]
    expected = verifier.score([(s.problem, s.steps) for s in rows])
    assert [line["id"] for line in lines] == [s.id for s in rows]
    for stored, score_T in zip(stored_scores(tmp_path / "whole.jsonl"), expected, strict=True):
        np.testing.assert_array_equal(stored, score_T)

    seen = []
    encode = scoring.encode
    monkeypatch.setattr(scoring, "encode", lambda *a, **o: seen.extend(a[2]) or encode(*a, **o))
    lost = tmp_path / "lost.jsonl"
    lost.write_bytes(b"".join(whole.splitlines(keepends=True)[:4]) + b'{"id": "row 4", "sco')
    score_into(lost, verifier, iter(rows), 9)
    assert len(seen) == 5 and [p for p, _ in seen] == [s.problem for s in rows[4:]]
    assert [json.loads(line)["id"] for line in lost.read_bytes().splitlines()] == [s.id for s in rows]
    for mine, theirs in zip(stored_scores(lost), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=5e-5)
    with pytest.raises(InputError, match="lost.jsonl line 1: id: "):
        score_into(lost, verifier, iter(rows[1:]), 9)


def test_scores_in_another_unit_are_read_and_not_continued(verifier, tmp_path):
    path = tmp_path / "old.jsonl"
    path.write_text(
        '{"id": "a", "unit": "probability", "scores": [0.75]}\n{"id": "b", "unit": "difference", "scores": [0.5]}\n'
    )
    for score_T in stored_scores(path):
        np.testing.assert_allclose(score_T, [np.log(3)], rtol=1e-6)
    with pytest.raises(InputError, match="old.jsonl line 1: unit: "):
        score_into(path, verifier, [Solution("1", ("2",), id=i) for i in "ab"], 2)


def test_the_first_token_of_all_has_no_log_ratio():
    """Ratio l is about token l + 1: a solution from token 0 on sums tokens 1 and 2, then 3, 4 and 5."""
    ids_L, ratio_L = np.zeros(6, np.int32), np.ones(6)
    for start, beta, expected in ((0, 1.0, [2, 3]), (1, 1.0, [2, 3]), (2, 0.5, [0.5, 1.5])):
        assert step_ratios(beta, ratio_L, Encoded(ids_L, np.array([2, 5]), start)).tolist() == expected


def test_a_checker_and_a_random_scorer_score_like_a_model():
    rows = [("1+1", ("2", "3")), ("1+1", ("2", "4", "5")), ("2+2", ("2",))]
    checker = CheckerScorer(lambda problem, steps: [1.0, 0.0, 0.5][: len(steps)])
    assert [score_T.tolist() for score_T in checker.score(rows)] == [[20, -20], [20, -20, 0], [20]]
    scorer = RandomScorer(0)
    a, b, c = scorer.score(rows)
    assert a[0] == b[0] != c[0] and a[1] != b[1]  # a step's score depends on what came before it alone
    alone, other = (RandomScorer(seed).score(rows[1:2])[0].tolist() for seed in (0, 1))
    assert alone == b.tolist() != other
    many = np.concatenate(scorer.score([(str(i), ("x",)) for i in range(4000)]))
    assert abs(many.mean()) < 0.05 and abs(many.std() - 1) < 0.05


def test_a_sliding_window_counts_a_solutions_own_tokens(verifier, rng):
    """Solutions that share a prefix are then no tree: a window would count the other branches' tokens."""
    model = PRM(dataclasses.replace(verifier.model.cfg, window=16), rngs=nnx.Rngs(0))
    model.w_head[...] = model.w_head[...] * 100
    windowed = dataclasses.replace(verifier, model=model)
    ((problem, steps),) = random_rows(rng, 1)
    rows = [(problem, (*steps, f"{n} {n} {n} {n} {n}", "4 5 6")) for n in range(6)]
    together = score(windowed, rows, 2, 256)
    for row, score_T in zip(rows, together, strict=True):
        alone = score(windowed, [row], 1, 256)[0]
        np.testing.assert_allclose(score_T, alone, atol=5e-5)
