"""The witness's published numbers, to 1e-5, and its plane against single calls and closed forms."""

import json
import math

import jax
import numpy as np
import pytest

from prm_jax import rerank, witness


def test_policies_and_winners_of_the_seed():
    got = witness.results()
    expected = {
        "outcome": [0.356434, 0.640206, 0.002328, 0.001032],
        "process": [0.994370, 0.000012, 0.005584, 0.000034],
        "hacked": [0.038597, 0.961184, 0.000217, 0.000001],
    }
    for verifier, policy_N in expected.items():
        np.testing.assert_allclose(got["policies"][verifier], policy_N, atol=1e-5)
    assert got["winners"] == {"outcome": "lucky_final", "process": "clean", "hacked": "lucky_final"}
    # expected score and KL, papers.md 10
    np.testing.assert_allclose(
        [got["reward"][v] for v in witness.VERIFIERS], [2.205, 4.880, 7.271], atol=1e-3
    )
    np.testing.assert_allclose([got["kl"][v] for v in witness.VERIFIERS], [0.729, 1.169, 1.337], atol=1e-3)
    assert json.loads(json.dumps(got)) == got


def test_scores_of_the_seed():
    np.testing.assert_allclose(witness.score("outcome"), [1.815, 2.442, -1.658, -1.992], atol=1e-3)
    np.testing.assert_allclose(witness.score("process"), [4.900, -2.811, 1.321, -2.005], atol=1e-3)
    np.testing.assert_allclose(witness.score("hacked"), [4.900, 7.368, 1.321, -2.005], atol=1e-3)
    np.testing.assert_allclose(witness.score("process", "prod"), [-0.167, -3.260, -1.587, -2.659], atol=1e-3)
    for how in set(rerank.AGGREGATORS) - {"sum_logit"}:  # one step: every rule is its log probability
        np.testing.assert_allclose(witness.score("outcome", how), np.log(witness.OUTCOME_P_N), rtol=1e-5)


def test_with_the_product_the_hacked_trace_wins_only_at_small_beta():
    """Its prior is lower: it overtakes clean below beta = difference of log products / log(.30 / .22), about .37."""
    law = witness.results("prod")
    np.testing.assert_allclose(law["policies"]["process"], [0.8691, 0.0077, 0.1067, 0.0165], atol=1e-4)
    np.testing.assert_allclose(law["policies"]["hacked"], [0.4981, 0.4313, 0.0612, 0.0094], atol=1e-4)
    assert law["winners"]["hacked"] == "clean"
    turn = math.log(0.98 * 0.97 / (0.93 * 0.91)) / math.log(0.30 / 0.22)
    assert turn == pytest.approx(0.37, abs=0.005)
    winner_b = witness.plane(np.array([0.99 * turn, 1.01 * turn]), np.array([1.0]), ("prod",)).winner_hbe[
        0, :, 0
    ]
    assert [witness.TRACES[i] for i in winner_b] == ["lucky_final", "clean"]


def test_plane_is_the_single_calls():
    beta_b, error_e = np.array([0.0, 0.2, witness.BETA, np.inf]), np.array([0.0, 0.5, 1.0])
    plane = witness.plane(beta_b, error_e)
    sizes = (len(rerank.AGGREGATORS), 4, 3)
    assert plane.weight_hbeN.shape == (*sizes, 4) and plane.winner_hbe.shape == sizes
    for h, how in enumerate(rerank.AGGREGATORS):
        for e, error in enumerate(error_e):
            score_N = witness.score("process", how, error * (np.arange(4) == witness.HACKED_TRACE))
            np.testing.assert_allclose(plane.score_heN[h, e], score_N, rtol=1e-5, atol=1e-6)
            for b, beta in enumerate(beta_b):
                law = witness.policy(score_N, beta)
                np.testing.assert_allclose(plane.weight_hbeN[h, b, e], law.weight_PN[0], atol=2e-6)
                np.testing.assert_allclose(plane.kl_hbe[h, b, e], law.kl_P[0], atol=5e-6)
    h = rerank.AGGREGATORS.index("sum_logit")
    got = witness.results()["policies"]
    np.testing.assert_allclose(plane.weight_hbeN[h, 2, 0], got["process"], atol=2e-6)
    np.testing.assert_allclose(plane.weight_hbeN[h, 2, 2], got["hacked"], atol=2e-6)
    np.testing.assert_allclose(plane.weight_hbeN[:, 3], np.broadcast_to(witness.REF_N, (9, 3, 4)), rtol=1e-5)
    np.testing.assert_allclose(plane.right_hbe, plane.weight_hbeN[..., :2].sum(-1), rtol=1e-5)
    np.testing.assert_allclose(plane.valid_hbe, plane.weight_hbeN[..., 0], rtol=1e-5)
    np.testing.assert_array_equal(plane.winner_hbe, plane.weight_hbeN.argmax(-1))


def test_injected_error_moves_the_winner_from_clean_to_lucky_final_at_most_once():
    plane = witness.plane(np.array([0.1, witness.BETA]), np.linspace(0, 1, 41), ("sum_logit", "min"))
    np.testing.assert_allclose(plane.weight_hbeN.sum(-1), 1, rtol=1e-5)
    winner_hbe = np.asarray(plane.winner_hbe)
    assert (winner_hbe[..., 0] == 0).all() and (np.diff(winner_hbe) >= 0).all()
    # log(.97 / .91) / .7 does not make up for the prior, log(.30 / .22); at beta .1 it does
    assert winner_hbe[..., -1].tolist() == [[1, 1], [1, 0]]
    assert (np.diff(np.asarray(plane.valid_hbe)) <= 1e-6).all()  # the error only takes mass from clean


def test_an_error_of_one_convinces_on_any_trace_and_leaves_the_others():
    """Its steps look exactly like HACKED_P_T."""
    for trace in range(4):
        with jax.enable_x64(True):
            logit_NT = witness.process_logits(np.arange(4) == trace)
        np.testing.assert_allclose(1 / (1 + np.exp(-logit_NT[trace])), witness.HACKED_P_T, rtol=1e-9)
        others = np.arange(4) != trace
        np.testing.assert_allclose(1 / (1 + np.exp(-logit_NT[others])), witness.STEP_P_NT[others], rtol=1e-9)
