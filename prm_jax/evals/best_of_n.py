"""task=best_of_n: selection and vote curves of a pool under stored step scores or verifiers that score it
now."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from prm_jax import InputError, tasks
from prm_jax.data import grading, pools
from prm_jax.data.score_files import score_into
from prm_jax.data.splits import TaskData
from prm_jax.evals import biases, pool_metrics, trace_error
from prm_jax.evals.pool_arrays import POLICY, pool_arrays
from prm_jax.evals.setup import Setup
from prm_jax.evals.tables import p_text, show_table, spread
from prm_jax.evals.task import Task
from prm_jax.evals.verifiers import data_of, describe, new_name, open_scorer, own_runs, trained
from prm_jax.generate.samples import policy_pool
from prm_jax.launch import run_folder
from prm_jax.launch.config import Count, expect
from prm_jax.tasks.checkers import checker_rule, grade_own, is_own


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


@dataclasses.dataclass(frozen=True)
class GradedPool:
    """The problems to choose from, and how their answers were graded."""

    problems: Iterable[pools.Problem]
    source: str  # where the pool is from, in words
    grading: dict  # counts of the grades
    groups: list | None = None  # of equal answers; None: those of the same text
    labels: dict | None = None  # {(problem, steps): exact labels}

    def arrays(self):
        return pool_arrays(self.problems, self.groups, self.labels)


class BestOfN(Task):
    Config = Config

    @property
    def needs_checkpoint(self) -> bool:
        return self.cfg.input is None

    def run(self, setup: Setup) -> dict:
        cfg = self.cfg
        if cfg.input is None:
            setup, graded = fresh_pool(setup, cfg)
        else:
            graded = stored_pool(cfg, keep=bool(setup.checkpoints or cfg.checker))
        pool = graded.arrays()
        for name, n in pool.lacking.items():
            print(f"scores      {name}: left out, {n} candidates have none")
        scorers, verifiers = chosen_scores(cfg.scores, list(pool.scores), bool(setup.checkpoints)), {}
        if setup.checkpoints:
            problems, verifiers = score_pool(setup, cfg, graded.problems)
            pools.write_pool(setup.folder / "pool.jsonl.gz", problems)
            pool = dataclasses.replace(graded, problems=problems).arrays()
            print(f"pool        {setup.folder / 'pool.jsonl.gz'}, with the new scores")
        scorers += verifiers
        if POLICY in pool.scores and POLICY not in scorers:  # what nobody taught stands beside it
            scorers.append(POLICY)
        if not scorers:
            expected = "a pool with step scores of every candidate; checkpoint=FOLDER scores it now"
            raise InputError(f"scores: found none, expected {expected}")
        results = pool_metrics.pool_results(pool, scorers, cfg, setup.cfg.seed, verifiers)
        results |= {
            "pool": graded.source,
            "grading": graded.grading,
            "verifiers": verifiers,
            "incomplete_scores": pool.lacking,
        }
        return results | {"over_seeds": over_seeds(results, verifiers)}

    def show(self, results: dict):
        N, tables = str(results["n_candidates"]), headline_tables(results)
        line = f"{results['n_problems']} problems x {N} candidates; graded: {results['grading']['checker']}"
        if losers := [f"{n} {name.replace('_', ' ')}" for name, n in results["dropped"].items() if n]:
            line += f"; cannot win: {', '.join(losers)}"
        print(f"pool        {line}")
        notes = {
            "repeat_the_problem": "candidates repeat the problem in their first step",
            "graded_both_ways": "answers are graded right in one candidate and wrong in another",
        }
        for key, text in notes.items():
            if n := results[key]:
                print(f"note        {n} {text}")
        curves = {}
        for scorer, numbers in tables.items():
            curves[f"{scorer}, best of n ({results['headline'][scorer]})"] = numbers["best_of_n"]
            if "with_policy" in numbers:
                curves[f"{scorer} + {results['policy_weight']:g} log p of the policy"] = numbers[
                    "with_policy"
                ]
        curves |= {name: results[name] for name in ("majority", "oracle") if name in results}
        show_table("solved at n", curves, digits=3)
        for group in results.get("over_seeds", ()):
            setting = "".join(f", {key}={value}" for key, value in group["setting"].items())
            show_table(
                f"over seeds  {len(group['scorers'])} of {group['scorers'][0]}{setting}", group["spread"]
            )
        for scorer, x in results["verifiers"].items():
            print(f"scorer      {scorer}: {x['verifier']}")
        if POLICY in results["scorers"] and POLICY not in results["verifiers"]:
            print("scorer      policy: each step's log p under the policy that drew it")
        show_table(f"best of {N}", {name: selection_row(results, name, N) for name in tables})

    def detail(self, results: dict):
        """Prints bias checks, all aggregators, errors of what is chosen, and paired differences."""
        N = str(results["n_candidates"])
        if "step_shares" in results:
            biases.show_shares(results["step_shares"])
        biases.show_length(results["length_correlation"], "problem and correctness")
        print(f"at n = {N}: mean of the candidates {results['mean']:.4f}")
        names = results["aggregators"]
        by_aggregator = {
            scorer: {name: table[name]["best_of_n"][N] for name in names}
            for scorer, table in results["scorers"].items()
        }
        show_table(f"best of {N} by aggregator (intervals: results.json)", by_aggregator)
        if "chosen" in results:
            trace_error.show(results["chosen"])
        tests = {f"{x['a']} - {x['b']}": x for x in results["differences"] if str(x["n"]) == N}
        columns = "difference", "interval", "p", "n_differ"
        rows = {name: {column: test[column] for column in columns} for name, test in tests.items()}
        show_table(f"paired differences at n = {N}, p of single sign-flip tests", rows)

    def figures(self, results: dict, folder: Path) -> list[Path]:
        from prm_jax.figures.best_of_n import best_of_n_figures

        return best_of_n_figures(results, folder)

    def metric(self, results: dict) -> float | None:
        """The share solved by the first scorer's headline selection of all candidates."""
        first = next(iter(headline_tables(results).values()))
        return first["best_of_n"][str(results["n_candidates"])]


def stored_pool(cfg: Config, keep: bool) -> GradedPool:
    """The pool of `input`, graded as stored or by the checker; read problem by problem where it need not be
    kept."""
    read = pools.read_pool if keep else pools.iter_pool
    problems = read(cfg.input, as_written=is_own(cfg.checker), split_by=cfg.split_by)
    if is_own(cfg.checker):
        problems, counts = grade_own(problems, cfg.checker)
        return GradedPool(problems, cfg.input, counts)
    if cfg.checker:
        problems, counts = grading.grade_pool(grading.with_answers(problems), cfg.checker)
        return GradedPool(problems, cfg.input, counts, groups=grading.group_pool(problems, cfg.checker))
    return GradedPool(problems, cfg.input, {"checker": "as stored; answers are equal as texts"})


def fresh_pool(setup: Setup, cfg: Config) -> tuple[Setup, GradedPool]:
    """(the setup with the outcome model that is scored beside the verifiers, fresh solutions of unseen
    problems of the first run's task with the exact labels of their steps)."""
    data_cfg, _ = data_of(setup, next(iter(own_runs(setup)), setup.checkpoints[0]))
    if not isinstance(data_cfg, TaskData):
        raise InputError(f"input: the data {data_cfg.name} cannot draw candidates; name a pool, input=FILE")
    seed = setup.cfg.seed + 1  # 0 draws the test split of the step metrics
    drawn = tasks.sample_pool(data_cfg, cfg.fresh.problems, cfg.fresh.candidates, "test", seed, policy_pool)
    problems = [dataclasses.replace(p, id=f"{data_cfg.name}/{seed}/{i}") for i, p in enumerate(drawn)]
    rows = {(p.problem, c.steps) for p in problems for c in p.candidates}
    task = tasks.find_task(data_cfg.name)
    labels = {row: task.step_labels(*row) for row in rows}
    by_policy = data_cfg.samples == "policy"
    author = f"policy {data_cfg.policy}" if by_policy else "noisy solver"
    source = f"drawn from the {author} of the {data_cfg.name} task"
    counts = {"checker": "as stored; answers are equal as texts"}
    model = cfg.fresh.outcome_model
    knows_pool = by_policy and data_cfg.policy == "embedded"
    if model and (knows_pool or model != "embedded_orm"):  # which knows the embedded policy's samples alone
        setup = dataclasses.replace(setup, checkpoints=[*setup.checkpoints, model])
    return setup, GradedPool(problems, source, counts, labels=labels)


def chosen_scores(scores: str | list | None, stored: list[str], scores_now: bool) -> list[str]:
    """The stored scores that the key names: all by default, or none where a checkpoint scores now."""
    if scores is None:
        return [] if scores_now else list(stored)
    if isinstance(scores, str):
        scores = stored if scores == "all" else [scores]
    for name in scores:
        expected = f"step scores that every candidate has: {', '.join(stored) or 'none'}"
        expect(name in stored, "scores", name, expected)
    return list(scores)


def score_pool(setup: Setup, cfg: Config, problems: list[pools.Problem]) -> tuple[list, dict[str, dict]]:
    """(the pool with the step scores of every verifier, {name of the scores: their verifier})."""
    many = len(setup.checkpoints) > 1
    expect(
        not (cfg.scores_name and many), "scores_name", cfg.scores_name, "null where several verifiers score"
    )
    total = sum(len(problem.candidates) for problem in problems)
    pools.note_unsplit(pools.candidate_rows(problems))
    verifiers = {}
    for checkpoint in setup.checkpoints:
        scorer = open_scorer(setup, checkpoint)
        taken = {name for problem in problems for c in problem.candidates for name in c.step_scores}
        if any(c.logp for problem in problems for c in problem.candidates):
            taken.add(POLICY)
        name = new_name(cfg.scores_name, scorer, taken)
        path = setup.folder / f"pool_scores_{name}.jsonl"
        scores = score_into(path, scorer, pools.candidate_rows(problems), total)
        problems = list(pools.with_scores(problems, name, scores, scorer.unit))
        verifiers[name] = describe(scorer) | trained(checkpoint)
    return problems, verifiers


def headline_tables(results: dict) -> dict[str, dict]:
    """{scorer: the table of its headline aggregator}."""
    return {scorer: results["scorers"][scorer][name] for scorer, name in results["headline"].items()}


def over_seeds(results: dict, verifiers: dict) -> list[dict]:
    """For each setting with several seeds its scorers, and the spread over them of the headline selection at
    n = 4, 16, 64, ... and the pool's size, and of the weighted vote there."""
    names, tables, rows = list(verifiers), headline_tables(results), []
    for setting, ids in run_folder.group_by_settings([x["settings"] for x in verifiers.values()]):
        if len(ids) < 2:
            continue
        scorers = [names[i] for i in ids]
        sizes = list(tables[scorers[0]]["best_of_n"])
        columns = {f"best_of_{n}": ("best_of_n", n) for n in [*sizes[2::2], sizes[-1]]}
        columns[f"best_with_policy_of_{sizes[-1]}"] = "with_policy", sizes[-1]
        columns[f"weighted_vote_of_{sizes[-1]}"] = "weighted_vote", sizes[-1]
        numbers = {
            name: spread([tables[scorer][rule][n] for scorer in scorers])
            for name, (rule, n) in columns.items()
            if rule in tables[scorers[0]]
        }
        rows.append({"setting": setting, "scorers": scorers, "spread": numbers})
    return rows


def selection_row(results: dict, scorer: str, N: str) -> dict:
    """{column: number} of a scorer's headline selection at n = N, beside it the majority and the weighted
    vote."""
    how = results["headline"][scorer]
    numbers = results["scorers"][scorer][how]
    row = {"": how, "solved": numbers["best_of_n"][N], "interval": numbers["interval"][N]}
    pair = f"{scorer}.{how}.best_of_n", "majority"
    for test in results["differences"]:
        if (test["a"], test["b"]) == pair and str(test["n"]) == N:
            row |= {"minus majority": f"{test['difference']:+.4f}", "its interval": test["interval"]}
            row |= {"p": p_text(test["p"]), "weighted vote": numbers["weighted_vote"][N]}
    return row | {"AUROC within problems": results["outcome_auroc_within"][scorer]}
