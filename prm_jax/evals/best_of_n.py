"""task=best_of_n: selection and vote curves of a pool, by its stored step scores or by verifiers."""

import dataclasses
from collections.abc import Iterable
from typing import Annotated

from prm_jax import tasks
from prm_jax.data import grading, pools
from prm_jax.data.writing import score_into
from prm_jax.evals import pool_metrics, verifiers
from prm_jax.evals.pool_arrays import POLICY, pool_arrays
from prm_jax.evals.setup import Setup
from prm_jax.evals.tables import lead_text, show_table, spread_by_setting
from prm_jax.evals.task import Task
from prm_jax.generate.samples import policy_pool
from prm_jax.launch.config import Count, expect
from prm_jax.tasks.checkers import checker_rule, grade_pool, is_own

AS_STORED = {"checker": "as stored; answers are equal as texts"}


@dataclasses.dataclass(frozen=True)
class FreshPool:
    problems: Count
    candidates: Count
    outcome_model: str | None


@dataclasses.dataclass(frozen=True)
class Config(pool_metrics.Rules):
    input: str | None
    columns: dict[str, str] | None
    scores: str | list | None
    split_by: str | None
    checker: Annotated[str, checker_rule(grading.RULES)] | None
    fresh: FreshPool

    def __post_init__(self):
        for name in ("columns", "split_by", "checker"):
            value = getattr(self, name)
            is_read = self.input is not None or value is None
            expect(is_read, name, value, "null without input=POOL: a fresh pool is graded by its task")


@dataclasses.dataclass(frozen=True)
class GradedPool:
    """The problems to choose from, and how their answers were graded."""

    problems: Iterable[pools.Problem]
    source: str  # where the pool is from, in words
    grading: dict  # counts of the grades
    groups: list | None = None  # of equal answers; None: those of the same text
    labels: dict | None = None  # {(problem, steps): exact labels}


class BestOfN(Task):
    Config = Config
    drawing = "best_of_n"

    @property
    def needs_checkpoint(self) -> bool:
        return self.cfg.input is None

    def run(self, setup: Setup) -> dict:
        cfg = self.cfg
        checkpoints = list(setup.checkpoints)
        scored_by = {}
        if cfg.input is None:
            graded, outcome_model = fresh_pool(setup, cfg)
            checkpoints += [outcome_model] if outcome_model else []
        else:
            graded = stored_pool(cfg, keep=bool(checkpoints or cfg.checker))
        pool = pool_arrays(graded.problems, graded.groups, graded.labels)
        for name, n in pool.lacking.items():
            print(f"scores      {name}: left out, {n} candidates have none")
        wanted = list(pool.scores) if cfg.scores is None else cfg.scores
        stored = [wanted] if isinstance(wanted, str) else wanted
        for name in stored:
            expect(name in pool.scores, "scores", name, f"scores that all have: {', '.join(pool.scores)}")
        if checkpoints:
            taken = pool.scores.keys() | pool.lacking.keys()
            problems, scored_by = score_pool(setup, checkpoints, graded.problems, taken)
            pools.write_pool(setup.folder / "pool.jsonl.gz", problems)
            pool = pool_arrays(problems, graded.groups, graded.labels)
            print(f"pool        {setup.folder / 'pool.jsonl.gz'}, with the new scores")
        scorers = [*scored_by, *stored]
        if POLICY in pool.scores and POLICY not in scorers:  # what nobody taught stands beside it
            scorers.append(POLICY)
        expect(scorers, "scores", None, "step scores of every candidate; checkpoint=FOLDER scores it now")
        results = pool_metrics.pool_results(pool, scorers, cfg, setup.cfg.seed, scored_by)
        results |= {"pool": graded.source, "grading": graded.grading, "verifiers": scored_by}
        return results | {"over_seeds": seeds_of_one_setting(results)}

    def show(self, results: dict):
        N = str(results["n_candidates"])
        tables = headline_tables(results)
        line = f"{results['n_problems']} problems x {N} candidates; graded: {results['grading']['checker']}"
        losers = [f"{n} {name.replace('_', ' ')}" for name, n in results["dropped"].items() if n]
        print(f"pool        {line}" + (f"; cannot win: {', '.join(losers)}" if losers else ""))
        if n := results["votes_apart"]:
            print(f"note        {n} answers equal others as numbers; checker=number lets them vote as one")
        curves = {}
        for scorer, numbers in tables.items():
            curves[f"{scorer}, best of n ({results['headline'][scorer]})"] = numbers["best_of_n"]
            if "with_policy" in numbers:
                name = f"{scorer} + {results['policy_weight']:g} log p of the policy"
                curves[name] = numbers["with_policy"]
        for rule in ("fewest_steps", "shortest", "majority", "oracle"):
            if rule in results:
                curves[rule.replace("_", " ")] = results[rule]
        show_table("solved at n", curves, digits=3)
        for group in results["over_seeds"]:
            setting = "".join(f", {key}={value}" for key, value in group["setting"].items())
            title = f"over seeds  {len(group['scorers'])} of {group['scorers'][0]}{setting}"
            show_table(title, group["spread"])
        if results["verifiers"]:
            named = (f"{scorer}: {x['verifier']}" for scorer, x in results["verifiers"].items())
            print("scorers     " + "; ".join(named))
        show_table(f"best of {N}", {name: selection_row(results, name, N) for name in tables})
        for scorer, x in results.get("unseen", {}).items():
            print(f"unseen      {scorer}: {x['solved']:.4f} of the {x['n_problems']} others")
        if lead := results["lead"]:
            verifier, rule = (lead[side].removesuffix(".best_of_n") for side in ("verifier", "rule"))
            name = f"the best verifier ({verifier})"
            rule = rule if "." in rule else rule.replace("_", " ")  # policy_1.prod, fewest steps
            print(f"verdict     {lead_text(name, rule, lead)}")

    def detail(self, results: dict):
        """Prints all aggregators and paired differences."""
        N = str(results["n_candidates"])
        print(f"at n = {N}: mean of the candidates {results['mean']:.4f}")
        for x in results["verifiers"].values():
            verifiers.note_seen(x["verifier"], sum(x["known_problems"]), "problems")
        by_aggregator = {}
        for scorer, tables in results["scorers"].items():
            by_aggregator[scorer] = {name: table["best_of_n"][N] for name, table in tables.items()}
        show_table(f"best of {N} by aggregator", by_aggregator)
        rows = {}
        columns = "difference", "interval", "p", "n_differ"
        for test in results["differences"]:
            rows[f"{test['a']} - {test['b']}"] = {column: test[column] for column in columns}
        show_table(f"paired differences at n = {N}, p of single sign-flip tests", rows)

    def metric(self, results: dict) -> float | None:
        """The share solved by the first scorer's headline selection of all candidates."""
        first = next(iter(headline_tables(results).values()))
        return first["best_of_n"][str(results["n_candidates"])]


def stored_pool(cfg: Config, keep: bool) -> GradedPool:
    """The pool of `input`, graded as stored or by the checker."""
    read = pools.read_pool if keep else pools.iter_pool
    options = {"split_by": cfg.split_by, "columns": cfg.columns}
    problems = read(cfg.input, as_written=is_own(cfg.checker), **options)
    if cfg.checker is None:
        return GradedPool(problems, cfg.input, AS_STORED)
    problems, counts = grade_pool(problems, cfg.checker)
    return GradedPool(problems, cfg.input, counts, grading.group_pool(problems, cfg.checker))


def fresh_pool(setup: Setup, cfg: Config) -> tuple[GradedPool, str | None]:
    """(fresh solutions of unseen problems of the first run's task with the exact labels of their steps, the
    outcome model that is scored beside the verifiers)."""
    data_cfg = verifiers.task_data(setup)
    fresh = cfg.fresh
    seed = setup.cfg.seed + 1  # 0 draws the test split of the step metrics
    drawn = tasks.sample_pool(data_cfg, fresh.problems, fresh.candidates, "test", seed, policy_pool)
    problems = [dataclasses.replace(p, id=f"{data_cfg.name}/{seed}/{i}") for i, p in enumerate(drawn)]
    task = tasks.find_task(data_cfg.name)
    rows = {(p.problem, c.steps) for p in problems for c in p.candidates}
    labels = {row: task.step_labels(*row) for row in rows}
    author = f"policy {data_cfg.policy}" if data_cfg.samples == "policy" else "noisy solver"
    source = f"drawn from the {author} of the {data_cfg.name} task"
    graded = GradedPool(problems, source, AS_STORED, labels=labels)
    # embedded_orm knows the embedded policy's samples alone.
    is_known = author == "policy embedded" or fresh.outcome_model != "embedded_orm"
    is_new = fresh.outcome_model not in setup.checkpoints
    return graded, fresh.outcome_model if is_known and is_new else None


def score_pool(
    setup: Setup, checkpoints: list[str], problems: list[pools.Problem], taken: set[str]
) -> tuple[list[pools.Problem], dict[str, dict]]:
    """(the pool with the step scores of every verifier, {name of the scores: their verifier})."""
    total = sum(len(problem.candidates) for problem in problems)
    pools.note_unsplit(pools.pool_solutions(problems))
    scored_by = {}
    for checkpoint in checkpoints:
        scorer = verifiers.open_scorer(setup, checkpoint)
        name = verifiers.new_name(scorer, taken | scored_by.keys())
        path = setup.folder / f"pool_scores_{name}.jsonl"
        scores = score_into(path, scorer, pools.pool_solutions(problems), total)
        problems = list(pools.with_scores(problems, name, scores, scorer.unit))
        about = {"settings": verifiers.settings_of(checkpoint)}
        about["known_problems"] = verifiers.known_rows(checkpoint, problems)
        scored_by[name] = verifiers.describe(scorer) | about
    return problems, scored_by


def headline_tables(results: dict) -> dict[str, dict]:
    """{scorer: the table of its headline aggregator}."""
    return {scorer: results["scorers"][scorer][name] for scorer, name in results["headline"].items()}


def seeds_of_one_setting(results: dict) -> list[dict]:
    """For each setting with several seeds its scorers, and the spread of the headline selection at n = 4, 16,
    64, ... and the pool's size."""
    tables = headline_tables(results)
    numbers = {}
    for scorer in results["verifiers"]:
        table = tables[scorer]
        *sizes, N = table["best_of_n"]  # 1, 2, 4, 8, ..., of which every second from 4 is shown
        numbers[scorer] = {f"best_of_{n}": table["best_of_n"][n] for n in [*sizes[2::2], N]}
        for column, rule in (("best_with_policy_of", "with_policy"), ("weighted_vote_of", "weighted_vote")):
            if rule in table:
                numbers[scorer][f"{column}_{N}"] = table[rule][N]
    settings = [about["settings"] for about in results["verifiers"].values()]
    groups = [x for x in spread_by_setting(settings, list(numbers.values())) if len(x["members"]) > 1]
    return [group | {"scorers": [[*numbers][i] for i in group["members"]]} for group in groups]


def selection_row(results: dict, scorer: str, N: str) -> dict:
    """{column: number} of a scorer's headline selection at n = N, beside the votes."""
    how = results["headline"][scorer]
    numbers = results["scorers"][scorer][how]
    row = {"": how, "solved": numbers["best_of_n"][N], "interval": numbers["interval"][N]}
    pair = f"{scorer}.{how}.best_of_n", "majority"
    for test in results["differences"]:
        if (test["a"], test["b"]) == pair:
            row |= {"minus majority": f"{test['difference']:+.4f}", "its interval": test["interval"]}
            p = f"{test['p']:.3f}" if test["p"] >= 0.0005 else "<0.001"
            row |= {"p": p, "weighted vote": numbers["weighted_vote"][N]}
    return row | {"AUROC within problems": results["outcome_auroc_within"][scorer]}
