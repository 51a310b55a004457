"""Policies in training: what they solve, and what shows hacking, against the tokens that they have written."""

import numpy as np

from prm_jax.figures.paper import signed, values_of
from prm_jax.figures.pipeline import Stage
from prm_jax.figures.records import read_lines
from prm_jax.figures.style import Drawn, legend_above, line_style, over_seeds, panels

PANELS = {
    "eval_pass_at_1": "right (gold)",
    "eval_sound": "right, no wrong step",
    "eval_reward": "reward (proxy)",
    "eval_steps_a_solution": "lines a solution",
    "eval_restated": "share of restated lines",
    "eval_kl": "KL from the first policy (nats a token)",
    "eval_entropy": "entropy (nats a token)",
    "eval_prm_step_auroc": "AUROC of the PRM on this policy's steps",
}
GAIN = 0.15  # of right answers: tokens to it are told
SHARES = ("eval_pass_at_1", "eval_sound", "eval_restated", "eval_prm_step_auroc")
TOLD = list(PANELS)[:5]  # in words, too


def draw(stages: dict[str, list[Stage]]) -> Drawn:
    figure, axes = panels(4, 2, 9.0, sharex=True)
    drawn = Drawn(figure, "Each point is an evaluation on problems that no policy learns from")
    drawn.spread = "thin lines: runs, whose intervals are in the table"
    for i, kind in enumerate(values_of(stages["policy"], "reward")):
        runs = histories([stage for stage in stages["policy"] if stage.sweep["reward"] == kind])
        tokens = np.mean([run["tokens"] for run in runs], 0) / 1e3
        for own, (name, title) in zip(axes.flat, PANELS.items(), strict=True):
            found = [run[name] for run in runs]
            if np.isfinite(found).any():
                drawn.curve(own, title, kind, tokens, found, line_style(i), name in SHARES, band=False)
            own.set_title(title, fontsize=9)
        told = []
        for name in TOLD:
            first, last = (np.array([[run[name][at] for run in runs]]).T for at in (0, -1))
            mean, low, high = (float(x[0]) for x in over_seeds(last - first))
            told.append(f"{PANELS[name]} {first.mean():.3f} -> {last.mean():.3f}, {signed(mean, low, high)}")
        drawn.statements.append(f"{kind}: {'; '.join(told)}; {GAIN:.2f} more right after {told_tokens(runs)}")
    for own in axes[-1]:
        own.set_xlabel("thousand policy tokens")
    legend_above(figure, axes[0, 0], 3)
    return drawn


def told_tokens(runs: list[dict]) -> str:
    """How many policy tokens the runs needed for GAIN more right answers than at first, between evaluations by interpolation."""
    needed = []
    for run in runs:
        gain = np.maximum.accumulate(np.array(run["eval_pass_at_1"]) - run["eval_pass_at_1"][0])
        needed.append(np.interp(GAIN, gain, run["tokens"]) if gain[-1] >= GAIN else np.inf)
    if np.isinf(needed).any():
        return f"no number of tokens in {np.isinf(needed).sum()} of {len(needed)} runs"
    mean, low, high = (float(x[0]) for x in over_seeds(np.array([needed]).T))
    return f"{mean / 1e3:,.0f} [{low / 1e3:,.0f}, {high / 1e3:,.0f}] thousand policy tokens"


def histories(stages: list[Stage]) -> list[dict[str, list[float]]]:
    """Of each run the numbers of metrics.jsonl at evaluations, and the tokens written by then, at the steps that all have."""
    runs = []
    for stage in stages:
        runs.append(own := {})
        for row in read_lines(stage.folder / "metrics.jsonl"):
            if "eval_pass_at_1" in row:
                own[row["step"]] = {"tokens": row.get("total_policy_tokens", 0)} | row  # none before the first step
    steps = sorted(set.intersection(*map(set, runs)))
    names = ("tokens", *PANELS)  # the PRM's where there is one
    return [{name: [own[step].get(name, np.nan) for step in steps] for name in names} for own in runs]
