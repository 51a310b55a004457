"""task=score: scores the steps of solutions, or of a pool, and ranks the solutions of each problem."""

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Sequence

from prm_jax.data import pools, rows, sources
from prm_jax.data.units import UNITS
from prm_jax.data.writing import score_into
from prm_jax.evals.setup import Setup
from prm_jax.evals.tables import show_table
from prm_jax.evals.task import Task
from prm_jax.evals.verifiers import describe, new_name, one_scorer
from prm_jax.launch.config import expect
from prm_jax.launch.progress import print_counts
from prm_jax.rerank import default_aggregator
from prm_jax.scoring import ModelScorer
from prm_jax.solutions import Solution

MOST_SHOWN = 20


@dataclasses.dataclass(frozen=True)
class Config:
    input: str
    columns: dict[str, str] | None
    split_by: str | None


class Score(Task):
    Config = Config

    def run(self, setup: Setup) -> dict:
        """Writes scores.jsonl, and pool.jsonl.gz if the input is a pool."""
        scorer = one_scorer(setup)
        problems, solutions = read_input(self.cfg)
        pools.note_unsplit(solutions)
        files = {"scores": setup.folder / "scores.jsonl"}
        logits = list(score_into(files["scores"], scorer, solutions, len(solutions)))
        if problems:
            taken = {name for p in problems for c in p.candidates for name in c.step_scores}
            files["pool"] = setup.folder / "pool.jsonl.gz"
            scored = pools.with_scores(problems, new_name(scorer, taken), logits, scorer.unit)
            pools.write_pool(files["pool"], scored)
        # A model's scores are shown as its authors show them.
        unit = scorer.format.score if isinstance(scorer, ModelScorer) else "probability"
        aggregator = default_aggregator(scorer, "rank")
        ranking = rank(solutions, logits, unit, aggregator)
        for row in ranking[MOST_SHOWN:]:  # scores.jsonl has them
            del row["steps"], row["scores"]
        return describe(scorer) | {
            "shown_unit": unit,
            "aggregator": aggregator,
            "files": {name: str(path) for name, path in files.items()},
            "ranking": ranking,
        }

    def show(self, results: dict):
        unit, aggregator, ranking = results["shown_unit"], results["aggregator"], results["ranking"]
        print(f"verifier    {results['verifier']}; ranked by the {aggregator} of its step scores ({unit})")
        for name, path in results["files"].items():
            print(f"{name:<12}{path}")
        shown = "score", "weakest_step", "n_steps"
        for problem, ranked in itertools.groupby(ranking[:MOST_SHOWN], key=lambda row: row["problem"]):
            table = {row["id"]: {name: row[name] for name in shown} for row in ranked}
            line = " ".join(problem.split())
            show_table(f"problem     {line[:80]}", table)
        if len(ranking) > MOST_SHOWN:
            print(f"  ... and {len(ranking) - MOST_SHOWN} more in results.json")

    def detail(self, results: dict):
        """Prints the steps of the first solutions with their scores."""
        for row in results["ranking"][:MOST_SHOWN]:
            print(f"solution    {row['id']}")
            for step, score in zip(row["steps"], row["scores"], strict=True):
                line = " ".join(step.split())
                print(f"  {score:8.4f}  {line[:80]}")


def read_input(cfg: Config) -> tuple[list[pools.Problem], Sequence[Solution]]:
    """(problems of a pool, none of a file of solutions; every solution)."""
    _, first = next(iter(rows.read_rows(cfg.input, cfg.columns)))
    problems = []
    if rows.is_pool(first):
        problems = pools.read_pool(cfg.input, split_by=cfg.split_by, columns=cfg.columns)
        solutions = list(pools.pool_solutions(problems))
    else:
        reading = {"name": "text", "split_by": cfg.split_by} if cfg.split_by else {"name": "native"}
        solutions, counts = sources.load(cfg.input, columns=cfg.columns, **reading)
        print_counts({name: n for name, n in counts.items() if n and name.endswith("_dropped")})
    for i, n in collections.Counter(s.id for s in solutions).items():
        expect(n == 1, f"{cfg.input}: id", i, "each id once")
    return problems, solutions


def rank(solutions: Iterable[Solution], scores: Iterable, unit: str, aggregator: str) -> list[dict]:
    """Problems in the order of the file; in each, solutions by their lowest or last step score, best
    first."""
    by_problem = {}
    for s, logit_T in zip(solutions, scores, strict=True):
        weakest = int(logit_T.argmin())
        score_T = UNITS[unit].from_log_odds(logit_T.astype(float))
        chosen = -1 if aggregator == "last" else weakest
        row = {"id": s.id, "problem": s.problem, "score": float(score_T[chosen]), "weakest_step": weakest + 1}
        row |= {"n_steps": len(s.steps), "steps": list(s.steps), "scores": score_T.tolist()}
        by_problem.setdefault(s.problem, []).append((-float(logit_T[chosen]), row))
    return [row for rows in by_problem.values() for _, row in sorted(rows, key=lambda pair: pair[0])]
