"""Policies in training: what they solve, and what shows hacking, against the tokens that they have written."""

import numpy as np

from prm_jax.figures.learning import PANELS, draw_runs, histories, panels_of
from prm_jax.figures.paper import Stages, signed, values_of
from prm_jax.figures.pipeline import Stage
from prm_jax.figures.style import Drawn, line_style, over_seeds

IN_WORDS = list(PANELS)[:6]  # panels of the statements


def draw(stages: Stages) -> Drawn:
    policies, kinds = stages["policy"], values_of(stages["policy"], "reward")
    arms = {kind: [stage for stage in policies if stage.sweep["reward"] == kind] for kind in kinds}
    runs_of = {kind: histories([stage.folder for stage in members]) for kind, members in arms.items()}
    costs_of = {kind: [verifier_tokens(stage) for stage in members] for kind, members in arms.items()}
    compares_costs = not all(
        map(any, costs_of.values())
    )  # where every arm has a verifier its samples shift all curves
    figure, axes, measured = panels_of([run for runs in runs_of.values() for run in runs])
    text = "Each point is an evaluation on problems that no policy learns from"
    text += "; dotted: the same, with the tokens of the PRM's training samples added" * compares_costs
    drawn = Drawn(figure, text)
    drawn.spread = "thin lines: runs, whose intervals are in the table"
    for i, (kind, runs, cost_S) in enumerate(zip(kinds, runs_of.values(), costs_of.values(), strict=True)):
        draw_runs(drawn, axes, kind, line_style(i), runs, cost_S if compares_costs else [], measured)
        if compares_costs and any(cost_S):  # at the tokens of the first arm
            left_S = np.subtract([run["tokens"][-1] for run in runs_of[kinds[0]]], cost_S)
            pairs = zip(left_S, runs, strict=True)
            y_S = [np.interp(left, run["tokens"], run["eval_pass_at_1"]) for left, run in pairs]
            drawn.number(PANELS["eval_pass_at_1"], f"{kind} at equal tokens", y_S, np.mean(left_S) / 1e3)
        changes = []
        for name in IN_WORDS:
            first_S, last_S = np.array([[run[name][k] for run in runs] for k in (0, -1)])
            if np.isfinite(last_S).all():
                change = signed(*over_seeds(last_S - first_S))
                changes.append(f"{PANELS[name]} {first_S.mean():.3f} -> {last_S.mean():.3f}, {change}")
        changes += [f"the PRM's samples cost {np.mean(cost_S) / 1e3:,.0f} thousand tokens"] * any(cost_S)
        drawn.statements.append(f"{kind}: {'; '.join(changes)}")
    drawn.legend_above(axes[0, 0], 2 if max(map(len, arms)) > 20 else 3)
    return drawn


def verifier_tokens(stage: Stage) -> int:
    """Policy tokens of the training samples of the figure's verifier that rewards a policy, 0 where none does."""
    verifier = stage.config.get("reward.prm_checkpoint")
    used = [x for x in stage.needs if f"{x.name}-{x.digest}" == verifier]
    return sum(x.results()["counts"]["policy_tokens"] for x in used)
