"""Reranking: step scores to solution scores, KL-regularised reweighting, best-of-n, intervals. Votes: votes.py.

Pure functions of arrays: no I/O, no text. Every public function is jitted and works inside a caller's jit or vmap;
randomness enters as a key.

Dimension key
  P problems, N candidates of a problem, T steps of a candidate, S random draws
  n subset sizes asked for, X any trailing axes

Conventions
  score  A *log score* in nats: the log of a number in [0, 1], 0 the best (`sum_logit`: log odds, unbounded). -inf
         never wins, in any function: an empty solution, or one to which an aggregator gave probability 0.
  mask   True where data is real; what stands in masked places changes no bit of a result. A masked candidate
         (missing, unfinished, no answer) fills a place in a subset of n but never wins, OpenAI's protocol.
  law    Weights over the N candidates. They sum to 1, or to 0 where no candidate can win: such a problem counts 0.
  gold   1 right, 0 wrong; or any other value of the winner, its score for instance.
  ties   Scores are compared after one rounding to 17 significant bits (`round_score`): scores equal up to float32's
         rounding tie, products of different half-precision step scores do not.
         "share": tied candidates split the win evenly. "first": the lowest index wins (the order of a file decides).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

AGGREGATORS = ("min", "prod", "mean", "gmean", "last", "max", "sum_logit", "weighted", "softmin")
HIGHEST = jax.lax.Precision.HIGHEST  # full float32 in products: an accelerator's default keeps 8 or 11 bits


class Reweighted(NamedTuple):
    """weight_PN: the law pi*. kl_P: KL(pi* || ref), nats. log_z_P: log Z. reward_P: mean score under pi*, nats."""

    weight_PN: jax.Array
    kl_P: jax.Array
    log_z_P: jax.Array
    reward_P: jax.Array


class Interval(NamedTuple):
    """mean_X over problems, low_X and high_X of its percentile interval, p_X two-sided against a mean of 0."""

    mean_X: jax.Array
    low_X: jax.Array
    high_X: jax.Array
    p_X: jax.Array


# Step scores to solution scores


@functools.partial(jax.jit, static_argnames=("how", "unit"))
def aggregate(step_PNT, mask_PNT, how: str, *, unit: str, clip=1e-6, decay=0.9, temperature=0.1):
    """One log score per solution, score_PN, from one number per step; p_t is the probability that step t is good.

    unit "logit": step_PNT are logits of p_t. "logp": natural logs of stored p_t; log 1 = 0 and log 0 = -inf are fine
    and nothing is clipped. Any leading axes. A solution without steps gets -inf.

    min        log min_t p_t
    prod       sum_t log p_t              the chance that every step is right (Lightman et al. 2023)
    mean       log 1/T sum_t p_t          arithmetic
    gmean      1/T sum_t log p_t          geometric: the product without its bias against long solutions
    last, max  log p_T, log max_t p_t
    sum_logit  sum_t logit p_t            p_t clipped to [clip, 1 - clip], for p_t = 1 has no finite logit; clip=0 is
                                          the plain sum of finite logits
    weighted   log sum_t w_t p_t          w_t ∝ decay^t over the real steps, t = 0.. the place, 0 < decay <= 1
    softmin    log sum_t w_t p_t          w = softmax(-r / temperature), r_t = 2 p_t - 1: PURE (2504.15275), whose
                                          sum_t w_t r_t is 2 exp(score) - 1
    """
    # Candidates go last: reducing over T with N along the vector lanes is three times faster on CPU.
    mask_PTN = jnp.swapaxes(jnp.asarray(mask_PNT, bool), -1, -2)
    step_PTN = jnp.where(mask_PTN, jnp.swapaxes(as_float(step_PNT), -1, -2), 0.0)
    match unit:
        case "logit":
            logp_PTN = jax.nn.log_sigmoid(step_PTN)
        case "logp":
            logp_PTN = step_PTN
        case _:
            raise ValueError(f'unit is {unit!r}, expected "logit" or "logp"')
    place_T1 = jnp.arange(step_PTN.shape[-2])[:, None]
    size_PN = mask_PTN.sum(-2)
    match how:
        case "min":
            score_PN = jnp.min(logp_PTN, -2, where=mask_PTN, initial=jnp.inf)
        case "prod":
            score_PN = jnp.sum(logp_PTN, -2, where=mask_PTN)
        case "mean":
            score_PN = _log_average(logp_PTN, jnp.zeros_like(logp_PTN), mask_PTN)
        case "gmean":
            score_PN = jnp.sum(logp_PTN, -2, where=mask_PTN) / jnp.maximum(size_PN, 1)
        case "last":
            end_P1N = jnp.max(jnp.where(mask_PTN, place_T1, -1), -2, keepdims=True, initial=-1)
            score_PN = jnp.max(logp_PTN, -2, where=place_T1 == end_P1N, initial=-jnp.inf)
        case "max":
            score_PN = jnp.max(logp_PTN, -2, where=mask_PTN, initial=-jnp.inf)
        case "sum_logit":
            logit_PTN = step_PTN if unit == "logit" else logp_PTN - jnp.log(-jnp.expm1(logp_PTN))
            bound = jnp.log1p(-clip) - jnp.log(clip)
            score_PN = jnp.sum(jnp.clip(logit_PTN, -bound, bound), -2, where=mask_PTN)
        case "weighted":
            logw_T1 = (place_T1 * jnp.log(decay)).astype(logp_PTN.dtype)
            score_PN = _log_average(logp_PTN, jnp.broadcast_to(logw_T1, logp_PTN.shape), mask_PTN)
        case "softmin":
            score_PN = _log_average(logp_PTN, -2.0 / temperature * jnp.exp(logp_PTN), mask_PTN)
        case _:
            raise ValueError(f"unknown aggregator {how!r}, expected one of {', '.join(AGGREGATORS)}")
    return jnp.where(size_PN > 0, score_PN, -jnp.inf)


@functools.partial(jax.jit, static_argnames=("hows", "unit"))
def aggregate_all(
    step_PNT, mask_PNT, hows=AGGREGATORS, *, unit: str, clip=1e-6, decay=0.9, temperature=0.1
) -> dict[str, jax.Array]:
    """{how: score_PN} of several aggregators, a few problems at a time: they stay in cache, twice as fast on CPU."""
    options = {"unit": unit, "clip": clip, "decay": decay, "temperature": temperature}
    some = lambda pair: {how: aggregate(*pair, how, **options) for how in hows}
    return jax.lax.map(some, (step_PNT, mask_PNT), batch_size=8)


def _log_average(logp_PTN, logw_PTN, mask_PTN):
    """log of the mean of p over T with weights ∝ exp(logw), to full relative precision near p = 1 and near p = 0."""
    lowest = jnp.finfo(logp_PTN.dtype).min
    logw_PTN = logw_PTN - jnp.max(logw_PTN, -2, keepdims=True, where=mask_PTN, initial=lowest)
    w_PTN = jnp.where(mask_PTN, jnp.exp(logw_PTN), 0.0)
    total_PN = jnp.maximum(w_PTN.sum(-2), jnp.finfo(logp_PTN.dtype).tiny)
    bad_PN = jnp.sum(w_PTN * -jnp.expm1(logp_PTN), -2) / total_PN  # mean of 1 - p: precise where p is near 1
    top_PN = jnp.max(logp_PTN + logw_PTN, -2, where=mask_PTN, initial=lowest)
    ratio_PTN = jnp.where(mask_PTN, jnp.exp(logp_PTN + logw_PTN - top_PN[..., None, :]), 0.0)
    low_PN = top_PN + jnp.log(ratio_PTN.sum(-2) / total_PN)
    return jnp.where(bad_PN < 0.5, jnp.log1p(-jnp.minimum(bad_PN, 0.5)), low_PN)


# Laws over a finite set of candidates, and their KL


@jax.jit
def expectation(law_PN, value_PN):
    """sum_i law_i value_i per problem; what has weight 0 does not count, be its value infinite."""
    return jnp.sum(jnp.where(law_PN > 0, law_PN * value_PN, 0.0), -1)


@jax.jit
def kl_divergence(law_PN, ref_PN):
    """KL(law || ref) in nats per problem, of two normalised laws."""
    return expectation(law_PN, jnp.log(law_PN) - jnp.log(ref_PN))


@jax.jit
def reweight(score_PN, beta, ref_PN=None, mask_PN=None) -> Reweighted:
    """pi*_i = ref_i exp(score_i / beta) / Z: the law that maximises E[score] - beta KL(pi || ref), per problem.

    beta is one number; vmap over a grid, or jax.lax.map, which is faster on CPU. inf gives ref; 0 gives the arg max,
    tied candidates sharing in proportion to ref. ref_PN: any weights >= 0, default uniform; masked candidates leave
    ref, which is normalised over the others. A score of -inf has weight 0 at every beta, inf included, but stays in
    ref. KL = reward / beta - log Z. At beta = 0 log Z is its limit: ±inf, or log ref(arg max) where the maximum is 0.
    Where no candidate can win: weights and KL 0, log Z and reward -inf.
    """
    score_PN = mask_scores(score_PN, mask_PN)
    ref_PN = _reference(score_PN, ref_PN, mask_PN)
    eligible_PN = (ref_PN > 0) & (score_PN != -jnp.inf)
    compared_PN = jnp.where(beta == 0, round_score(score_PN), score_PN)
    best_P1 = jnp.max(compared_PN, -1, keepdims=True, where=eligible_PN, initial=-jnp.inf)
    best_P1 = jnp.where(best_P1 == -jnp.inf, 0.0, best_P1)
    gap_PN = jnp.where(eligible_PN, compared_PN - best_P1, 0.0)
    tilt_PN = jnp.where(gap_PN == 0, 0.0, gap_PN / beta)  # the best keep exp(0) where 0 / 0 would be nan
    mass_PN = jnp.where(eligible_PN, ref_PN * jnp.exp(tilt_PN), 0.0)
    mass_P1 = mass_PN.sum(-1, keepdims=True)
    weight_PN = mass_PN / jnp.where(mass_P1 > 0, mass_P1, 1.0)
    kl_P = jnp.maximum(expectation(weight_PN, tilt_PN - jnp.log(mass_P1)), 0.0)
    log_z_P = jnp.squeeze(jnp.where(best_P1 == 0, 0.0, best_P1 / beta) + jnp.log(mass_P1), -1)
    reward_P = jnp.where(mass_P1[..., 0] > 0, expectation(weight_PN, score_PN), -jnp.inf)
    return Reweighted(weight_PN, kl_P, log_z_P, reward_P)


@jax.jit
def best_of_n_law(score_PN, n, ref_PN=None, mask_PN=None):
    """Law of the best of n independent draws from the finite law ref, law_PN; ties share in proportion to ref.

    A block of equal scores of mass b, below a mass a of better ones, wins with (1 - a)^n - (1 - a - b)^n. Masked
    candidates leave ref. Its exact KL is `kl_divergence(law, ref)`; see `best_of_n_kl_bound`.
    """
    score_PN = round_score(mask_scores(score_PN, mask_PN))

    def one(score_N, ref_N):
        order_N = _best_first(score_N)
        sorted_N, block_N = ref_N[order_N], _blocks(score_N[order_N])
        mass_N = jax.ops.segment_sum(sorted_N, block_N, len(ref_N))
        upto_N = jnp.minimum(jnp.cumsum(mass_N), 1.0)  # from the best down: precise where it is small
        keep_N, lose_N = jnp.log1p(-jnp.roll(upto_N, 1).at[0].set(0.0)), jnp.log1p(-upto_N)
        win_N = jnp.exp(n * keep_N) * -jnp.expm1(n * jnp.where(keep_N > -jnp.inf, lose_N - keep_N, 0.0))
        share_N = win_N / jnp.where(mass_N > 0, mass_N, 1.0)
        return jnp.zeros_like(ref_N).at[order_N].set(share_N[block_N] * sorted_N)

    law_PN = jax.vmap(one)(score_PN, _reference(score_PN, ref_PN, mask_PN))
    return jnp.where(score_PN != -jnp.inf, law_PN, 0.0)


def best_of_n_kl_bound(n):
    """log n - (n - 1) / n nats: at least KL(best-of-n || ref), equal for a law without atoms (Beirami 2401.01879)."""
    return jnp.log(n) - (n - 1) / n


# Best-of-n: exact expectations over all n-subsets of the N candidates


@functools.partial(jax.jit, static_argnames=("ties",))
def best_of_n(score_PN, gold_PN, mask_PN=None, size_n=None, *, ties: str = "share"):
    """Expected gold of the best-scored of n candidates, curve_Pn, the mean over all C(N, n) subsets.

    E_n = sum_i C(N - i, n - 1) / C(N, n) gold_(i), sorted from the best, i = 1..N (Nakano et al. 2021, appendix I).
    Tied candidates share: each counts with the mean of its block. size_n: sizes within 1..N, default all; another
    size gives nan. A subset in which none can win counts 0. A nan score makes its problem nan.
    """
    hidden_PN = mask_scores(score_PN, mask_PN)
    gold_PN = jnp.where(hidden_PN == -jnp.inf, 0.0, jnp.where(jnp.isnan(hidden_PN), jnp.nan, as_float(gold_PN)))
    score_PN = round_score(hidden_PN)
    order_PN = _best_first(score_PN)
    gold_PN = jnp.take_along_axis(gold_PN, order_PN, -1)
    match ties:
        case "share":
            gold_PN = jax.vmap(_share)(gold_PN, jnp.take_along_axis(score_PN, order_PN, -1))
        case "first":
            pass  # of equal scores the lower index stands first
        case _:
            raise ValueError(f'ties is {ties!r}, expected "share" or "first"')
    weight_nN = rank_weights(size_n, gold_PN.shape[-1], gold_PN.dtype)
    return jnp.einsum("nN,PN->Pn", weight_nN, gold_PN, precision=HIGHEST)


def rank_weights(size_n, N: int, dtype=jnp.float32):
    """weight_nN: chance that the best of a random n-subset has rank 0..N-1, 0 the best of all.

    If none of the r better ones was drawn, rank r is drawn with chance n / (N - r). That none was has chance
    prod_{k<r} (N - n - k) / (N - k), symmetric in n and r; of the two products the shorter is taken. Rows are right
    to 2e-7 in float32 at N = 1,860, where binomials by `gammaln` are off by 8e-3.
    """
    size_n = subset_sizes(size_n, N)
    # all_N: n in rows, r or k in columns. Not a numpy constant: XLA would fold the product while compiling, for minutes.
    all_N, left_N = jnp.arange(N + 1), N - jnp.arange(N)
    miss_NN = (jnp.maximum(left_N - all_N[:, None], 0) / left_N).astype(dtype)
    none_drawn_NN = jnp.pad(jnp.cumprod(miss_NN, -1), ((0, 0), (1, 0)), constant_values=1)
    none_drawn_NN = jnp.where(all_N <= all_N[:, None], none_drawn_NN, none_drawn_NN.T)
    drawn_nN = jnp.minimum(size_n[:, None] / left_N, 1.0).astype(dtype)
    weight_nN = none_drawn_NN[jnp.clip(size_n, 0, N), :-1] * drawn_nN
    return jnp.where(((size_n >= 1) & (size_n <= N))[:, None], weight_nN, jnp.nan)


@jax.jit
def pass_at_n(right_PN, mask_PN=None, size_n=None):
    """pass@n = 1 - C(N - c, n) / C(N, n), curve_Pn, c of the N candidates right (Chen et al. 2021).

    Best-of-n whose score is right_PN itself, 0 or 1: a sum of positive terms, precise where it is small.
    """
    return best_of_n(right_PN, right_PN, mask_PN, size_n)


@jax.jit
def subset_band(curve_Pn):
    """Standard deviation of a curve's mean over problems if each draws one n-subset: sqrt(sum_p e (1 - e)) / P.

    For 0/1 gold; the shading of Lightman et al.'s figure 3. Problem sampling is another thing: `bootstrap`.
    """
    return jnp.sqrt(jnp.maximum(jnp.sum(curve_Pn * (1 - curve_Pn), 0), 0.0)) / curve_Pn.shape[0]


@functools.partial(jax.jit, static_argnames=("draws",))
def soft_best_of_n(key, score_PN, gold_PN, beta, mask_PN=None, size_n=None, *, draws: int = 400):
    """Soft best-of-n (2505.03156), curve_Pn: of n drawn candidates i wins with chance ∝ exp(score_i / beta).

    The mean of `draws` random n-subsets. beta = 0 is best-of-n; inf takes any that can win, each as likely.
    """
    score_PN = mask_scores(score_PN, mask_PN)
    return over_subsets(
        key, lambda drawn_PN: reweight(score_PN, beta, None, drawn_PN).weight_PN, gold_PN, size_n, draws
    )


def over_subsets(key, law, gold_PN, size_n, draws):
    """Mean of expectation(law(drawn_PN), gold_PN) over draws, each a shuffle of every problem cut at each size n."""
    gold_PN = as_float(gold_PN)
    P, N = gold_PN.shape
    size_n, mark = subset_sizes(size_n, N), jnp.uint32((1 << (N - 1).bit_length()) - 1)

    def one_draw(total_nP, k_draw):
        # Random bits above the index in one integer: a shuffle by one bare sort (see `_best_first`).
        bits_PN = jax.random.bits(k_draw, (P, N), jnp.uint32) & ~mark | jnp.arange(N, dtype=jnp.uint32)
        place_PN = (jnp.sort(bits_PN, -1) & mark).astype(jnp.int32)
        return total_nP + jax.lax.map(lambda n: expectation(law(place_PN < n), gold_PN), size_n), None

    start_nP = jnp.where((size_n >= 1) & (size_n <= N), 0.0, jnp.nan)[:, None] * jnp.ones(P, gold_PN.dtype)
    return jax.lax.scan(one_draw, start_nP, jax.random.split(key, draws))[0].T / draws


# Intervals


@functools.partial(jax.jit, static_argnames=("draws",))
def bootstrap(key, value_PX, *, draws: int = 2000, level=0.95) -> Interval:
    """Interval of the mean of value_PX over problems, the unit of resampling (Miller 2411.00640), for each of X.

    For a paired comparison give differences on the same problems. p = 2 min(share of resampled means <= 0, share
    >= 0), the sample itself counted as one more, at most 1.
    """
    value_PX = as_float(value_PX)
    P = value_PX.shape[0]
    pick_SP = jax.random.randint(key, (draws, P), 0, P)
    count_SP = jax.vmap(lambda pick_P: jnp.bincount(pick_P, length=P))(pick_SP).astype(value_PX.dtype)
    mean_SX = jnp.einsum("SP,P...->S...", count_SP, value_PX, precision=HIGHEST) / P
    low_X, high_X = jnp.quantile(mean_SX, jnp.array([1 - level, 1 + level]) / 2, axis=0)
    side_X = 1 + jnp.minimum((mean_SX <= 0).sum(0), (mean_SX >= 0).sum(0))
    return Interval(value_PX.mean(0), low_X, high_X, jnp.minimum(2 * side_X / (draws + 1), 1.0))


# Ranks, ties and arguments; votes.py takes them too


def round_score(score_PN):
    """Scores to 17 significant bits (within 8e-6 of themselves), -0 to 0: scores tie if these are equal."""
    score_PN = jax.lax.reduce_precision(score_PN, exponent_bits=8, mantissa_bits=16)
    return jnp.where(score_PN == 0, 0.0, score_PN)


def _best_first(score_PN):
    """Indices of rounded scores from best to worst; of equal scores the lower index first.

    A radix sort in two passes, half of the key above the index in one integer: XLA sorts bare integers on CPU three
    times faster than scores with indices, and sorting is most of a best-of-n curve.
    """
    N = score_PN.shape[-1]
    index_bits, half_bits = max(N - 1, 1).bit_length(), 13
    if index_bits + half_bits > 32:
        raise ValueError(f"{N} candidates, expected at most {2 ** (32 - half_bits)}")
    bits_PN = jax.lax.bitcast_convert_type(score_PN.astype(jnp.float32), jnp.int32)
    # These integers order as the floats do; rounding left the 7 lowest bits empty, so 25 remain. ~ puts the best first.
    key_PN = ~(jnp.where(bits_PN < 0, bits_PN ^ 0x7FFFFFFF, bits_PN) >> 7) + (1 << 24)
    key_PN = key_PN.astype(jnp.uint32)
    index_N = jnp.arange(N, dtype=jnp.uint32)

    def sort_by(half_PN):
        return (jnp.sort(half_PN << index_bits | index_N, -1) & ((1 << index_bits) - 1)).astype(jnp.int32)

    by_low_PN = sort_by(key_PN & ((1 << half_bits) - 1))
    by_high_PN = sort_by(jnp.take_along_axis(key_PN >> half_bits, by_low_PN, -1))
    return jnp.take_along_axis(by_low_PN, by_high_PN, -1)


def _blocks(score_N):
    """The number, from 0, of the block of equal scores to which each of the sorted scores belongs."""
    return jnp.cumsum(jnp.pad((score_N[1:] != score_N[:-1]).astype(jnp.int32), (1, 0)))


def _share(gold_N, score_N):
    """Mean of gold within each block of equal, sorted scores."""
    block_N = _blocks(score_N)
    total_N2 = jnp.stack([gold_N, jnp.ones_like(gold_N)], -1)
    total_N2 = jax.ops.segment_sum(total_N2, block_N, len(gold_N), indices_are_sorted=True)
    return (total_N2[:, 0] / jnp.maximum(total_N2[:, 1], 1.0))[block_N]


def as_float(x):
    """As floats of at least 32 bits: half precision would lose the small differences near p = 1."""
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(jnp.result_type(x, float), jnp.float32))


def mask_scores(score_PN, mask_PN):
    """Scores as floats, -inf where masked."""
    return as_float(score_PN) if mask_PN is None else jnp.where(mask_PN, as_float(score_PN), -jnp.inf)


def _reference(score_PN, ref_PN, mask_PN):
    """The reference law: ref_PN, or equal weights, normalised over the real candidates."""
    ref_PN = jnp.ones_like(score_PN) if ref_PN is None else jnp.broadcast_to(as_float(ref_PN), score_PN.shape)
    ref_PN = ref_PN if mask_PN is None else jnp.where(mask_PN, ref_PN, 0.0)
    total_P1 = ref_PN.sum(-1, keepdims=True)
    return ref_PN / jnp.where(total_P1 > 0, total_P1, 1.0)


def subset_sizes(size_n, N):
    """The sizes asked for, or all: 1..N."""
    return jnp.arange(1, N + 1) if size_n is None else jnp.asarray(size_n)
