"""The policy's own likelihood: kept in pools, a verifier by itself, the reference of best of n and of the
KL."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples.papers import overoptimisation
from prm_jax import InputError, rerank
from prm_jax.checkpoints.names import OpenOptions, open_verifier
from prm_jax.data.pools import Candidate, Problem, read_pool, with_scores
from prm_jax.data.steps import step_sums, token_steps
from prm_jax.encoding import encode
from prm_jax.evals import pool_metrics
from prm_jax.evals.pool_arrays import pool_arrays
from prm_jax.formats import Format
from prm_jax.generate.pools import draw_pool
from prm_jax.generate.sampling import Sampling, open_policy

PLAIN = Format("plain", separator="\n")
PROBLEMS = ["2 +3 *4 mod7?", "5 -1 min3 *6 mod7?"]
WEIGHT = 0.5


@pytest.fixture(scope="module")
def policy():
    return open_policy("embedded", "best", PLAIN, "float32", Sampling(1.0, None, 1.0, 80), 16)


@jax.jit
def next_logprobs(model, ids_BL):
    B, L = ids_BL.shape
    return model.next_logprobs(model(ids_BL, jnp.tile(jnp.arange(L), (B, 1)), jnp.full((B, L), L)), ids_BL)


def forced(policy, problem: str, steps: tuple, ends: bool) -> list[float]:
    """log p of each step by one forward pass over the text alone, the end of the text in the last."""
    (e,) = encode(PLAIN, policy.tokenizer, [(problem, steps)])
    ids = [*e.ids_L, *policy.eos_ids[:1]] if ends else list(e.ids_L)
    padded_L = np.pad(ids, (0, 128 - len(ids)))  # behind the text, so that one program serves all
    logp_L = np.asarray(next_logprobs(policy.model, padded_L[None]))[0, : len(ids) - 1]  # of tokens 1, 2, ...
    bounds = [e.start - 1, *e.step_end_T]
    sums = [logp_L[first:last].sum() for first, last in itertools.pairwise(bounds)]
    sums[-1] += logp_L[-1] if ends else 0.0
    return sums


def test_a_pool_keeps_log_p_of_each_step_as_teacher_forcing_has_it(policy, tmp_path):
    questions = [Problem(str(i), problem) for i, problem in enumerate(PROBLEMS)]
    draw_pool(tmp_path / "pool.jsonl", policy, questions, 6, 0, lambda ungraded: ungraded)
    for p in read_pool(tmp_path / "pool.jsonl"):
        for c in p.candidates:
            np.testing.assert_allclose(c.logp, forced(policy, p.problem, c.steps, c.finished), atol=1e-4)


def test_the_policy_is_a_verifier_by_the_probability_of_each_step(policy):
    rows = [
        (PROBLEMS[0], ("2+3=5", "5*4=6")),
        (PROBLEMS[1], ("5-1=4", "4min3=3", "3*6=4")),
        (PROBLEMS[0], ("2+3=5",)),
    ]
    for name, data in (("policy", {"policy": "embedded"}), ("policy:embedded", None)):
        scorer = open_verifier(name, OpenOptions(data=data))
        for (problem, texts), logit_T in zip(rows, scorer.score(rows), strict=True):
            logp_T = -np.logaddexp(0, -logit_T.astype(float))
            np.testing.assert_allclose(logp_T, forced(policy, problem, texts, False), atol=1e-4)
    with pytest.raises(InputError, match="^checkpoint: got 'policy'"):
        open_verifier("policy", OpenOptions())


def test_tokens_belong_to_the_step_that_they_end():
    texts = ["a", "b", "\n", "\n", " ", "c", "\nd", ".\n", ""]
    assert token_steps(PLAIN, texts) == [0, 0, 0, 1, 1, 1, 1, 2, 3]
    assert token_steps(PLAIN, ["\n", "a", "\n"]) == [0, 0, 0] and token_steps(PLAIN, []) == []
    assert step_sums(PLAIN, ["a", "\n", "b", "\n", ""], [1, 2, 4, 8, 16], "a\nb\n") == (3.0, 28.0)
    assert step_sums(PLAIN, ["a\nb", "\n"], [1, 2], "a\nb\n") is None  # a token of two steps
    assert token_steps(Format("p", separator="\n\n"), ["a", "\n", "\n", "b"]) == [0, 0, 0, 1]  # of two tokens


def candidate(text: str, logit: float, logp: float, correct: bool, answer: str) -> Candidate:
    """Of one-letter steps, all of one score and of one log p."""
    n = len(text)
    return Candidate(tuple(text), answer, correct, step_scores={"prm": (logit,) * n}, logp=(logp / n,) * n)


A = candidate("ab", 1.0, -1.0, True, "1")
B = candidate("c", 3.0, -6.0, False, "2")
C = candidate("de", 0.5, -0.5, False, "3")
D = candidate("f", -1.0, -2.0, True, "1")
UNIT = {"prm": "logit"}
POOL = [
    Problem("p", "x", "1", (A, B, A, C, D), scores_unit=UNIT),
    Problem("q", "y", "1", (B, B, D, A, C), scores_unit=UNIT),
]


def reward(c: Candidate) -> float:
    return -sum(np.logaddexp(0, -x) for x in c.step_scores["prm"])


def measured(pool, weight=WEIGHT):
    rules = pool_metrics.Rules("probability", "prod", "share", 20, policy_weight=weight)
    return pool_metrics.pool_results(pool_arrays(pool), ["prm", "policy"], rules, 0)


def test_best_of_n_with_the_policy_is_the_arg_max_of_its_law_over_distinct_texts():
    numbers = measured(POOL)["scorers"]["prm"]["prod"]

    def won(chosen):
        law = {c.steps: np.exp(sum(c.logp)) * np.exp(reward(c) / WEIGHT) for c in chosen}
        best = max(law, key=law.get)
        return next(c.correct for c in chosen if c.steps == best)

    for n in (1, 2, 4, 5):
        subsets = [[won(s) for s in itertools.combinations(p.candidates, n)] for p in POOL]
        expected = np.mean([np.mean(x) for x in subsets])
        assert numbers["with_policy"][str(n)] == pytest.approx(expected, abs=1e-6)
    assert numbers["with_policy"] != numbers["best_of_n"]


def test_reward_against_kl_equals_brute_force_over_candidates():
    curve = overoptimisation.reward_against_kl(pool_arrays(POOL), "prm")
    for k in (0, 20, 40, -1):
        beta, kl, accuracy = overoptimisation.BETAS[k], [], []
        for p in POOL:
            n = len(p.candidates)
            r = np.array([reward(c) for c in p.candidates])
            law = (np.isclose(r, r.max())) * 1.0 if beta == 0 else np.exp((r - r.max()) / beta)
            law /= law.sum()
            with np.errstate(divide="ignore", invalid="ignore"):
                kl.append(np.nansum(law * np.log(law * n)))
            accuracy.append(law @ [c.correct for c in p.candidates])
        assert curve["kl"][k] == pytest.approx(np.mean(kl), abs=1e-5), beta
        assert curve["accuracy"][k] == pytest.approx(np.mean(accuracy), abs=1e-5), beta


def test_a_pool_without_log_p_has_no_choice_with_the_policy_and_cut_texts_need_none():
    without = tuple(dataclasses.replace(c, logp=None) for c in (A, B))
    rules = pool_metrics.Rules("probability", "prod", "share", 9, WEIGHT)
    pool = [dataclasses.replace(POOL[0], candidates=without)]
    result = pool_metrics.pool_results(pool_arrays(pool), ["prm"], rules, 0)
    assert "with_policy" not in result["scorers"]["prm"]["prod"]
    cut = dataclasses.replace(D, logp=None, finished=False)
    pool = [dataclasses.replace(POOL[0], candidates=(A, B, A, cut))]
    arrays = pool_arrays(pool)
    assert arrays.logp_PN is not None and "policy" in arrays.lacking


def test_the_likelihood_of_another_model_is_no_taught_verifier():
    pool = with_scores(POOL, "policy_1", [[-1.0] * len(c.steps) for p in POOL for c in p.candidates])
    rules = pool_metrics.Rules("probability", "min", "share", 9, WEIGHT)
    result = pool_metrics.pool_results(pool_arrays(pool), ["policy_1"], rules, 0)
    assert result["headline"] == {"policy_1": "prod"} and result["lead"] is None


def test_the_arg_max_of_a_tilted_law_is_that_of_the_score_with_its_reference(rng):
    score_PN, log_ref_PN = rng.normal(size=(2, 6, 9))
    score_PN[0, 3] = -np.inf
    law_PN = rerank.reweight(score_PN, 0.3, np.exp(log_ref_PN)).weight_PN
    combined_PN = rerank.with_reference(score_PN, log_ref_PN, 0.3)
    assert law_PN.argmax(1).tolist() == combined_PN.argmax(1).tolist() and combined_PN[0, 3] == -np.inf
