"""Policies in training: what they solve, and what shows hacking, against the tokens that they have written."""

import numpy as np

from prm_jax.figures.learning import PANELS, draw_runs, histories
from prm_jax.figures.paper import Stages, signed, values_of
from prm_jax.figures.pipeline import Stage
from prm_jax.figures.style import Drawn, line_style, over_seeds, panels

GAIN = 0.15  # of right answers, to which a statement counts the tokens
IN_WORDS = list(PANELS)[:6]  # panels of the statements


def draw(stages: Stages) -> Drawn:
    figure, axes = panels(4, 2, 9.0, sharex=True)
    text = "Evaluations on problems that no policy learns from; dotted: behind the PRM's samples; proxy: of each arm's own scale"
    drawn, arms = Drawn(figure, text), values_of(stages["policy"], "reward")
    drawn.spread = "thin lines: runs, whose intervals are in the table"
    for i, kind in enumerate(arms):
        members = [stage for stage in stages["policy"] if stage.sweep["reward"] == kind]
        runs = histories([stage.folder for stage in members])
        cost_S = [verifier_tokens(stage) for stage in members]
        draw_runs(drawn, axes, kind, line_style(i), runs, cost_S)
        if i == 0:
            all_S, is_free = [run["tokens"][-1] for run in runs], not any(cost_S)
        elif is_free and any(cost_S):  # at the tokens of the first arm, which no verifier's samples precede
            left_S = np.subtract(all_S, cost_S)
            pairs = zip(left_S, runs, strict=True)
            y_S = [np.interp(left, run["tokens"], run["eval_pass_at_1"]) for left, run in pairs]
            drawn.number(PANELS["eval_pass_at_1"], f"{kind} at equal tokens", y_S, np.mean(left_S) / 1e3)
        changes = []
        for name in IN_WORDS:
            first_S, last_S = np.array([[run[name][k] for run in runs] for k in (0, -1)])
            if np.isfinite(last_S).all():
                change = signed(*over_seeds(last_S - first_S))
                changes.append(f"{PANELS[name]} {first_S.mean():.3f} -> {last_S.mean():.3f}, {change}")
        cost = f"; the PRM's samples cost {np.mean(cost_S) / 1e3:,.0f} thousand" * any(cost_S)
        gain = f"{GAIN:.2f} more right after {tokens_to_gain(runs)}{cost}"
        drawn.statements.append(f"{kind}: {'; '.join([*changes, gain])}")
    drawn.legend_above(axes[0, 0], 2 if max(map(len, arms)) > 20 else 3)
    return drawn


def verifier_tokens(stage: Stage) -> int:
    """Policy tokens of the training samples of the figure's verifier that rewards a policy, 0 where none does."""
    verifier = stage.config.get("reward.prm_checkpoint")
    used = [x for x in stage.needs if f"{x.name}-{x.digest}" == verifier]
    return sum(x.results()["counts"]["policy_tokens"] for x in used)


def tokens_to_gain(runs: list[dict]) -> str:
    """Says how many policy tokens the runs needed for GAIN more right answers, interpolated between evaluations."""
    needed = []
    for run in runs:
        gain = np.maximum.accumulate(np.array(run["eval_pass_at_1"]) - run["eval_pass_at_1"][0])
        needed.append(np.interp(GAIN, gain, run["tokens"]) if gain[-1] >= GAIN else np.inf)
    if np.isinf(needed).any():
        return f"no number of tokens in {np.isinf(needed).sum()} of {len(needed)} runs"
    return "{:,.0f} [{:,.0f}, {:,.0f}] thousand policy tokens".format(*(x / 1e3 for x in over_seeds(needed)))
