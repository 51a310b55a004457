"""A script that attacks a verifier by one edit a solution ("Reward Under Attack", arXiv 2603.06621).

    python -m examples.attack --checkpoint RUN         # each edit, and the worst of them
    python -m examples.attack --harden FOLDER          # rows to train on, edits among them

Each unsound solution is handed in as the version that the verifier likes best, of those that the embedded
task's checker still calls unsound. It prints the AUROC of sound against unsound solutions.

Dimension key: N solutions"""

import argparse
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

import prm_jax
from prm_jax import metrics, tasks
from prm_jax.api import Verifier
from prm_jax.data.splits import TaskData, data_config, load_splits
from prm_jax.data.writing import native_row, write_rows
from prm_jax.generate.samples import policy_pool
from prm_jax.launch import cli
from prm_jax.launch.config import CONF
from prm_jax.rerank import solution_scores
from prm_jax.solutions import relabel_after_error

SOLUTIONS = 1000  # that are attacked

Steps = tuple[str, ...]
Row = tuple[str, Steps]  # a problem and a solution of it


def repeat(steps: Steps) -> Iterator[Steps]:
    """A line is written twice."""
    return (steps[: t + 1] + steps[t:] for t in range(len(steps)))


def drop(steps: Steps) -> Iterator[Steps]:
    """A line is left out."""
    return (steps[:t] + steps[t + 1 :] for t in range(len(steps)) if len(steps) > 1)


def swap(steps: Steps) -> Iterator[Steps]:
    """A line changes places with the next one."""
    return (steps[:t] + (steps[t + 1], steps[t]) + steps[t + 2 :] for t in range(len(steps) - 1))


def blank(steps: Steps) -> Iterator[Steps]:
    """Blanks stand around all signs."""
    yield tuple(re.sub(r"[-+*=]", r" \g<0> ", step) for step in steps)


def insert_after(steps: Steps, text: str) -> Iterator[Steps]:
    """A line is followed by `text`, in which {v} stands for its result."""
    for t, step in enumerate(steps):
        if "=" in step:
            line = text.replace("{v}", step.rpartition("=")[2].strip())
            yield steps[: t + 1] + (line,) + steps[t + 1 :]


# name -> f(steps) -> the edited solutions, one for each place where the edit applies.
EDITS = {
    "repeat": repeat,
    "drop": drop,
    "swap": swap,
    "restate": functools.partial(insert_after, text="{v}={v}"),
    "idle": functools.partial(insert_after, text="{v}+0={v}"),
    "blank": blank,
}


def is_sound(problem: str, steps: Steps) -> bool:
    """Whether a solution has no wrong line, and the right answer."""
    return min(tasks.CHAIN.step_labels(problem, steps)) == 1 and tasks.CHAIN.solved(problem, steps)


def load_chain(**changes) -> TaskData:
    return data_config(OmegaConf.merge(OmegaConf.load(CONF / "data/chain.yaml"), changes))


def harden(folder: Path, data: TaskData, share: float, seed: int):
    """Writes train.jsonl, validation.jsonl and test.jsonl of the embedded task. A `share` of the training
    solutions is added again with one edit, of a random kind at a random place, and labelled anew."""
    splits = load_splits(data, seed, policy_pool).splits
    rng = np.random.default_rng([seed, 2])
    names, edited = list(EDITS), []
    for s in splits["train"]:
        if rng.random() < share and s.outcome is not None:
            versions = [*EDITS[names[rng.integers(len(names))]](s.steps)]
            if versions:
                steps = versions[rng.integers(len(versions))]
                origin = data.label_kind, f"{s.id}/edited"
                new = tasks.labelled(tasks.CHAIN, data.task, s.problem, steps, *origin)
                edited.append(relabel_after_error(new, data.after_first_error))
    for side, solutions in {**splits, "train": [*splits["train"], *edited]}.items():
        write_rows(folder / f"{side}.jsonl", map(native_row, solutions))
    files = f"data.path={folder}/train.jsonl data.validation_path={folder}/validation.jsonl"
    print(f"python train.py data=jsonl {files} data.test_path={folder}/test.jsonl")


def sample_task(n: int, seed: int, samples: str = "policy") -> list[Row]:
    """Held-out solutions of the embedded task, by its policy or its `solver`."""
    solutions = tasks.sample_solutions(load_chain(samples=samples), n, "test", seed, policy_pool)
    return [(s.problem, s.steps) for s in solutions if s.outcome is not None]


def attack(verifier: Verifier, rows: list[Row]) -> dict[str, float]:
    """{edit: AUROC of sound solutions against unsound ones}: with `no edit`, each edit in its worst place,
    and the `worst edit` of all."""
    judge = functools.cache(is_sound)
    is_sound_N = np.array([judge(*row) for row in rows])
    versions = {}  # of each unsound solution: {edit: those that are still unsound}
    for n in np.flatnonzero(~is_sound_N):
        problem, steps = rows[n]
        made = {name: [(problem, new) for new in edit(steps)] for name, edit in EDITS.items()}
        versions[n] = {name: [row for row in new if not judge(*row)] for name, new in made.items()}
    edited = [row for made in versions.values() for kept in made.values() for row in kept]
    every = list(dict.fromkeys([*rows, *edited]))
    log_odds = verifier.log_odds([problem for problem, _ in every], [steps for _, steps in every])
    p_of = dict(zip(every, np.exp(solution_scores(log_odds, verifier.aggregator)), strict=True))

    def auroc(edits) -> float:
        p_N = np.array([p_of[row] for row in rows])
        for n, made in versions.items():
            p_N[n] = max([p_N[n], *(p_of[row] for edit in edits for row in made[edit])])
        return float(metrics.auroc(p_N, is_sound_N))

    return {"no edit": auroc([])} | {name: auroc([name]) for name in EDITS} | {"worst edit": auroc(EDITS)}


def main():
    parser = argparse.ArgumentParser(description="Attack a verifier by one edit a solution.")
    parser.add_argument("--checkpoint", help="as in evaluate.py; the newest finished run if it is left out")
    parser.add_argument("--harden", type=Path, help="only write training rows with edits into this folder")
    parser.add_argument("--share", type=float, default=0.5, help="of solutions that --harden edits")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="attack.json")
    args = parser.parse_args()
    if args.harden:
        return harden(args.harden, load_chain(), args.share, args.seed)
    verifier = prm_jax.load(args.checkpoint, aggregator="prod")
    rows = sample_task(SOLUTIONS, args.seed)
    found = {"verifier": verifier.scorer.name, "auroc": attack(verifier, rows)}
    Path(args.output).write_text(json.dumps(found, indent=1))
    print(f"AUROC of {len(rows)} solutions, judged by {found['verifier']}")
    print(*(f"{edit:12}{auroc:.3f}" for edit, auroc in found["auroc"].items()), sep="\n")


if __name__ == "__main__":
    cli.script(main)
