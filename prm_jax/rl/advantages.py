"""Advantage estimators: one pure function f(responses, options) -> advantage_NL each, with its equation.

A step reward stays at its step; only grpo and rloo add a response's step rewards up. Outcome and step rewards
have separate baselines (as in PRIME and GDPO), so that the scale of one does not drown the other.

Unbiased: grpo without a standard deviation, rloo, rloo_steps, and in a large batch reinforce. grpo_process,
rloo_sources and pure subtract a baseline for every step that a response has, so an extra step costs about the
mean step reward (`python -m examples.exact` and docs/lab.md: the expected gradients).

To add one, write the function, its entry in ESTIMATORS and, if it has an option, a field of EstimatorConfig
and its key in conf/rl.yaml.

Dimension key: N responses, T steps, L tokens."""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

import numpy as np
from scipy.special import softmax

from prm_jax.launch.config import one_of

TINY = 1e-8  # a smaller deviation is rounding: the quotient is 0


class Responses(NamedTuple):
    """What an estimator knows of a batch."""

    step_reward_NT: np.ndarray  # of each step, 0 where a response has no such step
    outcome_N: np.ndarray  # reward of the whole response
    # Which step a token belongs to, from 0; ~t for one of no step, where step t could have begun.
    step_of_token_NL: np.ndarray
    mask_NL: np.ndarray  # True for the tokens that the policy wrote
    group_N: np.ndarray  # which prompt a response answers; a baseline is of one group

    @property
    def tokens_NT(self) -> np.ndarray:
        """The number of tokens of each step; 0 where the response has no such step."""
        is_step_NLT = self.step_of_token_NL[:, :, None] == np.arange(self.step_reward_NT.shape[1])
        return (is_step_NLT & self.mask_NL[:, :, None]).sum(1)

    @property
    def total_N(self) -> np.ndarray:
        return self.outcome_N + self.step_reward_NT.sum(1)

    def at_steps(self, x_NT) -> np.ndarray:
        """x_NT at each token's step, x_NL; 0 where a token is of no step or the mask is off."""
        x_NL = np.take_along_axis(x_NT, np.maximum(self.step_of_token_NL, 0), 1)
        return np.where(self.mask_NL & (self.step_of_token_NL >= 0), x_NL, 0.0)

    def at_all(self, x_N) -> np.ndarray:
        """x_N at each token of the response, x_NL; 0 where the mask is off."""
        return np.where(self.mask_NL, x_N[:, None], 0.0)


def of_group(x_N, group_N) -> np.ndarray:
    """Sums of x over each response's group, sum_N."""
    _, index_N = np.unique(group_N, return_inverse=True)
    return np.bincount(index_N, np.asarray(x_N, float))[index_N]


def returns(x_NT) -> np.ndarray:
    """Returns, sum_NT: each number plus all after it."""
    return np.cumsum(x_NT[:, ::-1], 1, dtype=float)[:, ::-1]


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


def grpo(r: Responses, normalise: bool = True) -> np.ndarray:
    """Outcome GRPO (Shao et al. 2024, arXiv 2402.03300, 4.1.2): A = (R - mean R) / std R at every token, R
    the outcome plus all step rewards, as in verl, whose std is the sample's: A is sqrt(1 - 1 / n) of this one
    there and in TRL. The division is a bias, towards groups that agree. Without it Dr. GRPO (Liu et al. 2025,
    arXiv 2503.20783), which needs loss_norm=constant, too (algorithm=dr_grpo)."""
    return r.at_all(centred(r.total_N, r.group_N, normalise))


def grpo_process(r: Responses, normalise: bool = True) -> np.ndarray:
    """GRPO with process supervision (Shao et al. 2024, 4.1.3): r~ = (r - mean R) / std R over all steps of
    all responses in the group, A = the sum of r~ from the token's step on, plus `grpo` of the outcome. Steps
    have a price."""
    row_n, step_n = r.tokens_NT.nonzero()
    centred_NT = np.zeros(r.step_reward_NT.shape)
    centred_NT[row_n, step_n] = centred(r.step_reward_NT[row_n, step_n], r.group_N[row_n], normalise)
    return r.at_steps(returns(centred_NT)) + r.at_all(centred(r.outcome_N, r.group_N, normalise))


def outcome_rloo(r: Responses) -> np.ndarray:
    return r.at_all(leave_one_out(r.outcome_N, r.group_N))


def rloo(r: Responses) -> np.ndarray:
    """REINFORCE leave-one-out (Ahmadian et al. 2024, 2402.14740): A_i = R_i - mean of other R. Unbiased."""
    return r.at_all(leave_one_out(r.total_N, r.group_N))


def rloo_steps(r: Responses) -> np.ndarray:
    """RLOO of the return to go: A_t = G_t - mean of the others' G_t, G_t = the sum of step rewards from step
    t on, 0 where a response has ended; plus `rloo` of the outcome. Unbiased, with less noise than `rloo`.

    Whatever a token's alternatives are, the baseline is the same: that of the steps that ended before it. The
    end of sequence after a step's separator therefore has the baseline of the step that it forgoes."""
    return_NT = returns(np.pad(r.step_reward_NT, ((0, 0), (0, 1))))
    advantage_NT = np.stack([leave_one_out(return_N, r.group_N) for return_N in return_NT.T], 1)
    steps_before_NL = np.maximum(r.step_of_token_NL, ~r.step_of_token_NL)  # t, of t and of ~t
    return r._replace(step_of_token_NL=steps_before_NL).at_steps(advantage_NT) + outcome_rloo(r)


def rloo_sources(r: Responses) -> np.ndarray:
    """RLOO per reward source (PRIME, Cui et al. 2025, arXiv 2502.01456, eq. 5, with steps in place of
    tokens): A_t = sum over steps s >= t of (r_s - mean over the others j of j's mean step reward), plus
    `rloo` of the outcome. A step has exactly the price of a response's expected mean step reward."""
    is_step_NT = r.tokens_NT > 0
    mean_N = (r.step_reward_NT * is_step_NT).sum(1) / np.maximum(is_step_NT.sum(1), 1)
    baseline_N = mean_N - leave_one_out(mean_N, r.group_N)
    centred_NT = np.where(is_step_NT, r.step_reward_NT - baseline_N[:, None], 0.0)
    return r.at_steps(returns(centred_NT)) + outcome_rloo(r)


def pure(r: Responses, form: str = "min") -> np.ndarray:
    """PURE (Cheng et al. 2025, arXiv 2504.15275): the return is the lowest step reward to come, not their
    sum.

    Rewards become r* = softmax(-r / .1) r; summed from a step on, they are about the lowest reward while that
    is ahead, then about 0. The baseline is per token, as in the authors' program (CJReinforce/PURE at
    41f9363): a step of n tokens loses n times the mean reward a token of the other responses in its group, so
    neither many short steps nor a long one pay more than that mean. `rloo` of the outcome is added. form=sum
    keeps the rewards; its policies learn to write more high-scoring steps. Steps have a price, exactly so
    under form=sum."""
    n_NT = r.tokens_NT
    reward_NT = form_weights(r.step_reward_NT, n_NT > 0, form) * r.step_reward_NT
    reward_N, tokens_N = reward_NT.sum(1), n_NT.sum(1)
    others_reward_N = of_group(reward_N, r.group_N) - reward_N
    others_tokens_N = of_group(tokens_N, r.group_N) - tokens_N
    a_token_N = np.where(others_tokens_N > 0, others_reward_N / np.maximum(others_tokens_N, 1), 0.0)
    return r.at_steps(returns(reward_NT - a_token_N[:, None] * n_NT)) + outcome_rloo(r)


def form_weights(step_reward_NT, is_step_NT, form: str, temperature: float = 0.1) -> np.ndarray:
    """The weight of each step's reward: softmax(-r / temperature) over a response's steps; form=sum: 1."""
    if form == "sum":
        return is_step_NT * 1.0
    logit_NT = np.where(is_step_NT, -step_reward_NT / temperature, -1e30)
    return np.where(is_step_NT, softmax(logit_NT, 1), 0.0)


def pav(r: Responses) -> np.ndarray:
    """Process advantage verifiers (Setlur et al. 2024, arXiv 2410.08146, eq. 5): A_t = the step reward, the
    prover's advantage of the token's step (reward.prm_form=difference of a prover's values), plus `rloo` of
    the outcome. Of rewards that are no advantages the gradient is biased."""
    return r.at_steps(r.step_reward_NT) + outcome_rloo(r)


def reinforce(r: Responses) -> np.ndarray:
    """REINFORCE++ (Hu 2025, arXiv 2501.03262, without a discount), before it is whitened: the sum of step
    rewards from the token's step on, plus the outcome; groups play no part. Unbiased."""
    return r.at_steps(returns(r.step_reward_NT)) + r.at_all(r.outcome_N)


def whitened(advantage_NL, mask_NL) -> np.ndarray:
    """The advantage less its mean over the batch's tokens, divided by their (population) standard deviation.
    The mean is one baseline for all tokens, so in a large batch the expected gradient keeps its direction."""
    mean, deviation = advantage_NL[mask_NL].mean(), advantage_NL[mask_NL].std()
    return np.where(mask_NL, divided(advantage_NL - mean, deviation), 0.0)


class Estimator(NamedTuple):
    """An advantage estimator and what a run has to know of it."""

    f: Callable
    options: tuple[str, ...] = ()  # the fields of EstimatorConfig that f takes as arguments
    needs_group: bool = True  # its baseline is the other responses to the problem
    whitens: bool = False  # f's advantages are then whitened


ESTIMATORS = {
    "grpo": Estimator(grpo, ("normalise",)),
    "grpo_process": Estimator(grpo_process, ("normalise",)),
    "rloo": Estimator(rloo),
    "rloo_steps": Estimator(rloo_steps),
    "rloo_sources": Estimator(rloo_sources),
    "pure": Estimator(pure, ("form",)),
    "pav": Estimator(pav),
    "reinforce": Estimator(reinforce, needs_group=False, whitens=True),
}


@dataclasses.dataclass(frozen=True)
class EstimatorConfig:  # the estimator and the options of all of them; conf/rl.yaml says what each key means
    advantage: Annotated[str, one_of(ESTIMATORS)]
    normalise: bool
    form: Literal["min", "sum"]

    @property
    def estimator(self) -> Estimator:
        return ESTIMATORS[self.advantage]

    def estimate(self, r: Responses) -> np.ndarray:
        """advantage_NL by the chosen estimator with its options."""
        options = {name: getattr(self, name) for name in self.estimator.options}
        advantage_NL = self.estimator.f(r, **options)
        return whitened(advantage_NL, r.mask_NL) if self.estimator.whitens else advantage_NL


def keep_mixed(right_N, group_N, low: float = 0.0, high: float = 1.0) -> np.ndarray:
    """keep_N is True for groups with right and wrong answers (DAPO, Yu et al. 2025, arXiv 2503.14476) whose
    share of right ones is in [low, high] (PRIME's filter: .2, .8)."""
    share_N = of_group(right_N, group_N) / of_group(np.ones(len(group_N)), group_N)
    is_mixed_N = (share_N > TINY) & (share_N < 1 - TINY)
    return is_mixed_N & (share_N >= low - TINY) & (share_N <= high + TINY)
