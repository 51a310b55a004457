"""Policies trained by an answer checker, a PRM, both, against policy tokens (PURE, GRPO, PRIME).
`python -m examples.papers.run rl --redraw`; README.md: its question, what was expected."""

import numpy as np
import pandas as pd

from examples.papers.run import Difference, Figure, Table, by_value, draw_panels

PANELS = {
    "eval_pass_at_1": "right (gold)",
    "eval_pass_at_4": "right in one of 4",
    "eval_sound": "right, no wrong step",
    "eval_reward": "reward (proxy)",
    "eval_steps_a_solution": "lines a solution",
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


CHECKER, PURE, PRIME = "checker (RLOO)", "PRM + checker (PURE)", "PRIME by steps"
SHOWN = CHECKER, PURE, "PRM + checker (RLOO)"


def draw(table):
    names = RIGHT, PANELS["eval_pass_at_4"]
    return draw_panels(table[table.series.isin(SHOWN)], names, "thousand policy tokens")


# rl.csv's rows of the two PRIME arms were made when algorithm=prime divided rewards by the batch's largest
# return and whitened advantages. It no longer does, so a new run of these two makes other numbers.
BY_PRM = "reward.prm_checkpoint={prm}"
DIFFERENCE = "reward.answer=0.5 reward.prm=0.5 reward.prm_form=difference"
ARMS = {
    CHECKER: "prm_jax.rl advantage=rloo reward.prm_checkpoint=null",
    PURE: f"prm_jax.rl {BY_PRM} advantage=pure form=min reward.answer=0.5 reward.prm=0.25",
    "checker (GRPO)": "prm_jax.rl advantage=grpo reward.prm_checkpoint=null",
    "checker (as PRIME)": "prm_jax.rl algorithm=prime reward.prm=0 reward.prm_checkpoint=null",
    PRIME: "examples.online algorithm=prime reward.prm_checkpoint=embedded",
    "PRM + checker (RLOO)": f"prm_jax.rl {BY_PRM} advantage=rloo {DIFFERENCE}",
    "PRM + checker (RLOO by steps)": f"prm_jax.rl {BY_PRM} advantage=rloo_steps {DIFFERENCE}",
}
STAGES = {
    "prm": "train.py seed={seed}",
    "policy": "-m {reward} apart={prm} seed={seed} steps=40 eval.every=8 eval.n=4",
}
COMPARE = [
    Difference(RIGHT, PURE, CHECKER),
    Difference(RIGHT, f"{PURE} at equal tokens", CHECKER),
    Difference(RIGHT, "checker (GRPO)", CHECKER),
    Difference(RIGHT, PRIME, "checker (as PRIME)"),
    Difference(RIGHT, "PRM + checker (RLOO by steps)", "PRM + checker (RLOO)"),
]
SWEEP = {"reward": ARMS, "seed": range(8)}
FIGURES = {"rl": Figure(STAGES, gather, draw, COMPARE, SWEEP)}
