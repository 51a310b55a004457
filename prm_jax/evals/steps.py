"""task=steps: metrics of step scores against labels, for one verifier or for the runs of a sweep."""

import dataclasses
import math
import statistics
from pathlib import Path

import numpy as np
from scipy import stats

from prm_jax import InputError, tasks
from prm_jax.checkpoints.folders import locate
from prm_jax.checkpoints.hf import load_tokenizer
from prm_jax.data.splits import TaskData, load_evaluation
from prm_jax.data.units import probability
from prm_jax.evals import biases, later, tables, verifiers
from prm_jax.evals.baselines import StepTable, baseline_aurocs
from prm_jax.evals.calibration import parameters_of, recalibrated, reliability_table
from prm_jax.evals.processbench import f1_by_threshold
from prm_jax.evals.setup import Setup, check_unchanged
from prm_jax.evals.tables import interval_of, plus_minus
from prm_jax.evals.task import Task
from prm_jax.evals.verifiers import data_of, describe, open_scorer, trained
from prm_jax.generate.samples import policy_pool
from prm_jax.launch import run_folder
from prm_jax.launch.config import Count, Share
from prm_jax.launch.progress import print_counts
from prm_jax.launch.run_log import read_log
from prm_jax.metrics import labelled_steps, mean, soft_auroc, step_metrics
from prm_jax.scoring import ModelScorer, score_into
from prm_jax.solutions import Solution
from prm_jax.stats import problem_numbers, ratio_interval

SAMPLED = (
    "policy_tokens",
    "lucky_share_of_right_answers",
)  # counts of an embedded task's samples: in report.txt
REFUSED = (
    0.05  # share of right lines that any verifier calls wrong at the threshold of `missed_at_equal_refusals`
)
COMPLETIONS = [2**i for i in range(7)]  # K of a Monte-Carlo label
HARDLY_LEARNED = (
    0.03  # of step AUROC above the policy's own likelihood: default runs that fail end below, others above
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    threshold: Share
    max_solutions: Count | None
    baselines: bool
    calibrated_by: str | None = None


def run(setup: Setup, cfg: Config) -> dict:
    """Every number of each verifier in `runs`, beside it the means over runs that differ in their seed alone; where
    runs differ in another setting, `groups` has the means of each setting."""
    runs, elsewhere = [], parameters_of(cfg.calibrated_by)
    for i, name in enumerate(setup.checkpoints):
        scorer, (data_cfg, seed) = open_scorer(setup, name), data_of(setup, name)
        objective, kind, is_named = scorer.objective, scorer.label_kind, setup.data.name != "of_run"
        if runs and not is_named and (objective, kind) != (runs[0]["objective"], runs[0]["label_kind"]):
            both = f"is {objective} on {kind} labels, the first {runs[0]['objective']} on {runs[0]['label_kind']}"
            advice = "each would be measured on its own; data=NAME measures both on the same"
            raise InputError(f"checkpoint: {name}: {both}: {advice}")
        data = load_evaluation(data_cfg, seed, policy_pool, named=is_named)
        check_unchanged(setup.folder, data.fingerprints)
        test = [s for s in data.splits["test"] if s.labels is not None][: cfg.max_solutions]
        counts = data.counts | {
            "test_problems_the_run_was_trained_on": verifiers.trained_on(name, data, test)
        }
        print_counts(counts, totals=("rows", "solutions", "steps", "labels", *SAMPLED))
        if not any(y is not None for s in test for y in s.labels):
            raise InputError("data: the test split has no labelled solution")
        rows = [(s.id, s.problem, s.steps) for s in test]
        p = list(map(probability, score_into(setup.folder / f"scores_{i}.jsonl", scorer, rows, len(test))))
        run = step_results(cfg, data_cfg.label_kind, test, p, setup.cfg.seed, elsewhere)
        if isinstance(data_cfg, TaskData):  # which alone knows kinds of errors, hidden work, exact values
            task, numbers = tasks.find_task(data_cfg.name), (test, p, cfg.threshold, setup.cfg.seed)
            run["errors"] = errors_by_kind(task, *numbers) | {"learning": learning(name)}
            if task.written_out(test[0].problem, test[0].steps) is not None:
                run["lines"] = by_hidden_work(task, *numbers)
            run |= against_exact(task, data_cfg.task, test, p, setup.cfg.seed)
        if cfg.baselines and data.splits["train"]:  # a file that is measured whole leaves no rows to fit on
            run["baselines"] = baselines(scorer, data_cfg.label_kind, data.splits["train"], test)
            if isinstance(data_cfg, TaskData) and data_cfg.samples == "policy":
                run["baselines"]["likelihood"] = likelihood_auroc(setup, data_cfg, test)
        runs.append(
            run | describe(scorer) | {"data": dataclasses.asdict(data_cfg), "counts": counts} | trained(name)
        )
    groups = by_settings(runs)
    return (groups[0] if len(groups) == 1 else {"groups": groups}) | {
        "runs": runs,
        "threshold": cfg.threshold,
    }


def step_results(
    cfg: Config, kind: str, test: list[Solution], p: list[np.ndarray], seed: int, elsewhere
) -> dict:
    """Every number of one verifier's P(step good) on solutions with labels of this kind, and the figures' curves."""
    labels, problems = [s.labels for s in test], problem_numbers(s.problem for s in test)
    steps = [(i, t) for i, label_T in enumerate(labels) for t in labelled_steps(label_T, kind)[0]]
    p_n, y_n = np.array([p[i][t] for i, t in steps]), np.array([labels[i][t] for i, t in steps])
    problem_n, length_n = problems[[i for i, _ in steps]], [len(test[i].steps[t]) for i, t in steps]
    good_n = y_n >= 0.5
    hit_n, histograms = (p_n >= cfg.threshold) == good_n, {"good": p_n[good_n], "bad": p_n[~good_n]}
    correlation = biases.length_correlation(p_n, length_n, good_n, problem_n, seed)
    further = {}
    if kind == "correctness":
        further = later.later_steps(p, labels, problems, cfg.threshold, seed)
        # Without such steps, since these shares take all that follows an error for wrong.
        further = further or biases.step_shares(labels, [s.outcome for s in test])
        further["f1_by_threshold"] = f1_by_threshold(p, labels, problems)
    return {
        **step_metrics(p, labels, problems, cfg.threshold, kind),
        "step_accuracy_interval": interval_of(np.mean, problem_n, seed, hit_n),
        **further,
        "length_correlation": correlation,
        "score_length_r": correlation["r"],  # a number that is averaged over seeds
        "reliability": reliability_table(p_n, y_n),
        "recalibrated": recalibrated(p_n, y_n, problem_n, elsewhere),
        "histogram": {name: np.histogram(x, 20, (0, 1))[0].tolist() for name, x in histograms.items()},
    }


def baselines(scorer, kind: str, train: list[Solution], test: list[Solution]) -> dict[str, float]:
    """AUROC of what cannot read."""
    tokenizer = scorer.tokenizer if isinstance(scorer, ModelScorer) else load_tokenizer(locate("embedded"))
    return baseline_aurocs(*(step_table(split, tokenizer, kind) for split in (train, test)))


def likelihood_auroc(setup: Setup, cfg: TaskData, test: list[Solution]) -> float:
    """AUROC of each step's log p under its policy, which was never taught to verify: confidence, which is to be beaten."""
    logits = open_scorer(setup, f"policy:{cfg.policy}").score([(s.problem, s.steps) for s in test])
    pairs = zip(test, logits, strict=True)
    steps = [(x_T[t], s.labels[t]) for s, x_T in pairs for t in labelled_steps(s.labels, cfg.label_kind)[0]]
    return soft_auroc(*np.transpose(steps))


def errors_by_kind(task, test: list[Solution], p: list[np.ndarray], threshold: float, seed: int) -> dict:
    """`kinds`: the number of first errors of each kind, and the share that a verifier misses (P >= threshold) with its
    95 % bootstrap interval over problems; the share missed where it refuses REFUSED of the lines before; `lines`: the
    errors missed most often."""
    of_kind, of_line, right = {}, {}, []
    for s, p_T in zip(test, p, strict=True):
        t, kind = task.first_wrong(s.problem, s.steps) or (len(s.steps), None)
        right.extend(p_T[:t])
        if kind:
            of_kind.setdefault(kind, []).append((s.problem, p_T[t]))
            of_line.setdefault(s.steps[t], []).append(p_T[t] >= threshold)
    kinds, equal = {}, np.quantile(right, REFUSED) if right else math.nan
    for kind, errors in sorted(of_kind.items()):
        problems, p_n = zip(*errors)
        missed_n, missed_equal = np.array(p_n) >= threshold, float(np.mean(np.array(p_n) >= equal))
        numbers = {
            "n": len(errors),
            "missed": float(missed_n.mean()),
            "missed_at_equal_refusals": missed_equal,
        }
        kinds[kind] = numbers | {"interval": interval_of(np.mean, problems, seed, missed_n)}
    most = sorted(of_line.items(), key=lambda line: (-sum(line[1]), line[0]))[:10]
    return {
        "kinds": kinds,
        "lines": {line: {"n": len(x), "missed": float(np.mean(x))} for line, x in most if any(x)},
    }


def learning(name: str) -> dict[str, dict]:
    """{step: {kind: n, missed}} of a run's validation solutions at each evaluation of its training; empty for others."""
    rows = read_log(Path(name) / "metrics.jsonl") if verifiers.is_run(name) else ()
    return {str(row["step"]): row["eval_errors"] for row in rows if "eval_errors" in row}


def balanced(hit_n: np.ndarray, good_n: np.ndarray) -> float:
    """Mean of the shares of right and of wrong lines that are judged right; nan where there are none of a kind."""
    return (mean(hit_n[good_n]) + mean(hit_n[~good_n])) / 2


def by_hidden_work(task, test: list[Solution], p: list[np.ndarray], threshold: float, seed: int) -> dict:
    """Numbers of `plain` lines and of `merged` ones (several operations, whose values in between are hidden), up to the
    first wrong one: how many, how many wrong, the share judged right (accuracy), its mean over right and wrong lines
    (balanced, .5 for a verifier that sees nothing) with a 95 % bootstrap interval over problems, and the AUROC."""
    rows, table = {"plain": [], "merged": []}, {}
    for s, p_T in zip(test, p, strict=True):
        operations, good = task.written_out(s.problem, s.steps), task.step_labels(s.problem, s.steps)
        for t in labelled_steps(good)[0]:
            rows["merged" if len(operations[t]) > 1 else "plain"].append((s.problem, p_T[t], good[t] >= 0.5))
    for kind, lines in rows.items():
        problems, p_n, good_n = zip(*lines) if lines else ((), (), ())
        p_n, good_n = np.array(p_n), np.array(good_n, bool)
        hit_n = (p_n >= threshold) == good_n
        table[kind] = {
            "n": len(lines), "wrong": int((~good_n).sum()), "accuracy": mean(hit_n),
            "balanced": balanced(hit_n, good_n), "interval": interval_of(balanced, problems, seed, hit_n, good_n),
            "auroc": float(soft_auroc(p_n, good_n)),
        }  # fmt: skip
    return table


def against_exact(task, task_cfg, test: list[Solution], p: list[np.ndarray], seed: int) -> dict:
    """Scores of an embedded task's steps against both exact meanings of a label, whatever the verifier learned.
    auroc_correctness: of the steps up to and including the first wrong one; auroc_value: `soft_auroc` with the exact
    value of every step, at most auroc_value_ceiling. value_depth: by the number of steps done, and left, the mean of
    P(good) minus the exact value (bias), of its magnitude (error), and of that of the mean value there (constant)."""
    sizes = [len(s.steps) for s in test]
    value = np.concatenate([task.values(task_cfg, s.problem, s.steps) for s in test])
    correct = [task.step_labels(s.problem, s.steps) for s in test]
    counted = np.concatenate([np.isin(np.arange(len(y_T)), labelled_steps(list(y_T))[0]) for y_T in correct])
    score, good = np.concatenate(p).astype(np.float64), np.concatenate(correct)
    problem = np.repeat(problem_numbers(s.problem for s in test), sizes)
    done = np.concatenate([np.arange(1, size + 1) for size in sizes])
    aurocs, intervals = {"auroc_value_ceiling": soft_auroc(value, value)}, {}
    for name, y, steps in (("auroc_correctness", good, counted), ("auroc_value", value, slice(None))):
        aurocs[name] = soft_auroc(score[steps], y[steps])
        intervals[name] = interval_of(soft_auroc, problem[steps], seed, score[steps], y[steps])
    depths = {"done": done, "left": np.repeat(sizes, sizes) - done}
    tables = {name: by_depth(score, value, depth, problem, seed) for name, depth in depths.items()}
    unfinished = counted & (depths["left"] > 0)
    labels = label_errors(value[unfinished], good[unfinished])
    return {**aurocs, "intervals": intervals, "value_depth": tables, "label_errors": labels}


def label_errors(value, good) -> dict[str, dict]:
    """{K: errors of a label by K completions, in expectation over them}, of steps with these values and correctness: the
    share of labels `any` (one is right) and `half` (half of them are) that are wrong, the mean |share right - value|
    (`soft`), and the shares of wrong steps that `any` calls good and of right ones that it calls bad."""
    table, is_good = {}, good == 1
    for k in COMPLETIONS:
        p_Kn = stats.binom.pmf(np.arange(k + 1)[:, None], k, value)  # of 0 ... k right completions
        share_K, none_n = np.arange(k + 1) / k, p_Kn[0]
        half_n = p_Kn[share_K >= 0.5].sum(0)
        table[str(k)] = {
            "any": mean(np.where(is_good, none_n, 1 - none_n)), "half": mean(np.where(is_good, 1 - half_n, half_n)),
            "soft": mean((p_Kn * np.abs(share_K[:, None] - value)).sum(0)),
            "wrong_called_good": mean(1 - none_n[~is_good]), "right_called_bad": mean(none_n[is_good]),
        }  # fmt: skip
    # Of a label that says the same of all steps.
    return table | {"constant": {"any": mean(~is_good), "soft": mean(np.abs(value - mean(value)))}}


def by_depth(score, value, depth, problem, seed: int) -> dict:
    """{depth: n, means of score and value; bias, error and constant as in `against_exact`; intervals over problems}."""

    def total_PX(x):
        sum_PX = np.zeros((problem.max() + 1, depth.max() + 1))
        np.add.at(sum_PX, (problem, depth), x)
        return sum_PX

    n_PX, bias, error = total_PX(1.0), score - value, np.abs(score - value)
    bias_interval, error_interval = (ratio_interval(total_PX(x), n_PX, seed) for x in (bias, error))
    table = {}
    for d in np.unique(depth):
        steps = depth == d
        table[str(d)] = {
            "n": int(steps.sum()), "score": float(score[steps].mean()), "value": float(value[steps].mean()),
            "bias": float(bias[steps].mean()), "error": float(error[steps].mean()),
            "bias_interval": bias_interval[:, d].tolist(), "error_interval": error_interval[:, d].tolist(),
            "constant": float(np.abs(value[steps] - value[steps].mean()).mean()),
        }  # fmt: skip
    return table


def step_table(rows: list[Solution], tokenizer, kind: str) -> StepTable:
    """The labelled steps of solutions as the baselines see them: position, the step's tokens, label."""
    steps = [(t, s.steps[t], s.labels[t] >= 0.5) for s in rows for t in labelled_steps(s.labels, kind)[0]]
    texts = list({text for _, text, _ in steps})
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
    ids_of = dict(zip(texts, ids, strict=True))
    return StepTable(
        [t for t, *_ in steps], [ids_of[text] for _, text, _ in steps], [good for *_, good in steps]
    )


def by_settings(runs: list[dict]) -> list[dict]:
    """Means over the runs of each setting: `mean_of` is their number, `spread` (tables.spread) is there for several. A
    setting is the part of the configurations in which runs differ, the seed left aside; where there are several, each
    has its `setting` and the indices of its `runs`. A verifier that is no run of ours is a setting by itself."""
    groups = run_folder.group_by_settings([run["settings"] for run in runs])
    if len(groups) == 1:
        return [average(runs)]
    return [average([runs[i] for i in ids]) | {"setting": setting, "runs": ids} for setting, ids in groups]


def average(runs: list[dict]) -> dict:
    """The mean over runs of every metric, and `spread`, that of each over them, where there are several."""
    names = [
        name for name, x in runs[0].items() if isinstance(x, int | float) and not name.startswith("train_")
    ]
    names = [name for name in names if all(name in run for run in runs)]
    means = {name: statistics.fmean(run[name] for run in runs) for name in names} | {"mean_of": len(runs)}
    if len(runs) > 1:
        means["spread"] = {name: tables.spread([run[name] for run in runs]) for name in names}
    if "baselines" in runs[0]:
        means["baselines"] = {
            k: statistics.fmean(run["baselines"][k] for run in runs) for k in runs[0]["baselines"]
        }
    return means


METRICS = (
    "step_auroc",
    "step_accuracy",
    "bad_step_f1",
    "brier",
    "ece",
    "first_error_accuracy",
    "first_error_f1",
)
METRICS += ("within_problem_auroc", "tail_miss_rate")
# {metric: what it is undefined without}
NEEDS = dict.fromkeys(("first_error_accuracy", "first_error_f1"), "solutions with and without a wrong step")
NEEDS |= {
    "within_problem_auroc": "a problem with a right and a wrong solution",
    "tail_miss_rate": "bad steps",
}


def show(results: dict):
    first, n = results["runs"][0], len(results["runs"])
    print(f"verifier    {first['verifier']}" + (f" and {n - 1} more runs" if n > 1 else ""))
    if first["objective"] == "orm":
        print("objective   orm: an outcome model, read at every step")
    kind = first["data"]["label_kind"]
    if first["label_kind"] not in (kind, "unknown"):
        print(
            f"note        the verifier learned {first['label_kind']} labels and is measured on {kind} labels"
        )
    for group in results.get("groups", [results]):
        show_group(group, kind, of_steps=first["objective"] != "orm")


def detail(results: dict):
    """Prints what only report.txt has: counts, bias checks, exact meanings of labels, and the errors that are missed."""
    first, n = results["runs"][0], len(results["runs"])
    print_counts(first["counts"])
    of_first = " of the first run" * (n > 1)
    if "bad_steps_in_right_answers" in first:
        biases.show_shares(first)
    if "length_correlation" in first:
        correlation = first["length_correlation"] | {"ece": first["ece"]}
        biases.show_length({f"step scores{of_first}": correlation}, "whether a step is right")
    if ways := first.get("recalibrated"):
        eces = ", ".join(f"{way} {x['ece']:.4f}" for way, x in ways.items())
        print(f"ECE         after scaling the log-odds{of_first}: {eces}")
    if "value_depth" in first:
        value = f"value (at most {first['auroc_value_ceiling']:.3f})"
        print(f"exact       AUROC against correctness, against {value}; score - value by steps done")
        for run in results["runs"]:
            names = "auroc_correctness", "auroc_value"
            aurocs = "  ".join(f"{run[name]:.3f} {plus_minus(run['intervals'][name])}" for name in names)
            bias = " ".join(f"{row['bias']:+.2f}" for row in run["value_depth"]["done"].values())
            print(f"  {aurocs}  {bias}  {run['verifier']}")
    for run in results["runs"]:
        if "later" in run:
            later.detail(run)
    if "errors" in first:
        which = " (first run)" * (n > 1)
        print(
            f"errors      first wrong lines by kind, and the share that the verifier takes for right{which}"
        )
        for name, x in first["errors"]["kinds"].items():
            print(f"  {name:<8}{x['n']:>6}  {x['missed']:.3f} {plus_minus(x['interval'])}")
        lines = ", ".join(
            f"{line} {x['missed']:.2f} of {x['n']}" for line, x in first["errors"]["lines"].items()
        )
        print(f"  missed most often: {lines or 'none'}")
    for kind, x in first.get("lines", {}).items():
        accuracy = (
            f"balanced accuracy {x['balanced']:.4f} {plus_minus(x['interval'])}, AUROC {x['auroc']:.4f}"
        )
        print(f"lines       {kind}: {x['n']}, {x['wrong']} of them wrong: {accuracy}")


def show_group(group: dict, kind: str, of_steps: bool = True):
    if "setting" in group:
        print("setting     " + ", ".join(f"{key}={value}" for key, value in group["setting"].items()))
    steps = f"{group['n_solutions']:.0f} solutions, {group['n_steps']:.0f} labelled steps ({kind} labels)"
    print(f"measured    {steps}")
    if "spread" in group:
        names = (*METRICS, *(later.SHOWN if "later_auroc" in group else ()))
        tables.show_spread(str(group["mean_of"]), {name: group["spread"][name] for name in names})
    for i in range(0, len(METRICS), 3) if group["mean_of"] == 1 else ():
        print("  " + "  ".join(f"{name:<21}{group[name]:.4f}" for name in METRICS[i : i + 3]))
    for name in METRICS:
        if np.isnan(group[name]):
            print(f"  {name} is undefined: needs {NEEDS.get(name, 'good and bad steps')}")
    if "later_auroc" in group and group["mean_of"] == 1:
        later.show(group)
    baselines = ", ".join(f"{name} {x:.4f}" for name, x in group.get("baselines", {}).items())
    missing = (
        "left out: not asked for, or no labelled training split, as beside a file that is measured whole"
    )
    print(
        f"baselines   {f'step_auroc of what was never taught to verify: {baselines}' if baselines else missing}"
    )
    if (
        of_steps
        and group["step_auroc"] < group.get("baselines", {}).get("likelihood", -math.inf) + HARDLY_LEARNED
    ):
        near = f"step_auroc {group['step_auroc']:.3f} is hardly above that of the policy's likelihood"
        print(
            f"note        {near}: little was learned; another seed, more steps or a longer optimizer.warmup may help"
        )


class Steps(Task):
    Config = Config

    def run(self, setup: Setup) -> dict:
        return run(setup, self.cfg)

    def show(self, results: dict):
        show(results)

    def detail(self, results: dict):
        detail(results)

    def figures(self, results: dict, folder: Path) -> list[Path]:
        from prm_jax.figures.steps import step_figures

        return step_figures(results, folder)

    def metric(self, results: dict) -> float | None:
        return results.get("groups", [results])[0]["step_auroc"]
