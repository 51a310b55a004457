"""Reranking: step scores to solution scores, KL-regularised reweighting, best-of-n. See votes.py for votes.

No I/O, no text. The entry points are jitted functions of arrays and work inside a caller's jit or vmap.

Dimension key
  P problems, N candidates of a problem, T steps of a candidate
  n requested subset sizes

Conventions
  score     A *log score* in nats: the log of a number in [0, 1], 0 the best; some aggregators give log-odds.
            -inf (a step of probability 0) is the worst score: where all eligible candidates have it they tie.
  mask      True where a candidate, or a step, exists; default: all do. Masked entries never affect a result:
            a problem with N_p candidates has C(N_p, n) subsets, and all N_p are taken where n is larger.
  eligible  False for a candidate that exists but cannot win: it was cut, or has no answer. It fills a place
            in a subset, below every eligible one, and its gold is 0 (OpenAI's protocol). Default: all are.
  p_PN      A distribution: weights over the N candidates; they sum to 1 where a problem has a candidate.
  gold      1 right, 0 wrong; or any other value of the winner.
  ties      Scores are compared after one rounding to 17 significant bits (`round_score`): scores equal up to
            rounding tie, products of different half-precision scores hardly ever do.
            "share": tied candidates split the win. "first": the lowest index (the order of a file) wins."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax.kernels.sort import best_first

HIGHEST = jax.lax.Precision.HIGHEST  # full float32 in products: an accelerator's default keeps 8 or 11 bits
TIES = {"share": True, "first": False}  # whether tied candidates share
# Below all scores: of probability 0, of who cannot win, of who does not exist. `round_score` keeps them.
ZERO, UNABLE, MISSING = -(2.0**127), -1.5 * 2.0**127, -1.75 * 2.0**127


class Reweighted(NamedTuple):
    weight_PN: jax.Array  # the distribution pi*
    kl_P: jax.Array  # KL(pi* || ref), nats
    log_z_P: jax.Array
    reward_P: jax.Array  # `mean_score` under pi*, nats


# Step scores to solution scores


class StepScores(NamedTuple):
    """What an aggregator sees: log p_t and log-odds of p_t, 0 where there is no step, and the options of
    `aggregate`.

    Candidates go last: reducing over T with N along the vector lanes is three times faster on CPU."""

    logp_PTN: jax.Array
    logit_PTN: jax.Array
    mask_PTN: jax.Array
    clip: float
    decay: float
    temperature: float

    @property
    def place_T1(self):
        return jnp.arange(self.mask_PTN.shape[-2])[:, None]

    @property
    def steps_PN(self):
        return jnp.maximum(self.mask_PTN.sum(-2), 1)


class Aggregator(NamedTuple):
    """score: StepScores -> score_PN; what it gives for a solution without steps does not count."""

    score: Callable
    is_log_probability: bool  # exp(score) lies in [0, 1]: it can be calibrated, and compared with a threshold


def _max(logp_PTN, where_PTN):
    return jnp.max(logp_PTN, -2, where=where_PTN, initial=-jnp.inf)


def _last(x):
    end_P1N = jnp.max(jnp.where(x.mask_PTN, x.place_T1, -1), -2, keepdims=True, initial=-1)
    return _max(x.logp_PTN, x.place_T1 == end_P1N)


def _sum_logit(x):
    bound = jnp.log1p(-x.clip) - jnp.log(x.clip)
    return jnp.sum(jnp.clip(x.logit_PTN, -bound, bound), -2, where=x.mask_PTN)


def _log_average(x, logw_PTN):
    """log of the mean of p over T with weights ∝ exp(logw), precise near p = 1 and near p = 0."""
    logp_PTN, mask_PTN = x.logp_PTN, x.mask_PTN
    lowest = jnp.finfo(logp_PTN.dtype).min
    logw_PTN = jnp.broadcast_to(logw_PTN, logp_PTN.shape).astype(logp_PTN.dtype)
    logw_PTN = logw_PTN - jnp.max(logw_PTN, -2, keepdims=True, where=mask_PTN, initial=lowest)
    w_PTN = jnp.where(mask_PTN, jnp.exp(logw_PTN), 0.0)
    total_PN = jnp.maximum(w_PTN.sum(-2), jnp.finfo(logp_PTN.dtype).tiny)
    bad_PN = jnp.sum(w_PTN * -jnp.expm1(logp_PTN), -2) / total_PN  # mean of 1 - p: precise where p is near 1
    top_PN = jnp.max(logp_PTN + logw_PTN, -2, where=mask_PTN, initial=lowest)
    ratio_PTN = jnp.where(mask_PTN, jnp.exp(logp_PTN + logw_PTN - top_PN[..., None, :]), 0.0)
    low_PN = top_PN + jnp.log(ratio_PTN.sum(-2) / total_PN)
    return jnp.where(bad_PN < 0.5, jnp.log1p(-jnp.minimum(bad_PN, 0.5)), low_PN)


def _softmin(x):
    return _log_average(x, -2.0 / x.temperature * jnp.exp(x.logp_PTN))


# The one list of aggregators: an entry here is offered, measured and drawn everywhere.
AGGREGATORS = {
    # log min_t p_t
    "min": Aggregator(lambda x: x.logp_PTN.min(-2, initial=0.0), True),
    # sum_t log p_t: the chance that every step is right (Lightman et al. 2023)
    "prod": Aggregator(lambda x: x.logp_PTN.sum(-2), True),
    # log 1/T sum_t p_t: arithmetic
    "mean": Aggregator(lambda x: _log_average(x, 0.0), True),
    # 1/T sum_t log p_t: geometric, the product without its bias against long solutions
    "gmean": Aggregator(lambda x: x.logp_PTN.sum(-2) / x.steps_PN, True),
    # log p_T
    "last": Aggregator(_last, True),
    # log max_t p_t
    "max": Aggregator(lambda x: _max(x.logp_PTN, x.mask_PTN), True),
    # sum_t logit p_t with p_t clipped to [clip, 1 - clip], as p_t = 1 has no finite logit
    "sum_logit": Aggregator(_sum_logit, False),
    # log sum_t w_t p_t, w_t ∝ decay^t, t = 0.. the place of the step, 0 < decay <= 1
    "weighted": Aggregator(lambda x: _log_average(x, x.place_T1 * jnp.log(x.decay)), True),
    # log sum_t w_t p_t, w = softmax(-r / temperature), r_t = 2 p_t - 1: PURE (2504.15275), whose sum_t w_t
    # r_t is 2 exp(score) - 1
    "softmin": Aggregator(_softmin, True),
}


@functools.partial(jax.jit, static_argnames=("aggregator", "unit"))
def aggregate(step_PNT, mask_PNT, aggregator: str, *, unit: str, clip=1e-6, decay=0.9, temperature=0.1):
    """One log score per solution, score_PN, from one number per step; p_t is the probability that step t is
    good.

    `aggregator` is a name in AGGREGATORS. With unit="logit" step_PNT are log-odds of p_t; with "logp" natural
    logs of stored p_t, where log 1 = 0 and log 0 = -inf are fine and nothing is clipped. Any leading axes. A
    solution without steps gets -inf."""
    mask_PTN = jnp.swapaxes(jnp.asarray(mask_PNT, bool), -1, -2)
    step_PTN = jnp.where(mask_PTN, jnp.swapaxes(as_float(step_PNT), -1, -2), 0.0)
    if unit == "logit":
        logp_PTN, logit_PTN = jax.nn.log_sigmoid(step_PTN), step_PTN
    elif unit == "logp":
        logp_PTN, logit_PTN = step_PTN, step_PTN - jnp.log(-jnp.expm1(step_PTN))
    logp_PTN = jnp.where(mask_PTN, logp_PTN, 0.0)
    steps = StepScores(logp_PTN, logit_PTN, mask_PTN, clip, decay, temperature)
    return jnp.where(mask_PTN.any(-2), AGGREGATORS[aggregator].score(steps), -jnp.inf)


@functools.partial(jax.jit, static_argnames=("names", "unit"))
def aggregate_all(step_PNT, mask_PNT, names=tuple(AGGREGATORS), *, unit: str, **options):
    """{aggregator: score_PN}, a few problems at a time: they stay in cache, twice as fast on CPU."""

    def one(problem):
        return {name: aggregate(*problem, name, unit=unit, **options) for name in names}

    return jax.lax.map(one, (step_PNT, mask_PNT), batch_size=8)


# Laws over a finite set of candidates, and their KL


@jax.jit
def expectation(p_PN, value_PN):
    """sum_i p_i value_i per problem; candidates of weight 0 do not count, even with an infinite value."""
    return jnp.sum(jnp.where(p_PN > 0, p_PN * value_PN, 0.0), -1)


@jax.jit
def mean_score(p_PN, score_PN, eligible_PN=None):
    """The mean score under a distribution, over the eligible candidates with a finite score, or nan."""
    counts_PN = jnp.isfinite(score_PN) if eligible_PN is None else jnp.isfinite(score_PN) & eligible_PN
    p_PN = jnp.where(counts_PN, p_PN, 0.0)
    return expectation(p_PN, score_PN) / p_PN.sum(-1)


@jax.jit
def with_reference(score_PN, log_ref_PN, beta):
    """score + beta log ref: whose arg max is that of reweight's law ref exp(score / beta).
    With the policy's log p best of n keeps to texts that it would write: blind spots are rare texts."""
    is_worst_PN = (score_PN == -jnp.inf) | (log_ref_PN == -jnp.inf)  # at beta = 0, too
    return jnp.where(is_worst_PN, -jnp.inf, score_PN + beta * log_ref_PN)


@jax.jit
def reweight(score_PN, beta, ref_PN=None, eligible_PN=None, mask_PN=None) -> Reweighted:
    """pi*_i = ref_i exp(score_i / beta) / Z, the distribution that maximises E[score] - beta KL(pi || ref).

    beta is one number; vmap over a grid, or jax.lax.map, which is faster on CPU. inf gives ref itself; 0
    gives the arg max, tied candidates sharing in proportion to ref. ref_PN: any weights >= 0, default
    uniform, normalised over the candidates that exist. Scores of -inf and ineligible candidates have weight
    only at beta = inf, or where no other candidate is in ref. KL = reward / beta - log Z where all scores are
    finite. At beta = 0 log Z is its limit: ±inf, or log ref(arg max) where the maximum is 0. A nan score
    makes its problem nan."""
    given_PN, exists_PN = as_float(score_PN), all_or(mask_PN, score_PN)
    score_PN = rank_scores(given_PN, eligible_PN, mask_PN, rounded=False)
    ref_PN = jnp.where(exists_PN, 1.0 if ref_PN is None else as_float(ref_PN), 0.0).astype(score_PN.dtype)
    total_P1 = ref_PN.sum(-1, keepdims=True)
    ref_PN = ref_PN / jnp.where(total_P1 > 0, total_P1, 1.0)
    compared_PN = jnp.where(beta == 0, round_score(score_PN), score_PN)
    best_P1 = jnp.max(compared_PN, -1, keepdims=True, where=ref_PN > 0, initial=-jnp.inf)
    gap_PN = jnp.where(ref_PN > 0, compared_PN - best_P1, 0.0)
    tilt_PN = jnp.where(gap_PN == 0, 0.0, gap_PN / beta)  # the best keep exp(0) where 0 / 0 would be nan
    mass_PN = ref_PN * jnp.exp(tilt_PN)
    mass_P1 = mass_PN.sum(-1, keepdims=True)
    weight_PN = mass_PN / jnp.where(mass_P1 > 0, mass_P1, 1.0)
    kl_P = jnp.maximum(expectation(weight_PN, tilt_PN - jnp.log(mass_P1)), 0.0)
    best_P1 = jnp.where(best_P1 <= ZERO, -jnp.inf, best_P1)
    log_z_P = jnp.squeeze(jnp.where(best_P1 == 0, 0.0, best_P1 / beta) + jnp.log(mass_P1), -1)
    return Reweighted(weight_PN, kl_P, log_z_P, mean_score(weight_PN, given_PN, eligible_PN))


# Best-of-n: exact expectations over all n-subsets of the candidates


@functools.partial(jax.jit, static_argnames=("ties",))
def best_of_n(score_PN, gold_PN, eligible_PN=None, mask_PN=None, size_n=None, *, ties: str = "share"):
    """Expected gold of the best-scored of n candidates, curve_Pn, the mean over all C(N, n) subsets. Of the
    score gold, 0 or 1, it is pass@n = 1 - C(N - c, n) / C(N, n), c of N right (Chen et al. 2021).

    E_n = sum_i C(N - i, n - 1) / C(N, n) gold_(i), sorted from the best, i = 1..N (Nakano et al. 2021,
    appendix I). Tied candidates share: each counts with the mean of its block. size_n: sizes within 1..N,
    default all; another size gives nan. A subset in which none can win counts 0. A nan score makes its
    problem nan."""
    score_PN = rank_scores(score_PN, eligible_PN, mask_PN)
    gold_PN = jnp.where(score_PN <= UNABLE, 0.0, jnp.where(jnp.isnan(score_PN), jnp.nan, as_float(gold_PN)))
    order_PN = best_first(score_PN)
    gold_PN = jnp.take_along_axis(gold_PN, order_PN, -1)
    if TIES[ties]:
        gold_PN = jax.vmap(_share)(gold_PN, jnp.take_along_axis(score_PN, order_PN, -1))
    N, dtype = gold_PN.shape[-1], gold_PN.dtype
    if mask_PN is None:
        return jnp.einsum("nN,PN->Pn", rank_weights(size_n, N, dtype), gold_PN, precision=HIGHEST)

    def one(problem):
        gold_N, count = problem
        return jnp.dot(rank_weights(size_n, N, dtype, count), gold_N, precision=HIGHEST)

    return jax.lax.map(one, (gold_PN, mask_PN.sum(-1)))


def rank_weights(size_n, N: int, dtype=jnp.float32, count=None):
    """weight_nN: the chance that the best of a random n-subset has rank r = 0..N-1, 0 the best of all.

    count: how many of the N ranks exist (default N); a larger size takes all of them. With N of them rank r
    is the best drawn if none of the r better ones is drawn, and it is itself:

      P(none of r is among n) = C(N - r, n) / C(N, n),    P(r | none of them) = n / (N - r).

    By log k! = high + low, where high is a multiple of the last bit of log N!, so that its sums are exact:
    right to 6e-8 in float32 at N = 1,860, where log k! as one number would be off by 5e-4."""
    size_n = subset_sizes(size_n, N)
    count = jnp.asarray(N if count is None else count)
    log_k = np.array([math.lgamma(k + 1) for k in range(N + 1)])  # log k!
    last_bit = np.spacing(log_k[-1].astype(dtype))
    high_k = np.round(log_k / last_bit) * last_bit
    left_N = count - jnp.arange(N)
    taken_n1 = jnp.clip(size_n, 0, count)[:, None]

    def log_none(part_k):
        part_k = jnp.asarray(part_k, dtype)
        return (part_k[left_N] - part_k[left_N - taken_n1]) - (part_k[count] - part_k[count - taken_n1])

    none_nN = jnp.exp(log_none(high_k) + log_none(log_k - high_k))
    drawn_nN = (taken_n1 / jnp.maximum(left_N, 1)).astype(dtype)
    weight_nN = jnp.where(left_N >= taken_n1, none_nN * drawn_nN, 0.0)  # else a better one is drawn for sure
    return jnp.where(((size_n >= 1) & (size_n <= N))[:, None], weight_nN, jnp.nan)


# Ranks, ties and arguments; votes.py takes them too


def round_score(score_PN):
    """Scores to 17 significant bits (within 8e-6 of themselves), -0 to 0: scores tie if these are equal."""
    score_PN = jax.lax.reduce_precision(score_PN, exponent_bits=8, mantissa_bits=16)
    return jnp.where(score_PN == 0, 0.0, score_PN)


def rank_scores(score_PN, eligible_PN=None, mask_PN=None, rounded=True):
    """Finite scores: the eligible, of them -inf last, above the ineligible, above the missing."""
    score_PN = jnp.maximum(as_float(score_PN), ZERO)
    score_PN = round_score(score_PN) if rounded else score_PN
    score_PN = score_PN if eligible_PN is None else jnp.where(eligible_PN, score_PN, UNABLE)
    return score_PN if mask_PN is None else jnp.where(mask_PN, score_PN, MISSING)


def _share(gold_N, score_N):
    """Mean of gold within each block of equal, sorted scores."""
    block_N = jnp.cumsum(jnp.pad((score_N[1:] != score_N[:-1]).astype(jnp.int32), (1, 0)))
    total_N2 = jnp.stack([gold_N, jnp.ones_like(gold_N)], -1)
    total_N2 = jax.ops.segment_sum(total_N2, block_N, len(gold_N), indices_are_sorted=True)
    return (total_N2[:, 0] / jnp.maximum(total_N2[:, 1], 1.0))[block_N]


def as_float(x):
    """x as floats of at least 32 bits; half precision would lose the small differences near p = 1."""
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(jnp.result_type(x, float), jnp.float32))


def all_or(mask_PN, like_PN):
    return jnp.ones(like_PN.shape, bool) if mask_PN is None else jnp.asarray(mask_PN)


def subset_sizes(size_n, N):
    """size_n as an array; None stands for all sizes 1..N."""
    return jnp.arange(1, N + 1) if size_n is None else jnp.asarray(size_n)


def solution_scores(logits: Sequence[np.ndarray], aggregator: str, rounded: bool = False) -> np.ndarray:
    """Log score of each solution from the log-odds of its steps, score_N; -inf without steps.

    `rounded` scores tie where they are equal. Arrays are padded to powers of two, because each shape is
    compiled."""
    N, T = (max(8, 1 << (n - 1).bit_length()) for n in (len(logits), max(map(len, logits), default=1)))
    logit_NT, mask_NT = np.zeros((N, T), np.float32), np.zeros((N, T), bool)
    for i, logit_T in enumerate(logits):
        logit_NT[i, : len(logit_T)] = logit_T
        mask_NT[i, : len(logit_T)] = True
    score_N = aggregate(logit_NT, mask_NT, aggregator, unit="logit")
    return np.asarray(round_score(score_N) if rounded else score_N)[: len(logits)]


def default_aggregator(scorer, purpose: str) -> str:
    """The aggregator where no key names one. An outcome model judges after the last step, and in a search a
    value at the last step has judged what can still come. Else a `rank` is by `min`, whatever the lengths,
    and a `search` compares prefixes of like length by `prod`, the chance that all their steps are right."""
    is_value = purpose == "search" and scorer.label_kind in ("value", "advantage")
    if scorer.objective == "orm" or is_value:
        return "last"
    return {"rank": "min", "search": "prod"}[purpose]
