"""Policies in training: what they solve, and what shows hacking, against the tokens that they have written."""

import numpy as np

from prm_jax.figures.paper import Stages, signed, values_of
from prm_jax.figures.pipeline import Stage
from prm_jax.figures.style import Drawn, line_style, over_seeds, panels
from prm_jax.launch.run_log import read_log

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
GAIN = 0.15  # of right answers, to which a statement counts the tokens
SHARES = ("eval_pass_at_1", "eval_sound", "eval_restated", "eval_prm_step_auroc")
IN_WORDS = list(PANELS)[:5]  # panels of the statements


def draw(stages: Stages) -> Drawn:
    figure, axes = panels(4, 2, 9.0, sharex=True)
    drawn = Drawn(figure, "Each point is an evaluation on problems that no policy learns from")
    drawn.spread = "thin lines: runs, whose intervals are in the table"
    for i, kind in enumerate(values_of(stages["policy"], "reward")):
        runs = histories([stage for stage in stages["policy"] if stage.sweep["reward"] == kind])
        tokens = np.mean([run["tokens"] for run in runs], 0) / 1e3
        for panel, (name, title) in zip(axes.flat, PANELS.items(), strict=True):
            y_SX = [run[name] for run in runs]
            if np.isfinite(y_SX).any():
                drawn.curve(panel, title, kind, tokens, y_SX, line_style(i), name in SHARES, band=False)
            panel.set_title(title, fontsize=9)
        changes = []
        for name in IN_WORDS:
            first_S, last_S = (np.array([run[name][k] for run in runs]) for k in (0, -1))
            change = signed(*over_seeds(last_S - first_S))
            changes.append(f"{PANELS[name]} {first_S.mean():.3f} -> {last_S.mean():.3f}, {change}")
        drawn.statements.append(f"{kind}: {'; '.join(changes)}; {GAIN:.2f} more right after {tokens_to_gain(runs)}")
    for panel in axes[-1]:
        panel.set_xlabel("thousand policy tokens")
    drawn.legend_above(axes[0, 0], 3)
    return drawn


def tokens_to_gain(runs: list[dict]) -> str:
    """Says how many policy tokens the runs needed for GAIN more right answers, interpolated between evaluations."""
    needed = []
    for run in runs:
        gain = np.maximum.accumulate(np.array(run["eval_pass_at_1"]) - run["eval_pass_at_1"][0])
        needed.append(np.interp(GAIN, gain, run["tokens"]) if gain[-1] >= GAIN else np.inf)
    if np.isinf(needed).any():
        return f"no number of tokens in {np.isinf(needed).sum()} of {len(needed)} runs"
    return "{:,.0f} [{:,.0f}, {:,.0f}] thousand policy tokens".format(*(x / 1e3 for x in over_seeds(needed)))


def histories(stages: list[Stage]) -> list[dict[str, list[float]]]:
    """The numbers of each run's evaluations, and the tokens written by then, at the steps that all runs have."""
    runs = []
    for stage in stages:
        lines = [line for line in read_log(stage.folder / "metrics.jsonl")[0] if "eval_pass_at_1" in line]
        # No tokens are written before the first step.
        runs.append({line["step"]: {"tokens": line.get("total_policy_tokens", 0)} | line for line in lines})
    steps = sorted(set.intersection(*map(set, runs)))
    names = ("tokens", *PANELS)  # the PRM's AUROC is there where the policy has one
    return [{name: [run[step].get(name, np.nan) for step in steps] for name in names} for run in runs]
