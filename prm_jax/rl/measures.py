"""What is measured in RL: numbers that show hacking, an evaluation's samples, what a run has learned."""

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from prm_jax import tasks
from prm_jax.data.units import probability
from prm_jax.launch.files import append_lines
from prm_jax.metrics import step_metrics
from prm_jax.rl.rewards import Reward
from prm_jax.rl.rollouts import Rollout


def diagnose(rollouts: Sequence[Rollout], reward: Reward) -> dict[str, float]:
    """Gold beside proxy, lengths, the share of restated steps, the PRM's quality."""
    repeats = [step == before for r in rollouts for step, before in zip(r.steps, ("", *r.steps))]
    numbers = {
        "entropy": -np.concatenate([r.logp_L for r in rollouts]).mean(),  # of the sampled distribution
        "right": reward.right_N.mean(),
        "cut": np.mean([not r.finished for r in rollouts]),
        "steps_a_solution": np.mean([len(r.steps) for r in rollouts]),
        "restated": np.mean(repeats),
    }
    if reward.ratings is None:
        return numbers
    does_nothing = [rating == 0 for rating_T in reward.ratings for rating in rating_T]
    numbers["restated"] = np.logical_or(repeats, does_nothing).mean()
    labels = [tasks.correctness(rating_T) for rating_T in reward.ratings]
    has_right_steps_N = np.array([label_T[-1] > 0 for label_T in labels])
    numbers["sound"] = np.mean((reward.right_N > 0) & has_right_steps_N)
    if reward.prm is not None:
        p_good = [probability(log_odds_T) for log_odds_T in reward.prm]
        auroc = step_metrics(p_good, labels, [r.group for r in rollouts])["step_auroc"]
        if np.isfinite(auroc):
            numbers["prm_step_auroc"] = auroc
    return numbers


def write_samples(path: Path, step: int, rollouts: Sequence[Rollout], reward: Reward):
    """Appends an evaluation's roll-outs to samples.jsonl, with rewards and what PRM and checker say."""
    rows = []
    for i, r in enumerate(rollouts):
        row = {
            "step": step,
            "problem": r.problem,
            "steps": r.steps,
            "step_rewards": reward.step_NT[i, : len(r.steps)].round(4).tolist(),
            "outcome_reward": float(reward.outcome_N[i]),
            "right": bool(reward.right_N[i]),
            "finished": r.finished,
        }
        if reward.prm:
            row["p_good"] = probability(reward.prm[i]).round(4).tolist()
        if reward.ratings:
            row["ratings"] = reward.ratings[i]
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

        print(f"figures     {learning_figure(run)}")
    print(f"next        python -m prm_jax.sampling checkpoint={run} input=FILE")
