"""Learning curves of a policy: what it solves, and what shows hacking, against the tokens that it wrote."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from prm_jax.figures.style import line_style, panels, save
from prm_jax.launch.files import read_lines

PANELS = {
    "eval_pass_at_1": "right (gold)",
    "eval_pass_at_4": "right in one of 4",
    "eval_sound": "right, no wrong step",
    "eval_reward": "reward (proxy)",
    "eval_steps_a_solution": "lines a solution",
    "eval_restated": "share of restated lines",
    "eval_kl": "KL from the first policy (nats a token)",
    "eval_prm_step_auroc": "AUROC of the PRM on this policy's steps",
}


def histories(folders: Sequence[Path]) -> list[dict[str, list[float]]]:
    """The numbers of each run's evaluations, and its tokens by then, at the steps that all runs have."""
    runs = []
    for folder in folders:
        lines = [line for line in read_lines(folder / "metrics.jsonl") if "eval_pass_at_1" in line]
        # No tokens are written before the first step.
        runs.append({line["step"]: {"tokens": line.get("total_policy_tokens", 0)} | line for line in lines})
    steps = sorted(set.intersection(*map(set, runs)))
    names = "tokens", *PANELS
    return [{name: [run[step].get(name, np.nan) for step in steps] for name in names} for run in runs]


def learning_figure(folder: Path) -> Path:
    """Draws a run's evaluations on held-out problems."""
    (run,) = histories([folder])
    measured = {name: title for name, title in PANELS.items() if np.isfinite(run[name]).any()}
    rows = -(-len(measured) // 2)
    figure, axes_RC = panels(rows, 2, 2.25 * rows, sharex=True)
    tokens = np.array(run["tokens"]) / 1e3
    for axes, (name, title) in zip(axes_RC.flat, measured.items(), strict=False):
        axes.plot(tokens, run[name], **line_style(0))
        axes.set(title=title, xlabel="thousand policy tokens")
    (folder / "figures").mkdir(exist_ok=True)
    return save(figure, folder / "figures" / "learning.png")
