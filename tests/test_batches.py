"""Packing: nothing lost, nothing doubled, the same stream from any position; too long rows reported."""

import dataclasses
import math
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY

from prm_jax import InputError, packing, visibility
from prm_jax.examples import STEP_TARGETS, TOKEN_TARGETS, Example, make_example, make_examples, truncate
from prm_jax.formats import Encoded, Format, encode, train_tokenizer
from prm_jax.packing import (
    TrainingRows,
    choose_width,
    eval_batches,
    layout_row,
    layout_score,
    layout_train,
    make_plan,
    may_share,
    pack_batch,
    plan_packs,
    plan_rows,
    train_batches,
    training_width,
)
from prm_jax.solutions import Solution, packed_solutions
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
        rows.append(Example(ids, marks, 2, {"label": label_T, "weight": np.ones(len(marks), np.float32)}))
    return rows


def test_pack_batch_by_hand():
    first = Solution("p", ("a", "b"), labels=(1.0, None), ratings=(1, None))
    a = make_example(Encoded(np.array([5, 6, 7]), np.array([1, 2]), 1), first, "prm", "uniform")
    b = make_example(
        Encoded(np.array([8, 9]), np.array([1]), 0), Solution("p", ("a",), (0.25,)), "prm", "uniform"
    )
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
    assert batch.keys() == {*ours, *STEP_TARGETS, *TOKEN_TARGETS}


def test_scoring_finds_its_values_where_training_puts_its_targets(rng):
    """One builder: rows laid out to be read hold a shared step once, rows to learn from once a solution."""
    rows = [[Encoded(np.array(s, np.int32), np.array([1, len(s) - 1]), 1) for s in TREE], []]
    train, *_ = layout_train(rows, 12, 16, share=True)
    batch, places, slots = layout_score(rows, 12, share=True)
    for name in ("ids", "pos", "visible_until"):
        np.testing.assert_array_equal(batch[name], train[name])
    assert batch["step_end"].tolist() == [
        [1, 3, 5, 6, 8, 0, 0, 0],
        [0] * 8,
    ]  # 12 // 16 is none: from 1 on, doubled
    assert [slot_T.tolist() for slot_T in slots[0]] == [[0, 1], [0, 3], [0, 2], [0, 1], [4, 4]] and slots[
        1
    ] == []
    assert [place_L.tolist() for place_L in places[0]][4] == [7, 8]
    read = [batch["step_end"][0, slot_T].tolist() for slot_T in slots[0]]
    assert [at for found in read for at in found] == train["step_end"][0, :10].tolist()


def test_plan_packs_first_fit_by_hand(monkeypatch):
    tokens, marks = np.array([6, 5, 4, 3, 2]), np.array([1, 1, 1, 1, 1])
    assert plan_packs(tokens, marks, [0, 1, 2, 3, 4], 10, 9) == [[0, 2], [1, 3, 4]]
    assert plan_packs(tokens, marks, [0, 1, 2, 3, 4], 10, 2) == [
        [0, 2],
        [1, 3],
        [4],
    ]  # mark slots bound it too
    monkeypatch.setattr(packing, "OPEN", 1)
    assert plan_packs(tokens, marks, [0, 1, 4, 3], 10, 9) == [[0], [1, 4, 3]]


def test_an_epoch_holds_every_solution_once_and_is_reshuffled(rng):
    examples = random_examples(rng, 200)
    source = TrainingRows(examples, make_plan(examples, 64), seed=3)
    source[0]
    first = source.ends[0]
    source[first]
    orders = [
        [i for pack in source.packs[a:b] for i in pack] for a, b in ((0, first), (first, source.ends[1]))
    ]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(200)) and orders[0] != orders[1]
    fill = sum(len(examples[i].ids_L) for i in orders[0]) / (64 * first)
    assert fill > 0.93
    assert source.epoch(0) == 0 and source.epoch(first) == 1 and 1 < source.epoch(first + 1) < 1.1


def test_stream_resumes_at_the_step_and_splits_over_processes(rng):
    examples = random_examples(rng, 50)
    make = lambda own, first: train_batches(
        TrainingRows(examples, make_plan(examples, 32), 7), 100, 4, own, first
    )
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
    """50 solutions of a, 10 of b, weights 1 and 3: 15 and 45 an epoch; each pass through a source holds all of it once."""
    examples = random_examples(rng, 60)
    plan = make_plan(examples, 40)
    make = lambda: TrainingRows(examples, plan, 7, {"a": (50, 1.0), "b": (10, 3.0)})
    source, of_b = make(), []
    orders = [source.order(epoch) for epoch in range(4)]
    for order in orders:
        assert len(order) == 60 and (order < 50).sum() == 15
        of_b += sorted(k for k in order if k >= 50)
    # The second source's 45 of an epoch are 4.5 passes, so two epochs hold 9 whole ones.
    assert sorted(of_b[:90]) == sorted([*range(50, 60)] * 9)
    assert (
        len({k for order in orders for k in order if k < 50}) == 50
        and len({k for o in orders[:3] for k in o if k < 50}) == 45
    )
    assert source.ends == []
    rows = [source[i] for i in range(30)]
    drawn = source.drawn(30)
    number = {id(e): k for k, e in enumerate(examples)}
    n_b = sum(number[id(e)] >= 50 for row in rows for e in row)
    n = sum(map(len, rows))
    assert (
        drawn["b"] == {"solutions": n_b, "share": n_b / n, "passes": n_b / 10}
        and drawn["a"]["solutions"] == n - n_b
    )
    whole, late = (list(train_batches(make(), 6, 4, range(4), first)) for first in (0, 4))
    for a, b in zip(whole[4:], late, strict=True):
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


def test_eval_batches_cover_everything_once(rng):
    examples = random_examples(rng, 77)
    order, batches = zip(*eval_batches(examples, 32, 8), strict=True)
    assert all(batch["ids"].shape == (8, 32) for batch in batches)
    found = np.concatenate([batch["label"].ravel() for batch in batches])
    expected = np.concatenate([e.targets["label"] for e in examples])
    np.testing.assert_array_equal(np.sort(found[~np.isnan(found)]), np.sort(expected))
    assert sorted(i for indices in order for i in indices) == list(range(77))
    tokens = sum((batch["visible_until"] < 32).sum() for batch in batches)
    assert tokens == sum(len(e.ids_L) for e in examples)


TREE = [  # sequences and what they share: 1 2 | 3 4, 1 2 | 3 | 5, 1 2 | 6, a repeat, and one that shares nothing
    [1, 2, 3, 4],
    [1, 2, 6],
    [1, 2, 3, 5, 5],
    [1, 2, 3, 4],
    [9, 2],
]


def test_the_steps_of_each_solution_are_found_in_a_batch(rng):
    """By brute force: labels and values that stand where the targets do come back whole, one pair a solution."""
    examples = random_examples(rng, 50)
    for indices, batch in eval_batches(examples, 40, 4):
        for i, (x_T, y_T) in zip(indices, packing.unpack_steps(batch, 2 * batch["label"]), strict=True):
            np.testing.assert_array_equal(y_T, examples[i].targets["label"])
            np.testing.assert_array_equal(x_T, 2 * y_T)


def test_a_prefix_tree_by_hand():
    (ids_n, pos_n, visible_until_n), places = layout_row([np.array(s) for s in TREE], share=True)
    assert ids_n.tolist() == [1, 2, 3, 4, 5, 5, 6, 9, 2]
    assert pos_n.tolist() == [0, 1, 2, 3, 3, 4, 2, 0, 1]
    assert visible_until_n.tolist() == [6, 6, 5, 3, 5, 5, 6, 8, 8]
    assert [p.tolist() for p in places] == [[0, 1, 2, 3], [0, 1, 6], [0, 1, 2, 4, 5], [0, 1, 2, 3], [7, 8]]


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
    plan = lambda sequences: lambda width: plan_rows(sequences, width, share=False)[0]
    width = choose_width(lengths.max(), plan(sequences))
    rows, tokens = plan_rows(sequences, width, share=False)
    assert width == 768 and 1 - tokens / (len(rows) * width) < 0.05
    # Alone in rows as long as itself a solution of 500 tokens wastes nothing, but the widths are few: 512, 768, 1024, ...
    assert choose_width(500, plan([np.arange(500)])) == 512
    assert choose_width(500, plan([np.arange(500)] * 3)) == 512
    # Two of 500 do not fit 768; three of 340 leave a third of 512 empty, and fill 1,024.
    assert choose_width(340, plan([np.arange(340)] * 9)) == 1024
    examples = [Encoded(s, np.array([0]), 1) for s in sequences]
    width = training_width(examples, share=False)  # filled in random order, so a little wider
    rows = plan_packs(lengths, [0] * 500, range(500), width, 0)
    assert width == 1024 and lengths.sum() > 0.95 * width * len(rows)


def test_units_keep_a_problem_together_and_fit_a_row(rng):
    prompts = [rng.integers(0, 1000, 5) for _ in range(6)]
    examples = []
    for k in range(60):
        ids = np.concatenate([prompts[k % 6], rng.integers(0, 4, rng.integers(3, 12))])
        examples.append(Encoded(ids, np.array([6, len(ids) - 1]), 5))
    plan = make_plan(examples, 40, share=True)
    groups = plan.groups
    assert sorted(i for group in groups for i in group.indices) == list(range(60))
    for group in groups:
        row_3n, _ = layout_row([examples[i].ids_L for i in group.indices], share=True)
        assert (
            row_3n.shape[1] == group.tokens <= 40 and 2 * len(group.indices) == group.steps <= plan.step_slots
        )
        assert len({i % 6 for i in group.indices}) == 1
    assert max(len(group.indices) for group in groups) > 4


def test_together_puts_solutions_of_a_problem_into_one_row(rng):
    prompts = [rng.integers(0, 1000, 5) for _ in range(6)]
    lengths = rng.integers(6, 12, 30)
    ids = [np.concatenate([prompts[k % 6], rng.integers(0, 4, n)]) for k, n in enumerate(lengths)]
    examples = [Example(x.astype(np.int32), np.array([6, len(x) - 1]), 5, {}) for x in ids]
    groups = make_plan(examples, 48, together=True).groups
    assert sorted(i for group in groups for i in group.indices) == list(range(30))
    for group in groups:
        assert (
            group.tokens == sum(len(ids[i]) for i in group.indices) <= 48
            and len({i % 6 for i in group.indices}) == 1
        )
    assert all(
        group.indices == sorted(group.indices) for group in groups
    )  # as they come: not the most alike together
    assert len(groups) < 15 and len(make_plan(examples, 48).groups) == 30
    # What a row says of its steps: whose they are, -1 where there is none.
    batch = pack_batch([[examples[i] for i in (0, 1, 6)]], 48, 8)
    assert batch["solution"].tolist() == [[0, 0, 1, 1, 2, 2, -1, -1]]
    assert batch["problem"].tolist() == [[0, 0, 1, 1, 0, 0, -1, -1]]


@pytest.mark.parametrize("name", ["bce", "pairwise", "pqm"])
def test_shared_prefixes_change_no_loss(tiny_model, rng, name):
    """The same solutions as trees and one after another: loss, accuracy and gradients, marks by their multiplicity."""
    prompts = [rng.integers(0, 64, 6) for _ in range(3)]
    examples = []
    for k in range(12):
        ids = np.concatenate([prompts[k % 3], rng.integers(0, 3, 6)]).astype(np.int32)
        solution = Solution("p", ("a", "b", "c"), tuple(rng.random(3)))
        examples.append(make_example(Encoded(ids, np.array([7, 9, 11]), 6), solution, "prm", "later"))
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


def test_the_shared_stream_holds_every_solution_once_an_epoch(rng):
    examples = random_examples(rng, 50)
    source = TrainingRows(examples, make_plan(examples, 64, share=True), 3)
    source[0]
    assert sorted(i for pack in source.packs for i in pack) == list(range(50))
    assert "padding" in source.summary()
    source, longest = TrainingRows(examples, make_plan(examples, 64), 3), max(len(e.ids_L) for e in examples)
    assert source.summary().endswith(
        f"; {source.ends[0]} rows an epoch, the longest solution {longest} tokens"
    )


def test_targets_of_each_objective():
    s = Solution("p", ("a", "b", "c"), labels=(1.0, 0.5, None), ratings=(1, 0, None), outcome=0.0)
    encoded = Encoded(np.arange(9), np.array([4, 6, 8]), 2)
    for objective, label_T, rating_T, weight_T in [
        ("prm", [1, 0.5, nan], [1, 0, nan], [2 / 3, 4 / 3, 0]),
        ("orm", [nan, nan, 0], [nan] * 3, [0, 0, 1]),
        ("lm", [nan] * 3, [nan] * 3, [0] * 3),
    ]:
        depth_T = make_example(encoded, s, objective, "later").targets["depth"]
        assert depth_T.tolist() == ([0, 1, 2] if objective == "prm" else [0, 0, 0])
        targets = make_example(encoded, s, objective, "later").targets
        np.testing.assert_array_equal(targets["label"], label_T)
        np.testing.assert_array_equal(targets["rating"], rating_T)
        np.testing.assert_array_equal(targets["weight"], np.array(weight_T, np.float32))
        assert targets["token_weight"].tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 1]
    cut = make_example(truncate(encoded, 7), s, "orm", "uniform")  # the outcome's place is cut off
    assert not cut.targets["weight"].any() and len(cut.targets["token_weight"]) == 7


def test_the_outcome_at_all_tokens_of_the_solution():
    """Cobbe et al. 2021: the tokens of the problem ask nothing."""
    s = Solution("p", ("a", "b"), labels=(1.0, 0.0), outcome=1.0)
    encoded = Encoded(np.arange(7), np.array([4, 6]), 2)
    example = make_example(encoded, s, "orm", "uniform", "tokens")
    assert example.step_end_T.tolist() == [2, 3, 4, 5, 6]
    assert example.targets["label"].tolist() == example.targets["weight"].tolist() == [1.0] * 5
    assert make_example(encoded, s, "prm", "uniform", "tokens").targets["label"].tolist() == [1.0, 0.0]


def test_an_unknown_scheme_of_step_weights_names_its_key(tokenizer):
    with pytest.raises(InputError, match="^batch.step_weights: got 'rising', expected uniform or later$"):
        make_examples([Solution("1", ("2",), (1.0,))], PLAIN, tokenizer, "prm", weights="rising")


@pytest.mark.parametrize("share", [False, True])
def test_a_run_is_planned_once(rng, monkeypatch, share):
    """Groups are made once, for the shape and for every epoch."""
    calls, make_groups = [], packing.make_groups
    monkeypatch.setattr(packing, "make_groups", lambda *a: calls.append(1) or make_groups(*a))
    examples = random_examples(rng, 50)
    source = TrainingRows(examples, make_plan(examples, 64, share), 3)
    source.summary(), next(train_batches(source, 30, 4, range(4))), source[100]
    assert len(calls) == 1


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
    assert (
        example.step_end_T.tolist() == [2, 4]
        and example.targets["label"].tolist() == [1, 1]
        and len(example.ids_L) == 5
    )
    assert counts == {"too_long_dropped": 1, "too_long_cut": 1, "steps_cut": 1, "without_target_dropped": 0}
    with pytest.raises(InputError, match="batch.too_long: got 'shorten'"):
        make("shorten")


def test_cut_exactly_at_the_limit():
    e = Encoded(np.arange(8), np.array([3, 7]), 1)
    assert [len(truncate(e, limit).step_end_T) for limit in (8, 7)] == [2, 1]
    assert len(truncate(e, 4).ids_L) == 4 and truncate(e, 3) is None


@pytest.mark.parametrize("objective, outcome_at", [("prm", "last"), ("orm", "tokens"), ("lm", "last")])
def test_kept_examples_are_those_of_their_solutions(tokenizer, monkeypatch, objective, outcome_at):
    """Examples are kept as bytes, made a few at a time; each is the same as by itself, in bits and types."""
    monkeypatch.setattr("prm_jax.examples.CHUNK", 2)
    labels, ratings = (1.0, None, 0.25), (1, None, -1)
    rows = [Solution(f"{i}+1", ("7", "5", "2"), labels, ratings, 1.0) for i in range(5)]
    examples, _ = make_examples(rows, PLAIN, tokenizer, objective, None, "error", "later", outcome_at)
    encoded = encode(PLAIN, tokenizer, [(s.problem, s.steps) for s in rows], end=objective == "lm")
    large = dataclasses.replace(encoded[0], ids_L=encoded[0].ids_L + (1 << 16))  # more than two bytes hold
    examples.append(make_example(large, rows[0], objective, "later", outcome_at))
    assert len(examples) == 6 and len(examples[1:] + examples[:1]) == 6
    for kept, e, s in zip(examples, [*encoded, large], [*rows, rows[0]], strict=True):
        expected = make_example(e, s, objective, "later", outcome_at)
        assert kept.start == expected.start and kept.targets.keys() == expected.targets.keys()
        pairs = [(kept.ids_L, expected.ids_L), (kept.step_end_T, expected.step_end_T)]
        pairs += [(x, expected.targets[name]) for name, x in kept.targets.items()]
        for a, b in pairs:
            assert a.dtype == b.dtype and a.tobytes() == b.tobytes()


def test_data_take_little_more_memory_than_their_bytes(tokenizer):
    rows = [
        Solution(f"Problem {i}", (f"7 + {i}", f"5 + {i}"), (1.0, 0.0), id=f"rows.jsonl:{i}")
        for i in range(1000)
    ]
    n_text = sum(len(s.problem) + sum(map(len, s.steps)) for s in rows)
    tracemalloc.start()
    try:
        solutions = packed_solutions(rows)
        assert tracemalloc.get_traced_memory()[0] < 1000 * 170 + n_text  # 430 each as objects
        before = tracemalloc.get_traced_memory()[0]
        examples, _ = make_examples(solutions, PLAIN, tokenizer, "prm")
        n_tokens = sum(len(e.ids_L) for e in examples)
        assert tracemalloc.get_traced_memory()[0] - before < 1000 * 300 + 2 * n_tokens  # 1,380 each as arrays
    finally:
        tracemalloc.stop()
    assert list(solutions) == rows


def test_solutions_without_a_target_are_counted(tokenizer):
    rows = [
        Solution("1", ("2",)),
        Solution("1", ("2",), labels=(None,)),
        Solution("1", ("2",), labels=(1.0,)),
    ]
    examples, counts = make_examples(rows, PLAIN, tokenizer, "prm", 9, "error")
    assert len(examples) == 1 and counts["without_target_dropped"] == 2
    assert len(make_examples(rows, PLAIN, tokenizer, "lm", 9, "error")[0]) == 3


def test_prefix_trees_suit_a_causal_model_within_its_window(monkeypatch):
    cfg = dataclasses.replace(TINY, window=16)
    assert may_share(TINY, 1000) and may_share(cfg, 16) and not may_share(cfg, 17)
    monkeypatch.setattr(visibility, "sees", lambda query, query_until, key, key_until: key <= query_until)
    assert not may_share(TINY, 1000)
