"""task=search: share of problems solved against policy tokens, by method and difficulty, under each verifier."""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import jax
import numpy as np

from prm_jax import InputError, rerank, stats, tasks, votes
from prm_jax.data import grading
from prm_jax.data.pools import Problem, read_pool, write_pool
from prm_jax.data.questions import Question, read_questions
from prm_jax.data.rows import file_fingerprint
from prm_jax.data.splits import TaskData
from prm_jax.evals.pool_arrays import Pool, log_scores, pool_arrays
from prm_jax.evals.setup import Setup
from prm_jax.evals.tables import plus_minus
from prm_jax.evals.task import Task
from prm_jax.evals.verifiers import data_of, describe, is_run, open_scorer, own_runs
from prm_jax.figures.search import CHOICES
from prm_jax.formats import Format
from prm_jax.generate import search
from prm_jax.generate.policies import Server
from prm_jax.generate.samples import policy_pool
from prm_jax.generate.sampling import Policy, Sampling, draw_pool, open_policy
from prm_jax.generate.search_state import SearchState
from prm_jax.launch import run_folder
from prm_jax.launch.config import Count, NotNegative, Rule, expect, one_of
from prm_jax.launch.progress import progress
from prm_jax.tasks.checkers import (
    CHECKERS,
    Grader,
    checker_rule,
    choose_checker,
    is_own,
    open_grader,
    task_grader,
)

COST_TOLERANCE = 0.1  # searches are compared if their costs differ by at most this share
METHODS = Rule(lambda x: x and {*x} <= search.METHODS.keys(), f"a list of {', '.join(search.METHODS)}")
BUDGETS = Rule(lambda x: x and all(type(n) is int and n > 0 for n in x), "a list of whole numbers of tokens")


@dataclasses.dataclass(frozen=True)
class Config(search.Options):
    methods: Annotated[list, METHODS]
    budgets: Annotated[list, BUDGETS]
    problems: Count
    input: str | None
    policy: str | None
    policy_format: Format
    samples: Count
    difficulties: Count
    checker: Annotated[str, checker_rule(CHECKERS)] | None
    aggregator: Annotated[str, one_of(rerank.AGGREGATORS)] | None
    choice: Annotated[str, one_of(CHOICES)]
    policy_weight: NotNegative
    max_steps: Count
    sampling: Sampling
    batch_rows: Count
    server: Server


@dataclasses.dataclass(frozen=True)
class SearchInputs:
    """The problems of a search, the policy that writes, and its samples without a verifier."""

    questions: list[Question]
    policy: Policy
    grader: Grader
    samples: list[Problem]

    def arrays(self, pool: list[Problem]) -> Pool:
        rule = self.grader.checker  # groups equal answers; else these are equal as texts
        return pool_arrays(pool, grading.group_pool(pool, rule) if rule in grading.RULES else None)


def run(setup: Setup, cfg: Config) -> dict:
    files, verifiers = [cfg.input] if cfg.input else [], []
    cfg = dataclasses.replace(
        cfg, checker=choose_checker(cfg.checker, files) if files else cfg.checker or "task"
    )
    for k, name in enumerate(setup.checkpoints):
        inputs = open_inputs(setup, cfg, name)
        with contextlib.closing(inputs.grader):
            verifiers.append(search_all(setup, cfg, inputs, open_scorer(setup, name), k))
    return {"verifiers": verifiers, "choice": cfg.choice, "stop_at": cfg.stop_at, "samples": cfg.samples}


def open_inputs(setup: Setup, cfg: Config, name: str) -> SearchInputs:
    data_cfg = None
    if cfg.input is None:
        data_cfg, _ = data_of(setup, name if is_run(name) else next(iter(own_runs(setup)), name))
        if not isinstance(data_cfg, TaskData):
            why = f"the data {data_cfg.name} has no problems to draw"
            raise InputError(f"input: {why}; name a file, input=FILE")
        name, checkers = data_cfg.name, ("task", data_cfg.name, *grading.RULES)
        expect(
            cfg.checker in checkers, "checker", cfg.checker, f"{', '.join(checkers)} for problems of {name}"
        )
        task = tasks.find_task(name)
        grader = open_grader(cfg.checker) if cfg.checker in grading.RULES else task_grader(task)
        texts = tasks.make_problems(task, data_cfg.task, cfg.problems, "test", setup.cfg.seed + 1)
        questions = [Question(str(i), text) for i, text in enumerate(texts)]
    else:
        expect(cfg.policy, "policy", cfg.policy, "the policy that searches the problems of input=FILE")
        questions = list(itertools.islice(read_questions(cfg.input, is_own(cfg.checker)), cfg.problems))
        expect(questions, "input", cfg.input, "a file with problems")
        if cfg.checker in grading.RULES and (
            lacking := next((q for q in questions if q.answer is None), None)
        ):
            raise InputError(f"{cfg.input}: problem {lacking.id}: has no right answer to check by")
        grader = open_grader(cfg.checker, [cfg.input])
    sampling, path = cfg.sampling, cfg.policy
    if path is None:
        sampling, path = Sampling(data_cfg.temperature, None, 1.0, data_cfg.max_tokens), data_cfg.policy
    policy = open_policy(path, "best", cfg.policy_format, "float32", sampling, cfg.batch_rows, cfg.server)
    if cfg.policy is None:
        samples = list(policy_pool(data_cfg, [q.problem for q in questions], cfg.samples, setup.cfg.seed))
    else:
        path = setup.folder / "samples.jsonl"
        draw_pool(path, policy, questions, cfg.samples, setup.cfg.seed, grader.grade, len(questions))
        samples = read_pool(path)
    return SearchInputs(questions, policy, grader, samples)


def search_all(setup: Setup, cfg: Config, inputs: SearchInputs, scorer, k: int) -> dict:
    """The numbers of one verifier: every method at every budget."""
    seed, (right_P, baseline) = setup.cfg.seed, policy_baseline(inputs, setup.cfg.seed)
    per_solution = baseline["tokens_per_solution"]
    is_value = scorer.objective == "orm" or scorer.label_kind in ("value", "advantage")
    aggregator = cfg.aggregator or ("last" if is_value else "prod")
    bins = np.array_split(np.argsort(-right_P, kind="stable"), min(cfg.difficulties, len(right_P)))
    rows, solved, tokens, rounds = [], {}, {}, list(itertools.product(cfg.budgets, cfg.methods))
    title = f"searching ({Path(scorer.name).name})"
    for budget, method in progress(title, len(rounds), "search", iterable=rounds):
        file = setup.folder / "searches" / f"{k}_{method}_{budget}.jsonl.gz"
        costs, pool = search_once(seed, cfg, inputs, scorer, aggregator, method, budget, per_solution, file)
        solved[method, budget] = solved_by(pool, inputs, aggregator, cfg.policy_weight)
        tokens[method, budget] = np.array(costs.pop("tokens_by_problem"))
        first = budget * (1 if cfg.stop_at is None else cfg.first)
        plan = search.plan(method, first, per_solution, cfg)
        rows.append({"method": method, "budget": budget, "plan": plan, **costs})
    for budget in cfg.budgets if len(cfg.methods) > 1 and min(map(len, bins)) > 1 else ():
        of_methods = [(solved[method, budget], tokens[method, budget]) for method in cfg.methods]
        choice_P = choose_by_difficulty(np.stack([by_rule[cfg.choice] for by_rule, _ in of_methods]), bins)
        chosen = {
            rule: np.choose(choice_P, [by_rule[rule] for by_rule, _ in of_methods])
            for rule in of_methods[0][0]
        }
        solved["optimal", budget], mean = (
            chosen,
            np.choose(choice_P, [tokens_P for _, tokens_P in of_methods]).mean(),
        )
        names = [
            "|".join(cfg.methods[i] for i in choice_P[members[:2]]) for members in bins
        ]  # one of each half
        rows.append(
            {"method": "optimal", "budget": budget, "plan": {"groups": names}, "policy_tokens": float(mean)}
        )
    for row in rows:
        row |= {rule: shares(x_P, bins, seed) for rule, x_P in solved[row["method"], row["budget"]].items()}
    spent = {row["budget"]: row["policy_tokens"] for row in rows if row["method"] == "best_of_n"}
    for row in [row for row in rows if row["method"] != "best_of_n" and row["budget"] in spent]:
        row["tokens_to_best_of_n"] = row["policy_tokens"] / spent[row["budget"]]
        if abs(row["tokens_to_best_of_n"] - 1) <= COST_TOLERANCE:
            pair = (
                solved[method, row["budget"]][cfg.choice][:, None] for method in (row["method"], "best_of_n")
            )
            row["minus_best_of_n"] = stats.paired_differences(*pair, seed)[0]
    return {
        **describe(scorer), "aggregator": aggregator, "policy": inputs.policy.name,
        "problems": len(inputs.questions), **baseline,
        "difficulty_pass_at_1": [float(right_P[members].mean()) for members in bins], "searches": rows,
    }  # fmt: skip


def choose_by_difficulty(solved_MP: np.ndarray, bins: Sequence[np.ndarray]) -> np.ndarray:
    """Index of a method of M for each problem: compute-optimal choice (Snell et al. 2024). In each group of difficulty,
    an array of problems, every second problem gets the method that solves most of the others, and they get theirs."""
    choice_P = np.zeros(solved_MP.shape[1], int)
    for members in bins:
        for half, others in ((members[::2], members[1::2]), (members[1::2], members[::2])):
            choice_P[half] = solved_MP[:, others].mean(1).argmax()
    return choice_P


def policy_baseline(inputs: SearchInputs, seed: int) -> tuple[np.ndarray, dict]:
    """(the share of right samples of each problem, what the policy's samples cost and solve without a verifier)."""
    pool = inputs.arrays(inputs.samples)
    majority = None
    if pool.answer_PN is not None:
        majority = float(rerank.expectation(votes.vote(pool.answer_PN), pool.right_PN).mean())
    right_P, problems = pool.right_PN.sum(1) / pool.present_PN.sum(1), [q.problem for q in inputs.questions]
    return right_P, {
        "tokens_per_solution": search.tokens_per_solution(inputs.policy, problems, jax.random.key(seed)),
        "pass_at_1": float(right_P.mean()), "pass_at_1_interval": stats.mean_interval(right_P, seed).tolist(),
        "pass_at_n": float(pool.right_PN.any(1).mean()), "majority": majority, "policy_source": pool.log_reference()[1],
    }  # fmt: skip


def search_once(
    seed: int,
    cfg: Config,
    inputs: SearchInputs,
    scorer,
    aggregator: str,
    method: str,
    budget: int,
    size,
    file: Path,
) -> tuple[dict, list[Problem]]:
    """(costs, the graded pool) of one method at one budget, read if it is done already. size: tokens of a solution."""
    done = file.with_name(file.name.removesuffix(".jsonl.gz") + ".json")
    if done.exists():
        costs = run_folder.read_json(done, policy_tokens=float, tokens_by_problem=list)
        if costs.pop("sha256", None) == (file.exists() and file_fingerprint(file)):
            return costs, read_pool(file)
        print(f"search      {file} is not what was written: searched again")
    questions, start, key = inputs.questions, time.perf_counter(), jax.random.key(seed)
    computed = scorer.stats.computed if getattr(scorer, "stats", None) else None
    state = SearchState(inputs.policy, scorer, [q.problem for q in questions], aggregator, cfg.max_steps, key)
    search.search(state, method, budget, size, cfg)
    costs = {
        "policy_tokens": float(state.tokens_P.mean()),
        "tokens_by_problem": state.tokens_P.tolist(),
        "policy_tokens_05_95": np.quantile(state.tokens_P, [0.05, 0.95]).tolist(),  # over problems
        "verifier_tokens": None if computed is None else (scorer.stats.computed - computed) / len(questions),
        "seconds": time.perf_counter() - start,
        "finished": float(np.mean([len(state.finished(p)) for p in range(len(questions))])),
        "unfinished_problems": int((~state.has_finished_P).sum()),
    }
    drawn = state.pool([q.id for q in questions], [q.answer for q in questions], "search")
    pool = [inputs.grader.grade(problem) for problem in drawn]
    write_pool(file, pool)
    run_folder.write_json(done, costs | {"sha256": file_fingerprint(file)})
    return costs, pool


def solved_by(pool: list[Problem], inputs: SearchInputs, aggregator: str, policy_weight: float) -> dict:
    """{rule of the final choice: share solved of each problem}: of CHOICES, and any finished solution. Where the policy
    gives no log p votes stand in (`Pool.log_reference`)."""
    arrays = inputs.arrays(pool)
    step_PNT, mask_PNT, unit = log_scores(arrays, "search", arrays.unit("search", "logit"))
    score_PN, present_PN = rerank.aggregate(step_PNT, mask_PNT, aggregator, unit=unit), arrays.present_PN
    log_ref_PN, _ = arrays.log_reference()
    scores = {"best": score_PN}
    scores["policy"] = (
        score_PN if log_ref_PN is None else rerank.with_reference(score_PN, log_ref_PN, policy_weight)
    )
    golds = arrays.right_PN, arrays.eligible_PN, present_PN, np.array([present_PN.shape[1]])
    best = {rule: np.asarray(rerank.best_of_n(x_PN, *golds))[:, 0] for rule, x_PN in scores.items()}
    vote_P = np.zeros(len(pool))  # where a budget pays for no answer at all nobody has a vote
    if arrays.answer_PN is not None:
        weight_PN = votes.vote(arrays.answer_PN, score_PN, present_PN)
        vote_P = np.asarray(rerank.expectation(weight_PN, arrays.right_PN))
    return best | {"oracle": (arrays.right_PN * arrays.eligible_PN).max(1), "vote": vote_P}


def shares(right_P, bins, seed: int) -> dict:
    """The share solved with its interval, over all problems and by difficulty."""

    def share(x_P) -> dict:
        return {"share": float(x_P.mean()), "interval": stats.mean_interval(x_P, seed).tolist()}

    return share(right_P) | {"by_difficulty": [share(right_P[members]) for members in bins]}


def show(results: dict):
    rule = results["choice"]
    for v in results["verifiers"]:
        value = f"value of a prefix: {v['aggregator']} of its step scores"
        print(f"verifier    {v['verifier']} ({v['label_kind']}), {value}")
        majority = "" if v["majority"] is None else f", majority {v['majority']:.3f}"
        solved = f"pass@1 {v['pass_at_1']:.3f}, pass@{results['samples']} {v['pass_at_n']:.3f}{majority}"
        tokens = f"{v['tokens_per_solution']:.1f} tokens a solution"
        print(f"policy      {v['policy']}: {tokens}; {v['problems']} problems: {solved}")
        if rule == "policy" and v["policy_source"] != "policy":
            instead = "the shares of equal answers stand in, if there are any"
            print(f"note        the policy gives no log p of its texts: {instead}")
        searches = {(s["method"], s["budget"]): s for s in v["searches"]}
        methods, budgets = (list(dict.fromkeys(names)) for names in zip(*searches, strict=True))
        title = f"by {CHOICES[rule]}, at a budget of policy tokens"
        print(f"solved      {title:<44}" + "".join(f"{b:>7}" for b in budgets))
        for method in methods:
            row = "".join(f"{searches[method, b][rule]['share']:>7.3f}" for b in budgets)
            spent = [searches[method, b]["policy_tokens"] / b for b in budgets]
            print(f"  {f'{method}, spent {min(spent):.2f} to {max(spent):.2f} of it':<54}{row}")
        if "optimal" in methods:
            print(
                "  optimal: each half of a group of difficulty by the method that solves most of the other half"
            )
        if unfinished := sum(s.get("unfinished_problems", 0) for s in v["searches"]):
            print(
                f"  {unfinished} problems of all searches together have no finished solution, and count as wrong"
            )


def detail(results: dict):
    """Prints the table of report.txt alone: costs and solutions of each search, its test against best-of-n."""
    rule = results["choice"]
    head = (
        f"  {'budget':>6} {'method':<10} {'policy':>6} {'5-95 %':>10} {'verifier':>9} {'s':>6} {'found':>6}  "
    )
    for v in results["verifiers"]:
        print(f"searches    under {v['verifier']}")
        print(f"{head}{'best score':<25} {'vote':<6} any    best of n less; as")
        for s in v["searches"]:
            costs = f"  {s['budget']:>6} {s['method']:<10} {s['policy_tokens']:>6.0f} "
            if "seconds" in s:
                cost = "" if s["verifier_tokens"] is None else f"{s['verifier_tokens']:.0f}"
                spread = "{:.0f}-{:.0f}".format(*s["policy_tokens_05_95"])
                costs += f"{spread:>10} {cost:>9} {s['seconds']:>6.1f} {s['finished']:>6.1f}"
            solved = (
                f"{s['best']['share']:.3f} {plus_minus(s['best']['interval'])} {s['vote']['share']:<6.3f}"
            )
            against = f"at {s['tokens_to_best_of_n']:.2f} x" if "tokens_to_best_of_n" in s else ""
            if test := s.get("minus_best_of_n"):
                against = f"{test['difference']:+.3f} p={test['p']:.3f}"
            plan = ", ".join(f"{key}={x}" for key, x in s["plan"].items() if x)
            print(f"{costs:<61}  {solved} {s['oracle']['share']:.3f}  {against:<15} {plan}")
    print(
        f"drawn       by {rule}; policy and verifier: tokens a problem; best of n less: {rule}, paired over problems"
    )


class Search(Task):
    Config = Config

    def run(self, setup: Setup) -> dict:
        return run(setup, self.cfg)

    def show(self, results: dict):
        show(results)

    def detail(self, results: dict):
        detail(results)

    def figures(self, results: dict, folder: Path) -> list[Path]:
        from prm_jax.figures.search import search_figures

        return search_figures(results, folder)

    def metric(self, results: dict) -> float | None:
        searches = results["verifiers"][0]["searches"]
        return max(search[results["choice"]]["share"] for search in searches)
