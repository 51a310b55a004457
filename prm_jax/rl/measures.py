"""What is measured in RL: numbers that show hacking, an evaluation's samples, what a run has learned."""

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from prm_jax import tasks
from prm_jax.data.units import probability
from prm_jax.launch.files import append_lines
from prm_jax.metrics import step_metrics
from prm_jax.rl.rewards import Reward, RolloutScores
from prm_jax.rl.rollouts import Rollout


def diagnose(rollouts: Sequence[Rollout], scores: RolloutScores) -> dict[str, float]:
    """Gold beside proxy, lengths, the share of restated steps, the PRM's quality."""
    numbers = {
        "entropy": -np.concatenate([r.logp_L for r in rollouts]).mean(),  # of the sampled distribution
        "right": scores.right_N.mean(),
        "cut": np.mean([not r.finished for r in rollouts]),
        "steps_a_solution": np.mean([len(r.steps) for r in rollouts]),
        "restated": restated_share(rollouts, scores.verdicts),
    }
    if scores.verdicts is None:
        return numbers
    labels = [tasks.correctness(verdict_T) for verdict_T in scores.verdicts]
    is_last_right_N = np.array([label_T[-1] > 0 for label_T in labels])
    numbers["sound"] = np.mean((scores.right_N > 0) & is_last_right_N)
    if scores.prm is not None:
        p_good = [probability(log_odds_T) for log_odds_T in scores.prm]
        metrics = step_metrics(p_good, labels, [r.group for r in rollouts])
        for name in ("step_auroc", "ece"):
            if np.isfinite(metrics[name]):
                numbers[f"prm_{name}"] = metrics[name]
    return numbers


def restated_share(rollouts: Sequence[Rollout], verdicts: list[list[str]] | None) -> float:
    """The share of steps that do nothing, or repeat the one before."""
    restated = []
    for i, r in enumerate(rollouts):
        before_T = ("", *r.steps[:-1])
        verdict_T = verdicts[i] if verdicts else [""] * len(r.steps)
        for step, before, verdict in zip(r.steps, before_T, verdict_T, strict=True):
            restated.append(verdict == "neutral" or step == before)
    return np.mean(restated)


def write_samples(path: Path, step: int, rollouts: Sequence[Rollout], reward: Reward):
    """Appends an evaluation's roll-outs to samples.jsonl, with rewards and what PRM and checker say."""
    scores, rows = reward.scores, []
    for i, r in enumerate(rollouts):
        row = {
            "step": step,
            "problem": r.problem,
            "steps": r.steps,
            "step_rewards": reward.step_NT[i, : len(r.steps)].round(4).tolist(),
            "outcome_reward": float(reward.outcome_N[i]),
            "right": bool(scores.right_N[i]),
            "finished": r.finished,
        }
        if scores.prm:
            row["p_good"] = probability(scores.prm[i]).round(4).tolist()
        if scores.verdicts:
            row["verdicts"] = list(scores.verdicts[i])
        rows.append(row)
    append_lines(path, rows)


def show_summary(run: Path, summary: dict):
    """Prints what a run has learned and written, and draws its learning curves."""
    best = f"best {summary['best_pass_at_1']:.3f} at step {summary['best_step']}"
    change = f"{summary['pass_at_1']:.3f} before, {summary['eval_pass_at_1']:.3f} now"
    print(f"finished    pass@1 {change} ({best})")
    print(f"time        {summary['seconds']:,.0f} seconds, {summary['policy_tokens']:,} tokens rolled out")
    if jax.process_index() == 0:
        from prm_jax.figures.learning import learning_figure  # imports matplotlib

        verifier_tokens = sum(filter(None, summary["verifier_tokens"].values()))
        print(f"figures     {learning_figure(run, verifier_tokens, summary)}")
    print(f"next        python -m prm_jax.sampling checkpoint={run} input=FILE")
