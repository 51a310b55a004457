"""Advantage estimators: one pure function each, with its equation.

An estimator is f(step_reward_NT, outcome_N, step_of_token_NL, mask_NL, group_N) -> advantage_NL, in numpy:

step_reward_NT    reward of each step of each response, 0 where a response has no such step
outcome_N         reward of the whole response
step_of_token_NL  which step a token belongs to, from 0; ~t for one of no step, where step t could have begun
mask_NL           True for the tokens that the policy wrote
group_N           which prompt a response answers; a baseline is of one group

A step reward stays at its step; only estimators with `sums_steps` add a response's step rewards up. Outcome
and step rewards have separate baselines (as in PRIME and GDPO), so that the scale of one does not drown the
other.

`python -m examples.exact` prints the expected gradient of every estimator (docs/lab.md has its table).
Unbiased: grpo without a standard deviation, rloo, rloo_steps, and in a large batch reinforce and pure_verl's
sum form. grpo_process, rloo_sources, prime, pure and pure_main subtract a baseline for every step that a
response has, so an extra step costs about the mean step reward. A policy that decides when to stop then
maximises R - price x (number of steps), exactly so under rloo_sources and pure's sum form: fewer steps than R
asks for where the mean is positive (P(good)), else more.

To add one, write the function, its entry in ESTIMATORS and, if it has an option, a field of EstimatorConfig
with a default.

Dimension key: N responses, T steps, L tokens, G groups.
"""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np

from prm_jax.launch.config import Positive, one_of

TINY = 1e-8  # a smaller deviation is rounding: the quotient is 0


def tokens_of_steps(step_of_token_NL, mask_NL, steps: int) -> np.ndarray:
    """The number of tokens of each step, n_NT; 0 where the response has no such step."""
    return ((step_of_token_NL[:, :, None] == np.arange(steps)) & mask_NL[:, :, None]).sum(1)


def at_tokens(x_NT, step_of_token_NL, mask_NL) -> np.ndarray:
    """x_NT at each token's step, x_NL; 0 where a token is of no step or the mask is off."""
    x_NL = np.take_along_axis(x_NT, np.maximum(step_of_token_NL, 0), 1)
    return np.where(mask_NL & (step_of_token_NL >= 0), x_NL, 0.0)


def step_ends(step_of_token_NL, mask_NL) -> np.ndarray:
    """True for the last token of each step, its separator, and for all tokens behind the last step."""
    L = mask_NL.shape[1]
    changes_NL = np.diff(np.where(mask_NL, step_of_token_NL, L), append=L) != 0
    return mask_NL & (changes_NL | (step_of_token_NL < 0))


def of_group(x_N, group_N) -> np.ndarray:
    """Sums of x over each response's group, sum_N."""
    _, index_N = np.unique(group_N, return_inverse=True)
    return np.bincount(index_N, np.asarray(x_N, float))[index_N]


def returns(x_NT, discount: float = 1.0) -> np.ndarray:
    """Returns, sum_NT: each number plus discount times the return after it."""
    sum_NT = x_NT.astype(float)
    for t in reversed(range(x_NT.shape[1] - 1)):
        sum_NT[:, t] += discount * sum_NT[:, t + 1]
    return sum_NT


def divided(x, deviation):
    """x / deviation; 0 where the deviation is."""
    return np.where(deviation > TINY, x / np.maximum(deviation, TINY), 0.0)


def centred(x_N, group_N, normalise: bool) -> np.ndarray:
    """x - mean of its group; with `normalise` divided by the group's (population) standard deviation."""
    n_N = of_group(np.ones(len(x_N)), group_N)
    x_N = x_N - of_group(x_N, group_N) / n_N
    return divided(x_N, np.sqrt(of_group(x_N**2, group_N) / n_N)) if normalise else x_N


def leave_one_out(x_N, group_N) -> np.ndarray:
    """x - mean of the others in its group; 0 for a response that is alone. These sum to 0 over a group."""
    n_N = of_group(np.ones(len(x_N)), group_N)
    return np.where(n_N > 1, (n_N * x_N - of_group(x_N, group_N)) / np.maximum(n_N - 1, 1), 0.0)


def grpo(step_reward_NT, outcome_N, step_of_token_NL, mask_NL, group_N, normalise: bool = True) -> np.ndarray:
    """Outcome GRPO (Shao et al. 2024, arXiv 2402.03300, 4.1.2): A = (R - mean R) / std R at every token, R
    the outcome plus all step rewards, as in verl, whose std is the sample's: A is sqrt(1 - 1 / n) of this one
    there and in TRL. The division is a bias, towards groups that agree. Without it Dr. GRPO (Liu et al. 2025,
    arXiv 2503.20783), which needs loss_norm=constant, too (algorithm=dr_grpo)."""
    return np.where(mask_NL, centred(outcome_N + step_reward_NT.sum(1), group_N, normalise)[:, None], 0.0)


def grpo_process(
    step_reward_NT, outcome_N, step_of_token_NL, mask_NL, group_N, normalise: bool = True
) -> np.ndarray:
    """GRPO with process supervision (Shao et al. 2024, 4.1.3): r~ = (r - mean R) / std R over all steps of
    all responses in the group, A = the sum of r~ from the token's step on, plus `grpo` of the outcome. Steps
    have a price."""
    is_step_NT = tokens_of_steps(step_of_token_NL, mask_NL, step_reward_NT.shape[1]) > 0
    row_n, step_n = is_step_NT.nonzero()
    centred_NT = np.zeros(is_step_NT.shape)
    centred_NT[row_n, step_n] = centred(step_reward_NT[row_n, step_n], np.asarray(group_N)[row_n], normalise)
    process_NL = at_tokens(returns(centred_NT), step_of_token_NL, mask_NL)
    return process_NL + grpo(
        np.zeros((len(outcome_N), 1)), outcome_N, step_of_token_NL, mask_NL, group_N, normalise
    )


def outcome_rloo(outcome_N, mask_NL, group_N) -> np.ndarray:
    return np.where(mask_NL, leave_one_out(outcome_N, group_N)[:, None], 0.0)


def rloo(step_reward_NT, outcome_N, step_of_token_NL, mask_NL, group_N) -> np.ndarray:
    """REINFORCE leave-one-out (Ahmadian et al. 2024, 2402.14740): A_i = R_i - mean of the other R_j, R as in
    `grpo`. Unbiased."""
    return outcome_rloo(outcome_N + step_reward_NT.sum(1), mask_NL, group_N)


def rloo_steps(step_reward_NT, outcome_N, step_of_token_NL, mask_NL, group_N) -> np.ndarray:
    """RLOO of the return to go: A_t = G_t - mean of the others' G_t, G_t = the sum of step rewards from step
    t on, 0 where a response has ended; plus `rloo` of the outcome. Unbiased, with less noise than `rloo`.

    Whatever a token's alternatives are, the baseline is the same: that of the steps that ended before it. The
    end of sequence after a step's separator therefore has the baseline of the step that it forgoes."""
    return_NT = returns(np.pad(step_reward_NT, ((0, 0), (0, 1))))
    advantage_NT = np.stack([leave_one_out(return_N, group_N) for return_N in return_NT.T], 1)
    steps_before_NL = np.maximum(step_of_token_NL, ~step_of_token_NL)
    return at_tokens(advantage_NT, steps_before_NL, mask_NL) + outcome_rloo(outcome_N, mask_NL, group_N)


def step_means(step_reward_NT, step_of_token_NL, mask_NL) -> tuple[np.ndarray, np.ndarray]:
    """(is_step_NT, the mean step reward of each response)."""
    is_step_NT = tokens_of_steps(step_of_token_NL, mask_NL, step_reward_NT.shape[1]) > 0
    mean_N = (step_reward_NT * is_step_NT).sum(1) / np.maximum(is_step_NT.sum(1), 1)
    return is_step_NT, mean_N


def rloo_sources(step_reward_NT, outcome_N, step_of_token_NL, mask_NL, group_N) -> np.ndarray:
    """RLOO per reward source (PRIME, Cui et al. 2025, arXiv 2502.01456, eq. 5, with steps in place of
    tokens): A_t = sum over steps s >= t of (r_s - mean over the others j of j's mean step reward), plus
    `rloo` of the outcome. A step has exactly the price of a response's expected mean step reward."""
    is_step_NT, mean_N = step_means(step_reward_NT, step_of_token_NL, mask_NL)
    baseline_N = mean_N - leave_one_out(mean_N, group_N)
    centred_NT = np.where(is_step_NT, step_reward_NT - baseline_N[:, None], 0.0)
    return at_tokens(returns(centred_NT), step_of_token_NL, mask_NL) + outcome_rloo(
        outcome_N, mask_NL, group_N
    )


def prime(step_reward_NT, outcome_N, step_of_token_NL, mask_NL, group_N) -> np.ndarray:
    """PRIME's program (PRIME-RL/PRIME at 18ad596, verl/trainer/ppo/core_algos.py), before it is whitened:
    otherwise than eq. 5 a step's own response is in its baseline, n / (n - 1) r_s - the sum of all n mean
    step rewards / (n - 1). Steps have a price."""
    is_step_NT, mean_N = step_means(step_reward_NT, step_of_token_NL, mask_NL)
    n_N = of_group(np.ones(len(mean_N)), group_N)
    centred_NT = (
        is_step_NT * ((n_N * step_reward_NT.T - of_group(mean_N, group_N)) / np.maximum(n_N - 1, 1)).T
    )
    return at_tokens(returns(centred_NT), step_of_token_NL, mask_NL) + outcome_rloo(
        outcome_N, mask_NL, group_N
    )


def pure(step_reward_NT, outcome_N, step_of_token_NL, mask_NL, group_N, form="min") -> np.ndarray:
    """PURE (Cheng et al. 2025, arXiv 2504.15275): the return is the lowest step reward to come, not their
    sum.

    Rewards become r* = softmax(-r / .1) r; summed from a step on, they are about the lowest reward while that
    is ahead, then about 0. The baseline is per token, as in `pure_main`: a step of n tokens loses n times the
    mean reward a token of the other responses in its group, so neither many short steps nor a long one pay
    more than that mean. `rloo` of the outcome is added. form=sum keeps the rewards; its policies learn to
    write more high-scoring steps. form=mean divides them by the number of steps. Steps have a price, exactly
    so under form=sum."""
    n_NT = tokens_of_steps(step_of_token_NL, mask_NL, step_reward_NT.shape[1])
    reward_NT = form_weights(step_reward_NT, n_NT > 0, form) * step_reward_NT
    return_NT = returns(reward_NT - others_a_token(reward_NT.sum(1), n_NT.sum(1), group_N)[:, None] * n_NT)
    return at_tokens(return_NT, step_of_token_NL, mask_NL) + outcome_rloo(outcome_N, mask_NL, group_N)


def others_a_token(reward_N, tokens_N, group_N) -> np.ndarray:
    """The reward of the other responses in a response's group, divided by their tokens; 0 of none."""
    reward_N, tokens_N = (of_group(x_N, group_N) - x_N for x_N in (reward_N, tokens_N))
    return np.where(tokens_N > 0, reward_N / np.maximum(tokens_N, 1), 0.0)


def pure_main(step_reward_NT, outcome_N, step_of_token_NL, mask_NL, group_N, form="min") -> np.ndarray:
    """PURE's program (CJReinforce/PURE at 41f9363, branch main) as it runs by default, before it is whitened.
    Otherwise than in `pure` a step's separator and what follows the last step have no advantage, so nothing
    rewards the choice to end, and they count among the others' tokens alone. form=mean:
    --disable_weighted_reward. Biased in every form."""
    n_NT = tokens_of_steps(step_of_token_NL, mask_NL, step_reward_NT.shape[1])
    reward_NT = form_weights(step_reward_NT, n_NT > 0, form) * step_reward_NT
    a_token_N1 = others_a_token(reward_NT.sum(1), mask_NL.sum(1), group_N)[:, None]
    learns_NL = mask_NL & ~step_ends(step_of_token_NL, mask_NL)
    return_NT = returns(
        reward_NT - a_token_N1 * tokens_of_steps(step_of_token_NL, learns_NL, reward_NT.shape[1])
    )
    return at_tokens(return_NT, step_of_token_NL, learns_NL) + outcome_rloo(outcome_N, learns_NL, group_N)


def pure_verl(step_reward_NT, outcome_N, step_of_token_NL, mask_NL, group_N, form="min") -> np.ndarray:
    """PURE by the authors' newer program (branch verl at 83f9869), before it is whitened: returns to go by
    token, the outcome at the last one, less one number a response: the mean of the others' sums of returns
    over all their tokens, divided by the width of the batch. Its rewards are weighted as in `pure`; form=sum
    is unbiased."""
    is_step_NT = tokens_of_steps(step_of_token_NL, mask_NL, step_reward_NT.shape[1]) > 0
    reward_NT = form_weights(step_reward_NT, is_step_NT, form) * step_reward_NT
    return_NL = reinforce(reward_NT, outcome_N, step_of_token_NL, mask_NL, group_N)
    sum_N = return_NL.sum(1)
    baseline_N = (sum_N - leave_one_out(sum_N, group_N)) / mask_NL.shape[1]
    return np.where(mask_NL, return_NL - baseline_N[:, None], 0.0)


def form_weights(step_reward_NT, is_step_NT, form: str, temperature: float = 0.1) -> np.ndarray:
    """The weight of each step's reward, weight_NT. min: softmax(-r / temperature) over a response's steps;
    sum: 1; mean: 1 / their number."""
    if form != "min":
        return (
            is_step_NT / np.maximum(is_step_NT.sum(1, keepdims=True), 1)
            if form == "mean"
            else is_step_NT * 1.0
        )
    logit_NT = np.where(is_step_NT, -step_reward_NT / temperature, -np.inf)
    top_N1 = np.max(logit_NT, 1, keepdims=True, initial=-1e30)
    weight_NT = np.exp(logit_NT - top_N1)
    return weight_NT / np.maximum(weight_NT.sum(1, keepdims=True), TINY)


def pav(step_reward_NT, outcome_N, step_of_token_NL, mask_NL, group_N, first_step="reward") -> np.ndarray:
    """Process advantage verifiers (Setlur et al. 2024, arXiv 2410.08146, eq. 5): A_t = the step reward, the
    prover's advantage of the token's step (reward.prm_form=difference of a prover's values), plus `rloo` of
    the outcome.

    The first step's difference is Q_1 - .5 whatever the problem. first_step=group takes the mean of the
    others' first rewards away, so that it is Q_1 - V(x) with V(x) from the group: the same gradient, with
    less noise. A step gets nothing of what follows, so of rewards that are no advantages the gradient is
    biased."""
    if first_step == "group":
        first_N = leave_one_out(step_reward_NT[:, 0], group_N)
        step_reward_NT = np.concatenate([first_N[:, None], step_reward_NT[:, 1:]], 1)
    return at_tokens(step_reward_NT, step_of_token_NL, mask_NL) + outcome_rloo(outcome_N, mask_NL, group_N)


def reinforce(
    step_reward_NT, outcome_N, step_of_token_NL, mask_NL, group_N, discount: float = 1.0
) -> np.ndarray:
    """REINFORCE++ (Hu 2025, arXiv 2501.03262), before it is whitened: discounted returns of a step's reward
    at its last token and the outcome at the response's last; groups play no part. discount=1 is unbiased."""
    N, L = mask_NL.shape
    reward_NL = at_tokens(step_reward_NT, step_of_token_NL, step_ends(step_of_token_NL, mask_NL))
    reward_NL[np.arange(N), L - 1 - mask_NL[:, ::-1].argmax(1)] += outcome_N
    return np.where(mask_NL, returns(reward_NL, discount), 0.0)


def whitened(advantage_NL, mask_NL) -> np.ndarray:
    """The advantage less its mean over the batch's tokens, divided by their (population) standard deviation.
    The mean is one baseline for all tokens, so in a large batch the expected gradient keeps its direction."""
    mean, deviation = advantage_NL[mask_NL].mean(), advantage_NL[mask_NL].std()
    return np.where(mask_NL, divided(advantage_NL - mean, deviation), 0.0)


class Estimator(NamedTuple):
    """An advantage estimator and what a run has to know of it."""

    f: Callable
    options: tuple[str, ...] = ()  # the fields of EstimatorConfig that f takes as arguments
    sums_steps: bool = False  # it adds a response's step rewards up
    needs_group: bool = True  # its baseline is the other responses to the problem
    whitens: bool = False  # f's advantages are then whitened
    skips_ends: bool = False  # separators and what follows the last step have no advantage

    def learns(self, step_of_token_NL, mask_NL) -> np.ndarray:
        """True for the tokens that have an advantage, learns_NL."""
        return mask_NL & ~step_ends(step_of_token_NL, mask_NL) if self.skips_ends else mask_NL


ESTIMATORS = {
    "grpo": Estimator(grpo, ("normalise",), sums_steps=True),
    "grpo_process": Estimator(grpo_process, ("normalise",)),
    "rloo": Estimator(rloo, sums_steps=True),
    "rloo_steps": Estimator(rloo_steps),
    "rloo_sources": Estimator(rloo_sources),
    "prime": Estimator(prime, whitens=True),
    "pure": Estimator(pure, ("form",)),
    "pure_main": Estimator(pure_main, ("form",), whitens=True, skips_ends=True),
    "pure_verl": Estimator(pure_verl, ("form",), whitens=True),
    "pav": Estimator(pav, ("first_step",)),
    "reinforce": Estimator(reinforce, ("discount",), needs_group=False, whitens=True),
}


@dataclasses.dataclass(frozen=True)
class EstimatorConfig:  # the estimator and the options of all of them; conf/rl.yaml says what each key means
    advantage: Annotated[str, one_of(ESTIMATORS)]
    normalise: bool
    form: Literal["min", "sum", "mean"]
    discount: Positive
    # of pav: the first step's reward as it is, or less the mean of the others' in its group
    first_step: Literal["reward", "group"] = "reward"

    @property
    def estimator(self) -> Estimator:
        return ESTIMATORS[self.advantage]

    def estimate(self, step_reward_NT, outcome_N, step_of_token_NL, mask_NL, group_N, token_reward_NL=None):
        """advantage_NL by the chosen estimator with its options. Token rewards, a KL divergence, are added as
        returns to go: outside of baselines and of PURE's softmin, as in OpenRLHF and PURE, but before the
        whitening of REINFORCE++."""
        options = {name: getattr(self, name) for name in self.estimator.options}
        learns_NL = self.estimator.learns(step_of_token_NL, mask_NL)
        advantage_NL = self.estimator.f(
            step_reward_NT, outcome_N, step_of_token_NL, mask_NL, group_N, **options
        )
        if token_reward_NL is not None:
            advantage_NL = advantage_NL + learns_NL * returns(
                mask_NL * token_reward_NL, options.get("discount", 1.0)
            )
        return whitened(advantage_NL, learns_NL) if self.estimator.whitens else advantage_NL


def shared_by(ids: Sequence[np.ndarray], group_N) -> list[np.ndarray]:
    """For each token of each response the number of responses in its group that begin with the same tokens up
    to it. Outcome GRPO weights what a group shares by it, which lambda-GRPO (arXiv 2509.21154) undoes."""
    nodes, paths = {}, []
    for group, ids_L in zip(group_N, ids, strict=True):
        path = [("group", group)]
        for i in ids_L.tolist():
            path.append(nodes.setdefault((path[-1], i), len(nodes)))
        paths.append(path[1:])
    counts = collections.Counter(itertools.chain(*paths))
    return [np.array([counts[node] for node in path]) for path in paths]


def keep_mixed(right_N, group_N, low: float = 0.0, high: float = 1.0) -> np.ndarray:
    """keep_N is True for groups with right and wrong answers (DAPO, Yu et al. 2025, arXiv 2503.14476) whose
    share of right ones is in [low, high] (PRIME's filter: .2, .8)."""
    share_N = right_N - centred(right_N, group_N, False)
    return (
        (of_group((right_N - share_N) ** 2, group_N) > TINY)
        & (share_N >= low - TINY)
        & (share_N <= high + TINY)
    )


def keep_prof(mean_step_N, right_N, group_N, share: float = 0.5) -> np.ndarray:
    """PROF (arXiv 2509.03403): keeps a share of each group, keep_N, with right and wrong responses as equal
    in number as possible: the right ones whose steps score highest and the wrong ones whose steps score
    lowest. The PRM gives no reward, so there is nothing to hack in it."""
    keep_N, right_N = np.zeros(len(right_N), bool), np.asarray(right_N, bool)
    for group in np.unique(group_N):
        members = np.flatnonzero(group_N == group)
        n_kept = max(1, round(share * len(members)))
        right, wrong = members[right_N[members]], members[~right_N[members]]
        right = right[np.argsort(-mean_step_N[right], kind="stable")]
        wrong = wrong[np.argsort(mean_step_N[wrong], kind="stable")]
        n_right = min(len(right), max(n_kept // 2, n_kept - len(wrong)))
        keep_N[right[:n_right]] = keep_N[wrong[: n_kept - n_right]] = True
    return keep_N
