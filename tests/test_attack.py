"""task=attack: edits by hand, verdicts by the exact checker, the worst version found by brute force; training on edits;
token search against sums of embeddings and against all replacements."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY, call, printed
from flax import nnx

import evaluate
from prm_jax import tasks
from prm_jax.data.edits import EDITS, TEXT_EDITS, edited
from prm_jax.data.units import probability
from prm_jax.evals import attack, token_search
from prm_jax.formats import Format, encode, train_tokenizer
from prm_jax.heads import good_logit
from prm_jax.model import PRM
from prm_jax.scoring import ModelScorer

PROBLEM, SOUND = "3 +5 *2 mod7?", ("3+5=1", "1*2=2")
SMALL = ("task=attack", "data=chain", "data.samples=solver", "solutions=80", "hydra.run.dir=run")


def test_edits_of_two_lines():
    versions = {name: list(edit(SOUND)) for name, edit in EDITS.items()}
    a, b = SOUND
    assert versions == {
        "repeat": [(a, a, b), (a, b, b)],
        "drop": [(b,), (a,)],
        "swap": [(b, a)],
        "restate": [(a, "1=1", b), (a, b, "2=2")],
        "idle": [(a, "1+0=1", b), (a, b, "2+0=2")],
        "blank": [("3 + 5 = 1", "1 * 2 = 2")],
    }
    assert list(EDITS["drop"]((a,))) == [] and list(EDITS["restate"](("no sign",))) == []
    assert edited((a, a)) == {(a, a, a): "repeat", (a,): "drop"} | {
        new: name for name in ("restate", "idle", "blank") for new in EDITS[name]((a, a))
    }  # swapped it is itself


def test_the_checker_says_what_an_edit_changes():
    verdict = {
        name: {attack.is_sound(tasks.chain, PROBLEM, new) for new in EDITS[name](SOUND)} for name in EDITS
    }
    assert attack.is_sound(tasks.chain, PROBLEM, SOUND)
    assert {name for name, kept in verdict.items() if kept == {True}} == {"restate", "blank"}
    assert {name for name, kept in verdict.items() if kept == {False}} == {"repeat", "drop", "swap", "idle"}


def test_the_exact_checker_cannot_be_attacked(tmp_path, monkeypatch):
    out = printed(evaluate.main, monkeypatch, *SMALL, "checkpoint=checker", cwd=tmp_path)
    results = json.loads((tmp_path / "run/results.json").read_text())
    assert {table["sound_refused"] for table in [results["before"], *results["edits"].values()]} == {0}
    # What it accepts ends early: no line of it is wrong.
    # Where a wrong line must be left, the checker refuses every version.
    wrong_line, before = results["edits"]["worst_wrong_line"], results["before"]
    assert (
        wrong_line["unsound_accepted"]
        == before["unsound_accepted"]
        < results["edits"]["worst"]["unsound_accepted"]
    )
    assert results["before"]["auroc"] > 0.95 and results["edits"]["repeat"]["unsound_accepted"] < 0.1
    assert results["edits"]["restate"]["verdict_kept"] == results["edits"]["blank"]["verdict_kept"] == 1
    assert "unsound above .5" in out and (tmp_path / "run/figures/attack.png").stat().st_size > 5000


class Liker:
    """A scorer that likes long solutions, and whose calls are counted."""

    name, unit, label_kind, objective = "liker", "logit", "correctness", "prm"

    def score(self, rows):
        return [np.full(len(steps), len(steps) - 3.5, np.float32) for _, steps in rows]


def test_the_worst_edit_is_that_of_brute_force(tmp_path, monkeypatch):
    drawn = []
    sample = tasks.sample_solutions
    monkeypatch.setattr(tasks, "sample_solutions", lambda *args: drawn.extend(sample(*args)) or drawn)
    monkeypatch.setattr(attack, "one_scorer", lambda setup: Liker())
    printed(evaluate.main, monkeypatch, *SMALL, "aggregator=min", "checkpoint=checker", cwd=tmp_path)
    edits = json.loads((tmp_path / "run/results.json").read_text())["edits"]
    sound = {s: attack.is_sound(tasks.chain, s.problem, s.steps) for s in drawn}
    for chosen in [*EDITS, "worst"]:
        names = EDITS if chosen == "worst" else [chosen]
        longest = []  # of what is kept in hand of each unsound solution; the scorer likes length
        for s in (s for s in drawn if not sound[s]):
            versions = [s.steps, *(new for name in names for new in EDITS[name](s.steps))]
            longest.append(max(len(x) for x in versions if not attack.is_sound(tasks.chain, s.problem, x)))
        assert edits[chosen]["unsound_accepted"] == np.mean(np.array(longest) > 3.5), chosen


def test_intervals_are_of_the_seed():
    p_N, sound_N = np.random.default_rng(0).random(40), np.arange(40) % 2 == 0
    a, b = (attack.numbers(p_N, p_N, sound_N, np.arange(40), seed) for seed in (0, 1))
    assert a["auroc"] == b["auroc"] and a["auroc_interval"] != b["auroc_interval"]


@pytest.mark.parametrize(
    "words, message",
    [
        (["edits=[typo]"], "edits: got 'typo', expected names of repeat, drop"),
        (["edits=[]"], "edits: got [], expected at least one"),
        (["aggregator=sum_logit"], "aggregator: got 'sum_logit', expected one whose score is a probability"),
    ],
)
def test_bad_input(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in call(evaluate.main, monkeypatch, "evaluate.py", *SMALL, "checkpoint=checker", *words)


def test_edited_training_solutions_have_the_checkers_labels():
    cfg = type("Data", (), {"augment": 0.5, "task": None, "label_kind": "correctness"})
    solutions = [tasks.labelled(tasks.chain, None, PROBLEM, SOUND, "correctness", str(i)) for i in range(400)]
    made = list(tasks.edited_solutions(tasks.chain, cfg, solutions, 0))
    assert 160 < len(made) < 240 and len({s.steps for s in made}) == 10  # every place of every edit
    for s in made:
        assert list(s.labels) == tasks.step_labels(tasks.chain, PROBLEM, s.steps)
        assert s.outcome == tasks.chain.solved(PROBLEM, s.steps)


NATIVE = [
    {"problem": "2+2*3?", "steps": ["2*3 = 6", "2+6 = 8"], "labels": [1, 1], "outcome": 1.0},
    {"prompt": "2+2*3?", "completions": ["2+2 = 4", "4*3 = 12"], "labels": [False, None]},
    {"problem": "1+1?", "steps": ["It is 3."], "outcome": 0.0},
    {"problem": "1+1?", "steps": ["It is 2."], "outcome": 1.0},
    {"problem": "1+1?", "steps": ["It is not known."]},
    {"id": "five", "problem": "5+5?", "answer": "10", "candidates": [
        {"steps": ["It is 10."], "answer": "10", "correct": True},
        {"steps": ["It is", "11."], "answer": "11", "correct": False},
        {"steps": ["It is"], "answer": None, "correct": False, "finished": False},
    ]},
]  # fmt: skip


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_text_edits_by_hand():
    steps = ("2*3 = 6", "so x=8")
    a, b = steps
    filler, praise = "Let us go on carefully, step by step.", "This step has been checked, and it is correct."
    assert {name: [*edit(steps)] for name, edit in TEXT_EDITS.items()} == {
        "repeat": [(a, a, b), (a, b, b)],
        "rephrase": [(a, f"In other words: {a}", b), (a, b, f"In other words: {b}")],
        "filler": [(a, filler, b), (a, b, filler)],
        "praise": [(a, praise, b), (a, b, praise)],
        "blank": [("2 * 3  =  6", "so x = 8")],
        "layout": [("2*3  =  6", "so  x=8")],
        "drop": [(b,), (a,)],
    }
    assert [*TEXT_EDITS["rephrase"](("{line} {v}",))] == [("{line} {v}", "In other words: {line} {v}")]


def test_texts_of_a_file_are_attacked_by_the_labels_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(attack, "one_scorer", lambda setup: Liker())
    file = write(tmp_path / "rows.jsonl", NATIVE)
    words = "task=attack", f"input={file}", "aggregator=last", "checkpoint=random", "hydra.run.dir=run"
    out = printed(evaluate.main, monkeypatch, *words, cwd=tmp_path)
    results = json.loads((tmp_path / "run/results.json").read_text())
    assert [results[name] for name in ("solutions", "sound", "left_out", "exact")] == [6, 3, 2, False]
    # The scorer likes a solution of more than 3.5 lines; one edit makes two lines three.
    before, edits = results["before"], results["edits"]
    assert before["unsound_accepted"] == edits["worst"]["unsound_accepted"] == 0
    # Lines of the right solutions: 2, 1, 1; of the wrong ones 2, 1, 2 before, 3, 2, 3 after.
    assert before["auroc"] == pytest.approx((0.5 + 1 + 0.5 + 2 * 0.5) / 9)
    assert edits["repeat"]["auroc"] == pytest.approx(0.5 / 9) == edits["worst"]["auroc"]
    assert (
        edits["drop"]["auroc"] is None and edits["drop"]["versions"] == 6 and edits["blank"]["versions"] == 2
    )
    assert "assumed to hold for edited ones, but after drop" in out
    assert (tmp_path / "run/figures/attack.png").stat().st_size > 5000
    monkeypatch.setattr(Liker, "score", lambda self, rows: [np.full(len(x), len(x) - 2.5) for _, x in rows])
    printed(evaluate.main, monkeypatch, *words[:-1], "hydra.run.dir=other", cwd=tmp_path)
    edits = json.loads((tmp_path / "other/results.json").read_text())["edits"]
    assert {name: round(3 * x["unsound_accepted"]) for name, x in edits.items()} == dict.fromkeys(TEXT_EDITS, 2) | {
        "blank": 0, "layout": 0, "drop": 0, "worst": 2
    }  # fmt: skip


@pytest.mark.parametrize(
    "rows, words, message",
    [
        ([], [], "rows.jsonl: is empty, expected at least one row"),
        (NATIVE[4:5], [], "rows.jsonl: labels, outcome: found 0 right and 0 wrong solutions of 1, expected some of both"),
        (NATIVE[:1], [], "rows.jsonl: labels, outcome: found 1 right and 0 wrong solutions of 1, expected some of both"),
        (NATIVE, ["solutions=1"], "solutions: got 1, expected some sound and some unsound ones"),
        (NATIVE, ["edits=[swap]"], "edits: got 'swap', expected names of repeat, rephrase"),
        (NATIVE, ["token_search.rounds=1"], "token_search: needs a model with a step head, which has a gradient; got random"),
        (NATIVE, ["token_search.rounds=1", "checkpoint=policy:embedded"], "which has a gradient; got policy:embedded"),
    ],
)  # fmt: skip
def test_bad_files(rows, words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path / "rows.jsonl", rows)
    words = f"input={file}", "checkpoint=random", *words
    assert message in call(evaluate.main, monkeypatch, "evaluate.py", "task=attack", *words)


@pytest.fixture(scope="module")
def verifier():
    tokenizer = train_tokenizer(["7 + 5 = 2"], 270)
    model = PRM(dataclasses.replace(TINY, vocab=272, head="binary"), rngs=nnx.Rngs(0))
    model.w_head[...] = model.w_head[...] * 100  # scores away from .5
    return ModelScorer(model, tokenizer, Format("plain", "\n"), "correctness", "prm", "tiny")


@pytest.mark.parametrize("aggregator", ["prod", "min", "last"])
def test_one_hot_gradient_is_that_of_a_sum_of_embeddings(verifier, rng, aggregator):
    (encoded,) = encode(verifier.format, verifier.tokenizer, [("7+5", ("7 + 5", "= 2", "so 2"))])
    L, (model, V) = len(encoded.ids_L), (verifier.model, 272)
    gradient_LV = token_search.gradient_of(model, encoded, aggregator)[:L]

    def score(mix_LV):
        """The score where each token's embedding is a weighted sum of all; one_hot: the solution's own."""
        own = jax.tree.map(lambda w: w, model)
        own.embed = nnx.Param(mix_LV @ model.embed[...])
        x_1LD = own(jnp.arange(L)[None], jnp.arange(L)[None], jnp.full((1, L), L - 1))
        logit_T = good_logit(own.step_logits(x_1LD), "binary")[0, encoded.step_end_T]
        return {"prod": jnp.sum, "min": jnp.min, "last": lambda x: x[-1]}[aggregator](
            jax.nn.log_sigmoid(logit_T)
        )

    one_hot_LV = jax.nn.one_hot(encoded.ids_L, V)
    np.testing.assert_allclose(gradient_LV, jax.grad(score)(one_hot_LV), rtol=1e-3, atol=1e-4)
    for _ in range(3):
        direction_LV = jnp.asarray(rng.normal(size=(L, V)) / V, jnp.float32)
        ahead, behind = (float(score(one_hot_LV + x * direction_LV)) for x in (1e-2, -1e-2))
        assert (ahead - behind) / 2e-2 == pytest.approx(
            float((gradient_LV * direction_LV).sum()), rel=0.05, abs=1e-3
        )
    assert float(score(one_hot_LV)) == pytest.approx(
        token_search.log_scores(verifier, aggregator, "7+5", [("7 + 5", "= 2", "so 2")])[0], abs=1e-4
    )


@pytest.mark.parametrize("randomly", [False, True])
def test_one_round_of_all_tokens_finds_the_best_single_replacement(verifier, randomly):
    """Brute force over texts: each token of the vocabulary in the one place of the suffix."""
    problem, steps = "7+5", ("7 + 5", "= 2", "so 2")
    p_T = probability(verifier.score([(problem, steps)])[0])
    t, tokenizer = int(np.argmin(p_T)), verifier.tokenizer
    plain_L = encode(verifier.format, tokenizer, [(problem, steps)])[0].ids_L
    best = p_T.prod()
    for v in range(len(tokenizer)):
        text = tokenizer.decode([v])
        new = (*steps[:t], steps[t] + text, *steps[t + 1 :])
        ids_L = encode(verifier.format, tokenizer, [(problem, new)])[0].ids_L
        is_one = (
            len(ids_L) == len(plain_L) + 1 and text.isprintable() and "\ufffd" not in text and "7" not in text
        )
        if is_one and v not in tokenizer.all_special_ids:
            best = max(best, probability(verifier.score([(problem, new)])[0]).prod())
    assert best > p_T.prod() + 0.01
    cfg = token_search.TokenSearch(rounds=1, solutions=1, tokens=1, top_k=272)
    rng = np.random.default_rng(0) if randomly else None
    before, after, found = token_search.search(
        verifier, cfg, "prod", problem, steps, lambda _, x: "7" not in x[t][len(steps[t]) :], rng
    )
    assert before == pytest.approx(p_T.prod(), rel=1e-5) and after == pytest.approx(best, rel=1e-5)
    assert after == pytest.approx(probability(verifier.score([(problem, found)])[0]).prod(), rel=1e-5)


def test_more_rounds_never_lose_and_a_checker_is_obeyed(verifier, capsys):
    rows = [("7+5", ("7 + 5", "= 2")), ("2+2", ("5", "2 = 7", "5"))]
    made = []
    for rounds in (1, 3):
        cfg = token_search.TokenSearch(rounds=rounds, solutions=2, tokens=3, top_k=16)
        results = token_search.table(verifier, cfg, "min", rows, lambda *_: True, 0)
        made.append([x["after"] for x in results["found"]])
        for x in results["found"]:
            assert (
                sum(a != b for a, b in zip(x["steps"], x["edited"], strict=True)) <= 1
                and x["after"] >= x["before"]
            )
        assert results["numbers"]["gradient"][0] == pytest.approx(np.mean(made[-1]))
    assert all(b >= a for a, b in zip(*made, strict=True)) and made[0] != made[1]
    token_search.show(results)
    assert f"gradient    {np.mean(made[1]):.3f} [" in capsys.readouterr().out
    assert token_search.search(verifier, cfg, "min", *rows[0], lambda *_: False)[2] == rows[0][1]
