"""task=steps: how good are step scores? Metrics against labels for one verifier, or for the runs of a sweep."""

import dataclasses
import statistics

import numpy as np

from prm_jax import InputError, tasks
from prm_jax.checkpoints.hf import load_tokenizer, locate
from prm_jax.data.solutions import Solution
from prm_jax.data.splits import TaskData, load_evaluation
from prm_jax.data.units import probability
from prm_jax.evals import standing
from prm_jax.evals.baselines import Steps, baseline_aurocs
from prm_jax.evals.common import Setup, data_of, describe, open_scorer, plus_minus, scored, trained, trained_on
from prm_jax.evals.pool_metrics import reliability_table
from prm_jax.evals.recalibration import parameters_of, recalibrated
from prm_jax.generate.samples import policy_pool
from prm_jax.launch import cli, run_folder
from prm_jax.launch.config import Count, Share
from prm_jax.metrics import labelled_steps, soft_auroc, step_metrics
from prm_jax.scoring import ModelScorer
from prm_jax.stats import bootstrap_interval, problem_numbers, ratio_interval


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """conf/task/steps.yaml says what each key means."""

    threshold: Share
    max_solutions: Count | None
    baselines: bool
    calibrated_by: str | None = None


def needs_checkpoint(cfg: Config) -> bool:
    return True


def run(setup: Setup, cfg: Config) -> dict:
    """Every number of each verifier in `runs`, on top the means over runs that differ in their seed alone; where runs differ
    in another setting, `groups` has the means of each setting."""
    runs, elsewhere = [], parameters_of(cfg.calibrated_by)
    for i, name in enumerate(setup.checkpoints):
        scorer, (data_cfg, seed) = open_scorer(setup, name), data_of(setup, name)
        kinds = scorer.objective, scorer.label_kind
        is_named = setup.data.name != "of_run"
        if runs and not is_named and kinds != (runs[0]["objective"], runs[0]["label_kind"]):
            raise InputError(
                f"checkpoint: {name}: is {kinds[0]} on {kinds[1]} labels, the first {runs[0]['objective']} on "
                f"{runs[0]['label_kind']}: each would be measured on its own; data=NAME measures both on the same"
            )
        data = load_evaluation(data_cfg, seed, policy_pool, named=is_named)
        test = [s for s in data.splits["test"] if s.labels is not None][: cfg.max_solutions]
        counts = data.counts | {"test_problems_the_run_was_trained_on": trained_on(name, data, test)}
        cli.print_counts(counts)
        if not any(y is not None for s in test for y in s.labels):
            raise InputError("data: the test split has no labelled solution")
        rows = ((s.id, s.problem, s.steps) for s in test)
        p = [probability(logit_T) for logit_T in scored(setup.folder / f"scores_{i}.jsonl", scorer, rows, len(test))]
        result = measure(cfg, data_cfg.label_kind, test, p, setup.cfg.seed, elsewhere)
        if isinstance(data_cfg, TaskData):
            task = tasks.TASKS[data_cfg.name]
            result["errors"] = errors_by_kind(task, test, p, cfg.threshold, setup.cfg.seed)
            if hasattr(task, "written_out"):
                result["lines"] = by_hidden_work(task, test, p, cfg.threshold, setup.cfg.seed)
            result |= against_exact(task, data_cfg.task, test, p, setup.cfg.seed)
        if cfg.baselines and data.splits["train"]:  # a file that is measured whole leaves nothing to fit them on
            tokenizer = scorer.tokenizer if isinstance(scorer, ModelScorer) else load_tokenizer(locate("embedded"))
            tables = [step_table(split, tokenizer, data_cfg.label_kind) for split in (data.splits["train"], test)]
            result["baselines"] = baseline_aurocs(*tables)
        result |= describe(scorer) | {"data": dataclasses.asdict(data_cfg), "counts": counts}
        runs.append(result | trained(name))
    groups = by_settings(runs)
    top = groups[0] if len(groups) == 1 else {"groups": groups}
    return top | {"runs": runs, "threshold": cfg.threshold}


def measure(cfg: Config, kind: str, test: list[Solution], p: list[np.ndarray], seed: int, elsewhere=None) -> dict:
    """Every number of one verifier's P(step good) on solutions with labels of this kind, and the curves behind the figures."""
    labels, problems = [s.labels for s in test], problem_numbers(s.problem for s in test)
    result = step_metrics(p, labels, problems, cfg.threshold, kind)
    chosen = [(i, t) for i, label_T in enumerate(labels) for t in labelled_steps(label_T, kind)[0]]
    p_n, y_n = np.array([p[i][t] for i, t in chosen]), np.array([labels[i][t] for i, t in chosen])
    owner_n, hit_n = problems[[i for i, _ in chosen]], (p_n >= cfg.threshold) == (y_n >= 0.5)
    result["step_accuracy_interval"] = bootstrap_interval(lambda rows: hit_n[rows].mean(), owner_n, seed=seed)
    if kind == "correctness":
        result |= standing.step_shares(labels, [s.outcome for s in test])
    length_n = [len(test[i].steps[t]) for i, t in chosen]
    result["length_correlation"] = standing.length_correlation(p_n, length_n, y_n >= 0.5, owner_n, seed)
    result["score_length_r"] = result["length_correlation"]["r"]  # a number that is averaged over seeds
    result["reliability"] = reliability_table(p_n, y_n)
    result["recalibrated"] = recalibrated(p_n, y_n, owner_n, elsewhere)
    result["histogram"] = {
        name: np.histogram(p_n[here], bins=20, range=(0, 1))[0].tolist()
        for name, here in {"good": y_n >= 0.5, "bad": y_n < 0.5}.items()
    }
    return result


def errors_by_kind(task, test: list[Solution], p: list[np.ndarray], threshold: float, seed: int) -> dict:
    """What a verifier of an embedded task takes for right. `kinds`: of the first errors of each kind how many there are, the
    share that it misses (P >= threshold) and its 95 % bootstrap interval over problems; `lines`: those missed most often."""
    of_kind, of_line = {}, {}
    for s, p_T in zip(test, p, strict=True):
        verdict_T = task.verdicts(s.problem, s.steps)
        if (t := next((t for t, verdict in enumerate(verdict_T) if verdict not in tasks.RATINGS), None)) is not None:
            of_kind.setdefault(verdict_T[t], []).append((s.problem, p_T[t] >= threshold))
            of_line.setdefault(s.steps[t], []).append(p_T[t] >= threshold)
    kinds = {}
    for kind, found in sorted(of_kind.items()):
        problems, missed_n = [problem for problem, _ in found], np.array([missed for _, missed in found])
        interval = bootstrap_interval(lambda rows, missed_n=missed_n: missed_n[rows].mean(), problems, seed=seed)
        kinds[kind] = {"n": len(found), "missed": float(missed_n.mean()), "interval": interval}
    most = sorted(of_line.items(), key=lambda line: (-sum(line[1]), line[0]))[:10]
    return {"kinds": kinds, "lines": {line: {"n": len(x), "missed": float(np.mean(x))} for line, x in most if any(x)}}


def balanced(hit_n: np.ndarray, good_n: np.ndarray) -> float:
    """Mean of the shares of right and of wrong lines that are judged right; nan where there are none of a kind."""
    sides = [hit_n[good_n == side] for side in (True, False)]
    return float(np.mean([own.mean() for own in sides])) if all(map(len, sides)) else np.nan


def by_hidden_work(task, test: list[Solution], p: list[np.ndarray], threshold: float, seed: int) -> dict:
    """Of the lines up to the first wrong one, `merged` (several operations, whose values in between are hidden) apart from `plain`:
    how many there are and are wrong, the share judged right, that over right and wrong lines evenly (balanced; of a verifier that
    sees nothing .5) with its 95 % bootstrap interval over problems, and the AUROC."""
    rows = {"plain": [], "merged": []}
    for s, p_T in zip(test, p, strict=True):
        hidden = ["merged" if len(own) > 1 else "plain" for own in task.written_out(s.problem, s.steps)]
        good = tasks.step_labels(task, s.problem, s.steps)
        for t in labelled_steps(good)[0]:
            rows[hidden[t]].append((s.problem, p_T[t], good[t] >= 0.5))
    found = {}
    for kind, own in rows.items():
        problems, p_n, good_n = (
            [x for x, *_ in own],
            np.array([x for _, x, _ in own]),
            np.array([x for *_, x in own], bool),
        )
        hit_n = (p_n >= threshold) == good_n
        interval = bootstrap_interval(lambda rows, h=hit_n, g=good_n: balanced(h[rows], g[rows]), problems, seed=seed)
        numbers = {"balanced": balanced(hit_n, good_n), "interval": interval, "auroc": float(soft_auroc(p_n, good_n))}
        accuracy = float(hit_n.mean()) if own else np.nan
        found[kind] = {"n": len(own), "wrong": int((~good_n).sum()), "accuracy": accuracy} | numbers
    return found


def against_exact(task, task_cfg, test: list[Solution], p: list[np.ndarray], seed: int) -> dict:
    """Scores of an embedded task's steps against both exact meanings of a label, whatever the verifier learned.

    auroc_correctness: of the steps up to and including the first wrong one; auroc_value: `soft_auroc` with the exact value of
    every step, at most auroc_value_ceiling. value_depth: by the number of steps done, and left, the mean of P(good) minus the
    exact value (bias), the mean of its magnitude (error), and that of a constant, the mean value there (constant).
    """
    value, flat = [task.values(task_cfg, s.problem, s.steps) for s in test], lambda rows: np.concatenate(rows)
    correct = [np.array(tasks.step_labels(task, s.problem, s.steps)) for s in test]
    kept = [labelled_steps(y_T.tolist())[0] for y_T in correct]
    counted = flat([np.isin(np.arange(len(y_T)), own) for y_T, own in zip(correct, kept, strict=True)])
    score, value, good = flat(p).astype(np.float64), flat(value), flat(correct)
    problem = np.repeat(problem_numbers(s.problem for s in test), [len(s.steps) for s in test])
    done = flat([np.arange(1, len(s.steps) + 1) for s in test])
    left = flat([np.arange(len(s.steps))[::-1] for s in test])
    found = {"auroc_value_ceiling": soft_auroc(value, value), "intervals": {}}
    for name, y, here in (("correctness", good, counted), ("value", value, np.full(len(good), True))):
        s, y = score[here], y[here]
        found[f"auroc_{name}"] = soft_auroc(s, y)
        statistic = lambda rows, s=s, y=y: soft_auroc(s[rows], y[rows])
        found["intervals"][f"auroc_{name}"] = bootstrap_interval(statistic, problem[here], seed=seed)
    depths = {"done": done, "left": left}
    return found | {"value_depth": {x: by_depth(score, value, depth, problem, seed) for x, depth in depths.items()}}


def by_depth(score, value, depth, problem, seed: int) -> dict:
    """{depth: n, mean score and value, bias, error and constant as in `against_exact`, bootstrap intervals over problems}."""
    place, shape = (problem, depth), (problem.max() + 1, depth.max() + 1)

    def total_PX(x):
        sum_PX = np.zeros(shape)
        np.add.at(sum_PX, place, x)
        return sum_PX

    n_PX, columns = total_PX(1.0), {"bias": score - value, "error": np.abs(score - value)}
    intervals = {name: ratio_interval(total_PX(x), n_PX, seed) for name, x in columns.items()}
    table = {}
    for d in np.unique(depth):
        here = depth == d
        row = {"n": int(here.sum()), "score": float(score[here].mean()), "value": float(value[here].mean())}
        row |= {name: float(x[here].mean()) for name, x in columns.items()}
        row |= {f"{name}_interval": intervals[name][:, d].tolist() for name in columns}
        table[str(d)] = row | {"constant": float(np.abs(value[here] - value[here].mean()).mean())}
    return table


def step_table(rows: list[Solution], tokenizer, kind: str) -> Steps:
    """The labelled steps of solutions as the baselines see them: position, own tokens, label."""
    chosen = [(t, s.steps[t], s.labels[t] >= 0.5) for s in rows for t in labelled_steps(s.labels, kind)[0]]
    texts = list({text for _, text, _ in chosen})
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
    of_text = dict(zip(texts, ids, strict=True))
    return Steps([t for t, *_ in chosen], [of_text[text] for _, text, _ in chosen], [good for *_, good in chosen])


def by_settings(runs: list[dict]) -> list[dict]:
    """Means over the runs of each setting: `mean_of` says how many, `std` (of the sample) is there for several.

    A setting is what the configurations of the runs that have one do not share, the seed left aside; where there are several,
    each says its `setting` and which runs it is of. A verifier that is no run of ours is a setting of its own.
    """
    groups = run_folder.group_by_settings([r["settings"] for r in runs])
    several = lambda own, of: {"setting": own, "runs": of} if len(groups) > 1 else {}
    return [average([runs[i] for i in of]) | several(own, of) for own, of in groups]


def average(runs: list[dict]) -> dict:
    """The mean over runs of every metric, and beside it `std` (of the sample) where there are several."""
    names = [name for name, x in runs[0].items() if isinstance(x, int | float) and not name.startswith("train_")]
    mean = {name: statistics.fmean(r[name] for r in runs) for name in names} | {"mean_of": len(runs)}
    if len(runs) > 1:
        mean["std"] = {name: float(np.std([r[name] for r in runs], ddof=1)) for name in names}
    if "baselines" in runs[0]:
        mean["baselines"] = {k: statistics.fmean(r["baselines"][k] for r in runs) for k in runs[0]["baselines"]}
    return mean


METRICS = (
    "step_auroc", "step_accuracy", "bad_step_f1", "brier", "ece", "first_error_accuracy", "first_error_f1",
    "within_problem_auroc", "tail_miss_rate",
)  # fmt: skip
# Of a metric what it is undefined without.
NEEDS = dict.fromkeys(("first_error_accuracy", "first_error_f1"), "solutions with and without a wrong step")
NEEDS |= {"within_problem_auroc": "a problem with a right and a wrong solution", "tail_miss_rate": "bad steps"}


def show(results: dict):
    first, n = results["runs"][0], len(results["runs"])
    print(f"verifier    {first['verifier']}" + (f" and {n - 1} more runs" if n > 1 else ""))
    if first["objective"] == "orm":
        print("objective   orm: an outcome model, read at every step")
    kind = first["data"]["label_kind"]
    if first["label_kind"] not in (kind, "unknown"):
        print(f"note        the verifier learned {first['label_kind']} labels and is measured on {kind} labels")
    for group in results.get("groups", [results]):
        show_group(group, kind)
    if "bad_steps_in_right_answers" in first:
        standing.show_shares(first)
    if "length_correlation" in first:
        found = {f"step scores{' of the first run' * (n > 1)}": first["length_correlation"] | {"ece": first["ece"]}}
        standing.show_length(found, "whether a step is right")
    if ways := first.get("recalibrated"):
        eces = ", ".join(f"{way} {x['ece']:.4f}" for way, x in ways.items())
        print(f"ECE         after scaling the log-odds{', first run' * (n > 1)}: {eces}")


def detail(results: dict):
    """What stands in report.txt alone: exact meanings, and what is missed."""
    first, n = results["runs"][0], len(results["runs"])
    if "value_depth" in first:
        show_exact(results["runs"])
    if "errors" in first:
        which = " (first run)" * (n > 1)
        print(f"errors      first wrong lines by kind, and the share that the verifier takes for right{which}")
        for name, x in first["errors"]["kinds"].items():
            print(f"  {name:<8}{x['n']:>6}  {x['missed']:.3f} {plus_minus(x['interval'])}")
        lines = ", ".join(f"{line} {x['missed']:.2f} of {x['n']}" for line, x in first["errors"]["lines"].items())
        print(f"  missed most often: {lines or 'none'}")
    for kind, x in first.get("lines", {}).items():
        told = f"balanced accuracy {x['balanced']:.4f} {plus_minus(x['interval'])}, AUROC {x['auroc']:.4f}"
        print(f"lines       {kind}: {x['n']}, {x['wrong']} of them wrong: {told}")


def show_exact(runs: list[dict]):
    """A line a run: AUROC against both exact meanings, and how far scores are from exact values by the steps done."""
    ceiling = runs[0]["auroc_value_ceiling"]
    print(f"exact       AUROC against correctness, against value (at most {ceiling:.3f}); score - value by steps done")
    for run in runs:
        both = [
            f"{run[name]:.3f} {plus_minus(run['intervals'][name])}" for name in ("auroc_correctness", "auroc_value")
        ]
        bias = " ".join(f"{row['bias']:+.2f}" for row in run["value_depth"]["done"].values())
        print(f"  {'  '.join(both)}  {bias}  {run['verifier']}")


def show_group(group: dict, kind: str):
    if "setting" in group:
        print("setting     " + ", ".join(f"{key}={value}" for key, value in group["setting"].items()))
    steps = f"{group['n_solutions']:.0f} solutions, {group['n_steps']:.0f} labelled steps ({kind} labels)"
    print(f"measured    {steps}" + (f"; means of {group['mean_of']} seeds (std)" if group["mean_of"] > 1 else ""))
    spread = lambda name: f" ({group['std'][name]:.4f})" if "std" in group else ""
    for at in range(0, len(METRICS), 3):
        print("  " + "  ".join(f"{name:<21}{group[name]:.4f}{spread(name)}" for name in METRICS[at : at + 3]))
    for name in METRICS:
        if group[name] != group[name]:
            print(f"  {name} is undefined: needs {NEEDS.get(name, 'good and bad steps')}")
    baselines = ", ".join(f"{name} {x:.4f}" for name, x in group.get("baselines", {}).items())
    why = "left out: not asked for, or no training split beside a file that is measured whole"
    print(f"baselines   {f'step_auroc of what cannot read: {baselines}' if baselines else why}")
