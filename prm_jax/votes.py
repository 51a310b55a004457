"""Votes: the majority vote, weighted votes, and their curves over the number of candidates.

Conventions are those at the top of rerank.py. answer_PN holds group ids within 0..N-1: equal answers share
one, and -1 is a candidate that cannot win (no answer, or cut). With ties "share" a winning group counts the
mean of its members' gold, with "first" that of its first one.

Dimension key: P problems, N candidates of a problem, n requested subset sizes, k places taken by a vote
(0..N), u quadrature nodes, x what a scan carries of a vote (2)"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax.kernels.sort import ranks
from prm_jax.rerank import TIES, all_or, as_float, expectation, rank_scores, round_score, subset_sizes

EXACT_VOTE_SIZE = 128  # with more candidates the counts in `majority_curve` leave float32's range
BLOCK = 256  # problems of a draw that are voted on at a time: they stay in a CPU's cache


@functools.partial(jax.jit, static_argnames="ties")
def vote(answer_PN, log_weight_PN=None, mask_PN=None, *, ties: str = "share"):
    """Distribution of the vote's winner, p_PN; `expectation(p_PN, gold_PN)` is its accuracy.

    A candidate votes with exp(log_weight): nothing for the majority, a score for the weighted vote (Uesato et
    al. 2022). ties "share": tied groups split the win, and so do a group's members; "first": the group of the
    lowest index has it, and of it the first member."""
    N = answer_PN.shape[-1]
    log_weight_PN = jnp.zeros(answer_PN.shape) if log_weight_PN is None else log_weight_PN
    log_weight_PN = rank_scores(log_weight_PN, rounded=False)
    answer_PN = answer_PN if mask_PN is None else jnp.where(mask_PN, answer_PN, -1)

    def one(answer_N, log_weight_N):
        votes_N = answer_N >= 0
        group_N = jnp.where(votes_N, answer_N, N)
        top = jnp.max(log_weight_N, where=votes_N, initial=jnp.finfo(log_weight_N.dtype).min)
        weight_N = jnp.where(votes_N, jnp.exp(log_weight_N - top), 0.0)

        def total(x_N):
            return jax.ops.segment_sum(x_N, group_N, N + 1)[group_N]

        total_N = round_score(total(weight_N))
        wins_N = votes_N & (total_N == jnp.max(total_N, where=votes_N, initial=0.0))
        if not TIES[ties]:
            return 1.0 * wins_N * (jnp.arange(N) == wins_N.argmax())
        p_N = jnp.where(wins_N, 1 / total(jnp.ones_like(total_N)), 0.0)
        return p_N / jnp.maximum(p_N.sum(), 1.0)

    return jax.vmap(one)(answer_PN, log_weight_PN)


@jax.jit
def majority_curve(answer_PN, gold_PN, mask_PN=None, size_n=None):
    """Expected gold of the majority vote among n candidates, curve_Pn, over all n-subsets; ties share.

    Group g of m_g members wins with c of them where no other group has more and t others have as many, with
    chance 1 / (t + 1) = ∫_0^1 u^t du. With z counting the places taken, the ways to do so are

      [z^n] ∫_0^1 C(m_g, c) z^c prod_{a != g} ( sum_{j<c} C(m_a, j) z^j + u C(m_a, c) z^c ) du.

    At a given c only groups of at least c members need a factor of their own; all other candidates fill
    places freely, (1 + z)^rest. These pairs (c, group) are as many as the candidates: the c-th member of a
    group stands for one. So a scan over candidates by rising c does it all (`_votes_of_size`). Gauss-Legendre
    nodes u make the integral exact.

    gold_g is the mean over the group. N^4 operations a problem; N <= 128, beyond which see `vote_curve`."""
    N = answer_PN.shape[-1]
    gold_PN = as_float(gold_PN)
    size_n = subset_sizes(size_n, N)
    # Row m of Pascal's triangle over 2^(m/2), so that products stay within float32's range.
    choose_kk = np.array([[math.comb(m, j) * 2.0 ** (-m / 2) for j in range(N + 1)] for m in range(N + 1)])

    def one(problem):
        answer_N, gold_N, votes_N, count = problem
        same_NN = (answer_N[:, None] == answer_N) & votes_N[:, None] & votes_N
        # Who has no vote stands for N + 1 members, which no group has, so without effect.
        c_N = jnp.where(votes_N, jnp.tril(same_NN).sum(-1), N + 1)
        m_N = same_NN.sum(-1)
        gold_N = jnp.where(same_NN, gold_N, 0.0).sum(-1) / jnp.maximum(m_N, 1)
        rest_N = count - jnp.sum(m_N >= c_N[:, None], -1)
        won_k = _votes_of_size(c_N, m_N, gold_N, rest_N, choose_kk)
        curve_k = won_k / jnp.asarray(choose_kk, won_k.dtype)[count]
        return jnp.where((size_n >= 1) & (size_n <= N), curve_k[jnp.clip(size_n, 0, count)], jnp.nan)

    mask_PN = all_or(mask_PN, answer_PN)
    problems = answer_PN, gold_PN, (answer_PN >= 0) & mask_PN, mask_PN.sum(-1)
    return jax.lax.map(one, problems, batch_size=16)


def _votes_of_size(c_N, m_N, gold_N, rest_N, choose_kk):
    """won_k: the sum over pairs (c, group of m members) of gold times the ways to draw k in which it wins.

    A scan by rising c. Among the pairs of one c, free_uk are the ways to draw k by the integral's node u in
    which nobody has more than c, and won_uk the sum of gold times those in which one of the groups so far
    wins. They are one array, both_xuk, so that a product serves both. With the next c they begin anew, and
    what was won is added up."""
    N, dtype = len(c_N), gold_N.dtype
    place_k = np.arange(N + 1)
    lag_kk = place_k - place_k[:, None]  # places that a group takes when k become k'
    ways_kkk = jnp.asarray(np.where(lag_kk >= 0, choose_kk[:, np.maximum(lag_kk, 0)], 0.0), dtype)
    choose_kk = jnp.asarray(choose_kk, dtype)
    node_u, quad_u = np.polynomial.legendre.leggauss((N + 1) // 2)
    u_u1, quad_u = jnp.asarray((node_u[:, None] + 1) / 2, dtype), jnp.asarray(quad_u / 2, dtype)

    def add_group(carry, pair):
        both_xuk, total_k, c_before = carry
        c, m, gold, rest = pair
        is_next = c > c_before
        total_k += jnp.where(is_next, quad_u @ both_xuk[1], 0.0)
        nobody_xuk = jnp.zeros_like(both_xuk).at[0].set(choose_kk[rest])
        both_xuk = jnp.where(is_next, nobody_xuk, both_xuk)
        below_kk = jnp.where(lag_kk < c, ways_kkk[m], 0.0)
        below_xuk = jnp.einsum("xuk,kl->xul", both_xuk, below_kk, precision="highest")
        as_many_xuk = jnp.where(place_k >= c, jnp.roll(both_xuk, c, -1), 0.0)
        as_many_xuk *= jnp.where(c <= m, choose_kk[m, jnp.minimum(c, N)], 0.0)
        both_xuk = below_xuk + u_u1 * as_many_xuk
        return (both_xuk.at[1].add(gold * as_many_xuk[0]), total_k, c), None

    zero_xuk = jnp.zeros((2, len(node_u), N + 1), dtype)
    pairs = jax.tree.map(lambda x_N: x_N[jnp.argsort(c_N)], (c_N, m_N, gold_N, rest_N))
    (both_xuk, total_k, _), _ = jax.lax.scan(add_group, (zero_xuk, zero_xuk[0, 0], 0), pairs)
    return total_k + quad_u @ both_xuk[1]


@functools.partial(jax.jit, static_argnames=("draws", "ties"))
def vote_curve(
    key, answer_PN, gold_PN, log_weight_PN=None, mask_PN=None, size_n=None, *, draws=400, ties="share"
):
    """Expected gold of a (weighted) `vote` among n candidates, curve_Pn: the mean of `draws` random
    n-subsets, whose standard error is at most .5 / sqrt(draws) a problem."""
    gold_PN, exists_PN = as_float(gold_PN), all_or(mask_PN, answer_PN)
    P, N = gold_PN.shape
    size_n = subset_sizes(size_n, N)
    index_N = jnp.arange(N, dtype=jnp.uint32)
    index_bits = jnp.uint32((1 << (N - 1).bit_length()) - 1)

    def value(answer_PN, gold_PN, log_weight_PN, drawn_PN):
        return expectation(vote(answer_PN, log_weight_PN, drawn_PN, ties=ties), gold_PN)

    problems = answer_PN, gold_PN, log_weight_PN, exists_PN
    all_P = value(*problems)  # of N candidates, whatever is drawn

    def of_problem(problem):
        bits_PN, all_P, (answer_PN, gold_PN, weight_PN, exists_PN) = jax.tree.map(lambda x: x[None], problem)
        # Random bits above the index in one integer: no two are equal.
        bits_PN = jnp.where(exists_PN, bits_PN >> 1, jnp.uint32(2**32 - 1)) & ~index_bits | index_N
        rank_PN = ranks(bits_PN)
        one_P = jnp.sum(gold_PN, -1, where=(rank_PN == 0) & exists_PN & (answer_PN >= 0))

        def of_size(n):
            which = (n > 1).astype(int) + (n >= N)  # one candidate and all of them need no vote
            args = answer_PN, gold_PN, weight_PN, (rank_PN < n) & exists_PN
            return jax.lax.switch(which, (lambda: one_P, lambda: value(*args), lambda: all_P))

        return jax.lax.map(of_size, size_n)[:, 0]

    def one_draw(total_Pn, k_draw):
        bits_PN = jax.random.bits(k_draw, (P, N), jnp.uint32)
        return total_Pn + jax.lax.map(of_problem, (bits_PN, all_P, problems), batch_size=BLOCK), None

    is_size_n = (size_n >= 1) & (size_n <= N)
    start_Pn = jnp.where(is_size_n, 0.0, jnp.nan) * jnp.ones((P, 1), gold_PN.dtype)
    return jax.lax.scan(one_draw, start_Pn, jax.random.split(key, draws))[0] / draws
