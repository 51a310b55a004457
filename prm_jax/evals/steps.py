"""task=steps: metrics of step scores against labels, for one verifier or for the runs of a sweep."""

import dataclasses
from pathlib import Path

import numpy as np

from prm_jax import InputError, tasks
from prm_jax.data.score_files import score_into
from prm_jax.data.splits import TaskData, load_evaluation
from prm_jax.data.units import probability
from prm_jax.evals.baselines import measure_baselines, step_auroc
from prm_jax.evals.calibration import reliability_table
from prm_jax.evals.setup import Setup, check_unchanged
from prm_jax.evals.tables import over_seeds, show_table
from prm_jax.evals.task import Task
from prm_jax.evals.verifiers import data_of, describe, note_known, open_scorer, settings_of
from prm_jax.generate.samples import policy_pool
from prm_jax.launch.config import Count, Share, expect
from prm_jax.launch.progress import print_counts
from prm_jax.metrics import auroc, labelled_steps, problem_numbers, step_metrics
from prm_jax.solutions import Solution

# Counts that are no loss, or are said elsewhere, in report.txt alone.
TOTALS = ("rows", "solutions", "steps", "labels", "test_problems_the_run_was_trained_on")
TOTALS += ("policy_tokens", "lucky_share_of_right_answers")  # of an embedded task
# Step AUROC above the best baseline: default runs that fail end below, others above.
HARDLY_LEARNED = 0.03
METRICS = (
    "step_auroc",
    "step_accuracy",
    "bad_step_f1",
    "brier",
    "ece",
    "first_error_accuracy",
    "first_error_f1",
    "within_problem_auroc",
    "tail_miss_rate",
)
EXACT = ("auroc_correctness", "auroc_value", "auroc_value_ceiling")  # of embedded tasks: `exact_numbers`


@dataclasses.dataclass(frozen=True)
class Config:
    threshold: Share
    max_solutions: Count | None
    baselines: bool


class Steps(Task):
    Config = Config

    def run(self, setup: Setup) -> dict:
        """`runs`: every number of each verifier; beside it the means over seeds, of several settings in
        `groups`."""
        runs = []
        for i, name in enumerate(setup.checkpoints):
            runs.append(measure(setup, self.cfg, name, setup.folder / f"scores_{i}.jsonl"))
            kinds = sorted({(run["objective"], run["label_kind"]) for run in runs})
            is_same = len(kinds) == 1 or setup.data.name != "of_run"
            expect(is_same, f"checkpoint: {name}", kinds, "one kind, or data=NAME, which measures all alike")
        groups = by_settings(runs)
        shared = groups[0] if len(groups) == 1 else {"groups": groups}
        return shared | {"runs": runs, "threshold": self.cfg.threshold}

    def show(self, results: dict):
        first, n = results["runs"][0], len(results["runs"])
        print(f"verifier    {first['verifier']}" + (f" and {n - 1} more runs" if n > 1 else ""))
        kind = first["data"]["label_kind"]
        if first["label_kind"] not in (kind, "unknown"):
            print(f"note        learned {first['label_kind']} labels, is measured on {kind} labels")
        for group in results.get("groups", [results]):
            show_group(group, kind, of_steps=first["objective"] != "orm")

    def detail(self, results: dict):
        """Prints the first run's counts, and exact numbers of an embedded task."""
        first = results["runs"][0]
        print_counts(first["counts"])
        if "auroc_value" in first:
            aurocs = {run["verifier"]: {name: run[name] for name in EXACT} for run in results["runs"]}
            show_table("AUROC against exact labels", aurocs)

    def figures(self, results: dict, folder: Path) -> list[Path]:
        from prm_jax.figures.steps import step_figures

        return step_figures(results, folder)

    def metric(self, results: dict) -> float | None:
        """Step AUROC, of several settings the first one's."""
        return results.get("groups", [results])[0]["step_auroc"]


def measure(setup: Setup, cfg: Config, name: str, scores_file: Path) -> dict:
    """Every number of one verifier."""
    scorer, (data_cfg, run_seed) = open_scorer(setup, name), data_of(setup, name)
    kind = data_cfg.label_kind
    data = load_evaluation(data_cfg, run_seed, policy_pool, named=setup.data.name != "of_run")
    check_unchanged(setup.folder, data.fingerprints)
    test = [s for s in data.splits["test"] if s.labels is not None][: cfg.max_solutions]
    counts = data.counts | {"test_problems_the_run_was_trained_on": note_known(name, test)}
    print_counts(counts, totals=TOTALS)
    if not any(y is not None for s in test for y in s.labels):
        raise InputError("data: the test split has no labelled solution")
    rows = [(s.id, s.problem, s.steps) for s in test]
    p = list(map(probability, score_into(scores_file, scorer, rows, len(test))))
    run = step_results(cfg.threshold, kind, test, p)
    if isinstance(data_cfg, TaskData):
        run |= exact_numbers(data_cfg, test, p)
    if cfg.baselines:
        run["baselines"] = measure_baselines(scorer, kind, data.splits["train"], test)
        if isinstance(data_cfg, TaskData) and data_cfg.samples == "policy":
            policy = open_scorer(setup, f"policy:{data_cfg.policy}")
            scores = policy.score([(s.problem, s.steps) for s in test])
            run["baselines"]["likelihood"] = step_auroc(scores, test, kind)
    run |= {"data": dataclasses.asdict(data_cfg), "counts": counts, "settings": settings_of(name)}
    return run | describe(scorer)


def step_results(threshold: float, kind: str, test: list[Solution], p: list[np.ndarray]) -> dict:
    """Numbers of P(step good) on solutions with labels of this kind, and the figures' curves."""
    labels, problems = [s.labels for s in test], problem_numbers(s.problem for s in test)
    steps = [(i, t) for i, label_T in enumerate(labels) for t in labelled_steps(label_T, kind)[0]]
    p_n, y_n = np.array([(p[i][t], labels[i][t]) for i, t in steps]).T
    histograms = {"good": p_n[y_n >= 0.5], "bad": p_n[y_n < 0.5]}
    return {
        **step_metrics(p, labels, problems, threshold, kind),
        "reliability": reliability_table(p_n, y_n),
        "histogram": {name: np.histogram(x, 20, (0, 1))[0].tolist() for name, x in histograms.items()},
    }


def exact_numbers(data_cfg, test: list[Solution], p: list[np.ndarray]) -> dict:
    """Scores of an embedded task's steps against both exact meanings of a label, whatever the verifier
    learned. auroc_correctness: of the steps up to and including the first wrong one; auroc_value: with the
    exact value of every step, at most auroc_value_ceiling."""
    task = tasks.find_task(data_cfg.name)
    value = np.concatenate([task.values(data_cfg.task, s.problem, s.steps) for s in test])
    correct = [task.step_labels(s.problem, s.steps) for s in test]
    counted = np.concatenate([np.isin(np.arange(len(y_T)), labelled_steps(list(y_T))[0]) for y_T in correct])
    score, good = np.concatenate(p).astype(np.float64), np.concatenate(correct)
    return {
        "auroc_correctness": auroc(score[counted], good[counted]),
        "auroc_value": auroc(score, value),
        "auroc_value_ceiling": auroc(value, value),
    }


def by_settings(runs: list[dict]) -> list[dict]:
    """Means over the runs of each setting; of several runs also their number, `mean_of`, and each metric's
    `spread`; of several settings the `setting` and the indices of its `runs`."""
    metrics, means = [], []
    for run in runs:
        metrics.append({name: x for name, x in run.items() if isinstance(x, int | float)})
    groups = over_seeds([run["settings"] for run in runs], metrics)
    for group in groups:
        mean = {name: x["mean"] for name, x in group.spread.items()} | {"mean_of": len(group.members)}
        if len(group.members) > 1:
            mean["spread"] = group.spread
        if "baselines" in runs[group.members[0]]:
            tables = [runs[i]["baselines"] for i in group.members]
            mean["baselines"] = {name: float(np.mean([x[name] for x in tables])) for name in tables[0]}
        if len(groups) > 1:
            mean |= {"setting": group.setting, "runs": group.members}
        means.append(mean)
    return means


def show_group(group: dict, kind: str, of_steps: bool = True):
    if "setting" in group:
        print("setting     " + ", ".join(f"{key}={value}" for key, value in group["setting"].items()))
    steps = f"{group['n_solutions']:.0f} solutions, {group['n_steps']:.0f} labelled steps ({kind} labels)"
    print(f"measured    {steps}")
    if "spread" in group:
        show_table(f"over {group['mean_of']} seeds", {name: group["spread"][name] for name in METRICS})
    else:
        for i in range(0, len(METRICS), 3):
            print("  " + "  ".join(f"{name:<21}{group[name]:.4f}" for name in METRICS[i : i + 3]))
    if undefined := [name for name in METRICS if np.isnan(group[name])]:
        print(f"  undefined, since a kind of step or solution is missing: {', '.join(undefined)}")
    if not (baselines := group.get("baselines")):
        print("baselines   left out: not asked for")
        return
    listed = ", ".join(f"{name} {x:.4f}" for name, x in baselines.items())
    print(f"baselines   step_auroc of what was never taught to verify: {listed}")
    best = max(baselines, key=lambda name: np.nan_to_num(baselines[name]))
    if of_steps and group["step_auroc"] < baselines[best] + HARDLY_LEARNED:
        near = f"step_auroc {group['step_auroc']:.3f} is hardly above that of {best}"
        print(f"note        {near}: another seed, more steps or a longer optimizer.warmup may help")
