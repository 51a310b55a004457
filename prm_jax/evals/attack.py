"""task=attack: the worst single edit of each solution ("Reward Under Attack", arXiv 2603.06621), with exact verdicts.

An attacker edits an unsound solution in one place, by each edit of data/edits.py, and hands in the version that the
verifier likes best. The embedded task's checker judges each version: only those that are still unsound count. Likewise
a sound solution is edited to the version that is still sound and liked least: an edit that must not matter.

Dimension key: N solutions.
"""

import dataclasses
from typing import Annotated

import numpy as np

from prm_jax import InputError, metrics, rerank, tasks
from prm_jax.data.edits import EDITS, edited
from prm_jax.data.splits import TaskData
from prm_jax.evals.common import Setup, data_of, describe, interval_of, one_scorer, plus_minus
from prm_jax.figures.attack import QUANTITIES, SHOWN
from prm_jax.figures.attack import attack_figures as figures  # noqa: F401 (evaluate.py asks the task)
from prm_jax.generate.samples import policy_pool
from prm_jax.launch.config import Count, expect, one_of
from prm_jax.scoring import score_into


@dataclasses.dataclass(frozen=True)
class Config:
    solutions: Count
    aggregator: Annotated[str, one_of(rerank.AGGREGATORS)]
    edits: list[str] | None

    def __post_init__(self):
        for name in self.edits or ():
            expect(name in EDITS, "edits", name, f"names of {', '.join(EDITS)}")
        expect(self.edits != [], "edits", self.edits, "at least one, or null: all")


def is_sound(task, problem: str, steps) -> bool:
    """Whether a solution has no wrong line, and the right answer."""
    return min(tasks.step_labels(task, problem, steps)) == 1 and task.solved(problem, steps)


def run(setup: Setup, cfg: Config) -> dict:
    """Scores all edited versions of held-out solutions; the numbers before and after, by edit and by the worst of all."""
    scorer, data = one_scorer(setup, "attack"), data_of(setup, setup.checkpoints[0])[0]
    is_log_p = rerank.AGGREGATORS[cfg.aggregator].is_log_probability
    expect(is_log_p, "aggregator", cfg.aggregator, "one whose score is a probability")
    if not isinstance(data, TaskData):
        raise InputError(f"data: task=attack needs an embedded task, whose checker judges edits; got {data.name}")
    task, names = tasks.TASKS[data.name], tuple(cfg.edits or EDITS)
    solutions = tasks.sample_solutions(data, cfg.solutions, "test", setup.cfg.seed, policy_pool)
    rows = [(s.problem, s.steps) for s in solutions if s.outcome is not None]
    versions = [edited(steps, names) for _, steps in rows]
    every = [*rows, *((problem, new) for (problem, _), made in zip(rows, versions, strict=True) for new in made)]
    every = list(dict.fromkeys(every))
    scores = score_into(
        setup.folder / "scores.jsonl", scorer, ((str(i), *row) for i, row in enumerate(every)), len(every)
    )
    p_of = dict(
        zip(every, np.exp(rerank.solution_scores(list(scores), cfg.aggregator).astype(np.float64)), strict=True)
    )
    sound_of = {row: is_sound(task, *row) for row in p_of}

    sound_N, before_N = np.array([sound_of[row] for row in rows]), np.array([p_of[row] for row in rows])
    expect(0 < sound_N.sum() < len(rows), "solutions", cfg.solutions, "some sound and some unsound ones")

    def attacked(chosen, wrong_line=False) -> np.ndarray:
        """P of the version that the attacker hands in, of those that `chosen` edits make and whose verdict is kept; with
        `wrong_line` those of unsound solutions still hold one, for a verifier of lines has no ground to refuse others."""
        p_N = before_N.copy()
        for n, ((problem, _), made) in enumerate(zip(rows, versions, strict=True)):
            kept = [(problem, new) for new, name in made.items() if name in chosen]
            kept = [row for row in kept if sound_of[row] == sound_N[n]]
            if wrong_line and not sound_N[n]:
                kept = [row for row in kept if 0 in tasks.step_labels(task, *row)]
            kept = [p_of[row] for row in kept]
            p_N[n] = (min if sound_N[n] else max)([p_N[n], *kept])
        return p_N

    problems = np.array([problem for problem, _ in rows])
    after = {name: attacked((name,)) for name in names} | {"worst": attacked(names)}
    after["worst_wrong_line"] = attacked(names, wrong_line=True)
    tables = {name: numbers(before_N, p_N, sound_N, problems) for name, p_N in after.items()}
    kept = {name: np.zeros(2, int) for name in names}
    for (problem, steps), made in zip(rows, versions, strict=True):
        for new, name in made.items():
            kept[name] += [1, sound_of[problem, new] == sound_of[problem, steps]]
    for name, (n, same) in kept.items():
        tables[name] |= {"versions": int(n), "verdict_kept": same / n if n else None}
    return {
        **describe(scorer), "aggregator": cfg.aggregator, "solutions": len(rows), "sound": int(sound_N.sum()),
        "cut": len(solutions) - len(rows), "before": numbers(before_N, before_N, sound_N, problems), "edits": tables,
    }  # fmt: skip


def numbers(before_N, after_N, sound_N, problems) -> dict:
    """AUROC of sound against unsound solutions if only the unsound ones are attacked; the share of unsound ones above .5,
    and of sound ones below .5 where these are attacked. With 95 % bootstrap intervals over problems."""

    def auroc(before_N, after_N, sound_N):
        return metrics.auroc(np.where(sound_N, before_N, after_N), sound_N)

    def accepted(after_N, sound_N):
        return np.mean(after_N[~sound_N] > 0.5) if (~sound_N).any() else np.nan

    def refused(after_N, sound_N):
        return np.mean(after_N[sound_N] < 0.5) if sound_N.any() else np.nan

    both = after_N, sound_N
    cases = {
        "auroc": (auroc, before_N, *both),
        "unsound_accepted": (accepted, *both),
        "sound_refused": (refused, *both),
    }
    made = {name: float(f(*arrays)) for name, (f, *arrays) in cases.items()}
    return made | {f"{name}_interval": interval_of(f, problems, 0, *x) for name, (f, *x) in cases.items()}


def show(results: dict):
    print(f"verifier    {results['verifier']}, {results['aggregator']} of its step scores")
    print(f"solutions   {results['solutions']:,}, {results['sound']:,} sound; {results['cut']} cut ones left out")
    print(f"{'one edit':<12}{'AUROC':<24}{'unsound above .5':<24}{'sound below .5':<24}verdict kept")
    for name, x in {"none": results["before"], **results["edits"]}.items():
        cells = "".join(f"{x[key]:.3f} {plus_minus(x[f'{key}_interval']):<18}" for key in QUANTITIES)
        kept = "" if x.get("verdict_kept") is None else f"{x['verdict_kept']:.2f} of {x['versions']:,}"
        print(f"{SHOWN.get(name, name):<12}{cells}{kept}")
