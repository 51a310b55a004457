"""task=mining: chooses what to have labelled next: wrong answers that a verifier takes for right (active learning).

Lightman et al. 2023, section 4: a small PRM scores many samples of each training problem. 80 % of those kept are the
highest-scored with a wrong answer, the others the highest-scored of the rest. Whether an answer is wrong is known
before anybody labels a step. mined.jsonl and uniform.jsonl hold equally many different solutions of each problem.

Dimension key: N samples of a problem.
"""

import collections
import dataclasses
from typing import Annotated

import numpy as np

from prm_jax import InputError, rerank, tasks
from prm_jax.data.pools import Candidate, candidate_rows
from prm_jax.data.rows import write_rows
from prm_jax.data.splits import TaskData
from prm_jax.evals.setup import Setup
from prm_jax.evals.verifiers import data_of, describe, one_scorer
from prm_jax.generate.samples import policy_pool
from prm_jax.launch.config import Count, Share, expect, one_of, script
from prm_jax.scoring import score_into
from prm_jax.solutions import Solution, first_error, native_row


@dataclasses.dataclass(frozen=True)
class Config:
    solutions: Count
    kept: Count
    samples: Count
    wrong: Share
    aggregator: Annotated[str, one_of(rerank.AGGREGATORS)]
    validation_solutions: Count

    def __post_init__(self):
        expect(self.kept <= self.samples, "kept", self.kept, f"at most samples ({self.samples})")


def different(candidates: tuple[Candidate, ...]) -> list[int]:
    """Indices of the different solutions, of equal ones the first."""
    return sorted({c.steps: n for n, c in reversed(list(enumerate(candidates)))}.values())


def mine(candidates: tuple[Candidate, ...], score_N: np.ndarray, kept: int, wrong: float) -> list[int]:
    """Indices of `kept` different solutions: the highest-scored with a wrong answer, up to the share `wrong`, then the
    highest-scored of the rest. Of equal scores the first comes first."""
    ranked = sorted(different(candidates), key=lambda n: -score_N[n])
    chosen = [n for n in ranked if candidates[n].outcome == 0][: round(kept * wrong)]
    return chosen + [n for n in ranked if n not in chosen][: kept - len(chosen)]


def run(setup: Setup, cfg: Config) -> dict:
    """Writes mined.jsonl, uniform.jsonl and validation.jsonl, rows with the exact checker's labels; counts them."""
    scorer, data = one_scorer(setup), data_of(setup, setup.checkpoints[0])[0]
    if not isinstance(data, TaskData):
        raise InputError(f"data: task=mining samples training problems of an embedded task, got {data.name}")
    task, seed = tasks.TASKS[data.name], setup.cfg.seed
    n_problems = -(-cfg.solutions // cfg.kept)
    problems = list(tasks.sample_pool(data, n_problems, cfg.samples, data.train_split, seed, policy_pool))
    scores = score_into(
        setup.folder / "scores.jsonl", scorer, candidate_rows(problems), n_problems * cfg.samples
    )
    score_PN = rerank.solution_scores(list(scores), cfg.aggregator).reshape(n_problems, cfg.samples)
    rows, scores_of = collections.defaultdict(list), {"mined": [], "uniform": []}
    for p, (problem, score_N) in enumerate(zip(problems, score_PN, strict=True)):
        candidates = problem.candidates
        mined, uniform = mine(candidates, score_N, cfg.kept, cfg.wrong), different(candidates)[: cfg.kept]
        for name, n in [("mined", n) for n in mined] + [("uniform", n) for n in uniform]:
            origin = data.label_kind, f"{data.name}/{data.train_split}/{seed}/{p}/{n}", candidates[n].finished
            rows[name].append(tasks.labelled(task, data.task, problem.problem, candidates[n].steps, *origin))
            scores_of[name].append(score_N[n])
    rows = {name: solutions[: cfg.solutions] for name, solutions in rows.items()}
    rows["validation"] = tasks.sample_solutions(data, cfg.validation_solutions, "validation", 0, policy_pool)
    files = {name: setup.folder / f"{name}.jsonl" for name in rows}
    for name, solutions in rows.items():
        write_rows(files[name], (native_row(s) | {"label_kind": data.label_kind} for s in solutions))
    counts = {name: count(solutions) for name, solutions in rows.items()}
    for name, score_n in scores_of.items():
        counts[name]["mean_score"] = float(np.mean(score_n[: cfg.solutions]))
    return {
        **describe(scorer), "problems": n_problems, "samples": n_problems * cfg.samples,
        "lacking": cfg.solutions - len(rows["mined"]), "labels": data.label_kind,
        "files": {name: str(path) for name, path in files.items()}, "counts": counts,
    }  # fmt: skip


def count(solutions: list[Solution]) -> dict:
    """Numbers of solutions and of steps up to and including the first wrong one (label below .5); shares of solutions
    with a wrong answer, with a wrong step (unsound), with a wrong step and a right answer (lucky)."""
    errors = [first_error(s.labels) for s in solutions]
    wrong, unsound = np.array([s.outcome == 0 for s in solutions]), np.array(errors) >= 0
    shares = {"wrong_answers": wrong, "unsound": unsound, "lucky": unsound & ~wrong}
    steps = sum(t + 1 if t >= 0 else len(s.steps) for t, s in zip(errors, solutions, strict=True))
    return {"solutions": len(solutions), "steps": steps} | {
        name: float(x.mean()) for name, x in shares.items()
    }


def show(results: dict):
    kind, is_exact, files = results["labels"], results["labels"] == "correctness", results["files"]
    print(f"verifier    {results['verifier']}")
    print(f"samples     {results['samples']:,} of {results['problems']:,} training problems")
    if n := results["lacking"]:
        print(f"lacking     {n} solutions a file: some problems have fewer different ones than asked for")
    bad = "a wrong step" if is_exact else f"a {kind} below .5"
    for name, x in results["counts"].items():
        shares = f"{x['wrong_answers']:.3f} with a wrong answer, {x['unsound']:.3f} with {bad}"
        print(
            f"{name:<12}{x['solutions']:,} solutions, {x['steps']:,} steps to label, {shares}\n{'':<12}{files[name]}"
        )
    keys = f"data.path={files['mined']} data.validation_path={files['validation']} data.label_kind={kind}"
    print(f"next        {script('train')} data=jsonl {keys}" + " data.after_first_error=mask" * is_exact)
