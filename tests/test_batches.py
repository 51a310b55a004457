"""Packing: nothing lost, nothing doubled, the same stream from any position; too long rows reported."""

import dataclasses
import math

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY

from prm_jax import InputError
from prm_jax.attention import visible
from prm_jax.data.formats import Format, train_tokenizer
from prm_jax.data.packing import (
    Example,
    PackedRows,
    choose_width,
    eval_batches,
    fits_window,
    layout_row,
    make_examples,
    make_groups,
    pack_row,
    plan_packs,
    plan_rows,
    plan_tree,
    step_slots,
    targets,
    train_batches,
    training_width,
    truncate,
)
from prm_jax.data.solutions import Solution
from prm_jax.training import LossConfig, combine, loss_terms

nan = math.nan
PLAIN = Format("plain", "\n")


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["7 + 5 = 2"], 280)


def random_examples(rng, n):
    rows = []
    for _ in range(n):
        marks = np.sort(rng.choice(np.arange(3, 20), rng.integers(1, 6), replace=False)).astype(np.int32)
        label_T = rng.random(len(marks)).astype(np.float32)
        ids = rng.integers(1, 1000, marks[-1] + 1).astype(np.int32)
        rows.append(Example(ids, marks, label_T, np.full(len(marks), nan, np.float32), 2))
    return rows


def test_pack_row_by_hand():
    a = Example(np.array([5, 6, 7]), np.array([1, 2]), np.array([1.0, nan]), np.array([1.0, nan]), 1)
    b = Example(np.array([8, 9]), np.array([1]), np.array([0.25]), np.array([nan]), 1)
    row = pack_row([a, b], 7, 4, "uniform")
    assert row["ids"].tolist() == [5, 6, 7, 8, 9, 0, 0]
    assert row["pos"].tolist() == [0, 1, 2, 0, 1, 0, 0]
    assert row["visible_until"].tolist() == [2, 2, 2, 4, 4, 7, 7]
    assert row["next"].tolist() == [1, 1, 0, 1, 0, 0, 0]
    assert row["step_end"].tolist() == [1, 2, 4, 0]
    assert row["weight"].tolist() == [1, 0, 1, 0]
    np.testing.assert_array_equal(row["label"], np.array([1, nan, 0.25, nan], np.float32))
    np.testing.assert_array_equal(row["rating"], np.array([1, nan, nan, nan], np.float32))


def test_next_token_targets_start_after_the_problem():
    row = pack_row([Example(np.arange(6), np.array([5]), np.array([1.0]), np.array([nan]), 3)], 8, 1, "uniform")
    # positions 2..4 predict tokens 3..5, the solution; nothing predicts the problem or past the end
    assert row["next"].tolist() == [0, 0, 1, 1, 1, 0, 0, 0]


def test_plan_packs_first_fit_by_hand():
    tokens, marks = np.array([6, 5, 4, 3, 2]), np.array([1, 1, 1, 1, 1])
    assert plan_packs(tokens, marks, [0, 1, 2, 3, 4], 10, 9) == [[0, 2], [1, 3, 4]]
    assert plan_packs(tokens, marks, [0, 1, 2, 3, 4], 10, 2) == [[0, 2], [1, 3], [4]]  # mark slots bound it too
    assert plan_packs(tokens, marks, [0, 1, 4, 3], 10, 9, open_packs=1) == [[0], [1, 4, 3]]


def test_an_epoch_holds_every_solution_once_and_is_reshuffled(rng):
    examples = random_examples(rng, 200)
    source = PackedRows(examples, 10_000, 64, step_slots(examples, 64), "uniform", seed=3)
    source[0]
    first = source.ends[0]
    source[first]
    orders = [[i for pack in source.packs[a:b] for i in pack] for a, b in ((0, first), (first, source.ends[1]))]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(200)) and orders[0] != orders[1]
    fill = sum(len(examples[i].ids_L) for i in orders[0]) / (64 * first)
    assert fill > 0.93
    assert source.epoch(0) == 0 and source.epoch(first) == 1 and 1 < source.epoch(first + 1) < 1.1


def test_stream_resumes_at_the_step_and_splits_over_processes(rng):
    examples = random_examples(rng, 50)
    make = lambda own, first: train_batches(PackedRows(examples, 400, 32, 16, "later", 7), 4, own, first)
    whole = list(make(range(4), 0))
    assert len(whole) == 100
    for first in (1, 17, 60):  # the last lies several epochs in
        for own in (range(4), [1, 3]):
            got = list(make(own, first))
            assert len(got) == 100 - first
            for mine, expected in zip(got, whole[first:], strict=True):
                for k in ("ids", "step_end", "label", "weight"):
                    np.testing.assert_array_equal(mine[k], expected[k][list(own)])


def test_grain_agrees_that_it_resumes(rng):
    source = PackedRows(random_examples(rng, 20), 24, 32, 16, "uniform", 7)
    grain.experimental.assert_equal_output_after_checkpoint(
        grain.MapDataset.source(source).map(lambda row: row["ids"]).to_iter_dataset().batch(4)
    )


def test_eval_batches_cover_everything_once(rng):
    examples = random_examples(rng, 77)
    batches = list(eval_batches(examples, 32, step_slots(examples, 32), 8))
    assert all(batch["ids"].shape == (8, 32) for batch in batches)
    found = np.concatenate([batch["label"].ravel() for batch in batches])
    expected = np.concatenate([e.label_T for e in examples])
    np.testing.assert_array_equal(np.sort(found[~np.isnan(found)]), np.sort(expected))
    tokens = sum((batch["visible_until"] < 32).sum() for batch in batches)
    assert tokens == sum(len(e.ids_L) for e in examples)


TREE = [  # sequences and what they share: 1 2 | 3 4, 1 2 | 3 | 5, 1 2 | 6, a repeat, and one that shares nothing
    [1, 2, 3, 4],
    [1, 2, 6],
    [1, 2, 3, 5, 5],
    [1, 2, 3, 4],
    [9, 2],
]


def test_a_prefix_tree_by_hand():
    ids_n, pos_n, visible_until_n, places = layout_row([np.array(s) for s in TREE], share=True)
    assert ids_n.tolist() == [1, 2, 3, 4, 5, 5, 6, 9, 2]
    assert pos_n.tolist() == [0, 1, 2, 3, 3, 4, 2, 0, 1]
    assert visible_until_n.tolist() == [6, 6, 5, 3, 5, 5, 6, 8, 8]
    assert [p.tolist() for p in places] == [[0, 1, 2, 3], [0, 1, 6], [0, 1, 2, 4, 5], [0, 1, 2, 3], [7, 8]]


def test_in_a_tree_a_token_sees_its_own_path_alone(rng):
    sequences = [rng.integers(0, 3, rng.integers(1, 9)) for _ in range(40)]
    _, pos_n, visible_until_n, places = layout_row(sequences, share=True)
    sees = np.asarray(visible(np.asarray(visible_until_n)[None]))[0]
    for place_L in places:
        for depth, at in enumerate(place_L):
            assert np.flatnonzero(sees[at]).tolist() == place_L[: depth + 1].tolist() and pos_n[at] == depth


def test_rows_of_a_tree_hold_every_sequence_once_and_are_full(rng):
    prompts = [rng.integers(0, 1000, 20) for _ in range(10)]
    sequences = [
        np.concatenate([prompts[k % 10], rng.integers(1000, 2000, n)])
        for k, n in enumerate(np.clip(rng.lognormal(3.5, 0.5, 200), 8, 100).astype(int))
    ]
    rows, tokens = plan_tree(sequences, 256)
    assert sorted(i for row in rows for i in row) == list(range(200))
    laid = [len(layout_row([sequences[i] for i in row], share=True)[0]) for row in rows]
    assert sum(laid) == tokens and max(laid) <= 256
    assert tokens > 0.95 * 256 * len(rows)
    assert tokens < 0.9 * sum(map(len, sequences))


def test_the_narrowest_width_that_costs_little_is_chosen(rng):
    lengths = np.clip(rng.lognormal(np.log(204) - 0.125, 0.5, 500), 8, 759).astype(int)
    sequences = [np.arange(n) for n in lengths]
    plan = lambda sequences: lambda width: plan_rows(sequences, width, share=False)[0]
    width = choose_width(lengths.max(), plan(sequences))
    rows, tokens = plan_rows(sequences, width, share=False)
    assert width == 768 and 1 - tokens / (len(rows) * width) < 0.05
    # Alone in rows as long as itself a solution of 500 tokens wastes nothing, but the widths are few: 512, 768, 1024, ...
    assert choose_width(500, plan([np.arange(500)])) == 512
    assert choose_width(500, plan([np.arange(500)] * 3)) == 512
    # Two of 500 do not fit 768; three of 340 leave a third of 512 empty, and fill 1,024.
    assert choose_width(340, plan([np.arange(340)] * 9)) == 1024
    examples = [Example(s, np.array([0]), nan, nan, 1) for s in sequences]
    width = training_width(examples, share=False)  # filled in random order, so a little wider
    rows = plan_packs(lengths, [0] * 500, range(500), width, 0)
    assert width == 1024 and lengths.sum() > 0.95 * width * len(rows)


def test_units_keep_a_problem_together_and_fit_a_row(rng):
    prompts = [rng.integers(0, 1000, 5) for _ in range(6)]
    examples = []
    for k in range(60):
        ids = np.concatenate([prompts[k % 6], rng.integers(0, 4, rng.integers(3, 12))])
        examples.append(Example(ids, np.array([6, len(ids) - 1]), np.ones(2), np.full(2, nan), 5))
    groups = make_groups(examples, 40, 8, share=True)
    assert sorted(i for u in groups for i in u.indices) == list(range(60))
    for group in groups:
        ids_n, *_ = layout_row([examples[i].ids_L for i in group.indices], share=True)
        assert len(ids_n) == group.tokens <= 40 and 2 * len(group.indices) == group.marks <= 8
        assert len({i % 6 for i in group.indices}) == 1
    assert max(len(u.indices) for u in groups) == 4


def test_shared_prefixes_change_no_loss(tiny_model, rng):
    """The same solutions as trees and one after another: loss, accuracy and gradients, marks by their multiplicity."""
    prompts = [rng.integers(0, 64, 6) for _ in range(3)]
    examples = []
    for k in range(12):
        ids = np.concatenate([prompts[k % 3], rng.integers(0, 3, 6)]).astype(np.int32)
        label_T = rng.random(3).astype(np.float32)
        examples.append(Example(ids, np.array([7, 9, 11]), label_T, np.full(3, nan, np.float32), 6))
    examples.append(examples[0])

    def loss_and_gradient(share):
        row = pack_row(examples, 160, 40, "later", share)
        batch = {name: jnp.asarray(x)[None] for name, x in row.items()}
        cfg = LossConfig("prm", 1.5, 0.0)
        loss = lambda model: combine(loss_terms(model, batch, cfg), batch, cfg)[0]
        return row, *jax.value_and_grad(loss)(tiny_model)

    (tree, loss, gradient), (row, expected, expected_gradient) = map(loss_and_gradient, (True, False))
    assert (tree["visible_until"] < 160).sum() < 0.75 * (row["visible_until"] < 160).sum()
    assert loss == pytest.approx(float(expected), abs=1e-5)
    for mine, theirs in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected_gradient), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_the_shared_stream_holds_every_solution_once_an_epoch(rng):
    examples = random_examples(rng, 50)
    source = PackedRows(examples, 100, 64, 40, "uniform", 3, share=True)
    source[0]
    assert sorted(i for pack in source.packs for i in pack) == list(range(50))
    assert "padding" in source.summary()


def test_targets_of_each_objective():
    s = Solution("p", ("a", "b", "c"), labels=(1.0, 0.5, None), outcome=0.0)
    np.testing.assert_array_equal(targets(s, "prm"), np.array([1, 0.5, nan], np.float32))
    np.testing.assert_array_equal(targets(s, "orm"), np.array([nan, nan, 0], np.float32))
    np.testing.assert_array_equal(targets(s, "lm"), np.full(3, nan, np.float32))


def test_too_long_rows(tokenizer):
    rows = [
        Solution("1", ("2", "3", "4"), labels=(1.0, 1.0, 0.0), id="a.jsonl:1"),  # 7 tokens
        Solution("123456789", ("2",), labels=(1.0,), id="a.jsonl:2"),  # 11 tokens, the first step ends past 6
    ]
    make = lambda too_long: make_examples(rows, PLAIN, tokenizer, "prm", 6, too_long)
    with pytest.raises(InputError, match=r"a.jsonl:1: has 7 tokens, more than batch.tokens=6"):
        make("error")
    examples, counts = make("drop")
    assert not examples and counts["too_long_dropped"] == 2
    (example,), counts = make("cut")
    assert example.step_end_T.tolist() == [2, 4] and example.label_T.tolist() == [1, 1] and len(example.ids_L) == 5
    assert counts == {"too_long_dropped": 1, "too_long_cut": 1, "steps_cut": 1, "without_target_dropped": 0}
    with pytest.raises(InputError, match="batch.too_long: got 'shorten'"):
        make("shorten")


def test_cut_exactly_at_the_limit():
    e = Example(np.arange(8), np.array([3, 7]), np.ones(2), np.ones(2), 1)
    assert (
        len(truncate(e, 8).step_end_T) == 2
        and len(truncate(e, 7).step_end_T) == 1
        and len(truncate(e, 4).ids_L) == 4
        and truncate(e, 3) is None
    )


def test_solutions_without_a_target_are_counted(tokenizer):
    rows = [Solution("1", ("2",)), Solution("1", ("2",), labels=(None,)), Solution("1", ("2",), labels=(1.0,))]
    examples, counts = make_examples(rows, PLAIN, tokenizer, "prm", 9, "error")
    assert len(examples) == 1 and counts["without_target_dropped"] == 2
    assert len(make_examples(rows, PLAIN, tokenizer, "lm", 9, "error")[0]) == 3


def test_trees_longer_than_a_sliding_window_do_not_suit_its_model():
    cfg = dataclasses.replace(TINY, window=16)
    assert fits_window(TINY, 1000) and fits_window(cfg, 16) and not fits_window(cfg, 17)
