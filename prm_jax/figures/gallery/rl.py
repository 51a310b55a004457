"""Policies in training: what they solve, and what shows hacking, against the tokens that they have written."""

import numpy as np

from prm_jax.figures.learning import PANELS, draw_runs, histories
from prm_jax.figures.paper import Stages, signed, values_of
from prm_jax.figures.pipeline import Stage
from prm_jax.figures.style import Drawn, line_style, over_seeds, panels
from prm_jax.stats import holm, sign_flip_test

GAIN = 0.15  # of right answers, to which a statement counts the tokens
IN_WORDS = list(PANELS)[:6]  # panels of the statements
# Arms that are compared, where a figure has both: they differ in one thing. The first pair is the primary comparison.
PAIRS = (
    ("PRM + checker (PURE)", "checker (RLOO)"),
    ("checker (GRPO)", "checker (RLOO)"),
    ("PRIME by steps", "checker (as PRIME)"),
    ("PRM + checker (RLOO by steps)", "PRM + checker (RLOO)"),
)


def draw(stages: Stages) -> Drawn:
    figure, axes = panels(4, 2, 9.0, sharex=True)
    text = "Each point is an evaluation on problems that no policy learns from; dotted: behind the PRM's samples"
    drawn, arms, costs = Drawn(figure, text), {}, {}
    drawn.spread = "thin lines: runs, whose intervals are in the table"
    for i, kind in enumerate(values_of(stages["policy"], "reward")):
        members = [stage for stage in stages["policy"] if stage.sweep["reward"] == kind]
        arms[kind] = runs = histories([stage.folder for stage in members])
        costs[kind] = cost_S = [verifier_tokens(stage) for stage in members]
        draw_runs(drawn, axes, kind, line_style(i), runs, cost_S)
        changes = []
        for name in IN_WORDS:
            first_S, last_S = np.array([[run[name][k] for run in runs] for k in (0, -1)])
            if np.isfinite(last_S).all():
                change = signed(*over_seeds(last_S - first_S))
                changes.append(f"{PANELS[name]} {first_S.mean():.3f} -> {last_S.mean():.3f}, {change}")
        cost = f"; the PRM's samples cost {np.mean(cost_S) / 1e3:,.0f} thousand" * any(cost_S)
        gain = f"{GAIN:.2f} more right after {tokens_to_gain(runs)}{cost}"
        drawn.statements.append(f"{kind}: {'; '.join([*changes, gain])}")
    compare(drawn, arms, costs)
    drawn.legend_above(axes[0, 0], 2 if max(map(len, arms)) > 20 else 3)
    return drawn


def verifier_tokens(stage: Stage) -> int:
    """Policy tokens of the training samples of the figure's verifier that rewards a policy, 0 where none does."""
    verifier = stage.config.get("reward.prm_checkpoint")
    used = [x for x in stage.needs if f"{x.name}-{x.digest}" == verifier]
    return sum(x.results()["counts"]["policy_tokens"] for x in used)


def compare(drawn: Drawn, arms: dict[str, list[dict]], costs: dict[str, list[int]]):
    """States the differences of right answers at the last evaluation between arms, paired by seed, with exact sign-flip
    tests; the primary one again at equal tokens, those of the verifier counted. Holm's correction is over all but it."""
    differences = {}
    for a, b in [pair for pair in PAIRS if {*pair} <= arms.keys()]:
        last = [[run["eval_pass_at_1"][-1] for run in arms[arm]] for arm in (a, b)]
        differences[f"{a} - {b}"] = np.subtract(*last)
        if (a, b) == PAIRS[0]:
            left = [y["tokens"][-1] - cost for y, cost in zip(arms[b], costs[a], strict=True)]
            y_S = [np.interp(n, run["tokens"], run["eval_pass_at_1"]) for n, run in zip(left, arms[a], strict=True)]
            differences[f"{a} - {b} at equal tokens"] = np.subtract(y_S, last[1])
    p = [sign_flip_test(value_S)[0] for value_S in differences.values()]
    corrected = [*p[:1], *holm(p[1:])]
    for i, (name, value_S) in enumerate(differences.items()):
        mean, low, high = over_seeds(value_S)
        drawn.row("difference of right answers", name, "", mean, low, high, value_S)
        test = f"p {p[i]:.3f}" + f", by Holm {corrected[i]:.3f}" * (i > 0)
        drawn.statements.append(f"{'secondary' if i else 'primary'}: {name}: {signed(mean, low, high)}, {test}")


def tokens_to_gain(runs: list[dict]) -> str:
    """Says how many policy tokens the runs needed for GAIN more right answers, interpolated between evaluations."""
    needed = []
    for run in runs:
        gain = np.maximum.accumulate(np.array(run["eval_pass_at_1"]) - run["eval_pass_at_1"][0])
        needed.append(np.interp(GAIN, gain, run["tokens"]) if gain[-1] >= GAIN else np.inf)
    if np.isinf(needed).any():
        return f"no number of tokens in {np.isinf(needed).sum()} of {len(needed)} runs"
    return "{:,.0f} [{:,.0f}, {:,.0f}] thousand policy tokens".format(*(x / 1e3 for x in over_seeds(needed)))
