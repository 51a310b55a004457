"""Policies trained by an answer checker, a PRM, both, to the plateau, against policy tokens (PURE, GRPO).

python -m examples.papers.run rl --redraw       # README.md: its question, what was expected
"""

import itertools
from functools import partial

import numpy as np

from examples.papers.run import Difference, Figure, Table, by_value, draw_panels
from prm_jax.figures.learning import PANELS, histories

RIGHT = PANELS["eval_pass_at_1"]


def gather(stages: dict) -> Table:
    """Evaluations on problems that no policy learns from; x: thousand policy tokens."""
    table, end_S = Table(), None
    for kind, members in by_value(stages["policy"], "reward").items():
        runs = histories([stage.folder for stage in members])
        tokens_SX = np.array([run["tokens"] for run in runs]) / 1e3
        for name, panel in PANELS.items():
            if np.isfinite(y_SX := [run[name] for run in runs]).any():
                table.curve(panel, kind, tokens_SX.mean(0), y_SX)
        end_S = tokens_SX[:, -1] if end_S is None else end_S  # of the first arm
        left_S = end_S - [verifier_tokens(stage, stages) / 1e3 for stage in members]
        if (left_S < end_S).any():
            triples = zip(left_S, tokens_SX, runs, strict=True)
            y_S = [np.interp(left, tokens_X, run["eval_pass_at_1"]) for left, tokens_X, run in triples]
            table.number(RIGHT, f"{kind} at equal tokens", y_S, left_S.mean())
    return table


def verifier_tokens(stage, stages: dict) -> int:
    """Policy tokens of the training samples of the verifier that rewards a policy, 0 where none does."""
    every = itertools.chain(*stages.values())
    used = [x for x in every if f"reward.prm_checkpoint={x.folder}" in stage.words]
    return sum(x.results("summary.json")["counts"]["policy_tokens"] for x in used)


draw = partial(draw_panels, names=list(PANELS.values()), xlabel="thousand policy tokens")
CHECKER, PURE, ALONE = "checker (RLOO)", "PRM + checker (PURE)", "PRM alone (PURE)"
BY_PRM = "reward.prm_checkpoint={prm} advantage=pure"
ARMS = {  # rewards of an interval of length 1 each
    CHECKER: "prm_jax.rl advantage=rloo",
    PURE: f"prm_jax.rl {BY_PRM} reward.answer=0.5 reward.prm=0.25",
    ALONE: f"prm_jax.rl {BY_PRM} reward.answer=0 reward.prm=0.5",
}
STAGES = {
    "prm": "train.py seed={seed}",
    "policy": "-m {reward} apart={prm} seed={seed} steps=120 eval.every=12 eval.n=4",
}
COMPARE = [
    Difference(RIGHT, PURE, CHECKER),
    Difference(RIGHT, f"{PURE} at equal tokens", CHECKER),
    Difference(RIGHT, ALONE, CHECKER),
    Difference(PANELS["eval_sound"], PURE, CHECKER),
]
SWEEP = {"reward": ARMS, "seed": range(8)}
FIGURES = {"rl": Figure(STAGES, gather, draw, COMPARE, SWEEP)}
