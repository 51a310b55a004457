"""task=best_of_n: selection and vote curves of a pool under stored step scores or verifiers that score it now."""

import dataclasses
from pathlib import Path
from typing import Annotated

from prm_jax import InputError, tasks
from prm_jax.data import grading, pools
from prm_jax.data.splits import TaskData
from prm_jax.evals import biases, pool_metrics, tables, trace_error
from prm_jax.evals.pool_arrays import POLICY, pool_arrays
from prm_jax.evals.setup import Setup
from prm_jax.evals.tables import plus_minus
from prm_jax.evals.task import Task
from prm_jax.evals.verifiers import data_of, describe, new_name, open_scorer, own_runs, trained
from prm_jax.generate.samples import policy_pool
from prm_jax.launch import run_folder
from prm_jax.launch.config import Count, expect
from prm_jax.scoring import score_into
from prm_jax.tasks.checkers import checker_rule, grade_own, is_own

FEW_SCORERS = 3  # more are not compared in pairs on the screen
MANY_SCORERS = 6  # more, such as the seeds of a sweep, are not compared in pairs in the report
POLICY_SOURCES = {"policy": "policy", "votes": "votes, for want of the policy's"}
FEW_PROBLEMS = 6  # that differ: of fewer a sign test cannot reach .05, whatever an interval says
ABOUT_TESTS = "95 % intervals, sign-flip p-values of single tests (not adjusted)"


@dataclasses.dataclass(frozen=True)
class FreshPool:
    problems: Count
    candidates: Count
    outcome_model: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(pool_metrics.Rules):
    input: str | None
    scores: str | list | None
    scores_name: str | None
    split_by: str | None
    checker: Annotated[str, checker_rule(grading.RULES)] | None
    fresh: FreshPool


def run(setup: Setup, cfg: Config) -> dict:
    exact_labels, source = None, cfg.input
    if cfg.input is None:
        problems, exact_labels, data_cfg = fresh_pool(setup, cfg)
        by_policy = data_cfg.samples == "policy"
        author = f"policy {data_cfg.policy}" if by_policy else "noisy solver"
        source = f"drawn from the {author} of the {data_cfg.name} task"
        model, is_embedded = cfg.fresh.outcome_model, by_policy and data_cfg.policy == "embedded"
        if model and (
            is_embedded or model != "embedded_orm"
        ):  # which knows the embedded policy's samples alone
            setup = dataclasses.replace(setup, checkpoints=[*setup.checkpoints, model])
    elif setup.checkpoints or cfg.checker:
        problems = pools.read_pool(cfg.input, as_written=is_own(cfg.checker), split_by=cfg.split_by)
    else:  # a pool of any size is read problem by problem, none kept
        problems = pools.iter_pool(cfg.input, split_by=cfg.split_by)
    grading_counts, groups = {"checker": "as stored; answers are equal as texts"}, None
    if is_own(cfg.checker):
        problems, grading_counts = grade_own(problems, cfg.checker)
    elif cfg.checker:
        problems, grading_counts = grading.grade_pool(grading.with_answers(problems), cfg.checker)
        groups = grading.group_pool(problems, cfg.checker)
    pool = pool_arrays(problems, groups, exact_labels)
    for name, n in pool.lacking.items():
        print(f"scores      {name}: left out, {n} candidates have none")
    if pool.n_repeated:
        print(
            f"note        {pool.n_repeated} problems have the text of an earlier one; intervals take them for others"
        )
    scorers, verifiers = chosen_scores(cfg.scores, list(pool.scores), bool(setup.checkpoints)), {}
    if setup.checkpoints:
        problems, verifiers = score_pool(setup, cfg, problems)
        pools.write_pool(setup.folder / "pool.jsonl.gz", problems)
        pool = pool_arrays(problems, groups, exact_labels)
        print(f"pool        {setup.folder / 'pool.jsonl.gz'}, with the new scores")
    scorers += verifiers
    scorers += [POLICY] * (
        POLICY in pool.scores and POLICY not in scorers
    )  # what nobody taught stands beside it
    if not scorers:
        raise InputError(
            "scores: the pool has no step scores of every candidate; checkpoint=FOLDER scores it now"
        )
    outcome = [name for name, x in verifiers.items() if x["objective"] == "orm"]
    value = outcome + [name for name, x in verifiers.items() if x["label_kind"] in ("value", "advantage")]
    results = pool_metrics.pool_results(pool, scorers, cfg, setup.cfg.seed, value, outcome)
    results |= {
        "pool": source,
        "grading": grading_counts,
        "verifiers": verifiers,
        "incomplete_scores": pool.lacking,
    }
    return results | {"over_seeds": over_seeds(results, verifiers)}


def chosen_scores(scores: str | list | None, stored: list[str], scores_now: bool) -> list[str]:
    """The stored scores that the key names: all by default, or none where a checkpoint scores now."""
    if scores is None:
        return [] if scores_now else list(stored)
    names = (
        stored if scores == "all" else [scores] if isinstance(scores, str) else [str(name) for name in scores]
    )
    for name in names:
        expect(
            name in stored,
            "scores",
            name,
            f"step scores that every candidate has: {', '.join(stored) or 'none'}",
        )
    return list(names)


def fresh_pool(setup: Setup, cfg: Config):
    """(fresh solutions of unseen problems of the first run's task, the exact labels of their steps, the data)."""
    data_cfg, _ = data_of(setup, next(iter(own_runs(setup)), setup.checkpoints[0]))
    if not isinstance(data_cfg, TaskData):
        raise InputError(f"input: the data {data_cfg.name} cannot draw candidates; name a pool, input=FILE")
    seed = setup.cfg.seed + 1  # 0 draws the test split of the step metrics
    pool = tasks.sample_pool(data_cfg, cfg.fresh.problems, cfg.fresh.candidates, "test", seed, policy_pool)
    problems = [dataclasses.replace(p, id=f"{data_cfg.name}/{seed}/{i}") for i, p in enumerate(pool)]
    rows = {(p.problem, c.steps) for p in problems for c in p.candidates}
    task = tasks.find_task(data_cfg.name)
    return problems, {row: task.step_labels(*row) for row in rows}, data_cfg


def score_pool(setup: Setup, cfg: Config, problems: list[pools.Problem]):
    """(the pool with the step scores of every verifier, {name of the scores: their verifier})."""
    n = len(setup.checkpoints)
    expect(
        cfg.scores_name is None or n == 1, "scores_name", cfg.scores_name, f"null where {n} verifiers score"
    )
    verifiers, total = {}, sum(len(problem.candidates) for problem in problems)

    def scored(scorer, name):
        path = setup.folder / f"pool_scores_{name}.jsonl"
        scores = score_into(path, scorer, pools.candidate_rows(problems), total)
        return list(pools.with_scores(problems, name, scores, scorer.unit))

    pools.note_unsplit(sum(pools.is_unsplit(steps) for *_, steps in pools.candidate_rows(problems)), total)
    for checkpoint in setup.checkpoints:
        scorer = open_scorer(setup, checkpoint)
        taken = {name for problem in problems for c in problem.candidates for name in c.step_scores}
        taken |= {POLICY} if any(c.logp for problem in problems for c in problem.candidates) else set()
        name = new_name(cfg.scores_name, scorer, taken)
        problems = scored(scorer, name)
        verifiers[name] = describe(scorer) | trained(checkpoint)
    return problems, verifiers


def over_seeds(results: dict, verifiers: dict) -> list[dict]:
    """For each setting with several seeds its scorers, and the spread over them of the headline selection at n = 4, 16,
    64, ... and the pool's size, and of the weighted vote there."""
    names, groups = list(verifiers), run_folder.group_by_settings([x["settings"] for x in verifiers.values()])
    rows = []
    for setting, scorers in [(setting, [names[i] for i in ids]) for setting, ids in groups if len(ids) > 1]:
        tables = [results["scorers"][name][results["headline"][name]] for name in scorers]
        sizes = list(tables[0]["best_of_n"])
        columns = [("best", "best_of_n", n) for n in dict.fromkeys([*sizes[2::2], sizes[-1]])]
        rules = {"best_with_policy": "with_policy", "weighted_vote": "weighted_vote"}
        columns += [(name, rule, sizes[-1]) for name, rule in rules.items() if rule in tables[0]]
        numbers = {f"{name}_of_{n}": tables.spread([x[rule][n] for x in tables]) for name, rule, n in columns}
        rows.append({"setting": setting, "scorers": scorers, "spread": numbers})
    return rows


def show(results: dict):
    N = str(results["n_candidates"])
    losers = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in results["dropped"].items() if n)
    graded = f"graded: {results['grading']['checker']}" + f"; cannot win: {losers}" * bool(losers)
    print(f"pool        {results['n_problems']} problems x {N} candidates; {graded}")
    if n := results["repeat_the_problem"]:
        print(
            f"note        {n} candidates repeat the problem in their first step: length is compared apart among them"
        )
    if n := results["graded_both_ways"]:
        print(
            f"note        {n} answers are graded right and wrong, as equal as their texts are: votes take them so"
        )
    show_curves(results)
    for group in results.get("over_seeds", ()):
        setting = "".join(f", {key}={value}" for key, value in group["setting"].items())
        tables.show_spread(f"{len(group['scorers'])} of {group['scorers'][0]}{setting}", group["spread"])
    show_selections(results, N)


def detail(results: dict):
    """Prints what report.txt alone has: rules that need no scorer, selection with the policy's log p, aggregators,
    bias checks, winners with a wrong step, paired differences."""
    if "step_shares" in results:
        biases.show_shares(results["step_shares"])
    ece = {scorer: x["steps"]["ece"] for scorer, x in results["calibration"].items()}
    correlations = {scorer: x | {"ece": ece[scorer]} for scorer, x in results["length_correlation"].items()}
    biases.show_length(correlations, "problem and correctness")
    N = str(results["n_candidates"])
    print(f"at n = {N:<5} mean of the candidates {results['mean']:.4f}")
    for name in ("majority", "oracle"):
        if name in results:
            print(f"  {f'{name}@{N}':<23}{results[name][N]:.4f} {plus_minus(results[f'{name}_interval'][N])}")
    for scorer, aggregator in results["headline"].items():
        numbers = results["scorers"][scorer][aggregator]
        if "with_policy" in numbers:
            name = (
                f"{scorer} + {results['policy_weight']:g} log p of {POLICY_SOURCES[results['policy_source']]}"
            )
            print(
                f"  {name:<41} {numbers['with_policy'][N]:.4f} {plus_minus(numbers['with_policy_interval'][N])}"
            )
    show_aggregators(results, N)
    if "chosen" in results:
        trace_error.show(results["chosen"])
    if len(results["headline"].keys() - {POLICY}) > MANY_SCORERS:
        print(
            f"differences of scorers and aggregators, paired, by n: results.json, `differences`; {ABOUT_TESTS}"
        )
        return
    print(
        f"differences at n = {N}, paired over problems, {ABOUT_TESTS}; of other aggregators in results.json:"
    )
    few, headlines = len(results["scorers"]) <= FEW_SCORERS, results["headline"].items()
    names = {f"{scorer}.{aggregator}" for scorer, aggregator in headlines if few or scorer != POLICY}
    for test in tests_at(results, N):
        selections, rules = zip(*(test[side].rpartition(".")[::2] for side in "ab"), strict=True)
        if {*selections} <= names and (few or {*rules} == {"best_of_n"}):
            print(f"  {test['a']} - {test['b']}: {difference_text(test)}")


def tests_at(results: dict, N: str) -> list[dict]:
    return [test for test in results["differences"] if str(test["n"]) == N]


def show_selections(results: dict, N: str):
    """Prints a line a scorer: its headline selection, what that has over the majority vote, and its weighted vote."""
    for scorer in results["scorers"]:
        if n := results["zero_scores"][scorer]:
            tie = "its product and minimum tie with all such"
            print(f"scorer      {scorer}: {n} problems have a candidate with a step of probability 0: {tie}")
        if scorer in results["verifiers"]:
            print(f"scorer      {scorer}: {results['verifiers'][scorer]['verifier']}")
        elif scorer == POLICY:
            print(
                "scorer      policy: each step's log p under the policy that drew it, which nobody taught to verify"
            )
    against = {test["a"]: test for test in tests_at(results, N) if test["b"] == "majority"}
    print(f"best of {N:<32} {'interval':<17} {'minus majority vote':<36} weighted vote")
    selections = {f"{scorer}.{aggregator}.best_of_n" for scorer, aggregator in results["headline"].items()}
    for scorer, aggregator in results["headline"].items():
        numbers = results["scorers"][scorer][aggregator]
        line = f"  {f'{scorer} ({aggregator})':<31}{numbers['best_of_n'][N]:.4f} {plus_minus(numbers['interval'][N])}"
        if "weighted_vote" in numbers:
            line += f" {difference_text(against[f'{scorer}.{aggregator}.best_of_n']):<36}"
            line += f" {numbers['weighted_vote'][N]:.4f} {plus_minus(numbers['weighted_vote_interval'][N])}"
        print(line)
    within = ", ".join(f"{scorer} {auroc:.3f}" for scorer, auroc in results["outcome_auroc_within"].items())
    print(f"  AUROC of right solutions within a problem (.5 knows nothing): {within}")
    for test in tests_at(results, N):
        if {test["a"], test["b"]} <= selections:
            print(f"  {test['a']} - {test['b']}: {difference_text(test)}")


def show_aggregators(results: dict, N: str):
    print(f"best of {N}, by aggregator (intervals: results.json, aggregators.png)")
    print(" " * 27 + "".join(f"{aggregator:>10}" for aggregator in results["aggregators"]))
    for scorer, table in results["scorers"].items():
        shares = "".join(
            f"{table[aggregator]['best_of_n'][N]:>10.4f}" for aggregator in results["aggregators"]
        )
        print(f"  {scorer:<25}{shares}")


def show_curves(results: dict):
    """Prints the share solved at sizes n: headline selections, weighted votes of few scorers, majority, oracle."""
    sizes, curves = list(results["oracle"]), {}
    for scorer, aggregator in results["headline"].items():
        numbers = results["scorers"][scorer][aggregator]
        curves[f"{scorer}, best of n ({aggregator})"] = numbers["best_of_n"]
        if len(numbers.get("with_policy", ())) == len(sizes):
            curves[f"{scorer} + {results['policy_weight']:g} log p of the policy"] = numbers["with_policy"]
        if len(results["scorers"]) < FEW_SCORERS and "weighted_vote" in numbers:
            curves[f"{scorer}, weighted vote"] = numbers["weighted_vote"]
    curves |= {name: results[name] for name in ("majority", "oracle") if name in results}
    print(f"solved at n {'':<30}" + "".join(f"{n:>8}" for n in sizes))
    for name, by_size in curves.items():
        print(f"  {name:<40}" + "".join(f"{by_size[n]:>8.3f}" for n in sizes))


def difference_text(test: dict) -> str:
    p = f"p={test['p']:.3f}" if test["p"] >= 0.0005 else "p<0.001"
    few = f" (problems that differ: {test['n_differ']})" if 0 < test["n_differ"] < FEW_PROBLEMS else ""
    return f"{test['difference']:+.4f} {plus_minus(test['interval'])} {p}{few}"


class BestOfN(Task):
    Config = Config

    @property
    def needs_checkpoint(self) -> bool:
        return self.cfg.input is None

    def run(self, setup: Setup) -> dict:
        return run(setup, self.cfg)

    def show(self, results: dict):
        show(results)

    def detail(self, results: dict):
        detail(results)

    def figures(self, results: dict, folder: Path) -> list[Path]:
        from prm_jax.figures.best_of_n import best_of_n_figures

        return best_of_n_figures(results, folder)

    def metric(self, results: dict) -> float | None:
        scorer, aggregator = next(iter(results["headline"].items()))
        return results["scorers"][scorer][aggregator]["best_of_n"][str(results["n_candidates"])]
