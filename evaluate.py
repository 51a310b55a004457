"""Evaluate verifiers. Each task writes results.json (every number behind every figure) and figures/*.png.

report: steps and best_of_n, on a run's own held-out data.
steps: metrics of step scores against labels, on the held-out split.
best_of_n: selection, votes, reward against KL and calibration on a pool of candidates, stored or fresh.
score: step scores of a file of solutions or of a pool, ranked and drawn.
processbench, prmbench: the benchmark's own numbers beside the published ones, from a checkpoint or from stored scores.
witness: the toy trace witness, its figures and its interactive page; needs no checkpoint.
"""

import dataclasses
import itertools
import json
import statistics
from pathlib import Path

import jax
import numpy as np
from omegaconf import OmegaConf

from prm_jax import InputError, rerank, witness
from prm_jax.checkpoints.open import open_checkpoint
from prm_jax.checkpoints.orbax import run_config
from prm_jax.data import grading, pools, rows, sources
from prm_jax.data.formats import Format
from prm_jax.data.solutions import Solution
from prm_jax.data.splits import TaskData, data_config, load_evaluation
from prm_jax.data.units import UNITS, probability
from prm_jax.evals import benchmarks
from prm_jax.evals import pool_metrics as best_of_n
from prm_jax.evals.baselines import Steps, baseline_aurocs
from prm_jax.figures import benchmarks as benchmark_figures
from prm_jax.figures import best_of_n as pool_figures
from prm_jax.figures import steps as step_plots
from prm_jax.figures import witness as witness_plots
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import parse
from prm_jax.launch.hosts import init_distributed, same_folder, set_cpu_devices, text_folder
from prm_jax.launch.mesh import MeshConfig, make_mesh
from prm_jax.metrics import labelled_steps, reliability, step_metrics
from prm_jax.model import choose_dtype
from prm_jax.scoring import ModelScorer, score_into, stored_scores
from prm_jax.stats import bootstrap_interval
from prm_jax.tasks import chain as arithmetic

BENCHMARKS = ("processbench", "prmbench")


@dataclasses.dataclass(frozen=True)
class BatchConfig:
    rows: int
    tokens: int | None


@dataclasses.dataclass(frozen=True)
class WitnessConfig:
    aggregator: str
    beta: float
    betas: int
    errors: int


@dataclasses.dataclass(frozen=True)
class FreshPool:
    problems: int
    candidates: int


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """conf/evaluate.yaml says what each key means."""

    task: str
    resume: str | None
    checkpoint: str | list | None
    reference: str | None
    which: str
    dtype: str
    threshold: float
    threshold_split: str | None
    max_solutions: int | None
    baselines: bool
    input: str | None
    figures: int | list
    scores_file: str | None
    pool: str | None
    scores: str | list | None
    scores_name: str | None
    scores_unit: str
    aggregator: str
    ties: str
    checker: str | None
    vote_draws: int
    fresh: FreshPool
    batch: BatchConfig
    witness: WitnessConfig
    seed: int
    format: Format
    mesh: MeshConfig


@cli.command("evaluate")
def main(cfg):
    """Evaluate verifiers: step metrics, best-of-N, your own solutions, ProcessBench, PRMBench, or the toy trace witness."""
    set_cpu_devices(run_folder.of_resumed(cfg, "cpu_devices"))
    init_distributed(cfg)
    given, folder = cfg, same_folder(run_folder.output_dir())
    if cfg.resume is not None:
        if jax.process_index() == 0 and not any(folder.iterdir()):
            folder.rmdir()  # Hydra's new folder; the evaluation goes on in its own
        folder, cfg = run_folder.resumed(
            cfg, harmless=("resume", "cpu_devices", "mesh.data", "mesh.fsdp", "mesh.tensor")
        )
    folder = text_folder(folder)
    data = cfg.data
    cfg = parse(cfg, EvaluateConfig, elsewhere=("data", "distributed", "cpu_devices"))
    at_least_1 = {
        "batch.rows": cfg.batch.rows,
        "batch.tokens": cfg.batch.tokens,
        "fresh.problems": cfg.fresh.problems,
        "fresh.candidates": cfg.fresh.candidates,
    }
    for name, n in at_least_1.items():
        if n is not None and n < 1:
            raise InputError(f"{name}: got {n}, expected at least 1")
    if cfg.max_solutions is not None and cfg.max_solutions < 1:
        raise InputError(f"max_solutions: got {cfg.max_solutions}, expected at least 1, or null for all")
    if cfg.checker not in (None, *grading.RULES):
        raise InputError(f"checker: got {cfg.checker!r}, expected null, {', '.join(grading.RULES)}")
    if cfg.seed < 0:
        raise InputError(f"seed: got {cfg.seed}, expected at least 0")
    cfg = dataclasses.replace(cfg, dtype=choose_dtype(cfg.dtype))
    rules_of(cfg)
    tasks = {
        "report": evaluate_report,
        "steps": evaluate_steps,
        "best_of_n": evaluate_best_of_n,
        "score": evaluate_score,
        "processbench": evaluate_benchmark,
        "prmbench": evaluate_benchmark,
        "witness": evaluate_witness,
    }
    if cfg.task not in tasks:
        raise InputError(f"task: got {cfg.task!r}, expected {', '.join(tasks)}")
    if data.name == "of_run" and (data.path or data.hub) and cfg.task not in BENCHMARKS:
        raise InputError("data.path: say what the rows are, data=NAME, such as data=prm800k data.path=FILE")
    cfg = dataclasses.replace(cfg, checkpoint=[str(path) for path in checkpoints(cfg)])
    if cfg.resume is None:
        given.checkpoint = cfg.checkpoint  # a resumed evaluation must not find another newest run
        run_folder.create_run_folder(folder, given)
    (folder / "figures").mkdir(exist_ok=True)
    with jax.set_mesh(make_mesh(cfg.mesh, cfg.batch.rows)):
        results, figures = tasks[cfg.task](cfg, data, folder)
    results |= {"task": cfg.task, "seed": cfg.seed, "versions": run_folder.versions()}
    run_folder.write_json(folder / "results.json", results)
    print(f"results     {folder / 'results.json'}", *(f"figure      {path}" for path in figures), sep="\n")


def rules_of(cfg: EvaluateConfig) -> best_of_n.Rules:
    return best_of_n.Rules(cfg.scores_unit, cfg.aggregator, cfg.ties, cfg.vote_draws)


def checkpoints(cfg: EvaluateConfig) -> list[Path]:
    """The verifiers' folders: those named, a sweep's finished runs, or the newest run; none if only stored scores are asked for."""
    if cfg.task == "witness":  # brings its own verifiers
        return []
    if cfg.task in BENCHMARKS and cfg.scores_file:
        if cfg.checkpoint is not None:
            raise InputError("scores_file: stored scores need no verifier, expected no checkpoint beside it")
        return []
    if cfg.checkpoint is not None:
        named = cfg.checkpoint if isinstance(cfg.checkpoint, list) else [cfg.checkpoint]
        return [run for path in named for run in run_folder.runs_of(Path(str(path)))]
    return [] if cfg.task == "best_of_n" and cfg.pool else [run_folder.newest_run()]


def evaluate_report(cfg: EvaluateConfig, data, folder: Path):
    """Step metrics, then best-of-N on a pool: the one given, or a fresh one where the data has a solver to draw it."""
    results, figures = evaluate_steps(cfg, data, folder)
    if cfg.pool is None and any(run["data"]["name"] != "arithmetic" for run in results["runs"]):
        print("pool        none: only the arithmetic data has a solver to draw one from; pool=FILE names one")
        return results, figures
    more, more_figures = evaluate_best_of_n(cfg, data, folder)
    return results | more, figures + more_figures


def data_of(checkpoint: Path, data):
    """(the data to evaluate a verifier on, the seed of its run): the data named, or the run's own."""
    own = run_config(checkpoint) if (checkpoint / "checkpoints").is_dir() else None
    if data.name == "of_run" and own is None:
        raise InputError(f"data: {checkpoint} is no run of ours, so name the data set to evaluate on: data=NAME")
    return data_config(own.data if data.name == "of_run" else data), own.seed if own else 0


def evaluate_steps(cfg: EvaluateConfig, data, folder: Path):
    """Step metrics of one verifier, or of each run of a sweep with their mean on top."""
    runs = []
    for checkpoint in map(Path, cfg.checkpoint):
        verifier = open_verifier(cfg, checkpoint)
        if verifier.unit != "logit":
            raise InputError(
                f"format: {verifier.format.name} scores steps by a {verifier.unit}, but task=steps measures "
                "probabilities (Brier score, calibration)"
            )
        if runs and (verifier.objective, verifier.label_kind) != (runs[0]["objective"], runs[0]["label_kind"]):
            raise InputError(
                f"checkpoint: {checkpoint}: task={cfg.task} gives means over verifiers of one kind, but this is {verifier.objective} on "
                f"{verifier.label_kind} labels and the first {runs[0]['objective']} on {runs[0]['label_kind']}; "
                "task=best_of_n compares them"
            )
        data_cfg, seed = data_of(checkpoint, data)
        found = load_evaluation(data_cfg, seed, named=data.name != "of_run")
        splits, counts = found.splits, found.counts
        cli.print_counts(counts)
        test = [s for s in splits["test"] if s.labels is not None][: cfg.max_solutions]
        if not test:
            raise InputError("data: the test split has no labelled solution")
        rows = ((s.id, s.problem, s.steps) for s in test)
        scores = score_rows(cfg, verifier, rows, len(test), folder / f"scores_{len(runs)}.jsonl")
        scores = [probability(score_T) for score_T in scores]
        summary = checkpoint / "summary.json"
        trained = json.loads(summary.read_text()) if summary.exists() else {}
        cost = {"train_seed": trained.get("seed"), "train_seconds": trained.get("seconds")}
        runs.append(measure(cfg, verifier, data_cfg, splits["train"], test, scores) | {"counts": counts} | cost)
    results = average(runs) | {"runs": runs, "threshold": cfg.threshold, "versions": run_folder.versions()}
    print_steps(results)
    return results, step_plots.step_figures(results, folder / "figures")


def open_verifier(cfg: EvaluateConfig, path) -> ModelScorer:
    loaded = open_checkpoint(path, cfg.which, cfg.format, cfg.dtype, cfg.reference)
    return loaded.scorer(cfg.batch.rows, cfg.batch.tokens)


def score_rows(cfg: EvaluateConfig, verifier: ModelScorer, rows, total: int, path: Path):
    """Step scores of (id, problem, steps) rows, one after another, by way of a scores file that a resumed evaluation keeps."""
    score_into(path, verifier, rows, total)
    return stored_scores(path)


def measure(cfg, verifier: ModelScorer, data_cfg, train, test: list[Solution], scores) -> dict:
    """Every number of one verifier on one test split, and the curves behind the figures."""
    labels, problems = [s.labels for s in test], [s.problem for s in test]
    kind = data_cfg.label_kind
    result = step_metrics(scores, labels, problems, cfg.threshold, kind)
    p, y, owner = [], [], []
    for i, (score_T, label_T) in enumerate(zip(scores, labels, strict=True)):
        for t in labelled_steps(label_T, kind)[0]:
            p.append(float(score_T[t])), y.append(label_T[t]), owner.append(problems[i])
    p, y = np.array(p), np.array(y)
    accuracy = (p >= cfg.threshold) == (y >= 0.5)
    result["step_accuracy_interval"] = bootstrap_interval(lambda rows: accuracy[rows].mean(), owner, seed=cfg.seed)
    mean_p, mean_y, count = reliability(p, y)
    result["reliability"] = {"mean_score": mean_p.tolist(), "mean_label": mean_y.tolist(), "n": count.tolist()}
    result["histogram"] = {
        name: np.histogram(p[here], bins=20, range=(0, 1))[0].tolist()
        for name, here in {"good": y >= 0.5, "bad": y < 0.5}.items()
    }
    if cfg.baselines and train:  # a file measured whole has no training split to fit them on
        tokenizer = verifier.tokenizer
        tables = [step_table(solutions, tokenizer, kind) for solutions in (train, test)]
        result["baselines"] = baseline_aurocs(*tables)
    return result | describe(verifier) | {"data": dataclasses.asdict(data_cfg)}


def describe(verifier: ModelScorer) -> dict:
    return {
        "verifier": verifier.name,
        "label_kind": verifier.label_kind,
        "objective": verifier.objective,
        "score": {"unit": verifier.unit},
    }


def step_table(rows: list[Solution], tokenizer, kind: str) -> Steps:
    """The labelled steps of solutions as the baselines see them: position, own tokens, label."""
    chosen = [(t, s.steps[t], s.labels[t] >= 0.5) for s in rows for t in labelled_steps(s.labels, kind)[0]]
    texts = list({text for _, text, _ in chosen})
    ids = dict(zip(texts, tokenizer(texts, add_special_tokens=False)["input_ids"], strict=True)) if texts else {}
    return Steps([t for t, _, _ in chosen], [ids[text] for _, text, _ in chosen], [good for *_, good in chosen])


def average(runs: list[dict]) -> dict:
    """The mean over runs of every metric, and beside it `std` (of the sample) where there are several."""
    names = [name for name, x in runs[0].items() if isinstance(x, int | float) and not name.startswith("train_")]
    mean = {name: statistics.fmean(run[name] for run in runs) for name in names}
    if len(runs) > 1:
        mean["std"] = {name: float(np.std([run[name] for run in runs], ddof=1)) for name in names}
    if "baselines" in runs[0]:
        mean["baselines"] = {k: statistics.fmean(run["baselines"][k] for run in runs) for k in runs[0]["baselines"]}
    return mean


def print_steps(results: dict):
    n = len(results["runs"])
    print(f"verifier    {results['runs'][0]['verifier']}" + (f" and {n - 1} more runs: means" if n > 1 else ""))
    kinds = {run["label_kind"] for run in results["runs"]}
    if results["runs"][0]["objective"] == "orm":
        print("objective   orm: an outcome model, read at every step")
    print(
        f"held out    {results['n_solutions']:.0f} solutions, {results['n_steps']:.0f} labelled steps ({'/'.join(kinds)} labels)"
    )
    names = ("step_auroc", "step_accuracy", "bad_step_f1", "brier", "ece", "first_error_accuracy", "first_error_f1")
    for name in (*names, "within_problem_auroc", "tail_miss_rate"):
        spread = f"  (std {results['std'][name]:.4f})" if n > 1 else ""
        print(f"  {name:<24}{results[name]:.4f}{spread}")
    for name, x in results.get("baselines", {}).items():
        print(f"  baseline {name:<15}{x:.4f}  (AUROC of what cannot read)")


def evaluate_best_of_n(cfg: EvaluateConfig, data, folder: Path):
    """A pool's selection and vote curves under stored scores, and under those of verifiers that score it now."""
    problems, exact_labels = (pools.read_pool(cfg.pool), None) if cfg.pool else draw_pool(cfg, data)
    stored, lacking = pools.scores_names(problems), pools.incomplete_scores(problems)
    for name, n in lacking.items():
        print(f"scores      {name}: left out, {n} candidates have none")
    match cfg.scores:
        case None:
            scorers = [] if cfg.checkpoint else stored
        case "all":
            scorers = stored
        case str():
            scorers = [cfg.scores]
        case names:
            scorers = [str(name) for name in names]
    for name in scorers:
        if name not in stored:
            raise InputError(
                f"scores: got {name!r}, expected step scores that every candidate has: {', '.join(stored) or 'none'}"
            )
    graded = {"checker": "as stored; answers are equal as texts"}
    groups = None
    if cfg.checker:
        problems, graded = grading.grade_pool(grading.with_answers(problems), cfg.checker)
        groups = grading.group_pool(problems, cfg.checker)
    pool = best_of_n.pool_arrays(problems, groups)
    verifiers = {}
    if cfg.checkpoint:
        problems, verifiers = score_pool(cfg, problems, folder)
        pools.write_pool(folder / "pool.jsonl.gz", problems)
        print(f"pool        {folder / 'pool.jsonl.gz'}, with the new scores")
    if not scorers and not verifiers:
        raise InputError(
            "scores: the pool holds no step scores that every candidate has; checkpoint=FOLDER scores it now"
        )
    scorers += verifiers
    value = [name for name, about in verifiers.items() if about["label_kind"] == "value"]
    results = best_of_n.measure(problems, pool, scorers, rules_of(cfg), cfg.seed, exact_labels, value)
    results |= {"pool": cfg.pool or "drawn from the noisy solver", "grading": graded, "verifiers": verifiers}
    results |= {"incomplete_scores": lacking}
    print_best_of_n(results)
    return results, pool_figures.best_of_n_figures(results | {"versions": run_folder.versions()}, folder / "figures")


def draw_pool(cfg: EvaluateConfig, data):
    """A fresh pool of the noisy solver's solutions of unseen arithmetic problems, and the exact labels of their steps."""
    data_cfg, _ = data_of(Path(cfg.checkpoint[0]), data)
    if not isinstance(data_cfg, TaskData):
        raise InputError(
            f"pool: the data {data_cfg.name} has no solver to draw candidates from; name a pool, pool=FILE"
        )
    task = dataclasses.replace(data_cfg.task, solutions_per_problem=cfg.fresh.candidates)
    # Seed 0 draws the test split of the step metrics.
    n, seed = cfg.fresh.problems * cfg.fresh.candidates, cfg.seed + 1
    rows = arithmetic.make_solutions(task, n, "test", seed)
    by_problem = {}
    for row in rows:
        by_problem.setdefault(row.problem, []).append(row)
    problems = [
        pools.Problem(
            f"arithmetic/{seed}/{p}",
            text,
            arithmetic.answer(text),
            tuple(pools.Candidate(s.steps, s.answer, s.outcome == 1) for s in found),
        )
        for p, (text, found) in enumerate(by_problem.items())
    ]
    return problems, {(s.problem, s.steps): s.labels for s in rows}


def candidates(problems):
    """(id, problem, steps) of every candidate: the rows of a pool."""
    for problem in problems:
        for n, candidate in enumerate(problem.candidates):
            yield f"{problem.id}/{n}", problem.problem, candidate.steps


def score_pool(cfg: EvaluateConfig, problems: list[pools.Problem], folder: Path):
    """(the pool with the step scores of every verifier, {name of the scores: what gave them})."""
    verifiers = {}
    if cfg.scores_name is not None and len(cfg.checkpoint) > 1:
        raise InputError(f"scores_name: names the scores of one verifier, got {len(cfg.checkpoint)} in checkpoint")
    for path in cfg.checkpoint:
        verifier = open_verifier(cfg, path)
        name, total = new_name(cfg, verifier, problems), sum(len(problem.candidates) for problem in problems)
        scores = score_rows(cfg, verifier, candidates(problems), total, folder / f"pool_scores_{name}.jsonl")
        scores = map(UNITS[cfg.scores_unit].of_log_odds, scores)
        problems = list(pools.with_scores(problems, name, scores, cfg.scores_unit))
        verifiers[name] = describe(verifier)
    return problems, verifiers


def new_name(cfg: EvaluateConfig, verifier: ModelScorer, problems: list[pools.Problem]) -> str:
    """The name under which a verifier's scores go into a pool: the one asked for, or prm, prm_1, ... as is free."""
    taken = {name for problem in problems for c in problem.candidates for name in c.step_scores}
    if cfg.scores_name in taken:
        raise InputError(f"scores_name: {cfg.scores_name!r} is in the pool already, expected a new name")
    kind = verifier.objective
    names = itertools.chain([kind], (f"{kind}_{i}" for i in itertools.count(1)))
    return cfg.scores_name or next(name for name in names if name not in taken)


def plus_minus(interval) -> str:
    return "[{:.4f}, {:.4f}]".format(*interval)


def print_best_of_n(results: dict):
    N = str(results["n_candidates"])
    print(f"pool        {results['n_problems']} problems x {N} candidates; graded: {results['grading']['checker']}")
    if odd := [f"{n} {name.replace('_', ' ')}" for name, n in results["dropped"].items() if n]:
        print(f"cannot win  {', '.join(odd)}")
    print(f"  mean of the candidates {results['mean']:.4f}")
    for name in ("majority", "oracle"):
        if name in results:
            print(f"  {f'{name}@{N}':<23}{results[name][N]:.4f} {plus_minus(results[f'{name}_interval'][N])}")
    against = {(d["a"], d["b"]): d for d in results["differences"]}
    for scorer, table in results["scorers"].items():
        verifier = results["verifiers"].get(scorer, {}).get("verifier", "stored scores")
        print(f"scorer      {scorer}: {verifier}")
        print(f"  {'':<10} best-of-{N:<27} minus majority vote{'':<24} weighted vote")
        for how, numbers in table.items():
            line = f"  {how:<10} {numbers['best_of_n'][N]:.4f} {plus_minus(numbers['interval'][N]):<28}"
            if d := against.get((f"{scorer}.{how}.best_of_n", "majority")):
                line += f" {d['difference']:+.4f} {plus_minus(d['interval'])} p={d['p']:.3f}".ljust(44)
                line += f" {numbers['weighted_vote'][N]:.4f} {plus_minus(numbers['weighted_vote_interval'][N])}"
            print(line)
    print(f"differences at n = {N}, paired over problems, 95 % intervals, p-values of single tests (not adjusted):")
    for d in results["differences"]:
        if d["b"] != "majority":
            print(f"  {d['a']} - {d['b']}: {d['difference']:+.4f} {plus_minus(d['interval'])} p={d['p']:.3f}")


def evaluate_score(cfg: EvaluateConfig, data, folder: Path):
    """Scores of a file of solutions or of a pool: written beside their ids, ranked within a problem, a few drawn."""
    if cfg.input is None:
        raise InputError("input: task=score needs a file of solutions or a pool, input=FILE")
    if len(cfg.checkpoint) > 1:
        raise InputError(f"checkpoint: task=score takes one verifier, got {len(cfg.checkpoint)}")
    verifier = open_verifier(cfg, cfg.checkpoint[0])
    is_pool = "candidates" in next(iter(rows.read_rows(cfg.input)), (0, {}))[1]
    if is_pool:  # read anew each time: a pool may be larger than memory
        source = lambda: candidates(pools.iter_pool(cfg.input))
    else:
        found, _ = sources.load(cfg.input, "native")
        source = lambda: ((s.id, s.problem, s.steps) for s in found)
    wanted = [str(i) for i in cfg.figures] if isinstance(cfg.figures, list) else None
    unknown, total = set(wanted or ()), 0
    for i, *_ in source():
        unknown.discard(i)
        total += 1
    if unknown:
        raise InputError(f"figures: no solution has the id {min(unknown)!r}")
    name = new_name(cfg, verifier, pools.iter_pool(cfg.input)) if is_pool else None
    written = [folder / "scores.jsonl"]
    score_rows(cfg, verifier, source(), total, written[0])
    if is_pool:
        written.append(folder / "pool.jsonl.gz")
        scores = stored_scores(written[0])
        pools.write_pool(written[-1], pools.with_scores(pools.iter_pool(cfg.input), name, scores, verifier.unit))
    print(f"verifier    {verifier.name}", *(f"scores      {path}" for path in written), sep="\n")
    ranked = rank(source(), map(probability, stored_scores(written[0])))
    print_ranking(ranked)
    if wanted is None:
        wanted = [r["id"] for r in ranked[: cfg.figures]]
    drawn = {}
    for row, score_T in zip(source(), map(probability, stored_scores(written[0])), strict=True):
        if row[0] in wanted:
            drawn[row[0]] = (*row, score_T, cfg.threshold, folder / "figures", verifier.name, (0.0, 1.0))
    figures = [step_plots.solution_figure(*drawn[i]) for i in wanted]
    return describe(verifier) | {"threshold": cfg.threshold, "ranking": ranked}, figures


def rank(rows, scores) -> list[dict]:
    """Problems in the order of the file; within each, solutions by their lowest step score, best first."""
    order, table = {}, []
    for (i, problem, steps), score_T in zip(rows, scores, strict=True):
        order.setdefault(problem, len(order))
        product = float(np.exp(np.log(np.maximum(score_T, np.finfo(float).tiny)).sum()))
        weakest = int(score_T.argmin())
        table.append(
            {
                "id": i,
                "problem": problem,
                "score": float(score_T[weakest]),
                "weakest_step": weakest + 1,
                "product": product,
                "n_steps": len(steps),
            }
        )
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


def evaluate_benchmark(cfg: EvaluateConfig, data, folder: Path):
    """The numbers of ProcessBench or PRMBench, from a verifier that scores it now or from a file of step scores."""
    if data.name not in ("of_run", cfg.task):
        raise InputError(f"data: got {data.name!r}, expected data={cfg.task} or only data.path=FILE")
    keys = OmegaConf.to_container(data)
    source = {key: keys[key] for key in ("path", "hub", "hub_split") if key in keys}
    rows, counts = benchmarks.read(cfg.task, parse(source, benchmarks.Source, "data"))
    cli.print_counts(counts)
    if cfg.scores_file:
        n_steps = {row.solution.id: len(row.solution.steps) for row in rows}
        scores = benchmarks.stored_scores(cfg.scores_file, n_steps, cfg.scores_unit)
        about = {"verifier": cfg.scores_file, "label_kind": None, "objective": None}
    else:
        if len(cfg.checkpoint) > 1:
            raise InputError(f"checkpoint: task={cfg.task} takes one verifier, got {len(cfg.checkpoint)}")
        verifier = open_verifier(cfg, cfg.checkpoint[0])
        texts = ((row.solution.id, row.solution.problem, row.solution.steps) for row in rows)
        found = score_rows(cfg, verifier, texts, len(rows), folder / "scores.jsonl")
        scores = [probability(score_T) for score_T in found]
        about = describe(verifier)
    if cfg.task == "processbench":
        results = benchmarks.processbench(rows, scores, cfg.threshold, cfg.threshold_split, cfg.seed)
        show, draw = print_processbench, benchmark_figures.processbench_figures
    else:
        results = benchmarks.prmbench(rows, scores, cfg.threshold, cfg.seed)
        show, draw = print_prmbench, benchmark_figures.prmbench_figures
    results = about | results | {"data": source, "counts": counts, "versions": run_folder.versions()}
    print(f"verifier    {results['verifier']} ({results['label_kind'] or 'unknown'} labels)")
    print(f"threshold   {results['threshold']:.4g} ({results['threshold_origin']})")
    show(results)
    return results, draw(results, folder / "figures")


def print_processbench(results: dict):
    print(f"  {'split':<15}{'n':>5}  erroneous   clean      F1")
    for name, x in results["splits"].items():
        accuracies = f"{x['accuracy_error']:9.4f}  {x['accuracy_clean']:6.4f}"
        print(f"  {name:<15}{x['n']:5}  {accuracies}  {x['f1']:.4f} {plus_minus(x['f1_interval'])}")
    print(f"  {'mean':<41}{results['mean_f1']:.4f} {plus_minus(results['mean_f1_interval'])}")


def print_prmbench(results: dict):
    print(f"  {'class':<21}{'rows':>6}{'steps':>7}{'bad':>6}  PRMScore")
    for name, x in results["classes"].items():
        sizes = f"{x['n_rows']:6}{x['n_steps']:7}{x['n_bad_steps']:6}"
        print(f"  {name:<21}{sizes}  {x['prmscore']:.4f} {plus_minus(x['prmscore_interval'])}")
    for name, x in results["groups"].items():
        print(f"  {name + ', mean of its':<27}{len(x['classes'])} classes{x['prmscore']:>13.4f}")
    sizes = f"{results['n_rows']:6}{results['n_steps']:7}{results['n_bad_steps']:6}"
    print(f"  {'overall, all steps':<21}{sizes}  {results['overall']:.4f} {plus_minus(results['overall_interval'])}")


def evaluate_witness(cfg: EvaluateConfig, data, folder: Path):
    """The policies of the toy witness at the chosen aggregator and beta, and over the whole plane."""
    cfg = cfg.witness
    if cfg.aggregator not in rerank.AGGREGATORS:
        expected = ", ".join(rerank.AGGREGATORS)
        raise InputError(f"witness.aggregator: got {cfg.aggregator!r}, expected one of {expected}")
    if not 0 <= cfg.beta < np.inf:
        raise InputError(f"witness.beta: got {cfg.beta}, expected a finite number, at least 0")
    for name, n in {"betas": cfg.betas, "errors": cfg.errors}.items():
        if n < 2:
            raise InputError(f"witness.{name}: got {n}, expected at least 2")
    found = witness.results(cfg.aggregator, cfg.beta)
    print(f"policies    aggregator {cfg.aggregator}, beta {cfg.beta:g}; KL to the reference and mean score in nats")
    print(" " * 12 + "".join(f"{name:>13}" for name in (*witness.TRACES, "KL", "score")) + "  winner")
    for name, policy_N in found["policies"].items():
        row = (*policy_N, found["kl"][name], found["reward"][name])
        print(f"  {name:<10}" + "".join(f"{x:13.6f}" for x in row) + f"  {found['winners'][name]}")
    results = found | witness.grids(cfg.aggregator, cfg.betas, cfg.errors) | {"versions": run_folder.versions()}
    figures = witness_plots.witness_figures(results, folder / "figures")
    return results, [*figures, witness.page(folder / "figures" / "witness.html", found)]


if __name__ == "__main__":
    main()
