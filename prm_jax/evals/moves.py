"""task=moves: does a verifier rank the next moves of a state, as search needs it? AUROC of exact reachability.

Every move is a right line, so a verifier of correctness can tell them apart only by what it learned besides.
"""

import dataclasses

import numpy as np

from prm_jax import InputError, tasks
from prm_jax.evals.common import Setup, data_of, describe, open_scorer, plus_minus, scored
from prm_jax.launch.config import Count
from prm_jax.metrics import auroc
from prm_jax.stats import mean_interval, paired_differences


@dataclasses.dataclass(frozen=True)
class Config:
    """conf/task/moves.yaml says what each key means."""

    problems: Count


def needs_checkpoint(cfg: Config) -> bool:
    return True


def run(setup: Setup, cfg: Config) -> dict:
    """Of each verifier the mean AUROC over problems, and by the lines before a state; the first less each other."""
    data = data_of(setup, setup.checkpoints[0])[0]
    if data.name != "countdown":
        raise InputError(f"data: task=moves knows the legal moves of countdown alone, got {data.name}")
    problems = tasks.make_problems(tasks.countdown, data.task, cfg.problems, "test", 0)
    rng = np.random.default_rng(setup.cfg.seed)
    states = [list(tasks.countdown.ranked_moves(data.task, problem, rng)) for problem in problems]
    rows = [
        (f"{p}/{t}/{i}", problems[p], (*prefix, line))
        for p, of_problem in enumerate(states)
        for t, (prefix, moves) in enumerate(of_problem)
        for i, line in enumerate(moves)
    ]
    found = []
    for k, name in enumerate(setup.checkpoints):
        scorer = open_scorer(setup, name)
        last = (logit_T[-1] for logit_T in scored(setup.folder / f"scores_{k}.jsonl", scorer, rows, len(rows)))
        auroc_PT = np.array(
            [
                [auroc([next(last) for _ in moves], list(moves.values())) for _, moves in of_problem]
                for of_problem in states
            ]
        )
        found.append((describe(scorer), auroc_PT))
    runs = [about | summary(auroc_PT, setup.cfg.seed) for about, auroc_PT in found]
    mean_P = [np.nanmean(auroc_PT, 1) for _, auroc_PT in found]
    has_P = ~np.isnan(mean_P[0])
    for about, own_P in zip(runs[1:], mean_P[1:], strict=True):
        about["first_minus_this"] = paired_differences(mean_P[0][has_P, None], own_P[has_P, None], setup.cfg.seed)[0]
    return {"runs": runs, "moves": len(rows), "problems": int(has_P.sum()), "data": dataclasses.asdict(data)}


def summary(auroc_PT: np.ndarray, seed: int) -> dict:
    """Means over problems of which some state has both kinds of moves; the others have no AUROC."""
    mean_P = np.nanmean(auroc_PT[~np.isnan(auroc_PT).all(1)], 1)
    low, high = mean_interval(mean_P, seed)
    return {
        "auroc": float(mean_P.mean()),
        "interval": [float(low), float(high)],
        "by_lines": np.nanmean(auroc_PT, 0).tolist(),
    }


def show(results: dict):
    print(
        f"measured    {results['moves']} moves of {results['problems']} held-out problems: AUROC of the target in reach"
    )
    for r in results["runs"]:
        depths = ", ".join(f"{x:.3f} after {t}" for t, x in enumerate(r["by_lines"]))
        print(
            f"  {r['auroc']:.4f} {plus_minus(r['interval'])}  {r['verifier']} ({r['label_kind']}); lines before: {depths}"
        )
        if d := r.get("first_minus_this"):
            print(f"          the first less this: {d['difference']:+.4f} {plus_minus(d['interval'])}, p {d['p']:.4f}")
