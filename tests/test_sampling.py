"""Sampling: PyTorch's greedy tokens, the model's own law, samples that no batch changes, pools that survive a kill."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY
from flax import nnx
from test_hf import torch_model

from prm_jax import sampling
from prm_jax.checkpoints import hf, hf_config
from prm_jax.data.formats import Format, train_tokenizer
from prm_jax.model import PRM
from prm_jax.sampling import Policy, Sampling

PLAIN = Format("plain", separator="\n")
ANY = Sampling(1.0, None, 1.0, 12)
PROBLEMS = ["1 + 2?", "7 + 5 = 2 + 3 + 4?", "4?", "12 + 3?"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["7 + 5 = 2\n3 + 4\n"], 280)


@pytest.fixture(scope="module")
def policy(tokenizer):
    """Of random weights large enough that its distributions are far from uniform."""
    model = PRM(dataclasses.replace(TINY, vocab=280, head="none"), rngs=nnx.Rngs(0))
    model.embed[...] *= 20
    return Policy(model, tokenizer, PLAIN, "tiny", ANY, batch_rows=64, ends=(tokenizer.eos_token_id,))


def sampled(policy, batch_rows=64, n=5, stop="end", problems=PROBLEMS, **law):
    asked = dataclasses.replace(policy, sampling=dataclasses.replace(policy.sampling, **law), batch_rows=batch_rows)
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
    """Prompts of several lengths in one batch, Mistral's window shorter than any of them; both stop at the same token."""
    import torch

    theirs = torch_model(family=family, vocab_size=280, **FAMILIES[family])
    theirs.save_pretrained(tmp_path)
    model = hf.load(tmp_path, hf_config.model_config(hf_config.read_config(tmp_path), lm_head=True))
    problems = ["".join(chr(c) for c in rng.integers(33, 126, n)) for n in (5, 17, 9, 30)]
    greedy = Sampling(0.0, None, 1.0, 40)
    free = Policy(model, tokenizer, PLAIN, family, greedy, batch_rows=4, ends=(279,))
    end = int(free.extend([(problems[1], ())], 1, "end", jax.random.key(0))[0][0].ids_L[20])
    ours = dataclasses.replace(free, ends=(end,)).extend([(p, ()) for p in problems], 1, "end", jax.random.key(0))
    for problem, (found,) in zip(problems, ours, strict=True):
        ids = torch.tensor([tokenizer.encode(problem)])
        with torch.no_grad():
            whole = theirs.generate(ids, do_sample=False, max_new_tokens=40, eos_token_id=end, pad_token_id=0)
        assert found.ids_L.tolist() == whole[0, ids.shape[1] :].tolist()
        assert found.ended == ("end" if end in found.ids_L else "length")
    assert ours[1][0].ended == "end"


def expected_law(logit_V, temperature, top_k, top_p):
    """By sorting, in float64."""
    p_V = np.exp((logit_V - logit_V.max()).astype(np.float64) / temperature)
    order = np.argsort(-p_V, kind="stable")
    p_V[order[top_k or len(order) :]] = 0
    p_V /= p_V.sum()
    p_V[order[1:][np.cumsum(p_V[order])[:-1] >= top_p]] = 0
    return p_V / p_V.sum()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [
        (1.0, None, 1.0),
        (0.6, None, 1.0),
        (1.7, 9, 1.0),
        (1.0, None, 0.8),
        (0.9, 20, 0.7),
        (1.0, 1, 1.0),
        (1.0, None, 0.0),
    ],
)
def test_100_000_draws_have_the_law_by_chi_square(rng, temperature, top_k, top_p):
    from scipy.stats import chi2

    n, V, law = 100_000, 300, Sampling(temperature, top_k, top_p, 1)
    logit_V = (3 * rng.standard_normal(V)).astype(np.float32)
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(1), i))(jnp.arange(n))
    drawn_B = jax.jit(lambda keys: sampling.draw(jnp.tile(logit_V, (n, 1)), keys, law))(keys)
    p_V, count_V = expected_law(logit_V, temperature, top_k, top_p), np.bincount(drawn_B, minlength=V)
    assert count_V[p_V == 0].sum() == 0
    often_V = p_V * n >= 10
    expected = np.append(p_V[often_V], p_V[~often_V].sum()) * n
    found = np.append(count_V[often_V], count_V[~often_V].sum())
    expected, found = expected[expected > 0], found[expected > 0]
    statistic = ((found - expected) ** 2 / expected).sum()
    assert len(expected) == 1 or 1e-3 < chi2.sf(statistic, len(expected) - 1) < 1 - 1e-3


def test_samples_of_the_model_have_its_law_at_every_position(policy):
    """5,000 samples of one prompt: the mean of -log p is the entropy, position by position, and so is its variance's."""
    ((*samples,),), _ = sampled(policy, 256, 4000, problems=PROBLEMS[:1], max_tokens=2)
    first = np.array([c.ids_L[0] for c in samples])
    ids_L = policy.prefix_ids([(PROBLEMS[0], ())])[0]
    x_BLD = policy.model(ids_L[None], jnp.arange(len(ids_L))[None], jnp.full((1, len(ids_L)), len(ids_L) - 1))
    p_V = np.asarray(jax.nn.softmax(policy.model.vocab_logits(x_BLD)[0, -1]), np.float64)
    top = p_V.argsort()[-5:]
    np.testing.assert_allclose([(first == i).mean() for i in top], p_V[top], atol=4 * np.sqrt(0.25 / 4000))
    logp = np.array([c.logp_L[0] for c in samples])
    np.testing.assert_allclose(np.exp(logp), p_V[first], rtol=1e-4)


def test_log_probabilities_are_those_of_the_whole_forward_pass_whatever_the_law(policy):
    found, _ = sampled(policy, temperature=0.7, top_k=50, top_p=0.9, max_tokens=100)
    for problem, own in zip(PROBLEMS, found, strict=True):
        prefix_L = policy.prefix_ids([(problem, ())])[0]
        for c in own[:2]:
            ids_L = np.concatenate([prefix_L, c.ids_L])
            L = len(ids_L)
            x_BLD = policy.model(ids_L[None], jnp.arange(L)[None], jnp.full((1, L), L - 1))
            logp_L = policy.model.next_logprobs(x_BLD, jnp.asarray(ids_L)[None])[0, len(prefix_L) - 1 : -1]
            np.testing.assert_allclose(c.logp_L, logp_L, atol=1e-5)
            assert c.logp_L.dtype == np.float32 and len(c.logp_L) == len(c.ids_L)


def texts(found):
    return [[(c.ids_L.tolist(), c.ended) for c in own] for own in found]


def test_samples_depend_on_neither_batch_nor_neighbours(policy):
    whole, asked = sampled(policy, n=9)
    assert asked.stats.prompts == 4 and asked.stats.continuations == 36
    for rows in (1, 7):
        found, asked = sampled(policy, rows, n=9)
        assert texts(found) == texts(whole) and asked.stats.prompts == 4
    alone = policy.extend([(PROBLEMS[2], ())], 4, "end", jax.random.key(3), first=2)
    assert texts(alone)[0] == texts(whole)[2][:4]
    assert len({tuple(ids) for own in texts(whole) for ids, _ in own}) > 30  # and they differ among themselves
    twice = policy.extend([(PROBLEMS[0], ())] * 2, 9, "end", jax.random.key(3))
    assert texts(twice)[0] == texts(whole)[0] != texts(twice)[1]  # the same prompt, other keys
