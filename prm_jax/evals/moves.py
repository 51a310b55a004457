"""task=moves: how well a verifier ranks the next moves of a state, as search needs it: AUROC of exact reachability.

Every move is a right line, so a verifier of correctness can tell moves apart only by what else it has learned.
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
    """Each verifier's mean AUROC over problems, also by lines before a state, and the first's lead over it."""
    data = data_of(setup, setup.checkpoints[0])[0]
    if data.name != "countdown":
        raise InputError(f"data: task=moves knows the legal moves of countdown alone, got {data.name}")
    problems = tasks.make_problems(tasks.countdown, data.task, cfg.problems, "test", 0)
    rng = np.random.default_rng(setup.cfg.seed)
    states = [list(tasks.countdown.ranked_moves(data.task, problem, rng)) for problem in problems]
    rows = [
        (f"{p}/{t}/{i}", problems[p], (*prefix, line))
        for p, states_of_problem in enumerate(states)
        for t, (prefix, moves) in enumerate(states_of_problem)
        for i, line in enumerate(moves)
    ]
    runs, mean_P = [], []
    for k, name in enumerate(setup.checkpoints):
        scorer = open_scorer(setup, name)
        last = (logit_T[-1] for logit_T in scored(setup.folder / f"scores_{k}.jsonl", scorer, rows, len(rows)))
        auroc_PT = np.array([[state_auroc(moves, last) for _, moves in of_problem] for of_problem in states])
        runs.append({**describe(scorer), **summary(auroc_PT, setup.cfg.seed)})
        mean_P.append(np.nanmean(auroc_PT, 1))
    has_P = ~np.isnan(mean_P[0])
    for run, other_P in zip(runs[1:], mean_P[1:], strict=True):
        (test,) = paired_differences(mean_P[0][has_P, None], other_P[has_P, None], setup.cfg.seed)
        run["first_minus_this"] = test
    return {"runs": runs, "moves": len(rows), "problems": int(has_P.sum()), "data": dataclasses.asdict(data)}


def state_auroc(moves: dict, logits) -> float:
    """AUROC of one state; takes as many log-odds from `logits` as the state has moves."""
    return auroc([next(logits) for _ in moves], list(moves.values()))


def summary(auroc_PT: np.ndarray, seed: int) -> dict:
    """Means over the problems that have an AUROC: some state with both kinds of moves."""
    mean_P = np.nanmean(auroc_PT[~np.isnan(auroc_PT).all(1)], 1)
    low, high = mean_interval(mean_P, seed)
    return {
        "auroc": float(mean_P.mean()),
        "interval": [float(low), float(high)],
        "by_lines": np.nanmean(auroc_PT, 0).tolist(),
    }


def show(results: dict):
    moves = f"{results['moves']} moves of {results['problems']} held-out problems"
    print(f"measured    {moves}: AUROC of the target in reach")
    for r in results["runs"]:
        depths = ", ".join(f"{x:.3f} after {t}" for t, x in enumerate(r["by_lines"]))
        number = f"{r['auroc']:.4f} {plus_minus(r['interval'])}"
        print(f"  {number}  {r['verifier']} ({r['label_kind']}); lines before: {depths}")
        if test := r.get("first_minus_this"):
            difference = f"{test['difference']:+.4f} {plus_minus(test['interval'])}, p {test['p']:.4f}"
            print(f"          first minus this: {difference}")
