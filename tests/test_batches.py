"""Packing: nothing lost, nothing doubled, the same stream from any position; too long rows reported."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY

from prm_jax import InputError, packing, visibility
from prm_jax.checkpoints.tokenizer import train_tokenizer
from prm_jax.encoding import Encoded, encode
from prm_jax.examples import Example, make_example, make_examples, row_limit, truncate
from prm_jax.formats import Format
from prm_jax.packing import (
    TrainingRows,
    choose_width,
    eval_batches,
    layout_row,
    layout_score,
    layout_tokens,
    make_plan,
    may_share,
    pack_batch,
    plan_packs,
    plan_rows,
    saved_by_sharing,
    train_batches,
    training_width,
)
from prm_jax.solutions import Solution
from prm_jax.training import LossConfig, combine, loss_terms
from prm_jax.visibility import visible

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
        rows.append(Example(ids, marks, 2, label_T))
    return rows


def test_pack_batch_by_hand():
    first = Solution("p", ("a", "b"), labels=(1.0, None), ratings=(1, None))
    second = Solution("p", ("a",), (0.25,))
    a = make_example(Encoded(np.array([5, 6, 7]), np.array([1, 2]), 1), first, "prm")
    b = make_example(Encoded(np.array([8, 9]), np.array([1]), 0), second, "prm")
    batch = pack_batch([[a, b], []], 7, 4)
    assert batch["ids"].tolist() == [[5, 6, 7, 8, 9, 0, 0], [0] * 7]
    assert batch["pos"].tolist() == [[0, 1, 2, 0, 1, 0, 0], [0] * 7]
    assert batch["visible_until"].tolist() == [[2, 2, 2, 4, 4, 7, 7], [7] * 7]
    # of predicting the token itself: nothing predicts a problem, or the first token of a solution without one
    assert batch["token_weight"].tolist() == [[0, 1, 1, 0, 1, 0, 0], [0] * 7]
    assert batch["step_end"].tolist() == [[1, 2, 4, 0], [0] * 4]
    assert batch["weight"].tolist() == [[1, 0, 1, 0], [0] * 4]
    np.testing.assert_array_equal(batch["label"], np.array([[1, nan, 0.25, nan], [nan] * 4], np.float32))
    np.testing.assert_array_equal(batch["rating"], np.array([[1, nan, nan, nan], [nan] * 4], np.float32))
    ours = {"ids", "pos", "visible_until", "step_end", "solution", "problem"}
    assert batch.keys() == ours | {"label", "rating", "weight", "depth", "token_weight", "reference"}


def test_plan_packs_first_fit_by_hand(monkeypatch):
    tokens, marks = np.array([6, 5, 4, 3, 2]), np.array([1, 1, 1, 1, 1])
    assert plan_packs(tokens, marks, [0, 1, 2, 3, 4], 10, 9) == [[0, 2], [1, 3, 4]]
    assert plan_packs(tokens, marks, [0, 1, 2, 3, 4], 10, 2) == [[0, 2], [1, 3], [4]]  # so do mark slots
    monkeypatch.setattr(packing, "OPEN", 1)
    assert plan_packs(tokens, marks, [0, 1, 4, 3], 10, 9) == [[0], [1, 4, 3]]


def test_an_epoch_holds_every_solution_once_and_is_reshuffled(rng):
    examples = random_examples(rng, 200)
    for share in (False, True):
        source = TrainingRows(examples, make_plan(examples, 64, share), seed=3)
        source[0]
        first = source.ends[0]
        source[first]
        epochs = source.packs[:first], source.packs[first : source.ends[1]]
        orders = [list(itertools.chain(*packs)) for packs in epochs]
        assert sorted(orders[0]) == sorted(orders[1]) == list(range(200)) and orders[0] != orders[1]
        assert source.used(3) == sorted(itertools.chain(*source.packs[:3]))
        assert sum(len(examples[i].ids_L) for i in orders[0]) > 0.93 * 64 * first
        assert source.epoch(0) == 0 and source.epoch(first) == 1 and 1 < source.epoch(first + 1) < 1.1


def test_stream_resumes_at_the_step_and_splits_over_processes(rng):
    examples = random_examples(rng, 50)
    plan = make_plan(examples, 32)
    make = lambda own, first: train_batches(TrainingRows(examples, plan, 7), 100, 4, own, first)
    whole = list(make(range(4), 0))
    assert len(whole) == 100
    for first in (1, 17, 60):  # the last lies several epochs in
        for own in (range(4), [1, 3]):
            got = list(make(own, first))
            assert len(got) == 100 - first
            for mine, expected in zip(got, whole[first:], strict=True):
                for k in ("ids", "step_end", "label", "weight"):
                    np.testing.assert_array_equal(mine[k], expected[k][list(own)])


def test_a_mixture_is_drawn_by_weight_and_each_source_goes_round_whole(rng):
    """50 solutions of a, 10 of b, weights 1, 3: 15 and 45 an epoch; each pass through a source is whole."""
    examples = random_examples(rng, 60)
    plan = make_plan(examples, 40)
    make = lambda: TrainingRows(examples, plan, 7, {"a": (50, 1.0), "b": (10, 3.0)})
    source = make()
    orders = [source.order(epoch) for epoch in range(4)]
    assert all(len(order) == 60 and (order < 50).sum() == 15 for order in orders)
    # The second source's 45 of an epoch are 4.5 passes, so two epochs hold 9 whole ones.
    assert sorted(k for order in orders[:2] for k in order if k >= 50) == sorted([*range(50, 60)] * 9)
    assert len({k for order in orders[:3] for k in order if k < 50}) == 45
    tokens = sum(len(examples[k].ids_L) for k in orders[0])
    assert f" {1 - tokens / len(plan.rows(orders[0])) / 40:.1%} padding" in source.summary()
    whole, late = (list(train_batches(make(), 6, 4, range(4), first)) for first in (0, 4))
    for a, b in zip(whole[4:], late, strict=True):
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


def test_eval_batches_cover_everything_once(rng):
    examples = random_examples(rng, 77)
    batches = list(eval_batches(examples, 32, 8))
    assert all(batch["ids"].shape == (8, 32) for batch in batches)
    found = [pair for batch in batches for pair in packing.unpack_steps(batch, 2 * batch["label"])]
    for x_T, y_T in found:  # values that stand where targets do come back whole
        np.testing.assert_array_equal(x_T, 2 * y_T)
    labels = [e.label_T.tolist() for e in examples]
    assert sorted(map(str, labels)) == sorted(str(y_T.tolist()) for _, y_T in found)
    tokens = sum((batch["visible_until"] < 32).sum() for batch in batches)
    assert tokens == sum(len(e.ids_L) for e in examples)


def test_a_prefix_tree_by_hand():
    """1 2 | 3 4, 1 2 | 3 | 5, 1 2 | 6, a repeat, and one that shares nothing. Rows to read hold a shared step
    once, rows to learn from once a solution."""
    tree = [1, 2, 3, 4], [1, 2, 6], [1, 2, 3, 5, 5], [1, 2, 3, 4], [9, 2]
    rows = [[Example(np.array(s, np.int32), np.array([1, len(s) - 1]), 1) for s in tree], []]
    train = pack_batch(rows, 12, 16, share=True)
    _, places = layout_tokens(rows, 12, share=True)
    batch, slots = layout_score(rows, 12, share=True)
    assert batch["ids"][0].tolist() == [1, 2, 3, 4, 5, 5, 6, 9, 2, 0, 0, 0]
    assert batch["pos"][0].tolist() == [0, 1, 2, 3, 3, 4, 2, 0, 1, 0, 0, 0]
    assert batch["visible_until"][0].tolist() == [6, 6, 5, 3, 5, 5, 6, 8, 8, 12, 12, 12]
    expected = [[0, 1, 2, 3], [0, 1, 6], [0, 1, 2, 4, 5], [0, 1, 2, 3], [7, 8]]
    assert [place_L.tolist() for place_L in places[0]] == expected
    for name in ("ids", "pos", "visible_until"):
        np.testing.assert_array_equal(batch[name], train[name])
    # 12 // 16 is none: slots from 1 on, doubled
    assert batch["step_end"].tolist() == [[1, 3, 5, 6, 8, 0, 0, 0], [0] * 8]
    assert [slot_T.tolist() for slot_T in slots[0]] == [[0, 1], [0, 3], [0, 2], [0, 1], [4, 4]]
    read = [batch["step_end"][0, slot_T].tolist() for slot_T in slots[0]]
    assert list(itertools.chain(*read)) == train["step_end"][0, :10].tolist()


def test_in_a_tree_a_token_sees_its_own_path_alone(rng):
    sequences = [rng.integers(0, 3, rng.integers(1, 9)) for _ in range(40)]
    (_, pos_n, visible_until_n), places = layout_row(sequences, share=True)
    sees = np.asarray(visible(np.asarray(visible_until_n)[None]))[0]
    for place_L in places:
        for depth, at in enumerate(place_L):
            assert np.flatnonzero(sees[at]).tolist() == place_L[: depth + 1].tolist() and pos_n[at] == depth


def test_the_narrowest_width_that_costs_little_is_chosen(rng):
    lengths = np.clip(rng.lognormal(np.log(204) - 0.125, 0.5, 500), 8, 759).astype(int)
    sequences = [np.arange(n) for n in lengths]
    plan = lambda sequences: lambda width: plan_rows(sequences, width, share=False)
    width = choose_width(lengths.max(), plan(sequences))
    rows = plan_rows(sequences, width, share=False)
    assert width == 768 and 1 - lengths.sum() / (len(rows) * width) < 0.05
    assert choose_width(500, plan([np.arange(500)] * 3)) == 512  # two do not fit 768
    assert choose_width(340, plan([np.arange(340)] * 9)) == 1024  # which three fill
    examples = [Encoded(s, np.array([0]), 1) for s in sequences]
    width = training_width(examples, share=False)  # filled in random order, so a little wider
    rows = plan_packs(lengths, [0] * 500, range(500), width, 0)
    assert width == 1024 and lengths.sum() > 0.95 * width * len(rows)


@pytest.mark.parametrize("how", ["together", "share"])
def test_solutions_of_a_problem_come_into_one_row(rng, how):
    prompts = [rng.integers(0, 1000, 5) for _ in range(6)]
    lengths = rng.integers(6, 12, 30)
    ids = [np.concatenate([prompts[k % 6], rng.integers(0, 4, n)]) for k, n in enumerate(lengths)]
    examples = [Example(x.astype(np.int32), np.array([6, len(x) - 1]), 5) for x in ids]
    plan = make_plan(examples, 48, **{how: True})
    assert sorted(i for group in plan.groups for i in group.indices) == list(range(30))
    for indices, tokens, steps in plan.groups:
        row_3n, _ = layout_row([ids[i] for i in indices], how == "share")
        assert row_3n.shape[1] == tokens <= 48 and 2 * len(indices) == steps <= plan.step_slots
        assert len({i % 6 for i in indices}) == 1
        assert how == "share" or indices == sorted(indices)  # as they come: not the most alike together
    assert len(plan.groups) < 15 and len(make_plan(examples, 48).groups) == 30
    # A width that is chosen holds all solutions of a problem, unless they are many.
    few = [e for k, e in enumerate(examples) if k % 6 < 5]
    width = training_width(few, share=False, together=True)
    assert len(make_plan(few, width, together=True).groups) == 5 and training_width(few, share=False) < width
    assert len(make_plan(few, 32, together=True).groups) > 5
    # What a row says of its steps: whose they are, -1 where there is none.
    batch = pack_batch([[examples[i] for i in (0, 1, 6)]], 48, 8)
    assert batch["solution"].tolist() == [[0, 0, 1, 1, 2, 2, -1, -1]]
    assert batch["problem"].tolist() == [[0, 0, 1, 1, 0, 0, -1, -1]]


@pytest.mark.parametrize("name", ["bce", "pairwise", "pqm"])
def test_shared_prefixes_change_no_loss(tiny_model, rng, name):
    """The same solutions as trees and one after another: loss and gradients, marks by their multiplicity."""
    prompts = [rng.integers(0, 64, 6) for _ in range(3)]
    examples = []
    for k in range(12):
        ids = np.concatenate([prompts[k % 3], rng.integers(0, 3, 6)]).astype(np.int32)
        solution = Solution("p", ("a", "b", "c"), tuple(rng.random(3)))
        examples.append(make_example(Encoded(ids, np.array([7, 9, 11]), 6), solution, "prm"))
    examples.append(examples[0])

    def loss_and_gradient(share):
        batch = {name: jnp.asarray(x) for name, x in pack_batch([examples], 160, 40, share).items()}
        cfg = LossConfig("prm", name, 1.5 if name == "bce" else 1.0, 0.0)
        loss = lambda model: combine(loss_terms(model, batch, cfg), batch, cfg)[0]
        return batch, *jax.jit(jax.value_and_grad(loss))(tiny_model)

    (tree, loss, gradient), (row, expected, expected_gradient) = map(loss_and_gradient, (True, False))
    assert (tree["visible_until"] < 160).sum() < 0.75 * (row["visible_until"] < 160).sum()
    assert loss == pytest.approx(float(expected), abs=1e-5)
    for mine, theirs in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected_gradient), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_targets_of_each_objective():
    s = Solution("p", ("a", "b", "c"), labels=(1.0, 0.5, None), ratings=(1, 0, None), outcome=0.0)
    encoded = Encoded(np.arange(9), np.array([4, 6, 8]), 2)
    for objective, label_T, rating_T, weight_T in [
        ("prm", [1, 0.5, nan], [1, 0, nan], [1, 1, 0]),
        ("orm", [nan, nan, 0], [nan] * 3, [0, 0, 1]),
        ("lm", [nan] * 3, [nan] * 3, [0] * 3),
    ]:
        targets = pack_batch([[make_example(encoded, s, objective)]], 9, 3)
        assert targets["depth"].tolist() == [[0, 1, 2] if objective == "prm" else [0, 0, 0]]
        np.testing.assert_array_equal(targets["label"], [label_T])
        np.testing.assert_array_equal(targets["rating"], [rating_T])
        np.testing.assert_array_equal(targets["weight"], np.array([weight_T], np.float32))
        assert targets["token_weight"].tolist() == [[0, 0, 1, 1, 1, 1, 1, 1, 1]]
    everywhere = make_example(encoded, s, "orm", "tokens")  # but at the problem's tokens
    assert everywhere.step_end_T.tolist() == list(range(2, 9))
    targets = pack_batch([[everywhere]], 9, 7)
    assert targets["label"].tolist() == [[0] * 7] and targets["weight"].all()
    assert truncate(encoded, 4) is None
    assert [len(truncate(encoded, limit).ids_L) for limit in (9, 8, 5)] == [9, 7, 5]
    cut = make_example(truncate(encoded, 7), s, "orm")  # the outcome's place is cut off
    targets = pack_batch([[cut]], 7, 3)
    assert not targets["weight"].any() and len(targets["token_weight"][0]) == 7


def test_too_long_rows(tokenizer):
    rows = [
        Solution("1", ("2", "3", "4"), labels=(1.0, 1.0, 0.0), id="a.jsonl:1"),  # 7 tokens
        Solution("123456789", ("2",), labels=(1.0,), id="a.jsonl:2"),  # 11 tokens, the first step ends past 6
        Solution("1", ("2",), labels=(None,)),
        Solution("1", ("2",), labels=(1.0,)),
    ]
    make = lambda too_long: make_examples(rows, PLAIN, tokenizer, "prm", 6, too_long)
    with pytest.raises(InputError, match=r"^a.jsonl:1: "):
        make("error")
    examples, counts = make("drop")
    assert len(examples) == 1 and counts["too_long_dropped"] == 2
    (example, _), counts = make("cut")
    assert example.step_end_T.tolist() == [2, 4] and len(example.ids_L) == 5
    assert example.label_T.tolist() == [1, 1]
    expected = {"too_long_dropped": 1, "too_long_cut": 1, "steps_cut": 1, "without_target_dropped": 1}
    assert counts == expected
    rows = [Solution("1", ("2", "3", "4"), outcome=1.0), Solution("1", ("2",), outcome=1.0)]
    _, counts = make_examples(rows, PLAIN, tokenizer, "orm", 6, "cut")  # what is cut off holds the outcome
    assert counts == dict.fromkeys(expected, 0) | {"too_long_dropped": 1}


def test_a_few_very_long_solutions_do_not_make_all_rows_wide(tokenizer):
    rows = [Solution("1", ("2",) * (200 if i in (7, 70) else 3 + i % 60), id=str(i)) for i in range(400)]
    limit = lambda positions: row_limit(rows, PLAIN, tokenizer, positions, "prm")
    assert (limit(4096), limit(100)) == (128, 100)  # 125 of 400 tokens, up to a multiple of 128; the model's
    full = [Solution("12", ("2",) * 63)]  # 128 tokens, without the one that ends a text
    assert [row_limit(full, PLAIN, tokenizer, 4096, objective) for objective in ("prm", "lm")] == [128, 256]


def test_a_template_before_all_problems_saves_nothing_and_first_steps_do():
    examples = [Encoded(np.array([1, 2, 3, 9, k, 7]), np.array([3, 5]), 3) for k in (4, 5)]
    assert saved_by_sharing(examples) == 1 - 8 / 12
    assert saved_by_sharing([dataclasses.replace(e, start=5) for e in examples]) == 0


@pytest.mark.parametrize("objective, outcome_at", [("prm", "last"), ("orm", "tokens"), ("lm", "last")])
def test_kept_examples_are_those_of_their_solutions(tokenizer, monkeypatch, objective, outcome_at):
    """Examples are kept as bytes, made a few at a time; each is the same as by itself, in bits and types."""
    monkeypatch.setattr("prm_jax.examples.CHUNK", 2)
    labels, ratings = (1.0, None, 0.25), (1, None, -1)
    rows = [Solution(f"{i}+1", ("7", "5", "2"), labels, ratings, 1.0) for i in range(5)]
    examples, _ = make_examples(rows, PLAIN, tokenizer, objective, None, "error", outcome_at)
    encoded = encode(PLAIN, tokenizer, [(s.problem, s.steps) for s in rows], end=objective == "lm")
    large = dataclasses.replace(encoded[0], ids_L=encoded[0].ids_L + (1 << 16))  # more than two bytes hold
    examples.append(make_example(large, rows[0], objective, outcome_at))
    assert len(examples) == 6 and len(examples[1:] + examples[:1]) == 6
    for kept, e, s in zip(examples, [*encoded, large], [*rows, rows[0]], strict=True):
        expected = make_example(e, s, objective, outcome_at)
        assert vars(kept).keys() == vars(expected).keys()
        for name, a in vars(kept).items():
            b = getattr(expected, name)
            assert a == b if np.isscalar(b) else a.dtype == b.dtype and a.tobytes() == b.tobytes()


def test_prefix_trees_suit_a_causal_model_within_its_window(monkeypatch):
    cfg = dataclasses.replace(TINY, window=16)
    assert may_share(TINY, 1000) and may_share(cfg, 16) and not may_share(cfg, 17)
    monkeypatch.setattr(visibility, "sees", lambda query, query_until, key, key_until: key <= query_until)
    assert not may_share(TINY, 1000)
