"""task=steps: metrics of step scores against labels, for one verifier or for the runs of a sweep."""

import dataclasses

import numpy as np

from prm_jax import InputError, tasks
from prm_jax.data.splits import TaskData, load_evaluation
from prm_jax.data.units import probability
from prm_jax.data.writing import score_into
from prm_jax.evals import verifiers
from prm_jax.evals.baselines import Row, compare_apart, of_labelled_steps, show_comparison, step_auroc
from prm_jax.evals.setup import Setup, check_unchanged
from prm_jax.evals.tables import show_table, spread_by_setting
from prm_jax.evals.task import Task
from prm_jax.generate.samples import policy_pool
from prm_jax.launch.config import Count, Share, expect
from prm_jax.launch.progress import print_counts
from prm_jax.metrics import auroc, problem_numbers, reliability, step_metrics
from prm_jax.solutions import Solution

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
    drawing = "steps"

    def run(self, setup: Setup) -> dict:
        """`runs`: every number of each verifier; `groups`: those of each setting, over its seeds."""
        runs = []
        likelihoods = {}
        for i, name in enumerate(setup.checkpoints):
            runs.append(measure(setup, self.cfg, name, i, likelihoods))
            kinds = sorted({(run["objective"], run["label_kind"]) for run in runs})
            is_same = len(kinds) == 1 or setup.data.name != "of_run"
            expect(is_same, f"checkpoint: {name}", kinds, "one kind, or data=NAME, which measures all alike")
        groups = by_settings(runs)
        means = groups[0]["means"] if len(groups) == 1 else {}
        return means | {"groups": groups, "runs": runs, "threshold": self.cfg.threshold}

    def show(self, results: dict):
        first = results["runs"][0]
        n = len(results["runs"])
        print(f"verifier    {first['verifier']}" + (f" and {n - 1} more runs" if n > 1 else ""))
        kind = first["data"]["label_kind"]
        if first["label_kind"] not in (kind, "unknown"):
            print(f"note        learned {first['label_kind']} labels, is measured on {kind} labels")
        for group in results["groups"]:
            runs = [results["runs"][i] for i in group["members"]]
            if len(results["groups"]) > 1 and not group["setting"]:  # a run beside what is none
                print(f"setting     {runs[0]['verifier']}")
            show_group(group, kind, runs)

    def detail(self, results: dict):
        """Prints the first run's counts, what was seen in training, and exact numbers of an embedded task."""
        first = results["runs"][0]
        print_counts(first["counts"], totals=())
        for run in results["runs"]:
            verifiers.note_seen(run["verifier"], run["n_seen"], "solutions' problems")
        if "auroc_value" in first:
            aurocs = {run["verifier"]: {name: run[name] for name in EXACT} for run in results["runs"]}
            show_table("AUROC against exact labels", aurocs)

    def metric(self, results: dict) -> float | None:
        """Step AUROC, of several settings the first one's."""
        return results["groups"][0]["means"]["step_auroc"]


def measure(setup: Setup, cfg: Config, name: str, number: int, likelihoods: dict) -> dict:
    """Every number of one verifier; `number` names its files. likelihoods: those of the verifiers before it,
    {(model, solutions): step scores}, which runs of one base share."""
    scorer = verifiers.open_scorer(setup, name)
    data_cfg, run_seed = verifiers.data_of(setup, name)
    kind = data_cfg.label_kind
    data = load_evaluation(data_cfg, run_seed, policy_pool, named=setup.data.name != "of_run")
    check_unchanged(setup.folder, data.fingerprints)
    test = [s for s in data.splits["test"] if s.labels is not None][: cfg.max_solutions]
    known_R = verifiers.known_rows(name, test)
    print_counts(data.counts)
    if not any(y is not None for s in test for y in s.labels):
        raise InputError("data: no labelled solution in the test split, expected at least one")
    p = list(map(probability, score_into(setup.folder / f"scores_{number}.jsonl", scorer, test, len(test))))
    run = step_results(cfg.threshold, kind, test, p)
    is_embedded = isinstance(data_cfg, TaskData)
    if is_embedded:
        run |= exact_numbers(data_cfg, test, p)
    if cfg.baselines:
        has_policy = is_embedded and data_cfg.samples == "policy"
        model = data_cfg.policy if has_policy else verifiers.backbone_of(name)
        key = model, tuple(test)
        if key not in likelihoods:
            path = setup.folder / f"likelihood_{number}.jsonl"
            likelihoods[key] = verifiers.likelihood_scores(setup, model, test, path)
        solutions = [Row(s, "", s.problem) for s in test]
        settings = cfg.threshold, setup.cfg.seed, kind
        run["beside_rules"] = compare_apart(solutions, p, likelihoods[key], known_R, *settings)
    run |= {
        "data": dataclasses.asdict(data_cfg),
        "counts": data.counts,
        "settings": verifiers.settings_of(name),
    }
    return run | verifiers.describe(scorer) | {"n_seen": sum(known_R)}


def step_results(threshold: float, kind: str, test: list[Solution], p: list[np.ndarray]) -> dict:
    """Numbers of P(step good) on solutions with labels of this kind, and the figures' curves."""
    labels = [s.labels for s in test]
    p_n, y_n = of_labelled_steps(p, test, kind), of_labelled_steps(labels, test, kind)
    histograms = {"good": p_n[y_n >= 0.5], "bad": p_n[y_n < 0.5]}
    curve = zip(("mean_score", "mean_label", "n"), reliability(p_n, y_n), strict=True)
    return {
        **step_metrics(p, labels, problem_numbers(s.problem for s in test), threshold, kind),
        "reliability": {name: x.tolist() for name, x in curve},
        "histogram": {name: np.histogram(x, 20, (0, 1))[0].tolist() for name, x in histograms.items()},
    }


def exact_numbers(data_cfg, test: list[Solution], p: list[np.ndarray]) -> dict:
    """Scores of an embedded task's steps against both exact meanings of a label, whatever the verifier
    learned. auroc_correctness: of the steps up to and including the first wrong one; auroc_value: with the
    exact value of every step, at most auroc_value_ceiling."""
    task = tasks.find_task(data_cfg.name)
    value = np.concatenate([task.values(data_cfg.task, s.problem, s.steps) for s in test])
    exact = [dataclasses.replace(s, labels=tuple(task.step_labels(s.problem, s.steps))) for s in test]
    return {
        "auroc_correctness": step_auroc(p, exact),
        "auroc_value": auroc(np.concatenate(p), value),
        "auroc_value_ceiling": auroc(value, value),
    }


def by_settings(runs: list[dict]) -> list[dict]:
    """`spread_by_setting` of the runs' numbers and of the rules' AUROC."""
    numbers = []
    for run in runs:
        own = {name: x for name, x in run.items() if isinstance(x, int | float)}
        for rule, judge in run.get("beside_rules", {}).get("judges", {}).items():
            if rule != "verifier" and "step_auroc" in judge:
                own[f"step_auroc, {rule}"] = judge["step_auroc"]
        numbers.append(own)
    return spread_by_setting([run["settings"] for run in runs], numbers)


def show_group(group: dict, kind: str, runs: list[dict]):
    means, spread = group["means"], group["spread"]
    if group["setting"]:
        print("setting     " + ", ".join(f"{key}={value}" for key, value in group["setting"].items()))
    steps = f"{means['n_solutions']:.0f} solutions, {means['n_steps']:.0f} labelled steps ({kind} labels)"
    print(f"measured    {steps}")
    if len(runs) > 1:
        shown = [*METRICS, *(name for name in spread if name.startswith("step_auroc, "))]
        show_table(f"over {len(runs)} seeds", {name: spread[name] for name in shown})
    else:
        for i in range(0, len(METRICS), 3):
            print("  " + "  ".join(f"{name:<21}{means[name]:.4f}" for name in METRICS[i : i + 3]))
    if undefined := [name for name in METRICS if np.isnan(means[name])]:
        print(f"  undefined, since a kind of step or solution is missing: {', '.join(undefined)}")
    if len(runs) == 1 and "beside_rules" in runs[0]:
        show_comparison(runs[0]["beside_rules"])
