"""Policies trained by an answer checker, a PRM, both, to the plateau, against policy tokens (PURE).
`python -m examples.papers.run rl --redraw`; README.md: its question, what was expected."""

import numpy as np
import pandas as pd

from examples.papers.panels import draw_panels
from examples.papers.run import Difference, Figure, Table, by_value

PANELS = {
    "eval_pass_at_1": "right answers",
    "eval_pass_at_4": "right in one of 4",
    "eval_sound": "right, no wrong step",
    "eval_reward": "reward (proxy)",
    "eval_steps_a_solution": "steps of a solution",
    "eval_kl": "KL from the first policy (nats a token)",
}
RIGHT = PANELS["eval_pass_at_1"]


def evaluations(stage) -> pd.DataFrame:
    """The lines of a run's evaluations; no tokens are written before the first."""
    lines = pd.read_json(stage.folder / "metrics.jsonl", lines=True).fillna({"total_policy_tokens": 0})
    return lines.dropna(subset=list(PANELS))


def gather(stages: dict) -> Table:
    """Evaluations on problems that no policy learns from; x: thousand policy tokens."""
    table, end_S, tokens_of = Table(), None, {}
    for prm in stages["prm"]:  # its training samples cost tokens, too
        counts = prm.results("summary.json")["counts"]
        tokens_of[f"reward.prm_checkpoint={prm.folder}"] = counts["policy_tokens"]
    for kind, members in by_value(stages["policy"], "reward").items():
        runs = list(map(evaluations, members))
        tokens_SX = np.array([run["total_policy_tokens"] for run in runs]) / 1e3
        for name, panel in PANELS.items():
            table.curve(panel, kind, tokens_SX.mean(0), [run[name] for run in runs])
        end_S = tokens_SX[:, -1] if end_S is None else end_S  # of the first arm
        left_S = end_S - [sum(tokens_of.get(word, 0) for word in x.words) / 1e3 for x in members]
        if (left_S < end_S).any():
            triples = zip(left_S, tokens_SX, runs, strict=True)
            y_S = [np.interp(left, tokens_X, run["eval_pass_at_1"]) for left, tokens_X, run in triples]
            table.number(RIGHT, f"{kind} at equal tokens", y_S, left_S.mean())
    return table


CHECKER, PURE, ALONE = "checker (RLOO)", "PRM + checker (PURE)", "PRM alone (PURE)"


def draw(table):
    curves = table[~table.series.str.endswith("equal tokens")]
    return draw_panels(curves, [RIGHT, PANELS["eval_steps_a_solution"]], "thousand policy tokens")


BY_PRM = "prm_jax.rl reward.prm_checkpoint={prm} advantage=pure"
ARMS = {  # the answer's reward plus the lowest step's lies in an interval of length 1
    CHECKER: "prm_jax.rl advantage=rloo",
    PURE: f"{BY_PRM} reward.answer=0.5 reward.prm=0.25",
    ALONE: f"{BY_PRM} reward.answer=0 reward.prm=0.5",
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
