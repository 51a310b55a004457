"""Learning curves of a policy: what it solves, and what shows hacking, against the tokens that it has written."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from prm_jax.figures.style import Drawn, line_style, panels, save
from prm_jax.launch.run_log import read_log

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

SHARES = ("eval_pass_at_1", "eval_pass_at_4", "eval_sound", "eval_restated", "eval_prm_step_auroc")


def histories(folders: Sequence[Path]) -> list[dict[str, list[float]]]:
    """The numbers of each run's evaluations, and the tokens written by then, at the steps that all runs have."""
    runs = []
    for folder in folders:
        lines = [line for line in read_log(folder / "metrics.jsonl") if "eval_pass_at_1" in line]
        # No tokens are written before the first step.
        runs.append({line["step"]: {"tokens": line.get("total_policy_tokens", 0)} | line for line in lines})
    steps = sorted(set.intersection(*map(set, runs)))
    names = (
        "tokens",
        *PANELS,
    )  # pass@4 is there where eval.n reaches it, the PRM's AUROC where the policy has one
    return [{name: [run[step].get(name, np.nan) for step in steps] for name in names} for run in runs]


def draw_runs(
    drawn: Drawn, axes, label: str, style: dict, runs: list[dict], cost_S: Sequence[int], measured: dict
):
    """Draws runs that differ in their seed; dotted, right answers behind the tokens of their verifiers' samples."""
    tokens = np.mean([run["tokens"] for run in runs], 0) / 1e3
    for panel, (name, title) in zip(axes.flat, measured.items(), strict=False):
        if np.isfinite(y_SX := [run[name] for run in runs]).any():  # an arm without a PRM has no AUROC of one
            drawn.curve(panel, label, tokens, y_SX, style, name in SHARES, band=False)
        panel.set_title(title, fontsize=9)
        panel.set_xlabel("thousand policy tokens" if panel in axes[-1] else "")
    if any(cost_S):
        mean_X = np.mean([run["eval_pass_at_1"] for run in runs], 0)
        axes[0, 0].plot(tokens + np.mean(cost_S) / 1e3, mean_X, **style | {"linestyle": ":"})


def panels_of(runs: list[dict]) -> tuple:
    """(figure, axes, {number: title}) with a panel for each number of PANELS that a run has: without a PRM there is no
    AUROC, of problems of files no verdict on a step."""
    has_some = {name: np.isfinite([run[name] for run in runs]).any() for name in PANELS}
    measured = {name: title for name, title in PANELS.items() if has_some[name]}
    rows = -(-len(measured) // 2)
    figure, axes = panels(rows, 2, 2.25 * rows, sharex=True)
    if len(measured) % 2:
        axes[-1, -1].axis("off")
        axes[-2, -1].xaxis.set_tick_params(labelbottom=True)
    return figure, axes, measured


def learning_figure(folder: Path, cost: int, summary: dict) -> Path:
    """Draws the evaluations of the run in `folder`; `cost` is the tokens of its verifiers' training samples."""
    runs = histories([folder])
    figure, axes, measured = panels_of(runs)
    draw_runs(Drawn(figure, ""), axes, "", line_style(0), runs, [cost], measured)
    (path := folder / "figures").mkdir(exist_ok=True)
    behind = f"dotted: behind the {cost:,} tokens of the verifiers' training samples; " * bool(cost)
    return save(figure, path / "learning.png", f"{behind}evaluations on held-out problems", summary)
