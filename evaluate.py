"""Evaluate verifiers. Each task writes results.json (every number behind every figure) and figures/*.png.

steps: metrics of step scores against labels, on the held-out split.
score: step scores of a file of solutions or of a pool, ranked and drawn.
"""

import dataclasses
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from prm_jax import InputError, cli, plots, pools, solutions
from prm_jax.baselines import Steps, baseline_aurocs
from prm_jax.checkpoint import run_config
from prm_jax.data import data_config, load_splits
from prm_jax.formats import Format
from prm_jax.metrics import bootstrap_interval, labelled_steps, reliability, step_metrics
from prm_jax.model import choose_dtype
from prm_jax.scoring import Verifier, load_verifier, score_solutions, write_scores
from prm_jax.sharding import MeshConfig, join, make_mesh, same_folder, text_folder
from prm_jax.solutions import Solution


@dataclasses.dataclass(frozen=True)
class BatchConfig:
    rows: int
    tokens: int


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """conf/evaluate.yaml says what each key means."""

    task: str
    checkpoint: str | None
    which: str
    dtype: str
    threshold: float
    max_solutions: int | None
    baselines: bool
    input: str | None
    scores_name: str
    figures: int | list
    batch: BatchConfig
    seed: int
    format: Format
    mesh: MeshConfig


@cli.command("evaluate")
def main(cfg):
    """Evaluate a verifier: step metrics on held-out solutions (task=steps), or scores of your own (task=score)."""
    join(cfg)
    data, given, folder = cfg.data, cfg, text_folder(same_folder(cli.output_dir()))
    cfg = cli.parse(cfg, EvaluateConfig, elsewhere=("data", "distributed"))
    for name, n in {"batch.rows": cfg.batch.rows, "batch.tokens": cfg.batch.tokens}.items():
        if n < 1:
            raise InputError(f"{name}: got {n}, expected at least 1")
    if cfg.max_solutions is not None and cfg.max_solutions < 1:
        raise InputError(f"max_solutions: got {cfg.max_solutions}, expected at least 1, or null for all")
    choose_dtype(cfg.dtype)
    checkpoint = Path(cfg.checkpoint) if cfg.checkpoint else cli.newest_run()
    cli.claim(folder, given)
    with jax.set_mesh(make_mesh(cfg.mesh)):
        match cfg.task:
            case "steps":
                results, figures = evaluate_steps(cfg, data, cli.runs_of(checkpoint), folder)
            case "score":
                results, figures = evaluate_score(cfg, checkpoint, folder)
            case _:
                raise InputError(f"task: got {cfg.task!r}, expected steps or score")
    results |= {"task": cfg.task, "threshold": cfg.threshold, "seed": cfg.seed}
    results.setdefault("versions", cli.versions())
    cli.write_json(folder / "results.json", results)
    print(f"results     {folder / 'results.json'}", *(f"figure      {path}" for path in figures), sep="\n")


def evaluate_steps(cfg: EvaluateConfig, data, checkpoints: Sequence[Path], folder: Path):
    """Step metrics of one verifier, or of each run of a sweep with their mean on top."""
    runs = []
    for checkpoint in checkpoints:
        verifier = load_verifier(checkpoint, cfg.which, cfg.format, cfg.dtype)
        own = run_config(checkpoint) if (checkpoint / "checkpoints").is_dir() else None
        if data.name == "of_run" and own is None:
            raise InputError(
                f"data: {checkpoint} is no run of ours, so name the data set to evaluate on: data=NAME"
            )
        data_cfg = data_config(own.data if data.name == "of_run" else data)
        splits, counts = load_splits(data_cfg, own.seed if own else 0, labels_required=True)
        cli.print_counts(counts)
        test = [s for s in splits["test"] if s.labels is not None][: cfg.max_solutions]
        if not test:
            raise InputError("data: the test split has no labelled solution")
        scores = score_solutions(
            verifier,
            [(s.problem, s.steps) for s in test],
            batch_rows=cfg.batch.rows,
            row_tokens=cfg.batch.tokens,
        )
        summary = own and checkpoint / "summary.json"
        trained = json.loads(summary.read_text()) if summary and summary.exists() else {}
        cost = {"train_seed": trained.get("seed"), "train_seconds": trained.get("seconds")}
        runs.append(
            measure(cfg, verifier, data_cfg, splits["train"], test, scores) | {"counts": counts} | cost
        )
        write_scores(folder / f"scores_{len(runs) - 1}.jsonl", [s.id for s in test], scores)
    results = average(runs) | {"runs": runs, "versions": cli.versions()}
    print_steps(results)
    (folder / "figures").mkdir(exist_ok=True)
    return results, plots.step_figures(results, folder / "figures")


def measure(cfg, verifier: Verifier, data_cfg, train, test: list[Solution], scores) -> dict:
    """Every number of one verifier on one test split, and the curves behind the figures."""
    labels, problems = [s.labels for s in test], [s.problem for s in test]
    result = step_metrics(scores, labels, problems, cfg.threshold)
    p, y, owner = [], [], []
    for i, (score_T, label_T) in enumerate(zip(scores, labels, strict=True)):
        for t in labelled_steps(label_T)[0]:
            p.append(float(score_T[t])), y.append(label_T[t]), owner.append(problems[i])
    p, y = np.array(p), np.array(y)
    accuracy = (p >= cfg.threshold) == (y >= 0.5)
    result["step_accuracy_interval"] = bootstrap_interval(
        lambda rows: accuracy[rows].mean(), owner, seed=cfg.seed
    )
    mean_p, mean_y, count = reliability(p, y)
    result["reliability"] = {
        "mean_score": mean_p.tolist(),
        "mean_label": mean_y.tolist(),
        "n": count.tolist(),
    }
    result["histogram"] = {
        name: np.histogram(p[here], bins=20, range=(0, 1))[0].tolist()
        for name, here in {"good": y >= 0.5, "bad": y < 0.5}.items()
    }
    if cfg.baselines:
        tokenizer = verifier.tokenizer
        result["baselines"] = baseline_aurocs(step_table(train, tokenizer), step_table(test, tokenizer))
    return result | describe(verifier) | {"data": dataclasses.asdict(data_cfg)}


def describe(verifier: Verifier) -> dict:
    return {"verifier": verifier.name, "label_kind": verifier.label_kind, "objective": verifier.objective}


def step_table(rows: list[Solution], tokenizer) -> Steps:
    """The labelled steps of solutions as the baselines see them: position, own tokens, label."""
    chosen = [(t, s.steps[t], s.labels[t] >= 0.5) for s in rows for t in labelled_steps(s.labels)[0]]
    texts = list({text for _, text, _ in chosen})
    ids = (
        dict(zip(texts, tokenizer(texts, add_special_tokens=False)["input_ids"], strict=True))
        if texts
        else {}
    )
    return Steps(
        [t for t, _, _ in chosen], [ids[text] for _, text, _ in chosen], [good for *_, good in chosen]
    )


def average(runs: list[dict]) -> dict:
    """The mean over runs of every top-level number, and beside it `std` (of the sample) where there are several."""
    names = [name for name, x in runs[0].items() if isinstance(x, int | float) and not isinstance(x, bool)]
    mean = {name: statistics.fmean(run[name] for run in runs) for name in names}
    if len(runs) > 1:
        mean["std"] = {name: float(np.std([run[name] for run in runs], ddof=1)) for name in names}
    if "baselines" in runs[0]:
        mean["baselines"] = {
            k: statistics.fmean(run["baselines"][k] for run in runs) for k in runs[0]["baselines"]
        }
    return mean


def print_steps(results: dict):
    n = len(results["runs"])
    print(
        f"verifier    {results['runs'][0]['verifier']}" + (f" and {n - 1} more runs: means" if n > 1 else "")
    )
    kinds = {run["label_kind"] for run in results["runs"]}
    if results["runs"][0]["objective"] == "orm":
        print("objective   orm: an outcome model, read at every step")
    print(
        f"held out    {results['n_solutions']:.0f} solutions, {results['n_steps']:.0f} labelled steps ({'/'.join(kinds)} labels)"
    )
    names = (
        "step_auroc",
        "step_accuracy",
        "bad_step_f1",
        "brier",
        "ece",
        "first_error_accuracy",
        "first_error_f1",
    )
    for name in (*names, "within_problem_auroc", "tail_miss_rate"):
        spread = f"  (std {results['std'][name]:.4f})" if n > 1 else ""
        print(f"  {name:<24}{results[name]:.4f}{spread}")
    for name, x in results.get("baselines", {}).items():
        print(f"  baseline {name:<15}{x:.4f}  (AUROC of what cannot read)")


def evaluate_score(cfg: EvaluateConfig, checkpoint: Path, folder: Path):
    """Scores of a file of solutions or of a pool: written beside their ids, ranked within a problem, a few drawn."""
    if cfg.input is None:
        raise InputError("input: task=score needs a file of solutions or a pool, input=FILE")
    verifier = load_verifier(checkpoint, cfg.which, cfg.format, cfg.dtype)
    pool = None
    first_row = next(iter(solutions.read_rows(cfg.input)), (0, {}))[1]
    if "candidates" in first_row:
        pool = pools.read_pool(cfg.input)
        rows = [(f"{p.id}/{n}", p.problem, c.steps) for p in pool for n, c in enumerate(p.candidates)]
    else:
        found, _ = solutions.load(cfg.input, "native", **solutions.AS_IN_FILE)
        rows = [(s.id, s.problem, s.steps) for s in found]
    wanted = [str(i) for i in cfg.figures] if isinstance(cfg.figures, list) else None
    unknown = set(wanted or ()) - {row[0] for row in rows}
    if unknown:
        raise InputError(f"figures: no solution has the id {min(unknown)!r}")
    if pool is not None and any(cfg.scores_name in c.step_scores for p in pool for c in p.candidates):
        raise InputError(f"scores_name: {cfg.scores_name!r} is in the pool already, expected a new name")
    scores = score_solutions(
        verifier, [row[1:] for row in rows], batch_rows=cfg.batch.rows, row_tokens=cfg.batch.tokens
    )
    write_scores(folder / "scores.jsonl", [row[0] for row in rows], scores)
    written = [folder / "scores.jsonl"]
    if pool is not None:
        sizes = np.cumsum([len(p.candidates) for p in pool])[:-1]
        nested = [[scores[i] for i in part] for part in np.split(np.arange(len(scores)), sizes)]
        written.append(folder / "pool.jsonl.gz")
        pools.write_pool(written[-1], pools.with_scores(pool, cfg.scores_name, nested))
    print(f"verifier    {verifier.name}", *(f"scores      {path}" for path in written), sep="\n")
    ranked = rank(rows, scores)
    print_ranking(ranked)
    if wanted is None:
        wanted = [r["id"] for r in ranked[: cfg.figures]]
    (folder / "figures").mkdir(exist_ok=True)
    place = {row[0]: i for i, row in enumerate(rows)}
    figures = [
        plots.solution_figure(
            *rows[place[i]], scores[place[i]], cfg.threshold, folder / "figures", verifier.name
        )
        for i in wanted
    ]
    return describe(verifier) | {"ranking": ranked}, figures


def rank(rows, scores) -> list[dict]:
    """Problems in the order of the file; within each, solutions by their lowest step score, best first."""
    order = {problem: i for i, problem in enumerate(dict.fromkeys(row[1] for row in rows))}
    table = [
        {
            "id": i,
            "problem": problem,
            "score": float(score_T.min()),
            "weakest_step": int(score_T.argmin()) + 1,
            "product": float(np.exp(np.log(np.maximum(score_T, np.finfo(float).tiny)).sum())),
            "n_steps": len(steps),
        }
        for (i, problem, steps), score_T in zip(rows, scores, strict=True)
    ]
    return sorted(table, key=lambda r: (order[r["problem"]], -r["score"]))


def print_ranking(ranked: list[dict], most: int = 20):
    problem = None
    for r in ranked[:most]:
        if r["problem"] != problem:
            problem = r["problem"]
            print(f"problem     {problem[:100]}")
        print(f"  {r['score']:.4f}  weakest step {r['weakest_step']} of {r['n_steps']}  {r['id']}")
    if len(ranked) > most:
        print(f"  ... and {len(ranked) - most} more in results.json")


if __name__ == "__main__":
    main()
