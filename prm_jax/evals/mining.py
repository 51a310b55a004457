"""task=mining: which solutions to have labelled next: wrong answers that a verifier takes for right (active learning).

Lightman et al. 2023, section 4: a small PRM scores many samples of each training problem. Of those kept, 80 % have a
wrong answer and the highest scores among such, the others the highest scores of what is left. That an answer is wrong is
known before anybody labels a step. mined.jsonl and uniform.jsonl hold equally many different solutions of each problem.

Dimension key: N samples of a problem.
"""

import collections
import dataclasses
from typing import Annotated

import numpy as np

from prm_jax import InputError, rerank, tasks
from prm_jax.data.pools import Candidate, as_arrays, candidate_rows, with_scores
from prm_jax.data.rows import write_rows
from prm_jax.data.solutions import Solution, first_error, native_row
from prm_jax.data.splits import TaskData
from prm_jax.evals.common import Setup, data_of, describe, one_scorer, scored
from prm_jax.generate.samples import policy_pool
from prm_jax.launch.config import Count, Share, expect, one_of


@dataclasses.dataclass(frozen=True)
class Config:
    """conf/task/mining.yaml says what each key means."""

    solutions: Count
    kept: Count
    samples: Count
    wrong: Share
    aggregator: Annotated[str, one_of(rerank.AGGREGATORS)]
    validation_solutions: Count

    def __post_init__(self):
        expect(self.kept <= self.samples, "kept", self.kept, f"at most samples ({self.samples})")


def needs_checkpoint(cfg: Config) -> bool:
    return True


def different(candidates: tuple[Candidate, ...]) -> list[int]:
    """Indices of the different solutions, each where it stands first."""
    return sorted({c.steps: n for n, c in reversed(list(enumerate(candidates)))}.values())


def mine(candidates: tuple[Candidate, ...], score_N: np.ndarray, kept: int, wrong: float) -> list[int]:
    """Indices of `kept` different solutions: as a share `wrong` of them the highest-scored with a wrong answer, as far as
    there are, then the highest-scored of the rest. Of equal scores the first."""
    ranked = sorted(different(candidates), key=lambda n: -score_N[n])
    found = [n for n in ranked if candidates[n].outcome == 0][: round(kept * wrong)]
    return found + [n for n in ranked if n not in found][: kept - len(found)]


def run(setup: Setup, cfg: Config) -> dict:
    """Writes mined.jsonl, uniform.jsonl and validation.jsonl, native rows with the exact checker's labels; counts them."""
    scorer, data = one_scorer(setup, "mining"), data_of(setup, setup.checkpoints[0])[0]
    if not isinstance(data, TaskData):
        raise InputError(f"data: task=mining samples training problems of an embedded task, got {data.name}")
    task, seed = tasks.TASKS[data.name], setup.cfg.seed
    n_problems = -(-cfg.solutions // cfg.kept)
    problems = list(tasks.sample_pool(data, n_problems, cfg.samples, data.train_split, seed, policy_pool))
    scores = scored(setup.folder / "scores.jsonl", scorer, candidate_rows(problems), n_problems * cfg.samples)
    step_PNT, mask_PNT = as_arrays(list(with_scores(problems, "own", scores, scorer.unit)), "own")
    score_PN = np.asarray(rerank.aggregate(step_PNT, mask_PNT, cfg.aggregator, unit="logit"))
    rows, scores_of = collections.defaultdict(list), collections.defaultdict(list)
    for p, (problem, score_N) in enumerate(zip(problems, score_PN, strict=True)):
        own = problem.candidates
        chosen = {"mined": mine(own, score_N, cfg.kept, cfg.wrong), "uniform": different(own)[: cfg.kept]}
        for name, places in chosen.items():
            for n in places:
                at = f"{data.name}/{data.train_split}/{seed}/{p}/{n}"
                said = problem.problem, own[n].steps, data.label_kind, at, own[n].finished
                rows[name].append(tasks.labelled(task, data.task, *said))
                scores_of[name].append(score_N[n])
    rows = {name: found[: cfg.solutions] for name, found in rows.items()}
    rows["validation"] = tasks.sample_solutions(data, cfg.validation_solutions, "validation", 0, policy_pool)
    files = {name: setup.folder / f"{name}.jsonl" for name in rows}
    for name, found in rows.items():
        write_rows(files[name], (native_row(s) | {"label_kind": data.label_kind} for s in found))
    counts = {name: count(found) for name, found in rows.items()}
    for name, found in scores_of.items():
        counts[name]["mean_score"] = float(np.mean(found[: cfg.solutions]))
    drawn = {"problems": n_problems, "samples": n_problems * cfg.samples, "lacking": cfg.solutions - len(rows["mined"])}
    found = {"labels": data.label_kind, "files": {name: str(path) for name, path in files.items()}, "counts": counts}
    return describe(scorer) | drawn | found


def count(solutions: list[Solution]) -> dict:
    """Of what is labelled: solutions, steps up to and including the first wrong one (label below .5), and the shares of the
    solutions with a wrong answer, with a wrong step (unsound), with a wrong step and a right answer (lucky)."""
    errors = [first_error(s.labels) for s in solutions]
    wrong, unsound = np.array([s.outcome == 0 for s in solutions]), np.array(errors) >= 0
    steps = sum(t + 1 if t >= 0 else len(s.steps) for t, s in zip(errors, solutions, strict=True))
    shares = {"wrong_answers": float(wrong.mean()), "unsound": float(unsound.mean())}
    return {"solutions": len(solutions), "steps": steps} | shares | {"lucky": float((unsound & ~wrong).mean())}


def show(results: dict):
    print(f"verifier    {results['verifier']}")
    print(f"samples     {results['samples']:,} of {results['problems']:,} training problems")
    if results["lacking"]:
        print(
            f"lacking     {results['lacking']} solutions a file: some problems have fewer different ones than asked for"
        )
    kind = results["labels"]
    is_exact = kind == "correctness"
    bad = "a wrong step" if is_exact else f"a {kind} below .5"
    for name, found in results["counts"].items():
        shares = f"{found['wrong_answers']:.3f} with a wrong answer, {found['unsound']:.3f} with {bad}"
        print(f"{name:<12}{found['solutions']:,} solutions, {found['steps']:,} steps to label, {shares}")
        print(f"            {results['files'][name]}")
    files = f"data.path={results['files']['mined']} data.validation_path={results['files']['validation']}"
    print(
        f"next        python train.py data=jsonl {files} data.label_kind={kind}"
        + " data.after_first_error=mask" * is_exact
    )
