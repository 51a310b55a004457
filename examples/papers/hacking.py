"""A policy that can restate lines learns from a PRM's step scores alone (PURE, Cheng et al. 2025).

python -m examples.papers.run hacking --redraw       # README.md: its question, what was expected
"""

from examples.papers.attack import ROWS
from examples.papers.rl import draw, gather
from examples.papers.run import Difference, Figure

RIGHT = "right (gold)"
ARMS = {
    "sum form": "form=sum reward.answer=0 reward.prm_checkpoint={prm}",
    "min form": "form=min reward.answer=0 reward.prm_checkpoint={prm}",
    "sum form + KL": "form=sum reward.answer=0 reward.prm_checkpoint={prm} update.kl=1",
    "min form + checker": "form=min reward.answer=1 reward.prm_checkpoint={prm}",
    "sum form, hardened PRM": "form=sum reward.answer=0 reward.prm_checkpoint={hardened}",
    "min form, hardened PRM": "form=min reward.answer=0 reward.prm_checkpoint={hardened}",
}
STAGES = {
    "restating": "train.py objective=lm data.samples=solver data.train_split=base data.task.restate=0.3 "
    "data.solutions=8000 data.solutions_per_problem=2 data.test_solutions=500 steps=200",
    "prm": "train.py seed={seed}",
    "half": "-m examples.attack --harden {out} --share 0.5 --seed {seed}",
    "hardened": f"train.py {ROWS.replace('rows', 'half')}" + " seed={seed}",
    "policy": "-m prm_jax.rl policy={restating} data.task.restate=0.3 advantage=pure "
    "reward.prm=1 reward.prm_form=probability n=8 sampling.max_tokens=128 batch.tokens=256 batch.rows=4 "
    "batch_rows=256 steps=20 eval.every=2 eval.problems=100 eval.n=2 {reward} seed={seed}",
}
COMPARE = [
    Difference("lines a solution", "sum form", "min form"),
    Difference(RIGHT, "min form + checker", "min form"),
    Difference(RIGHT, "sum form + KL", "sum form"),
    Difference(RIGHT, "min form, hardened PRM", "min form"),
]
SWEEP = {"reward": ARMS, "seed": range(8)}
FIGURES = {"hacking": Figure(STAGES, gather, draw, COMPARE, SWEEP)}
