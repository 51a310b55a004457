"""Votes: the majority vote, weighted votes, the vote among the k best, and their curves over the number of candidates.

Scores, masks, laws, gold and ties are as rerank.py says on top; every function is jitted, and works in a jit or vmap.

Dimension key
  P problems, N candidates of a problem
  n subset sizes asked for, k places taken by a vote (0..N), u quadrature nodes, x what a scan carries of a vote (2)
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax.rerank import HIGHEST, as_float, mask_scores, over_subsets, round_score, subset_sizes

EXACT_VOTE_SIZE = 128  # with more candidates the counts in `majority_curve` leave float32's range


@functools.partial(jax.jit, static_argnames=("ties",))
def vote(answer_PN, log_weight_PN=None, mask_PN=None, *, ties: str = "share"):
    """Law of the vote's winner over all N candidates, law_PN; `expectation(law_PN, gold_PN)` is its accuracy.

    answer_PN: group ids within 0..N-1, equal where answers are; -1 is no answer, which never wins. A candidate votes
    with exp(log_weight): nothing for the majority, a score for the weighted vote (probabilities add up, Uesato et al.
    2022), `top_k(score, k)` for the k best.
    ties "share": tied groups split the win, members of a group share it (their gold may differ); "first": of tied
    groups the one whose first member has the lowest index, represented by that member.
    """
    N = answer_PN.shape[-1]
    log_weight_PN = mask_scores(jnp.zeros(answer_PN.shape) if log_weight_PN is None else log_weight_PN, mask_PN)
    log_weight_PN = jnp.where(answer_PN >= 0, log_weight_PN, -jnp.inf)

    def one(answer_N, log_weight_N):
        can_win_N = log_weight_N != -jnp.inf
        top = jnp.max(log_weight_N, initial=jnp.finfo(log_weight_N.dtype).min)
        total = lambda x_N: jax.ops.segment_sum(x_N, jnp.where(can_win_N, answer_N, N), N + 1)[answer_N]
        total_N = jnp.where(can_win_N, round_score(total(jnp.exp(log_weight_N - top))), 0.0)
        wins_N = can_win_N & (total_N == total_N.max())
        match ties:
            case "share":
                law_N = jnp.where(wins_N, 1 / total(jnp.ones_like(total_N)), 0.0)
                return law_N / jnp.maximum(law_N.sum(), 1.0)
            case "first":
                return jnp.where(wins_N & (jnp.arange(N) == jnp.argmax(wins_N)), 1.0, 0.0)
            case _:
                raise ValueError(f'ties is {ties!r}, expected "share" or "first"')

    return jax.vmap(one)(answer_PN, log_weight_PN)


@jax.jit
def top_k(score_PN, k, mask_PN=None):
    """Log vote weights of the k best: 0 for them, -inf for the rest; add a score for a weighted vote among them.

    Candidates tied for the last places share these evenly, so that k votes are cast (or as many as can win).
    """
    score_PN = round_score(mask_scores(score_PN, mask_PN))
    k = jnp.minimum(k, score_PN.shape[-1])
    last_P1 = jnp.sort(score_PN, -1, descending=True)[..., k - 1][..., None]
    above_P1 = jnp.sum(score_PN > last_P1, -1, keepdims=True)
    tied_P1 = jnp.sum(score_PN == last_P1, -1, keepdims=True)
    log_weight_PN = jnp.where(score_PN == last_P1, jnp.log((k - above_P1) / tied_P1), 0.0)
    return jnp.where((score_PN >= last_P1) & (score_PN != -jnp.inf), log_weight_PN, -jnp.inf)


@jax.jit
def majority_curve(answer_PN, gold_PN, mask_PN=None, size_n=None):
    """Expected gold of the majority vote among n candidates, curve_Pn, exact over all n-subsets; ties share.

    Group g of m_g members wins with c of them where no other group has more and t others have as many, with chance
    1 / (t + 1) = ∫_0^1 u^t du. With z counting the places taken, the ways to do so are

      [z^n] ∫_0^1 C(m_g, c) z^c prod_{a != g} ( sum_{j<c} C(m_a, j) z^j + u C(m_a, c) z^c ) du.

    At a given c only groups of at least c members need a factor of their own; all other candidates fill places
    freely, (1 + z)^rest. These pairs (c, group) are as many as the candidates: the c-th member of a group stands for
    one. So a scan over candidates by rising c does it all: free_uk holds the product, won_uk the sum over g of gold_g
    times the product in which g wins. Gauss-Legendre nodes make the integral exact. N^4 operations per problem.

    answer_PN as in `vote`; a group's gold is the mean over its members. N <= 128; beyond, `vote_curve`.
    """
    N = answer_PN.shape[-1]
    if N > EXACT_VOTE_SIZE:
        raise ValueError(f"{N} candidates, expected at most {EXACT_VOTE_SIZE}: use vote_curve")
    gold_PN = as_float(gold_PN)
    dtype = gold_PN.dtype
    # Row m of Pascal's triangle over 2^(m/2): both ends of a row and all products stay within float32's range.
    choose_kk = np.array([[math.comb(m, j) * 2.0 ** (-m / 2) for j in range(N + 1)] for m in range(N + 1)])
    lag_kk = np.arange(N + 1) - np.arange(N + 1)[:, None]  # places that a group takes when k become k'
    ways_kkk = jnp.asarray(np.where(lag_kk >= 0, choose_kk[:, np.maximum(lag_kk, 0)], 0.0), dtype)
    choose_kk = jnp.asarray(choose_kk, dtype)
    node_u, quad_u = np.polynomial.legendre.leggauss((N + 1) // 2)
    u_u1, quad_u = jnp.asarray((node_u[:, None] + 1) / 2, dtype), jnp.asarray(quad_u / 2, dtype)

    def one(problem):
        answer_N, gold_N, valid_N = problem
        same_NN = (answer_N[:, None] == answer_N) & valid_N[:, None] & valid_N
        m_N = same_NN.sum(-1)
        gold_N = jnp.sum(jnp.where(same_NN, gold_N, 0.0), -1) / jnp.maximum(m_N, 1)
        # Without an answer N + 1: reached by no group, so without effect.
        c_N = jnp.where(valid_N, jnp.tril(same_NN).sum(-1), N + 1)
        rest_N = N - jnp.sum(m_N >= c_N[:, None], -1)

        def add_group(carry, pair):
            both_xuk, total_k, c_before = carry  # x: free, won
            c, m, gold, rest = pair
            total_k += jnp.where(c > c_before, quad_u @ both_xuk[1], 0.0)
            start_xuk = jnp.zeros_like(both_xuk).at[0].set(choose_kk[rest])
            both_xuk = jnp.where(c > c_before, start_xuk, both_xuk)
            below_kk = jnp.where(lag_kk < c, ways_kkk[m], 0.0)
            tied_xuk = jnp.where(np.arange(N + 1) >= c, jnp.roll(both_xuk, c, -1), 0.0)
            tied_xuk *= jnp.where(c <= m, choose_kk[m, jnp.minimum(c, N)], 0.0)
            both_xuk = jnp.einsum("xuk,kl->xul", both_xuk, below_kk, precision=HIGHEST) + u_u1 * tied_xuk
            return (both_xuk.at[1].add(gold * tied_xuk[0]), total_k, c), None

        zero_xuk = jnp.zeros((2, len(node_u), N + 1), dtype)
        pairs = jax.tree.map(lambda x_N: x_N[jnp.argsort(c_N)], (c_N, m_N, gold_N, rest_N))
        (both_xuk, total_k, _), _ = jax.lax.scan(add_group, (zero_xuk, zero_xuk[0, 0], 0), pairs)
        return (total_k + quad_u @ both_xuk[1]) / choose_kk[N]

    valid_PN = (answer_PN >= 0) if mask_PN is None else (answer_PN >= 0) & mask_PN
    curve_Pk = jax.lax.map(one, (answer_PN, gold_PN, valid_PN), batch_size=16)
    size_n = subset_sizes(size_n, N)
    return jnp.where((size_n >= 1) & (size_n <= N), curve_Pk[:, jnp.clip(size_n, 0, N)], jnp.nan)


@functools.partial(jax.jit, static_argnames=("draws", "ties"))
def vote_curve(
    key, answer_PN, gold_PN, log_weight_PN=None, mask_PN=None, size_n=None, *, draws: int = 400, ties: str = "share"
):
    """Expected gold of a (weighted) `vote` among n candidates, curve_Pn: the mean of `draws` random n-subsets.

    A subset keeps the candidates' order, on which ties="first" rests. The standard error of the curve's mean over
    problems is at most `subset_band(curve_Pn) / sqrt(draws)`.
    """
    log_weight_PN = mask_scores(jnp.zeros(answer_PN.shape) if log_weight_PN is None else log_weight_PN, mask_PN)
    law = lambda drawn_PN: vote(answer_PN, log_weight_PN, drawn_PN, ties=ties)
    return over_subsets(key, law, gold_PN, size_n, draws)
