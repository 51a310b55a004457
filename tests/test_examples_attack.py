"""examples/attack.py and token_search.py: edits by hand, verdicts by the exact checker, and brute force."""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY
from flax import nnx

from examples import attack, token_search
from prm_jax import tasks
from prm_jax.api import Verifier
from prm_jax.data.sources import load
from prm_jax.data.units import probability
from prm_jax.formats import Format, encode, train_tokenizer
from prm_jax.heads import good_logit
from prm_jax.model import PRM
from prm_jax.scorers import CheckerScorer
from prm_jax.scoring import HeadScorer


def test_edits_by_hand():
    a, b = steps = ("3+5=1", "1*2=2")
    assert {name: [*edit(steps)] for name, edit in attack.EDITS.items()} == {
        "repeat": [(a, a, b), (a, b, b)],
        "drop": [(b,), (a,)],
        "swap": [(b, a)],
        "restate": [(a, "1=1", b), (a, b, "2=2")],
        "idle": [(a, "1+0=1", b), (a, b, "2+0=2")],
        "blank": [("3 + 5 = 1", "1 * 2 = 2")],
    }
    assert [*attack.TEXT_EDITS["rephrase"]((a,))] == [(a, f"In other words: {a}")]
    sound = {
        name: {attack.is_sound(tasks.CHAIN, "3 +5 *2 mod7?", new) for new in attack.EDITS[name](steps)}
        for name in attack.EDITS
    }
    assert {name for name, kept in sound.items() if kept == {True}} == {"restate", "blank"}


def test_the_exact_checker_cannot_be_attacked():
    checker = Verifier(CheckerScorer(lambda problem, steps: tasks.CHAIN.step_labels(problem, steps)))
    results = attack.attack(checker, attack.sample_task(80, 0, "solver"), attack.EDITS, 0)
    tables, before = results["edits"], results["before"]
    assert {table["sound_refused"] for table in [before, *tables.values()]} == {0}
    # What it accepts ends early: no line of it is wrong.
    assert tables["worst_wrong_line"]["unsound_accepted"] == before["unsound_accepted"]
    assert tables["worst"]["unsound_accepted"] > before["unsound_accepted"]
    assert tables["restate"]["kept"] == tables["restate"]["versions"]


def test_hardened_rows_are_the_tasks_with_edits_labelled_anew(tmp_path):
    data = attack.load_chain(samples="solver", solutions=64, test_solutions=16)
    attack.harden(tmp_path, data, 1.0, 0)
    rows, _ = load(tmp_path / "train.jsonl", "native", labels_required=True)
    edited = [s for s in rows if s.id.endswith("/edited")]
    assert len(rows) - len(edited) == 64 and len(edited) > 50
    for s in edited:
        labels = [y for y in s.labels if y is not None]
        assert labels == tasks.CHAIN.step_labels(s.problem, s.steps)[: len(labels)]
    assert len(load(tmp_path / "test.jsonl", "native")[0]) == 16


class Liker:
    """A scorer that likes long solutions."""

    name, unit, label_kind, objective = "liker", "logit", "correctness", "prm"

    def score(self, rows):
        return [np.full(len(steps), len(steps) - 3.5, np.float32) for _, steps in rows]


def test_the_worst_edit_is_that_of_brute_force():
    solutions = attack.sample_task(80, 0, "solver")
    results = attack.attack(Verifier(Liker(), "min"), solutions, attack.EDITS, 0)
    longest = []  # of each unsound solution, in the versions that are still unsound
    for (problem, steps), sound in zip(solutions.rows, solutions.is_sound_N, strict=True):
        if not sound:
            versions = [steps, *(new for edit in attack.EDITS.values() for new in edit(steps))]
            longest.append(max(len(x) for x in versions if not attack.is_sound(tasks.CHAIN, problem, x)))
    assert results["edits"]["worst"]["unsound_accepted"] == np.mean(np.array(longest) > 3.5)


@pytest.fixture(scope="module")
def verifier():
    tokenizer = train_tokenizer(["7 + 5 = 2"], 270)
    model = PRM(dataclasses.replace(TINY, vocab=272, head="binary"), rngs=nnx.Rngs(0))
    model.w_head[...] = model.w_head[...] * 100  # scores away from .5
    return Verifier(
        HeadScorer(
            model=model,
            tokenizer=tokenizer,
            format=Format("plain", "\n"),
            label_kind="correctness",
            name="tiny",
        ),
        "prod",
    )


@pytest.mark.parametrize("aggregator", ["prod", "last"])
def test_one_hot_gradient_is_that_of_a_sum_of_embeddings(verifier, aggregator):
    scorer = verifier.scorer
    (encoded,) = encode(scorer.format, scorer.tokenizer, [("7+5", ("7 + 5", "= 2", "so 2"))])
    L, (model, V) = len(encoded.ids_L), (scorer.model, 272)

    def score(mix_LV):
        """The score where each token's embedding is a weighted sum of all; one-hot: the solution's own."""
        own = jax.tree.map(lambda w: w, model)
        own.embed = nnx.Param(mix_LV @ model.embed[...])
        x_1LD = own(jnp.arange(L)[None], jnp.arange(L)[None], jnp.full((1, L), L - 1))
        log_p_T = jax.nn.log_sigmoid(good_logit(own.step_logits(x_1LD), "binary")[0, encoded.step_end_T])
        return log_p_T.sum() if aggregator == "prod" else log_p_T[-1]

    expected_LV = jax.grad(score)(jax.nn.one_hot(encoded.ids_L, V))
    gradient_LV = token_search.gradient_of(model, encoded, aggregator)
    np.testing.assert_allclose(gradient_LV[:L], expected_LV, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("randomly", [False, True])
def test_one_round_of_all_tokens_finds_the_best_single_replacement(verifier, monkeypatch, randomly):
    """Brute force over texts: each token of the vocabulary in the one place of the suffix."""
    for name, value in {"TOKENS": 1, "ROUNDS": 1, "TOP_K": 272}.items():
        monkeypatch.setattr(token_search, name, value)
    problem, steps, scorer = "7+5", ("7 + 5", "= 2", "so 2"), verifier.scorer
    p_T = verifier.score(problem, steps)
    t, best = int(np.argmin(p_T)), p_T.prod()
    plain_L = encode(scorer.format, scorer.tokenizer, [(problem, steps)])[0].ids_L
    for v in set(range(len(scorer.tokenizer))) - set(scorer.tokenizer.all_special_ids):
        text = scorer.tokenizer.decode([v])
        new = (*steps[:t], steps[t] + text, *steps[t + 1 :])
        ids_L = encode(scorer.format, scorer.tokenizer, [(problem, new)])[0].ids_L
        if len(ids_L) == len(plain_L) + 1 and text.isprintable() and "\ufffd" not in text and "7" not in text:
            best = max(best, verifier.score(problem, new).prod())
    rng = np.random.default_rng(0) if randomly else None
    search = token_search.Search(verifier, problem, steps)
    before, after, found = search.run(lambda _, x: "7" not in x[t][len(steps[t]) :], rng)
    assert before == pytest.approx(p_T.prod(), rel=1e-5) and after == pytest.approx(best, rel=1e-5)
    assert best > p_T.prod() + 0.01 and probability(
        scorer.score([(problem, found)])[0]
    ).prod() == pytest.approx(after)


def test_the_commands_print_their_tables(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [
        '{"problem": "2+2?", "steps": ["2+2=4"], "labels": [1]}',
        '{"problem": "2+3?", "steps": ["2+3=4"], "labels": [0]}',
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    monkeypatch.setattr(token_search, "ROUNDS", 1)
    for script in (attack, token_search):
        monkeypatch.setattr(sys, "argv", ["", "--checkpoint", "embedded_prm", "--input", "rows.jsonl"])
        script.main()
    out = capsys.readouterr().out
    assert "unsound_accepted" in out and "gradient - random" in out and (tmp_path / "attack.json").exists()
