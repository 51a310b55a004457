"""task=score: scores the steps of a file of solutions, or of a pool of any size, and ranks them within each problem."""

import collections
import dataclasses
import functools
import itertools
from pathlib import Path

import numpy as np

from prm_jax import InputError
from prm_jax.data import pools, rows, sources
from prm_jax.data.units import UNITS
from prm_jax.evals.setup import Setup
from prm_jax.evals.task import Task
from prm_jax.evals.verifiers import describe, new_name, one_scorer
from prm_jax.launch.config import Natural, Share, expect
from prm_jax.launch.progress import print_counts
from prm_jax.rerank import default_aggregator
from prm_jax.scoring import ModelScorer, score_into, stored_scores


@dataclasses.dataclass(frozen=True)
class Config:
    input: str | None
    figures: Natural | list
    scores_name: str | None
    split_by: str | None
    threshold: Share

    def __post_init__(self):
        expect(self.input is not None, "input", None, "a file of solutions or a pool, input=FILE")


def run(setup: Setup, cfg: Config) -> dict:
    """Writes scores.jsonl, and pool.jsonl.gz if the input is a pool; returns the ranking and the solutions to draw."""
    _, first = next(iter(rows.read_rows(cfg.input)), (0, {}))
    is_pool = pools.is_pool(first)
    is_split = "candidates" in first or not is_pool and bool({"steps", "completions"} & first.keys())
    is_raw = not (is_pool or is_split) and bool({"response", "solution", "text"} & first.keys())
    expected = f"how to split the responses of {cfg.input}: {', '.join(sources.OPTIONS['split_by'])}"
    expect(cfg.split_by or not is_raw, "split_by", None, expected)
    expect(not (cfg.split_by and is_split), "split_by", cfg.split_by, f"null: {cfg.input} has steps")
    scorer = one_scorer(setup)
    read_pool = functools.partial(pools.iter_pool, cfg.input, split_by=cfg.split_by)
    reading = {"kind": "text", "split_by": cfg.split_by} if cfg.split_by else {"kind": "native"}
    loaded, counts = ((), {}) if is_pool else sources.load(cfg.input, **reading)
    solutions = [(s.id, s.problem, s.steps) for s in loaded]
    dropped = {name: n for name, n in counts.items() if n and name.endswith("_dropped")}
    print_counts(dropped)

    def source():  # read anew each time: a pool may be larger than memory
        return pools.candidate_rows(read_pool()) if is_pool else solutions

    ids, n_unsplit = [], 0
    for i, _, steps in source():
        ids.append(i)
        n_unsplit += pools.is_unsplit(steps)
    pools.note_unsplit(n_unsplit, len(ids))
    if repeated := next((i for i, n in collections.Counter(ids).items() if n > 1), None):
        raise InputError(f"{cfg.input}: id {repeated!r}: found more than once, expected each once")
    wanted = [str(i) for i in cfg.figures] if isinstance(cfg.figures, list) else None
    if unknown := set(wanted or ()).difference(ids):
        raise InputError(f"figures: no solution has the id {min(unknown)!r}")
    files = {"scores": setup.folder / "scores.jsonl"}
    if is_pool:
        taken = {name for p in read_pool() for c in p.candidates for name in c.step_scores}
        name, files["pool"] = new_name(cfg.scores_name, scorer, taken), setup.folder / "pool.jsonl.gz"
    scores = score_into(files["scores"], scorer, source(), len(ids))
    if is_pool:
        pools.write_pool(files["pool"], pools.with_scores(read_pool(), name, scores, scorer.unit))
    unit = (
        scorer.format.score if isinstance(scorer, ModelScorer) else "probability"
    )  # as its authors show scores
    from_log_odds, aggregator = UNITS[unit].from_log_odds, default_aggregator(scorer)
    ranking = rank(source(), stored_scores(files["scores"]), unit, aggregator)
    wanted = [r["id"] for r in ranking[: cfg.figures]] if wanted is None else wanted
    drawn = {
        i: {
            "id": i,
            "problem": problem,
            "steps": steps,
            "scores": from_log_odds(logit_T.astype(float)).tolist(),
        }
        for (i, problem, steps), logit_T in zip(source(), stored_scores(files["scores"]), strict=True)
        if i in wanted
    }
    return {
        **describe(scorer), "shown_unit": unit,
        "threshold": float(from_log_odds(UNITS["probability"].log_odds(cfg.threshold))), "aggregator": aggregator,
        "files": {name: str(path) for name, path in files.items()}, "ranking": ranking,
        "counts": dropped, "drawn": [drawn[i] for i in wanted],
    }  # fmt: skip


def rank(rows, scores, unit: str, aggregator: str) -> list[dict]:
    """Problems in the order of the file; within each, solutions by their lowest or last step score, best first. Scores
    are in `unit`; where that is the probability the product of a solution's steps is there too."""
    order, table = {}, []
    for (i, problem, steps), logit_T in zip(rows, scores, strict=True):
        weakest = int(logit_T.argmin())
        logit = float(logit_T[-1 if aggregator == "last" else weakest])
        score = float(UNITS[unit].from_log_odds(logit))
        row = {
            "id": i,
            "problem": problem,
            "score": score,
            "weakest_step": weakest + 1,
            "n_steps": len(steps),
        }
        if unit == "probability":
            row["product"] = float(np.exp(-np.logaddexp(0, -logit_T.astype(float)).sum()))
        table.append((order.setdefault(problem, len(order)), -logit, row))
    return [row for *_, row in sorted(table, key=lambda entry: entry[:2])]


def show(results: dict, most: int = 20):
    unit, aggregator = results["shown_unit"], results["aggregator"]
    print(f"verifier    {results['verifier']}; ranked by the {aggregator} of its step scores ({unit})")
    for name, path in results["files"].items():
        print(f"{name:<12}{path}")
    ranking = results["ranking"]
    for problem, rows_of in itertools.groupby(ranking[:most], key=lambda r: r["problem"]):
        print(f"problem     {problem[:100]}")
        for r in rows_of:
            weakest = f"weakest step {r['weakest_step']} of " if aggregator == "min" else "steps "
            print(f"  {r['score']:.4f}  {weakest}{r['n_steps']}  {r['id']}")
    if len(ranking) > most:
        print(f"  ... and {len(ranking) - most} more in results.json")


class Score(Task):
    Config = Config

    def run(self, setup: Setup) -> dict:
        return run(setup, self.cfg)

    def show(self, results: dict):
        show(results)

    def figures(self, results: dict, folder: Path) -> list[Path]:
        from prm_jax.figures.steps import solution_figures

        return solution_figures(results, folder)
