"""What a token of a roll-out is worth: one pure function an estimator, each with its equation.

Every estimator is f(step_reward_NT, outcome_N, step_of_token_NL, mask_NL, group_N) -> advantage_NL, in numpy:

step_reward_NT    reward of each step of each response, 0 where a response has no such step
outcome_N         reward of the whole response
step_of_token_NL  which step a token belongs to, from 0
mask_NL           True for the tokens that the policy wrote
group_N           which prompt a response answers; a baseline is of one group

A step reward stays where it falls: it is never summed into one number a response, but by SUMMING. Outcome and step rewards have
baselines of their own (per source, as PRIME and GDPO), so that the scale of one does not drown the other.

grpo_process, rloo_sources and pure take a baseline from every step, so a step more costs the mean step reward. Where the policy
decides when to stop they raise not R but R - (mean step reward) x (number of steps), exactly so rloo_sources and pure's sum form:
fewer steps than R asks for where that mean is positive (P(good)), more where it is negative. grpo, rloo, reinforce: no such price.

Dimension key: N responses, T steps, L tokens, G groups.
"""

import numpy as np

TINY = 1e-8  # below this a deviation is rounding, and what is divided by it stays 0


def tokens_of_steps(step_of_token_NL, mask_NL, steps: int) -> np.ndarray:
    """How many tokens each step has, n_NT; 0: the response has no such step."""
    return of_steps(np.ones(mask_NL.shape), step_of_token_NL, mask_NL, steps).astype(int)


def at_tokens(x_NT, step_of_token_NL, mask_NL) -> np.ndarray:
    """Every token gets its step's number, x_NL; 0 where the mask is off."""
    step_NL = np.minimum(step_of_token_NL, x_NT.shape[1] - 1)
    return np.where(mask_NL, np.take_along_axis(x_NT, step_NL, 1), 0.0)


def of_steps(x_NL, step_of_token_NL, mask_NL, steps: int) -> np.ndarray:
    """The sum of the tokens' numbers over each step, sum_NT."""
    is_of_step_NLT = (step_of_token_NL[:, :, None] == np.arange(steps)) & mask_NL[:, :, None]
    return (x_NL[:, :, None] * is_of_step_NLT).sum(1)


def of_group(x_N, group_N) -> np.ndarray:
    """The sum of x over each response's group, sum_N."""
    _, index_N = np.unique(group_N, return_inverse=True)
    return np.bincount(index_N, np.asarray(x_N, float))[index_N]


def returns(x_NT) -> np.ndarray:
    """The sum of this number and all after it, sum_NT."""
    return np.cumsum(x_NT[:, ::-1], 1)[:, ::-1]


def divided(x, deviation):
    """x / deviation, 0 where all are alike."""
    return np.where(deviation > TINY, x / np.maximum(deviation, TINY), 0.0)


def centred(x_N, group_N, normalise: bool) -> np.ndarray:
    """x - mean of its group, over the group's (population) standard deviation where asked."""
    n_N = of_group(np.ones(len(x_N)), group_N)
    x_N = x_N - of_group(x_N, group_N) / n_N
    return divided(x_N, np.sqrt(of_group(x_N**2, group_N) / n_N)) if normalise else x_N


def leave_one_out(x_N, group_N) -> np.ndarray:
    """x - mean of the others of its group; 0 for a response without others. These sum to 0 over a group."""
    n_N = of_group(np.ones(len(x_N)), group_N)
    return np.where(n_N > 1, (n_N * x_N - of_group(x_N, group_N)) / np.maximum(n_N - 1, 1), 0.0)


def total(step_reward_NT, outcome_N) -> np.ndarray:
    """All of a response's reward as one number: what verl's GRPO and RLOO make of step rewards before they begin."""
    return outcome_N + step_reward_NT.sum(1)


def grpo(step_reward_NT, outcome_N, step_of_token_NL, mask_NL, group_N, normalise: bool = True) -> np.ndarray:
    """Outcome GRPO (Shao et al. 2024, arXiv 2402.03300, 4.1.2): A = (R - mean R) / std R at every token, R = `total`.

    Without `normalise` Dr. GRPO's (Liu et al. 2025, arXiv 2503.20783), whose loss has no mean over a response's tokens either
    (loss_norm=constant).
    """
    advantage_N = centred(total(step_reward_NT, outcome_N), group_N, normalise)
    return np.where(mask_NL, advantage_N[:, None], 0.0)


def grpo_process(step_reward_NT, outcome_N, step_of_token_NL, mask_NL, group_N, normalise: bool = True) -> np.ndarray:
    """GRPO with process supervision (Shao et al. 2024, 4.1.3): r~ = (r - mean R) / std R over all steps of all responses of the
    group, A = the sum of r~ from the token's step on; to which `grpo` of the outcome is added."""
    is_step_NT = tokens_of_steps(step_of_token_NL, mask_NL, step_reward_NT.shape[1]) > 0
    row_n, step_n = is_step_NT.nonzero()
    own_NT = np.zeros(is_step_NT.shape)
    own_NT[row_n, step_n] = centred(step_reward_NT[row_n, step_n], np.asarray(group_N)[row_n], normalise)
    process_NL = at_tokens(returns(own_NT), step_of_token_NL, mask_NL)
    return process_NL + grpo(np.zeros((len(outcome_N), 1)), outcome_N, step_of_token_NL, mask_NL, group_N, normalise)


def rloo(step_reward_NT, outcome_N, step_of_token_NL, mask_NL, group_N) -> np.ndarray:
    """REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv 2402.14740): A_i = R_i - mean of the other R_j, R = `total`."""
    return np.where(mask_NL, leave_one_out(total(step_reward_NT, outcome_N), group_N)[:, None], 0.0)


def rloo_sources(step_reward_NT, outcome_N, step_of_token_NL, mask_NL, group_N) -> np.ndarray:
    """RLOO per reward source (PRIME, Cui et al. 2025, arXiv 2502.01456, eq. 5, with steps in place of tokens):

    A_t = sum over steps s >= t of (r_s - mean over the others j of the mean step reward of j), and `rloo` of the outcome.
    """
    is_step_NT = tokens_of_steps(step_of_token_NL, mask_NL, step_reward_NT.shape[1]) > 0
    mean_N = (step_reward_NT * is_step_NT).sum(1) / np.maximum(is_step_NT.sum(1), 1)
    baseline_N = mean_N - leave_one_out(mean_N, group_N)
    own_NT = np.where(is_step_NT, step_reward_NT - baseline_N[:, None], 0.0)
    return at_tokens(returns(own_NT), step_of_token_NL, mask_NL) + outcome_rloo(outcome_N, mask_NL, group_N)


def pure(
    step_reward_NT, outcome_N, step_of_token_NL, mask_NL, group_N, temperature: float = 0.1, min_form: bool = True
) -> np.ndarray:
    """PURE (Cheng et al. 2025, arXiv 2504.15275): the return is the lowest step reward to come, not their sum.

    Rewards become r* = softmax(-r / temperature) r, whose sum from a step on is about the lowest where that is still ahead, and
    about 0 behind it. The baseline is per token, as in the authors' code: a step of n tokens loses n times the mean reward a token
    of the others of its group, so neither splitting a step nor an enormous one pays. `rloo` of the outcome is added. Without
    `min_form` the sum form with the same baseline, whose policies learn to write more steps that score above the mean.
    """
    n_NT = tokens_of_steps(step_of_token_NL, mask_NL, step_reward_NT.shape[1])
    own_NT = min_weights(step_reward_NT, n_NT > 0, temperature) * step_reward_NT if min_form else step_reward_NT
    own_NT = np.where(n_NT > 0, own_NT, 0.0)
    reward_N, tokens_N = own_NT.sum(1), n_NT.sum(1)
    others_N, other_tokens_N = of_group(reward_N, group_N) - reward_N, of_group(tokens_N, group_N) - tokens_N
    a_token_N = np.where(other_tokens_N > 0, others_N / np.maximum(other_tokens_N, 1), 0.0)
    return_NT = returns(own_NT - a_token_N[:, None] * n_NT)
    return at_tokens(return_NT, step_of_token_NL, mask_NL) + outcome_rloo(outcome_N, mask_NL, group_N)


def min_weights(step_reward_NT, is_step_NT, temperature: float) -> np.ndarray:
    """softmax(-r / temperature) over the steps of each response, weight_NT."""
    logit_NT = np.where(is_step_NT, -step_reward_NT / temperature, -np.inf)
    top_N1 = np.max(logit_NT, 1, keepdims=True, initial=-1e30)
    weight_NT = np.exp(logit_NT - top_N1)
    return weight_NT / np.maximum(weight_NT.sum(1, keepdims=True), TINY)


def pav(step_reward_NT, outcome_N, step_of_token_NL, mask_NL, group_N) -> np.ndarray:
    """Process advantage verifiers (Setlur et al. 2024, arXiv 2410.08146, eq. 5): A_t = the prover's advantage of the token's own
    step, which is the step reward (reward.prm_form=difference of a prover's values), and `rloo` of the outcome."""
    return at_tokens(step_reward_NT, step_of_token_NL, mask_NL) + outcome_rloo(outcome_N, mask_NL, group_N)


def reinforce(step_reward_NT, outcome_N, step_of_token_NL, mask_NL, group_N, discount: float = 1.0) -> np.ndarray:
    """REINFORCE++ (Hu 2025, arXiv 2501.03262): discounted returns of rewards where they fall, a step's at its last token and the
    outcome at the response's, normalised over all tokens of the batch; groups play no part."""
    N, L = mask_NL.shape
    last_NL = mask_NL & np.append(
        ~mask_NL[:, 1:] | (step_of_token_NL[:, 1:] != step_of_token_NL[:, :-1]), np.ones((N, 1), bool), 1
    )
    reward_NL = np.where(last_NL, at_tokens(step_reward_NT, step_of_token_NL, mask_NL), 0.0)
    end_N = L - 1 - mask_NL[:, ::-1].argmax(1)
    reward_NL[np.arange(N), end_N] += outcome_N
    return_NL = np.zeros((N, L + 1))
    for at in reversed(range(L)):
        return_NL[:, at] = reward_NL[:, at] + discount * return_NL[:, at + 1]
    return_NL = return_NL[:, :-1]
    mean, deviation = return_NL[mask_NL].mean(), return_NL[mask_NL].std()
    return np.where(mask_NL, divided(return_NL - mean, deviation), 0.0)


def outcome_rloo(outcome_N, mask_NL, group_N) -> np.ndarray:
    return np.where(mask_NL, leave_one_out(outcome_N, group_N)[:, None], 0.0)


ESTIMATORS = {f.__name__: f for f in (grpo, grpo_process, rloo, rloo_sources, pure, pav, reinforce)}
SUMMING = ("grpo", "rloo")  # these make one number a response of step rewards, `total`; the others are dense


def shared_by(prefixes: list[tuple], group_N, steps: int) -> np.ndarray:
    """How many responses of its group share each response's steps up to and including step t, count_NT (at least 1).

    lambda-GRPO (arXiv 2509.21154): outcome GRPO weighs a step that many roll-outs share by their number; dividing each token's
    loss by this count undoes it. prefixes: the steps of each response.
    """
    counts, keys = {}, []
    for group, own in zip(group_N, prefixes, strict=True):
        keys.append([(group, own[: t + 1]) for t in range(min(len(own), steps))])
        for key in keys[-1]:
            counts[key] = counts.get(key, 0) + 1
    count_NT = np.ones((len(prefixes), steps))
    for row, own in enumerate(keys):
        count_NT[row, : len(own)] = [counts[key] for key in own]
    return count_NT


def keep_mixed(outcome_N, group_N) -> np.ndarray:
    """Dynamic sampling (DAPO, Yu et al. 2025, arXiv 2503.14476): only groups whose outcomes differ, keep_N."""
    return of_group(centred(outcome_N, group_N, False) ** 2, group_N) > TINY


def keep_prof(mean_step_N, right_N, group_N, share: float = 0.5) -> np.ndarray:
    """PROF (arXiv 2509.03403): of each group the right responses whose steps score highest and the wrong ones whose steps score
    lowest, so that right and wrong are as equal in number as they can be, keep_N; a share of each group is kept.

    The PRM chooses what is learned from and is no reward, so there is nothing in it to hack.
    """
    keep_N, right_N = np.zeros(len(right_N), bool), np.asarray(right_N, bool)
    for group in np.unique(group_N):
        own = np.flatnonzero(group_N == group)
        n_kept = max(1, round(share * len(own)))
        right, wrong = own[right_N[own]], own[~right_N[own]]
        right = right[np.argsort(-mean_step_N[right], kind="stable")]
        wrong = wrong[np.argsort(mean_step_N[wrong], kind="stable")]
        n_right = min(len(right), max(n_kept // 2, n_kept - len(wrong)))
        keep_N[right[:n_right]] = keep_N[wrong[: n_kept - n_right]] = True
    return keep_N
