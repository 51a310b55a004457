"""task=mistakes: sets of labelled mistakes, each by its own metric; the kind of the rows is data=NAME, a name of OWN."""

from collections.abc import Sequence

import numpy as np

from prm_jax import InputError
from prm_jax.data.solutions import first_error
from prm_jax.evals import benchmarks
from prm_jax.evals.benchmarks import Config, Row, needs_checkpoint  # noqa: F401 (evaluate.py asks the task)
from prm_jax.evals.common import Setup, plus_minus
from prm_jax.metrics import auroc, first_error_accuracy, first_error_f1, harmonic_mean, mcc, predict_first_error
from prm_jax.stats import bootstrap_interval, problem_numbers

# What the authors of a set report of its verifiers: numbers of `solution_numbers`, `step_numbers` and `pair_numbers`.
OWN = {
    # Share of traces whose first mistake, or that there is none, is found (Tyen et al. 2024, section 3: mistake finding).
    "big_bench_mistake": ("location_accuracy",),
    # MR-Score = .2 max(0, MCC) + .3 accuracy of the step + .5 accuracy of the reason (Zeng et al. 2023, section 3); a PRM gives no reasons.
    "mr_gsm8k": ("mcc", "accuracy_error"),
    # Balanced F1, the harmonic mean of the accuracies on good and on bad: of steps, of solutions, of first errors (Pandit et al. 2025).
    "hard2verify": ("step_balanced_f1", "solution_balanced_f1", "first_error_f1"),
    # StepAcc and FirstErrAcc (Fan et al. 2026; eval/compare.py). One score cannot say neutral, so every neutral step is missed.
    "agent_process_bench": ("rating_accuracy", "location_accuracy"),
    # Share of pairs whose right action scores higher, equal scores counting half.
    "toolprmbench": ("pair_accuracy",),
    "processbench": ("first_error_f1",),
}


def run(setup: Setup, cfg: Config) -> dict:
    kind = setup.data.name
    if kind not in OWN:
        raise InputError(f"data: got {kind!r}, expected data=NAME, a set of labelled mistakes: {', '.join(OWN)}")
    rows, scores, about = benchmarks.rows_and_scores(setup, cfg, kind)
    return about | measure(rows, scores, kind, cfg.threshold, setup.cfg.seed)


def show(results: dict):
    """The set's own numbers of each group, and all numbers of all rows."""
    benchmarks.show_verifier(results)
    for name, x in (*results["groups"].items(), ("all", results["all"])):
        print(
            f"{name}: {x['n']} solutions, {x['n_error']} with a mistake; {x['n_steps']} labelled steps, {x['n_bad_steps']} bad"
        )
        for key, value in x["numbers"].items():
            if key in results["own"]:
                print(f"  {key:<22}{value:.4f} {plus_minus(x['intervals'][key])}  the set's own")
            elif name == "all":
                print(f"  {key:<22}{value:.4f}")


def solution_numbers(predicted, error) -> dict[str, float]:
    """Of first errors (index or -1): accuracy over all; ProcessBench's two accuracies and F1; and of the verdict that there is one,
    balanced F1 and MCC with a sound solution as positive."""
    says, is_sound = predicted == -1, error == -1
    split = first_error_f1(predicted, error)
    right = (
        says[is_sound].mean() if is_sound.any() else np.nan,
        (~says)[~is_sound].mean() if (~is_sound).any() else np.nan,
    )
    return {
        "location_accuracy": first_error_accuracy(predicted, error),
        "accuracy_error": split["accuracy_error"],
        "accuracy_clean": split["accuracy_clean"],
        "first_error_f1": split["f1"],
        "solution_balanced_f1": harmonic_mean(*right),
        "mcc": mcc(is_sound, says),
    }


def step_numbers(p, is_good, threshold: float) -> dict[str, float]:
    """Of all labelled steps, those after an error too: AUROC, accuracy, balanced F1."""
    hit = (p >= threshold) == is_good
    right = [hit[of].mean() if of.any() else np.nan for of in (is_good, ~is_good)]
    return {
        "step_auroc": auroc(p, is_good),
        "step_accuracy": float(hit.mean()),
        "step_balanced_f1": harmonic_mean(*right),
    }


def pair_numbers(chosen, rejected) -> dict[str, float]:
    return {"pair_accuracy": float(np.mean((chosen > rejected) + 0.5 * (chosen == rejected)))}


def measure(rows: list[Row], scores: Sequence[np.ndarray], kind: str, threshold: float, seed: int = 0) -> dict:
    """The numbers of each group (a file, or MR-GSM8K's question_type) and of all rows, those of OWN with 95 % bootstrap
    intervals over problems; what no data define is nan."""
    groups = {}
    for row, score_T in zip(rows, scores, strict=True):
        groups.setdefault(row.group, []).append((row, np.asarray(score_T, np.float64)))
    of = lambda members: group_numbers(members, kind, threshold, seed)
    about = {"threshold": float(threshold), "threshold_origin": "given", "own": OWN[kind], "n_rows": len(rows)}
    about["groups"] = {name: of(members) for name, members in groups.items()}
    return about | {"all": of([pair for members in groups.values() for pair in members])}


def group_numbers(members: list[tuple[Row, np.ndarray]], kind: str, threshold: float, seed: int) -> dict:
    labels = [row.solution.labels for row, _ in members]
    problem = problem_numbers(row.problem for row, _ in members)
    owner_n, t_n = np.array([(k, t) for k, y in enumerate(labels) for t, label in enumerate(y) if label is not None]).T
    of_step = lambda x_of: np.array([x_of(*members[k])[t] for k, t in zip(owner_n, t_n, strict=True)])
    p_n, good_n = of_step(lambda row, score_T: score_T), of_step(lambda row, _: row.solution.labels) >= 0.5
    predicted = np.array([predict_first_error(score_T, threshold) for _, score_T in members])
    error = np.array([first_error(label_T) for label_T in labels])
    if kind == "toolprmbench":  # of each pair the right action comes first
        tables = [(problem[::2], lambda d: pair_numbers(p_n[::2][d], p_n[1::2][d]))]
    else:
        tables = [(problem, lambda d: solution_numbers(predicted[d], error[d]))]
        tables += [(problem[owner_n], lambda d: step_numbers(p_n[d], good_n[d], threshold))]
    if kind == "agent_process_bench":
        hit_n = np.where(p_n >= threshold, 1, -1) == of_step(lambda row, _: row.solution.ratings)
        tables += [(problem[owner_n], lambda d: {"rating_accuracy": float(hit_n[d].mean())})]
    found, intervals = {}, {}
    for owner, table in tables:
        value = table(np.arange(len(owner)))
        found |= value
        for name in [name for name in OWN[kind] if name in value]:
            intervals[name] = bootstrap_interval(lambda d, name=name, table=table: table(d)[name], owner, seed=seed)
    sizes = {"n": len(members), "n_error": int((error != -1).sum()), "n_problems": len(np.unique(problem))}
    sizes |= {"n_steps": len(p_n), "n_bad_steps": int((~good_n).sum())}
    return sizes | {"numbers": found, "intervals": intervals}
