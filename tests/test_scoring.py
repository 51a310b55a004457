"""Scores depend on the solution alone; verifiers load from run folders and Hugging Face folders alike."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from conftest import TINY
from flax import nnx

from prm_jax import InputError, scoring
from prm_jax.checkpoints import hf
from prm_jax.data.formats import Format, train_tokenizer
from prm_jax.model import PRM
from prm_jax.scoring import Verifier, load_verifier, score_into, score_solutions, score_stream, stored_scores

PLAIN = Format("plain", "\n")


@pytest.fixture(scope="module")
def verifier():
    tokenizer = train_tokenizer(["7 + 5 = 2"], 280)
    model = PRM(dataclasses.replace(TINY, vocab=320, head="binary"), rngs=nnx.Rngs(0))
    model.w_head[...] = model.w_head[...] * 100  # scores away from 0.5
    return Verifier(model, tokenizer, PLAIN, "correctness", "prm", "tiny")


def random_rows(rng, n):
    words = lambda k: " ".join(str(x) for x in rng.integers(0, 99, k))
    return [(words(3), tuple(words(rng.integers(1, 9)) for _ in range(rng.integers(1, 7)))) for _ in range(n)]


def test_scores_do_not_depend_on_batch_order_padding_or_neighbours(verifier, rng):
    rows = random_rows(rng, 40)
    together = score_solutions(verifier, rows, batch_rows=8, row_tokens=128)
    assert [len(s) for s in together] == [len(steps) for _, steps in rows]
    assert np.ptp(np.concatenate(together)) > 0.05
    order = rng.permutation(40)
    shuffled = score_solutions(verifier, [rows[i] for i in order], batch_rows=3, row_tokens=256)
    alone = [score_solutions(verifier, [row], batch_rows=1, row_tokens=512)[0] for row in rows[:5]]
    for i, score_T in zip(order, shuffled, strict=True):
        np.testing.assert_allclose(score_T, together[i], atol=1e-5)
    for mine, theirs in zip(alone, together, strict=False):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_a_score_that_is_no_number_is_an_error_that_names_verifier_and_problem(verifier, rng):
    broken = dataclasses.replace(verifier, model=jax.tree.map(lambda x: x * np.nan, verifier.model))
    with pytest.raises(InputError, match="tiny: gives .*nan.* of a solution of 'What is 2"):
        score_solutions(broken, [("What is 2 + 3?", ("2 + 3 = 5",))], batch_rows=1, row_tokens=64)


def test_shared_prefixes_and_chunks_change_no_score(verifier, rng, monkeypatch):
    """Candidates of one problem, some with common first steps, scored as a tree, in small chunks, and each alone."""
    trunk = random_rows(rng, 3)
    rows = [(p, (*steps[:k], *more)) for p, steps in trunk for k in (1, 2) for _, more in random_rows(rng, 4)]
    rows += rows[:3]
    together = score_solutions(verifier, rows, batch_rows=4, row_tokens=256)
    monkeypatch.setattr(scoring, "CHUNK", 7)
    stream = score_stream(verifier, iter(rows), batch_rows=4, row_tokens=256)
    for row, mine, chunked in zip(rows, together, stream, strict=True):
        (alone,) = score_solutions(verifier, [row], batch_rows=1, row_tokens=256)
        np.testing.assert_allclose(mine, alone, atol=1e-5)
        np.testing.assert_allclose(chunked, alone, atol=1e-5)


def test_the_step_head_sees_marks_alone_and_a_shared_one_once(verifier, rng, monkeypatch):
    """Three candidates of four steps share two: of their 12 marks 8 are distinct, and no other token reaches the head."""
    ((problem, trunk),) = [("12 + 34", ("5 6", "7"))]
    rows = [(problem, (*trunk, f"{n} {n}", "8 9")) for n in (1, 2, 3)]
    seen = []

    def spy(model, batch):
        seen.append((np.asarray(batch["ids"]), np.asarray(batch["step_end"])))
        return score(model, batch)

    score = scoring.good_probability
    monkeypatch.setattr(scoring, "good_probability", spy)
    found = score_solutions(verifier, rows, batch_rows=1, row_tokens=128)
    ((ids_BL, step_end_BT),) = seen
    assert step_end_BT.shape == (1, 8)
    newline = verifier.tokenizer.encode("\n")[-1]
    assert sorted(step_end_BT[0]) == np.flatnonzero(ids_BL[0] == newline).tolist()
    assert jax.eval_shape(
        score, verifier.model, {"ids": ids_BL, "pos": ids_BL, "visible_until": ids_BL, "step_end": step_end_BT}
    ).shape == (1, 8)
    assert len({tuple(score_T[:2]) for score_T in found}) == 1 and len({score_T[2] for score_T in found}) == 3


def test_a_score_never_sees_what_follows(verifier, rng):
    ((problem, steps),) = random_rows(np.random.default_rng(1), 1)
    steps = (*steps, "1", "2")
    changed = (*steps[:-2], "99 98 97", "5 5 5")
    a, b = score_solutions(verifier, [(problem, steps), (problem, changed)], batch_rows=1, row_tokens=256)
    np.testing.assert_allclose(a[:-2], b[:-2], atol=1e-6)
    assert abs(a[-2] - b[-2]) > 1e-4


def test_long_solutions_widen_the_rows_and_empty_input_is_fine(verifier):
    (score_T,) = score_solutions(verifier, [("1", ("2 " * 300, ""))], batch_rows=2, row_tokens=64)
    assert len(score_T) == 2 and np.isfinite(score_T).all()
    assert score_solutions(verifier, [], batch_rows=2, row_tokens=64) == []


def test_hugging_face_folder_scores_as_the_model_it_was_saved_from(verifier, rng, tmp_path):
    hf.save(tmp_path, verifier.model, verifier.tokenizer)
    loaded = load_verifier(tmp_path, "best", PLAIN, "float32")
    rows = random_rows(rng, 5)
    for a, b in zip(*(score_solutions(v, rows, batch_rows=4, row_tokens=128) for v in (verifier, loaded)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_export_carries_its_format_and_the_meaning_of_its_labels(verifier, tmp_path):
    notes = {"format": {"name": "plain", "separator": "\n\n"}, "label_kind": "value", "objective": "orm"}
    hf.save(tmp_path, verifier.model, verifier.tokenizer, **notes)
    loaded = load_verifier(tmp_path, "best", PLAIN, "float32")
    assert (loaded.format.separator, loaded.label_kind, loaded.objective) == ("\n\n", "value", "orm")


def test_a_language_model_cannot_score(verifier, tmp_path):
    hf.save(tmp_path, PRM(dataclasses.replace(TINY, vocab=320, head="none"), rngs=nnx.Rngs(0)), verifier.tokenizer)
    with pytest.raises(InputError, match="has no step head"):
        load_verifier(tmp_path, "best", PLAIN, "float32")


def test_an_interrupted_scores_file_is_gone_on_with(verifier, rng, tmp_path, monkeypatch):
    rows = [(f"row {i}", *row) for i, row in enumerate(random_rows(rng, 9))]
    options = {"batch_rows": 2, "row_tokens": 256, "total": 9}
    score_into(tmp_path / "whole.jsonl", verifier, rows, **options)
    whole = (tmp_path / "whole.jsonl").read_bytes()
    lines = [json.loads(line) for line in whole.splitlines()]
    expected = score_solutions(verifier, [row[1:] for row in rows], batch_rows=2, row_tokens=256)
    for line, row, score_T, stored in zip(lines, rows, expected, stored_scores(tmp_path / "whole.jsonl"), strict=True):
        assert line["id"] == row[0]
        np.testing.assert_array_equal(stored, score_T)

    seen = []
    monkeypatch.setattr(scoring, "encode", lambda *a, encode=scoring.encode: seen.extend(a[2]) or encode(*a))
    lost = tmp_path / "lost.jsonl"
    lost.write_bytes(b"".join(whole.splitlines(keepends=True)[:4]) + b'{"id": "row 4", "sco')
    score_into(lost, verifier, iter(rows), **options)
    assert len(seen) == 5 and [p for p, _ in seen] == [row[1] for row in rows[4:]]
    assert [json.loads(line)["id"] for line in lost.read_bytes().splitlines()] == [row[0] for row in rows]
    for mine, theirs in zip(stored_scores(lost), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)
    with pytest.raises(InputError, match="lost.jsonl line 1: id: got 'row 0', expected 'row 1'"):
        score_into(lost, verifier, iter(rows[1:]), **options)


def test_memory_holds_one_chunk_of_a_stream(verifier, monkeypatch):
    """The stream is read a chunk ahead of the scores taken from it, and no further."""
    monkeypatch.setattr(scoring, "CHUNK", 8)
    read = []
    rows = ((str(read.append(i) or i), (f"{i} + 1",)) for i in range(100))
    scores = score_stream(verifier, rows, batch_rows=2, row_tokens=64)
    for taken in range(20):
        next(scores)
        assert len(read) <= taken // 8 * 8 + 8


def test_a_sliding_window_counts_a_solutions_own_tokens(verifier, rng):
    """Solutions that share a prefix must not be laid out as a tree: a window would count the other branches' tokens."""
    model = PRM(dataclasses.replace(verifier.model.cfg, window=16), rngs=nnx.Rngs(0))
    model.w_head[...] = model.w_head[...] * 100
    windowed = dataclasses.replace(verifier, model=model)
    ((problem, steps),) = random_rows(rng, 1)
    rows = [(problem, (*steps, f"{n} {n} {n} {n} {n}", "4 5 6")) for n in range(6)]
    together = score_solutions(windowed, rows, batch_rows=2, row_tokens=256)
    for row, score_T in zip(rows, together, strict=True):
        alone = score_solutions(windowed, [row], batch_rows=1, row_tokens=256)[0]
        np.testing.assert_allclose(score_T, alone, atol=1e-5)
