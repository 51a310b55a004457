"""Sampling: PyTorch's greedy tokens, the model's own law, samples that no batch changes, pools that survive a
kill."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY, call, printed
from flax import nnx
from test_hf import torch_model

from prm_jax import InputError
from prm_jax.checkpoints import hf, hf_config
from prm_jax.checkpoints.tokenizer import train_tokenizer
from prm_jax.data.numbers import as_number
from prm_jax.data.pools import Candidate, iter_pool
from prm_jax.data.questions import make_candidate, read_questions
from prm_jax.data.writing import write_rows
from prm_jax.encoding import encode
from prm_jax.formats import Format, read_format
from prm_jax.generate import decoding, pools, sampling
from prm_jax.generate.sampling import Policy, Sampling
from prm_jax.model import PRM
from prm_jax.protocols import Continuation

PLAIN = Format("plain", separator="\n")
ANY = Sampling(1.0, None, 1.0, 12)
PROBLEMS = ["1 + 2?", "7 + 5 = 2 + 3 + 4?", "4?", "12 + 3?"]


def new_tokenizer():
    return train_tokenizer(["7 + 5 = 2\n3 + 4\n"], 280)


@pytest.fixture(scope="module")
def tokenizer():
    return new_tokenizer()


def random_model():
    """Of weights large enough that its distributions are far from uniform."""
    model = PRM(dataclasses.replace(TINY, vocab=280, head="none"), rngs=nnx.Rngs(0))
    model.embed[...] *= 20
    return model


@pytest.fixture(scope="module")
def policy(tokenizer):
    return Policy(
        random_model(), tokenizer, PLAIN, "tiny", ANY, batch_rows=64, eos_ids=(tokenizer.eos_token_id,)
    )


@jax.jit
def hidden(model, ids_BL):
    """What the model computes of whole rows; what stands behind a text changes nothing in it."""
    B, L = ids_BL.shape
    return model(ids_BL, jnp.tile(jnp.arange(L), (B, 1)), jnp.full((B, L), L - 1))


def sampled(policy, batch_rows=64, n=5, stop="end", problems=PROBLEMS, **law):
    law = dataclasses.replace(policy.sampling, **law)
    asked = dataclasses.replace(policy, sampling=law, batch_rows=batch_rows)
    asked.stats = sampling.SamplingStats()
    return asked.extend([(problem, ()) for problem in problems], n, stop, jax.random.key(3)), asked


FAMILIES = {
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": 4, "head_dim": 16},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_decoding_is_pytorchs_token_for_token(tmp_path, rng, tokenizer, family):
    """Prompts of several lengths in one batch, Mistral's window shorter than any; both stop at one token."""
    import torch

    theirs = torch_model(family=family, vocab_size=280, **FAMILIES[family])
    theirs.save_pretrained(tmp_path)
    model = hf.load(tmp_path, hf_config.model_config(hf_config.read_config(tmp_path), lm_head=True))
    problems = ["".join(chr(c) for c in rng.integers(33, 126, n)) for n in (5, 17, 9, 30)]
    greedy = Sampling(0.0, None, 1.0, 40)
    free = Policy(model, tokenizer, PLAIN, family, greedy, batch_rows=4, eos_ids=(279,))
    prefixes = [(p, ()) for p in problems]
    end = int(free.extend(prefixes, 1, "end", jax.random.key(0))[1][0].ids_L[20])
    ours = dataclasses.replace(free, eos_ids=(end,)).extend(prefixes, 1, "end", jax.random.key(0))
    for problem, (found,) in zip(problems, ours, strict=True):
        ids = torch.tensor([tokenizer.encode(problem)])
        with torch.no_grad():
            whole = theirs.generate(ids, do_sample=False, max_new_tokens=40, eos_token_id=end, pad_token_id=0)
        assert found.ids_L.tolist() == whole[0, ids.shape[1] :].tolist()
        assert found.finish_reason == ("eos" if end in found.ids_L else "length")
    assert ours[1][0].finish_reason == "eos"


def expected_law(logit_V, temperature, top_k, top_p):
    """By sorting, in float64."""
    p_V = np.exp((logit_V - logit_V.max()).astype(np.float64) / temperature)
    order = np.argsort(-p_V, kind="stable")
    p_V[order[top_k or len(order) :]] = 0
    p_V /= p_V.sum()
    p_V[order[1:][np.cumsum(p_V[order])[:-1] >= top_p]] = 0
    return p_V / p_V.sum()


@pytest.fixture(scope="module")
def uniform_B():
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(1), i))(jnp.arange(100_000))
    uniform_B = decoding.uniforms(keys, jnp.full(100_000, 5), 2)[1]
    assert uniform_B[7] == jax.random.uniform(jax.random.fold_in(keys[7], 6))
    return uniform_B


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, None, 1.0), (1.7, 9, 1.0), (1.0, None, 0.8), (0.9, 20, 0.7), (1.0, None, 0.0)],
)
def test_100_000_draws_have_the_law_by_chi_square(rng, uniform_B, temperature, top_k, top_p):
    from scipy.stats import chi2

    n, V, law = 100_000, 64, Sampling(temperature, top_k, top_p, 1)
    logit_V = (3 * rng.standard_normal(V)).astype(np.float32)
    draw = jax.jit(lambda uniform_B: decoding.draw_ids(jnp.tile(logit_V, (n, 1)), uniform_B, law))
    drawn_B = draw(uniform_B)
    p_V, count_V = expected_law(logit_V, temperature, top_k, top_p), np.bincount(drawn_B, minlength=V)
    assert count_V[p_V == 0].sum() == 0
    often_V = p_V * n >= 10
    expected = np.append(p_V[often_V], p_V[~often_V].sum()) * n
    found = np.append(count_V[often_V], count_V[~often_V].sum())
    expected, found = expected[expected > 0], found[expected > 0]
    statistic = ((found - expected) ** 2 / expected).sum()
    assert len(expected) == 1 or 1e-3 < chi2.sf(statistic, len(expected) - 1) < 1 - 1e-3


def test_samples_of_the_model_have_its_law_at_every_position(policy):
    """5,000 samples of one prompt: the mean of -log p is the entropy, position by position, and so is its
    variance's."""
    ((*samples,),), _ = sampled(policy, 256, 4000, problems=PROBLEMS[:1], max_tokens=2)
    first = np.array([c.ids_L[0] for c in samples])
    ids_L = policy.prefix_ids([(PROBLEMS[0], ())])[0]
    logit_V = policy.model.vocab_logits(hidden(policy.model, ids_L[None]))[0, -1]
    p_V = np.asarray(jax.nn.softmax(logit_V), np.float64)
    top = p_V.argsort()[-5:]
    np.testing.assert_allclose([(first == i).mean() for i in top], p_V[top], atol=4 * np.sqrt(0.25 / 4000))
    logp = np.array([c.logp_L[0] for c in samples])
    np.testing.assert_allclose(np.exp(logp), p_V[first], rtol=1e-4)


def test_log_probabilities_are_those_of_the_whole_forward_pass_whatever_the_law(policy):
    found, _ = sampled(policy, n=2, temperature=0.7, top_k=50, top_p=0.9, max_tokens=100)
    next_logprobs = jax.jit(lambda model, ids_BL: model.next_logprobs(hidden(model, ids_BL), ids_BL))
    for problem, own in zip(PROBLEMS, found, strict=True):
        prefix_L = policy.prefix_ids([(problem, ())])[0]
        for c in own:
            ids_L = np.concatenate([prefix_L, c.ids_L])
            padded_L = np.pad(ids_L, (0, 128 - len(ids_L)))  # one program serves all
            logp_L = np.asarray(next_logprobs(policy.model, padded_L[None]))[0, : len(ids_L) - 1]
            np.testing.assert_allclose(c.logp_L, logp_L[len(prefix_L) - 1 :], atol=1e-5)
            assert c.logp_L.dtype == np.float32 and len(c.logp_L) == len(c.ids_L)


def texts(found):
    return [[(c.ids_L.tolist(), c.finish_reason) for c in own] for own in found]


def test_samples_depend_on_neither_batch_nor_neighbours(policy):
    whole, asked = sampled(policy, n=9)
    assert asked.stats.prompts == 4 and asked.stats.continuations == 36
    found, asked = sampled(policy, 7, n=9)
    assert texts(found) == texts(whole) and asked.stats.prompts == 4
    alone = policy.extend([(PROBLEMS[2], ())], 4, "end", jax.random.key(3), numbers=[2])
    assert texts(alone)[0] == texts(whole)[2][:4]
    assert len({tuple(ids) for own in texts(whole) for ids, _ in own}) > 30  # they differ among themselves
    twice = policy.extend([(PROBLEMS[0], ())] * 2, 18, "end", jax.random.key(3))
    assert texts(twice)[0][:9] == texts(whole)[0] != texts(twice)[1][:9]  # the same prompt, other keys


def test_a_place_whose_sample_has_ended_takes_the_next(policy):
    """In batches that wait for their longest sample more than half of the places are idle."""
    often = dataclasses.replace(policy, eos_ids=tuple(range(8)))
    found, asked = sampled(often, 32, 400, max_tokens=100)
    lengths = np.array([len(c.ids_L) for own in found for c in own])
    waiting = sum(32 * batch.max() for batch in np.array_split(lengths, len(lengths) / 32))
    assert lengths.sum() < 0.5 * waiting and asked.stats.idle < 0.15
    alone, _ = sampled(often, 32, 32, problems=PROBLEMS[:1], max_tokens=100)
    assert texts(alone)[0] == texts(found)[0][:32]


def test_a_step_ends_with_any_token_that_holds_the_separator(policy, tokenizer):
    """The sign in two tokens, alone and with text before it; what was cut by length has none."""
    line_ends = [i for i in range(len(tokenizer)) if "\n" in tokenizer.decode([i])]
    assert policy.stops["step"].stop_V.nonzero()[0].tolist() == sorted([*line_ends, tokenizer.eos_token_id])
    law = dataclasses.replace(ANY, max_tokens=60)
    comma = dataclasses.replace(policy, format=Format("plain", separator="5"), sampling=law)
    drawn = comma.extend([(p, ()) for p in PROBLEMS], 20, "step", jax.random.key(0))
    found = [c for own in drawn for c in own]
    assert {c.finish_reason for c in found} == {"eos", "stop", "length"}
    for c in found:
        n = c.text.count("5")
        assert (c.finish_reason == "stop") == (n == 1) == c.text.endswith("5") and len(c.ids_L) <= 60
        ends = c.ids_L[-1] in policy.eos_ids
        assert (c.finish_reason == "length") == (len(c.ids_L) == 60 and n == 0 and not ends)
        assert (c.finish_reason == "eos") == ends and tokenizer.eos_token not in c.text
    odd = dataclasses.replace(policy, format=Format("odd", "\n=\n"))
    with pytest.raises(InputError, match="^format.separator: "):
        odd.extend([("4?", ())], 1, "step", jax.random.key(0))


def test_a_blank_line_is_no_step(tmp_path, tokenizer):
    """A model that writes a line end, a 4, a line end, ...: instruct models put blank lines between steps,
    and a search would ask for the next step forever."""
    import torch

    theirs = torch_model(vocab_size=280, hidden_size=288, num_hidden_layers=1)
    four, line_end = (tokenizer.encode(text)[0] for text in ("4", "\n"))
    with torch.no_grad():
        for name, p in theirs.named_parameters():
            p.fill_(float("norm" in name))
        theirs.model.embed_tokens.weight[:] = torch.eye(280, 288)
        theirs.lm_head.weight[line_end] = 1 - torch.eye(280, 288)[line_end]
        theirs.lm_head.weight[four, line_end] = 1
    theirs.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    lines = sampling.open_policy(
        tmp_path, "best", PLAIN, "float32", dataclasses.replace(ANY, temperature=0.0), 4
    )
    ((step,), (other,)) = lines.extend([("4", ()), ("4?", ("4",))], 1, "step", jax.random.key(0))
    assert (step.text, step.finish_reason) == ("\n4\n", "stop") and len(step.ids_L) == 3
    assert (other.text, other.finish_reason) == ("4\n", "stop")
    one = dataclasses.replace(lines, sampling=dataclasses.replace(lines.sampling, max_tokens=1))
    ((cut,),) = one.extend([("4", ())], 1, "step", jax.random.key(0))
    assert (cut.text, cut.finish_reason) == ("\n", "length")


def test_a_prefix_is_what_stands_before_the_next_step_in_training(policy, tokenizer):
    whole = encode(PLAIN, tokenizer, [("4 + 3?", ("4+3=7", "done"))])[0]
    prefixes = [("4 + 3?", ()), ("4 + 3?", ("4+3=7",)), ("4 + 3?", ("4+3=7", "done"))]
    none, one, two = policy.prefix_ids(prefixes)
    assert none.tolist() == whole.ids_L[: whole.start].tolist() == tokenizer.encode("4 + 3?")
    assert one.tolist() == whole.ids_L[: whole.step_end_T[0] + 1].tolist()
    assert two.tolist() == whole.ids_L.tolist()
    with pytest.raises(InputError, match="^format: "):
        dataclasses.replace(policy, format=read_format("qwen_prm"))
    with pytest.raises(InputError, match="^prefix ''"):
        policy.extend([("", ())], 1, "end", jax.random.key(0))


# Pools


@pytest.fixture
def questions(tmp_path):
    """Problems under each name, one without an answer, one without an id."""
    rows = [
        {"problem": "3 + 4?", "id": "a", "answer": "7"}, {"prompt": "5 + 1?", "answer": 6, "id": 9}, {"question": "2?"},
        *({"problem": f"{n} + 2?", "id": f"n{n}", "gold": str(n + 2)} for n in range(9)),
    ]  # fmt: skip
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def folder(policy, tmp_path_factory):
    """The policy as an export of ours."""
    folder = tmp_path_factory.mktemp("policy")
    notes = {"format": dataclasses.asdict(PLAIN), "objective": "lm", "label_kind": "unknown"}
    hf.save(folder, policy.model, policy.tokenizer, **notes)
    return folder


def arguments(folder, questions, to, *more):
    law = ["n=3", "sampling.max_tokens=20", "batch_rows=6", "seed=1"]
    return [f"checkpoint={folder}", f"input={questions}", f"hydra.run.dir={to}", *law, *more]


def test_the_command_writes_a_graded_pool_and_says_how(monkeypatch, tmp_path, folder, questions):
    asked = arguments(folder, questions, tmp_path / "a", "sampling.max_tokens=150")
    out = printed(pools.main, monkeypatch, *asked, cwd=tmp_path)
    pool = list(iter_pool(tmp_path / "a" / "pool.jsonl"))
    assert [p.id for p in pool] == ["a", "9", "3", *(f"n{n}" for n in range(9))]
    assert [p.answer for p in pool[:4]] == ["7", "6", None, "2"]
    assert {len(p.candidates) for p in pool} == {3}
    for p in pool:
        for c in p.candidates:
            known = p.answer is not None
            assert c.correct is (as_number(c.answer or "") == as_number(p.answer) if known else None)
    about = json.loads((tmp_path / "a" / "about.json").read_text())
    counts = about["counts"]
    assert counts["problems"] == 12 and counts["candidates"] == 36 and counts["ungraded"] == 3
    assert counts["unanswered"] == sum(c.answer is None for p in pool for c in p.candidates)
    assert counts["finished"] + counts["cut"] + counts["empty"] == 36
    cut = [c for p in pool for c in p.candidates if not c.finished]
    assert len(cut) == counts["cut"] + counts["empty"] > 0 < counts["finished"]
    assert (about["n"], about["seed"], about["finished"]) == (3, 1, True)
    assert about["sampling"]["max_tokens"] == 150
    assert len(about["weights"]) == 64 and about["policy"] == str(folder) and "jax" in about["versions"]
    assert "3 ungraded" in out and "36 continuations of 12 distinct prompts" in out

    message = call(pools.main, monkeypatch, "sampling", f"resume={tmp_path}/a", "n=4")
    assert message.startswith("error: resume: n: ")
    before = (tmp_path / "a" / "pool.jsonl").read_bytes()
    printed(pools.main, monkeypatch, f"resume={tmp_path}/a", cwd=tmp_path)
    assert (tmp_path / "a" / "pool.jsonl").read_bytes() == before


def test_problems_of_an_embedded_task_are_graded_by_its_checker(monkeypatch, tmp_path):
    file = tmp_path / "chains.jsonl"
    write_rows(file, [{"problem": "4 +5 *3 max2 -2 mod7?"}, {"problem": "1 max2 min3 max4 +1 mod7?"}])
    asked = (f"input={file}", "n=8", "checker=chain", "sampling.max_tokens=60", "batch_rows=16")
    asked += ("hydra.run.dir=a",)
    out = printed(pools.main, monkeypatch, *asked, cwd=tmp_path)
    pool = list(iter_pool(tmp_path / "a" / "pool.jsonl"))
    assert [p.answer for p in pool] == ["4", "5"] and "of 16 right by the task's checker" in out
    assert [p.task for p in pool] == ["chain", "chain"]
    right = [c.correct for p in pool for c in p.candidates]
    assert right == [c.answer == p.answer for p in pool for c in p.candidates] and any(right)
    file.write_text(json.dumps({"problem": "What is 2 + 3?"}) + "\n")
    message = call(pools.main, monkeypatch, "sampling", *asked[:-1], "hydra.run.dir=b")
    assert "What is 2 + 3?" in message


@pytest.mark.parametrize("kept", [0, 1, 100, 3000])
def test_a_pool_that_was_cut_anywhere_becomes_the_undisturbed_one(policy, questions, tmp_path, kept):
    """Of so many bytes of it; 8 problems are drawn at a time."""
    asked = dataclasses.replace(policy, batch_rows=6)
    draw = lambda path: pools.draw_pool(path, asked, read_questions(questions), 3, 1, lambda p: p)
    for name in "ab":
        (tmp_path / name).mkdir()
        counts = draw(tmp_path / name / "pool.jsonl")
        whole = (tmp_path / name / "pool.jsonl").read_bytes()
        (tmp_path / name / "pool.jsonl").write_bytes(whole[:kept])
        again = draw(tmp_path / name / "pool.jsonl")
        assert (tmp_path / name / "pool.jsonl").read_bytes() == whole
        assert again == counts | {"resumed": whole[:kept].count(b"\n")}


def test_a_solution_without_a_step_is_one_empty_step_unfinished():
    written = lambda text: make_candidate(PLAIN, Continuation(np.zeros(1), np.zeros(1), text, "eos"))
    candidate = written(" \n\n")
    assert candidate.steps == ("",) and not candidate.finished and candidate.answer is None
    assert written("1+2=3\n\nAnswer: 3\n") == Candidate(("1+2=3", "Answer: 3"), "3")


def test_the_ends_of_a_text_are_what_the_folder_says(policy, tmp_path):
    hf.save(tmp_path, policy.model, policy.tokenizer)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 7]}')
    opened = sampling.open_policy(tmp_path, "best", PLAIN, "float32", ANY, 4)
    assert opened.eos_ids == (policy.tokenizer.eos_token_id, 5, 7) and not opened.format.chat
