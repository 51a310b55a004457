"""What a reader sees of a run: held-out samples with their step rewards, in samples.jsonl and on the screen."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from prm_jax.data.units import probability
from prm_jax.launch.files import replaced
from prm_jax.rl.rewards import RolloutScores
from prm_jax.rl.rollouts import Rollout

SHOWN = 2  # samples on the screen, of the first problems: the same ones at each evaluation


def as_rows(rollouts: Sequence[Rollout], step_reward_NT, outcome_N, scores: RolloutScores) -> list[dict]:
    """The roll-outs as rows of samples.jsonl. A step's reward is the weighted sum of its sources, `p_good` the PRM's
    probability (also of one that is only watched), a verdict the exact checker's."""
    rows = []
    for i, r in enumerate(rollouts):
        rewards = step_reward_NT[i, : len(r.steps)].round(4).tolist()
        row = {
            "problem": r.problem,
            "steps": r.steps,
            "step_rewards": rewards,
            "outcome_reward": float(outcome_N[i]),
        }
        row |= {"right": bool(scores.right_N[i]), "finished": r.finished}
        row |= {"p_good": probability(scores.prm[i]).round(4).tolist()} if scores.prm else {}
        rows.append(row | ({"verdicts": list(scores.verdicts[i])} if scores.verdicts else {}))
    return rows


def cut_samples(path: Path, step: int):
    """Leaves the samples of evaluations up to `step`, from which a run resumes."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else ()
    # A kill leaves half a line, the last one.
    kept = itertools.takewhile(lambda line: line.endswith("\n") and json.loads(line)["step"] <= step, lines)
    with replaced(path) as temporary:
        temporary.write_text("".join(kept))


def write_samples(path: Path, step: int, rows: list[dict], n: int):
    """Appends an evaluation's samples, n a problem, and shows the first ones of SHOWN problems: beside a step its
    reward; where steps have none a watched PRM's P(good), without a PRM nothing."""
    with path.open("a") as file:
        file.writelines(json.dumps({"step": step} | row) + "\n" for row in rows)
    has_rewards = any(any(row["step_rewards"]) for row in rows)
    for row in rows[: SHOWN * n : n]:
        beside = row["step_rewards"] if has_rewards else row.get("p_good")
        shown = [f" ({x:.2f})" for x in beside] if beside else [""] * len(row["steps"])
        steps = [text + x for text, x in zip(row["steps"], shown, strict=True)]
        text = " ".join(" ".join([row["problem"], *steps]).split())[:200]
        tqdm.write(
            f"sample      {text}  {'right' if row['right'] else 'wrong' if row['finished'] else 'cut'}"
        )
