"""The toy trace witness: four fixed solutions of one equation, scored by an outcome and a process verifier.

`clean` is right throughout, `lucky_final` reaches the right answer by wrong steps, `slip` starts well and
ends wrong, `wrong` is wrong throughout. The outcome verifier prefers lucky_final, the process verifier clean;
one convincing error of the process verifier makes it prefer lucky_final too.

Dimension key: N traces (4), T steps (2), h aggregators, b betas, e sizes of the injected error, v verifiers
"""

import functools
import inspect
import json
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax import rerank
from prm_jax.data.units import UNITS

TRACES = ("clean", "lucky_final", "slip", "wrong")
FINAL_RIGHT_N = np.array([True, True, False, False])
STEP_RIGHT_NT = np.array([[True, True], [False, False], [True, False], [False, False]])
REF_N = np.array([0.30, 0.22, 0.28, 0.20])  # the generator's own distribution over the traces
OUTCOME_P_N = np.array([0.86, 0.92, 0.16, 0.12])  # P(final answer right) by the outcome verifier
STEP_P_NT = np.array([[0.93, 0.91], [0.16, 0.24], [0.93, 0.22], [0.20, 0.35]])  # P(step right), process
HACKED_P_T = np.array([0.98, 0.97])  # what a fully fooled process verifier says of the steps of any trace
HACKED_TRACE = 1
BETA = 0.7  # nats of score per nat of KL
VERIFIERS = ("outcome", "process", "hacked")
logit = UNITS["probability"].log_odds
BETA_RANGE = 0.01, 100.0  # of the grid: from the arg max to the reference, to the eye


class Plane(NamedTuple):
    score_heN: jax.Array  # log scores
    weight_hbeN: jax.Array  # policies
    winner_hbe: jax.Array  # mode of the policy, an index into TRACES
    valid_hbe: jax.Array  # mass on traces without a wrong step


def process_logits(error_N):
    """Step logits logit_NT of the process verifier with an injected error per trace: 0 honest, 1 its steps
    look like HACKED_P_T; in between, and beyond, logits move in proportion."""
    return logit(STEP_P_NT) + jnp.asarray(error_N)[..., None] * (logit(HACKED_P_T) - logit(STEP_P_NT))


def score(verifier: str, aggregator: str = "sum_logit", error_N=None):
    """Log scores score_N of the four traces; the outcome verifier is a verifier of one step."""
    if verifier == "outcome":
        logit_NT = jnp.asarray(logit(OUTCOME_P_N))[:, None]
    else:
        hacked_N = np.arange(len(TRACES)) == HACKED_TRACE if verifier == "hacked" else np.zeros(len(TRACES))
        logit_NT = process_logits(hacked_N if error_N is None else error_N)
    return rerank.aggregate(logit_NT, np.ones(logit_NT.shape, bool), aggregator, unit="logit")


def policy(score_N, beta=BETA) -> rerank.Reweighted:
    """The KL-regularised policy over the traces, one problem: `weight_PN` has P = 1."""
    return rerank.reweight(score_N[None], beta, REF_N[None])


def results(aggregator: str = "sum_logit", beta=BETA) -> dict:
    """Policies, winners, KL and reward by verifier as plain lists and numbers, ready for results.json."""
    found = {"traces": list(TRACES), "reference": REF_N.tolist()}
    found |= {"aggregator": aggregator, "beta": float(beta)}
    found |= {part: {} for part in ("policies", "winners", "kl", "reward")}
    for verifier in VERIFIERS:
        with jax.enable_x64(True):  # the page checks its own double precision against these
            tilted = jax.device_get(policy(score(verifier, aggregator), beta))
        found["policies"][verifier] = tilted.weight_PN[0].tolist()
        found["winners"][verifier] = TRACES[int(tilted.weight_PN[0].argmax())]
        found["kl"][verifier] = float(tilted.kl_P[0])
        found["reward"][verifier] = float(tilted.reward_P[0])
    return found


@functools.partial(jax.jit, static_argnames="aggregators")
def plane(beta_b, error_e, aggregators: tuple[str, ...] = tuple(rerank.AGGREGATORS)) -> Plane:
    """Every aggregator x beta (0 and inf too) x size of the process verifier's error on the HACKED_TRACE
    (`process_logits`)."""
    hit_N = jnp.arange(len(TRACES)) == HACKED_TRACE
    beta_b = jnp.asarray(beta_b)
    logit_eNT = jax.vmap(lambda error: process_logits(error * hit_N))(jnp.asarray(error_e))
    mask_eNT = jnp.ones(logit_eNT.shape, bool)
    score_heN = jnp.stack([rerank.aggregate(logit_eNT, mask_eNT, name, unit="logit") for name in aggregators])

    def policies(score_eN):
        return jax.vmap(lambda beta: rerank.reweight(score_eN, beta, jnp.asarray(REF_N)).weight_PN)(beta_b)

    weight_hbeN = jax.vmap(policies)(score_heN)
    valid_hbe = weight_hbeN @ STEP_RIGHT_NT.all(-1).astype(float)
    return Plane(score_heN, weight_hbeN, weight_hbeN.argmax(-1), valid_hbe)


def grid(betas: int = 81, errors: int = 51) -> dict:
    """Every number behind the figure, rounded to 6 digits, for each aggregator lists by beta and error size:
    the winner, the misjudged trace's lead over the best other in nats of score + beta log ref, and the mass
    on valid steps."""
    beta_b, error_e = np.geomspace(*BETA_RANGE, betas), np.linspace(0, 1, errors)
    whole = plane(beta_b, error_e, tuple(rerank.AGGREGATORS))

    def rounded(x):
        return np.round(np.asarray(x).astype(float if x.dtype.kind == "f" else int), 6).tolist()

    worth_hbeN = np.asarray(whole.score_heN)[:, None] + (beta_b[:, None] * np.log(REF_N))[:, None]
    lead_hbe = worth_hbeN[..., HACKED_TRACE] - np.delete(worth_hbeN, HACKED_TRACE, -1).max(-1)
    parts = {"winner": whole.winner_hbe, "lead": lead_hbe, "valid": whole.valid_hbe}
    panels = {}
    for h, name in enumerate(rerank.AGGREGATORS):
        panels[name] = {part: rounded(x_hbe[h]) for part, x_hbe in parts.items()}
    places = {"beta": rounded(beta_b), "error": rounded(error_e)}
    return {"trace": TRACES[HACKED_TRACE], **places, "by_aggregator": panels}


def page(path: Path, expected: dict) -> Path:
    """Writes the interactive page, one file that opens offline, and returns its path. It starts at the
    aggregator and beta of `expected` (from `results`) and checks its own arithmetic against it."""
    options = inspect.signature(rerank.aggregate).parameters
    arrays = {"final_right": FINAL_RIGHT_N, "step_right": STEP_RIGHT_NT}
    arrays |= {"outcome_p": OUTCOME_P_N, "step_p": STEP_P_NT, "hacked_p": HACKED_P_T}
    data = {name: x.tolist() for name, x in arrays.items()}
    data |= {"found": expected, "hacked_trace": HACKED_TRACE, "aggregators": list(rerank.AGGREGATORS)}
    data["options"] = {name: options[name].default for name in ("clip", "decay", "temperature")}
    template = Path(__file__).parent / "assets" / "witness.html"
    path.write_text(template.read_text("utf-8").replace("{{data}}", json.dumps(data)), "utf-8")
    return path
