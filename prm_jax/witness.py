"""The toy trace witness: four fixed solutions of one equation, scored by an outcome and by a process verifier.

`clean` is right throughout, `lucky_final` reaches the right answer by wrong steps, `slip` starts well and ends wrong,
`wrong` is wrong throughout. The outcome verifier prefers lucky_final, the process verifier clean; one convincing
error of the process verifier makes it prefer lucky_final too. Everything is `rerank.aggregate` and
`rerank.reweight`; `plane` does it for a whole grid in one jit. Numbers only: nothing here draws or writes.

Dimension key
  N traces (4), T steps (2)
  h aggregators, b betas, e sizes of the injected error
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax import rerank

TRACES = ("clean", "lucky_final", "slip", "wrong")
FINAL_RIGHT_N = np.array([True, True, False, False])
STEP_RIGHT_NT = np.array([[True, True], [False, False], [True, False], [False, False]])
REF_N = np.array([0.30, 0.22, 0.28, 0.20])  # the generator's own law over the traces
OUTCOME_P_N = np.array([0.86, 0.92, 0.16, 0.12])  # P(final answer right) by the outcome verifier
STEP_P_NT = np.array(
    [[0.93, 0.91], [0.16, 0.24], [0.93, 0.22], [0.20, 0.35]]
)  # P(step right), process verifier
HACKED_P_T = np.array([0.98, 0.97])  # what a fully fooled process verifier says of the steps of any trace
HACKED_TRACE = 1
BETA = 0.7  # nats of score per nat of KL
VERIFIERS = ("outcome", "process", "hacked")


class Plane(NamedTuple):
    """score_heN: log scores. weight_hbeN: policies. kl_hbe: nats from REF_N. reward_hbe: mean score. winner_hbe: mode
    of the policy, an index into TRACES. right_hbe, valid_hbe: mass on right final answers, on traces without a wrong
    step."""

    score_heN: jax.Array
    weight_hbeN: jax.Array
    kl_hbe: jax.Array
    reward_hbe: jax.Array
    winner_hbe: jax.Array
    right_hbe: jax.Array
    valid_hbe: jax.Array


def logit(p):
    return np.log(p) - np.log1p(-p)


def process_logits(error_N):
    """Step logits logit_NT of the process verifier with an injected error per trace.

    error_N: 0 honest, 1 the trace's steps look like HACKED_P_T; in between, and beyond, logits move in proportion.
    """
    return logit(STEP_P_NT) + jnp.asarray(error_N)[..., None] * (logit(HACKED_P_T) - logit(STEP_P_NT))


def score(verifier: str, how: str = "sum_logit", error_N=None):
    """Log scores score_N of the four traces; the outcome verifier is a verifier of one step."""
    if verifier == "outcome":
        logit_NT = jnp.asarray(logit(OUTCOME_P_N))[:, None]
    else:
        hacked_N = np.arange(len(TRACES)) == HACKED_TRACE if verifier == "hacked" else np.zeros(len(TRACES))
        logit_NT = process_logits(hacked_N if error_N is None else error_N)
    return rerank.aggregate(logit_NT, np.ones(logit_NT.shape, bool), how, unit="logit")


def policy(score_N, beta=BETA) -> rerank.Reweighted:
    """The KL-regularised policy over the traces, one problem: `weight_PN` has P = 1."""
    return rerank.reweight(score_N[None], beta, REF_N[None])


def results(how: str = "sum_logit", beta=BETA) -> dict:
    """Policies, winners, KL and reward by verifier as plain lists and numbers, ready for results.json."""
    laws = {verifier: policy(score(verifier, how), beta) for verifier in VERIFIERS}
    return {
        "traces": list(TRACES),
        "aggregator": how,
        "beta": float(beta),
        "policies": {name: np.asarray(law.weight_PN[0], float).tolist() for name, law in laws.items()},
        "winners": {name: TRACES[int(law.weight_PN[0].argmax())] for name, law in laws.items()},
        "kl": {name: float(law.kl_P[0]) for name, law in laws.items()},
        "reward": {name: float(law.reward_P[0]) for name, law in laws.items()},
    }


@functools.partial(jax.jit, static_argnames=("hows", "trace"))
def plane(beta_b, error_e, hows: tuple[str, ...] = rerank.AGGREGATORS, trace: int = HACKED_TRACE) -> Plane:
    """Every aggregator x beta x size of the error that the process verifier makes on one trace.

    beta_b: any betas, 0 and inf included. error_e: 0 honest to 1 fully fooled (`process_logits`).
    """
    hit_N = jnp.arange(len(TRACES)) == trace
    logit_eNT = jax.vmap(lambda error: process_logits(error * hit_N))(jnp.asarray(error_e))
    mask_eNT = jnp.ones(logit_eNT.shape, bool)
    score_heN = jnp.stack([rerank.aggregate(logit_eNT, mask_eNT, how, unit="logit") for how in hows])
    over_e = functools.partial(rerank.reweight, ref_PN=REF_N)
    over_be = jax.vmap(over_e, in_axes=(None, 0))
    law = jax.vmap(over_be, in_axes=(0, None))(score_heN, jnp.asarray(beta_b))
    mass = lambda traces_N: law.weight_PN @ jnp.asarray(traces_N, law.weight_PN.dtype)
    return Plane(
        score_heN=score_heN,
        weight_hbeN=law.weight_PN,
        kl_hbe=law.kl_P,
        reward_hbe=law.reward_P,
        winner_hbe=law.weight_PN.argmax(-1),
        right_hbe=mass(FINAL_RIGHT_N),
        valid_hbe=mass(STEP_RIGHT_NT.all(-1)),
    )
